"""A recurrent network of LSTM cells (long short-term memory), in one direction or in both.

Reference: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. Complex cells
are those of Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 13; the authors' code, despite
its name, has no gates.
"""

import functools

from flax import nnx

from posjax.keys import Count, Layers
from posjax.models.layer_sets import LayerSet
from posjax.models.recurrent_encoder import RecurrentEncoder


def encoder(
  layer_set: LayerSet,
  width: int,
  *,
  hidden_width: Count,
  num_layers: Layers,
  bidirectional: bool,
  forget_bias: float = 1.0,
  rngs: nnx.Rngs,
) -> RecurrentEncoder:
  """A `RecurrentEncoder` of LSTM cells; arguments are its own and theirs."""
  return RecurrentEncoder(
    functools.partial(layer_set.lstm, forget_bias=forget_bias),
    width,
    hidden_width=hidden_width,
    num_layers=num_layers,
    bidirectional=bidirectional,
    rngs=rngs,
  )
