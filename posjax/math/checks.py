"""Checks of arguments and ids that several schemes make, each with one sentence for its error."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num


def check_positive(owner: str, **arguments: float | int) -> None:
  """Refuses an argument that is not positive, NaN included.

  Args:
    owner: the scheme's name, which begins the sentence of the error.
    **arguments: the values to check, by the names that the user knows them by.

  Raises:
    ValueError: if a value is not positive.

  Example:
    >>> check_positive('RoPE', base=0.0)
    Traceback (most recent call last):
      ...
    ValueError: RoPE's base must be positive, but got 0.0.
  """
  for name, value in arguments.items():
    if not value > 0:
      raise ValueError(f"{owner}'s {name} must be positive, but got {value}.")


def check_axes(owner: str, axes: int) -> None:
  """Refuses a number of ids per token that is below one.

  Args:
    owner: the plural noun that begins the sentence of the error.
    axes: how many ids each token has.

  Raises:
    ValueError: if there is no axis.

  Example:
    >>> check_axes('Shifted positions', 0)
    Traceback (most recent call last):
      ...
    ValueError: Shifted positions need at least one axis, but got 0.
  """
  if axes < 1:
    raise ValueError(f'{owner} need at least one axis, but got {axes}.')


def check_ids(ids: Num[Array, '...']) -> None:
  """Refuses ids of a float type that is too narrow to count tokens: bfloat16 ends at 256.

  Raises:
    TypeError: if the ids are neither integers, nor float32 or float64.

  Example:
    >>> check_ids(jnp.zeros(3, jnp.bfloat16))
    Traceback (most recent call last):
      ...
    TypeError: Ids must be integers, float32 or float64, but got bfloat16.
  """
  if not jnp.issubdtype(ids.dtype, jnp.integer) and ids.dtype not in (jnp.float32, jnp.float64):
    raise TypeError(f'Ids must be integers, float32 or float64, but got {ids.dtype}.')


def check_integer_ids(ids: Num[Array, '...'], reader: str = 'A table of positions needs') -> None:
  """Refuses ids that are not integers, for whatever has no value between two of them.

  Args:
    ids: ids, or distances between ids.
    reader: the subject and the verb that begin the sentence of the error.

  Raises:
    TypeError: if the ids are not integers.

  Example:
    >>> check_integer_ids(jnp.zeros(3))
    Traceback (most recent call last):
      ...
    TypeError: A table of positions needs integer ids, but got float32.
  """
  if not jnp.issubdtype(ids.dtype, jnp.integer):
    raise TypeError(f'{reader} integer ids, but got {ids.dtype}.')


def float_ids(ids: Num[Array, '*shape']) -> Float[Array, '*shape']:
  """The ids as real numbers: integers become float32, float32 and float64 stay as they are.

  Raises:
    TypeError: if the ids are of a float type narrower than float32.

  Example:
    >>> float_ids(jnp.array([7]))
    Array([7.], dtype=float32)
  """
  check_ids(ids)
  return ids.astype(jnp.float32) if jnp.issubdtype(ids.dtype, jnp.integer) else ids
