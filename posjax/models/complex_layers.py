"""Complex layers: dense, convolution, recurrent cells, layer norm, attention.

A complex linear map is a pair of real ones: (A + iB)(x + iy) = (Ax - By) + i(Bx + Ay). So every
parameter is a real array, and optimizers need not know. Activations, gates and norms act on real
and imaginary parts apart. Values are complex64.

B batch, T tokens, M width, N width of the output, H heads (K of the keys), D head width.

Reference: Wang et al. 2020, Encoding Word Order in Complex Embeddings,
https://arxiv.org/abs/1912.12333, appendix B, eqs. 10-14. Where its text leaves a choice, or the
authors' code (iclr-complex-order/complex-order 4c4ec246) differs, the layer says so.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Complex, Float, Inexact

from posjax import nnx as adapter
from posjax.chain import chain
from posjax.math.heads import product
from posjax.models import axes
from posjax.scheme import Scheme

# Each of the two kernels has half the variance, so that the output is as large as the input
# (Trabelsi et al. 2018, https://arxiv.org/abs/1705.09792, section 3.6).
_KERNEL_INIT = nnx.initializers.variance_scaling(0.5, 'fan_in', 'truncated_normal')

Real = Callable[..., Array]  # a function, or a layer, of real numbers
Carry = Any


def apart(function: Real, *z: Complex[Array, '*shape']) -> Complex[Array, '...']:
  """function(Re z) + i function(Im z).

  Example:
    >>> apart(jax.nn.relu, jnp.array([-1 + 2j, 3 - 4j]))
    Array([0.+2.j, 3.+0.j], dtype=complex64)
  """
  return jax.lax.complex(function(*(n.real for n in z)), function(*(n.imag for n in z)))


def linear(a: Real, b: Real, z: Complex[Array, '...']) -> Complex[Array, '...']:
  """(a + ib)(x + iy) = (a(x) - b(y)) + i(b(x) + a(y)), for linear a and b.

  Example:
    >>> linear(lambda x: 2 * x, lambda x: 3 * x, jnp.array([1 + 10j]))
    Array([-28.+23.j], dtype=complex64)
  """
  both = jnp.stack([z.real, z.imag])
  (ax, ay), (bx, by) = a(both), b(both)
  return jax.lax.complex(ax - by, bx + ay)


def attention_score(
  q: Inexact[Array, 'B T H D'], k: Inexact[Array, 'B S K D'], conjugate: bool = True
) -> Float[Array, 'B H T S']:
  """sqrt((Re z^2 + Im z^2) / D), z = q . conj(k): eq. 14. Its gradient is 0 where z is 0.

  Args:
    q: queries.
    k: keys.
    conjugate: without it z = q . k, as in the authors' code.

  Example:
    >>> z = jnp.array([[[[1 + 1j]]]])
    >>> attention_score(z, 1j * z).round(3)
    Array([[[[2.]]]], dtype=float32)
  """
  return jnp.abs(product(q, k if conjugate else k.conj())) * q.shape[-1] ** -0.5


class _Biased(nnx.Module):
  """c + id, the rows of `values`, and the activation: what follows the linear map in eq. 10."""

  def __init__(
    self,
    shape: tuple[int, ...],
    use_bias: bool,
    activation: Real | None,
    names: tuple[axes.Name, ...] = (),
  ):
    make = lambda: nnx.Param(jnp.zeros((2, *shape)), **axes.named(None, *names))
    self.values = nnx.data(make() if use_bias else None)
    self.activation = activation

  def __call__(self, z: Complex[Array, '*shape']) -> Complex[Array, '*shape']:
    if self.values is not None:
      bias = jax.lax.complex(*self.values[...])
      z = z + bias.reshape((1,) * (z.ndim - bias.ndim) + bias.shape)
    return z if self.activation is None else apart(self.activation, z)


class Dense(nnx.Module):
  """sigma(Ax - By + c) + i sigma(Bx + Ay + d): eq. 10.

  The paper shares weights by A = B, c = d; the code by one real layer for both parts, which is
  `apart(nnx.Linear(...), z)`.

  Args:
    width: M; or the sizes of several axes at the end of the input, such as heads.
    out_width: N; or the sizes of several axes.
    activation: sigma, a function of real numbers; None is the identity.
    use_bias: whether there are c and d.
    names: of the axes of both kernels, one for each dimension; they are whole without names.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    width: int | tuple[int, ...],
    out_width: int | tuple[int, ...],
    *,
    activation: Real | None = None,
    use_bias: bool = True,
    names: tuple[axes.Name, ...] = (),
    rngs: nnx.Rngs,
  ):
    inputs = (width,) if isinstance(width, int) else width
    outputs = (out_width,) if isinstance(out_width, int) else out_width
    names = names or (None,) * len(inputs + outputs)
    options: Any = {'axis': tuple(range(-len(inputs), 0)), 'use_bias': False, 'rngs': rngs}
    options |= {'kernel_init': _KERNEL_INIT, 'kernel_metadata': axes.named(*names)}
    make = lambda: nnx.LinearGeneral(inputs, outputs, **options)
    self.real, self.imag = make(), make()
    self.bias = _Biased(outputs, use_bias, activation, names[len(inputs) :])

  def __call__(self, z: Complex[Array, '...']) -> Complex[Array, '...']:
    """The same for every token."""
    return self.bias(linear(self.real, self.imag, z))


class Conv(nnx.Module):
  """A complex convolution over the tokens, with kernels A and B, biases and activation as `Dense`.

  The authors' code has one bias for both parts.

  Args:
    width: M.
    out_width: N, the number of filters.
    kernel_size: tokens that a filter sees.
    padding: 'VALID', narrow, as in the paper: T - kernel_size + 1 outputs; 'SAME' or 'CAUSAL'.
    activation: a function of real numbers; None is the identity.
    use_bias: whether there are biases.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    width: int,
    out_width: int,
    kernel_size: int,
    *,
    padding: str = 'VALID',
    activation: Real | None = None,
    use_bias: bool = True,
    rngs: nnx.Rngs,
  ):
    options = {'padding': padding, 'use_bias': False, 'kernel_init': _KERNEL_INIT, 'rngs': rngs}
    make = lambda: nnx.Conv(width, out_width, (kernel_size,), **options)
    self.real, self.imag = make(), make()
    self.bias = _Biased((out_width,), use_bias, activation)

  def __call__(self, z: Complex[Array, 'B T M']) -> Complex[Array, 'B t N']:
    """Slides over the tokens of each row."""
    return self.bias(linear(self.real, self.imag, z))


class _Cell(nnx.RNNCellBase):
  """The interface of `nnx.RNN`, for cells whose state starts with zeros."""

  hidden_width: int

  @property
  def num_feature_axes(self) -> int:
    """Axes of an input that are no batch: its width."""
    return 1

  def _zeros(self, input_shape: tuple[int, ...]) -> Complex[Array, '*batch N']:
    return jnp.zeros((*input_shape[:-1], self.hidden_width), jnp.complex64)


class RNNCell(_Cell):
  """h = f(W h + U z + b), f = sigma apart: eq. 12. For `nnx.RNN`.

  (The authors' code has a unitary recurrence with modReLU instead.)

  Args:
    width: M.
    hidden_width: N.
    activation: sigma.
    rngs: a stream for `params`.
  """

  def __init__(self, width: int, hidden_width: int, *, activation: Real = jnp.tanh, rngs: nnx.Rngs):
    self.hidden_width = hidden_width
    self.dense = Dense(hidden_width + width, hidden_width, activation=activation, rngs=rngs)

  def initialize_carry(self, input_shape: tuple[int, ...], *_: Any, **__: Any) -> Carry:
    """Zeros, for an input of that shape."""
    return self._zeros(input_shape)

  def __call__(self, carry: Carry, z: Complex[Array, '*batch M']) -> tuple[Carry, Array]:
    """Returns the next state, twice: to carry, and as output."""
    state = self.dense(jnp.concatenate([carry, z], axis=-1))
    return state, state


class LSTMCell(_Cell):
  """An LSTM whose gates, candidates and outputs are complex. For `nnx.RNN`.

  i, f, o = sigmoid apart, g = tanh apart, each of W h + U z + b; c = f * c + i * g;
  h = o * (tanh apart)(c).

  The paper says that the gates are as eq. 12, not what * is. Here it multiplies real with real and
  imaginary with imaginary parts, so that each part is a convex gate's, as in a real LSTM; a complex
  product would turn the memory at every step, and by gates of modulus up to sqrt(2). The authors'
  code, despite its name, has no gates.

  Args:
    width: M.
    hidden_width: N.
    forget_bias: added to both parts of f before its sigmoid; 1 remembers at first.
    rngs: a stream for `params`.
  """

  def __init__(self, width: int, hidden_width: int, *, forget_bias: float = 1.0, rngs: nnx.Rngs):
    self.hidden_width = hidden_width
    self.forget_bias = forget_bias
    self.dense = Dense(hidden_width + width, 4 * hidden_width, rngs=rngs)

  def initialize_carry(self, input_shape: tuple[int, ...], *_: Any, **__: Any) -> Carry:
    """Zeros, for an input of that shape: the memory and the output."""
    return self._zeros(input_shape), self._zeros(input_shape)

  def __call__(self, carry: Carry, z: Complex[Array, '*batch M']) -> tuple[Carry, Array]:
    """Returns the next memory and output, and the output."""

    def step(memory, i, f, g, o):  # of one part
      memory = jax.nn.sigmoid(f + self.forget_bias) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
      return jnp.stack([memory, jax.nn.sigmoid(o) * jnp.tanh(memory)])

    memory, output = carry
    gates = jnp.split(self.dense(jnp.concatenate([output, z], axis=-1)), 4, axis=-1)
    memory, output = apart(step, memory, *gates)
    return (memory, output), output


class GRUCell(_Cell):
  """A GRU whose gates, candidates and outputs are complex. For `nnx.RNN`.

  r, u = sigmoid apart of W h + U z + b; n = (tanh apart)(U_n z + b_n + r * W_n h);
  h = (1 - u) * n + u * h. What * is, as in `LSTMCell`. The paper has none; the reset gate
  multiplies the recurrent product, as in Flax.

  Args:
    width: M.
    hidden_width: N.
    rngs: a stream for `params`.
  """

  def __init__(self, width: int, hidden_width: int, *, rngs: nnx.Rngs):
    self.hidden_width = hidden_width
    self.input = Dense(width, 3 * hidden_width, rngs=rngs)
    self.state = Dense(hidden_width, 3 * hidden_width, use_bias=False, rngs=rngs)

  def initialize_carry(self, input_shape: tuple[int, ...], *_: Any, **__: Any) -> Carry:
    """Zeros, for an input of that shape."""
    return self._zeros(input_shape)

  def __call__(self, carry: Carry, z: Complex[Array, '*batch M']) -> tuple[Carry, Array]:
    """Returns the next state, twice: to carry, and as output."""

    def step(before, *products):  # of one part
      r_in, u_in, n_in, r_state, u_state, n_state = products
      r, u = jax.nn.sigmoid(r_in + r_state), jax.nn.sigmoid(u_in + u_state)
      return (1 - u) * jnp.tanh(n_in + r * n_state) + u * before

    thirds = (jnp.split(part, 3, axis=-1) for part in (self.input(z), self.state(carry)))
    state = apart(step, carry, *(third for part in thirds for third in part))
    return state, state


class LayerNorm(nnx.Module):
  """Layer norm of real and imaginary parts apart, each with its own scale and bias.

  The variance is divided by M and the epsilon is inside the root, as in Flax. The authors' text
  classifiers divide by M - 1 and add the epsilon to the root, which is a scale of sqrt((M - 1) / M)
  but for the epsilon; their parts share scale and bias. (The paper's text says batch normalization,
  also apart.)

  Args:
    width: M.
    epsilon: added to the variance.
    rngs: a stream for `params`.
  """

  def __init__(self, width: int, *, epsilon: float = 1e-6, rngs: nnx.Rngs):
    make = lambda: nnx.LayerNorm(width, epsilon=epsilon, use_fast_variance=False, rngs=rngs)
    self.real, self.imag = make(), make()

  def __call__(self, z: Complex[Array, '*rest M']) -> Complex[Array, '*rest M']:
    """The same for every token."""
    return jax.lax.complex(self.real(z.real), self.imag(z.imag))


def _modulus(params, logits, q, k, q_at, k_at):
  return jnp.abs(logits)


_MODULUS = Scheme(logits=_modulus)


def with_modulus(scheme: Scheme) -> Scheme:
  """The scheme for complex heads: its places, and then the modulus of the logits (eq. 14)."""
  return _MODULUS if scheme == Scheme() else chain(scheme, _MODULUS)


class Attention(adapter.Attention):
  """`posjax.nnx.Attention` with complex projections and values; the softmax is of real logits.

  The scheme makes real logits of complex ones at place 3. The default one knows no positions and
  takes their modulus (eq. 14), which is what cross-attention needs. The authors' code for text
  classifiers takes one real layer for both parts, leaves out residuals and norms of one part, and
  runs the layer twice with the parts exchanged: errors, not followed here.

  Args:
    width: M.
    num_heads: H.
    scheme: one with complex embeddings, or a chain with it.
    use_bias: whether the projections have the biases of eq. 10.
    rngs: a stream for `params`.
    options: as in `posjax.nnx.Attention`.
  """

  def __init__(
    self,
    width: int,
    num_heads: int,
    scheme: Scheme = _MODULUS,
    *,
    use_bias: bool = False,
    rngs: nnx.Rngs,
    **options: Any,
  ):
    super().__init__(width, num_heads, scheme, rngs=rngs, **options)
    dims = self.layer.dims
    heads, kv_heads = (dims.num_heads, dims.head_dim), (dims.num_kv_heads, dims.head_dim)
    m, h, d = options.get('sharding') or (None, None, None)
    # In place of the real projections.
    project: Any = functools.partial(Dense, use_bias=use_bias, names=(m, h, d), rngs=rngs)
    self.query = project(width, heads)
    self.key, self.value = project(width, kv_heads), project(width, kv_heads)
    self.out = project(heads, width, names=(h, d, m))

  def init_cache(self, *args: Any, **options: Any) -> Any:
    """As in `posjax.nnx.Attention`, for complex keys and values."""
    return super().init_cache(*args, **{'dtype': jnp.complex64, **options})
