"""Differences of integers that do not wrap around, however far apart the integers are.

int32 holds no difference of 2^31 or more: 2^31 - 1 - (-1) wraps around to -2^31, so that a distance
changes its sign. Nothing here does. Numbers of a float type are subtracted as they are.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Num


def saturating_subtract(one: Num[Array, '...'], other: Num[Array, '...']) -> Num[Array, '...']:
  """one - other; integers that are farther apart than their type can say saturate.

  The largest result is 2^31 - 1 for int32, and the least is its negative, which `abs` can take.

  Args:
    one: integers or floats.
    other: what broadcasts to them.

  Example:
    >>> saturating_subtract(jnp.array([5, 2**31 - 1, -(2**31)]), jnp.array([7, -1, 2**31 - 1]))
    Array([        -2, 2147483647, -2147483647], dtype=int32)
  """
  dtype = jnp.result_type(one, other)
  if not jnp.issubdtype(dtype, jnp.integer):
    return one - other
  # The other number is moved to the nearest one that can be subtracted, `most` away.
  one, other, most = one.astype(dtype), other.astype(dtype), jnp.iinfo(dtype).max
  least, largest = jnp.maximum(one, -1) - most, jnp.minimum(one, 0) + most
  return one - jnp.minimum(jnp.maximum(other, least), largest)


def is_below(one: Num[Array, '...'], other: Num[Array, '...'], limit: int) -> Bool[Array, '...']:
  """Whether one - other < limit, for integers that are any number apart.

  Args:
    one: integers or floats.
    other: what broadcasts to them.
    limit: at least 1.

  Example:
    >>> is_below(jnp.array([5, 2**31 - 1, -(2**31)]), jnp.array([3, -1, 2**31 - 1]), 3)
    Array([ True, False,  True], dtype=bool)
  """
  dtype = jnp.result_type(one, other)
  if not jnp.issubdtype(dtype, jnp.integer):
    return one - other < limit
  # Compared with the least number that is near enough, so that pairs are not subtracted at all.
  one, info = one.astype(dtype), jnp.iinfo(dtype)
  reach = min(limit - 1, info.max)
  return other >= jnp.maximum(one, info.min + reach) - reach


def count_up(ids: Num[Array, '... n']) -> Bool[Array, '']:
  """Whether each row counts up by one.

  Example:
    >>> count_up(jnp.array([[4, 5, 6]])), count_up(jnp.array([[2**31 - 1, -(2**31)]]))
    (Array(True, dtype=bool), Array(False, dtype=bool))
  """
  return rises_by_one(ids).all()


def rises_by_one(ids: Num[Array, '... n']) -> Bool[Array, '... n_less_one']:
  """Whether each number but the first is the one before it, plus one."""
  before, after = ids[..., :-1], ids[..., 1:]
  return (after - before == 1) & (after > before)  # the least id is the largest, plus one
