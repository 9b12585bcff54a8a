"""Trained tables with one row for each id."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.math.checks import check_integer_ids
from posjax.scheme import Dims, PRNGKey


def lookup(
  table: Float[Array, '*rows_and_row'],
  *ids: Num[Array, '*shape'],
  reader: str = 'A table of positions needs',
) -> Float[Array, '...']:
  """table[ids], and NaN for every id that the table has no row for.

  NumPy counts a negative id from the end, and JAX answers an id beyond the table with its last
  row. Both would hide a mistake; NaN shows it.

  Args:
    table: one row, which may have any number of axes, for each id 0 .. N - 1.
    *ids: integers, in tokens. Several of them index the first axes of the table together, and an
      entry is NaN where any of them is outside.
    reader: who needs integer ids, for the sentence of the error.

  Returns:
    The rows, in the shape of the ids followed by the shape of a row.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> lookup(jnp.array([[1.0], [2.0]]), jnp.array([1, 2, -1]))
    Array([[ 2.], [nan], [nan]], dtype=float32)
  """
  for each in ids:
    check_integer_ids(each, reader)
  return table.at[ids].get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)


def position_heads(
  table: Float[Array, 'N P'], weights: Float[Array, 'P H D'], pos: Num[Array, '*B T']
) -> Float[Array, '*B T H D']:
  """W p(pos): queries, or keys, that know their position alone, and NaN outside the table.

  Args:
    table: p, one row for each id.
    weights: W, the projection of each head.
    pos: integer ids, in tokens.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> table, weights = jnp.array([[1.0], [10.0]]), jnp.array([[[2.0, 3.0]]])
    >>> position_heads(table, weights, jnp.array([1, 0, 2]))[:, 0]
    Array([[20., 30.],
           [ 2.,  3.],
           [nan, nan]], dtype=float32)
  """
  return jnp.einsum('...p,phd->...hd', lookup(table, pos), weights)


def normal_table(key: PRNGKey, dims: Dims, max_length: int) -> dict[str, Float[Array, 'N M']]:
  """The parameter `table`, as wide as the model, drawn from N(0, 1).

  Example:
    >>> from posjax.scheme import Dims
    >>> normal_table(jax.random.key(0), Dims(8, 2, 4), max_length=5)['table'].shape
    (5, 8)
  """
  return {'table': jax.random.normal(key, (max_length, dims.width), jnp.float32)}


def normal_projections(key: PRNGKey, dims: Dims) -> dict[str, Float[Array, 'M heads D']]:
  """The parameters `query` and `key` of `position_heads`, drawn from N(0, 1/M).

  Rows of variance 1 then make queries and keys of variance 1.

  Example:
    >>> from posjax.scheme import Dims
    >>> made = normal_projections(jax.random.key(0), Dims(8, 2, 4, num_kv_heads=1))
    >>> {name: weights.shape for name, weights in made.items()}
    {'query': (8, 2, 4), 'key': (8, 1, 4)}
  """
  kv_heads = dims.num_heads if dims.num_kv_heads is None else dims.num_kv_heads
  query_key, key_key = jax.random.split(key)

  def normal(key, heads):
    shape = (dims.width, heads, dims.head_dim)
    return dims.width**-0.5 * jax.random.normal(key, shape, jnp.float32)

  return {'query': normal(query_key, dims.num_heads), 'key': normal(key_key, kv_heads)}
