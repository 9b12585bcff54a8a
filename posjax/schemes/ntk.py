"""NTK-aware RoPE: a larger base, which slows the lowest frequency by `factor`, the highest not.

w_k = (base factor^(d/(d-2)))^(-2k/d) = base^(-2k/d) factor^(-2k/(d-2)), k = 0 .. d/2 - 1: the last
pair turns exactly `factor` times slower, as with interpolation, the first one as before.

Reference: Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071, "NTK-aware" interpolation,
definition 1; first published by bloc97 in a forum post of June 2023. A larger base written down as
a number, as in Code Llama (1e6, https://arxiv.org/abs/2308.12950), is `rope(base=1e6)`;
`rescaled_base` gives the number for a factor. Some pairs turn further than in training, so that the
paper advises a factor above the ratio of the lengths.
"""

import numpy as np
from jaxtyping import Float

from posjax import angles
from posjax.scheme import Scheme
from posjax.schemes.rope import turning

SHIFT_INVARIANT = True


def rescaled_base(width: int, base: float = 10000.0, factor: float = 1.0) -> float:
  """base factor^(d/(d-2)): the base of a RoPE with these frequencies.

  Args:
    width: d, the numbers of a head that turn; even, above 2.
    base: before the change.
    factor: see `frequencies`.

  Raises:
    ValueError: if the width is 2: its only frequency is 1 with every base.

  Example:
    >>> rescaled_base(4, base=100.0, factor=3.0)
    900.0
  """
  if width < 3:
    raise ValueError(f'NTK changes the base of more than one pair, but the width is {width}.')
  return base * factor ** (width / (width - 2))


def frequencies(
  width: int, base: float = 10000.0, factor: float = 1.0
) -> Float[np.ndarray, ' half']:
  """base^(-2k/width) factor^(-2k/(width - 2)), in radians per token.

  Args:
    width: d, the numbers of a head that turn.
    base: of the frequencies in training.
    factor: divides the lowest frequency; positive.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if the base or the factor is not positive.

  Example:
    >>> frequencies(6, base=1000.0, factor=4.0)
    array([1.    , 0.05  , 0.0025])
  """
  if not factor > 0:
    raise ValueError(f"NTK's factor must be positive, but got {factor}.")
  slower = np.arange(width // 2) / max(width // 2 - 1, 1)  # exactly 1 for the last pair
  return angles.frequencies(width, base) * np.float64(factor) ** -slower


def scheme(
  factor: float = 4.0,
  base: float = 10000.0,
  fraction: float = 1.0,
  interleaved: bool = False,
) -> Scheme:
  """Rotary positions with the base raised for longer texts.

  Args:
    factor: length of the text / length in training, or more; 1 is RoPE.
    base: of the frequencies in training.
    fraction: share of each head that turns, in (0, 1].
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=8.0))
    ('query', 'key')
  """
  frequencies(2, base, factor)  # or an error, now
  return turning(lambda width: frequencies(width, base, factor), fraction, interleaved)
