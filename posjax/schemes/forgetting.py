"""Forgetting: each token decides how much of what came before it stays; ALiBi that depends on data.

logits_ij + sum over l = j + 1 .. i of log f_l, with the gate f_l = sigmoid(x_l w + b) of each head,
computed from the input x_l of the token l to the layer.

The sum is c_i - c_j, with c the cumulative sum of log f, which is kept with each token and is all
that decoding needs. c falls without bound, and a float32 of -70,000 is off by 4e-3. Therefore c is
kept as two float32 numbers, of which the second is the rounding error of the first, and sums over
near tokens stay correct to 1e-6 in streams of millions of tokens. The gates of tokens before a
document, of padding or of other documents, cancel in the difference. Ids are not used.

Reference: Lin, Nikishin, He, Courville 2025, "Forgetting Transformer: Softmax Attention with a
Forget Gate", https://arxiv.org/abs/2503.02130, section 3; initial values (a kernel of standard
deviation 0.02 and an offset of 0, so that gates are about a half) from the authors' code. It is for
causal attention: without a mask, later keys have the opposite sign, and their logits rise. The
authors use it with and without RoPE, which is `rope+forgetting` here. The sum goes by the places of
tokens in the array, so any other order of the tokens of a document is refused.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from posjax.arguments import checked
from posjax.math.heads import at_least_float32
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('lin2025forgetting',)

# A sum to twice the digits of float32: (high, low), whose exact sum is the number.
Total = tuple[Float[Array, '...'], Float[Array, '...']]


def log_gates(
  kernel: Float[Array, 'M H'], offset: Float[Array, ' H'], x: Inexact[Array, '*B T M']
) -> Float[Array, '*B T H']:
  """log sigmoid(x kernel + offset), in float32 or wider.

  Args:
    kernel: w, one column for each head.
    offset: b, one number for each head; heads with large ones forget nothing.
    x: the inputs of the layer. Where they are complex, the real part is used.

  Example:
    >>> log_gates(jnp.zeros((2, 1)), jnp.zeros(1), jnp.ones((1, 3, 2))).round(4)[0, :, 0]
    Array([-0.6931, -0.6931, -0.6931], dtype=float32)
  """
  x = x.real.astype(at_least_float32(x.real, kernel))
  gates = jnp.einsum('...m,mh->...h', x, kernel, precision=jax.lax.Precision.HIGHEST)
  return jax.nn.log_sigmoid(gates + offset.reshape((1,) * (x.ndim - 1) + (-1,)))


def add(one: Total, other: Total) -> Total:
  """The sum of two totals, to twice the digits of their dtype.

  It is Knuth's exact sum of the high parts, whose rounding error is added to the low parts.

  Example:
    >>> high, low = add((jnp.float32(2**24), jnp.float32(0)), (jnp.float32(1), jnp.float32(0)))
    >>> int(high) + int(low)
    16777217
  """
  high, rounded = _exact_sum(one[0], other[0])
  low = rounded + (one[1] + other[1])
  return _exact_sum(high, low)


def cumulative(steps: Float[Array, '*B T H'], last: Total | None = None) -> Total:
  """The total of each token and all tokens before it.

  Args:
    steps: the number that each token adds.
    last: the total before the first token, [*B, H]; None is zero.

  Returns:
    (high, low), each shaped as `steps`.

  Example:
    >>> high, low = cumulative(jnp.full((4, 1), -0.5))
    >>> high[:, 0]
    Array([-0.5, -1. , -1.5, -2. ], dtype=float32)
  """
  total = jax.lax.associative_scan(add, (steps, jnp.zeros_like(steps)), axis=steps.ndim - 2)
  if last is None:
    return total
  high, low = last
  return add((jnp.expand_dims(high, -2), jnp.expand_dims(low, -2)), total)


def differences(
  q_total: tuple[Float[Array, 'B T H'], Float[Array, 'B T H']],
  k_total: tuple[Float[Array, 'B S H'], Float[Array, 'B S H']],
) -> Float[Array, 'B H T S']:
  """c_i - c_j for each pair, in which the high parts of near tokens cancel exactly.

  Args:
    q_total: c_i of the queries.
    k_total: c_j of the keys.

  Example:
    >>> total = cumulative(jnp.array([[[-1.0], [-2.0], [-3.0]]]))
    >>> differences(total, total)[0, 0]
    Array([[ 0.,  2.,  5.],
           [-2.,  0.,  3.],
           [-5., -3.,  0.]], dtype=float32)
  """
  q_high, q_low = (part.swapaxes(-1, -2)[..., :, None] for part in q_total)
  k_high, k_low = (part.swapaxes(-1, -2)[..., None, :] for part in k_total)
  return (q_high - k_high) + (q_low - k_low)


def _exact_sum(a, b):
  """a + b as (the rounded sum, the rounding error)."""
  total = a + b
  of_b = total - a
  return total, (a - (total - of_b)) + (b - of_b)


@checked
def scheme() -> Scheme:
  """Forget gates.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('logits',)
  """

  def init(key, dims):
    kernel = 0.02 * jax.random.normal(key, (dims.width, dims.num_heads), jnp.float32)
    return {'kernel': kernel, 'offset': jnp.zeros(dims.num_heads)}

  def prepare(params, x, pos, last, starts):
    return params, cumulative(log_gates(params['kernel'], params['offset'], x), last)

  def logits(params, logits, q, k, q_at, k_at):
    return logits + differences(q_at, k_at)

  return Scheme(init=init, prepare=prepare, logits=logits, traits=Traits(axes=0, mixes='T'))
