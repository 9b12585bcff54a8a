"""A small network, an MLP, of numbers that say where tokens stand: its weights and its values.

Products are in full float32: distances above 256 would not survive narrower ones.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.scheme import PRNGKey


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


def _normalised(x):
  """Mean 0 and variance 1 over the units; 1e-5 keeps equal ones finite."""
  x = x - x.mean(0, keepdims=True)
  return x * jax.lax.rsqrt(jnp.square(x).mean(0, keepdims=True) + 1e-5)
