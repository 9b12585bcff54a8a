"""p-RoPE: only the fastest pairs of each head turn, with the frequencies of RoPE's full width.

w_k = base^(-2k/D) for k = 0 .. floor(p D/2) - 1, and 0 for the other pairs, which then carry
content alone at any distance. p = 1 is RoPE, p = 0 no positions.

Reference: Barbero et al. 2024, Round and round we go, https://arxiv.org/abs/2410.06205, "p-RoPE";
Hugging Face's `proportional` (Gemma 4), which divides by a `factor` besides. `rope(fraction=p)` of
GPT-NeoX is another scheme: it turns as many numbers, the first p D of each head, but spreads all
frequencies from 1 down to 1/base over them, so that slow ones remain; here they go, and pairs are
those of the full width (k with k + D/2 in the split layout).
"""

import numpy as np
from jaxtyping import Float

from posjax import angles
from posjax.scheme import Scheme
from posjax.schemes.rope import turning

SHIFT_INVARIANT = True


def frequencies(
  width: int, share: float = 0.75, base: float = 10000.0, factor: float = 1.0
) -> Float[np.ndarray, ' half']:
  """base^(-2k/width) / factor for the fastest pairs, 0 for the others.

  Args:
    width: D, of a head.
    share: p, of the pairs that turn, rounded down to whole pairs; in [0, 1].
    base: of the frequencies.
    factor: divides them; positive.

  Returns:
    float64 [width // 2], radians per token.

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> frequencies(8, share=0.5)
    array([1. , 0.1, 0. , 0. ])
  """
  if not 0 <= share <= 1:
    raise ValueError(f"p-RoPE's share must be in [0, 1], but got {share}.")
  if not factor > 0:
    raise ValueError(f"p-RoPE's factor must be positive, but got {factor}.")
  turned = np.arange(width // 2) < int(share * width / 2)
  return np.where(turned, angles.frequencies(width, base) / factor, 0.0)


def scheme(
  share: float = 0.75, base: float = 10000.0, factor: float = 1.0, interleaved: bool = False
) -> Scheme:
  """Rotary positions without the slow frequencies.

  Args:
    share: p, of the pairs that turn, in [0, 1]; 0.75 did best in the paper.
    base: of the frequencies.
    factor: divides them: position interpolation.
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(share=0.25))
    ('query', 'key')
  """
  frequencies(2, share, base, factor)  # or an error, now
  made = lambda width: frequencies(width, share, base, factor)
  return turning(made, interleaved=interleaved)
