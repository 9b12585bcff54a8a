"""Biases that are the logarithm of a learned prior over distances.

To multiply the attention weights by a prior and divide them by their sum is to add the logarithm of
the prior to the logits. The priors here differ in how they measure a distance d: its square (a
normal distribution), its absolute value (a Laplace distribution) or its logarithm (a power law).
All have the form -|w size(d) + b| with a learned w > 0 and b <= 0. A negative b moves the maximum
of the prior from the token itself to the distance at which size(d) = -b / w.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from posjax.math.softplus import inverse_softplus
from posjax.scheme import Scheme, Traits


def penalty(
  w: Float[Array, ' H'], b: Float[Array, ' H'], size: Float[Array, '*shape']
) -> Float[Array, 'H *shape']:
  """-|w size + b|.

  Args:
    w: one number for each head, or one for all; positive.
    b: as many numbers as w; not positive.
    size: how large each distance is, at least 0.

  Returns:
    [H, ...], in the dtype of `size`. Where w size + b is 0, the gradient is 0.

  Example:
    >>> penalty(jnp.array([2.0]), jnp.array([-3.0]), jnp.array([0.0, 1.0, 2.0]))
    Array([[-3., -1., -1.]], dtype=float32)
  """
  b = b.astype(size.dtype).reshape(-1, *(1,) * size.ndim)
  signed = jnp.einsum('h,...->h...', w.astype(size.dtype), size) + b
  return -signed * jnp.sign(signed)  # `abs` has a gradient of 1 at 0, where neither side counts


def prior_scheme(
  bias: Callable[..., Array], w: float, b: float | None, per_head: bool, trained: bool = True
) -> Scheme:
  """The scheme of bias(w, b, distance), with a learned w > 0 and a learned b < 0, or b = 0.

  The parameters are raw_w and raw_b, with w = softplus(raw_w) and b = -softplus(raw_b), so that
  the signs hold wherever training goes.

  Args:
    bias: a function that returns the bias of each head and distance, [H, ...].
    w: the initial value of w.
    b: the initial value of b; None for a constant 0.
    per_head: whether each head of each layer has numbers of its own, instead of one pair for the
      whole model.
    trained: whether w and b are learned, instead of staying what they are at the beginning.

  Raises:
    ValueError: if a number has the wrong sign, or heads that are not trained are to differ.

  Example:
    >>> from posjax.scheme import places
    >>> places(prior_scheme(penalty, 0.5, None, per_head=False))
    ('bias',)
  """
  if not 0 < w < np.inf:
    raise ValueError(f'The w of a prior must be positive, but got {w}.')
  if b is not None and not -np.inf < b < 0:
    raise ValueError(f'The b of a prior must be negative, or None for 0, but got {b}.')
  if per_head and not trained:
    raise ValueError(
      'Heads begin with the same prior, and differ by training alone: per_head=True needs '
      'trained=True, but got trained=False.'
    )

  def init(key, dims):
    heads = dims.num_heads if per_head else 1
    raw = lambda value: jnp.full((heads,), inverse_softplus(value), jnp.float32)
    return {'raw_w': raw(w)} if b is None else {'raw_w': raw(w), 'raw_b': raw(-b)}

  def biases(params, distance):
    params = params if trained else jax.lax.stop_gradient(params)
    w = jax.nn.softplus(params['raw_w'])
    b = -jax.nn.softplus(params['raw_b']) if 'raw_b' in params else jnp.zeros_like(w)
    return bias(w, b, distance)

  fixed = () if trained else ('raw_w', 'raw_b') if b is not None else ('raw_w',)
  shared = Scheme(bias=biases, traits=Traits(fixed=fixed))
  return shared._replace(init=init) if per_head else shared._replace(init_model=init)
