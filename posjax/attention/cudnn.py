"""cuDNN's fused attention, through jax.nn: for what changes q and k alone (RoPE, PoPE, xPos, ...).

It knows indices and lengths, not ids: a causal mask and a window are right where queries and keys
are the same tokens, in order, and each row is one document with its padding behind it. Where that
is known only when a compiled program runs, a test there chooses between cuDNN and tiles.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact, Int

from posjax.attention import places
from posjax.attention.blockwise import engine
from posjax.attention.devices import Device, here
from posjax.attention.inputs import Operands, Rules, Side
from posjax.known import known
from posjax.math.differences import rises_by_one
from posjax.scheme import Scheme, declares


def attend(scheme: Scheme, rules: Rules, x: Operands) -> Inexact[Array, 'B T H E']:
  """Attention by cuDNN where it can compute it, else in tiles.

  Heads so large that their logits could reach those that cuDNN gives to hidden pairs, 1e30 and
  more, are NaN.

  Args:
    scheme: any scheme.
    rules: the plain arguments of `attend`.
    x: its arrays.
  """
  in_tiles = functools.partial(engine.attend, scheme, rules, x)
  q, k = places.query_and_key(scheme, x.params, x.q, x.k)  # place 2
  v = places.value(scheme, x.params, x.v, x.k)  # place 4: values.value
  if refusal(scheme, q, k, v, rules, x, here()):
    return in_tiles()

  def by_cudnn(padded):
    limit = (1e30 / (max(abs(rules.scale), 1e-9) * q.shape[-1])) ** 0.5
    moderate = lambda heads: jnp.where(abs(heads) < limit, heads, jnp.nan)
    if not padded:
      out = by_index(moderate(q), moderate(k), v, rules, 'cudnn')
    else:
      # What cuDNN leaves behind the end of a row, also in gradients, is not read.
      real = lambda side, heads: jnp.where((side.segments != 0)[..., None, None], heads, 0)
      heads = real(x.q, moderate(q)), real(x.k, moderate(k)), real(x.k, v)
      lengths = _lengths(x.q, q.shape[0]), _lengths(x.k, q.shape[0])
      out = real(x.q, by_index(heads[0], heads[1], heads[2], rules, 'cudnn', lengths))
    return places.output(scheme, x.params, out, x.q)  # place 4: values.output

  if _known(_whole, x.q, x.k, rules):
    return by_cudnn(padded=False)
  if _known(_padded_behind, x.q, x.k, rules):
    return by_cudnn(padded=True)
  fits = _padded_behind(x.q, x.k, rules)
  return lax.cond(fits, lambda: by_cudnn(padded=True), lambda: in_tiles().astype(v.dtype))


def refusal(
  scheme: Scheme, q: Any, k: Any, v: Any, rules: Rules, x: Operands, device: Device
) -> str:
  """The reason why cuDNN cannot compute a call; '' if it can, or if ids decide when it runs.

  Args:
    scheme: any scheme.
    q: queries after place 2, or their shape and dtype.
    k: keys after place 2.
    v: values after `values.value`.
    rules: of the attention.
    x: its arrays.
    device: where it runs.
  """
  used = {
    'logits': declares(scheme, 'logits'),
    'bias': scheme.bias,
    'values.add': scheme.values.add,
  }
  others = [name for name, function in used.items() if function]
  given = {'mask': x.mask, 'sinks': x.sinks, 'bias': x.bias}
  arrays = [name for name, array in given.items() if array is not None]
  widest = 256 if (device.capability or (0, 0)) >= (9, 0) else 128
  reasons = {
    'it needs an NVIDIA GPU from Ampere on': (device.capability or (0, 0)) < (8, 0),
    f'the scheme has {" and ".join(others)}': bool(others),
    'it takes bfloat16 and float16 only': not {q.dtype, k.dtype, v.dtype} <= _HALVES,
    f'it takes heads of a width up to {widest} on this GPU': (
      max(q.shape[-1], v.shape[-1]) > widest
    ),
    f'the call has {" and ".join(arrays)}': bool(arrays),
    'it has no logit cap': rules.logit_cap is not None,
    'it has no window that shows tokens after a query': (
      rules.window is not None and not _is_causal(rules)
    ),
    'its dropout would depend on the device': rules.dropout_rate > 0,
  }
  found = next((reason for reason, refused in reasons.items() if refused), '')
  if not found and _known(_padded_behind, x.q, x.k, rules) is False:
    return 'the tokens of a row are not those of one document, in order, before all padding'
  return found


_HALVES = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}


def by_index(
  q: Inexact[Array, 'B T H D'],
  k: Inexact[Array, 'B S K D'],
  v: Inexact[Array, 'B S K E'],
  rules: Rules,
  implementation: Literal['cudnn', 'xla'],
  lengths: tuple[Int[Array, ' B'], Int[Array, ' B']] | tuple[None, None] = (None, None),
) -> Inexact[Array, 'B T H E']:
  """jax.nn's attention, in which a token's order is its index.

  Heads are filled up with zeros to one width, a multiple of 8, which changes no product.

  Args:
    q: queries after place 2.
    k: keys after place 2.
    v: values.
    rules: of the attention, without a cap; where there is a window, nothing after a query is seen.
    implementation: of jax.nn: 'cudnn' or 'xla'.
    lengths: of each row of the queries, and of the keys; (None, None) where no row has padding.
  """
  window = None
  if rules.window is not None and rules.window.before is not None:
    window = (rules.window.before, 0)
  width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
  fill = lambda x: jnp.pad(x, (*((0, 0),) * 3, (0, width - x.shape[-1])))
  out = jax.nn.dot_product_attention(
    fill(q), fill(k), fill(v), scale=rules.scale, is_causal=_is_causal(rules),
    local_window_size=window, implementation=implementation,
    query_seq_lengths=lengths[0], key_value_seq_lengths=lengths[1],
  )  # fmt: skip
  return out[..., : v.shape[-1]]


def _is_causal(rules: Rules) -> bool:
  """Whether no query sees what comes after it; a window that ends at the query says so, too."""
  return rules.causal or (rules.window is not None and rules.window.after == 0)


def _whole(q: Side, k: Side, rules: Rules) -> Bool[Array, '']:
  """Whether indices decide visibility, and there is no padding."""
  padding = [(side.segments == 0).any() for side in (q, k)]
  return _padded_behind(q, k, rules) & ~padding[0] & ~padding[1]


def _padded_behind(q: Side, k: Side, rules: Rules) -> Bool[Array, '']:
  """Whether indices and lengths decide visibility.

  Each row is one document, before all padding, and, where it matters, its tokens are in order. A
  row that is padding alone is none.
  """
  is_causal = rules.causal or rules.window is not None
  if is_causal and q.order.shape[1] != k.order.shape[1]:
    return jnp.array(False)
  found = jnp.array(True)
  for side in (q, k):
    segments, index = side.segments, jnp.arange(side.segments.shape[1], dtype=jnp.int32)[None]
    real = segments != 0
    found &= (segments == jnp.where(real, q.segments[:, :1], 0)).all()
    found &= (real == (index < real.sum(-1, keepdims=True))).all() & real[:, 0].all()
    if is_causal:
      found &= ((side.order == q.order) | ~real).all()
      found &= (rises_by_one(side.order) | ~real[:, 1:]).all()
  return found


def _lengths(side: Side, batch: int) -> Int[Array, ' B']:
  return jnp.broadcast_to((side.segments != 0).sum(-1, dtype=jnp.int32), (batch,))


def _known(test: Callable[..., Array], q: Side, k: Side, rules: Rules) -> bool | None:
  """The answer of a test of both sides; None where it is known only when the program runs."""
  numbers = q.segments, k.segments, q.order, k.order
  needed = numbers[: 4 if rules.causal or rules.window else 2]
  return known(lambda *_: test(q, k, rules), *needed)
