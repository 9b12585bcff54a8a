"""Dynamic position bias: a small network of the signed distance gives the bias of each head.

bias = f(distance), where f is an MLP of `num_layers` hidden layers of `width` SiLU units, with an
optional layer norm, and H outputs. With n axes (2 for images) the inputs of f are n signed
distances. Any distance has a bias, also one that did not occur in training.

Reference: Wang et al. 2022, CrossFormer, https://arxiv.org/abs/2108.00154, section 3, where f is
of two axes, has 3 hidden layers with layer norm and ReLU, and a width of a quarter of the model's
(a 16th in the authors' code). The form here, with one or more axes, SiLU, and optional log
distances and layer norm, is the one in use for sequences (lucidrains/x-transformers). Its 2 hidden
layers without norm, and its initial weights uniform within fan_in^-0.5, are our defaults. Its first
norm has no offset, which is ours with `shift_0` zero. Its last layer has an offset, which does not
change a softmax.

The network needs width^2 multiplications for each distance. That is cheap for the T + S - 1
distances of a tile of consecutive tokens; where a bias is computed pair by pair, each pair needs
`width` numbers in memory.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import Size, checked
from posjax.math.network import initial, network
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
EXAMPLE = 'dynamic_bias(width=4, log_distance=True, norm=True)'
PAPERS = ('wang2022crossformer',)


def bias(
  params: dict[str, Any], distance: Num[Array, '*shape axes'], log_distance: bool = False
) -> Float[Array, 'H *shape']:
  """f(distance), or f(sign(distance) log(1 + |distance|)) on each axis; heads first.

  Args:
    params: the weights, see `posjax.math.network.network`.
    distance: q_pos - k_pos, in tokens, with the axes last.
    log_distance: whether the inputs of the network are logarithms.

  Returns:
    float32 or wider.

  Example:
    >>> params = {'kernel_0': jnp.array([[1.0, -2.0]])}
    >>> bias(params, jnp.array([[3], [-3]]))
    Array([[ 3., -3.],
           [-6.,  6.]], dtype=float32)
  """
  inputs = distance.astype(jnp.result_type(params['kernel_0'], jnp.float32))
  if log_distance:
    inputs = jnp.sign(inputs) * jnp.log1p(abs(inputs))
  return network(params, jnp.moveaxis(inputs, -1, 0))


@checked
def scheme(
  width: Size,
  num_layers: Size = 2,
  log_distance: bool = False,
  norm: bool = False,
  axes: Size = 1,
) -> Scheme:
  """Biases of a network of the distance.

  Args:
    width: the number of units of each hidden layer; a quarter of the model's width is usual.
    num_layers: the number of hidden layers.
    log_distance: whether the input of the network is sign(d) log(1 + |d|) instead of the distance
      d, which is better conditioned for long sequences.
    norm: whether hidden layers are normalized before the activation.
    axes: the number of ids of each token (2 for images).

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(width=16, norm=True))
    ('bias',)
  """

  def init(key, dims):
    params = initial(key, (axes, *(width,) * num_layers, dims.num_heads))
    for i in range(num_layers * norm):
      params |= {f'gain_{i}': jnp.ones(width), f'shift_{i}': jnp.zeros(width)}
    return params

  def biases(params, distance):
    distance = distance if axes > 1 else distance[..., None]
    return bias(params, distance, log_distance)

  return Scheme(init=init, bias=biases, traits=Traits(axes))
