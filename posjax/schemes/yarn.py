"""YaRN: fast pairs of RoPE stay, slow ones are interpolated, and the logits grow a little.

A pair that makes r = L w_k / (2 pi) turns in the original length L keeps its frequency w_k if r is
above beta_fast, has w_k / factor if r is below beta_slow, and a mixture of the two between; q and k
are multiplied by 0.1 ln(factor) + 1.

Reference: Peng et al. 2023, YaRN, https://arxiv.org/abs/2309.00071, "NTK-by-parts" and "YaRN" (eqs.
17-22 of version 2). The mixture in the paper is linear in the turns r (`kept_by_turns`); in the
authors' code, and in the models trained with it, linear in the pair's index k (`kept`, ours), from
the index at which r is beta_fast, rounded down, to that at which it is beta_slow, rounded up.
truncate=False does not round (gpt-oss): the zones are then the paper's. The root of the paper's 1/t
multiplies cos and sin, so only what turns, if a fraction does. With DeepSeek's two numbers it is
(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1), which Hugging Face reads only if
neither is 0; what DeepSeek multiplies the softmax by besides is for `attend(..., scale=)`.
"""

import math

import numpy as np
from jaxtyping import Float

from posjax import angles
from posjax.scheme import Scheme
from posjax.schemes.rope import turning

SHIFT_INVARIANT = True
EXAMPLE = 'yarn(factor=4.0, original_length=64)'


def kept_by_turns(
  frequencies: Float[np.ndarray, ' half'],
  original_length: int,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
) -> Float[np.ndarray, ' half']:
  """gamma(r) = (r - beta_slow) / (beta_fast - beta_slow), cut to 0 .. 1: eqs. 17 and 18.

  Args:
    frequencies: radians per token.
    original_length: L, in tokens.
    beta_fast: turns in L above which a pair keeps its frequency.
    beta_slow: turns in L below which its frequency is divided.

  Example:
    >>> kept_by_turns(2 * np.pi * np.array([1.0, 0.165, 0.005]), 100)
    array([1. , 0.5, 0. ])
  """
  turns = original_length * frequencies / (2 * np.pi)
  return np.clip((turns - beta_slow) / (beta_fast - beta_slow), 0, 1)


def kept(
  width: int,
  original_length: int,
  base: float = 10000.0,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
) -> Float[np.ndarray, ' half']:
  """How much of its own frequency each pair keeps, by its index: 1 for fast ones, 0 for slow ones.

  Args:
    width: d, the numbers of a head that turn.
    original_length: L, in tokens.
    base: of the frequencies; above 1.
    beta_fast: turns in L above which a pair keeps its frequency.
    beta_slow: turns in L below which its frequency is divided.
    truncate: whether the mixture starts and ends at whole indices.

  Returns:
    float64 [width // 2], falling.

  Example:
    >>> kept(12, 4096)
    array([1.  , 1.  , 0.75, 0.5 , 0.25, 0.  ])
  """
  pair = lambda turns: width * math.log(original_length / (2 * math.pi * turns), base) / 2
  first, last = pair(beta_fast), pair(beta_slow)
  if truncate:
    first, last = math.floor(first), math.ceil(last)
  # The authors' bounds; between indices that fall together they step.
  first, last = max(first, 0), min(last, width - 1)
  return np.clip((last - np.arange(width // 2)) / max(last - first, 1e-3), 0, 1)


def mixed(
  frequencies: Float[np.ndarray, ' half'], kept: Float[np.ndarray, ' half'], factor: float
) -> Float[np.ndarray, ' half']:
  """(1 - kept) frequencies / factor + kept frequencies: eq. 20 of version 2.

  Example:
    >>> mixed(np.array([1.0, 0.5, 0.25]), np.array([1.0, 0.5, 0.0]), 2.0)
    array([1.   , 0.375, 0.125])
  """
  return (1 - kept) * frequencies / factor + kept * frequencies


def frequencies(
  width: int,
  factor: float,
  original_length: int,
  base: float = 10000.0,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
) -> Float[np.ndarray, ' half']:
  """The radians per token of each pair: `mixed` by `kept`.

  Args:
    width: d, the numbers of a head that turn.
    factor: divides the slow frequencies; at least 1.
    original_length: L, in tokens; positive.
    base: of the frequencies in training; above 1.
    beta_fast: turns in L above which a pair keeps its frequency; above beta_slow.
    beta_slow: turns in L below which its frequency is divided; positive.
    truncate: whether the mixture starts and ends at whole indices.

  Returns:
    float64 [width // 2].

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> frequencies(6, 4.0, 4096, base=1e6)
    array([1.00e+00, 6.25e-03, 2.50e-05])
  """
  if not factor >= 1:
    raise ValueError(f"YaRN's factor must be at least 1, but got {factor}.")
  if not original_length > 0:
    raise ValueError(f"YaRN's original_length must be positive, but got {original_length}.")
  if not base > 1:
    raise ValueError(f"YaRN's base must be above 1, but got {base}.")
  if not beta_fast > beta_slow > 0:
    raise ValueError(
      f"YaRN's beta_fast must be above beta_slow, and both positive, but got {beta_fast} and "
      f'{beta_slow}.'
    )
  own = angles.frequencies(width, base)
  return mixed(own, kept(width, original_length, base, beta_fast, beta_slow, truncate), factor)


def magnitude(factor: float, mscale: float = 1.0, mscale_all_dim: float = 0.0) -> float:
  """(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1): the root of 1/t.

  What queries and keys are multiplied by, each.

  Args:
    factor: of the extension, at least 1.
    mscale: DeepSeek's; 1 in the paper.
    mscale_all_dim: DeepSeek's; 0 in the paper.

  Example:
    >>> magnitude(math.e)
    1.1
  """
  grown = math.log(factor)
  return (0.1 * mscale * grown + 1) / (0.1 * mscale_all_dim * grown + 1)


def scheme(
  factor: float,
  original_length: int,
  base: float = 10000.0,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  truncate: bool = True,
  mscale: float = 1.0,
  mscale_all_dim: float = 0.0,
  attention_factor: float | None = None,
  fraction: float = 1.0,
  interleaved: bool = False,
) -> Scheme:
  """Rotary positions, fast and slow pairs apart.

  Args:
    factor: length of the text / length in training, at least 1; 1 is RoPE.
    original_length: in training, in tokens.
    base: of the frequencies in training.
    beta_fast: turns in the original length above which a pair keeps its frequency.
    beta_slow: turns in the original length below which its frequency is divided.
    truncate: whether the mixture starts and ends at whole indices.
    mscale: see `magnitude`.
    mscale_all_dim: see `magnitude`.
    attention_factor: what queries and keys are multiplied by, instead of the `magnitude`.
    fraction: share of each head that turns, in (0, 1].
    interleaved: pair neighbours (GPT-J), instead of halves (Llama).

  Raises:
    ValueError: if an argument is out of range; where used, if the width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(factor=4.0, original_length=4096))
    ('query', 'key')
  """

  def made(width):
    return frequencies(width, factor, original_length, base, beta_fast, beta_slow, truncate)

  made(2)  # or an error, now
  if attention_factor is None:
    attention_factor = magnitude(factor, mscale, mscale_all_dim)
  return turning(made, fraction, interleaved, attention_factor)
