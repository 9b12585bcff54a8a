"""Factored: content meets content and position meets position, and the two never cross.

q . k = (q_c . k_c + q_p . k_p) / sqrt(2 D): to each projected head, q_c and k_c of width D, comes a
half of position as wide, q_p = W_q p(q_pos) and k_p = W_k p(k_pos). The table p, as wide as the
model, is learned and shared by all layers; W_q and W_k are each layer's. No key sees another
token's position through its content, nor the reverse.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052, section 3 ("factored"). The
paper divides by sqrt(d_k), the width of a whole head: of both halves, as the authors' later code
does, and as here. Their code of 2018 divides by the square root of the model's width, content and
position together: for it, `attend(..., scale=(2 / width) ** 0.5)`, because `scale` takes the place
of 1/sqrt(D) and the queries carry the other 1/sqrt(2). Initial values: p from N(0, 1), as theirs;
W from N(0, 1/M), which gives q_p and k_p unit variance. Their position half is a stream with a
residual, values, an output projection and a feed-forward of its own: partitioned layers of the
model. The scheme is what meets in the logits, and p comes to each layer unchanged.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import Scheme
from posjax.schemes.learned import lookup

SHIFT_INVARIANT = False


def position_heads(
  table: Float[Array, 'N P'], weights: Float[Array, 'P H D'], pos: Num[Array, '*B T']
) -> Float[Array, '*B T H D']:
  """W p(pos): queries, or keys, that know their position alone; NaN outside of the table.

  Args:
    table: p, one row per id.
    weights: W, for each head.
    pos: integer ids, in tokens.

  Raises:
    TypeError: if ids are not integers.

  Example:
    >>> table, weights = jnp.array([[1.0], [10.0]]), jnp.array([[[2.0, 3.0]]])
    >>> position_heads(table, weights, jnp.array([1, 0, 2]))[:, 0]
    Array([[20., 30.],
           [ 2.,  3.],
           [nan, nan]], dtype=float32)
  """
  return jnp.einsum('...p,phd->...hd', lookup(table, pos), weights)


def scheme(max_length: int = 512, content: bool = True, position: bool = True) -> Scheme:
  """A half of position for every query and key. The parameters are the same whatever is silent.

  Args:
    max_length: rows of the table: ids 0 .. max_length - 1 have one.
    content: whether the content half takes part; False silences it, at test time say, and leaves
      the other half's logits as they were.
    position: the same for the position half.

  Raises:
    ValueError: if the table has no row, or both halves are silent; where used, TypeError for ids
      that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('query', 'key')
  """
  if max_length < 1:
    raise ValueError(f'A table of positions needs at least one row, but got {max_length}.')
  if not (content or position):
    raise ValueError(
      'Attention needs content or position, but got False for both content and position.'
    )

  def init_model(key, dims):
    return {'table': jax.random.normal(key, (max_length, dims.width), jnp.float32)}

  def init(key, dims):
    kv_heads = dims.num_heads if dims.num_kv_heads is None else dims.num_kv_heads
    each = zip(('query', 'key'), (dims.num_heads, kv_heads), jax.random.split(key), strict=True)
    shape = lambda heads: (dims.width, heads, dims.head_dim)
    normal = lambda key, heads: jax.random.normal(key, shape(heads), jnp.float32)
    return {name: dims.width**-0.5 * normal(key, heads) for name, heads, key in each}

  def halves(params, name, x, pos):
    if not position:
      return x
    own = position_heads(params['table'], params[name], pos).astype(x.dtype)
    return jnp.concatenate([x, own], axis=-1) if content else own

  def query(params, x, at):
    # `attend` divides by sqrt(D); the head is twice as wide.
    return 2**-0.5 * halves(params, 'query', x, at)

  def key(params, x, at):
    return halves(params, 'key', x, at)

  return Scheme(init_model=init_model, init=init, query=query, key=key, axes=1)
