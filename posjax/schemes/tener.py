"""TENER: attention that is not scaled, and that tells left from right by a sine of the distance.

logits = (q + u) . k + (q + v) . R(distance), with R(t) = [sin(t w_i), cos(t w_i)], as wide as a
head, the same for all heads, neither trained nor projected; not divided by sqrt(D). R(-t) is R(t)
with its sines negated. A projection of R (as in Transformer-XL) would mix sines with cosines; here
only the first half of q + v, which is multiplied by the sines, sees the direction. u and v are
trained, one of each for each head.

Reference: Yan, Deng, Li, Qiu 2019, https://arxiv.org/abs/1911.04474, on the adapted Transformer.
Paper and the authors' code differ, and each difference is an argument, whose default is the paper:

  paper                                               code (fastnlp/TENER)
  R(q_pos - k_pos)                                    R(k_pos - q_pos)      key_minus_query=True
  w_i = 10000^(-2i/D), i = 0 .. D/2 - 1               10000^(-i/(D/2 - 1))  endpoint=True
  two terms of position, q . R and v . R              ... + k . R(-offset)  key_term=True

The two directions describe the same models: negating the half of W_Q, W_K, u and v that the sines
are multiplied by turns one into the other. The keys are whatever the layer passes: slices of its
input in the paper and in one version of the code, projected in another; none of them has an output
projection. Their ablation, divided by sqrt(D), is `scaled=True`. A further one, `even=True`, is not
theirs: the sines of R are zero, so that nothing tells left from right. In the code u is called
r_r_bias and v r_w_bias, the reverse of Transformer-XL's names. Initial values are Glorot's normal
ones, as in the code. The last dimension of a head of odd width is not multiplied by R (the code
pads R with a zero).

Do not chain it with a scheme that rotates heads (RoPE), which would rotate u and the codes too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, checked
from posjax.math.angles import angles, frequencies
from posjax.math.heads import at_least_float32
from posjax.math.sinusoids import query_side, with_key_side
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('yan2019tener',)


def widened_query(
  q: Float[Array, 'B T H D'],
  u: Float[Array, 'H D'],
  v: Float[Array, 'H D'],
  angle: Float[Array, 'B T half'],
  even: bool = False,
) -> Float[Array, 'B T H Wider']:
  """[q + u, the queries' side of (q + v) . R].

  Its product with [k, the keys' side] is (q + u) . k + (q + v) . R(distance); for the two sides see
  `posjax.math.sinusoids`.

  Args:
    q: queries, as projected.
    u: the vector of each head that is added for the content.
    v: the vector of each head that is added for the distance.
    angle: the angles of the queries' positions, in radians; half = D // 2.
    even: whether the sines of R are zero.

  Example:
    >>> q, u, v = jnp.zeros((1, 1, 1, 2)), jnp.array([[5.0, 6.0]]), jnp.array([[0.0, 1.0]])
    >>> widened_query(q, u, v, jnp.zeros((1, 1, 1)))
    Array([[[[5., 6., 1., 0.]]]], dtype=float32)
  """
  side = paired_query_side(q + v[None, None], angle, even)
  return jnp.concatenate([q + u[None, None], side], axis=-1)


def paired_query_side(
  x: Float[Array, 'B T H D'], angle: Float[Array, 'B T half'], even: bool = False
) -> Float[Array, 'B T H Pairs']:
  """`query_side` of x . R, without the last dimension of a head of odd width.

  Args:
    x: what R is multiplied by.
    angle: the angles of the positions, in radians.
    even: whether the sines of R are zero: what they would be multiplied by is 0 then.
  """
  half = angle.shape[-1]
  pairs = x[..., : 2 * half]
  return query_side(pairs.at[..., :half].set(0) if even else pairs, angle)


@checked
def scheme(
  scaled: bool = False,
  key_term: bool = False,
  endpoint: bool = False,
  key_minus_query: bool = False,
  even: bool = False,
  base: Positive = 10000.0,
) -> Scheme:
  """Attention without the factor 1/sqrt(D), in which a key before and one after differ.

  With `key_term`, `endpoint` and `key_minus_query` set, it is that of the authors' code.

  Queries are multiplied by sqrt(D), because `attend` divides by it: leave its scale at the default.
  The heads become twice as wide, or three times as wide with the key term.

  Args:
    scaled: whether the logits are divided by sqrt(D), the ablation "w/ scale".
    key_term: whether k . R of the opposite distance is added.
    endpoint: whether the frequencies are base^(-i/(D/2 - 1)), instead of base^(-2i/D).
    key_minus_query: whether R is of k_pos - q_pos, instead of q_pos - k_pos.
    even: whether the sines of R are zero: a key before and one as far after are then alike. Half of
      v, which the sines would be multiplied by, then receives no gradient.
    base: the base of the frequencies; 10000 in paper and code.

  Raises:
    ValueError: if the base is not positive; where used, if a head is narrower than 2.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query', 'key')
  """

  def angle(width, at: Num[Array, 'B T']):
    if width < 2:
      raise ValueError(f'TENER needs a sine and a cosine, so heads of width 2, but got {width}.')
    forward = angles(at, frequencies(width, base, endpoint=endpoint))
    return -forward if key_minus_query else forward

  def query(params, x, at):
    here = angle(x.shape[-1], at)
    wide = x.astype(at_least_float32(x))
    widened = widened_query(wide, params['u'], params['v'], here, even)
    widened = with_key_side(widened, here) if key_term else widened
    widened = widened if scaled else widened * x.shape[-1] ** 0.5
    return widened.astype(x.dtype)

  def key(params, x, at):
    here = angle(x.shape[-1], at)
    wide = x.astype(at_least_float32(x))
    widened = with_key_side(wide, here)
    if key_term:
      widened = jnp.concatenate([widened, paired_query_side(wide, here, even)], axis=-1)
    return widened.astype(x.dtype)

  def init(key, dims):
    normal = jax.random.normal(key, (2, dims.num_heads, dims.head_dim), jnp.float32)
    u, v = normal * (2 / (dims.num_heads + dims.head_dim)) ** 0.5
    return {'u': u, 'v': v}

  return Scheme(init=init, query=query, key=key)
