"""M-RoPE: RoPE whose frequencies are divided among a token's time, height and width.

Pair k of the d/2 = sum(sections) that turn has RoPE's frequency base^(-2k/d) and the angle id f of
one of the token's n ids. By sections (Qwen2-VL), the first sections[0] frequencies take id 0, the
next sections[1] take id 1, and so on. With `interleaved_sections` (Qwen3-VL), id a > 0 takes the
frequencies a, a + n, a + 2n .. , sections[a] of them, and id 0 all others, so that every id has
fast and slow ones. Text has its position in all ids, and is then plain RoPE.

Reference: Wang et al. 2024, Qwen2-VL, https://arxiv.org/abs/2409.12191, section 2.1; which
frequency takes which id is only in the code (Hugging Face transformers). Qwen2-VL has sections
(16, 24, 24) for heads of 128, Qwen3-VL (24, 20, 20). Where the sections sum to less than half the
head, its first d numbers turn, with frequencies of that width, and the rest stay (partial
rotation). Pairs are (k, k + d/2), as in these models; ids are [B, T, n].
"""

import numpy as np
from jaxtyping import Array, Float, Int, Num

from posjax.angles import frequencies
from posjax.scheme import Scheme
from posjax.schemes.axial_rope import assigned_angles
from posjax.schemes.rope import rotate

SHIFT_INVARIANT = True
EXAMPLE = 'mrope(sections=(1, 2, 1))'


def axis(
  sections: tuple[int, ...] | list[int], interleaved_sections: bool = False
) -> Int[np.ndarray, ' half']:
  """Which id each frequency takes.

  Args:
    sections: how many frequencies each id has; at least two, all positive.
    interleaved_sections: in turn, as Qwen3-VL, instead of one section after the other.

  Raises:
    ValueError: if the sections are no such numbers, or cannot be interleaved.

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
  found = np.zeros(half, np.int64)
  for a, count in enumerate(sections[1:], start=1):
    if a + axes * (count - 1) >= half:
      raise ValueError(
        f'Interleaved, every {axes}th of {half} frequencies is too few for {count} in section {a}, '
        f'but got {sections}.'
      )
    found[a : axes * count : axes] = a
  return found


def scheme(
  sections: tuple[int, ...] | list[int],
  base: float = 10000.0,
  interleaved_sections: bool = False,
) -> Scheme:
  """Multimodal rotary positions.

  Args:
    sections: how many frequencies each of the n ids has; twice their sum is the width that turns.
    base: of the frequencies; Qwen2-VL has 1e6, Qwen3-VL 5e6.
    interleaved_sections: deal the frequencies out in turn, as Qwen3-VL.

  Raises:
    ValueError: if an argument is out of range; where used, if the head is narrower than what turns.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme((16, 24, 24))), scheme((16, 24, 24)).axes
    (('query', 'key'), 3)
  """
  if not base > 0:
    raise ValueError(f"M-RoPE's base must be positive, but got {base}.")
  taken = axis(sections, interleaved_sections)
  width = 2 * len(taken)

  def turn(params, x: Float[Array, 'B T H D'], at: Num[Array, 'B T n']):
    if x.shape[-1] < width:
      raise ValueError(
        f'Sections {tuple(sections)} turn {width} numbers of each head, but got heads of width '
        f'{x.shape[-1]}.'
      )
    return rotate(x, assigned_angles(at, frequencies(width, base), taken))

  return Scheme(query=turn, key=turn, axes=len(sections))
