"""Attention over a mesh: rows of the batch are cut along some axes, and tokens along `context`.

XLA cuts no kernel, and adds up over all rows after each tile what each row adds to the gradients of
parameters. So each device computes its own rows, as a device alone would, where the mesh has axes
that cut rows by their names. A wrong guess costs time alone: rows are moved to where they are
computed, and back.

With `all_gather`, each device gets all keys and values, and computes its queries with them as a
device alone would: right for every scheme, and at 65,536 tokens a small part of the attention's
time. Cotangents of keys and values are added up and cut again: a reduce-scatter where XLA makes one
of it, as it does for GPUs. With `ring` no device holds all keys.

All other axes of the mesh stay as they are: XLA cuts the heads along them.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Inexact

from posjax.attention import distances
from posjax.attention.context import ring as around
from posjax.attention.inputs import Operands, Rules
from posjax.known import known
from posjax.scheme import Scheme

AXIS = 'context'
ROWS = ('data', 'fsdp')  # axes that cut the rows of a batch, wherever a mesh has them
Compute = Callable[[Scheme, Rules, Operands], Array]


def devices() -> int:
  """How many devices share the tokens of a row.

  Raises:
    ValueError: if there is no mesh with an axis `context`, or only inside `jax.shard_map`.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if AXIS in mesh.manual_axes:
    raise ValueError(
      f"Attention over devices cuts arrays along the axis '{AXIS}' itself, so it must be called "
      'outside of jax.shard_map, but got arrays that are cut already.'
    )
  if AXIS not in mesh.axis_names:
    got = f'the axes {", ".join(mesh.axis_names)}' if mesh.axis_names else 'no mesh'
    raise ValueError(
      f"Attention over devices needs a mesh with an axis '{AXIS}', set by jax.set_mesh, but got "
      f'{got}.'
    )
  return mesh.shape[AXIS]


def row_axes(rows: int) -> tuple[str, ...]:
  """The axes along which attention cuts the rows of a batch by itself.

  None where the rows cannot be divided over them, and none that cut the arrays already.
  """
  mesh = jax.sharding.get_abstract_mesh()
  names = [name for name in ROWS if mesh.shape.get(name, 1) > 1 and name not in mesh.manual_axes]
  return () if rows % size(names) else tuple(names)


def size(names: Iterable[str]) -> int:
  """How many devices there are along these axes of the mesh in context."""
  return math.prod(jax.sharding.get_abstract_mesh().shape[name] for name in names)


def over_rows(compute: Compute) -> Compute:
  """An implementation in which each device computes the rows of the batch that it has."""

  def attend(scheme: Scheme, rules: Rules, x: Operands) -> Array:
    if not row_axes(x.v.shape[0]):
      return compute(scheme, rules, x)
    if distances.is_useful(scheme, x.q.pos, x.k.pos):
      counting = known(distances.counts_up, x.q.pos, x.k.pos) is True
      rules = rules._replace(counting=rules.counting or counting)
    return _over_rows(compute, scheme, rules, x)

  return attend


def all_gather(
  scheme: Scheme, rules: Rules, x: Operands, alone: Compute
) -> Inexact[Array, 'B T H E']:
  """Attention in which each device gets all keys.

  Args:
    scheme: any scheme.
    rules: the plain arguments of `attend`.
    x: its arrays, of all devices.
    alone: computes the queries of one device, with all keys.
  """
  rules = _with_counting(scheme, rules, x, lambda queries, keys: (queries, keys * devices()))
  return _all_gather(alone, scheme, rules, x)


def ring(scheme: Scheme, rules: Rules, x: Operands) -> Inexact[Array, 'B T H E']:
  """Ring attention.

  Args:
    scheme: any scheme whose logits do not mix keys: `choice` takes `all_gather` for those.
    rules: the plain arguments of `attend`.
    x: its arrays, of all devices.
  """
  return _ring(scheme, _with_counting(scheme, rules, x, around.chunks_of), x)


def _with_counting(
  scheme: Scheme, rules: Rules, x: Operands, chunks: Callable[..., tuple[int, ...]]
) -> Rules:
  """The rules, with whether the ids of all chunks are known to count up by one.

  Inside `jax.shard_map` nothing is known: the program would decide, and hold both ways.

  Args:
    scheme: any scheme.
    rules: the plain arguments of `attend`.
    x: its arrays.
    chunks: from the queries and keys of a device, those that are computed together.
  """
  tokens, count = [side.raw.shape[1] for side in (x.q, x.k)], devices()
  if not distances.is_useful(scheme, x.q.pos, x.k.pos) or any(n % count for n in tokens):
    return rules
  sizes = chunks(*(n // count for n in tokens))
  test = lambda q_pos, k_pos: distances.chunks_count_up(q_pos, k_pos, *sizes[:2])
  return rules._replace(counting=known(test, x.q.pos, x.k.pos) is True)


# `jax.shard_map` leaves other axes of the mesh to XLA only where it is compiled.


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _over_rows(compute: Compute, scheme: Scheme, rules: Rules, x: Operands) -> Array:
  return _mapped(functools.partial(compute, scheme, rules), x, _specs(x, None), None)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _all_gather(alone: Compute, scheme: Scheme, rules: Rules, x: Operands) -> Array:
  x, queries = _even(scheme, x), x.q.raw.shape[1]
  rows = _rows(x)
  copies = lambda leaf: PartitionSpec(AXIS, *rows(leaf))
  k = jax.tree.map(copies, x.k)._replace(index=PartitionSpec(AXIS))
  specs = _specs(x)._replace(k=k, v=copies(x.v))

  def local(x):
    k, v = jax.tree.map(lambda leaf: leaf[0], (x.k, x.v))
    return alone(scheme, rules, x._replace(k=k, v=v))

  k, v = jax.tree.map(_gathered, (x.k, x.v))
  return _mapped(local, x._replace(k=k, v=v), specs)[:, :queries]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _ring(scheme: Scheme, rules: Rules, x: Operands) -> Array:
  x, queries = _even(scheme, x), x.q.raw.shape[1]
  local = functools.partial(around.attend, AXIS, devices(), scheme, rules)
  return _mapped(local, x, _specs(x))[:, :queries]


def _mapped(
  local: Callable[[Operands], Array], x: Operands, specs: Any, tokens: str | None = AXIS
) -> Array:
  """Calls a function on each device, with the rows and the tokens that it has.

  Args:
    local: the function.
    x: its operands, of all devices.
    specs: of them.
    tokens: the axis that cuts tokens; None: each device has those of its rows.
  """
  rows = row_axes(x.q.raw.shape[0])
  names = {*rows, tokens} - {None}
  options = {'axis_names': names, 'check_vma': False}  # of the latter, kernels know nothing
  out = PartitionSpec(rows, tokens)
  return jax.shard_map(local, in_specs=(specs,), out_specs=out, **options)(x)


def _gathered(tokens: Array) -> Array:
  """All tokens for each device, [devices, B, S, ...].

  XLA gathers them: it cuts no `jax.lax.all_gather` along the other axes of the mesh.
  """
  return _with_scatter(tokens) if jnp.issubdtype(tokens.dtype, jnp.inexact) else _copies(tokens)


def _copies(tokens: Array) -> Array:
  whole = _constrained(tokens, 1, None)
  return jnp.broadcast_to(whole[None], (devices(), *whole.shape))


@jax.custom_vjp
def _with_scatter(tokens):
  return _copies(tokens)


_with_scatter.defvjp(
  lambda tokens: (_copies(tokens), None),
  lambda _, d_copies: (_constrained(d_copies.sum(0), 1, AXIS),),
)


def _constrained(x: Array, dimension: int, axis: str | None) -> Array:
  """An array of which one dimension is cut along an axis of the mesh, or along none.

  Args:
    x: [B, T, ...], or the numbers of tokens alone, [T].
    dimension: which one; others are cut as they are.
    axis: of the mesh.
  """
  free: list[Any] = [PartitionSpec.UNCONSTRAINED] * x.ndim
  free[min(dimension, x.ndim - 1)] = axis
  return lax.with_sharding_constraint(x, PartitionSpec(*free))


def _rows(x: Operands) -> Callable[[Array], tuple[Any, ...]]:
  """How the first axis of an array is cut: it has the rows of the batch, or one for all of them."""
  batch, axes = x.q.raw.shape[0], row_axes(x.q.raw.shape[0])
  return lambda leaf: (axes,) if axes and leaf.shape[0] == batch else (None,)


def _specs(x: Operands, axis: str | None = AXIS) -> Any:
  """How the arrays are cut along their rows, and along their tokens.

  Args:
    x: the operands.
    axis: that cuts tokens.
  """
  rows, whole = _rows(x), PartitionSpec()
  tokens = lambda leaf: PartitionSpec(*rows(leaf), axis)
  side = lambda side: jax.tree.map(tokens, side)._replace(index=PartitionSpec(axis))
  pairs = lambda leaf: PartitionSpec(*rows(leaf), None, axis if leaf.shape[2] > 1 else None)
  mask, bias = jax.tree.map(pairs, (x.mask, x.bias))
  of_rows = None if x.rows is None else PartitionSpec(*rows(x.rows))
  each = whole, side(x.q), side(x.k), tokens(x.v), mask, whole, whole, bias, of_rows
  return Operands._make(each)


def _even(scheme: Scheme, x: Operands) -> Operands:
  """The operands with padding of segment 0, so that all devices have as many tokens.

  A scheme that mixes heads gets them whole: no device would have a result from its own heads.
  """
  if 'H' in scheme.traits.mixes:
    whole = lambda heads: _constrained(heads, 2, None)
    q, k = (side._replace(raw=whole(side.raw)) for side in (x.q, x.k))
    x = x._replace(q=q, k=k, v=whole(x.v))
  count = devices()
  short = [-side.raw.shape[1] % count for side in (x.q, x.k)]
  if not any(short):
    return x

  def tokens(tree, short):
    widths = lambda leaf: [(0, short * (i == min(1, leaf.ndim - 1))) for i in range(leaf.ndim)]
    return jax.tree.map(lambda leaf: jnp.pad(leaf, widths(leaf)), tree)

  def block(leaf):  # an axis of 1 is the same for all tokens
    more = [n * (size > 1) for n, size in zip(short, leaf.shape[2:], strict=True)]
    return jnp.pad(leaf, [(0, 0), (0, 0), *((0, n) for n in more)])

  mask, bias = jax.tree.map(block, (x.mask, x.bias))
  k, v = tokens((x.k, x.v), short[1])
  return x._replace(q=tokens(x.q, short[0]), k=k, v=v, mask=mask, bias=bias)
