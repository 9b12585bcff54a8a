"""The interface between models that translate and all that uses them: search, tasks, pictures.

Whoever decodes or scores translations needs these calls alone, whether the model is a Transformer
or recurrent.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int

from posjax.scheme import Ids, PRNGKey

State = Any  # a tree of arrays, which each model defines for itself


class Side(NamedTuple):
  """The sentences of one language in a batch, each at the left of its row.

  Attributes:
    tokens: the tokens.
    segments: 1 at a token and 0 in the padding; a packed row has 1, 2, ...
    pos: ids before place 0; None counts 0, 1, ... along the row.
  """

  tokens: Int[Array, 'B T']
  segments: Int[Array, 'B T']
  pos: Ids | None = None


@runtime_checkable
class SequenceToSequence(Protocol):
  """A model that reads a source sentence, and says a target sentence token by token.

  `step` after `begin` gives the logits of `__call__` for every row, whatever its padding and its
  neighbours.
  """

  def __call__(
    self,
    source: Side,
    target: Side,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T V']:
    """Teacher forcing: logits for the token after each target token, the first a start mark.

    Args:
      source: what is read.
      target: the target tokens so far.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout; None drops nothing.
    """
    ...

  def begin(self, source: Side, capacity: int, key: PRNGKey | None = None) -> State:
    """Reads the sources, once.

    Args:
      source: what is read.
      capacity: how many target tokens the state then takes.
      key: draws the random ids (place 0) of both sides, for each row by its own key: what a row
        says depends on neither the other rows nor its padding. None leaves ids unchanged.
    """
    ...

  def step(self, tokens: Int[Array, ' B'], state: State) -> tuple[Float[Array, 'B V'], State]:
    """Logits for the token after the next target token of each row, and the state after it.

    Args:
      tokens: the next target token of each row; the start mark first.
      state: from `begin`, or the step before.
    """
    ...

  def select(self, state: State, rows: Int[Array, ' N']) -> State:
    """The state of N rows, taken from the rows of a state: beams are copied and reordered by it."""
    ...

  def attention(self, source: Side, target: Side) -> Mapping[str, Float[Array, 'L B H T S']]:
    """The attention weights of teacher forcing, by name, for pictures.

    A Transformer has 'encoder', 'decoder' and 'cross', a recurrent model 'cross' alone, with one
    layer and one head.
    """
    ...
