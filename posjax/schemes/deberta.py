"""DeBERTa: content looks at relative positions, and relative positions at content, separately.

logits = (q_i . k_j + q_i . K[r] + k_j . Q[r]) / sqrt(3 D): content to content, content to position
("c2p") and position to content ("p2c"), with the position keys K = P W_k and the position
queries Q = P W_q + b_q, a table P [2k, M] shared by all layers, and the row

  r = clip(i - j + k, 0, 2k - 1), for q_pos i and k_pos j.

With fewer than three terms sqrt(3 D) is sqrt(2 D) or sqrt(D). With log buckets (v2 and v3) the
distance d = i - j becomes a bucket first: d itself up to m = buckets / 2, and beyond it
sign(d) (m + ceil((m - 1) log(|d| / m) / log((max_distance - 1) / m))), with k = buckets.

Reference: He, Liu, Gao, Chen 2021, https://arxiv.org/abs/2006.03654, eqs. 3-4 and Algorithm 1; the
authors' code, microsoft/DeBERTa, for the buckets. Where the two differ:
- p2c: the paper's row is that of j - i, the authors' code and Hugging Face take that of i - j, as
  in c2p (microsoft/DeBERTa#162). Released weights are trained so: the default. `p2c_reversed` is
  the paper.
- The code adds b_q to the position queries, zero in the paper and at first here. What v2 adds to
  the position keys is the same for all keys of a query, which the softmax forgets: left out.
- v2 and v3 normalize the rows of P, with a trained scale and offset: `normalized`.
- v2 and v3 may project P with the content's own W_Q and W_K (share_att_key). A layer's projections
  are not the scheme's, so it has its own; for such weights, copy the layer's into `w_q` (its bias
  into `b_q`) and `w_k`.
Key heads may be grouped, W_k then has as many. Deviation 0.02 at first, as in the code. Bucket
boundaries are integers, exact at every distance; the code takes a logarithm, rounded.
"""

import bisect
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from posjax.arguments import Size, checked
from posjax.math.checks import check_integer_ids
from posjax.math.differences import saturating_subtract
from posjax.math.heads import ungroup
from posjax.math.network import layer_norm
from posjax.math.offsets import by_rows, pick
from posjax.scheme import Scheme, Tiled, Traits

SHIFT_INVARIANT = True
PAPERS = ('he2021deberta',)


def thresholds(buckets: int, max_distance: int) -> Int[np.ndarray, ' buckets']:
  """The least distance of each bucket from 1 on, of one direction.

  1, 2, .. m, then the least n above m ((max_distance - 1) / m)^(t / (m - 1)), t = 0 .. m - 1, with
  m = buckets / 2: found by comparing integers.

  Args:
    buckets: of one direction, distance 0 apart; even, at least 4.
    max_distance: the least distance of the last bucket, in tokens; above m + 1.

  Returns:
    Rising int32 [buckets].

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> thresholds(8, 64)
    array([ 1,  2,  3,  4,  5, 11, 26, 64], dtype=int32)
  """
  exact = buckets // 2
  if buckets < 4 or buckets % 2:
    raise ValueError(f'DeBERTa needs an even number of buckets, at least 4, but got {buckets}.')
  if not exact + 1 < max_distance < 2**31:
    raise ValueError(
      f'The max_distance of {buckets} buckets must be above {exact + 1}, the distances that have '
      f'a bucket of their own, and below 2^31, but got {max_distance}.'
    )
  rest = exact - 1
  powers = [(max_distance - 1) ** t * exact ** (rest - t) for t in range(rest + 1)]
  far = [bisect.bisect_right(range(max_distance), p, key=lambda n: n**rest) for p in powers]
  return np.array([*range(1, exact + 1), *far], np.int32)


def bucket(distance: Num[Array, '*shape'], buckets: int, max_distance: int) -> Int[Array, '*shape']:
  """The signed bucket of each distance; odd in it.

  Args:
    distance: q_pos - k_pos, in tokens; any integer.
    buckets: see `thresholds`.
    max_distance: see `thresholds`.

  Returns:
    int32, in -buckets .. buckets.

  Raises:
    TypeError: if distances are not integers.
    ValueError: if an argument is out of range.

  Example:
    >>> bucket(jnp.array([0, 3, 4, 11, -11, 999]), 8, 64)
    Array([ 0,  3,  4,  6, -6,  8], dtype=int32)
  """
  check_integer_ids(distance, 'A table of distances needs')
  least = jnp.asarray(thresholds(buckets, max_distance))
  near = jnp.clip(distance, -max_distance, max_distance).astype(jnp.int32)
  size = jnp.searchsorted(least, abs(near), side='right', method='scan_unrolled')
  return size.astype(jnp.int32) * jnp.sign(near)


def index(
  q_pos: Num[Array, '*B T'],
  k_pos: Num[Array, '*B S'],
  max_distance: int,
  buckets: int | None = None,
) -> Int[Array, '*B T S']:
  """delta(i, j), the row of the table for each pair (eq. 3).

  Raises:
    TypeError: if ids are not integers.
    ValueError: if an argument is out of range.

  Example:
    >>> index(jnp.arange(3), jnp.arange(3), 1)
    Array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
  """
  distance = saturating_subtract(jnp.expand_dims(q_pos, -1), jnp.expand_dims(k_pos, -2))
  check_integer_ids(distance, 'A table of distances needs')
  span = max_distance if buckets is None else buckets
  distance = distance if buckets is None else bucket(distance, buckets, max_distance)
  return (jnp.clip(distance, -span, span - 1) + span).astype(jnp.int32)


def content_to_position(
  q: Float[Array, 'B T H D'], keys: Float[Array, 'N K D'], index: Int[Array, 'B T S']
) -> Float[Array, 'B H T S']:
  """q . keys[index], unscaled.

  Args:
    q: queries, as projected.
    keys: position keys, one for each row of the table.
    index: delta(i, j).

  Example:
    >>> keys = jnp.array([[[1.0]], [[2.0]]])
    >>> content_to_position(jnp.full((1, 1, 1, 1), 3.0), keys, jnp.array([[[1, 0]]]))
    Array([[[[6., 3.]]]], dtype=float32)
  """
  return pick(_at_positions(q, keys), index)


def position_to_content(
  k: Float[Array, 'B S K D'], queries: Float[Array, 'N H D'], index: Int[Array, 'B T S']
) -> Float[Array, 'B H T S']:
  """k . queries[index], unscaled.

  Args:
    k: keys, as projected.
    queries: position queries, one for each row of the table.
    index: delta(i, j), or delta(j, i) at [i, j].

  Example:
    >>> queries = jnp.array([[[1.0]], [[2.0]]])
    >>> k = jnp.array([[[[3.0]], [[4.0]]]])
    >>> position_to_content(k, queries, jnp.array([[[1, 0]]]))
    Array([[[[6., 4.]]]], dtype=float32)
  """
  return pick(_of_positions(k, queries), index.swapaxes(1, 2)).swapaxes(2, 3)


def _at_positions(q, keys):
  """q . keys, for each row of the table: [B, H, T, N]."""
  return jnp.einsum('bthd,nhd->bhtn', q, ungroup(keys[None], q.shape[-2])[0])


def _of_positions(k, queries):
  """k . queries, for each row of the table: [B, H, S, N]."""
  return jnp.einsum('bshd,nhd->bhsn', ungroup(k, queries.shape[-2]), queries)


@checked
def scheme(
  max_distance: Size = 512,
  buckets: int | None = None,
  c2p: bool = True,
  p2c: bool = True,
  p2c_reversed: bool = False,
  normalized: bool = False,
) -> Scheme:
  """Disentangled attention. With neither c2p nor p2c, plain attention.

  Args:
    max_distance: k of the paper: distances beyond it, in tokens, are as far as it.
    buckets: log buckets of one direction, as in v2 and v3 (256 with max_distance 512); even, at
      least 4. None gives each distance a row of its own.
    c2p: whether queries look at positions.
    p2c: whether positions look at keys.
    p2c_reversed: whether p2c takes the row of j - i, as the paper writes, instead of i - j.
    normalized: whether the rows of the table are layer-normalized, as in v2 and v3.

  Raises:
    ValueError: if an argument is out of range, or there is no p2c to reverse; where used, TypeError
      for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(buckets=256))
    ('query', 'logits')
  """
  if buckets is not None:
    thresholds(buckets, max_distance)  # or an error, now
  if p2c_reversed and not p2c:
    raise ValueError('Only p2c can be reversed, but got p2c=False.')
  if not (c2p or p2c):
    return Scheme()
  terms = 1 + c2p + p2c
  rows = 2 * (max_distance if buckets is None else buckets)

  def init_model(key, dims):
    made = {'table': 0.02 * jax.random.normal(key, (rows, dims.width), jnp.float32)}
    if normalized:
      made |= {'scale': jnp.ones(dims.width), 'offset': jnp.zeros(dims.width)}
    return made

  def init(key, dims):
    q_key, k_key = jax.random.split(key)
    normal = lambda key, heads: jax.random.normal(
      key, (dims.width, heads, dims.head_dim), jnp.float32
    )
    made = {'w_k': 0.02 * normal(k_key, dims.num_kv_heads or dims.num_heads)} if c2p else {}
    if p2c:
      made['w_q'] = 0.02 * normal(q_key, dims.num_heads)
      made['b_q'] = jnp.zeros((dims.num_heads, dims.head_dim))
    return made

  def prepare(params, x, pos, last, starts):
    table, made = params['table'], {}
    if normalized:
      table = layer_norm(table, params['scale'], params['offset'], epsilon=1e-7)
    if c2p:
      made['keys'] = jnp.einsum('nm,mkd->nkd', table, params['w_k'])
    if p2c:
      made['queries'] = jnp.einsum('nm,mhd->nhd', table, params['w_q']) + params['b_q'][None]
    return made, pos

  def query(params, x, at):
    return x * terms**-0.5

  rows_of = functools.partial(index, max_distance=max_distance, buckets=buckets)
  reverse = lambda q_at, k_at: rows_of(k_at, q_at).swapaxes(1, 2)  # delta(j, i) at [i, j]

  def logits(params, logits, q, k, q_at, k_at):
    scale = (terms * q.shape[-1]) ** -0.5
    if c2p:
      rows = rows_of(q_at, k_at)
      logits = logits + scale * content_to_position(q, params['keys'], rows)
    if p2c:
      rows = (reverse if p2c_reversed else rows_of)(q_at, k_at)
      logits = logits + scale * position_to_content(k, params['queries'], rows)
    return logits

  p2c_rows = reverse if p2c_reversed else rows_of
  return Scheme(
    init_model=init_model,
    init=init,
    prepare=prepare,
    query=query,
    logits=logits,
    traits=Traits(tiled=_tiled(rows_of if c2p else None, p2c_rows if p2c else None)),
  )


def _tiled(c2p_rows, p2c_rows) -> Tiled:
  """The same, with one row of the table for all pairs of a tile whose distances share it.

  Args:
    c2p_rows: the row of each pair for content to position; None where there is no such term.
    p2c_rows: the same for position to content.
  """
  terms = 1 + (c2p_rows is not None) + (p2c_rows is not None)
  only = lambda table, row: jax.lax.dynamic_slice_in_dim(table, row, 1, axis=0)

  def logits(params, logits, q, k, q_at, k_at):
    scale, shape = (terms * q.shape[-1]) ** -0.5, logits.shape
    if c2p_rows is not None:
      one = lambda row, keys, q: jnp.broadcast_to(_at_positions(q, only(keys, row)), shape)
      many = lambda rows, keys, q: content_to_position(q, keys, rows)
      logits = logits + scale * by_rows(c2p_rows, q_at, k_at, one, many, params['keys'], q)
    if p2c_rows is not None:
      by_key = lambda row, queries, k: _of_positions(k, only(queries, row)).swapaxes(2, 3)
      one = lambda row, queries, k: jnp.broadcast_to(by_key(row, queries, k), shape)
      many = lambda rows, queries, k: position_to_content(k, queries, rows)
      logits = logits + scale * by_rows(p2c_rows, q_at, k_at, one, many, params['queries'], k)
    return logits

  def cut_heads(params, first, count, shared):
    """Cuts the position keys and queries, as `prepare` made them."""
    parts = {'keys': (first // shared, count // shared), 'queries': (first, count)}
    cut = jax.lax.dynamic_slice_in_dim
    return {name: cut(table, *parts[name], axis=1) for name, table in params.items()}

  return Tiled(logits=logits, cut_heads=cut_heads)
