"""Checks of the dtype of ids that several schemes make."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num


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
