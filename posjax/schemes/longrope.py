"""LongRoPE: each pair's frequency is divided by a factor of its own, from a search.

w_k = base^(-2k/d) / f_k, with f from short_factor for texts up to the original length, and from
long_factor beyond it. q and k are multiplied by sqrt(1 + ln(s) / ln(original_length)), where s > 1
is the extension of the model.

Reference: Ding et al. 2024, https://arxiv.org/abs/2402.13753, section 3; the multiplier is that of
the authors' code and of Phi-3, where s is the extended length of the model / its original length at
every length of text. The paper also leaves the angles of the first n tokens unchanged, which the
configurations of published models have no field for, and which is not done here. Other code changes
from one list to the other when a text grows past the original length, and then cached keys do not
fit new queries. Here the length is an argument: declare the longest text, once, and every key,
cached or not, is rotated with the same list.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from posjax.arguments import AtLeastTwo, Fraction, Positive, Size, checked
from posjax.math import angles
from posjax.math.rotation import rotary_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
EXAMPLE = (
  'longrope(length=64, original_length=16, '
  'short_factor=(1.0, 1.1, 1.2, 1.5), long_factor=(1.0, 1.5, 3.0, 4.0))'
)
PAPERS = ('ding2024longrope',)


def frequencies(
  width: int, factors: Sequence[float], base: float = 10000.0
) -> Float[np.ndarray, ' half']:
  """base^(-2k/width) / factors[k], in radians per token.

  Args:
    width: d, the number of rotated dimensions.
    factors: what the frequency of each pair is divided by; positive.
    base: the base of the frequencies in training.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if there is not one positive factor for each pair.

  Example:
    >>> frequencies(4, (1.0, 2.0))
    array([1.   , 0.005])
  """
  if len(factors) != width // 2:
    raise ValueError(
      f'LongRoPE needs a factor for each of the {width // 2} pairs of width {width}, but got '
      f'{len(factors)}.'
    )
  if not all(factor > 0 for factor in factors):
    raise ValueError(f"LongRoPE's factors must be positive, but got {tuple(factors)}.")
  return angles.frequencies(width, base) / np.asarray(factors, np.float64)


def magnitude(extension: float, original_length: int) -> float:
  """sqrt(1 + ln(extension) / ln(original_length)), and 1 without an extension.

  Queries and keys are each multiplied by it.

  Example:
    >>> magnitude(16.0, 4)
    1.7320508075688772
  """
  return math.sqrt(1 + math.log(max(extension, 1.0)) / math.log(original_length))


@checked
def scheme(
  length: Size,
  original_length: AtLeastTwo,
  short_factor: Sequence[float],
  long_factor: Sequence[float],
  extension: Positive | None = None,
  attention_factor: Positive | None = None,
  base: Positive = 10000.0,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions for texts of a declared length, with searched factors.

  Args:
    length: the length of the longest text, in tokens, which decides between the two lists.
    original_length: the length in training, in tokens; at least 2.
    short_factor: one number for each pair, for texts up to the original length.
    long_factor: one number for each pair, for longer texts.
    extension: s, the extended length of the model / its original length; by default `length` takes
      the place of the extended length.
    attention_factor: what queries and keys are multiplied by, instead of the `magnitude`.
    base, fraction, interleaved, values: see `posjax.math.rotation`.

  Raises:
    ValueError: if an argument is out of range; where used, if the lists do not fit the width.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(8192, 4096, short_factor=(1.0, 1.0), long_factor=(1.0, 2.0)))
    ('query', 'key')
  """
  for factors in (short_factor, long_factor):
    frequencies(
      2 * len(short_factor), factors, base
    )  # raises now, not at first use, if an argument is wrong
  factors = tuple(long_factor if length > original_length else short_factor)
  if attention_factor is None:
    ratio = length / original_length if extension is None else extension
    attention_factor = magnitude(ratio, original_length)
  divided = lambda width: frequencies(width, factors, base)
  return rotary_scheme(divided, fraction, interleaved, attention_factor, values)
