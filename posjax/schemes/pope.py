"""PoPE: content decides only the length of each dimension's vector, position only its angle.

logits = sum over c of mu(q_c) mu(k_c) cos(distance f_c + phase_c) / sqrt(D), mu = softplus, with D
frequencies f_c = base^(-c/D), twice as many as RoPE, and a trained phase in [0, 2 pi] for each head
and dimension. In RoPE the content of a pair has an angle of its own, which is added to that of the
distance. Here the distance and the phase alone decide where a product is largest. Each dimension
becomes two, (mu cos a, mu sin a), so that heads are widened to 2D.

Reference: Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025, Decoupling the "What" and "Where" With
Polar Coordinate Positional Embeddings, https://arxiv.org/abs/2509.10534, eq. 6. The paper's delta,
in [-2 pi, 0], is added to the angle of the key. Ours is phase = -delta, which is added to the angle
of the query, so that query heads that share a key head each have their own. Both start at 0 (the
paper: to reach beyond the trained length) or, with `uniform`, anywhere (for the trained length).
The phase is clipped where it is used. Its gradient passes at the ends of [0, 2 pi], as in PyTorch's
clamp, and is 0 outside, where a phase thus stays. The logits are scaled by 1/sqrt(D), not by
1/sqrt(2D).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, checked
from posjax.math.angles import angles, frequencies
from posjax.math.heads import at_least_float32
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('gopalakrishnan2025decoupling',)


def clipped(phase: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """The phase clipped to [0, 2 pi], with a gradient of 1 there, ends included, and 0 outside.

  Example:
    >>> clipped(jnp.array([-1.0, 0.0, 3.0]))
    Array([0., 0., 3.], dtype=float32)
  """
  inside = (phase >= 0) & (phase <= 2 * np.pi)
  return jnp.where(inside, phase, jax.lax.stop_gradient(jnp.clip(phase, 0, 2 * np.pi)))


def polar(
  x: Float[Array, '*B T H D'], angle: Float[Array, '*B T h D']
) -> Float[Array, '*B T H twice']:
  """[softplus(x) cos angle, softplus(x) sin angle].

  Args:
    x: queries or keys.
    angle: radians, for each head, or the same for all heads.

  Returns:
    Heads of twice the width, in the dtype of `x`; computed in float32.

  Example:
    >>> polar(jnp.zeros((1, 1, 1)), jnp.full((1, 1, 1), np.pi / 3)).round(4)  # log 2 (1/2, ..)
    Array([[[0.3466, 0.6003]]], dtype=float32)
  """
  size = jax.nn.softplus(x.astype(at_least_float32(x)))
  return jnp.concatenate([size * jnp.cos(angle), size * jnp.sin(angle)], axis=-1).astype(x.dtype)


@checked
def scheme(base: Positive = 10000.0, uniform: bool = False) -> Scheme:
  """Polar positions.

  Args:
    base: the base of the frequencies, as of RoPE; see `posjax.math.rotation`.
    uniform: whether phases start anywhere in [0, 2 pi], instead of at 0.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query', 'key')
  """

  def init(key, dims):
    shape = (dims.num_heads, dims.head_dim)
    if uniform:
      return {'phase': jax.random.uniform(key, shape, jnp.float32, maxval=2 * np.pi)}
    return {'phase': jnp.zeros(shape, jnp.float32)}

  def angle(x, at):
    return angles(at, frequencies(2 * x.shape[-1], base))[..., None, :]

  def query(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T']):
    return polar(x, angle(x, at) + clipped(params['phase'])[None, None])

  def key(params, x: Float[Array, 'B S K D'], at: Num[Array, 'B S']):
    return polar(x, angle(x, at))

  return Scheme(init=init, query=query, key=key)
