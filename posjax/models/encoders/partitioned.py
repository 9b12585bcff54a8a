"""Layers that keep content and position apart: the encoder of Kitaev and Klein 2018.

Reference: https://arxiv.org/abs/1805.01052, section 3; `models.partitioned` has the layers. The
last dimensions of each token are the position's. The scheme `concatenated` puts a learned table
there, as in the paper; with another scheme they hold whatever the model's embeddings have there.
"""

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.keys import Count, Layers, Share
from posjax.models.blocks import Residual
from posjax.models.embedding import Embedded
from posjax.models.encoders import Encoder
from posjax.models.layer_sets import REAL, LayerSet
from posjax.models.partitioned import PartitionedAttention, PartitionedFeedForward
from posjax.models.pooling import Encoded, Group, zero_padding
from posjax.scheme import Ids, Params, PRNGKey, Scheme


class PartitionedBlock(nnx.Module):
  """Attention and feed-forward in two halves, and a norm over both halves together.

  Args:
    attention: self-attention.
    feed_forward: the layer after it.
    width: of both halves together.
    residual: the way in which each of them is added.
    layer_set: of the norms.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    attention: PartitionedAttention,
    feed_forward: PartitionedFeedForward,
    width: int,
    residual: Residual,
    *,
    layer_set: LayerSet = REAL,
    rngs: nnx.Rngs,
  ):
    self.attention, self.feed_forward = attention, feed_forward
    norm = layer_set.norm('LayerNorm')
    self.norms = nnx.List([norm(width, rngs=rngs) for _ in range(2)])
    self.residual = residual

  def __call__(
    self,
    x: Float[Array, 'B T M'],
    ids: Ids,
    *,
    segments: Int[Array, 'B T'] | None = None,
    model_params: Params = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T M']:
    """The tokens' next state; without a key, nothing is dropped."""
    keys = (None,) * 3 if train_key is None else jax.random.split(train_key, 3)

    def attend(y):
      drops = {'dropout_key': keys[0], 'deterministic': train_key is None}
      return self.attention(y, ids, segments=segments, model_params=model_params, **drops)

    x = self.residual(x, attend, self.norms[0], segments, keys[1])
    return self.residual(x, self.feed_forward, self.norms[1], segments, keys[2])


class PartitionedEncoder(Encoder):
  """A stack of partitioned blocks that see the whole text.

  Args:
    layer_set: real layers.
    width: M, and N of the features.
    schemes: a pattern that repeats over the layers.
    num_layers: L; the pattern must divide it.
    num_heads: H; must divide the width, and leave each head an even number of dimensions.
    hidden_width: F, of the feed-forward layers, even.
    position_width: P, the last dimensions, which are the position's; by default half of the width.
    pre_norm: norm before each part, and once at the end, instead of after each.
    activation: a name in jax.nn, of the feed-forward layers.
    dropout_rate: of attention weights and of what each part adds.
    shared_dropout: whether all tokens of a text lose the same features of what a part adds.
    silent_content: numbers of layers, counted from 1, whose attention weights do not depend on the
      content halves. The parameters are the same, so that a trained model can be tested so.
    silent_position: the same for the position halves.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not divide, a name is unknown, there is no layer of a number, both
      halves of a layer are silent, or the layers are complex.
  """

  def __init__(
    self,
    layer_set: LayerSet,
    width: int,
    *,
    schemes: tuple[Scheme, ...],
    num_layers: Layers,
    num_heads: Count,
    hidden_width: Count,
    position_width: Count | None = None,
    pre_norm: bool,
    activation: str,
    dropout_rate: Share,
    shared_dropout: bool = False,
    silent_content: Sequence[Count] = (),
    silent_position: Sequence[Count] = (),
    rngs: nnx.Rngs,
  ):
    if layer_set.is_complex:
      raise ValueError(
        'Partitioned layers are real, but the scheme makes complex numbers of embeddings.'
      )
    if num_layers % len(schemes):
      raise ValueError(
        f'The pattern of {len(schemes)} layers must divide num_layers, but got {num_layers}.'
      )
    place = width // 2 if position_width is None else position_width
    for name, silent in (('content', silent_content), ('position', silent_position)):
      if silent and not 1 <= min(silent) <= max(silent) <= num_layers:
        raise ValueError(
          f'model.silent_{name} must have numbers of layers from 1 to {num_layers}, but got '
          f'{tuple(silent)}.'
        )
    residual = Residual(pre_norm, dropout_rate, shared_dropout)

    def block(number: int) -> PartitionedBlock:
      attention = PartitionedAttention(
        width,
        place,
        num_heads,
        schemes[(number - 1) % len(schemes)],
        content=number not in silent_content,
        position=number not in silent_position,
        dropout_rate=dropout_rate,
        model_params=False,
        model_places=True,
        dtype=layer_set.dtype,
        implementation=layer_set.implementation,
        rngs=rngs,
      )
      feed_forward = PartitionedFeedForward(
        width, place, hidden_width, activation, dtype=layer_set.dtype, rngs=rngs
      )
      own: Any = {'layer_set': layer_set, 'rngs': rngs}
      return PartitionedBlock(attention, feed_forward, width, residual, **own)

    self.features = width
    self.blocks = nnx.List([block(number) for number in range(1, num_layers + 1)])
    self.norm = layer_set.norm('LayerNorm')(width, rngs=rngs) if pre_norm else None
    self.dtype = layer_set.dtype

  def __call__(self, embedded: Embedded, *, train_key: PRNGKey | None = None) -> Encoded:
    """The last layer's output, normed if norms come first."""
    x, period = zero_padding(embedded.x, embedded.real), len(embedded.ids)
    x = x.astype(self.dtype)
    for at, block in enumerate(self.blocks):
      x = block(
        x,
        embedded.ids[at % period],
        segments=embedded.segments,
        model_params=embedded.model_params[at % period],
        train_key=None if train_key is None else jax.random.fold_in(train_key, at),
      )
    x = x if self.norm is None else self.norm(x)
    return Encoded((Group(x.astype(embedded.x.dtype), embedded.real),))


encoder = PartitionedEncoder
