"""Laplace: near tokens count for more, by a learned double-exponential prior of the distance.

bias = -|w |d| + b|, w > 0, b <= 0, added to the scaled logits, unscaled. Without b it multiplies
the attention weights by exp(-w |d|) and divides them by their sum: the Laplace distribution of
scale 1/w tokens. This is a linear bias: with ALiBi's slopes for w and no b, it is ALiBi. With b the
maximum of the prior is at |d| = -b / w.

Reference: Guo, Zhang, Liu 2019, Gaussian Transformer,
https://doi.org/10.1609/aaai.v33i01.33016489, compares the Gaussian prior with others. This one has
its form, with |d| in the place of d^2; we could not read which others the paper tried. Signs,
initial values and sharing are as in `gaussian`.
"""

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
  """-|w |d| + b|.

  Args:
    w: one number for each head, or one for all; per token.
    b: as many numbers as w; not positive.
    distance: q_pos - k_pos, in tokens.

  Returns:
    [H, ...], float32 even if w is narrower.

  Example:
    >>> import jax.numpy as jnp
    >>> bias(jnp.array([0.5]), jnp.array([-1.0]), jnp.array([0, 2, -4]))
    Array([[-1., -0., -1.]], dtype=float32)
  """
  return penalty(w, b, abs(distance.astype(at_least_float32(w))))


@checked
def scheme(w: float = 0.1, b: float | None = None, per_head: bool = False) -> Scheme:
  """A learned Laplace prior.

  Args:
    w: the initial value of w, positive, per token.
    b: the initial value of b, negative; None for a constant 0, with the maximum at the token
      itself.
    per_head: whether each head of each layer has a w and a b, instead of one pair for the whole
      model.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(per_head=True))
    ('bias',)
  """
  return prior_scheme(bias, w, b, per_head)
