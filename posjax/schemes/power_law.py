"""Power law: near tokens count for more, by a learned power of the distance.

bias = -|w log(1 + |d|) + b|, w > 0, b <= 0, added to the scaled logits, unscaled. Without b it
multiplies the attention weights by (1 + |d|)^-w and divides them by their sum: a prior with a heavy
tail, under which no token is too far. With b the maximum of the prior is at |d| = exp(-b / w) - 1.

Reference: Guo, Zhang, Liu 2019, Gaussian Transformer,
https://doi.org/10.1609/aaai.v33i01.33016489, compares the Gaussian prior with others. This one has
its form, with log(1 + |d|) in the place of d^2; we could not read which others the paper tried.
Signs, initial values and sharing are as in `gaussian`. KERPLE's logarithmic kernel, Chi et al.
2022, https://arxiv.org/abs/2205.09921, also learns the unit of the distance, which is one token
here.
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
  """-|w log(1 + |d|) + b|, with the natural logarithm.

  Args:
    w: one number for each head, or one for all.
    b: as many numbers as w; not positive.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 even if w is narrower.

  Example:
    >>> jnp.exp(bias(jnp.array([2.0]), jnp.array([0.0]), jnp.array([0, 1, -3])))
    Array([[1.    , 0.25  , 0.0625]], dtype=float32)
  """
  size = jnp.log1p(abs(distance.astype(at_least_float32(w))))
  return penalty(w, b, size)


@checked
def scheme(w: float = 1.0, b: float | None = None, per_head: bool = False) -> Scheme:
  """A learned power-law prior.

  Args:
    w: the initial value of w, the power; positive.
    b: the initial value of b, negative; None for a constant 0, with the maximum at the token
      itself.
    per_head: whether each head of each layer has a w and a b, instead of one pair for the whole
      model.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(w=2.0))
    ('bias',)
  """
  return prior_scheme(bias, w, b, per_head)
