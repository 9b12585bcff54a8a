"""M-RoPE: RoPE whose frequencies are divided among a token's time, height and width.

Each of the d/2 = sum(sections) rotated pairs k has RoPE's frequency f = base^(-2k/d), and the angle
id f for one of the token's n ids. By sections (Qwen2-VL), the first sections[0] frequencies take
id 0, the next sections[1] take id 1, and so on. With `interleaved_sections` (Qwen3-VL), id a > 0
takes sections[a] frequencies, a, a + n, a + 2n, .., and id 0 takes all others, so that every id has
fast and slow ones. Where these go beyond the last frequency, id a takes fewer, as in that code.
A token of a text has its position in all n ids, and this is plain RoPE.

Reference: Wang et al. 2024, Qwen2-VL, https://arxiv.org/abs/2409.12191, section 2.1; which
frequency takes which id is only in the code (Hugging Face transformers). Qwen2-VL has sections
(16, 24, 24) for heads of width 128, Qwen3-VL has (24, 20, 20). Where the sections sum to less than
half the head, its first d dimensions are rotated, with the frequencies of that width, and the rest
stay as they are (partial rotation). Pairs are (k, k + d/2), as in these models. ids are [B, T, n].
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Int, Num

from posjax.arguments import Positive, checked
from posjax.math.angles import assigned_angles, frequencies
from posjax.math.heads import multiplied
from posjax.math.rotation import rotate, with_values
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
EXAMPLE = 'mrope(sections=(1, 2, 1))'
PAPERS = ('wang2024qwen2vl',)


def axis(
  sections: tuple[int, ...] | list[int], interleaved_sections: bool = False
) -> Int[np.ndarray, ' half']:
  """The id that each frequency multiplies, 0 .. n - 1.

  Args:
    sections: how many frequencies each id has; at least two numbers, all positive.
    interleaved_sections: whether the ids take frequencies in turn, as in Qwen3-VL, instead of one
      section after the other.

  Raises:
    ValueError: if the sections are no such numbers.

  Example:
    >>> axis((2, 3, 3))
    array([0, 0, 1, 1, 1, 2, 2, 2])
    >>> axis((4, 2, 2), interleaved_sections=True)
    array([0, 1, 2, 0, 1, 2, 0, 0])
  """
  if len(sections) < 2 or not all(isinstance(n, int) and n > 0 for n in sections):
    raise ValueError(f'M-RoPE needs two or more sections, each positive, but got {sections}.')
  axes, half = len(sections), sum(sections)
  if not interleaved_sections:
    return np.repeat(np.arange(axes), sections)
  taken_by = np.zeros(half, np.int64)
  for a, count in enumerate(sections[1:], start=1):
    taken_by[a : axes * count : axes] = a
  return taken_by


@checked
def scheme(
  sections: tuple[int, ...] | list[int],
  base: Positive = 10000.0,
  interleaved_sections: bool = False,
  scaled: Sequence[float] | None = None,
  attention_factor: Positive = 1.0,
  values: bool = False,
) -> Scheme:
  """Multimodal rotary positions.

  Args:
    sections: how many frequencies each of the n ids has; twice their sum is the rotated width.
    base, values: see `posjax.math.rotation`. Qwen2-VL has base 1e6, Qwen3-VL 5e6.
    interleaved_sections: whether the ids take frequencies in turn, as in Qwen3-VL.
    scaled: the frequencies of all pairs, in radians per token, to use instead of RoPE's, for
      example those of `posjax.schemes.yarn.frequencies`, by which Qwen's models read longer texts.
    attention_factor: what queries and keys are multiplied by; YaRN's `magnitude`.

  Raises:
    ValueError: if an argument is out of range; where used, if a head is narrower than the rotated
      width.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme((16, 24, 24))), scheme((16, 24, 24)).traits.axes
    (('query', 'key'), 3)
  """
  taken_by = axis(sections, interleaved_sections)
  width = 2 * len(taken_by)
  by_pair = frequencies(width, base) if scaled is None else np.asarray(scaled, np.float64)
  if len(by_pair) != len(taken_by):
    raise ValueError(
      f"mrope's scaled must be a frequency for each of {len(taken_by)} pairs, but got "
      f'{len(by_pair)}.'
    )

  def angle_of(head_dim, at):
    if head_dim < width:
      raise ValueError(
        f'Sections {tuple(sections)} rotate {width} dimensions of each head, but got heads of '
        f'width {head_dim}.'
      )
    return assigned_angles(at, by_pair, taken_by)

  def rotated(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T n']):
    rotated = rotate(x, angle_of(x.shape[-1], at))
    return rotated if attention_factor == 1 else multiplied(rotated, attention_factor)

  both = Scheme(query=rotated, key=rotated, traits=Traits(len(sections)))
  return with_values(both, angle_of) if values else both
