"""One tile of the attention, forward and backward: what `blockwise` sums over all tiles.

Nothing here knows a scheme: a tile of its answer is its answer for a tile. Products of heads and
their derivatives are written out, in the order of axes that `cut_heads` chose; whatever a scheme
does beyond them is differentiated by `jax.vjp`.

K key heads, each shared by G query heads; t counts the queries of all G side by side.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact, UInt32

from posjax.border import Rules, Side
from posjax.heads import product
from posjax.kernels.distances import Table
from posjax.scheme import Params, PRNGKey, Scheme, declares
from posjax.tile import bias, kept, scores, visible
from posjax.toeplitz import shift, unshift


class Plan(NamedTuple):
  """What is known when the attention is traced."""

  scheme: Scheme
  rules: Rules
  heads: int
  queries: int  # tokens of a tile
  keys: int
  learned: bool = True  # whether the scheme has parameters, and so its table a gradient
  budget: int | None = None  # see `groups.budget`


class Tile(NamedTuple):
  """What one tile computes with. Sides hold only what the scheme and the rules ask for."""

  params: Params
  q: Inexact[Array, 'B K D t'] | None  # None: the tile places its heads itself
  k: Inexact[Array, 'B K D S'] | None
  v: Inexact[Array, 'B K E S']
  relative: Inexact[Array, 'B H W T'] | None  # the queries that meet `table.vectors`
  table: Table  # of the tile's distances, where all ids count up by one
  q_side: Side
  k_side: Side
  mask: Bool[Array, 'b h T S'] | None
  dropout_key: PRNGKey | None
  numbers: UInt32[Array, 'B H'] | None  # of the dropout


class Sums(NamedTuple):
  """What the online softmax knows of the keys of some queries so far."""

  top: Float[Array, 'B H T']  # the largest logit
  total: Float[Array, 'B H T']  # the sum of exponentials, relative to it


class Running(NamedTuple):
  """The online softmax of some queries, and their output so far."""

  so_far: Sums
  out: Inexact[Array, 'B K t E']


class Rows(NamedTuple):
  """What the backward pass knows of some queries."""

  d_out: Inexact[Array, 'B K E t']
  log_sums: Float[Array, 'B H T']  # logarithm of each row's sum of exponentials
  delta: Float[Array, 'B H T']  # output times its cotangent: what the softmax takes back


class Cotangents(NamedTuple):
  """What a tile gives back; None where it has no such part."""

  floats: Any  # of the floats of parameters, q_side and k_side
  q: Inexact[Array, 'B K t D'] | None
  k: Inexact[Array, 'B K D S'] | None
  v: Inexact[Array, 'B K E S']
  relative: Inexact[Array, 'B H T W'] | None
  table: Table  # its bias not yet summed over what shares an entry


def soften(plan: Plan, x: Tile, so_far: Sums) -> tuple[Sums, Array, Array]:
  """One step of the online softmax, with this tile's keys.

  Returns:
    What is known now; by how much the output so far fades; and what is added to it then.
  """
  logits = _scores(plan, x, _content(plan, x))
  top = jnp.maximum(so_far.top, logits.max(-1))
  weights = jnp.exp(logits - top[..., None])  # 0 where unseen: `top` is far above UNSEEN
  fade = jnp.exp(so_far.top - top)
  total = so_far.total * fade + weights.sum(-1)
  if plan.rules.dropout_rate:
    weights = weights * _kept(plan, x)
  more = jnp.einsum('bkts,bkes->bkte', _by_key_head(plan, x, weights), wide(x.v))
  if plan.scheme.values:
    more = more + _values(plan, x, weights)
  return Sums(top, total), fade.reshape(*more.shape[:3], 1), more


def cotangents(plan: Plan, x: Tile, rows: Rows) -> Cotangents:
  """The tile, again, and what it gives back."""
  d_out, log_sums, delta = rows
  groups = x.params, x.q_side, x.k_side
  parts = [split(group) for group in groups]
  floats = tuple(found for found, _ in parts)
  others = [other for _, other in parts]
  trees = [jax.tree.structure(group) for group in groups]

  def joined(floats, bias=None):
    params, q_side, k_side = map(join, trees, floats, others)
    table = x.table._replace(bias=bias)
    return x._replace(params=params, q_side=q_side, k_side=k_side, table=table)

  given = []  # cotangents of `floats`, from each of the scheme's places
  logits, back = _bent(plan, x, floats, joined)
  weights = jnp.exp(logits - log_sums[..., None])
  d_weights = _real(jnp.einsum('bket,bkes->bkts', d_out, wide(x.v))).reshape(weights.shape)
  factors = _kept(plan, x) if plan.rules.dropout_rate else None
  mixed = weights if factors is None else weights * factors
  if plan.scheme.values:
    added = lambda floats, mixed: _values(plan, joined(floats), mixed)
    _, back_values = jax.vjp(added, floats, mixed)
    d_floats, more = back_values(d_out.swapaxes(-1, -2))
    given.append(d_floats)
    d_weights = d_weights + more
  if factors is not None:
    d_weights = d_weights * factors
  d_floats, d_content, d_bias = back(weights * (d_weights - delta[..., None]))
  if d_floats is not None:
    given.append(d_floats)
  d_q, d_k, d_relative, d_vectors = _content_back(plan, x, d_content)
  return Cotangents(
    floats=sums(*given) if given else None,
    q=d_q,
    k=d_k,
    v=jnp.einsum('bket,bkts->bkes', d_out, _by_key_head(plan, x, mixed)),
    relative=d_relative,
    table=Table(d_bias if x.table.bias is not None and plan.learned else None, d_vectors),
  )


def _bent(plan: Plan, x: Tile, floats, joined):
  """The logits, and what gives their cotangent to `floats`, the products and the tile's bias."""
  content = _content(plan, x)
  by_pairs = plan.scheme.bias is not None and x.table.bias is None
  places = by_pairs or declares(plan.scheme, 'logits') or plan.rules.logit_cap is not None
  if not places and content is not None:  # sums and a mask, which has no weights
    return _scores(plan, x, content), lambda d_logits: (None, d_logits, d_logits)
  batch = x.v.shape[0]
  bias = x.table.bias
  if bias is not None:  # a cotangent for each pair of each row
    bias = jnp.broadcast_to(bias, (batch, plan.heads, plan.queries, plan.keys))
  bent = lambda floats, content, bias: _scores(plan, joined(floats, bias), content)
  return jax.vjp(bent, floats, content, bias)


def _content(plan: Plan, x: Tile) -> Inexact[Array, 'B H T S'] | None:
  """The scaled products; None where the tile must place its heads first."""
  if x.q is None:
    return None
  dtype = jnp.result_type(x.q, x.k, jnp.float32)
  logits = jnp.einsum('bkdt,bkds->bkts', x.q, x.k, preferred_element_type=dtype)
  logits = logits.reshape(logits.shape[0], plan.heads, plan.queries, plan.keys)
  if x.relative is not None:
    rows = jnp.einsum('bhwt,bhwn->bhtn', wide(x.relative), _vectors(x))
    # Computed once: both the maximum and the exponentials would shift the rows.
    logits = logits + lax.optimization_barrier(shift(rows))
  return logits * plan.rules.scale


def _content_back(plan: Plan, x: Tile, d_content):
  """Cotangents of queries, keys, relative queries, and vectors."""
  if x.q is None or x.k is None:
    return None, None, None, None
  scale, pairs = plan.rules.scale, _by_key_head(plan, x, d_content)
  d_q = jnp.einsum('bkts,bkds->bktd', pairs, wide(x.k)) * scale
  d_k = jnp.einsum('bkdt,bkts->bkds', wide(x.q), pairs) * scale
  if x.relative is None:
    return d_q, d_k, None, None
  rows = lax.optimization_barrier(unshift(d_content))
  d_relative = jnp.einsum('bhtn,bhwn->bhtw', rows, _vectors(x)) * scale
  d_vectors = jnp.einsum('bhwt,bhtn->bhwn', wide(x.relative), rows) * scale
  return d_q, d_k, d_relative, d_vectors.sum(0)


def _vectors(x: Tile) -> Float[Array, 'B H W n']:
  """For each row, so that products are batched over both axes."""
  vectors = jnp.asarray(x.table.vectors)
  return jnp.broadcast_to(wide(vectors), (x.v.shape[0], *vectors.shape))


def _scores(plan: Plan, x: Tile, content) -> Float[Array, 'B H T S']:
  scheme, q, k = plan.scheme, x.q_side, x.k_side
  if content is None:
    placed = scheme.query(x.params, q.raw, q.at), scheme.key(x.params, k.raw, k.at)
    content = product(*placed) * plan.rules.scale
  seen = visible(q, k, plan.rules, x.mask)
  offset = x.table.bias
  if scheme.bias and offset is None:
    offset = bias(scheme.bias, x.params, q.pos, k.pos)
  return scores(scheme, x.params, content, q, k, plan.rules, seen, offset)


def _values(plan, x: Tile, weights):
  return _rows(plan, x, plan.scheme.values(x.params, weights, x.q_side.at, x.k_side.at))


def _kept(plan: Plan, x: Tile) -> Float[Array, 'B H T S']:
  rate = plan.rules.dropout_rate
  return kept(x.dropout_key, rate, jnp.asarray(x.numbers), x.q_side.index, x.k_side.index)


def _by_key_head(plan: Plan, x: Tile, pairs: Array) -> Inexact[Array, 'B K t S']:
  return pairs.reshape(*x.v.shape[:2], -1, plan.keys)


def _rows(plan: Plan, x: Tile, out: Inexact[Array, 'B T H E']) -> Inexact[Array, 'B K t E']:
  """What a scheme says for each query, in the order of `Running.out`."""
  return out.swapaxes(1, 2).reshape(*x.v.shape[:2], -1, out.shape[-1])


def _real(x: Array) -> Array:
  return x.real if jnp.iscomplexobj(x) else x


def _trains(leaf: Array) -> bool:
  return jnp.issubdtype(leaf.dtype, jnp.inexact)


def split(tree: Any) -> tuple[list[Array | None], list[Array | None]]:
  """The floats among the leaves, and the others; None where the leaf is of the other kind."""
  leaves = jax.tree.leaves(tree)
  floats = [leaf if _trains(leaf) else None for leaf in leaves]
  return floats, [None if _trains(leaf) else leaf for leaf in leaves]


def join(tree: Any, floats: list[Array | None], others: list[Array | None]) -> Any:
  """The inverse of `split`, given the tree's structure."""
  pairs = zip(floats, others, strict=True)
  return jax.tree.unflatten(tree, [b if a is None else a for a, b in pairs])


def wide(x: Array) -> Array:
  """In float32, or what is wider."""
  return x.astype(jnp.result_type(x, jnp.float32))


def sums(*trees: Any) -> Any:
  """Sums of cotangents, in float32 or what is wider."""
  return jax.tree.map(lambda *leaves: sum(map(wide, leaves)), *trees)
