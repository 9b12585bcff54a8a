"""Gaussian: near tokens count for more, by a learned normal distribution of the distance.

bias = -|w d^2 + b|, w > 0, b <= 0, added to the scaled logits, unscaled. Multiplying the attention
weights by a prior phi(d) and dividing by their sum is adding log phi(d) to the logits: without b
the prior is exp(-w d^2), of deviation sqrt(1 / 2w) tokens. With b its maximum is not at the token
itself, which gets -|b|, but at d = sqrt(-b / w).

Reference: Guo, Zhang, Liu 2019, Gaussian Transformer,
https://doi.org/10.1609/aaai.v33i01.33016489, "Gaussian self-attention". pi: the paper starts from
exp(-pi d^2), the normal distribution whose density at 0 is 1, then gives it a width and b. Accounts
of the result print it with pi, -|w pi d^2 + b|, and without; here w has absorbed it: ours is pi
times the other. Without the absolute value b would be a constant, which the softmax forgets. There
is no public code, and how the authors start w and b and keep their signs is not known to us: here
w = softplus(raw_w) and b = -softplus(raw_b), one pair for the whole model, as in the paper, or one
for each head of each layer.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.scheme import Scheme

SHIFT_INVARIANT = True


def bias(
  w: Float[Array, ' H'], b: Float[Array, ' H'], distance: Num[Array, '*shape']
) -> Float[Array, 'H *shape']:
  """-|w d^2 + b|.

  Args:
    w: one per head, or one for all; per token squared.
    b: as many; not positive.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 even if w is narrower. The absolute value's gradient at 0 is 0.

  Example:
    >>> bias(jnp.array([0.5]), jnp.array([-2.0]), jnp.array([0, 1, -2, 4]))
    Array([[-2. , -1.5, -0. , -6. ]], dtype=float32)
  """
  # Squares of int32 distances would wrap from 46341 on.
  return penalty(w, b, jnp.square(distance.astype(jnp.promote_types(w.dtype, jnp.float32))))


def penalty(
  w: Float[Array, ' H'], b: Float[Array, ' H'], size: Float[Array, '*shape']
) -> Float[Array, 'H *shape']:
  """-|w size + b|: the family of priors that differ in how they measure a distance.

  Args:
    w: one per head, or one for all; positive.
    b: as many; not positive. The prior's maximum is where size is -b / w.
    size: of each distance, at least 0.

  Example:
    >>> penalty(jnp.array([2.0]), jnp.array([-3.0]), jnp.array([0.0, 1.0, 2.0]))
    Array([[-3., -1., -1.]], dtype=float32)
  """
  b = b.astype(size.dtype).reshape(-1, *(1,) * size.ndim)
  signed = jnp.einsum('h,...->h...', w.astype(size.dtype), size) + b
  return -signed * jnp.sign(signed)  # abs would have a gradient at 0, and to one side


def before_softplus(value: float, num_heads: int) -> Float[Array, ' H']:
  """What softplus takes to `value`, for each head: the learned number behind a positive one.

  Args:
    value: positive.
    num_heads: how many numbers.

  Example:
    >>> jax.nn.softplus(before_softplus(0.1, 2))
    Array([0.1, 0.1], dtype=float32)
  """
  raw = value + np.log(-np.expm1(-np.float64(value)))
  return jnp.full((num_heads,), raw, jnp.float32)


def prior(bias: Callable[..., Array], w: float, b: float | None, per_head: bool) -> Scheme:
  """The scheme of `bias(w, b, distance)` with a learned w > 0, and a learned b < 0 or 0.

  Args:
    bias: gives [H, ...].
    w: its initial value.
    b: its initial value; None for a constant 0.
    per_head: numbers for each head of each layer, instead of one for the whole model.

  Raises:
    ValueError: if a number has the wrong sign.
  """
  if not 0 < w < np.inf:
    raise ValueError(f'The w of a prior must be positive, but got {w}.')
  if b is not None and not -np.inf < b < 0:
    raise ValueError(f'The b of a prior must be negative, or None for 0, but got {b}.')

  def init(key, dims):
    heads = dims.num_heads if per_head else 1
    raw_w = {'raw_w': before_softplus(w, heads)}
    return raw_w if b is None else {**raw_w, 'raw_b': before_softplus(-b, heads)}

  def biases(params, distance):
    w = jax.nn.softplus(params['raw_w'])
    b = -jax.nn.softplus(params['raw_b']) if 'raw_b' in params else jnp.zeros_like(w)
    return bias(w, b, distance)

  made = Scheme(bias=biases, axes=1)
  return made._replace(init=init) if per_head else made._replace(init_model=init)


def scheme(w: float = 0.1, b: float | None = -0.1, per_head: bool = False) -> Scheme:
  """A learned Gaussian prior. It starts with its maximum at the neighbours, d = 1.

  Args:
    w: initial value, positive, per token squared.
    b: initial value, negative; None for a constant 0, the maximum at the token itself.
    per_head: a w and b for each head of each layer, instead of one pair for the whole model.

  Raises:
    ValueError: if a number has the wrong sign.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(w=0.5, b=None))
    ('bias',)
  """
  return prior(bias, w, b, per_head)
