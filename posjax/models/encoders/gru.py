"""A recurrent network of GRU cells (gated recurrent units), in one direction or in both.

Reference: Cho et al. 2014, https://arxiv.org/abs/1406.1078. The reset gate multiplies the recurrent
product, as in Flax, PyTorch and cuDNN, not the state before it. PyTorch adds a second bias to that
product (b_hn), which Flax's cell does not have, so that PyTorch's weights do not load exactly.
Complex cells are built like the complex LSTM of Wang et al. 2020,
https://arxiv.org/abs/1912.12333, who have none.
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
  """A `RecurrentEncoder`, with its arguments, of GRU cells."""
  return RecurrentEncoder(
    layer_set.gru,
    width,
    hidden_width=hidden_width,
    num_layers=num_layers,
    bidirectional=bidirectional,
    rngs=rngs,
  )
