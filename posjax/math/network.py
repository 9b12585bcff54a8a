"""A small network (MLP) of a few numbers for each pair of tokens, and the layer norm.

Products are computed in full float32, because distances above 256 would not survive narrower ones.
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
  """The initial weights of an MLP: `kernel_i` [in, out] and `offset_i` [out] of each layer i.

  They are uniform in +-in^-0.5. The last layer has no offset, because that would move all logits of
  a query alike, which the softmax does not see.

  Args:
    key: a JAX random key.
    sizes: the number of inputs, the width of each hidden layer, and the number of outputs.

  Example:
    >>> {name: weight.shape for name, weight in initial(jax.random.key(0), (1, 8, 2)).items()}
    {'kernel_0': (1, 8), 'offset_0': (8,), 'kernel_1': (8, 2)}
  """
  params = {}
  for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
    kernel_key, offset_key = jax.random.split(jax.random.fold_in(key, i))
    uniform = functools.partial(
      jax.random.uniform, dtype=jnp.float32, minval=-(inputs**-0.5), maxval=inputs**-0.5
    )
    params[f'kernel_{i}'] = uniform(kernel_key, (inputs, outputs))
    params[f'offset_{i}'] = uniform(offset_key, (outputs,))
  del params[f'offset_{len(sizes) - 2}']
  return params


def network(
  params: dict[str, Any],
  x: Float[Array, 'inputs *shape'],
  activation: Callable[[Array], Array] = jax.nn.silu,
) -> Float[Array, 'outputs *shape']:
  """The outputs of an MLP.

  Each hidden layer is activation(kernel^T x + offset), with a layer norm before the activation if
  the parameters have a `gain_i`. The last layer is kernel^T x.

  Inputs, units and outputs are the first axis, so that the logits of one head lie side by side and
  need no transposition.

  Args:
    params: as `initial` makes them, with `gain_i` and `shift_i` [out] where layer i is normalised.
    x: the inputs.
    activation: the function between the layers.

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
      x = layer_norm(x, params[f'gain_{i}'], params[f'shift_{i}'], epsilon=1e-5, axis=0)
    x = activation(x)
  return product(params[f'kernel_{last}'].T, x).reshape(-1, *shape)


def layer_norm(
  x: Float[Array, '*shape'],
  scale: Float[Array, ' M'],
  offset: Float[Array, ' M'],
  epsilon: float,
  axis: int = -1,
) -> Float[Array, '*shape']:
  """Mean 0 and variance 1 along one axis, then scaled and moved.

  Args:
    x: what is normalized.
    scale: what each of the M normalized numbers is multiplied by.
    offset: what is then added to each of them.
    epsilon: added to the variance, which keeps equal numbers finite.
    axis: the axis of the M numbers.

  Example:
    >>> layer_norm(jnp.array([[2.0, 4.0]]), jnp.ones(2), jnp.zeros(2), epsilon=0.0)
    Array([[-1.,  1.]], dtype=float32)
  """
  centered = x - x.mean(axis, keepdims=True)
  variance = jnp.square(centered).mean(axis, keepdims=True)
  along = [1] * x.ndim
  along[axis] = -1
  normalized = centered * jax.lax.rsqrt(variance + epsilon)
  return normalized * scale.reshape(along) + offset.reshape(along)
