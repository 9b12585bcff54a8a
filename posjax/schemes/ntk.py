"""NTK-aware RoPE: a larger base slows the lowest frequency by `factor`, and the highest not at all.

w_k = (base factor^(d/(d-2)))^(-2k/d) = base^(-2k/d) factor^(-2k/(d-2)), k = 0 .. d/2 - 1: the last
pair rotates exactly `factor` times slower, as with interpolation, and the first one as before.

Reference: Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071, "NTK-aware" interpolation,
definition 1; first published by bloc97 in a forum post of June 2023. A larger base that is written
down as a number, as in Code Llama (1e6, https://arxiv.org/abs/2308.12950), is `rope(base=1e6)`;
`rescaled_base` computes this number from a factor. Some pairs rotate further than in training,
which is why the paper advises a factor above the ratio of the lengths.
"""

from posjax.arguments import Fraction, Positive, checked
from posjax.math.extension import ntk_frequencies as frequencies
from posjax.math.rotation import rotary_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('peng2023yarn',)


def rescaled_base(width: int, base: float = 10000.0, factor: float = 1.0) -> float:
  """base factor^(d/(d-2)): the base with which plain RoPE has the same frequencies.

  Args:
    width: d, the number of rotated dimensions; even, and above 2.
    base: the base of the frequencies in training.
    factor: what the lowest frequency is divided by.

  Raises:
    ValueError: if the width is 2: its only frequency is 1 with every base.

  Example:
    >>> rescaled_base(4, base=100.0, factor=3.0)
    900.0
  """
  if width < 3:
    raise ValueError(f'NTK changes the base of more than one pair, but the width is {width}.')
  return base * factor ** (width / (width - 2))


@checked
def scheme(
  factor: Positive = 4.0,
  base: Positive = 10000.0,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions with the base raised for longer texts.

  Args:
    factor: the length of the text / the length in training, or more; 1 is RoPE.
    base, fraction, interleaved, values: see `posjax.math.rotation`.

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=8.0))
    ('query', 'key')
  """
  frequencies(2, base, factor)  # raises now, not at first use, if an argument is wrong
  rescaled = lambda width: frequencies(width, base, factor)
  return rotary_scheme(rescaled, fraction, interleaved, values=values)
