"""p-RoPE: rotates only the fastest pairs of each head, by the frequencies of RoPE's full width.

w_k = base^(-2k/D) for k = 0 .. floor(p D/2) - 1, and 0 for the other pairs, which then carry
content alone at any distance. p = 1 is RoPE, and p = 0 has no positions.

Reference: Barbero et al. 2024, Round and round we go, https://arxiv.org/abs/2410.06205, "p-RoPE";
Hugging Face's `proportional` (Gemma 4), which divides by a `factor` besides. `rope(fraction=p)` of
GPT-NeoX is another scheme: it rotates as many dimensions, the first p D of each head, but spreads
all frequencies from 1 down to 1/base over them, so that slow ones remain. Here the slow ones are
dropped, and pairs are those of the full width (k with k + D/2 in the split layout).
"""

from typing import Annotated

import numpy as np
from jaxtyping import Float

from posjax.arguments import Positive, Range, checked
from posjax.math import angles
from posjax.math.rotation import rotary_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('barbero2024round',)


def frequencies(
  width: int, share: float = 0.75, base: float = 10000.0, factor: float = 1.0
) -> Float[np.ndarray, ' half']:
  """base^(-2k/width) / factor for the fastest pairs, and 0 for the others.

  Args:
    width: D, the width of a head.
    share: p, the share of the pairs that are rotated, rounded down to whole pairs; in [0, 1].
    base: the base of the frequencies.
    factor: what they are divided by; positive.

  Returns:
    float64 [width // 2], radians per token.

  Example:
    >>> frequencies(8, share=0.5)
    array([1. , 0.1, 0. , 0. ])
  """
  rotated = np.arange(width // 2) < int(share * width / 2)
  return np.where(rotated, angles.frequencies(width, base) / factor, 0.0)


@checked
def scheme(
  share: Annotated[float, Range(0, 1)] = 0.75,
  base: Positive = 10000.0,
  factor: Positive = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions without the slow frequencies.

  Args:
    share: p, the share of the pairs that are rotated, in [0, 1]; 0.75 did best in the paper.
    base, interleaved, values: see `posjax.math.rotation`.
    factor: what the frequencies are divided by (position interpolation).

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(share=0.25))
    ('query', 'key')
  """
  fastest = lambda width: frequencies(width, share, base, factor)
  fastest(2)  # raises now, not at first use, if an argument is wrong
  return rotary_scheme(fastest, interleaved=interleaved, values=values)
