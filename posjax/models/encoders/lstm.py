"""A recurrent network of LSTM cells (long short-term memory), in one direction or in both.

Reference: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. Complex cells
are those of Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 13; the authors' code, despite
its name, has no gates.
"""

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
  rngs: nnx.Rngs,
) -> RecurrentEncoder:
  """A `RecurrentEncoder`, with its arguments, of LSTM cells."""
  return RecurrentEncoder(
    layer_set.lstm,
    width,
    hidden_width=hidden_width,
    num_layers=num_layers,
    bidirectional=bidirectional,
    rngs=rngs,
  )
