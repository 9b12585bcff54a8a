"""Dynamic position bias: a small network of the signed distance gives the bias of each head.

bias = f(distance), f an MLP of `num_layers` hidden layers of `width` SiLU units, normalised if
asked for, and H outputs. With n axes (2 for images) f sees n signed distances. Any distance has a
bias, also one that was not trained.

Reference: Wang et al. 2022, CrossFormer, https://arxiv.org/abs/2108.00154, section 3, where f is
of two axes, has 3 hidden layers with layer norm and ReLU, and a width of a quarter of the model's
(a 16th in the authors' code). The form here, one or more axes, SiLU, log distances and layer norm
optional, is the one in use for sequences (lucidrains/x-transformers), whose 2 hidden layers without
norm, and initial weights uniform within fan_in^-0.5, are our defaults. Its first norm has no
offset, which is ours with `shift_0` zero, and its last layer has one, which no softmax sees.

The network costs width^2 multiplications for each distance: cheap for the T + S - 1 distances of a
tile, and `width` numbers held for each pair where a bias is computed pair by pair. Products are in
full float32: distances above 256 would not survive narrower ones.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.scheme import PRNGKey, Scheme

SHIFT_INVARIANT = True
EXAMPLE = 'dynamic_bias(width=4, log_distance=True, norm=True)'


def initial(key: PRNGKey, sizes: Sequence[int]) -> dict[str, Float[Array, '...']]:
  """Weights of an MLP: `kernel_i` [in, out] and `offset_i` [out], uniform within in^-0.5.

  The last layer has no offset: it would move all logits of a query alike, and never learn.

  Args:
    key: a JAX random key.
    sizes: numbers in, of each hidden layer, and out.

  Example:
    >>> {name: weight.shape for name, weight in initial(jax.random.key(0), (1, 8, 2)).items()}
    {'kernel_0': (1, 8), 'offset_0': (8,), 'kernel_1': (8, 2)}
  """
  params = {}
  for i, (given, made) in enumerate(itertools.pairwise(sizes)):
    keys = jax.random.split(jax.random.fold_in(key, i))
    bound = given**-0.5
    for name, one, shape in zip(('kernel', 'offset'), keys, ((given, made), (made,)), strict=True):
      params[f'{name}_{i}'] = jax.random.uniform(one, shape, jnp.float32, -bound, bound)
  del params[f'offset_{len(sizes) - 2}']
  return params


def network(
  params: dict[str, Any],
  x: Float[Array, 'inputs *shape'],
  activation: Callable[[Array], Array] = jax.nn.silu,
) -> Float[Array, 'outputs *shape']:
  """The MLP: kernel^T x + offset, layer norm if there is a `gain_i`, activation; last, kernel^T x.

  Units come first, so that a tile's pairs lie side by side and need no transposition.

  Args:
    params: as from `initial`, with `gain_i` and `shift_i` [out] where layer i is normalised.
    x: inputs.
    activation: of the hidden layers.

  Example:
    >>> params = {'kernel_0': jnp.ones((1, 1)), 'offset_0': jnp.ones(1)}
    >>> params['kernel_1'] = jnp.array([[2.0]])
    >>> network(params, jnp.array([[3.0, -3.0]]), jax.nn.relu)
    Array([[8., 0.]], dtype=float32)
  """
  last = sum(name.startswith('kernel_') for name in params) - 1
  shape, x = x.shape[1:], x.reshape(x.shape[0], -1)
  product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
  for i in range(last):
    x = product(params[f'kernel_{i}'].T, x) + params[f'offset_{i}'][:, None]
    if f'gain_{i}' in params:
      x = _normalised(x) * params[f'gain_{i}'][:, None] + params[f'shift_{i}'][:, None]
    x = activation(x)
  return product(params[f'kernel_{last}'].T, x).reshape(-1, *shape)


def bias(
  params: dict[str, Any], distance: Num[Array, '*shape axes'], log_distance: bool = False
) -> Float[Array, 'H *shape']:
  """f(distance), or f(sign(distance) log(1 + |distance|)) on each axis; heads first.

  Args:
    params: of `network`.
    distance: q_pos - k_pos, in tokens, the axes last.
    log_distance: whether the network sees logarithms.

  Returns:
    float32 or wider.

  Example:
    >>> params = {'kernel_0': jnp.array([[1.0, -2.0]])}
    >>> bias(params, jnp.array([[3], [-3]]))
    Array([[ 3., -3.],
           [-6.,  6.]], dtype=float32)
  """
  seen = distance.astype(jnp.result_type(params['kernel_0'], jnp.float32))
  if log_distance:
    seen = jnp.sign(seen) * jnp.log1p(abs(seen))
  return network(params, jnp.moveaxis(seen, -1, 0))


def _normalised(x):
  """Mean 0 and variance 1 over the units; 1e-5 keeps equal ones finite."""
  x = x - x.mean(0, keepdims=True)
  return x * jax.lax.rsqrt(jnp.square(x).mean(0, keepdims=True) + 1e-5)


def scheme(
  width: int,
  num_layers: int = 2,
  log_distance: bool = False,
  norm: bool = False,
  axes: int = 1,
) -> Scheme:
  """Biases of a network of the distance.

  Args:
    width: units of each hidden layer; a quarter of the model's is usual.
    num_layers: hidden layers.
    log_distance: whether the network sees sign(d) log(1 + |d|) instead of the distance d: better
      conditioned over long sequences.
    norm: whether hidden layers are normalised before the activation.
    axes: ids per token (2 for images).

  Raises:
    ValueError: if a number is not positive.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(width=16, norm=True))
    ('bias',)
  """
  for name, value in (('width', width), ('num_layers', num_layers), ('axes', axes)):
    if value < 1:
      raise ValueError(f'The {name} of a dynamic position bias must be positive, but got {value}.')

  def init(key, dims):
    params = initial(key, (axes, *(width,) * num_layers, dims.num_heads))
    for i in range(num_layers * norm):
      params |= {f'gain_{i}': jnp.ones(width), f'shift_{i}': jnp.zeros(width)}
    return params

  def biases(params, distance):
    distance = distance if axes > 1 else distance[..., None]
    return bias(params, distance, log_distance)

  return Scheme(init=init, bias=biases, axes=axes)
