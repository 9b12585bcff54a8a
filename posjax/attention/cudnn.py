"""cuDNN's fused attention, through jax.nn: for what changes q and k alone (RoPE, PoPE, xPos, ...).

It knows indices, not ids: a causal mask and a window are right where queries and keys are the same
tokens, in order, of one document. Where that is known only when a compiled program runs, a test
there chooses between cuDNN and attention in tiles.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact

from posjax.attention import places
from posjax.attention.blockwise import engine
from posjax.attention.devices import Device, here
from posjax.attention.distances import known
from posjax.attention.inputs import Operands, Rules, Side
from posjax.math.differences import count_up
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

  def by_cudnn():
    limit = (1e30 / (max(abs(rules.scale), 1e-9) * q.shape[-1])) ** 0.5
    moderate = lambda heads: jnp.where(abs(heads) < limit, heads, jnp.nan)
    out = by_index(moderate(q), moderate(k), v, rules, 'cudnn')
    return places.output(scheme, x.params, out, x.q)  # place 4: values.output

  if _known_by_index(x.q, x.k, rules):
    return by_cudnn()
  fits = _by_index_alone(x.q, x.k, rules)
  return lax.cond(fits, by_cudnn, lambda: in_tiles().astype(v.dtype))


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
  if not found and _known_by_index(x.q, x.k, rules) is False:
    return 'the tokens are not those of one document, in order'
  return found


_HALVES = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}


def by_index(
  q: Inexact[Array, 'B T H D'],
  k: Inexact[Array, 'B S K D'],
  v: Inexact[Array, 'B S K E'],
  rules: Rules,
  implementation: Literal['cudnn', 'xla'],
) -> Inexact[Array, 'B T H E']:
  """jax.nn's attention, in which a token's order is its index.

  Heads are filled up with zeros to one width, a multiple of 8, which changes no product.

  Args:
    q: queries after place 2.
    k: keys after place 2.
    v: values.
    rules: of the attention, without a cap; where there is a window, nothing after a query is seen.
    implementation: of jax.nn: 'cudnn' or 'xla'.
  """
  window = None
  if rules.window is not None and rules.window.before is not None:
    window = (rules.window.before, 0)
  width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
  fill = lambda x: jnp.pad(x, (*((0, 0),) * 3, (0, width - x.shape[-1])))
  out = jax.nn.dot_product_attention(
    fill(q), fill(k), fill(v), scale=rules.scale, is_causal=_is_causal(rules),
    local_window_size=window, implementation=implementation,
  )  # fmt: skip
  return out[..., : v.shape[-1]]


def _is_causal(rules: Rules) -> bool:
  """Whether no query sees what comes after it; a window that ends at the query says so, too."""
  return rules.causal or (rules.window is not None and rules.window.after == 0)


def _by_index_alone(q: Side, k: Side, rules: Rules) -> Bool[Array, '']:
  """Whether indices decide visibility: one document, and, where it matters, tokens in order."""
  documents = [side.segments for side in (q, k)]
  one = jnp.stack([(s == documents[0][0, 0]).all() for s in documents]).all()
  one = one & (documents[0][0, 0] != 0)
  if not rules.causal and rules.window is None:
    return one
  if q.order.shape[1] != k.order.shape[1]:
    return jnp.array(False)
  return one & count_up(q.order) & (q.order == k.order).all()


def _known_by_index(q: Side, k: Side, rules: Rules) -> bool | None:
  """Whether indices decide visibility; None where that is known only when the program runs."""
  numbers = q.segments, k.segments, q.order, k.order
  return known(
    lambda *_: _by_index_alone(q, k, rules), *numbers[: 4 if rules.causal or rules.window else 2]
  )
