"""Transformer-XL: queries, plus two trained vectors, attend to keys and to sinusoids of distances.

logits = ((q + u) . k + (q + v) . W_R R(distance)) / sqrt(D): in the paper's four terms content
with content, q . k; content with distance, q . W_R R; and what all queries share of both, u . k and
v . W_R R. R(distance) = [sin(distance w_k), cos(distance w_k)], w_k = base^(-2k/M), has the model's
width M and is not trained; W_R [M, H, D] is, in each layer.

Reference: Dai et al. 2019, https://arxiv.org/abs/1901.02860, section 3.3. The paper prints no
scale; the authors' code divides all four terms by sqrt(D). It draws u, v and W_R from N(0, 0.02^2),
shares u and v among the layers (`shared`; its TensorFlow scripts for two data sets untie them), and
multiplies queries with the projected R of a segment's distances, then shifts rows: right under a
causal mask and for consecutive ids alone. Here sines and cosines of a difference are factored into
its two sides, so that one product of heads as wide as D + M has all four terms, for any ids, mask
and memory. A memory is nothing special: its tokens are keys with ids of their own, before those of
the queries.

With `max_distance`, the code's clamp_len, farther tokens are as far as it. That has no factors:
W_R R is then Shaw's table of keys, made for the 2 max_distance + 1 distances and looked up. The
code clamps the past, all that its mask leaves; later keys we clip alike (as the authors' XLNet).
Shaw's key term is the special case u = v = 0 with a free table in place of W_R R.

Without the clamp it does not compose with what rotates heads (RoPE): that would rotate u and the
codes too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Num

from posjax.arguments import Positive, Size, checked
from posjax.math.angles import angles, frequencies
from posjax.math.heads import at_least_float32, product
from posjax.math.offsets import index, key_logits
from posjax.math.sinusoids import encoding, query_side, with_key_side
from posjax.scheme import Relative, Scheme, Tiled, Traits

SHIFT_INVARIANT = True
PAPERS = ('dai2019transformer',)


def widened_query(
  q: Inexact[Array, '*B T H D'],
  u: Float[Array, 'H D'],
  v: Float[Array, 'H D'],
  w_r: Float[Array, 'M H D'],
  angle: Float[Array, '*B T half'],
) -> Inexact[Array, '*B T H Wider']:
  """[q + u, query_side((q + v) . W_R)]: its product with [k, key_side] has all four terms.

  Args:
    q: queries, as projected.
    u: for the content.
    v: for the distance.
    w_r: the projection of R.
    angle: of the queries' positions, half = M/2.

  Returns:
    In the dtype of `q`; computed in float32.

  Example:
    >>> q, u, v = jnp.ones((1, 1, 1)), jnp.array([[2.0]]), jnp.array([[3.0]])
    >>> widened_query(q, u, v, jnp.array([[[1.0]], [[0.0]]]), jnp.array([[0.0]]))
    Array([[[ 3.,  0., -4.]]], dtype=float32)
  """
  coefficients = jnp.einsum('...hd,mhd->...hm', _plus(q, v), w_r)
  return jnp.concatenate([_plus(q, u), query_side(coefficients, angle)], axis=-1).astype(q.dtype)


def table(
  w_r: Float[Array, 'M H D'], max_distance: int, base: float = 10000.0
) -> Float[Array, 'H N D']:
  """W_R R(distance) from max_distance down to -max_distance, in the form of Shaw's table of keys.

  Args:
    w_r: the projection of R.
    max_distance: in tokens; N is 2 max_distance + 1.
    base: of the frequencies.

  Raises:
    ValueError: if M is odd.

  Example:
    >>> (100 * table(jnp.eye(2).reshape(2, 1, 2), 1)).astype(int)  # [sin, cos] of 1, 0 and -1
    Array([[[ 84,  54],
            [  0, 100],
            [-84,  54]]], dtype=int32)
  """
  distance = jnp.arange(max_distance, -max_distance - 1, -1)
  code = encoding(distance, _even(w_r.shape[0]), base, interleaved=False)
  return jnp.einsum('nm,mhd->hnd', code, w_r)


def _plus(q: Inexact[Array, '*B T H D'], vector: Float[Array, 'H D']) -> Inexact[Array, '*B T H D']:
  """q + vector, in float32 at least."""
  wide = at_least_float32(q)
  return q.astype(wide) + vector.reshape((1,) * (q.ndim - 2) + vector.shape)


def _even(width: int) -> int:
  if width % 2:
    raise ValueError(
      f'Transformer-XL needs as many sines as cosines, so an even width, but got {width}.'
    )
  return width


def _factored(base: float) -> Scheme:
  def angle(params, at: Num[Array, 'B T']):
    return angles(at, frequencies(_even(params['w_r'].shape[0]), base))

  def query(params, x, at):
    return widened_query(x, params['u'], params['v'], params['w_r'], angle(params, at))

  def key(params, x, at):
    return with_key_side(x, angle(params, at))

  def vectors(params, distance):
    code = encoding(distance, params['w_r'].shape[0], base, interleaved=False)
    return jnp.einsum('nm,mhd->nhd', code, params['w_r'])

  relative = Relative(
    content=lambda params, q: _plus(q, params['u']).astype(q.dtype),
    heads=lambda params, q: _plus(q, params['v']).astype(q.dtype),
    vectors=vectors,
  )
  return Scheme(query=query, key=key, traits=Traits(tiled=Tiled(relative=relative)))


def _clamped(max_distance: int, base: float) -> Scheme:
  def logits(params, logits, q, k, q_at, k_at):
    u = params['u'][None, None] * q.shape[-1] ** -0.5
    of_keys = product(jnp.broadcast_to(u, (q.shape[0], 1, *q.shape[2:])), k)
    relative = table(params['w_r'], max_distance, base)
    rows = index(q_at, k_at, max_distance)
    return logits + of_keys + key_logits(relative, _plus(q, params['v']), rows)

  return Scheme(logits=logits)


@checked
def scheme(
  shared: bool = True, max_distance: Size | None = None, base: Positive = 10000.0
) -> Scheme:
  """Relative positions with two trained vectors.

  A pair costs D + M multiplications, whatever its ids. Where they count up by one, 'blockwise'
  projects the T + S - 1 distances first and shifts rows within its tiles, as the authors do: less
  than 3D a pair. With `max_distance`, a pair costs D, a query 2 max_distance + 1 times D.

  Args:
    shared: one u and v for all layers, or one for each.
    max_distance: in tokens, positive: farther ones are as far as it; None clips nothing.
    base: of the frequencies; the authors' is 10000.

  Raises:
    ValueError: if an argument is out of range; where used, if the model's width is odd (that of
      the authors' code fails there); with `max_distance`, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('query', 'key')
    >>> places(scheme(max_distance=400))
    ('logits',)
  """

  def vectors(key, dims):
    u, v = 0.02 * jax.random.normal(key, (2, dims.num_heads, dims.head_dim), jnp.float32)
    return {'u': u, 'v': v}

  def projection(key, dims):
    shape = (_even(dims.width), dims.num_heads, dims.head_dim)
    return {'w_r': 0.02 * jax.random.normal(key, shape, jnp.float32)}

  def both(key, dims):
    vectors_key, projection_key = jax.random.split(key)
    return {**vectors(vectors_key, dims), **projection(projection_key, dims)}

  places = _factored(base) if max_distance is None else _clamped(max_distance, base)
  if shared:
    return places._replace(init=projection, init_model=vectors)
  return places._replace(init=both)
