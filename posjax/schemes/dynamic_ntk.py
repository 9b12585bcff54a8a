"""Dynamic NTK: NTK-aware RoPE whose base grows with the declared length of the text.

s = factor length / original_length - (factor - 1), and 1 up to the original length; frequencies
base^(-2k/d) s^(-2k/(d-2)), k = 0 .. d/2 - 1, as `ntk` with the factor s.

Reference: Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071, "Dynamic NTK": s = max(1, l/L),
which is factor=1. The term with `factor` is from the code in use (first published by emozilla in a
forum post of July 2023, and in Hugging Face's `dynamic`). There the length is that of the longest
call so far: cached keys keep an older base, and a row's answer depends on the rows beside it and on
the calls before. Here it is an argument: declare the longest text that the model will see, once,
and every key, cached or not, is turned by the same frequencies.
"""

import numpy as np
from jaxtyping import Float

from posjax.scheme import Scheme
from posjax.schemes import ntk
from posjax.schemes.rope import turning

SHIFT_INVARIANT = True
EXAMPLE = 'dynamic_ntk(length=8192, original_length=2048)'


def growth(length: int, original_length: int, factor: float = 1.0) -> float:
  """s: what the lowest frequency is divided by.

  Args:
    length: of the text, in tokens; positive.
    original_length: in training, in tokens; positive.
    factor: how much faster than the length it grows; positive.

  Raises:
    ValueError: if an argument is not positive.

  Example:
    >>> growth(4096, 2048, factor=2.0)
    3.0
  """
  for name, value in (('length', length), ('original_length', original_length), ('factor', factor)):
    if not value > 0:
      raise ValueError(f"Dynamic NTK's {name} must be positive, but got {value}.")
  return 1 + factor * max(length / original_length - 1, 0.0)


def frequencies(
  width: int, length: int, original_length: int, factor: float = 1.0, base: float = 10000.0
) -> Float[np.ndarray, ' half']:
  """base^(-2k/width) s^(-2k/(width - 2)), in radians per token: see `growth` for s.

  Args:
    width: d, the numbers of a head that turn.
    length: of the text, in tokens.
    original_length: in training, in tokens.
    factor: see `growth`.
    base: of the frequencies in training.

  Returns:
    float64 [width // 2].

  Example:
    >>> frequencies(6, 16, 4, base=1000.0)
    array([1.    , 0.05  , 0.0025])
  """
  return ntk.frequencies(width, base, growth(length, original_length, factor))


def scheme(
  length: int,
  original_length: int,
  factor: float = 1.0,
  base: float = 10000.0,
  fraction: float = 1.0,
  interleaved: bool = False,
) -> Scheme:
  """Rotary positions for texts of a declared length.

  Args:
    length: of the longest text, in tokens; up to the original length it is RoPE.
    original_length: in training, in tokens.
    factor: how much faster than the length s grows; 1 in the paper.
    base: of the frequencies in training.
    fraction: share of each head that turns, in (0, 1].
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(length=8192, original_length=2048))
    ('query', 'key')
  """
  made = lambda width: frequencies(width, length, original_length, factor, base)
  made(2)  # or an error, now
  return turning(made, fraction, interleaved)
