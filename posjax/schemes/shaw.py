"""Shaw: a trained vector for each clipped offset, added to the keys and to the values.

logits = q . (k + a^K) / sqrt(D), out = sum of weights (v + a^V), a = table[clip(k_pos - q_pos)].

Reference: Shaw, Uszkoreit, Vaswani 2018, https://arxiv.org/abs/1803.02155, eqs. 3-5; section 3.3
for the form used here, which never holds a vector per pair: q is multiplied with the table, then
looked up, and on the value side the weights of each offset are summed, then multiplied. The
authors' code (tensor2tensor) shares the tables among heads, our default; the paper's base model has
them per head (section 4.1). It aligns queries to the end of longer keys, other code to their
beginning: here the ids say. Our initial values are Glorot's uniform ones. max_distance=0 is not
off: it adds one constant vector.
"""

import functools

import jax
import jax.numpy as jnp

from posjax.arguments import Whole, checked
from posjax.math.offsets import by_offset, by_rows, index, key_logits, value_sums, weighted_rows
from posjax.scheme import Scheme, Tiled, Traits, Values

SHIFT_INVARIANT = True
PAPERS = ('shaw2018self',)


def parameter_count(max_distance: int, head_dim: int) -> int:
  """Numbers in both tables of a layer whose heads share them: (2k + 1) D 2.

  Example:
    >>> parameter_count(16, 64)
    4224
  """
  return (2 * max_distance + 1) * head_dim * 2


@checked
def scheme(
  max_distance: Whole = 16, keys: bool = True, values: bool = True, per_head: bool = False
) -> Scheme:
  """Relative position representations.

  Args:
    max_distance: k of the paper: offsets beyond it, in tokens, are as far as it.
    keys: whether the keys have a table.
    values: whether the values have a table (they then must be as wide as the keys).
    per_head: tables for each query head, instead of one for all.

  Raises:
    ValueError: if the distance is negative or there is no table; where used, TypeError for ids
      that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('logits', 'values')
  """
  if not (keys or values):
    raise ValueError('Shaw needs a table, but both keys and values are False.')
  tables = [name for name, wanted in (('keys', keys), ('values', values)) if wanted]

  def init(key, dims):
    heads = (dims.num_heads,) if per_head else ()
    shape = (*heads, 2 * max_distance + 1, dims.head_dim)
    make = jax.nn.initializers.glorot_uniform(batch_axis=range(len(heads)))
    each = zip(tables, jax.random.split(key, len(tables)), strict=True)
    return {name: make(k, shape, jnp.float32) for name, k in each}

  rows = functools.partial(index, max_distance=max_distance)

  def logits(params, logits, q, k, q_at, k_at):
    return logits + key_logits(params['keys'], q, rows(q_at, k_at))

  def mixed(params, weights, q_at, k_at):
    return value_sums(params['values'], weights, rows(q_at, k_at))

  return Scheme(
    init=init,
    logits=logits if keys else Scheme().logits,
    values=Values(add=mixed if values else None),
    traits=Traits(tiled=_tiled(rows, keys, values, per_head)),
  )


def _tiled(rows, keys: bool, values: bool, per_head: bool) -> Tiled:
  """The same, with one vector for all pairs of a tile whose distances are all clipped alike."""
  only = lambda table, row: jax.lax.dynamic_slice_in_dim(table, row, 1, axis=-2)

  def logits(params, logits, q, k, q_at, k_at):
    one = lambda row, table, q: jnp.broadcast_to(by_offset(only(table, row), q), logits.shape)
    many = lambda rows, table, q: key_logits(table, q, rows)
    return logits + by_rows(rows, q_at, k_at, one, many, params['keys'], q)

  def mixed(params, weights, q_at, k_at):
    one = lambda row, table, weights: weighted_rows(
      only(table, row), weights.sum(-1, keepdims=True)
    )
    many = lambda rows, table, weights: value_sums(table, weights, rows)
    return by_rows(rows, q_at, k_at, one, many, params['values'], weights)

  def cut_heads(params, first, count, shared):
    cut = lambda table: jax.lax.dynamic_slice_in_dim(table, first, count)
    return jax.tree.map(cut, params) if per_head else params

  return Tiled(logits if keys else None, mixed if values else None, cut_heads=cut_heads)
