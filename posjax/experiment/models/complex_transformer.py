"""The Transformer-XL of complex embeddings: complex layers, attention and memory, real logits.

Embeddings are waves, x_d e^(i (w_jd pos + t_jd)), or without positions x_d e^(i t_jd); a scheme
makes them (place 1) and takes the modulus of complex attention logits (place 3). It is chained with
one for the distances across segments: 'transformer_xl+complex_order', 'transformer_xl+
complex_vanilla'. All projections, the feed-forward layers and what is remembered are complex
(`complex_layers`); the modulus of the last state meets the output layer.

Reference: Wang et al. 2020, https://arxiv.org/abs/1912.12333, section 4.3 and appendix B, on Dai et
al. 2019, https://arxiv.org/abs/1901.02860. The paper gives no formula for the two together. Of the
authors' code (iclr-complex-order/complex-order 4c4ec246) we keep that phases count from the start
of each segment, and that what is remembered keeps its own: a frequency's gradient grows with the
position, and with that of a stream it would have no bounds. We differ, by the paper, in the score:
|z| / sqrt(D) of the whole z = (q + u) . conj(k) + (q + v) . W_R R (eq. 14), where that code has
|AC| + |BD| of unconjugated products with a slip in an imaginary part; in complex projections (eq.
10), where it projects both parts by real layers; and in no division of the last modulus by 1.5,
which the norm before it makes needless. u, v and W_R are real.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Complex, Float

from posjax.experiment.models.blocks import Parts, named
from posjax.experiment.models.complex_layers import Dense, LayerNorm, linear
from posjax.experiment.models.recurrent import RecurrentTransformer
from posjax.nnx import Attention

_KERNEL_INIT = nnx.initializers.variance_scaling(0.5, 'fan_in', 'truncated_normal')


class Projection(nnx.Module):
  """A + iB between widths and heads: eq. 10 without bias."""

  def __init__(self, inputs: tuple[int, ...], outputs: tuple[int, ...], *, rngs: nnx.Rngs):
    axes = tuple(range(-len(inputs), 0))
    options = {'axis': axes, 'use_bias': False, 'kernel_init': _KERNEL_INIT, 'rngs': rngs}
    make = lambda: nnx.LinearGeneral(inputs, outputs, **options)
    self.real, self.imag = make(), make()

  def __call__(self, z: Complex[Array, '...']) -> Complex[Array, '...']:
    """The same for every token."""
    return linear(self.real, self.imag, z)


class ComplexAttention(Attention):
  """Attention with complex projections; the scheme must make real logits of complex ones."""

  def __init__(self, *args: Any, rngs: nnx.Rngs, **options: Any):
    super().__init__(*args, rngs=rngs, **options)
    dims = self.layer.dims
    project: Any = functools.partial(Projection, rngs=rngs)  # in place of real ones
    heads, kv_heads = (dims.num_heads, dims.head_dim), (dims.num_kv_heads, dims.head_dim)
    self.query = project((dims.width,), heads)
    self.key = project((dims.width,), kv_heads)
    self.value = project((dims.width,), kv_heads)
    self.out = project(heads, (dims.width,))

  def init_cache(self, *args: Any, **options: Any) -> Any:
    """As in `Attention`, of complex numbers."""
    return super().init_cache(*args, **{'dtype': jnp.complex64, **options})


class ComplexFeedForward(nnx.Module):
  """down(activation(up(z))), the activation of real and imaginary parts apart."""

  def __init__(self, width: int, ff_width: int, activation: str, gated: bool, *, rngs: nnx.Rngs):
    if gated:
      raise ValueError('A complex feed-forward layer has no gate, but got gated=True.')
    function = named(jax.nn, activation, 'activation')
    self.up = Dense(width, ff_width, activation=function, rngs=rngs)
    self.down = Dense(ff_width, width, rngs=rngs)

  def __call__(self, z: Complex[Array, 'B T M']) -> Complex[Array, 'B T M']:
    """The same for every token."""
    return self.down(self.up(z))


def _norm(name: str) -> Any:
  if name != 'LayerNorm':
    raise ValueError(f"The norm of complex layers must be 'LayerNorm', but got {name!r}.")
  return LayerNorm


class ComplexTransformer(RecurrentTransformer):
  """A `RecurrentTransformer` of complex layers, with the same arguments and real logits."""

  parts = Parts(ComplexAttention, ComplexFeedForward, _norm)
  dtype = jnp.complex64

  def _check_embedded(self, x):
    if not jnp.iscomplexobj(x):
      raise ValueError('The layers of this model are complex, but the scheme embeds real numbers.')

  def _embedded_at(self, ids):
    return [each - each[:, :1] for each in ids]

  def _logits(self, x: Complex[Array, 'B T M']) -> Float[Array, 'B T V']:
    return super()._logits(jnp.abs(x))
