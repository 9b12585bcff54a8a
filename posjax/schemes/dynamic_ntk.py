"""Dynamic NTK: NTK-aware RoPE whose base grows with the declared length of the text.

s = factor length / original_length - (factor - 1), and 1 up to the original length; the frequencies
are base^(-2k/d) s^(-2k/(d-2)), k = 0 .. d/2 - 1, as those of `ntk` with the factor s.

Reference: Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071, "Dynamic NTK": s = max(1, l/L),
which is factor=1. The term with `factor` is from the code in use (first published by emozilla in a
forum post of July 2023, and in Hugging Face's `dynamic`). There the length is that of the longest
call so far: cached keys keep an older base, and the answer for one row depends on the rows beside
it and on the calls before. Here the length is an argument: declare the longest text that the model
will see, once, and every key, cached or not, is rotated with the same frequencies.
"""

import numpy as np
from jaxtyping import Float

from posjax.arguments import Fraction, Positive, Size, checked
from posjax.math.extension import ntk_frequencies
from posjax.math.rotation import rotary_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
EXAMPLE = 'dynamic_ntk(length=8192, original_length=2048)'
PAPERS = ('peng2023yarn',)


def growth(length: int, original_length: int, factor: float = 1.0) -> float:
  """The number s that the lowest frequency is divided by.

  Args:
    length: the length of the text, in tokens; positive.
    original_length: the length in training, in tokens; positive.
    factor: f in s = 1 + f (length / original_length - 1); positive.

  Example:
    >>> growth(4096, 2048, factor=2.0)
    3.0
  """
  return 1 + factor * max(length / original_length - 1, 0.0)


def frequencies(
  width: int, length: int, original_length: int, factor: float = 1.0, base: float = 10000.0
) -> Float[np.ndarray, ' half']:
  """base^(-2k/width) s^(-2k/(width - 2)), in radians per token, with s from `growth`.

  Args:
    width: d, the number of rotated dimensions.
    length: the length of the text, in tokens.
    original_length: the length in training, in tokens.
    factor: f in s = 1 + f (length / original_length - 1).
    base: the base of the frequencies in training.

  Returns:
    float64 [width // 2].

  Example:
    >>> frequencies(6, 16, 4, base=1000.0)
    array([1.    , 0.05  , 0.0025])
  """
  return ntk_frequencies(width, base, growth(length, original_length, factor))


@checked
def scheme(
  length: Size,
  original_length: Size,
  factor: Positive = 1.0,
  base: Positive = 10000.0,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions for texts of a declared length.

  Args:
    length: the length of the longest text, in tokens; up to the original length it is RoPE.
    original_length: the length in training, in tokens.
    factor: f in s = 1 + f (length / original_length - 1), the number that the lowest frequency is
      divided by; 1 in the paper.
    base, fraction, interleaved, values: see `posjax.math.rotation`.

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(length=8192, original_length=2048))
    ('query', 'key')
  """
  scaled = lambda width: frequencies(width, length, original_length, factor, base)
  scaled(2)  # raises now, not at first use, if an argument is wrong
  return rotary_scheme(scaled, fraction, interleaved, values=values)
