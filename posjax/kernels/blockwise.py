"""Attention in tiles, for any scheme: memory linear in length, on any device, with gradients.

Online softmax over tiles of keys, and a backward pass that computes each tile again
(`kernels.tiles`). No [T, S] array exists, forward or backward, and every parameter that a scheme
has gets its gradient.

Tiles are visited by diagonals, along which a bias by distance is the same where ids count up by one
(`kernels.distances`). Those that cannot see each other (the future, other documents, beyond the
window, padding) are skipped, by a test on the order and segments that they hold: right for any.

Reference: Rabe, Staats 2021, https://arxiv.org/abs/2112.05682 (attention in tiles); Dao et al.
2022, https://arxiv.org/abs/2205.14135, algorithms 2 and 4 (recomputation from the row's logarithm).
Derivatives are of first order, backward: `jax.custom_vjp` knows no others.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact

from posjax.border import Rules, Side
from posjax.kernels import distances
from posjax.kernels.cut import cut_heads, cut_mask, cut_tokens, glue_rows
from posjax.kernels.distances import Table
from posjax.kernels.tiles import Plan, Running, Tile, cotangents, join, soften, split, sums
from posjax.scheme import Params, PRNGKey, Scheme, declares
from posjax.tile import UNSEEN


class Operands(NamedTuple):
  """All tiles: their number is the first axis, of the rows for queries, of the columns for keys."""

  params: Params
  q: Inexact[Array, 'rows B K D t']
  k: Inexact[Array, 'columns B K D S']
  v: Inexact[Array, 'columns B K E S']
  q_side: Side
  k_side: Side
  mask: Bool[Array, 'rows columns b h T S'] | None
  table: Table | None
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

  Args:
    scheme: any scheme. One that needs whole rows gets all keys at once, for fewer queries.
    params: its parameters.
    q: the queries' side.
    k: the keys' side.
    v: values.
    rules: see `border.rules`.
    mask: True may attend.
    sinks: one logit per head.
    dropout_key: see `tile.kept`.
  """
  (batch, queries, heads, _), (keys, kv_heads) = q.placed.shape, k.placed.shape[1:3]
  tall, wide = tile_size(queries, keys, batch * heads, 'S' in scheme.whole)
  k_placed = k.placed.conj() if jnp.iscomplexobj(k.placed) else k.placed
  asked = functools.partial(_asked, scheme, rules)
  operands = Operands(
    params,
    cut_heads(q.placed, tall, kv_heads),
    cut_heads(k_placed, wide, kv_heads),
    cut_heads(v, wide, kv_heads),
    cut_tokens(asked(q), tall),
    cut_tokens(asked(k), wide),
    cut_mask(mask, tall, wide),
    None,
    sinks,
    dropout_key,
  )
  if scheme.bias:
    padded = operands.q.shape[0] * tall, operands.k.shape[0] * wide
    table = distances.tabulate(scheme.bias, params, q.pos, k.pos, *padded)
    operands = operands._replace(table=table)
  plan = Plan(scheme, rules, heads, tall, wide, jax.tree.structure(operands))
  return glue_rows(_attend(plan, *split(operands)), queries, heads)


def tile_size(queries: int, keys: int, rows: int, whole: bool) -> tuple[int, int]:
  """Queries, and keys, of a tile; of several, the keys are a multiple of the queries.

  Measured on CPU (RESULTS.md): below 2048 tokens small tiles skip more of the future, above large
  ones keep two cores busy, as long as what a tile holds stays in the cache.

  Args:
    queries: in all.
    keys: in all.
    rows: batch times heads.
    whole: whether a tile must hold all keys.

  Example:
    >>> tile_size(1024, 1024, 8, False), tile_size(4096, 4096, 8, False)
    ((128, 128), (256, 512))
  """
  tall, wide = (128, 128) if max(queries, keys) < 2048 else (256, 512)
  while rows * tall * wide > 2**21 and tall > 32:
    tall, wide = tall // 2, wide // 2
  if whole:
    return min(max(2**20 // (rows * keys), 8), tall, queries), keys
  return min(tall, queries), min(wide, keys)


def _asked(scheme: Scheme, rules: Rules, side: Side) -> Any:
  """What of a side the tiles ask for; None for the rest."""
  logits = declares(scheme, 'logits')
  asked = {
    'raw': logits,
    'placed': False,
    'pos': scheme.bias is not None,
    'at': logits or scheme.values is not None,
    'index': rules.dropout_rate > 0,
  }
  left_out: dict[str, Any] = {name: None for name, wanted in asked.items() if not wanted}
  return side._replace(**left_out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, floats, others):
  return _forward(plan, join(plan.tree, floats, others))[0]


def _attend_forward(plan, floats, others):
  out, log_sums = _forward(plan, join(plan.tree, floats, others))
  return out, (floats, others, out, log_sums)


def _attend_backward(plan, saved, d_out):
  floats, others, out, log_sums = saved
  grads = _backward(plan, join(plan.tree, floats, others), out, log_sums, d_out)
  return [_as(leaf, grad) for leaf, grad in zip(floats, grads, strict=True)], [None] * len(others)


_attend.defvjp(_attend_forward, _attend_backward)


def _as(leaf: Array | None, grad: Array | None) -> Array | None:
  """The cotangent in the dtype of its leaf."""
  if leaf is None or grad is None:
    return None
  return (grad if jnp.iscomplexobj(leaf) else jnp.real(grad)).astype(leaf.dtype)


# All tiles.


def _tile(x: Operands, i, j, strip) -> Tile:
  return Tile(
    params=x.params,
    q=_at(x.q, i),
    k=_at(x.k, j),
    v=_at(x.v, j),
    q_side=_at(x.q_side, i),
    k_side=_at(x.k_side, j),
    mask=_at(_at(x.mask, i), j),
    strip=strip,
    dropout_key=x.dropout_key,
  )


def _at(tree: Any, i) -> Any:
  return jax.tree.map(lambda every: lax.dynamic_index_in_dim(every, i, keepdims=False), tree)


def _put(tree: Any, i, one: Any) -> Any:
  put = lambda every, one: lax.dynamic_update_index_in_dim(every, one, i, 0)
  return jax.tree.map(put, tree, one)


def _add(tree: Any, i, one: Any) -> Any:
  add = lambda every, one: sums(_at(every, i), one).astype(every.dtype)
  return _put(tree, i, jax.tree.map(add, tree, one))


def _by_diagonals(
  plan: Plan, x: Operands, visit: Callable[..., Any], carry: Any, begin, end
) -> Any:
  """Visits the tiles that meet, diagonal by diagonal.

  Args:
    plan: the sizes.
    x: all tiles.
    visit: (carry, along, i, j, strip) -> (carry, along), at each tile.
    carry: what all tiles change.
    begin: strip -> along, what one diagonal changes besides.
    end: (carry, along, at) -> carry, at the end of a diagonal.
  """
  rows, columns = x.q.shape[0], x.k.shape[0]
  meet = _meet(plan.rules, x.q_side, x.k_side)
  ratio = plan.keys // plan.queries if min(rows, columns) > 1 else 1

  def diagonal(d, carry):
    first = jnp.maximum(0, -(d // ratio))
    last = jnp.minimum(columns - 1, (rows - 1 - d) // ratio)
    at = distances.start(rows, plan.queries, plan.keys, d + ratio * first, first)
    strip = None
    if x.table is not None:
      strip = distances.read(x.table.entries, at, plan.queries, plan.keys)

    def tile(j, both):
      i = d + ratio * j
      return lax.cond(meet[i, j], lambda both: visit(*both, i, j, strip), lambda both: both, both)

    carry, along = lax.fori_loop(first, last + 1, tile, (carry, begin(strip)))
    return end(carry, along, at)

  low, high = _ends(meet, ratio)
  return lax.fori_loop(low, high + 1, diagonal, carry)


def _ends(meet: Bool[Array, 'rows columns'], ratio: int) -> tuple[Array, Array]:
  """The least and the largest diagonal, i - ratio j, with a tile that meets."""
  i, j = jnp.indices(meet.shape)
  d = i - ratio * j
  return jnp.where(meet, d, d.max()).min(), jnp.where(meet, d, d.min()).max()


def _forward(plan: Plan, x: Operands):
  """The output, and the logarithm of the sum of exponentials of each row."""
  if x.table is None:
    return _all_forward(plan, x)
  by_pairs = x._replace(table=None)
  tabled, paired = (functools.partial(_all_forward, plan, one) for one in (x, by_pairs))
  return lax.cond(x.table.counts, tabled, paired)


def _all_forward(plan: Plan, x: Operands):

  def visit(state, along, i, j, strip):
    return _put(state, i, soften(plan, _tile(x, i, j, strip), _at(state, i))), along

  begin, end = lambda strip: None, lambda state, along, at: state
  top, total, out = _by_diagonals(plan, x, visit, _start(plan, x), begin, end)
  total = jnp.maximum(total, 1e-37)
  return out / total.reshape(*out.shape[:-1], 1), top + jnp.log(total)


def _start(plan: Plan, x: Operands) -> Running:
  """Before any key: what the sinks take."""
  rows, batch, kv_heads, _, t = x.q.shape
  wide, real = _dtypes(x)
  shape = rows, batch, plan.heads, plan.queries
  out = jnp.zeros((rows, batch, kv_heads, t, x.v.shape[-2]), wide)
  if x.sinks is None:
    top = jnp.full(shape, UNSEEN / 2, real)
    return Running(top, jnp.zeros_like(top), out)
  top = jnp.broadcast_to(x.sinks.reshape(1, 1, -1, 1), shape).astype(real)
  return Running(top, jnp.ones_like(top), out)


def _dtypes(x: Operands) -> tuple[Any, Any]:
  """To sum outputs and logits in: float32, or what is wider; the second is never complex."""
  floats = [leaf for leaf in split(x)[0] if leaf is not None]
  wide = jnp.result_type(jnp.float32, *floats)
  return wide, jnp.finfo(wide).dtype


def _backward(plan: Plan, x: Operands, out, log_sums, d_out) -> list[Array | None]:
  """The cotangents of the floats of `x`, in the order of its leaves."""
  d_out = d_out.astype(out.dtype)
  delta = jnp.real(d_out * out).sum(-1).reshape(log_sums.shape)
  rows = log_sums, delta, d_out
  if x.table is None:
    sides, d_q, d_k, d_v, d_entries = _all_backward(plan, x, rows)
  else:
    entries = jnp.zeros_like(x.table.entries)
    tabled = functools.partial(_all_backward, plan, x, rows)
    paired = lambda: (*_all_backward(plan, x._replace(table=None), rows)[:-1], entries)
    sides, d_q, d_k, d_v, d_entries = lax.cond(x.table.counts, tabled, paired)
  d_params, d_q_side, d_k_side = sides
  grads = [*d_params, d_q.swapaxes(-1, -2), d_k, d_v, *d_q_side, *d_k_side]
  if x.mask is not None:
    grads.append(None)
  if x.table is not None:
    grads += [None, d_entries]
  if x.sinks is not None:
    taken = jnp.exp(x.sinks.reshape(1, 1, -1, 1) - log_sums) * delta  # [rows, B, H, queries]
    grads.append(-taken.sum((0, 1, 3)))
  return grads + [None] * (x.dropout_key is not None)


def _all_backward(plan: Plan, x: Operands, rows):

  def visit(carry, d_strip, i, j, strip):
    (d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_entries = carry
    found = cotangents(plan, _tile(x, i, j, strip), *_at(rows, i))
    if found.floats is not None:
      one_params, one_q, one_k = found.floats
      d_params = sums(d_params, one_params)
      d_q_side, d_k_side = _add(d_q_side, i, one_q), _add(d_k_side, j, one_k)
    if d_strip is not None:
      d_strip = d_strip + found.strip
    d_q, (d_k, d_v) = _add(d_q, i, found.q), _add((d_k, d_v), j, (found.k, found.v))
    return ((d_params, d_q_side, d_k_side), d_q, d_k, d_v, d_entries), d_strip

  def begin(strip):
    shape = x.q.shape[1], plan.heads, plan.queries, plan.keys
    return None if strip is None else jnp.zeros(shape, _dtypes(x)[1])

  def end(carry, d_strip, at):
    *others, d_entries = carry
    if d_strip is not None:
      d_entries = distances.add(d_entries, at, d_strip)
    return *others, d_entries

  floats = tuple(split(group)[0] for group in (x.params, x.q_side, x.k_side))
  entries = None if x.table is None else x.table.entries
  start = _zeros((floats, x.q.swapaxes(-1, -2), x.k, x.v, entries))
  return _by_diagonals(plan, x, visit, start, begin, end)


def _zeros(tree: Any) -> Any:
  """Zeros to add cotangents to: in float32, or what is wider."""
  zeros = lambda x: jnp.zeros(x.shape, jnp.result_type(x, jnp.float32))
  return jax.tree.map(zeros, tree)


# Which tiles meet.


def _meet(rules: Rules, q: Side, k: Side) -> Bool[Array, 'rows columns']:
  """Whether any pair of a tile may meet: never False where one does."""
  q_low, q_high = (edge[:, None] for edge in _spans(q, q.segments))
  k_low, k_high = (edge[None] for edge in _spans(k, k.segments))
  meet = (q_low <= k_high) & (k_low <= q_high)
  q_low, q_high = (edge[:, None] for edge in _spans(q, q.order))
  k_low, k_high = (edge[None] for edge in _spans(k, k.order))
  if rules.causal:
    meet = meet & (k_low <= q_high)
  if rules.window is not None:
    meet = meet & (q_low - k_high < rules.window) & (k_low - q_high < rules.window)
  return meet.any(-1)


def _spans(side: Side, numbers: Array) -> tuple[Array, Array]:
  """Least and largest number of each row of each tile, padding apart: [tiles, b]."""
  info = jnp.finfo if jnp.issubdtype(numbers.dtype, jnp.inexact) else jnp.iinfo
  limits = info(numbers.dtype)
  real = side.segments != 0
  low = jnp.where(real, numbers, limits.max).min(-1)
  return low, jnp.where(real, numbers, limits.min).max(-1)
