"""Llama 3.1: fast pairs of RoPE stay, slow ones are interpolated, mixed by the turns they make.

A pair that makes r = L w_k / (2 pi) turns in the original length L keeps its frequency w_k if r is
above high_frequency_factor, has w_k / factor if r is below low_frequency_factor, and between the
two m w_k + (1 - m) w_k / factor, m = (r - low) / (high - low).

Reference: Grattafiori et al. 2024, The Llama 3 herd of models, https://arxiv.org/abs/2407.21783,
section 3.2, gives the base 500,000; the scaling is in the authors' code alone (`apply_scaling` of
llama-models: 8, 1, 4, 8192, the defaults here; Llama 3.2 divides by 32). It is the mixture of
YaRN's paper (`yarn.kept_by_turns`), with other numbers and without a change of the logits.
"""

import numpy as np
from jaxtyping import Float

from posjax import angles
from posjax.scheme import Scheme
from posjax.schemes.rope import turning
from posjax.schemes.yarn import kept_by_turns, mixed

SHIFT_INVARIANT = True


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
    width: d, the numbers of a head that turn.
    factor: divides the slow frequencies; positive.
    original_length: L, in tokens; positive.
    base: of the frequencies in training.
    low_frequency_factor: turns in L below which a frequency is divided; not negative.
    high_frequency_factor: turns in L above which it stays; above the low one.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> frequencies(6, base=1e6)
    array([1.00e+00, 1.00e-02, 1.25e-05])
  """
  if not factor > 0:
    raise ValueError(f"Llama 3.1's factor must be positive, but got {factor}.")
  if not original_length > 0:
    raise ValueError(f"Llama 3.1's original_length must be positive, but got {original_length}.")
  if not high_frequency_factor > low_frequency_factor >= 0:
    raise ValueError(
      "Llama 3.1's high_frequency_factor must be above the low one, and that not negative, but "
      f'got {high_frequency_factor} and {low_frequency_factor}.'
    )
  own = angles.frequencies(width, base)
  kept = kept_by_turns(own, original_length, high_frequency_factor, low_frequency_factor)
  return mixed(own, kept, factor)


def scheme(
  factor: float = 8.0,
  original_length: int = 8192,
  base: float = 500000.0,
  low_frequency_factor: float = 1.0,
  high_frequency_factor: float = 4.0,
  fraction: float = 1.0,
  interleaved: bool = False,
) -> Scheme:
  """Rotary positions of Llama 3.1 and later.

  Args:
    factor: length of the text / length in training; 1 is RoPE.
    original_length: in training, in tokens.
    base: of the frequencies in training.
    low_frequency_factor: turns in the original length below which a frequency is divided.
    high_frequency_factor: turns in the original length above which it stays.
    fraction: share of each head that turns, in (0, 1].
    interleaved: pair neighbours (as the authors' code), instead of halves (as Hugging Face).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=32.0))
    ('query', 'key')
  """

  def made(width):
    factors = low_frequency_factor, high_frequency_factor
    return frequencies(width, factor, original_length, base, *factors)

  made(2)  # or an error, now
  return turning(made, fraction, interleaved)
