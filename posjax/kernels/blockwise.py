"""Attention in tiles, for any scheme: memory linear in length, on any device, with gradients.

Online softmax over tiles of keys, and a backward pass that computes each tile again. Nothing here
knows a scheme: a tile of its answer is its answer for a tile. So every parameter that a scheme has
gets its gradient from `jax.vjp` of the tile, and no [T, S] array exists, forward or backward.

Tiles that cannot see each other (the future, other documents, beyond the window, padding) are
skipped, by a test on the order and segments that they hold: right for any of them.

Reference: Rabe, Staats 2021, https://arxiv.org/abs/2112.05682 (attention in tiles); Dao et al.
2022, https://arxiv.org/abs/2205.14135, algorithms 2 and 4 (recomputation from the row's logarithm).
Derivatives are of first order, backward: `jax.custom_vjp` knows no others.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact

from posjax.border import Rules, Side
from posjax.kernels import strip
from posjax.kernels.cut import cut_mask, cut_tokens, glue_tokens
from posjax.scheme import Params, PRNGKey, Scheme
from posjax.tile import UNSEEN, kept, mix, scores, visible


class Plan(NamedTuple):
  """What is known when the attention is traced."""

  scheme: Scheme
  rules: Rules
  queries: int  # tokens of a tile
  keys: int
  tree: Any  # the structure of `Operands`


class Operands(NamedTuple):
  """Everything that is computed with; a tile of it is of the same kind."""

  params: Params
  q: Side
  k: Side
  v: Inexact[Array, 'B S K E']
  mask: Bool[Array, 'b h T S'] | None
  sinks: Float[Array, ' H'] | None
  dropout_key: PRNGKey | None


def attend(
  scheme: Scheme,
  params: Params,
  q: Side,
  k: Side,
  v: Inexact[Array, 'B S K E'],
  rules: Rules,
  mask: Bool[Array, 'b h T S'] | None = None,
  sinks: Float[Array, ' H'] | None = None,
  dropout_key: PRNGKey | None = None,
) -> Inexact[Array, 'B T H E']:
  """What `attention.dense` computes, in tiles of `tile_size` queries and keys.

  A scheme that needs whole rows gets all keys at once.

  Args:
    scheme: any scheme.
    params: its parameters.
    q: the queries' side.
    k: the keys' side.
    v: values.
    rules: see `border.rules`.
    mask: True may attend.
    sinks: one logit per head.
    dropout_key: see `tile.kept`.
  """
  queries, keys = q.index.size, k.index.size
  size = tile_size(max(queries, keys))
  operands = Operands(params, q, k, v, mask, sinks, dropout_key)
  columns = keys if 'S' in scheme.whole else min(size, keys)
  plan = Plan(scheme, rules, min(size, queries), columns, jax.tree.structure(operands))
  return _attend(plan, *_split(operands))


def tile_size(length: int) -> int:
  """Queries, and keys, of a tile: 128 for lengths below 2048, and 512 from there on.

  Measured on CPU: small tiles skip more of the future, large ones keep two cores busy.
  """
  return 128 if length < 2048 else 512


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, floats, others):
  return _forward(plan, _join(plan.tree, floats, others))[0]


def _attend_forward(plan, floats, others):
  out, log_sums = _forward(plan, _join(plan.tree, floats, others))
  return out, (floats, others, out, log_sums)


def _attend_backward(plan, saved, d_out):
  floats, others, out, log_sums = saved
  grads = _backward(plan, _join(plan.tree, floats, others), out, log_sums, d_out)
  cast = lambda leaf, grad: None if leaf is None else grad.astype(leaf.dtype)
  grads = [cast(leaf, grad) for leaf, grad in zip(floats, grads, strict=True)]
  return grads, [None] * len(others)


_attend.defvjp(_attend_forward, _attend_backward)


def _trains(leaf: Array) -> bool:
  return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _split(tree: Any) -> tuple[list[Array | None], list[Array | None]]:
  """The floats among the leaves, and the others; None where the leaf is of the other kind."""
  leaves = jax.tree.leaves(tree)
  floats = [leaf if _trains(leaf) else None for leaf in leaves]
  return floats, [None if _trains(leaf) else leaf for leaf in leaves]


def _join(tree: Any, floats: list[Array | None], others: list[Array | None]) -> Any:
  pairs = zip(floats, others, strict=True)
  return jax.tree.unflatten(tree, [b if a is None else a for a, b in pairs])


# One tile.


def _logits(plan: Plan, x: Operands):
  """A tile's logits, and which of its pairs meet."""
  seen = visible(x.q, x.k, plan.rules, x.mask)
  return scores(plan.scheme, x.params, x.q, x.k, plan.rules, seen, strip.bias), seen


def _mixed(plan: Plan, x: Operands, weights):
  """A tile's part of the output."""
  rate = plan.rules.dropout_rate
  if rate:
    rows = weights.shape[:2]
    weights = weights * kept(x.dropout_key, rate, rows, x.q.index, x.k.index)
  return mix(plan.scheme, x.params, weights, x.v, x.q, x.k)


def _softened(plan: Plan, x: Operands, carry):
  """One step of the online softmax: running maximum, sum and output with this tile's keys."""
  top, total, out = carry
  logits, seen = _logits(plan, x)
  highest = jnp.maximum(top, logits.max(-1))
  weights = jnp.where(seen, jnp.exp(logits - highest[..., None]), 0)
  fade = jnp.exp(top - highest)
  out = out * fade.swapaxes(1, 2)[..., None] + _mixed(plan, x, weights)
  return highest, total * fade + weights.sum(-1), out


def _cotangents(plan: Plan, x: Operands, log_sums, delta, d_out):
  """What the tile gives to the floats of its parameters, its queries' side, and its keys' side."""
  groups = x.params, x.q, (x.k, x.v)
  floats, others = zip(*map(_split, groups), strict=True)
  trees = list(map(jax.tree.structure, groups))

  def joined(floats):
    params, q, (k, v) = map(_join, trees, floats, others)
    return x._replace(params=params, q=q, k=k, v=v)

  logits, back, seen = jax.vjp(lambda f: _logits(plan, joined(f)), floats, has_aux=True)
  weights = jnp.where(seen, jnp.exp(logits - log_sums[..., None]), 0)
  _, back_mixed = jax.vjp(lambda f, w: _mixed(plan, joined(f), w), floats, weights)
  d_floats, d_weights = back_mixed(d_out)
  return _add(d_floats, back(weights * (d_weights - delta[..., None]))[0])


def _add(one, other):
  """Sums of cotangents, in float32 or what is wider."""
  wide = lambda x: x.astype(jnp.result_type(x, jnp.float32))
  return jax.tree.map(lambda a, b: wide(a) + wide(b), one, other)


def _meet(rules: Rules, q: Side, k: Side) -> Bool[Array, '']:
  """Whether any pair of the tile may meet: never False where one does."""
  (q_low, q_high), (k_low, k_high) = (_span(side, side.segments) for side in (q, k))
  meet = (q_low <= k_high) & (k_low <= q_high)
  (q_low, q_high), (k_low, k_high) = (_span(side, side.order) for side in (q, k))
  if rules.causal:
    meet = meet & (k_low <= q_high)
  if rules.window is not None:
    meet = meet & (q_low - k_high < rules.window) & (k_low - q_high < rules.window)
  return meet.any()


def _span(side: Side, numbers: Array) -> tuple[Array, Array]:
  """Least and largest number of each row, padding apart."""
  info = jnp.finfo if _trains(numbers) else jnp.iinfo
  limits = info(numbers.dtype)
  real = side.segments != 0
  low = jnp.where(real, numbers, limits.max).min(-1)
  return low, jnp.where(real, numbers, limits.min).max(-1)


# All tiles.


def _forward(plan: Plan, x: Operands):
  """The output, and the logarithm of the sum of exponentials of each row, [B, T, H]."""
  columns = cut_tokens((x.k, x.v), plan.keys)

  def row(queries):
    q, masks = queries

    def step(carry, column):
      (k, v), mask = column
      tile = x._replace(q=q, k=k, v=v, mask=mask)
      more = lambda carry: _softened(plan, tile, carry)
      return lax.cond(_meet(plan.rules, q, k), more, lambda carry: carry, carry), None

    (top, total, out), _ = lax.scan(step, _start(x, q), (columns, masks))
    total = jnp.maximum(total, 1e-37)
    return out / total.swapaxes(1, 2)[..., None], (top + jnp.log(total)).swapaxes(1, 2)

  rows = cut_tokens(x.q, plan.queries), cut_mask(x.mask, plan.queries, plan.keys)
  out, log_sums = (glue_tokens(t, x.q.index.size) for t in lax.map(row, rows))
  return out, log_sums


def _start(x: Operands, q: Side):
  """Running maximum, sum and output before any key: what the sinks take."""
  batch, queries, heads, _ = q.raw.shape
  wide = jnp.result_type(x.v, jnp.float32)
  top = jnp.full((batch, heads, queries), UNSEEN, jnp.finfo(wide).dtype)
  out = jnp.zeros((batch, queries, heads, x.v.shape[-1]), wide)
  if x.sinks is None:
    return top, jnp.zeros_like(top), out
  sinks = x.sinks.astype(top.dtype)[None, :, None]
  return jnp.broadcast_to(sinks, top.shape), jnp.ones_like(top), out


def _backward(plan: Plan, x: Operands, out, log_sums, d_out) -> list[Array | None]:
  """The cotangents of the floats of `x`, in the order of its leaves."""
  d_out = d_out.astype(out.dtype)
  delta = jnp.real(d_out * out).sum(-1)  # of each row: what the softmax takes back
  rows = cut_tokens((x.q, d_out, delta, log_sums), plan.queries)
  masks = cut_mask(x.mask, plan.queries, plan.keys)
  masks = None if masks is None else masks.swapaxes(0, 1)
  zeros = lambda tree: jax.tree.map(_zeros, _split(tree)[0])

  def column(carry, keys):
    (k, v), masks = keys

    def row(carry, queries):
      i, (q, d_out, delta, log_sums), mask = queries
      tile = x._replace(q=q, k=k, v=v, mask=mask)
      turned = log_sums.swapaxes(1, 2), delta.swapaxes(1, 2)
      back = lambda: _cotangents(plan, tile, *turned, d_out)
      none = lambda: (zeros(x.params), zeros(q), zeros((k, v)))
      d_params, d_q, d_keys = lax.cond(_meet(plan.rules, q, k), back, none)
      all_params, all_q, all_keys = carry
      all_q = jax.tree.map(lambda every, one: every.at[i].add(one), all_q, d_q)
      return (_add(all_params, d_params), all_q, _add(all_keys, d_keys)), None

    start = *carry, zeros((k, v))
    (d_params, d_q, d_keys), _ = lax.scan(row, start, (numbers, rows, masks))
    return (d_params, d_q), d_keys

  numbers = jnp.arange(delta.shape[1] // plan.queries + bool(delta.shape[1] % plan.queries))
  start = zeros(x.params), zeros(rows[0])
  (d_params, d_q), d_keys = lax.scan(column, start, (cut_tokens((x.k, x.v), plan.keys), masks))
  d_q = jax.tree.map(lambda leaf: glue_tokens(leaf, x.q.index.size), d_q)
  d_keys = jax.tree.map(lambda leaf: glue_tokens(leaf, x.k.index.size), d_keys)
  grads = d_params + d_q + d_keys
  if x.mask is not None:
    grads.append(None)
  if x.sinks is not None:
    taken = jnp.exp(x.sinks[None, None] - log_sums) * delta  # [B, T, H]
    grads.append(-taken.sum((0, 1)))
  return grads + [None] * (x.dropout_key is not None)


def _zeros(x):
  """Zeros to add cotangents to: in float32, or what is wider."""
  return jnp.zeros(x.shape, jnp.result_type(x, jnp.float32))
