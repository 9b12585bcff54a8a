"""`attend`, the one door to attention: it checks the arguments and chooses an implementation.

q [B, T, H, D], k and v [B, S, K, D], ids [B, T] and [B, S], logits [B, H, T, S]; B stands for any
leading axes, and K divides H. `True` in a mask means "may attend". A query that may attend to no
key gets zeros, and has zero gradients.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax.attention import cudnn, dense, distances, inputs, padding, values
from posjax.attention.blockwise import engine
from posjax.attention.inputs import Operands, Rules
from posjax.attention.pallas import fused
from posjax.attention.parameters import Trusted, check_call
from posjax.scheme import At, Ids, Params, PRNGKey, Scheme, check_key


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

  output(softmax(cap(logits(scale * query(q) . key(k)) + scheme.bias) + bias) value(v)) + values, in
  float32: `query`, `key`, `logits`, `value`, `output` and `values` are the scheme's, too. A logit
  of -inf hides its pair, whatever the cap; all finite logits keep their order.

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
      kernels, on TPUs and Hopper GPUs; 'cudnn': by cuDNN. These two compute in tiles where they
      have to: `attention.pallas.fused.chosen` and `attention.cudnn.refusal` say why. None takes
      the one that `chosen` names, or 'dense' for weights.
    return_weights: whether to return the weights of the softmax, too, for pictures and tests; only
      'dense' has them.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer.

  Returns:
    [*B, T, H, E], in the dtype of `v`; of another width where the scheme widens values.
    With `return_weights`, this and the weights, float32 [*B, H, T, S], before any dropout; a hidden
    pair has the weight 0. What place 4 adds to the output is not in them.

  Raises:
    ValueError: if shapes or parameters do not fit, a number is out of its range, an argument lacks
      what it needs, or known ids are 2^31 apart, where the scheme sees distances; in a compiled
      program such distances are 2^31 - 1.
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
  q, k, v, mask, bias, sinks = inputs.arrays(q=q, k=k, v=v, mask=mask, bias=bias, sinks=sinks)
  q_pos, k_pos, q_order, k_order, q_segments, k_segments = inputs.token_numbers(
    q_pos=q_pos, k_pos=k_pos, q_order=q_order, k_order=k_order,
    q_segments=q_segments, k_segments=k_segments,
  )  # fmt: skip
  inputs.check_present(q=q, k=k, v=v, q_pos=q_pos, k_pos=k_pos)
  inputs.check_layout(q, k, q_pos, k_pos, scheme.axes)
  inputs.check_heads(q, k, v)
  inputs.check_ids(q_pos=(q_pos, q), k_pos=(k_pos, k))
  if not isinstance(params, Trusted):
    params = Trusted(check_call(scheme, params, q, k, q_pos, k_pos, q_at, k_at))
  params, zero_padding = params
  dropout = dropout_rate, dropout_key, broadcast_dropout
  rules = inputs.make_rules(q, scale, causal, window, logit_cap, *dropout)
  if rules.causal or rules.window is not None:
    inputs.check_order(scheme, q, q_pos, k_pos, q_order, k_order)
    orders = {'q_pos': q_pos, 'k_pos': k_pos}
    inputs.check_known_order(**orders, q_order=q_order, k_order=k_order)
  inputs.check_segments(q_segments, k_segments)
  sinks = inputs.make_sinks(sinks, q.shape[-2])
  if dropout_key is not None:
    check_key('dropout_key', dropout_key)
  compute = _implementation(implementation, rules, q, k, return_weights)
  mask = None if mask is None else inputs.make_mask(mask, q, k)
  bias = None if bias is None else inputs.make_bias(bias, q, k)
  q_shown, k_shown = padding.shown(mask)
  q_rest, k_rest = (q_pos, q_at, q_order, q_segments), (k_pos, k_at, k_order, k_segments)
  q_side = inputs.make_side('q', q, scheme, scheme.query, params, *q_rest, q_shown)
  k_side = inputs.make_side('k', k, scheme, scheme.key, params, *k_rest, k_shown, zero_padding)
  inputs.check_widths(q_side, k_side)
  distances.check_known(scheme, q_side, k_side)
  if 0 in (*q.shape, *v.shape):  # no numbers to compute, or no key to see
    width = values.width(scheme, params, v, q_side, k_side)
    out = jnp.zeros((*q.shape[:-1], width), v.dtype)
    return (out, jnp.zeros(_pairs(q, k), jnp.float32)) if return_weights else out
  flat_v = v.reshape(k_side.raw.shape[:-1] + v.shape[-1:])
  padded = q_segments is not None or mask is not None
  if padded and (mask is not None or not zero_padding):
    flat_v = padding.blanked(flat_v, k_side.segments)
  x = Operands(params, q_side, k_side, flat_v, mask, sinks, dropout_key, bias)
  compute = values.turning(compute, scheme)
  out, weights = compute(scheme, rules, x) if return_weights else (compute(scheme, rules, x), None)
  out = padding.blanked(out, q_side.segments) if padded else out
  out = out.reshape(*q.shape[:-1], out.shape[-1]).astype(v.dtype)
  return out if weights is None else (out, weights.reshape(_pairs(q, k)))


def _pairs(q: Array, k: Array) -> tuple[int, ...]:
  """The shape of the weights, [*B, H, T, S]."""
  return (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])


def _implementation(
  name: str | None, rules: Rules, q: Array, k: Array, weights: bool
) -> Callable[[Scheme, Rules, Operands], Any]:
  """The implementation of that name, or by default the one that is chosen by the lengths.

  Raises:
    TypeError: if `weights`, which is `return_weights`, is neither True nor False.
    ValueError: if there is none of that name, or it cannot compute with a scale that is traced, or
      does not hold the weights to return.
  """
  if name is not None and not (isinstance(name, str) and name in IMPLEMENTATIONS):
    raise ValueError(
      f'The implementation must be None or one of {sorted(IMPLEMENTATIONS)}, but got {name!r}.'
    )
  if not isinstance(weights, bool):
    raise TypeError(f'return_weights must be True or False, but got {weights!r}.')
  if weights:
    if name not in (None, 'dense'):
      raise ValueError(
        f"return_weights=True needs implementation='dense', or None, but got {name!r}."
      )
    return dense.attend_and_weigh
  name = name or chosen(q.shape[-3], k.shape[-3])
  if name != 'dense' and isinstance(rules.scale, jax.core.Tracer):
    raise ValueError(f"A traced scale needs implementation='dense', but got {name!r}.")
  return IMPLEMENTATIONS[name]


def chosen(queries: int, keys: int, platform: str | None = None) -> str:
  """The implementation that `attend` takes by default: 'dense' for few pairs, else 'blockwise'.

  Few are 16 queries, for any number of keys; or, for each head, 2^15 pairs on a CPU, where tiles
  were measured to be faster from 256 tokens on; 2^20 on a GPU, where each tile costs the time to
  launch it, and cuDNN's or the fused kernels are 150 times as fast as tiles (RESULTS.md); and 2^18
  on a TPU, where nothing has been measured. 'cudnn' and 'pallas' are taken only if asked for: they
  do not run on every GPU. Beside time and memory, the implementations differ in one thing: 'dense'
  alone has forward-mode derivatives, and those of second order.

  Args:
    queries: T.
    keys: S.
    platform: 'cpu', 'gpu' or 'tpu'; by default what JAX runs on.

  Example:
    >>> chosen(128, 128, 'cpu'), chosen(1, 100_000, 'cpu'), chosen(256, 256, 'cpu')
    ('dense', 'dense', 'blockwise')
    >>> chosen(1024, 1024, 'gpu'), chosen(2048, 2048, 'gpu')
    ('dense', 'blockwise')
  """
  few = {'cpu': 2**15, 'gpu': 2**20}.get(platform or jax.default_backend(), 2**18)
  return 'dense' if queries <= 16 or queries * keys <= few else 'blockwise'


IMPLEMENTATIONS = {
  'dense': dense.attend,
  'blockwise': engine.attend,
  'cudnn': cudnn.attend,
  'pallas': fused.attend,
}
