"""Concatenated: the last dimensions of the embedding are the position's, the others the word's.

z = [w ; p(pos)], of the model's width M: w is the first M - P dimensions of the token's embedding,
and p a learned table of width P. Every projection W of the first layer is then applied to both,
z W = w W_w + p W_p, so that queries, keys and values mix words and positions, which `factored`
keeps apart.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052, section 3: concatenation alone,
the step between addition and the factored model. Each has 512 of 1024 dimensions, and p is drawn
from N(0, 1). In the paper the word vectors have M - P dimensions. Here the model's embedding has M,
as for every other scheme, and its last P columns are never read at the input. It is an addition in
which the two have columns of their own, [w ; 0] + [0 ; p]. The layer norm that follows in the paper
belongs to the model.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import Size, checked
from posjax.math.tables import lookup
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
PAPERS = ('kitaev2018constituency',)


def concatenation(
  x: Float[Array, '*B T M'], table: Float[Array, 'N P'], pos: Num[Array, '...']
) -> Float[Array, '*B T M']:
  """[x without its last P dimensions ; table[pos]], and NaN for ids outside the table.

  Args:
    x: embeddings, wider than the table.
    table: one row for each id.
    pos: integer ids, [*B, T] or [T].

  Raises:
    TypeError: if ids are not integers.
    ValueError: if the table leaves no room for the word.

  Example:
    >>> concatenation(jnp.ones((2, 3)), jnp.array([[5.0], [6.0]]), jnp.array([1, 0]))
    Array([[1., 1., 6.],
           [1., 1., 5.]], dtype=float32)
  """
  room = x.shape[-1] - table.shape[-1]
  if room < 1:
    raise ValueError(
      f'A position of width {table.shape[-1]} must leave room for the word, but got embeddings of '
      f'width {x.shape[-1]}.'
    )
  rows = jnp.broadcast_to(lookup(table, pos), (*x.shape[:-1], table.shape[-1]))
  return jnp.concatenate([x[..., :room], rows.astype(x.dtype)], axis=-1)


@checked
def scheme(
  max_length: Size = 512,
  position_width: Size | None = None,
  content: bool = True,
  position: bool = True,
) -> Scheme:
  """A table of positions, concatenated to the words.

  The parameters are the same whether words and positions are used or not, so that one of them can
  be left out of a model that was trained with both.

  Args:
    max_length: the number of rows of the table: ids 0 .. max_length - 1 have one, others give NaN.
    position_width: P, below the model's width M; by default half of it, rounded down.
    content: whether the word is used; zeros take its place otherwise.
    position: whether the position is used; zeros take its place otherwise.

  Raises:
    ValueError: if the table is empty, or neither is used; where used, if the table leaves no room
      for the word, and TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(max_length=1024))
    ('embed',)
  """
  if not (content or position):
    raise ValueError(
      'An embedding needs content or position, but got False for both content and position.'
    )

  def init_model(key, dims):
    width = dims.width // 2 if position_width is None else position_width
    if not 1 <= width < dims.width:
      raise ValueError(
        f'A position must have a width of at least 1 and below that of the model, {dims.width}, '
        f'but got {width}.'
      )
    return {'table': jax.random.normal(key, (max_length, width), jnp.float32)}

  def embed(params, x, tokens, pos):
    table = params['table']
    if not position:
      room = x.shape[-1] - table.shape[-1]
      return x.at[..., room:].set(0)
    return concatenation(x if content else jnp.zeros_like(x), table, pos)

  return Scheme(init_model=init_model, embed=embed)
