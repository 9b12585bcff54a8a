"""cuDNN's fused attention, through jax.nn: for what changes q and k alone (RoPE, PoPE, xPos, ...).

It knows indices, not ids: a causal mask and a window are right where queries and keys are the same
tokens, in order, of one document. In a compiled program that is known only when it runs, so a test
there chooses between cuDNN and attention in tiles.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Inexact

from posjax.attention import places
from posjax.attention.blockwise import engine
from posjax.attention.inputs import Operands, Rules, Side
from posjax.math.differences import count_up
from posjax.scheme import Scheme, declares


def attend(scheme: Scheme, rules: Rules, x: Operands) -> Inexact[Array, 'B T H E']:
  """Attention by cuDNN where it can compute it, else in tiles.

  Args:
    scheme: any scheme.
    rules: the plain arguments of `attend`.
    x: its arrays.
  """
  in_tiles = functools.partial(engine.attend, scheme, rules, x)
  q, k = places.query_and_key(scheme, x.params, x.q, x.k)  # place 2
  v = places.value(scheme, x.params, x.v, x.k)  # place 4: values.value
  if refusal(scheme, q, k, v, rules, mask=x.mask, sinks=x.sinks, bias=x.bias):
    return in_tiles()

  def by_cudnn():
    out = by_index(q, k, v, rules, 'cudnn')
    return places.output(scheme, x.params, out, x.q)  # place 4: values.output

  fits = _by_index_alone(x.q, x.k, rules) & _are_moderate(q, k, rules)
  return lax.cond(fits, by_cudnn, lambda: in_tiles().astype(v.dtype))


def refusal(
  scheme: Scheme,
  q: Array,
  k: Array,
  v: Array,
  rules: Rules,
  *,
  mask: Array | None = None,
  sinks: Array | None = None,
  bias: Array | None = None,
) -> str | None:
  """Why cuDNN cannot do it, or None.

  Args:
    scheme: any scheme.
    q: queries after place 2.
    k: keys after place 2.
    v: values after `values.value`.
    rules: of the attention.
    mask: as in `attend`.
    sinks: as in `attend`.
    bias: as in `attend`.

  Example:
    >>> x = jnp.ones((1, 4, 2, 8))
    >>> refusal(Scheme(), x, x, x, Rules(1.0, True, None, None, 0.0))
    'there is no NVIDIA GPU'
  """
  used = {
    'logits': declares(scheme, 'logits'),
    'bias': scheme.bias,
    'values.add': scheme.values.add,
  }
  others = [name for name, function in used.items() if function]
  width, given = q.shape[-1], {'mask': mask, 'sinks': sinks, 'bias': bias}
  arrays = [name for name, array in given.items() if array is not None]
  whys = {
    'there is no NVIDIA GPU': jax.default_backend() != 'gpu' or not _is_nvidia(),
    f'the scheme has {" and ".join(others)}': bool(others),
    'it takes bfloat16 and float16 only': not {q.dtype, k.dtype, v.dtype} <= _HALVES,
    'it takes heads of one width, up to 128, a multiple of 8': (
      width > 128 or width % 8 > 0 or v.shape[-1] != width
    ),
    f'the call has {" and ".join(arrays)}': bool(arrays),
    'it knows no logit cap': rules.logit_cap is not None,
    'it knows no window that shows tokens after a query': (
      rules.window is not None and not _is_causal(rules)
    ),
    'its dropout would depend on the device': rules.dropout_rate > 0,
  }
  return next((why for why, refused in whys.items() if refused), None)


_HALVES = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16)}


def _is_nvidia() -> bool:
  return 'nvidia' in jax.devices()[0].device_kind.lower()


def by_index(
  q: Inexact[Array, 'B T H D'],
  k: Inexact[Array, 'B S K D'],
  v: Inexact[Array, 'B S K D'],
  rules: Rules,
  implementation: Literal['cudnn', 'xla'],
) -> Inexact[Array, 'B T H D']:
  """jax.nn's attention, in which a token's order is its index.

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
  return jax.nn.dot_product_attention(
    q, k, v, scale=rules.scale, is_causal=_is_causal(rules), local_window_size=window,
    implementation=implementation,
  )  # fmt: skip


def _is_causal(rules: Rules) -> bool:
  """Whether no query sees what comes after it; a window that ends at the query says so, too."""
  return rules.causal or (rules.window is not None and rules.window.after == 0)


def _are_moderate(q: Array, k: Array, rules: Rules) -> Bool[Array, '']:
  """Whether all logits are far from those that cuDNN may give to hidden pairs."""
  largest = lambda x: abs(x).max().astype(jnp.float32)
  return largest(q) * largest(k) * abs(rules.scale) * q.shape[-1] < 1e30


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
