"""What a scheme shares between layers, held by the model."""

from flax import nnx

from posjax import layer
from posjax import nnx as posjax_nnx
from posjax.scheme import Params, Scheme


class Parameters(nnx.Module):
  """A scheme's parameters: trained ones as `nnx.Param`, constants as `posjax.nnx.Constant`."""

  def __init__(self, scheme: Scheme, params: Params):
    self.scheme = scheme
    self.held = nnx.data(posjax_nnx._variables(scheme, params))

  def __call__(self) -> Params:
    """The parameters as the scheme's functions take them."""
    return layer.unnamed(self.scheme, posjax_nnx._arrays(self.held))
