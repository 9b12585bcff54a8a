"""The kernels for Hopper in Pallas' Mosaic GPU backend: each function is one program of its grid.

A program has three warpgroups. The third copies blocks of the arrays that the program walks along
into shared memory, some steps ahead; the first two compute, each for 64 rows of its own. The rows
are queries, but keys for d_k and d_v: the weights are then, in registers, the left operand of the
products that they enter.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import DTypeLike

from posjax.attention.inputs import Rules, Tokens
from posjax.attention.pallas import formulas
from posjax.attention.pallas.formulas import LOWEST

ROWS = 64  # of one warpgroup, as its matrix products take them
COMPUTING = 2  # warpgroups that compute
PAIR = ROWS * COMPUTING  # rows of a program
_BY_ROW, _BY_COLUMN = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)


class Plan(NamedTuple):
  """The facts that are known when the attention is traced.

  Attributes:
    rules: the plain arguments of `attend`.
    columns: tokens of a block of columns, 64 or 128: along them a program walks.
    steps: blocks of columns that are in shared memory at once.
    interpret: how JAX interprets the kernels, for tests; None compiles them.
  """

  rules: Rules
  columns: int
  steps: int
  interpret: Any = None


class Inputs(NamedTuple):
  """The arrays that a kernel reads, whole and padded.

  Attributes:
    spans: what `ranges` finds for the program's blocks, [b, blocks, 4]; for `d_table` the first
      step of each diagonal and the one after its last, [b, diagonals, 2].
    q: [B, T, H, D].
    k: [B, S, K, D].
    v: [B, S, K, E].
    q_tokens: [b, T].
    k_tokens: [b, S].
    table: the bias in the layout of the kernel's tiles, [b, H, 64, T + S]; None without a bias.
      Row r has in column n the bias of a row r and a column n - T of queries, or n - S of keys.
    sinks: [H], or None.
    d_out: [B, T, H, E].
    top: [B, H, T].
    delta: [B, H, T].
  """

  spans: Any
  q: Any
  k: Any
  v: Any
  q_tokens: Tokens
  k_tokens: Tokens
  table: Any
  sinks: Any = None
  d_out: Any = None
  top: Any = None
  delta: Any = None


class _Program(NamedTuple):
  """Where a program is: its row of the batch, its head, its block of rows, and its warpgroup."""

  batch: Any
  head: Any
  block: Any
  warpgroup: Any

  @property
  def start(self):
    """The first row of this warpgroup."""
    return self.block * PAIR + self.warpgroup * ROWS


def _here() -> _Program:
  return _Program(*map(lax.axis_index, ('batch', 'head', 'block', 'warpgroup')))


def _here_from_the_end() -> _Program:
  """With the last block first: where attention is causal, it is the longest one."""
  at = _here()
  return at._replace(block=lax.axis_size('block') - 1 - at.block)


def _transforms(dtype: DTypeLike):
  return plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(128)


def _either(ref, batch):
  """The row of the batch in an array that may have one row for all."""
  return batch if ref.shape[0] > 1 else 0


def _fill(shape, number, layout=plgpu.Layout.WGMMA):
  return plgpu.layout_cast(jnp.full(shape, number, jnp.float32), layout)


def _over_tile(x, shape, axis: int):
  return lax.broadcast_in_dim(x, shape, [axis])


def _product(a, b):
  """a . b of two tiles in shared memory, in float32."""

  def multiply(sums):
    plgpu.wgmma(sums, a, b)
    return sums[...]

  return pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def _add_product(plan: Plan, total, a, b, memory):
  """total + a . b, where a tile `a` is in registers.

  JAX cannot interpret products of registers, or of sums that begin with something: interpreted,
  `a` goes through `memory`.
  """
  a = a.astype(b.dtype)
  if plan.interpret is None:
    return pl.run_state(lambda sums: plgpu.wgmma(sums, a, b))(plgpu.ACC.init(total))
  memory[...] = a
  plgpu.commit_smem()
  return total + _product(memory, b)


def _load(copies, barrier):
  """Copies arrays into shared memory, [(from, to)], and waits for all that the barrier counts."""
  for source, target in copies:
    plgpu.copy_gmem_to_smem(source, target, barrier)
  plgpu.barrier_wait(barrier)


def _store(copies):
  """Writes arrays: [(numbers in registers, shared memory to pass through, to)]."""
  for numbers, memory, _ in copies:
    memory[...] = numbers.astype(memory.dtype)
  plgpu.commit_smem()
  for _, memory, target in copies:
    plgpu.copy_smem_to_gmem(memory, target)
  plgpu.wait_smem_to_gmem(0)


def _masked(plan: Plan, logits, of_rows, of_columns, queries: int):
  """The logits, -inf where a pair may not attend.

  Args:
    plan: the plan.
    logits: of a tile.
    of_rows: order and segments of its rows.
    of_columns: references to those of its columns.
    queries: the axis of the queries.
  """
  rows = Tokens(*(_over_tile(one, logits.shape, 0) for one in of_rows))
  columns = Tokens(*(_over_tile(_of_columns(ref), logits.shape, 1) for ref in of_columns))
  q, k = (columns, rows) if queries else (rows, columns)
  return jnp.where(formulas.visible(plan.rules, q, k), logits, -jnp.inf)


def _masked_unless(whole, plan: Plan, logits, of_rows, of_columns, queries: int):
  """The same, where `whole` says whether all pairs of the tile may attend."""
  masked = lambda x: _masked(plan, x, of_rows, of_columns, queries)
  return lax.cond(whole, lambda x: x, masked, logits)


def _d_logits(plan: Plan, logits, d_weights, top, delta, queries: int):
  """The weights of a tile, and the cotangents of its logits; 0 where these are -inf.

  Args:
    plan: the plan.
    logits: of the tile.
    d_weights: cotangents of the weights.
    top: the largest logit of each query.
    delta: of each query.
    queries: the axis of the queries.
  """
  top, delta = (_over_tile(x, logits.shape, queries) for x in (top, delta))
  weights = formulas.weights(logits, top, None)
  return weights, formulas.d_logits(plan.rules, logits, weights, d_weights, delta, None)


def _bias(tiles, warpgroup):
  """The bias of this warpgroup's tile: that of the second is one block further left."""
  return lax.cond(warpgroup == 0, lambda: tiles[0][...], lambda: tiles[1][...])


def _logits(plan: Plan, products, tiles, warpgroup):
  bias = _bias(tiles, warpgroup) if tiles else None
  return formulas.logits(plan.rules, products, bias)


def _pipeline(plan: Plan, body, grid, specs, context):
  return plgpu.emit_pipeline_warp_specialized(
    body, grid=grid, in_specs=specs, max_concurrent_steps=plan.steps, memory_registers=40,
    wg_axis='warpgroup', num_compute_wgs=COMPUTING, compute_context=context,
  )  # fmt: skip


def _heads_spec(columns: int, ref, index):
  """Blocks [columns, width] of heads [tokens, heads, width]; `index` gives the block and head."""
  block = (columns, None, ref.shape[-1])
  return plgpu.BlockSpec(block, lambda *n: (*index(*n), 0), transforms=_transforms(ref.dtype))


def _row_spec(columns: int, index):
  """Blocks [columns] of one number for each token."""
  return plgpu.BlockSpec((columns,), index)


def _table_specs(index):
  """The blocks of the bias for both warpgroups, of a table [H, 64, N].

  Args:
    index: gives the head, and the block of the first warpgroup.
  """
  block, transforms = (None, ROWS, ROWS), _transforms(jnp.float32)

  def spec(back):
    def place(*n):
      head, number = index(*n)
      return head, 0, number - back

    return plgpu.BlockSpec(block, place, transforms=transforms)

  return [spec(back) for back in range(COMPUTING)]


def _span(x: Inputs, at: _Program):
  """first, first_whole, last_whole, last: see `ranges`."""
  return [x.spans[_either(x.spans, at.batch), at.block, n] for n in range(4)]


def _along_keys(plan: Plan, x: Inputs, at: _Program, first):
  """The arrays that a program walks along whose rows are queries, and their blocks."""
  kv_head = lax.div(at.head, jnp.int32(x.q.shape[2] // x.k.shape[2]))
  one = lambda ref: ref.at[_either(ref, at.batch)]
  arrays = [x.k.at[at.batch], x.v.at[at.batch], *map(one, x.k_tokens)]
  specs = [_heads_spec(plan.columns, ref, lambda n: (first + n, kv_head)) for ref in (x.k, x.v)]
  specs += [_row_spec(plan.columns, lambda n: (first + n,))] * 2
  if x.table is not None:
    origin = x.q.shape[1] // ROWS - COMPUTING * at.block
    specs += _table_specs(lambda n: (at.head, origin + first + n))
    arrays += [one(x.table)] * COMPUTING
  return arrays, specs


def _along_queries(plan: Plan, x: Inputs, at: _Program, first):
  """The same for rows that are keys: the queries of all heads that share them."""
  group = x.q.shape[2] // x.k.shape[2]
  head = lambda g: at.head * group + g
  one = lambda ref: ref.at[_either(ref, at.batch)]
  arrays = [x.q.at[at.batch], x.d_out.at[at.batch], *map(one, x.q_tokens)]
  arrays += [x.top.at[at.batch], x.delta.at[at.batch]]
  index = lambda g, n: (first + n, head(g))
  specs = [_heads_spec(plan.columns, ref, index) for ref in (x.q, x.d_out)]
  specs += [_row_spec(plan.columns, lambda g, n: (first + n,))] * 2
  specs += [plgpu.BlockSpec((None, plan.columns), lambda g, n: (head(g), first + n))] * 2
  if x.table is not None:
    origin = x.k.shape[1] // ROWS - COMPUTING * at.block
    specs += _table_specs(lambda g, n: (head(g), origin + first + n))
    arrays += [one(x.table)] * COMPUTING
  return arrays, specs


def _read(ref, layout):
  """Numbers of global or shared memory in registers."""
  return plgpu.load(ref, layout=layout, optimized=False)  # pyrefly: ignore[missing-argument]


def _of_rows(ref, at: _Program):
  """One number for each row, of an array [b, tokens]."""
  return _read(ref.at[_either(ref, at.batch), pl.ds(at.start, ROWS)], _BY_ROW)


def _of_columns(ref):
  return _read(ref, _BY_COLUMN)


class Scratch(NamedTuple):
  """Shared memory of a program, a copy for each warpgroup that computes.

  Attributes:
    tiles: one [64, width] for each array of heads that the program's rows have.
    rows: two of [64], for numbers of each row.
    weights: [64, columns], for products of registers where kernels are interpreted.
    barrier: which counts the copies into `tiles`.
  """

  tiles: Any
  rows: Any
  weights: Any
  barrier: Any

  @classmethod
  def of(cls, plan: Plan, *widths: int, dtype: DTypeLike, copied: int) -> 'Scratch':
    """Tiles of these widths, into `copied` of which arrays are copied."""
    rows = plgpu.SMEM((COMPUTING, ROWS), jnp.float32)
    weights = _tiles(plan.columns, dtype) if plan.interpret else rows
    barrier = plgpu.Barrier(num_arrivals=copied, num_barriers=COMPUTING)
    return cls(tuple(_tiles(width, dtype) for width in widths), (rows, rows), weights, barrier)

  def own(self) -> 'Scratch':
    """That of this warpgroup."""
    return jax.tree.map(lambda ref: ref.at[lax.axis_index('warpgroup')], self)


def _tiles(width: int, dtype: DTypeLike):
  return plgpu.SMEM((COMPUTING, ROWS, width), dtype, transforms=_transforms(dtype))


def forward(plan: Plan, x: Inputs, out, top, total, scratch: Scratch):
  """Online softmax along the keys: running maximum, sum, and output."""
  at = _here_from_the_end()
  first, first_whole, last_whole, last = _span(x, at)
  place = at.batch, pl.ds(at.start, ROWS), at.head

  def compute(walk):
    own = scratch.own()
    q, mixed_memory = own.tiles
    _load([(x.q.at[place], q)], own.barrier)
    sink = -jnp.inf if x.sinks is None else x.sinks[at.head]
    least = jnp.maximum(sink, LOWEST)
    sums = _fill((ROWS,), least, _BY_ROW), _fill((ROWS,), jnp.exp(sink - least), _BY_ROW)
    q_tokens = [_of_rows(ref, at) for ref in x.q_tokens]
    mixed = _fill((ROWS, x.v.shape[-1]), 0)
    largest, sums, mixed, *_ = walk((*sums, mixed, *q_tokens))
    mixed = mixed / _over_tile(jnp.maximum(sums, 1), mixed.shape, 0)
    rows = lambda ref: ref.at[at.batch, at.head, pl.ds(at.start, ROWS)]
    _store([
      (mixed, mixed_memory, out.at[place]),
      (largest, own.rows[0], rows(top)),
      (sums, own.rows[1], rows(total)),
    ])  # fmt: skip

  def step(index, k, v, k_order, k_segments, *rest):
    *tiles, (largest, sums, mixed, *q_tokens) = rest
    own = scratch.own()
    j = first + index[0]
    logits = _logits(plan, _product(own.tiles[0], k.T), tiles, at.warpgroup)
    whole = (first_whole <= j) & (j < last_whole)
    logits = _masked_unless(whole, plan, logits, q_tokens, (k_order, k_segments), 0)
    new = jnp.maximum(largest, logits.max(1))
    weights = jnp.exp(logits - _over_tile(new, logits.shape, 0))
    factor = jnp.exp(largest - new)
    mixed = mixed * _over_tile(factor, mixed.shape, 0)
    mixed = _add_product(plan, mixed, weights, v, own.weights)
    return new, sums * factor + weights.sum(1), mixed, *q_tokens

  arrays, specs = _along_keys(plan, x, at, first)
  _pipeline(plan, step, (last - first,), specs, compute)(*arrays)


def d_q(plan: Plan, x: Inputs, d_q, scratch: Scratch):
  """Sums along the keys."""
  at = _here_from_the_end()
  first, first_whole, last_whole, last = _span(x, at)
  place = at.batch, pl.ds(at.start, ROWS), at.head

  def compute(walk):
    own = scratch.own()
    q, d_out = own.tiles
    _load([(x.q.at[place], q), (x.d_out.at[place], d_out)], own.barrier)
    numbers = [_of_rows(ref, at) for ref in x.q_tokens]
    rows = at.batch, at.head, pl.ds(at.start, ROWS)
    numbers += [_read(ref.at[rows], _BY_ROW) for ref in (x.top, x.delta)]
    total, *_ = walk((_fill((ROWS, x.q.shape[-1]), 0), *numbers))
    _store([(total * plan.rules.scale, q, d_q.at[place])])

  def step(index, k, v, k_order, k_segments, *rest):
    *tiles, (sums, *q_tokens, top, delta) = rest
    own = scratch.own()
    q, d_out = own.tiles
    j = first + index[0]
    logits = _logits(plan, _product(q, k.T), tiles, at.warpgroup)
    whole = (first_whole <= j) & (j < last_whole)
    logits = _masked_unless(whole, plan, logits, q_tokens, (k_order, k_segments), 0)
    d_weights = _product(d_out, v.T)
    _, d_logits = _d_logits(plan, logits, d_weights, top, delta, 0)
    return _add_product(plan, sums, d_logits, k, own.weights), *q_tokens, top, delta

  arrays, specs = _along_keys(plan, x, at, first)
  _pipeline(plan, step, (last - first,), specs, compute)(*arrays)


def d_keys(plan: Plan, x: Inputs, d_k, d_v, scratch: Scratch):
  """Sums along the query heads that share the keys, and the queries."""
  at = _here()
  first, first_whole, last_whole, last = _span(x, at)
  place = at.batch, pl.ds(at.start, ROWS), at.head

  def compute(walk):
    own = scratch.own()
    k, v = own.tiles
    _load([(x.k.at[place], k), (x.v.at[place], v)], own.barrier)
    k_tokens = [_of_rows(ref, at) for ref in x.k_tokens]
    zeros = [_fill((ROWS, ref.shape[-1]), 0) for ref in (x.k, x.v)]
    k_sums, v_sums, *_ = walk((*zeros, *k_tokens))
    _store([(k_sums * plan.rules.scale, k, d_k.at[place]), (v_sums, v, d_v.at[place])])

  def step(index, q, d_out, q_order, q_segments, top, delta, *rest):
    *tiles, (k_sums, v_sums, *k_tokens) = rest
    own = scratch.own()
    k, v = own.tiles
    i = first + index[1]
    logits = _logits(plan, _product(k, q.T), tiles, at.warpgroup)
    whole = (first_whole <= i) & (i < last_whole)
    logits = _masked_unless(whole, plan, logits, k_tokens, (q_order, q_segments), 1)
    d_weights = _product(v, d_out.T)
    weights, d_logits = _d_logits(plan, logits, d_weights, _of_columns(top), _of_columns(delta), 1)
    v_sums = _add_product(plan, v_sums, weights, d_out, own.weights)
    k_sums = _add_product(plan, k_sums, d_logits, q, own.weights)
    return k_sums, v_sums, *k_tokens

  arrays, specs = _along_queries(plan, x, at, first)
  group = x.q.shape[2] // x.k.shape[2]
  _pipeline(plan, step, (group, last - first), specs, compute)(*arrays)


def d_table(plan: Plan, x: Inputs, tile):
  """Sums the tiles along two neighbouring diagonals, one for each warpgroup.

  The blocks that a program visits have 128 queries and 64 keys. The first 64 queries are on the
  first diagonal, the others on the one below it. Along a diagonal, tiles share their bias. The grid
  has the last diagonals only, as many as there is room for in `tile`.
  """
  at = _here()
  number = at.block + (x.spans.shape[1] - tile.shape[2])  # of the diagonal
  first, last = (x.spans[_either(x.spans, at.batch), number, n] for n in range(2))
  group = jnp.int32(x.q.shape[2] // x.k.shape[2])
  kv_head = lax.div(at.head, group)
  first_key = number - (x.q.shape[1] // ROWS - COMPUTING)  # beside the first block of queries

  def compute(walk):
    column = ROWS * (first_key - at.warpgroup) + x.q.shape[1]
    place = _either(x.table, at.batch), at.head, slice(None), pl.ds(column, ROWS)
    bias = _read(x.table.at[place], plgpu.Layout.WGMMA)
    total, _ = walk((_fill((ROWS, ROWS), 0), bias))
    tile[at.batch, at.head, at.block, at.warpgroup] = total

  def step(index, q, d_out, k, v, q_order, q_segments, top, delta, k_order, k_segments, carry):
    total, bias = carry
    half = pl.ds(at.warpgroup * ROWS, ROWS)
    by_row = lambda ref: _read(ref.at[half], _BY_ROW)
    logits = formulas.logits(plan.rules, _product(q.at[half], k.T), bias)
    q_tokens = [by_row(ref) for ref in (q_order, q_segments)]
    logits = _masked(plan, logits, q_tokens, (k_order, k_segments), 0)
    d_weights = _product(d_out.at[half], v.T)
    _, d_logits = _d_logits(plan, logits, d_weights, by_row(top), by_row(delta), 0)
    return total + d_logits, bias

  pair = lambda n: first + n
  key = lambda n: first_key + COMPUTING * (first + n)
  heads = [(x.q, PAIR, pair, at.head), (x.d_out, PAIR, pair, at.head)]
  heads += [(x.k, ROWS, key, kv_head), (x.v, ROWS, key, kv_head)]
  one = lambda ref: ref.at[_either(ref, at.batch)]
  arrays = [ref.at[at.batch] for ref, *_ in heads]
  arrays += [one(ref) for ref in x.q_tokens] + [
    ref.at[at.batch, at.head] for ref in (x.top, x.delta)
  ]
  arrays += [one(ref) for ref in x.k_tokens]
  specs = [
    _heads_spec(size, ref, lambda n, number=number, head=head: (number(n), head))
    for ref, size, number, head in heads
  ]
  specs += [_row_spec(PAIR, lambda n: (pair(n),))] * 4 + [_row_spec(ROWS, lambda n: (key(n),))] * 2
  _pipeline(plan, step, (last - first,), specs, compute)(*arrays)
