"""Gaussian: near tokens count for more, by a learned normal distribution of the distance.

bias = -|w d^2 + b|, w > 0, b <= 0, added to the scaled logits, unscaled. To multiply the attention
weights by a prior phi(d) and divide them by their sum is to add log phi(d) to the logits: without b
the prior is exp(-w d^2), of standard deviation sqrt(1 / 2w) tokens. With b its maximum is not at
the token itself, whose bias is -|b|, but at d = sqrt(-b / w).

Reference: Guo, Zhang, Liu 2019, Gaussian Transformer,
https://doi.org/10.1609/aaai.v33i01.33016489, "Gaussian self-attention". The paper starts from
exp(-pi d^2), the normal distribution whose density at 0 is 1, then adds a width and b. Accounts of
the result print it with pi, as -|w pi d^2 + b|, and without; here w includes pi, and is pi times
the w of the other form. Without the absolute value b would be a constant, which does not change a
softmax. There is no public code, and we do not know how the authors initialize w and b and keep
their signs. Here w = softplus(raw_w) and b = -softplus(raw_b), one pair for the whole model, as in
the paper, or one for each head of each layer.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from posjax.arguments import checked
from posjax.math.heads import at_least_float32
from posjax.math.priors import penalty, prior_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('guo2019gaussian',)


def bias(
  w: Float[Array, ' H'], b: Float[Array, ' H'], distance: Num[Array, '*shape']
) -> Float[Array, 'H *shape']:
  """-|w d^2 + b|.

  Args:
    w: one number for each head, or one for all; per token squared.
    b: as many numbers as w; not positive.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 even if w is narrower. The gradient of the absolute value at 0 is 0.

  Example:
    >>> bias(jnp.array([0.5]), jnp.array([-2.0]), jnp.array([0, 1, -2, 4]))
    Array([[-2. , -1.5, -0. , -6. ]], dtype=float32)
  """
  # The squares of int32 distances would wrap around from 46,341 on.
  return penalty(w, b, jnp.square(distance.astype(at_least_float32(w))))


@checked
def scheme(
  w: float = 0.1, b: float | None = -0.1, per_head: bool = False, trained: bool = True
) -> Scheme:
  """A learned Gaussian prior. It starts with its maximum at the neighbours, d = 1.

  The three steps in which the paper comes to it are `gaussian(w=3.14159265, b=None, trained=False)`
  (the normal distribution exp(-pi d^2) alone), `gaussian(w=3.14159265, b=None)` (with a learned
  width) and `gaussian(w=3.14159265)` (with b, which weakens the token itself).

  Args:
    w: the initial value of w, positive, per token squared.
    b: the initial value of b, negative; None for a constant 0, with the maximum at the token
      itself.
    per_head: whether each head of each layer has a w and a b, instead of one pair for the whole
      model.
    trained: whether w and b are learned; if not, they stay what they are at the beginning.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(w=0.5, b=None))
    ('bias',)
  """
  return prior_scheme(bias, w, b, per_head, trained)
