"""Ring attention: keys travel around the devices, and no device ever holds all of them.

Each device has some tokens of each row. It computes its queries with its keys, hands these on to
the next device with all that belongs to them, and takes those of the one before, until it has seen
all. What it adds up is the online softmax: outputs and the sums of rows. The backward pass sends
the keys around once more, together with their cotangents, which end where they began.

The tokens of a device are computed as two chunks: in the zig-zag layout (`positions.zigzag`) each
of them counts up by one, so that tables by distance serve them, and a causal device sees of each
other device's keys two pairs of chunks of four. Which pairs are seen is decided by order and
segments, so that any layout is right.

Reference: Liu, Zaharia, Abbeel 2023, https://arxiv.org/abs/2310.01889 (the ring); Brandon et al.
2023, https://arxiv.org/abs/2311.09431 (layouts that balance causal attention).
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact

from posjax.attention import schedule
from posjax.attention.blockwise import engine
from posjax.attention.blockwise.tiles import add_wide, join, split
from posjax.attention.context import chunks as of_chunks
from posjax.attention.inputs import Operands, Rules, Tokens
from posjax.attention.softmax import Sums, started
from posjax.math.heads import at_least_float32
from posjax.scheme import Scheme


class Chunks(NamedTuple):
  """Tokens of a chunk of queries, and of keys; and how many chunks a device has of each."""

  queries: int
  keys: int
  of_queries: int
  of_keys: int


class Ring(NamedTuple):
  """The facts that are known when the attention is traced.

  Attributes:
    plan: of the attention of two chunks.
    rules: the plain arguments of `attend`.
    heads: H.
    chunks: their sizes.
    axis: of the mesh.
    devices: along the axis.
  """

  plan: of_chunks.Tiles | of_chunks.Kernels
  rules: Rules
  heads: int
  chunks: Chunks
  axis: str
  devices: int


class Pair(NamedTuple):
  """The first token of two chunks in a device's arrays, and of the second among all keys."""

  query: Any
  key: Any
  column: Any


def chunks_of(queries: int, keys: int) -> Chunks:
  """Two chunks of the queries and of the keys of a device, where their numbers are even.

  Example:
    >>> chunks_of(8, 5)
    Chunks(queries=4, keys=5, of_queries=2, of_keys=1)
  """
  counts = [1 + (n % 2 == 0) for n in (queries, keys)]
  return Chunks(queries // counts[0], keys // counts[1], *counts)


def attend(
  axis: str, devices: int, scheme: Scheme, rules: Rules, x: Operands
) -> Inexact[Array, 'B T H E']:
  """Attention of one device's queries with the keys of all, inside `jax.shard_map`.

  Args:
    axis: of the mesh, along which tokens are cut.
    devices: along the axis.
    scheme: any scheme whose logits do not mix keys.
    rules: the plain arguments of `attend`; `counting` is of chunks.
    x: the tokens of this device; of `mask` and `bias`, the rows of its queries with all columns.
  """

  def places_3_and_4(scheme, rules, x):
    chunks = chunks_of(x.q.raw.shape[1], x.k.raw.shape[1])
    plan = of_chunks.plan(scheme, rules, _part(chunks, x, Pair(0, 0, 0)))
    return _attend(Ring(plan, rules, x.q.raw.shape[2], chunks, axis, devices), *split(plan.read(x)))

  return engine.attend(scheme, rules, x, places_3_and_4)


# Derivatives.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(ring, floats, others):
  return _attend_forward(ring, floats, others)[0]


def _attend_forward(ring, floats, others):
  out, sums = _forward(ring, _joined(floats, others))
  return out, (floats, others, out, sums)


def _attend_backward(ring, saved, d_out):
  floats, others, out, sums = saved
  found = _backward(ring, _joined(floats, others), out, sums, d_out)
  return jax.tree.map(engine.like, floats, found), None


_attend.defvjp(_attend_forward, _attend_backward)


def _joined(floats, others) -> Operands:
  """The operands, where no order or segment is known before the heads are.

  A scan over layers, whose orders are those of every layer, would compute what depends on them
  alone once, before it: the masks of all pairs of chunks, of a size that grows with the square.
  """
  return join(*lax.optimization_barrier((floats, others)))


# Around the ring.


def _forward(ring: Ring, x: Operands) -> tuple[Array, Sums]:
  """The output, and the sums of each row, [B, T, H]."""
  batch, queries, heads = x.v.shape[0], x.q.order.shape[1], ring.heads
  dtype = at_least_float32(*jax.tree.leaves(split(x)[0]))
  out = jnp.zeros((batch, queries, heads, x.v.shape[-1]), dtype)
  sums = started((batch, heads, queries), jnp.finfo(dtype).dtype, x.sinks)
  start = out, jax.tree.map(lambda one: one.swapaxes(1, 2), sums)

  def visit(pair, keys, so_far):
    here = _part(ring.chunks, _with_keys(x, keys), pair)

    def added(old):
      return _merged(old, ring.plan.output_and_sums(here))

    old = _rows(ring.chunks, so_far, pair)
    new = lax.cond(_is_visible(ring, here), added, lambda old: old, old)
    put = lambda leaf, new: lax.dynamic_update_slice_in_dim(leaf, new, pair.query, 1)
    return keys, jax.tree.map(put, so_far, new)

  _, (out, sums) = _visit_all(ring, visit, (x.k, x.v), start)
  return out / sums.divisor()[..., None], sums


def _rows(chunks: Chunks, both: tuple[Array, Sums], pair: Pair) -> tuple[Array, Sums]:
  """The output and the sums of a chunk of queries."""
  cut = lambda leaf: lax.dynamic_slice_in_dim(leaf, pair.query, chunks.queries, 1)
  return jax.tree.map(cut, both)


def _merged(old: tuple[Array, Sums], new: tuple[Array, Sums]) -> tuple[Array, Sums]:
  """The output with some more keys, not divided by the sums yet; that of `new` is divided."""
  (out, sums), (more, of_more) = old, new
  top = jnp.maximum(sums.top, of_more.top)
  factor, of_new = jnp.exp(sums.top - top), jnp.exp(of_more.top - top)
  out = out * factor[..., None] + more * (of_more.divisor() * of_new)[..., None]
  return out, Sums(top, sums.total * factor + of_more.total * of_new)


def _backward(ring: Ring, x: Operands, out: Array, sums: Sums, d_out: Array) -> Operands:
  """The cotangents of the floats of x."""
  zeros = lambda leaf: jnp.zeros(leaf.shape, at_least_float32(leaf))
  d_x = jax.tree.map(zeros, split(x)[0])._replace(sinks=None)

  def visit(pair, travelling, d_x):
    keys, d_keys = travelling
    here = _part(ring.chunks, _with_keys(x, keys), pair)
    (of_rows, of_sums), (d_rows, _) = (
      _rows(ring.chunks, (one, sums), pair) for one in (out, d_out)
    )

    def added(old):
      return add_wide(old, ring.plan.cotangents(here, of_rows, of_sums, d_rows))

    d_x = _with_keys(d_x, d_keys)
    old = _part(ring.chunks, d_x, pair)
    new = lax.cond(_is_visible(ring, here), added, lambda old: old, old)
    d_x = _put(d_x, pair, new)
    return (keys, (d_x.k, d_x.v)), _with_keys(d_x, (None, None))

  travelling = (x.k, x.v), (d_x.k, d_x.v)
  (_, d_keys), d_x = _visit_all(ring, visit, travelling, _with_keys(d_x, (None, None)))
  d_sinks = None
  if x.sinks is not None:  # as in `engine`
    delta = jnp.real(out * d_out).sum(-1) / sums.divisor()
    d_sinks = -(jnp.exp(x.sinks[None, None] - sums.top) * delta).sum((0, 1))
  return _with_keys(d_x, _handed_on(ring, d_keys))._replace(sinks=d_sinks)


def _with_keys(x: Operands, keys: tuple[Any, Any]) -> Operands:
  """The operands with other keys and values."""
  return x._replace(k=keys[0], v=keys[1])


def _is_visible(ring: Ring, x: Operands) -> Bool[Array, '']:
  """Whether a query of the first chunk may see a key of the second."""
  blocks = [Tokens(side.order[:, None], side.segments[:, None]) for side in (x.q, x.k)]
  return schedule.visible_tiles(ring.rules, *blocks)[0].any()


def _visit_all(
  ring: Ring, visit: Callable[[Pair, Any, Any], tuple[Any, Any]], travelling: Any, carry: Any
) -> tuple[Any, Any]:
  """Calls `visit` with each pair of chunks, once the keys of its second are here.

  Args:
    ring: the ring.
    visit: (pair, what travels, carry) -> (what travels, carry).
    travelling: what is handed on to the next device, and is taken from the one before.
    carry: what stays.

  Returns:
    The last of both. What travels then belongs to the next device.
  """
  me, (queries, keys, *counts) = lax.axis_index(ring.axis), ring.chunks
  pairs = jnp.array(list(itertools.product(*map(range, counts))), jnp.int32)

  def step(both, n):
    first = (me - n) % ring.devices * counts[1]  # chunk of all keys

    def one(both, pair):
      i, j = pair
      return visit(Pair(i * queries, j * keys, (first + j) * keys), *both), None

    return lax.scan(one, both, pairs)[0]

  def step_and_on(both, n):
    travelling, carry = step(both, n)
    return (_handed_on(ring, travelling), carry), None

  last = ring.devices - 1
  both, _ = lax.scan(step_and_on, (travelling, carry), jnp.arange(last))
  return step(both, last)


def _handed_on(ring: Ring, tree: Any) -> Any:
  to_next = [(i, (i + 1) % ring.devices) for i in range(ring.devices)]
  return jax.tree.map(lambda leaf: lax.ppermute(leaf, ring.axis, to_next), tree)


# Chunks.


def _part(chunks: Chunks, x: Operands, pair: Pair) -> Operands:
  """The operands of two chunks, or their cotangents. Sinks are not of one chunk."""

  def tokens(tree, first, size):
    cut = lambda leaf: lax.dynamic_slice_in_dim(leaf, first, size, _axis(leaf))
    return jax.tree.map(cut, tree)

  def block(leaf):
    sizes = [n if whole > 1 else 1 for n, whole in zip(chunks[:2], leaf.shape[2:], strict=True)]
    return lax.dynamic_slice(leaf, _corner(leaf, pair), (*leaf.shape[:2], *sizes))

  q = tokens(x.q, pair.query, chunks.queries)
  k, v = tokens((x.k, x.v), pair.key, chunks.keys)
  mask, bias = jax.tree.map(block, (x.mask, x.bias))
  return x._replace(q=q, k=k, v=v, mask=mask, bias=bias, sinks=None)


def _put(x: Operands, pair: Pair, part: Operands) -> Operands:
  """The cotangents with those of `_part` replaced."""

  def tokens(tree, first, new):
    put = lambda leaf, new: lax.dynamic_update_slice_in_dim(leaf, new, first, _axis(leaf))
    return jax.tree.map(put, tree, new)

  q = tokens(x.q, pair.query, part.q)
  k, v = tokens((x.k, x.v), pair.key, (part.k, part.v))
  put = lambda leaf, new: lax.dynamic_update_slice(leaf, new, _corner(leaf, pair))
  return part._replace(q=q, k=k, v=v, bias=jax.tree.map(put, x.bias, part.bias))


def _axis(leaf: Array) -> int:
  """That of the tokens: [B, T, ...], but `index` is [T]."""
  return min(1, leaf.ndim - 1)


def _corner(leaf: Array, pair: Pair) -> list[Array]:
  """Where two chunks begin in a mask or a bias, [b, h, T, S]; an axis of 1 is the same for all."""
  firsts = zip((pair.query, pair.column), leaf.shape[2:], strict=True)
  starts = 0, 0, *(first if size > 1 else 0 for first, size in firsts)
  return [jnp.asarray(start, jnp.int32) for start in starts]
