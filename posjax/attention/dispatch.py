"""`attend`: it reads its arguments, chooses an implementation (`choice`), and computes.

q [B, T, H, D], k and v [B, S, K, D], ids [B, T] and [B, S], logits [B, H, T, S]; B stands for any
leading axes, and K divides H. `True` in a mask means "may attend". A query that may attend to no
key gets zeros, and has zero gradients.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax.arguments import check_known
from posjax.attention import cudnn, dense, distances, inputs, padding, places
from posjax.attention.blockwise import engine
from posjax.attention.choice import OVER_DEVICES, Choice, choose, note, on_one_device
from posjax.attention.context import mesh
from posjax.attention.devices import KNOWN, here
from posjax.attention.explicit import with_automatic_axes
from posjax.attention.inputs import Call, Operands, Rules
from posjax.attention.pallas import fused
from posjax.scheme import At, Ids, Params, PRNGKey, Scheme

Compute = Callable[[Scheme, Rules, Operands], Any]


def attend(
  q: Inexact[Array, '*B T H D'],
  k: Inexact[Array, '*B S K D'],
  v: Inexact[Array, '*B S K E'],
  scheme: Scheme | str,
  params: Params,
  *,
  q_pos: Ids,
  k_pos: Ids,
  q_at: At = None,
  k_at: At = None,
  q_order: Num[Array, '...'] | None = None,
  k_order: Num[Array, '...'] | None = None,
  q_segments: Int[Array, '...'] | None = None,
  k_segments: Int[Array, '...'] | None = None,
  mask: Bool[Array, '...'] | None = None,
  bias: Float[Array, '...'] | None = None,
  causal: bool = False,
  window: int | tuple[int | None, int | None] | None = None,
  logit_cap: float | None = None,
  sinks: Float[Array, ' H'] | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  dropout_key: PRNGKey | None = None,
  broadcast_dropout: bool = False,
  implementation: str | None = None,
  return_weights: bool = False,
  model_places: bool = False,
) -> Any:  # not a union: type checkers would ask which of the two at every call
  """Attention in which `scheme` says where position enters: places 2 to 4.

  Places 0 and 1 act before q, k and v exist: the model calls `scheme.ids` and `scheme.embed`, and
  says so by `model_places=True`. A scheme that has them, as `sinusoidal`, is refused otherwise.

  output(w value(v)) + add(w), where w = softmax(cap(logits(scale * query(q) . key(k)) +
  scheme.bias) + bias), in float32: `query`, `key` and `logits` are the scheme's, too, and `value`,
  `output` and `add` are its `values`. A logit of -inf hides its pair, whatever the cap; all
  finite logits keep their order.

  Arrays are those of JAX or NumPy. Ids, orders and segments may lack the batch axes: they then hold
  for every row. Where an axis of the batch, of queries or of keys has no entries, the result is
  empty, or zeros.

  Args:
    q: queries, real or complex numbers of 16 bits or more, as are keys and values.
    k: keys; K heads, each shared by H / K consecutive query heads.
    v: values, of any width E. Keys and values of segment 0, and those that `mask` hides from every
      query, count as zero, whatever they hold. A NaN in any other token may spread to queries that
      do not see it, because of causality, the window or another segment.
    scheme: a `Scheme`, or a line for `posjax.get`; `Scheme()` is attention without positions.
    params: the scheme's parameters, as from `posjax.init` or its `prepare`, with the names, shapes
      and kinds of numbers that these give for the heads of q and k.
    q_pos: ids of the queries, [*B, T] or [T] (n axes: [*B, T, n] or [T, n]).
    k_pos: ids of the keys.
    q_at: what the scheme's `prepare` returned for the queries; by default the ids.
    k_at: the same for the keys.
    q_order: index of each query in its stream, for `causal` and `window`; by default the ids,
      where the scheme leaves them one per token and unchanged.
    k_order: the same for the keys.
    q_segments: document of each query. Tokens meet only inside one document; 0 is padding,
      which sees nothing and is not seen.
    k_segments: the same for the keys.
    mask: [*B, H, T, S] or [T, S], where each axis may be 1 instead; True may attend.
    bias: what is added to the logits as it is, unscaled, after all that the scheme adds and after
      the cap: what is far below zero then hides its pair under a cap, too. It must broadcast to
      [*B, H, T, S], and have the last two axes. It has a gradient, of its own shape. -inf hides a
      pair, but not what the key and the value hold, where that is NaN: `mask` does.
    causal: whether a query sees only keys whose order is not above its own.
    window: how many tokens back a query sees, itself included; and, unless causal, forward. Or a
      pair (left, right): how many tokens before and how many after itself it sees, each None for
      all of them; w is (w - 1, w - 1). Where `causal` is set, right is 0 or None.
    logit_cap: bounds the logits: cap * tanh(logits / cap).
    sinks: one logit per head that takes its share of the softmax and gives no value.
    scale: factor of q . k; by default 1/sqrt(D) of the incoming width. What a scheme adds to it
      at `logits` (`shaw`), or puts in its place (`xpos`), has a factor of its own. 'dense' alone
      takes one that is traced; all other numbers must be known when `attend` is traced.
    dropout_rate: share of the weights that are dropped, in [0, 1).
    dropout_key: random key; dropout needs one.
    broadcast_dropout: whether all rows and heads drop the weights of the same pairs, as in Flax.
    implementation: how to compute it; the numbers are the same. 'dense': all logits at once.
      'blockwise': in tiles, on any device, with memory linear in the length. 'pallas': in fused
      kernels, on TPUs and NVIDIA GPUs from Ampere to Hopper; 'mosaic': the same in the Mosaic GPU
      backend of Pallas, on Hopper, in bfloat16, with jax 0.11.2; 'cudnn': by cuDNN. These three
      compute in tiles where they have to; `posjax.attention.chosen` says why. 'all_gather' and
      'ring': over the devices along the axis 'context' of the mesh of `jax.set_mesh`, which share
      the tokens of each row; 'ring' has all keys on no device, and takes 'all_gather' for schemes
      that need whole rows of keys. None takes the one that `chosen` names, or 'dense' for weights.
    return_weights: whether to return the weights of the softmax, too, for pictures and tests; only
      'dense' has them.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer.

  Returns:
    [*B, T, H, E], in the dtype of `v`; of another width where the scheme widens values.
    With `return_weights`, this and the weights, float32 [*B, H, T, S], before any dropout; a hidden
    pair has the weight 0. What place 4 adds to the output is not in them.

  Raises:
    ValueError: if shapes or parameters do not fit, a number is out of its range, an argument lacks
      what it needs, as 'ring' needs a mesh, or known ids are 2^31 apart, where the scheme sees
      distances; in a compiled program such distances are 2^31 - 1.
    TypeError: if an argument is of another type or dtype: q, k or v are integers, the mask is not
      boolean, ids are neither integers nor float32.

  Example:
    >>> x = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))
    >>> pos = jax.numpy.arange(3)
    >>> attend(x, x, x, Scheme(), {}, q_pos=pos, k_pos=pos, causal=True).shape
    (1, 3, 2, 4)
  """
  scheme = inputs.read_scheme(scheme)
  inputs.check_places(scheme, model_places)
  plain: dict[str, Any] = {'causal': causal, 'window': window, 'logit_cap': logit_cap}
  plain |= {'dropout_rate': dropout_rate, 'broadcast_dropout': broadcast_dropout, 'scale': scale}
  heads, more = (q, k, v), {'mask': mask, 'bias': bias, 'sinks': sinks, 'dropout_key': dropout_key}
  queries = inputs.Given(q_pos, q_at, q_order, q_segments)
  keys = inputs.Given(k_pos, k_at, k_order, k_segments)

  def run(params, heads, queries, keys, more):
    call = inputs.read_call(scheme, params, heads, queries, keys, **more, **plain)
    return computed(call, implementation, return_weights)

  return with_automatic_axes(run, q, return_weights, params, heads, queries, keys, more)


def computed(call: Call, implementation: str | None, return_weights: bool = False) -> Any:
  """The result of `attend`, of arguments that are read already: layers call this.

  Args:
    call: of `inputs.read_call`.
    implementation: as for `attend`.
    return_weights: as for `attend`.
  """
  compute = _implementation(implementation, call, return_weights)
  scheme, x = call.scheme, call.operands
  distances.check_known(scheme, x.q, x.k)
  if 0 in (*x.q.raw.shape, *x.v.shape):  # no numbers to compute, or no key to see
    width = places.output_width(scheme, x.params, x.v.shape[-1], x.q, x.k)
    found = jnp.zeros((*x.q.raw.shape[:-1], width)), jnp.zeros(call.pairs, jnp.float32)
  elif return_weights:
    found = dense.attend_and_weigh(scheme, call.rules, x)
  else:
    found = compute(scheme, call.rules, x), jnp.zeros(())
  out, weights = found
  out = padding.zeroed(out, x.q.segments) if call.padded else out
  out = out.reshape(*call.shape[:-1], out.shape[-1]).astype(call.dtype)
  return (out, weights.reshape(call.pairs)) if return_weights else out


def weights(
  q: Inexact[Array, '*B T H D'],
  k: Inexact[Array, '*B S K D'],
  scheme: Scheme | str,
  params: Params,
  **options: Any,
) -> Float[Array, '*B H T S']:
  """The attention weights of a scheme, for pictures and tests: all [T, S] of them in memory.

  They are what `attend(..., return_weights=True)` returns, for which the values do not matter.

  Args:
    q: queries.
    k: keys; K heads, each shared by H / K consecutive query heads.
    scheme: a `Scheme`, or a line for `posjax.get`.
    params: the scheme's parameters.
    **options: all other arguments of `attend`, but `implementation`.

  Returns:
    float32 [*B, H, T, S]. Each row sums to 1, less what a sink takes; to 0 where a query sees
    nothing.

  Raises:
    ValueError: as `attend`.
    TypeError: as `attend`.

  Example:
    >>> x, pos = jnp.ones((1, 3, 2, 4)), jnp.arange(3)
    >>> weights(x, x, 'rope', {}, q_pos=pos, k_pos=pos, causal=True)[0, 0, 0]
    Array([1., 0., 0.], dtype=float32)
  """
  return attend(q, k, k, scheme, params, **options, return_weights=True)[1]


def _implementation(name: str | None, call: Call, weights: bool) -> Compute:
  """The implementation of that name, or by default the one that is chosen.

  Raises:
    TypeError: if `weights`, which is `return_weights`, is neither True nor False.
    ValueError: if there is none of that name, or it cannot compute with a scale that is traced, or
      does not hold the weights to return.
  """
  _check_name(name)
  if not isinstance(weights, bool):
    raise TypeError(f'return_weights must be True or False, but got {weights!r}.')
  if weights:
    if name not in (None, 'dense'):
      raise ValueError(
        f"return_weights=True needs implementation='dense', or None, but got {name!r}."
      )
    name = 'dense'
  if name is None or name in OVER_DEVICES:
    name = choose(call, here(), tuple(IMPLEMENTATIONS), name).implementation
  if name != 'dense' and isinstance(call.rules.scale, jax.core.Tracer):
    raise ValueError(f"A traced scale needs implementation='dense', but got {name!r}.")
  note(call, here(), tuple(IMPLEMENTATIONS), name)
  return IMPLEMENTATIONS[name]


def _check_name(name: str | None) -> None:
  if name is not None and not (isinstance(name, str) and name in IMPLEMENTATIONS):
    raise ValueError(
      f'The implementation must be None or one of {sorted(IMPLEMENTATIONS)}, but got {name!r}.'
    )


def chosen(
  q: Any,
  k: Any,
  v: Any,
  scheme: Scheme | str,
  params: Params,
  *,
  device: str | None = None,
  implementation: str | None = None,
  **options: Any,
) -> Choice:
  """The implementation that computes a call of `attend` on a device, and why; nothing is computed.

  By default `attend` takes 'dense' for few pairs: for at most 16 queries, and up to 2^15 pairs for
  each head on a CPU, 2^20 on a GPU, and 2^18 on a TPU, where nothing has been measured. Beyond
  that, an NVIDIA GPU computes by 'cudnn' where a scheme acts on queries, keys and values alone, in
  16 bits; from Ampere to Hopper, 'pallas' computes what cuDNN cannot, as a bias by distance; and
  'blockwise' computes the rest, everywhere. Under a mesh whose axes XLA cuts itself, it computes
  all. 'mosaic' is taken only where it is asked for. The environment variable
  `POSJAX_IMPLEMENTATION` names another default.

  Apart from time and memory, the implementations differ in one thing: 'dense' alone has
  forward-mode derivatives, and those of second order.

  Args:
    q: as for `attend`, or their shapes and dtypes alone.
    k: keys.
    v: values.
    scheme: a `Scheme`, or a line for `posjax.get`.
    params: the scheme's parameters.
    device: 'cpu', 'tpu', 'amd', 'ampere', 'ada', 'hopper' or 'blackwell'; by default that which
      JAX runs on.
    implementation: as for `attend`: all but 'dense' compute in tiles what they cannot.
    **options: all other arguments of `attend`, but `return_weights`.

  Returns:
    `(implementation, why)`. Where ids that a compiled program alone knows decide it when that runs,
    it is the implementation for ids that count up by one.

  Raises:
    ValueError: as `attend`; or if there is no such device.
    TypeError: as `attend`.

  Example:
    >>> x = jax.ShapeDtypeStruct((1, 4096, 8, 64), jnp.bfloat16)
    >>> pos = jnp.arange(4096)
    >>> chosen(x, x, x, 'rope', {}, q_pos=pos, k_pos=pos, device='hopper').implementation
    'cudnn'
    >>> chosen(x, x, x, 'rope', {}, q_pos=pos, k_pos=pos, device='cpu')
    Choice(implementation='blockwise', why='a CPU has no kernels')
  """
  _check_name(implementation)
  if device is not None:
    check_known('device', device, KNOWN)
  places_called = options.pop('model_places', False)
  scheme = inputs.read_scheme(scheme)
  inputs.check_places(scheme, places_called)
  sides = [
    inputs.Given(*(options.pop(f'{side}_{name}', None) for name in inputs.Given._fields))
    for side in 'qk'
  ]
  plain: dict[str, Any] = {'causal': False, 'window': None, 'logit_cap': None, 'scale': None}
  plain |= {'dropout_rate': 0.0, 'broadcast_dropout': False, **options}
  found: list[Choice] = []

  def trace(q, k, v):
    call = inputs.read_call(scheme, params, (q, k, v), *sides, **plain)
    target = here() if device is None else KNOWN[device]
    found.append(choose(call, target, tuple(IMPLEMENTATIONS), implementation))
    return ()

  jax.eval_shape(trace, q, k, v)
  return found[0]


def _alone(scheme: Scheme, rules: Rules, x: Operands) -> Any:
  """Attention of the queries of one device with all keys, inside `jax.shard_map`."""
  q, k = x.q.raw, x.k.raw
  call = Call(scheme, rules, x, q.shape, k.shape[1], x.v.dtype, padded=False)
  name = on_one_device(call, here()).implementation
  if name == 'blockwise':
    return engine.attend(scheme, rules, x, engine.in_loops)
  return IMPLEMENTATIONS[name](scheme, rules, x)


IMPLEMENTATIONS: dict[str, Compute] = {
  'dense': dense.attend,
  'blockwise': mesh.over_rows(engine.attend),
  'cudnn': mesh.over_rows(cudnn.attend),
  'pallas': mesh.over_rows(fused.attend),
  'mosaic': mesh.over_rows(functools.partial(fused.attend, mosaic=True)),
  'all_gather': functools.partial(mesh.all_gather, alone=_alone),
  'ring': mesh.ring,
}
