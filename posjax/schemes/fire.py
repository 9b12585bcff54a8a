"""FIRE: a small network of the distance, measured against how far the query could look back.

bias(i, j) = f(psi(i - j) / psi(max(L, i))), psi(x) = log(1 + c x), f an MLP from one number to H,
with ReLU. i is the query's id, counted from 0, and so the distance of its farthest key: for i >= L
the argument of f is in [0, 1] at any length, which is what lets it extrapolate (progressive
interpolation). For i < L the normaliser is constant, and FIRE a function of the distance alone.

Reference: Li et al. 2024, "Functional Interpolation for Relative Positions Improves Long Context
Transformers", https://arxiv.org/abs/2310.04418, section 3. f has two hidden layers of 32 in the
text and one in the published code as chuanyang-Zheng/DAPE keeps it; the offset of the last layer,
which no softmax sees, is left out. From that code: c = 0.1 at
first; a trained factor of L; |c| and |L|, so that both stay positive; 1e-6 in the denominator; and
initial weights of its framework, uniform within fan_in^-0.5. There L is 512 at first; a good one
depends on the length of training, so it has no default here. The text counts positions from 1, the
code from 0. The paper is about causal attention. Without a mask a later key counts as far as an
earlier one, |i - j| (the code's absolute value), and the argument of f may exceed 1.

Since the normaliser is the query's, FIRE depends on pairs. In tiles, f is computed from its
straight pieces (`posjax.math.piecewise_linear`): the same numbers, without the hidden units of each
pair.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, Size, checked
from posjax.math.differences import saturating_subtract
from posjax.math.heads import at_least_float32
from posjax.math.network import initial, network
from posjax.math.piecewise_linear import relu_network
from posjax.scheme import Scheme, Tiled, Traits

SHIFT_INVARIANT = False
EXAMPLE = 'fire(threshold=4.0, width=8)'
PAPERS = ('li2024functional',)

_LEAST = 1e-6  # added to the denominator, as in the published code


def normalised(
  q_pos: Num[Array, '*B T'],
  k_pos: Num[Array, '*B S'],
  c: Float[Array, ''],
  threshold: Float[Array, ''],
) -> Float[Array, '*B T S']:
  """psi(|i - j|) / psi(max(L, i)): what the network sees.

  Args:
    q_pos: ids i of the queries, in tokens, not negative.
    k_pos: ids j of the keys.
    c: of psi, per token; its absolute value is used.
    threshold: L, in tokens; its absolute value is used.

  Returns:
    float32 or wider; in [0, 1] for keys that are not ahead.

  Example:
    >>> pos = jnp.array([0, 4, 8])
    >>> normalised(pos, pos, jnp.array(1.0), jnp.array(4.0)).round(1)
    Array([[0. , 1. , 1.4],
           [1. , 0. , 1. ],
           [1. , 0.7, 0. ]], dtype=float32)
  """
  wide = at_least_float32(c, threshold)
  c, threshold = abs(c.astype(wide)), abs(threshold.astype(wide))
  distance = saturating_subtract(jnp.expand_dims(q_pos, -1), jnp.expand_dims(k_pos, -2))
  reach = jnp.maximum(threshold, q_pos.astype(wide))
  largest = jnp.log1p(c * reach) + _LEAST
  return jnp.log1p(c * abs(distance).astype(wide)) / jnp.expand_dims(largest, -1)


@checked
def scheme(
  threshold: Positive,
  width: Size = 32,
  num_layers: Size = 2,
  c: Positive = 0.1,
  shared: bool = False,
) -> Scheme:
  """Biases of a network of the normalised distance.

  Args:
    threshold: L at first, in tokens, positive: queries before it see distances alone. 512 in the
      published code.
    width: units of each hidden layer.
    num_layers: hidden layers.
    c: of psi at first, per token, positive.
    shared: one network for all layers (the paper's FIRE-S), instead of one for each.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(threshold=512.0))
    ('logits',)
  """

  def init(key, dims):
    weights = initial(key, (1, *(width,) * num_layers, dims.num_heads))
    return {**weights, 'c': jnp.float32(c), 'threshold_factor': jnp.ones(())}

  def adding(f):
    """Place 3 with the network f: `(params, x [B, T, S]) -> [H, B, T, S]`."""

    def logits(params, logits, q, k, q_at, k_at):
      x = normalised(q_at, k_at, params['c'], params['threshold_factor'] * threshold)
      return logits + f(params, x).swapaxes(0, 1)

    return logits

  logits = adding(lambda params, x: network(params, x[None], jax.nn.relu))
  made = Scheme(logits=logits, traits=Traits(tiled=Tiled(logits=adding(relu_network))))
  return made._replace(init_model=init) if shared else made._replace(init=init)
