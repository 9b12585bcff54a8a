"""One tile of the attention, forward and backward: what `blockwise` sums over all tiles.

Nothing here knows a scheme: a tile of its answer is its answer for a tile. Products of heads and
their derivatives are written out, in the order of axes that `cut_heads` chose; whatever a scheme
does beyond them is differentiated by `jax.vjp`.

K key heads, each shared by G query heads; t counts the queries of all G side by side.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from posjax.border import Rules, Side
from posjax.scheme import Params, PRNGKey, Scheme, declares
from posjax.tile import bias, kept, scores, visible


class Plan(NamedTuple):
  """What is known when the attention is traced."""

  scheme: Scheme
  rules: Rules
  heads: int
  queries: int  # tokens of a tile
  keys: int
  tree: Any  # the structure of `Operands`


class Tile(NamedTuple):
  """What one tile computes with. Sides hold only what the scheme and the rules ask for."""

  params: Params
  q: Inexact[Array, 'B K D t']
  k: Inexact[Array, 'B K D S']
  v: Inexact[Array, 'B K E S']
  q_side: Side
  k_side: Side
  mask: Bool[Array, 'b h T S'] | None
  strip: Float[Array, 'b h T S'] | None  # the bias; None where there is none, or by pairs
  dropout_key: PRNGKey | None


class Running(NamedTuple):
  """The online softmax of some queries: maximum, sum, and output so far."""

  top: Float[Array, 'B H T']
  total: Float[Array, 'B H T']
  out: Inexact[Array, 'B K t E']


class Cotangents(NamedTuple):
  """What a tile gives back: `floats` to the floats of its parameters and two sides."""

  floats: Any
  q: Inexact[Array, 'B K t D']
  k: Inexact[Array, 'B K D S']
  v: Inexact[Array, 'B K E S']
  strip: Float[Array, 'B H T S'] | None  # not yet summed to the strip's b and h


def soften(plan: Plan, x: Tile, so_far: Running) -> Running:
  """One step of the online softmax, with this tile's keys."""
  logits = _scores(plan, x, _content(plan, x))
  top = jnp.maximum(so_far.top, logits.max(-1))
  weights = jnp.exp(logits - top[..., None])  # 0 where unseen: `top` is far above UNSEEN
  fade = jnp.exp(so_far.top - top)
  total = so_far.total * fade + weights.sum(-1)
  if plan.rules.dropout_rate:
    weights = weights * _kept(plan, x)
  more = jnp.einsum('bkts,bkes->bkte', _by_key_head(plan, x, weights), _wide(x.v))
  if plan.scheme.values:
    more = more + _rows(plan, x, plan.scheme.values(x.params, weights, x.q_side.at, x.k_side.at))
  return Running(top, total, so_far.out * fade.reshape(*more.shape[:3], 1) + more)


def cotangents(
  plan: Plan,
  x: Tile,
  log_sums: Float[Array, 'B H T'],
  delta: Float[Array, 'B H T'],
  d_out: Inexact[Array, 'B K t E'],
) -> Cotangents:
  """The tile, again, and what it gives back.

  Args:
    plan: as in the forward pass.
    x: the tile.
    log_sums: logarithm of each row's sum of exponentials.
    delta: of each row, the product of output and cotangent: what the softmax takes back.
    d_out: the cotangent of the output.
  """
  groups = x.params, x.q_side, x.k_side
  split_groups = [split(group) for group in groups]
  floats = tuple(found for found, _ in split_groups)
  trees = [jax.tree.structure(group) for group in groups]

  def joined(floats, strip=None):
    others = (other for _, other in split_groups)
    params, q_side, k_side = map(join, trees, floats, others)
    return x._replace(params=params, q_side=q_side, k_side=k_side, strip=strip)

  given = []  # cotangents of `floats`, from each of the scheme's places
  content = _content(plan, x)
  if _bends(plan, x):
    strip = None if x.strip is None else jnp.broadcast_to(x.strip, content.shape)
    bent = lambda floats, content, strip: _scores(plan, joined(floats, strip), content)
    logits, back = jax.vjp(bent, floats, content, strip)
  else:
    logits, back = _scores(plan, x, content), None
  weights = jnp.exp(logits - log_sums[..., None])
  d_weights = _real(jnp.einsum('bkte,bkes->bkts', d_out, _wide(x.v))).reshape(weights.shape)
  factors = _kept(plan, x) if plan.rules.dropout_rate else None
  mixed = weights if factors is None else weights * factors
  if plan.scheme.values:
    added = lambda floats, mixed: _values(plan, joined(floats), mixed)
    _, back_values = jax.vjp(added, floats, mixed)
    d_floats, more = back_values(d_out)
    given.append(d_floats)
    d_weights = d_weights + more
  if factors is not None:
    d_weights = d_weights * factors
  d_content = d_strip = weights * (d_weights - delta[..., None])
  if back is not None:
    d_floats, d_content, d_strip = back(d_content)
    given.append(d_floats)
  d_content = _by_key_head(plan, x, d_content)
  return Cotangents(
    floats=sums(*given) if given else None,
    q=jnp.einsum('bkts,bkds->bktd', d_content, _wide(x.k)) * plan.rules.scale,
    k=jnp.einsum('bkdt,bkts->bkds', _wide(x.q), d_content) * plan.rules.scale,
    v=jnp.einsum('bkte,bkts->bkes', d_out, _by_key_head(plan, x, mixed)),
    strip=None if x.strip is None else d_strip,
  )


def _content(plan: Plan, x: Tile) -> Inexact[Array, 'B H T S']:
  wide = jnp.result_type(x.q, x.k, jnp.float32)
  logits = jnp.einsum('bkdt,bkds->bkts', x.q, x.k, preferred_element_type=wide)
  logits = logits.reshape(logits.shape[0], plan.heads, plan.queries, plan.keys)
  return logits * plan.rules.scale


def _scores(plan: Plan, x: Tile, content) -> Float[Array, 'B H T S']:
  scheme, q, k = plan.scheme, x.q_side, x.k_side
  seen = visible(q, k, plan.rules, x.mask)
  offset = x.strip
  if scheme.bias and offset is None:
    offset = bias(scheme.bias, x.params, q.pos, k.pos)
  return scores(scheme, x.params, content, q, k, plan.rules, seen, offset)


def _bends(plan: Plan, x: Tile) -> bool:
  """Whether more than sums and the mask lies between products and logits."""
  by_pairs = plan.scheme.bias is not None and x.strip is None
  return by_pairs or declares(plan.scheme, 'logits') or plan.rules.logit_cap is not None


def _values(plan, x: Tile, weights):
  return _rows(plan, x, plan.scheme.values(x.params, weights, x.q_side.at, x.k_side.at))


def _kept(plan: Plan, x: Tile) -> Float[Array, 'B H T S']:
  heads = x.q.shape[0], plan.heads
  rate = plan.rules.dropout_rate
  return kept(x.dropout_key, rate, heads, x.q_side.index, x.k_side.index)


def _by_key_head(plan: Plan, x: Tile, pairs: Array) -> Inexact[Array, 'B K t S']:
  return pairs.reshape(*x.k.shape[:2], -1, plan.keys)


def _rows(plan: Plan, x: Tile, out: Inexact[Array, 'B T H E']) -> Inexact[Array, 'B K t E']:
  """What a scheme says for each query, in the order of `Running.out`."""
  return out.swapaxes(1, 2).reshape(*x.k.shape[:2], -1, out.shape[-1])


def _wide(x: Array) -> Array:
  return x.astype(jnp.result_type(x, jnp.float32))


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


def sums(*trees: Any) -> Any:
  """Sums of cotangents, in float32 or what is wider."""
  return jax.tree.map(lambda *leaves: sum(map(_wide, leaves)), *trees)
