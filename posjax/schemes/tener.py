"""TENER: attention that is not scaled, and that tells left from right by a sine of the distance.

logits = (q + u) . k + (q + v) . R(distance), with R(t) = [sin(t w_i), cos(t w_i)], as wide as a
head, the same for all heads, neither trained nor projected; not divided by sqrt(D). R(-t) is R(t)
with its sines negated: a projection of R (as in Transformer-XL) would mix them with the cosines,
here the first half of q + v alone meets the direction. u and v are trained, one each per head.

Reference: Yan, Deng, Li, Qiu 2019, https://arxiv.org/abs/1911.04474, on the adapted Transformer.
Paper and the authors' code differ, and each difference is an argument, whose default is the paper:

  paper                                               code (fastnlp/TENER)
  R(q_pos - k_pos)                                    R(k_pos - q_pos)      key_minus_query=True
  w_i = 10000^(-2i/D), i = 0 .. D/2 - 1               10000^(-i/(D/2 - 1))  endpoint=True
  two terms of position, q . R and v . R              ... + k . R(-offset)  key_term=True

The direction is no difference of models: negating the sines' half of W_Q, W_K, u and v makes one of
the other. The keys are whatever the layer gives: slices of its input in the paper and in one
version of the code, projected in another; none has an output projection. Their ablation, divided
by sqrt(D), is `scaled=True`. In the code u is called r_r_bias and v r_w_bias, the reverse of
Transformer-XL's. Initial values are Glorot's normal ones, as there. Of an odd head the last number
meets no R (the code pads R with a zero).

It is no partner for what turns heads (RoPE): that would turn u and the codes too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.angles import angles, frequencies
from posjax.scheme import Scheme
from posjax.schemes.transformer_xl import turned, with_phase

SHIFT_INVARIANT = True


def widened_query(
  q: Float[Array, 'B T H D'],
  u: Float[Array, 'H D'],
  v: Float[Array, 'H D'],
  angle: Float[Array, 'B T half'],
) -> Float[Array, 'B T H Wider']:
  """[q + u, turned(q + v)]: its product with [k, phase] is (q + u) . k + (q + v) . R(distance).

  Args:
    q: queries, as projected.
    u: for the content.
    v: for the distance.
    angle: of the queries' positions, in radians; half = D // 2.

  Example:
    >>> q, u, v = jnp.zeros((1, 1, 1, 2)), jnp.array([[5.0, 6.0]]), jnp.array([[0.0, 1.0]])
    >>> widened_query(q, u, v, jnp.zeros((1, 1, 1)))
    Array([[[[5., 6., 1., 0.]]]], dtype=float32)
  """
  return jnp.concatenate([q + u[None, None], coded(q + v[None, None], angle)], axis=-1)


def coded(
  x: Float[Array, 'B T H D'], angle: Float[Array, 'B T half']
) -> Float[Array, 'B T H Even']:
  """One side of x . R: its product with the other side's phase. See `transformer_xl.turned`."""
  return turned(x[..., : 2 * angle.shape[-1]], angle)


def scheme(
  scaled: bool = False,
  key_term: bool = False,
  endpoint: bool = False,
  key_minus_query: bool = False,
  base: float = 10000.0,
) -> Scheme:
  """Unscaled, direction-aware attention; all as in the code with the middle three True.

  Queries are multiplied by sqrt(D), which `attend` divides by: leave its scale at the default. The
  heads become twice as wide, three times with the key term.

  Args:
    scaled: divide by sqrt(D), the ablation "w/ scale".
    key_term: add k . R of the opposite offset.
    endpoint: frequencies base^(-i/(D/2 - 1)), instead of base^(-2i/D).
    key_minus_query: R of k_pos - q_pos, instead of q_pos - k_pos.
    base: of the frequencies; 10000 in paper and code.

  Raises:
    ValueError: if the base is not positive; where used, if a head is narrower than 2.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query', 'key')
  """
  if not base > 0:
    raise ValueError(f"TENER's base must be positive, but got {base}.")

  def angle(width, at: Num[Array, 'B T']):
    if width < 2:
      raise ValueError(f'TENER needs a sine and a cosine, so heads of width 2, but got {width}.')
    turns = angles(at, frequencies(width, base, endpoint=endpoint))
    return -turns if key_minus_query else turns

  def query(params, x, at):
    here = angle(x.shape[-1], at)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    placed = widened_query(wide, params['u'], params['v'], here)
    placed = with_phase(placed, here) if key_term else placed
    placed = placed if scaled else placed * x.shape[-1] ** 0.5
    return placed.astype(x.dtype)

  def key(params, x, at):
    here = angle(x.shape[-1], at)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    placed = with_phase(wide, here)
    placed = jnp.concatenate([placed, coded(wide, here)], axis=-1) if key_term else placed
    return placed.astype(x.dtype)

  def init(key, dims):
    normal = jax.random.normal(key, (2, dims.num_heads, dims.head_dim), jnp.float32)
    u, v = normal * (2 / (dims.num_heads + dims.head_dim)) ** 0.5
    return {'u': u, 'v': v}

  return Scheme(init=init, query=query, key=key, axes=1)
