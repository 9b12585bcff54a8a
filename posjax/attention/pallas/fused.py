"""Attention in fused kernels, for every scheme that changes q and k, or adds a bias by distance.

A kernel knows no scheme. It takes q and k after place 2, and the bias as a table by distance, and
computes the gradients of those three; XLA differentiates the rest. Other attention is computed in
tiles: `refusal` says why.

A table asks for ids that count up by one. In a compiled program that is known only when it runs,
so a test there chooses between the kernel and attention in tiles: any ids are exact. Without a
bias there is no table, and nothing to test.

XLA cannot partition a kernel: on several devices, call `attend` inside `jax.shard_map`, over batch
and heads, with check_vma=False.
"""

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Inexact

from posjax.attention import places
from posjax.attention.blockwise import engine
from posjax.attention.devices import KNOWN, Device, here
from posjax.attention.distances import contiguous, falling
from posjax.attention.inputs import Operands, Rules, Side, Tokens
from posjax.attention.pallas.formulas import Problem
from posjax.attention.softmax import Sums
from posjax.known import known, known_numbers
from posjax.scheme import Ids, Params, Scheme, Values, declares


class Target(NamedTuple):
  """Which kernels.

  Attributes:
    kernels: their module.
    interpret: whether, or how, JAX interprets them: slow, on any device, for tests.
    device: that whose registers and shared memory the blocks fit.
  """

  kernels: ModuleType
  interpret: Any = False
  device: Device = KNOWN['hopper']


class Plan(NamedTuple):
  """The facts that are known when the attention is traced.

  Attributes:
    scheme: the scheme.
    rules: the plain arguments of `attend`.
    target: which kernels.
    counting: whether the ids are known to count up by one, or it does not matter.
    alike: how many entries of the table, from its first, are one number for each head.
  """

  scheme: Scheme
  rules: Rules
  target: Target
  counting: bool
  alike: int


class Heads(NamedTuple):
  """The arrays that have cotangents; q and k after place 2."""

  params: Params
  q: Inexact[Array, 'B T H D']
  k: Inexact[Array, 'B S K D']
  v: Inexact[Array, 'B S K E']
  sinks: Float[Array, ' H'] | None


class Sides(NamedTuple):
  """The numbers of the tokens, which have no cotangents here."""

  q_pos: Ids
  k_pos: Ids
  q_tokens: Tokens
  k_tokens: Tokens


def attend(
  scheme: Scheme, rules: Rules, x: Operands, mosaic: bool = False
) -> Inexact[Array, 'B T H E']:
  """Attention in fused kernels where they can compute it, else in tiles.

  Args:
    scheme: any scheme.
    rules: the plain arguments of `attend`.
    x: its arrays.
    mosaic: as for `target_of`.
  """
  target, params = target_of(here(), mosaic), x.params
  q, k = places.query_and_key(scheme, params, x.q, x.k)  # place 2
  v = places.value(scheme, params, x.v, x.k)  # place 4: values.value
  if target is None or refusal(target, scheme, x, q, k, v, rules):
    return engine.attend(scheme, rules, x)
  counting = rules.counting or scheme.bias is None or _counts(x.q.pos, x.k.pos) is True
  plan = Plan(scheme, rules, target, counting, _alike(scheme, rules, x) if counting else 0)
  out = _attend(plan, Heads(params, q, k, v, x.sinks), sides(x))
  return places.output(scheme, params, out, x.q)  # place 4: values.output


def target_of(device: Device, mosaic: bool = False) -> Target | None:
  """The kernels for a device, if there are any.

  Args:
    device: any.
    mosaic: whether for a GPU those of Pallas' Mosaic GPU backend are meant, which need Hopper and
      jax 0.11.2, and not those of its Triton backend, which were seen to compile for NVIDIA GPUs
      from Ampere to Hopper.
  """
  module = lambda name: importlib.import_module(f'posjax.attention.pallas.{name}')
  generation = device.capability[0] if device.capability else 0
  if mosaic:
    there = generation == 9 and jax.__version_info__ >= (0, 11, 2)
    return Target(module('mosaic')) if there else None
  if device.platform == 'tpu':
    return Target(module('tpu'), device=device)
  return Target(module('gpu'), device=device) if generation in (8, 9) else None


def refusal(
  target: Target | None, scheme: Scheme, x: Operands, q: Any, k: Any, v: Any, rules: Rules
) -> str:
  """The reason why the kernels cannot compute a call; '' if they can, or if ids decide it later.

  Args:
    target: of `target_of`.
    scheme: any scheme.
    x: the arrays of the call.
    q: queries after place 2, or their shape and dtype.
    k: keys after place 2.
    v: values after `values.value`.
    rules: the plain arguments of `attend`.
  """
  if declares(scheme, 'logits'):
    return 'the scheme has logits'
  if scheme.values.add:
    return 'the scheme has values.add'
  if x.mask is not None:
    return 'there is a mask'
  if x.bias is not None:
    return 'the call has a bias'
  if rules.dropout_rate:
    return 'there is dropout'
  if any(heads.dtype not in (jnp.float32, jnp.bfloat16) for heads in (q, k, v)):
    return 'the heads are neither float32 nor bfloat16'
  if any(side.order.dtype not in (jnp.int32, jnp.float32) for side in (x.q, x.k)):
    return 'the order is neither int32 nor float32'
  if scheme.bias is not None:
    pos = x.q.pos, x.k.pos
    if pos[0].ndim > 2 or not jnp.issubdtype(jnp.result_type(*pos), jnp.integer):
      return 'the bias is of ids that are not single integers'
    if _counts(*pos) is False:
      return 'the bias is of ids that do not count up by one'
  if target is None:
    return 'there are no such kernels for this device and this version of JAX'
  return target.kernels.refusal(q, k, v, target.device)


def _counts(q_pos: Ids, k_pos: Ids) -> bool | None:
  """Whether each row counts up by one; None where that is known only when the program runs."""
  return known(contiguous, q_pos, k_pos)


def _alike(scheme: Scheme, rules: Rules, x: Operands) -> int:
  """How many of the farthest past distances have one bias, as far as ids that count up are known.

  With a logit cap their gradient is not known from the others', so that there are none.
  """
  limit = scheme.traits.tiled.constant_from
  if limit is None or rules.logit_cap is not None:
    return 0
  if any(isinstance(pos, jax.core.Tracer) for pos in (x.q.pos, x.k.pos)):
    return 0
  with known_numbers():
    first = (x.q.pos[:, 0] - x.k.pos[:, 0]).min()
  if isinstance(first, jax.core.Tracer):
    return 0
  queries, keys = x.q.pos.shape[1], x.k.pos.shape[1]
  return min(max(int(first) + queries - limit, 0), queries + keys - 1)


def sides(x: Operands) -> Sides:
  """The numbers of the tokens."""
  return Sides(x.q.pos, x.k.pos, _tokens(x.q), _tokens(x.k))


def _tokens(side: Side) -> Tokens:
  rows = max(side.order.shape[0], side.segments.shape[0])
  fill = lambda x: jnp.broadcast_to(x, (rows, x.shape[1]))
  return Tokens(fill(side.order), fill(side.segments))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, x, sides):
  return forward(plan, x, sides)[0]


def _attend_forward(plan, x, sides):
  out, sums = forward(plan, x, sides)
  return out, (x, sides, out, sums)


def _attend_backward(plan, saved, d_out):
  x, sides, out, sums = saved
  return backward(plan, x, sides, out, sums, d_out), None


_attend.defvjp(_attend_forward, _attend_backward)


def forward(plan: Plan, x: Heads, sides: Sides, otherwise: Callable[[], Any] | None = None):
  """The output, and each row's sums of the softmax, [B, H, T].

  Args:
    plan: the plan.
    x: the arrays.
    sides: the numbers of the tokens.
    otherwise: what to call where ids do not count up; by default it returns no sums.
  """

  def fused():
    problem = _problem(x, sides, _table(plan, x, x.params, sides))
    return plan.target.kernels.forward(_kernels(plan, problem), problem)

  def in_tiles():
    out = _blockwise(plan, sides, x).astype(x.v.dtype)
    none = jnp.zeros((out.shape[0], out.shape[2], out.shape[1]), jnp.float32)
    return out, Sums(none, none)

  return _choose(plan, sides, fused, otherwise or in_tiles)


def backward(
  plan: Plan,
  x: Heads,
  sides: Sides,
  out: Inexact[Array, 'B T H E'],
  sums: Sums,
  d_out: Inexact[Array, 'B T H E'],
  otherwise: Callable[[], Heads] | None = None,
) -> Heads:
  """The cotangents.

  Args:
    plan: the plan.
    x: the arrays.
    sides: the numbers of the tokens.
    out: the output, over all keys, of which these may be a part: then no entries are alike.
    sums: of `forward`, over all keys.
    d_out: the cotangent of the output.
    otherwise: what to call where ids do not count up; by default, attention in tiles computes its
      forward pass again.
  """

  def fused():
    given, back = jax.vjp(lambda params: _table(plan, x, params, sides), x.params)
    problem = _problem(x, sides, given)
    wide, divisor = d_out.astype(jnp.float32), sums.divisor()
    delta = (out.astype(jnp.float32) * wide).sum(-1).swapaxes(1, 2) / divisor
    over = (wide / divisor.swapaxes(1, 2)[..., None]).astype(x.v.dtype)
    kernels = _kernels(plan, problem)
    given_to = kernels, problem, sums.top, delta, over
    d_q, d_k, d_v, d_table = plan.target.kernels.backward(*given_to, near=plan.alike)
    taken = _taken(x.sinks, sums.top, delta)
    d_table = _with_tail(plan.alike, d_table, taken)
    d_q, d_k = d_q.astype(x.q.dtype), d_k.astype(x.k.dtype)
    return Heads(back(d_table)[0], d_q, d_k, d_v, _d_sinks(x.sinks, taken))

  def in_tiles():
    recomputed = lambda x: _blockwise(plan, sides, x).astype(x.v.dtype)
    return jax.vjp(recomputed, x)[1](d_out)[0]

  return _choose(plan, sides, fused, otherwise or in_tiles)


def _choose(plan, sides, fused, otherwise):
  if plan.counting:
    return fused()
  counting = contiguous(sides.q_pos, sides.k_pos)
  return lax.cond(counting, fused, otherwise)


def _table(plan: Plan, x: Heads, params: Params, sides: Sides):
  """The bias by distance of each head: [b, H, T + S - 1]. A bias may be one for all heads."""
  if plan.scheme.bias is None:
    return None
  distance = falling(sides.q_pos, sides.k_pos, sides.q_pos.shape[1], sides.k_pos.shape[1])
  bias = places.by_head(plan.scheme.bias(params, distance), distance.shape).astype(jnp.float32)
  return jnp.broadcast_to(bias, (bias.shape[0], x.q.shape[2], bias.shape[2]))


def _problem(x: Heads, sides: Sides, given) -> Problem:
  dtype = jnp.result_type(x.q, x.k)
  q, k = x.q.astype(dtype), x.k.astype(dtype)
  return Problem(q, k, x.v, given, x.sinks, sides.q_tokens, sides.k_tokens)


def _kernels(plan: Plan, problem: Problem):
  return plan.target.kernels.plan(plan.rules, problem, plan.target.device, plan.target.interpret)


def _taken(sinks, top, delta):
  """The negative cotangent of the sinks' logits, by row of the batch and head.

  A sink takes its share of each query, and gives nothing for it.
  """
  return None if sinks is None else (jnp.exp(sinks[None, :, None] - top) * delta).sum(2)


def _d_sinks(sinks, taken):
  return None if sinks is None else -taken.sum(0).astype(sinks.dtype)


def _with_tail(alike: int, d_table, taken):
  """The cotangent of a table whose first `alike` entries are one number, in the last of them.

  The cotangents of the logits of a query add up to zero, since its weights add up to one, so that
  no kernel needs to sum those of far keys: they are what the near keys and the sink leave. In
  bfloat16 that entry is less exact than the others, because each query's sum is zero only up to the
  rounding of its output: see "Fused kernels" in RESULTS.md.

  Args:
    alike: how many entries.
    d_table: [b, H, N], the first entries of which are any numbers.
    taken: what the sinks' share is, [B, H], or None.
  """
  if not alike:
    return d_table
  near = d_table[..., alike:]
  rest = -near.sum(-1, keepdims=True)
  if taken is not None:
    rest = rest + (taken if near.shape[0] > 1 else taken.sum(0, keepdims=True))[..., None]
  nothing = jnp.zeros((*near.shape[:-1], alike - 1), near.dtype)
  return jnp.concatenate([nothing, rest, near], -1)


def _blockwise(plan: Plan, sides: Sides, x: Heads):
  """The same in tiles, for any ids. `at` is not needed: place 2 is done, and there is no other."""
  scheme = places.without_place_2(plan.scheme)._replace(values=Values())
  index = lambda n: jnp.arange(n, dtype=jnp.int32)

  def side(heads, pos, tokens):
    return Side(heads, pos, (), tokens.order, tokens.segments, index(heads.shape[1]))

  q = side(x.q, sides.q_pos, sides.q_tokens)
  k = side(x.k, sides.k_pos, sides.k_tokens)
  return engine.attend(scheme, plan.rules, Operands(x.params, q, k, x.v, sinks=x.sinks))
