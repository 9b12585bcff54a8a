"""Recurrent encoders of text: plain RNN, LSTM or GRU, in one direction or in both.

Real cells are Flax's, complex ones those of `complex_layers` (Wang et al. 2020,
https://arxiv.org/abs/1912.12333, eqs. 12-13; the authors' code has a unitary recurrence with
modReLU in their place). The GRU's reset gate multiplies the recurrent product, as in Flax, PyTorch
and cuDNN, not the state before it.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Inexact

from posjax.experiment.models import pooling as pool
from posjax.experiment.models.fields import Field
from posjax.experiment.models.pooling import silence


class Recurrent(nnx.Module):
  """Layers of cells over the words; the states of the last layer, pooled.

  Texts stand at the left of their rows.

  Args:
    field: real or complex numbers.
    cell: 'rnn', 'lstm' or 'gru'.
    width: M.
    hidden_width: of the state in each direction.
    num_layers: each reads the states of the one before.
    bidirectional: whether a second row of cells reads from the end.
    pooling: 'mean' or 'max' over the words, or 'last': the state in which a direction ends.
    rngs: a stream for `params`.

  Raises:
    ValueError: if there is no layer, or no such pooling.
  """

  def __init__(
    self,
    field: Field,
    cell: str,
    width: int,
    hidden_width: int,
    *,
    num_layers: int,
    bidirectional: bool,
    pooling: str,
    rngs: nnx.Rngs,
  ):
    if num_layers < 1:
      raise ValueError(f'num_layers must be at least 1, but got {num_layers}.')
    self.bidirectional = bidirectional
    self.pooling = pool.check(pooling)
    self.features = hidden_width * (2 if bidirectional else 1)

    def one(width):
      return nnx.RNN(getattr(field, cell)(width, hidden_width, rngs=rngs), rngs=False)

    def layer(width):
      if not bidirectional:
        return one(width)
      return nnx.Bidirectional(one(width), one(width), rngs=False)

    widths = [width] + [self.features] * (num_layers - 1)
    self.layers = nnx.List([layer(each) for each in widths])

  def __call__(self, x: Inexact[Array, 'B T M'], real: Bool[Array, 'B T']) -> Inexact[Array, 'B N']:
    """One vector a row; `real` is False in the padding, at the right."""
    lengths = real.sum(1)
    for layer in self.layers:
      x = self._run(layer, silence(x, real), lengths)
    if self.pooling != 'last' or not self.bidirectional:
      return pool.POOLINGS[self.pooling](x, real)
    forward, backward = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([pool.last(forward, real), pool.first(backward, real)], axis=-1)

  def _run(self, layer: Any, x: Array, lengths: Array) -> Array:
    """The states at all words. Flax's cells ask for a key, though their zeros need none."""
    shape, rngs = (x.shape[0], x.shape[2]), nnx.Rngs(0)
    cells = (layer.forward_rnn, layer.backward_rnn) if self.bidirectional else (layer,)
    zeros = tuple(one.cell.initialize_carry(shape, rngs) for one in cells)
    return layer(x, seq_lengths=lengths, initial_carry=zeros if self.bidirectional else zeros[0])
