"""Checks of the plain arguments of layers, each with one sentence for its error.

Sizes and numbers are read by `posjax.arguments`, when a layer is made; arrays are checked in
`tokens`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posjax.arguments import Size, read, shown
from posjax.scheme import Scheme, check_key


def check_switches(**switches: Any) -> None:
  """Refuses switches that are neither True nor False, by their names.

  Raises:
    TypeError: if one is something else.
  """
  for name, switch in switches.items():
    read(switch, bool, name)


def check_dtype(name: str, dtype: Any) -> None:
  """Refuses what is no dtype of real or complex numbers.

  Raises:
    TypeError: if it is none.
  """
  if not jnp.issubdtype(_dtype(dtype), jnp.inexact):
    raise TypeError(f'{name} must be a dtype of real or complex numbers, but got {shown(dtype)}.')


def check_ids_dtype(dtype: Any) -> None:
  """Refuses a dtype in which a cache could not hold the ids of tokens.

  Raises:
    TypeError: if it is neither int32 nor float32, nor their wider forms.
  """
  if _dtype(dtype).name not in ('int32', 'int64', 'float32', 'float64'):
    raise TypeError(f'pos_dtype must be int32 or float32, but got {shown(dtype)}.')


def check_ids_per_token(scheme: Scheme, axes: Any) -> None:
  """Refuses another number of ids per token than the scheme declares.

  Raises:
    TypeError: if it is no integer.
    ValueError: if it is another number.
  """
  if axes is None:
    return
  axes = read(axes, Size, 'axes')
  if scheme.traits.axes not in (0, axes):
    raise ValueError(f'axes must be {scheme.traits.axes}, as the scheme has it, but got {axes}.')


def check_weights(
  dtype: Any,
  param_dtype: Any,
  kernel_init: Any,
  bias_init: Any,
  sharding: Any,
  **switches: Any,
) -> None:
  """Checks the arguments of a layer's weights, which only Flax reads.

  Args:
    dtype: to compute in; None: that of the input and the weights.
    param_dtype: of the weights.
    kernel_init: a function that makes the kernels.
    bias_init: a function that makes the biases.
    sharding: names of the mesh axes along M, H and D, or None.
    **switches: what must be True or False.

  Raises:
    TypeError: if one is of another type.
    ValueError: if there are not three names.
  """
  if dtype is not None:
    check_dtype('dtype', dtype)
  check_dtype('param_dtype', param_dtype)
  check_switches(**switches)
  for name, init in {'kernel_init': kernel_init, 'bias_init': bias_init}.items():
    if not callable(init):
      raise TypeError(f'{name} must be an initializer, but got {shown(init)}.')
  check_sharding(sharding)


def check_sharding(sharding: Any) -> None:
  """Refuses what is neither None nor three names of axes, along M, H and D.

  Raises:
    TypeError: if it is no tuple, or has what is no name, no tuple of names, and not None.
    ValueError: if there are not three names.
  """
  if sharding is not None and not isinstance(sharding, (tuple, list)):
    raise TypeError(f'sharding must be a tuple of three mesh axes, but got {shown(sharding)}.')
  if sharding is not None and len(sharding) != 3:
    raise ValueError(f'sharding must name the mesh axes along M, H and D, but got {sharding!r}.')
  for axis in sharding or ():
    several = axis if isinstance(axis, tuple) else (axis,)
    if axis is not None and not (several and all(isinstance(each, str) for each in several)):
      raise TypeError(
        'sharding must have a mesh axis, a tuple of mesh axes, or None for each of M, H and D, but '
        f'got {shown(axis)}.'
      )


def chosen_key(rate: float, key: Any, deterministic: Any) -> Any:
  """The key that draws the dropout; None where nothing is dropped.

  Args:
    rate: the dropout rate.
    key: a random key, or None.
    deterministic: whether nothing is to be dropped.

  Raises:
    TypeError: if the key is no JAX key, or `deterministic` no switch.
    ValueError: if there is dropout, but no key.
  """
  check_switches(deterministic=deterministic)
  if key is not None:
    check_key('dropout_key', key)
  if deterministic or not rate:
    return None
  if key is None:
    raise ValueError(
      f'The layer drops weights at a rate of {rate}, so a call needs a dropout_key, or '
      'deterministic=True to drop none, but got neither; a stream dropout of rngs gives a key, too.'
    )
  return key


def _dtype(given: Any) -> np.dtype:
  """The dtype that is meant; that of Python objects where none is."""
  if given is None or isinstance(given, (jax.Array, np.ndarray)):
    return np.dtype(object)
  try:
    return jnp.dtype(given)
  except TypeError:
    return np.dtype(object)
