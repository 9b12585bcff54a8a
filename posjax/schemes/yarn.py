"""YaRN: fast pairs of RoPE stay, slow ones are interpolated, and the logits grow a little.

A pair that makes r = L w_k / (2 pi) turns in the original length L keeps its frequency w_k if r is
above beta_fast, has w_k / factor if r is below beta_slow, and has a mixture of the two in between.
q and k are multiplied by 0.1 ln(factor) + 1.

Reference: Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071, "NTK-by-parts" and "YaRN" (eqs.
17-22 of version 2). The mixture in the paper is linear in the turns r
(`posjax.math.extension.share_by_turns`). In the authors' code, and in the models trained with it,
it is linear in the pair's index k (`frequency_share`, which is used here), from the index at which
r is beta_fast, rounded down, to the index at which r is beta_slow, rounded up. truncate=False does
not round (gpt-oss): the mixture then begins and ends where that of the paper does. The root of the
paper's 1/t multiplies cos and sin, and so, if only a fraction of each head is rotated, only this
fraction. With DeepSeek's two numbers it is (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim
ln(factor) + 1), which Hugging Face reads only if neither is 0. DeepSeek scales the logits besides;
this is for `attend(..., scale=)`.
"""

import math
from typing import Annotated

import numpy as np
from jaxtyping import Float

from posjax.arguments import Fraction, Positive, Range, Size, checked
from posjax.math import angles
from posjax.math.extension import mixed_frequencies
from posjax.math.rotation import rotary_scheme
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
EXAMPLE = 'yarn(factor=4.0, original_length=64)'
PAPERS = ('peng2023yarn',)


def frequency_share(
  width: int,
  original_length: int,
  base: float = 10000.0,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
) -> Float[np.ndarray, ' half']:
  """How much of its frequency each pair keeps, by its index: 1 for fast pairs, 0 for slow ones.

  Args:
    width: d, the number of rotated dimensions.
    original_length: L, the length in training, in tokens.
    base: the base of the frequencies; above 1.
    beta_fast: the number of turns in L above which a pair keeps its frequency.
    beta_slow: the number of turns in L below which its frequency is divided by the whole factor.
    truncate: whether the mixture starts and ends at whole indices.

  Returns:
    float64 [width // 2], which never rises with the index.

  Example:
    >>> frequency_share(12, 4096)
    array([1.  , 1.  , 0.75, 0.5 , 0.25, 0.  ])
  """
  # The index, as a real number, of the pair that makes so many turns in L.
  index = lambda turns: width * math.log(original_length / (2 * math.pi * turns), base) / 2
  first, last = index(beta_fast), index(beta_slow)
  if truncate:
    first, last = math.floor(first), math.ceil(last)
  # These bounds are the authors'. Where first and last fall together, the mixture is a step.
  first, last = max(first, 0), min(last, width - 1)
  return np.clip((last - np.arange(width // 2)) / max(last - first, 1e-3), 0, 1)


def frequencies(
  width: int,
  factor: float,
  original_length: int,
  base: float = 10000.0,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
) -> Float[np.ndarray, ' half']:
  """The radians per token of each pair, mixed by how much of its frequency it keeps.

  Args:
    width: d, the number of rotated dimensions.
    factor: what the slow frequencies are divided by; at least 1.
    original_length: L, the length in training, in tokens; positive.
    base: the base of the frequencies in training; above 1.
    beta_fast: the number of turns in L above which a pair keeps its frequency; above beta_slow.
    beta_slow: the number of turns in L below which its frequency is divided; positive.
    truncate: whether the mixture starts and ends at whole indices.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if beta_slow is not positive, or beta_fast not above it.

  Example:
    >>> frequencies(6, 4.0, 4096, base=1e6)
    array([1.00e+00, 6.25e-03, 2.50e-05])
  """
  if not beta_fast > beta_slow > 0:
    raise ValueError(
      f"YaRN's beta_fast must be above beta_slow, and both positive, but got {beta_fast} and "
      f'{beta_slow}.'
    )
  trained = angles.frequencies(width, base)
  share = frequency_share(width, original_length, base, beta_fast, beta_slow, truncate)
  return mixed_frequencies(trained, share, factor)


def magnitude(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
  """(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1): the root of 1/t.

  Queries and keys are each multiplied by it.

  Args:
    factor: the length of the text / the length in training, at least 1.
    mscale: a number of DeepSeek's models; 1 in the paper.
    mscale_all_dim: a number of DeepSeek's models; 0 in the paper.

  Example:
    >>> magnitude(math.e)
    1.1
  """
  grown = math.log(factor)
  return (0.1 * mscale * grown + 1) / (0.1 * mscale_all_dim * grown + 1)


@checked
def scheme(
  factor: Annotated[float, Range(1)],
  original_length: Size,
  base: Annotated[float, Range(above=1)] = 10000.0,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
  mscale: float = 1.0,
  mscale_all_dim: float = 0.0,
  attention_factor: Positive | None = None,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions that treat fast and slow pairs differently.

  Args:
    factor: the length of the text / the length in training, at least 1; 1 is RoPE.
    original_length: the length in training, in tokens.
    beta_fast: the number of turns in the original length above which a pair keeps its frequency.
    beta_slow: the number of turns in the original length below which its frequency is divided.
    truncate: whether the mixture starts and ends at whole indices.
    mscale, mscale_all_dim: numbers of DeepSeek's models for how much the logits grow, in place of
      the paper's 1 and 0; see `magnitude` in the file.
    attention_factor: what queries and keys are multiplied by, instead of the `magnitude`.
    base, fraction, interleaved, values: see `posjax.math.rotation`.

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=4.0, original_length=4096))
    ('query', 'key')
  """

  def scaled(width):
    return frequencies(width, factor, original_length, base, beta_fast, beta_slow, truncate)

  scaled(2)  # raises now, not at first use, if an argument is wrong
  if attention_factor is None:
    attention_factor = magnitude(factor, mscale, mscale_all_dim)
  return rotary_scheme(scaled, fraction, interleaved, attention_factor, values)
