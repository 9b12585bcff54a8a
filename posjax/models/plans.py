"""Plans of published models: their sizes, schemes, norms and activations, without weights.

One `BlockPlan` says what a layer does, one `Plan` what a model does. `posjax.interop` makes them
from the configurations of checkpoints, and `pretrained` makes models of them.
"""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from posjax.layers.projections import Norm
from posjax.scheme import Scheme

Where = Literal['before', 'around', 'after', 'outside', 'none', 'shared']


class Experts(NamedTuple):
  """Feed-forward layers of which each token takes a few.

  Attributes:
    count: E, of experts.
    active: how many a token takes: those of the largest logits, weighed by their softmax.
    limit: gates are at most this, and what they multiply is between minus this and this.
  """

  count: int
  active: int
  limit: float


class FeedForwardPlan(NamedTuple):
  """A feed-forward layer.

  Attributes:
    width: F.
    activation: a name in `ACTIVATIONS`.
    gated: down(activation(gate(x)) * up(x)) instead of down(activation(up(x))).
    use_bias: whether its maps have biases.
    experts: see `Experts`; None for one layer that all tokens take.
  """

  width: int
  activation: str
  gated: bool = False
  use_bias: bool = False
  experts: Experts | None = None


class BlockPlan(NamedTuple):
  """One layer.

  Attributes:
    attention: arguments of `posjax.nnx.Attention`, as pairs of a name and a value.
    feed_forward: the feed-forward layer.
    norm: all norms of the layer.
    attention_norms: where the norms of attention are: 'before' it (x + part(norm(x))), 'after' it
      (x + norm(part(x))), 'around' it (both), 'outside' (norm(x + part(x))), or 'none'.
    feed_forward_norms: the same of the feed-forward layer; or 'shared' in parallel layers, where it
      reads what attention reads.
    cross: arguments of the cross-attention, for a decoder that reads an encoder; its norms are
      where those of attention are.
    parallel: whether attention and the feed-forward layer both read the layer's input.
  """

  attention: tuple[tuple[str, Any], ...]
  feed_forward: FeedForwardPlan
  norm: Norm
  attention_norms: Where = 'before'
  feed_forward_norms: Where = 'before'
  cross: tuple[tuple[str, Any], ...] | None = None
  parallel: bool = False

  @property
  def scheme(self) -> Scheme:
    """The scheme of self-attention."""
    return dict(self.attention)['scheme']


class EmbeddingPlan(NamedTuple):
  """The embeddings.

  Attributes:
    scale: their factor.
    norm: after positions are added; None for none.
    types: how many types of tokens there are, each with a vector that is added, as in BERT.
  """

  scale: float = 1.0
  norm: Norm | None = None
  types: int = 0


class ReadoutPlan(NamedTuple):
  """The readout.

  Attributes:
    tied: whether its kernel is the table of the embeddings.
    scale: a factor of its input.
    cap: c tanh(logits / c); None for no cap.
    use_bias: whether logits have a bias.
    transform: the activation of a dense layer before it, as in BERT; None for no such layer.
    transform_norm: the norm after that.
    transform_bias: whether that has a bias.
  """

  tied: bool = True
  scale: float = 1.0
  cap: float | None = None
  use_bias: bool = False
  transform: str | None = None
  transform_norm: Norm | None = None
  transform_bias: bool = True


class Plan(NamedTuple):
  """A whole model.

  Attributes:
    vocab: V.
    width: M.
    blocks: one for each layer.
    embedding: the embeddings.
    final_norm: of the last layer's output; None for none.
    readout: the readout; None for a model that has none.
  """

  vocab: int
  width: int
  blocks: tuple[BlockPlan, ...]
  embedding: EmbeddingPlan = EmbeddingPlan()
  final_norm: Norm | None = None
  readout: ReadoutPlan | None = ReadoutPlan()


class Source(NamedTuple):
  """Where a model comes from, as strings, so that models of one folder have one structure.

  Attributes:
    config: the configuration, as JSON.
    own: the line, or the `repr`, of the scheme of each layer's family.
    length: of the longest text, for schemes that depend on it.
    skipped: beginnings of names in the folder that the model does not have.
  """

  config: str
  own: tuple[str, ...]
  length: int | None = None
  skipped: tuple[str, ...] = ()


def runs(blocks: Sequence[Any]) -> list[tuple[tuple[Any, ...], int]]:
  """Layers as patterns that repeat: (pattern, layers) for each run, of as few layers as can be.

  Example:
    >>> runs('aaab' * 5 + 'aa')
    [(('a', 'a', 'a', 'b'), 20), (('a',), 2)]
  """
  blocks = tuple(blocks)

  @functools.cache
  def best(start):
    """The number of layers that compile, and the runs, from a layer on."""
    if start == len(blocks):
      return 0, 0, []
    found = []
    for period in range(1, len(blocks) - start + 1):
      pattern = blocks[start : start + period]
      end = start + period
      while blocks[end : end + period] == pattern:
        end += period
      compiled, count, rest = best(end)
      found.append((period + compiled, count + 1, [(pattern, end - start), *rest]))
    return min(found, key=lambda each: each[:2])

  return best(0)[2]
