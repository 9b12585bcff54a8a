"""Llama 3.1: fast pairs of RoPE stay, slow ones are interpolated, mixed by the turns they make.

A pair that makes r = L w_k / (2 pi) turns in the original length L keeps its frequency w_k if r is
above high_frequency_factor, has w_k / factor if r is below low_frequency_factor, and between the
two m w_k + (1 - m) w_k / factor, m = (r - low) / (high - low).

Reference: Grattafiori et al. 2024, The Llama 3 herd of models, https://arxiv.org/abs/2407.21783,
section 3.2, gives the base 500,000. The scaling is in the authors' code alone (`apply_scaling` of
llama-models; its values 8, 1, 4 and 8192 are the defaults here, and Llama 3.2 divides by 32). It is
the mixture of YaRN's paper, with other numbers, and the logits do not grow.
"""

import numpy as np
from jaxtyping import Float

from posjax.arguments import Fraction, NonNegative, Positive, Size, checked
from posjax.math import angles
from posjax.math.extension import mixed_frequencies, share_by_turns
from posjax.math.rotation import rotary_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('grattafiori2024llama',)


def frequencies(
  width: int,
  factor: float = 8.0,
  original_length: int = 8192,
  base: float = 500000.0,
  low_frequency_factor: float = 1.0,
  high_frequency_factor: float = 4.0,
) -> Float[np.ndarray, ' half']:
  """The radians per token of each pair.

  Args:
    width: d, the number of rotated dimensions.
    factor: what the slow frequencies are divided by; positive.
    original_length: L, the length in training, in tokens; positive.
    base: the base of the frequencies in training.
    low_frequency_factor: the number of turns in L below which a frequency is divided; not negative.
    high_frequency_factor: the number of turns in L above which it stays; above the low one.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> frequencies(6, base=1e6)
    array([1.00e+00, 1.00e-02, 1.25e-05])
  """
  if not high_frequency_factor > low_frequency_factor >= 0:
    raise ValueError(
      "Llama 3.1's high_frequency_factor must be above the low one, and that not negative, but "
      f'got {high_frequency_factor} and {low_frequency_factor}.'
    )
  trained = angles.frequencies(width, base)
  share = share_by_turns(trained, original_length, high_frequency_factor, low_frequency_factor)
  return mixed_frequencies(trained, share, factor)


@checked
def scheme(
  factor: Positive = 8.0,
  original_length: Size = 8192,
  base: Positive = 500000.0,
  low_frequency_factor: NonNegative = 1.0,
  high_frequency_factor: float = 4.0,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions of Llama 3.1 and later.

  Args:
    factor: the length of the text / the length in training; 1 is RoPE.
    original_length: the length in training, in tokens.
    low_frequency_factor: the number of turns in the original length below which a frequency is
      divided by the factor.
    high_frequency_factor: the number of turns in the original length above which it stays.
    base, fraction, interleaved, values: see `posjax.math.rotation`. The authors' code
      interleaves, Hugging Face does not.

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=32.0))
    ('query', 'key')
  """

  def scaled(width):
    turns = low_frequency_factor, high_frequency_factor
    return frequencies(width, factor, original_length, base, *turns)

  scaled(2)  # raises now, not at first use, if an argument is wrong
  return rotary_scheme(scaled, fraction, interleaved, values=values)
