"""Layers of recurrent cells over the words of a text, in one direction or in both.

The encoders `rnn`, `lstm` and `gru` are this with different cells.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Inexact, Int

from posjax.models.embedding import Embedded
from posjax.models.encoders import Encoder
from posjax.models.pooling import Encoded, Group, zero_padding
from posjax.scheme import PRNGKey


class RecurrentEncoder(Encoder):
  """Layers of recurrent cells; the features of a word are the states of the last layer.

  Texts are at the left of their rows. With two directions, features are [forward | backward].

  Args:
    cell: `(width, hidden_width, rngs=) -> recurrent cell`.
    width: M.
    hidden_width: of the state in each direction.
    num_layers: each reads the states of the one before.
    bidirectional: whether each layer has a second row of cells, which reads from the end.
    rngs: a stream for `params`.

  Raises:
    ValueError: if there is no layer.
  """

  def __init__(
    self,
    cell: Callable[..., nnx.RNNCellBase],
    width: int,
    *,
    hidden_width: int,
    num_layers: int,
    bidirectional: bool,
    rngs: nnx.Rngs,
  ):
    if num_layers < 1:
      raise ValueError(f'num_layers must be at least 1, but got {num_layers}.')
    self.bidirectional = bidirectional
    self.features = hidden_width * (2 if bidirectional else 1)

    def direction(width):
      return nnx.RNN(cell(width, hidden_width, rngs=rngs), rngs=False)

    def layer(width):
      if not bidirectional:
        return direction(width)
      return nnx.Bidirectional(direction(width), direction(width), rngs=False)

    widths = [width] + [self.features] * (num_layers - 1)
    self.layers = nnx.List([layer(each) for each in widths])

  def __call__(self, embedded: Embedded, *, train_key: PRNGKey | None = None) -> Encoded:
    """The states at all words; nothing is random."""
    x, real = embedded.x, embedded.real
    lengths = real.sum(1)
    for layer in self.layers:
      x = self._run(layer, zero_padding(x, real), lengths)
    if not self.bidirectional:
      return Encoded((Group(x, real),))
    forward, backward = jnp.split(x, 2, axis=-1)
    return Encoded((Group(forward, real), Group(backward, real, backward=True)))

  def _run(
    self, layer: Any, x: Inexact[Array, 'B T n'], lengths: Int[Array, ' B']
  ) -> Inexact[Array, 'B T N']:
    """The states of one layer, from zeros. Flax's cells ask for a key that zeros do not need."""
    shape, rngs = (x.shape[0], x.shape[2]), nnx.Rngs(0)
    directions = (layer.forward_rnn, layer.backward_rnn) if self.bidirectional else (layer,)
    zeros = tuple(each.cell.initialize_carry(shape, rngs) for each in directions)
    return layer(x, seq_lengths=lengths, initial_carry=zeros if self.bidirectional else zeros[0])
