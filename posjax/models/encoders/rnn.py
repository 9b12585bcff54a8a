"""A plain recurrent network: tanh(W h + U x + b), in one direction or in both.

Complex cells are those of Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 12; the authors'
code has a unitary recurrence with modReLU in their place.
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
  """A `RecurrentEncoder`, with its arguments, whose cells have no gates."""
  return RecurrentEncoder(
    layer_set.rnn,
    width,
    hidden_width=hidden_width,
    num_layers=num_layers,
    bidirectional=bidirectional,
    rngs=rngs,
  )
