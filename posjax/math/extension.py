"""Frequencies of RoPE for texts that are longer than those of training.

Each function says by how much the frequency of each pair of dimensions falls, so that rotations
which the model has not seen in training are avoided.
"""

import numpy as np
from jaxtyping import Float

from posjax.math.angles import frequencies


def ntk_frequencies(
  width: int, base: float = 10000.0, factor: float = 1.0
) -> Float[np.ndarray, ' half']:
  """NTK-aware frequencies: base^(-2k/width) factor^(-2k/(width - 2)), in radians per token.

  The first pair keeps its frequency, the last one is slowed by the whole factor.

  Args:
    width: the number of dimensions that are rotated.
    base: the base of the frequencies in training.
    factor: what the lowest frequency is divided by; positive.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if the base is not positive.

  Example:
    >>> ntk_frequencies(6, base=1000.0, factor=4.0)
    array([1.    , 0.05  , 0.0025])
  """
  exponents = np.arange(width // 2) / max(width // 2 - 1, 1)  # exactly 1 for the last pair
  return frequencies(width, base) * np.float64(factor) ** -exponents


def share_by_turns(
  frequencies: Float[np.ndarray, ' half'],
  original_length: int,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
) -> Float[np.ndarray, ' half']:
  """How much of its frequency each pair keeps, by the turns that it makes in a training text.

  gamma(r) = (r - beta_slow) / (beta_fast - beta_slow), clipped to 0 .. 1, for the number of turns
  r = L w / (2 pi) of a pair of frequency w in the original length L: eqs. 17 and 18 of YaRN.

  Args:
    frequencies: radians per token.
    original_length: L, the length in training, in tokens.
    beta_fast: the number of turns above which a pair keeps its frequency.
    beta_slow: the number of turns below which its frequency is divided by the whole factor.

  Example:
    >>> share_by_turns(2 * np.pi * np.array([1.0, 0.165, 0.005]), 100)
    array([1. , 0.5, 0. ])
  """
  turns = original_length * frequencies / (2 * np.pi)
  return np.clip((turns - beta_slow) / (beta_fast - beta_slow), 0, 1)


def mixed_frequencies(
  frequencies: Float[np.ndarray, ' half'], share: Float[np.ndarray, ' half'], factor: float
) -> Float[np.ndarray, ' half']:
  """(1 - share) frequencies / factor + share frequencies: eq. 20 of YaRN, version 2.

  Args:
    frequencies: radians per token.
    share: for each pair, 1 to keep its frequency, 0 to divide it by the factor.
    factor: the ratio of the lengths.

  Example:
    >>> mixed_frequencies(np.array([1.0, 0.5, 0.25]), np.array([1.0, 0.5, 0.0]), 2.0)
    array([1.   , 0.375, 0.125])
  """
  return (1 - share) * frequencies / factor + share * frequencies
