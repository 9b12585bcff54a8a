"""RoPE: rotates pairs of dimensions of queries and keys by angles proportional to the position.

(x1, x2) -> (x1 cos a - x2 sin a, x2 cos a + x1 sin a), a = pos base^(-2k/d), so that q . k depends
on the distance alone.

Reference: Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864, eqs. 13-16, 34. The paper
pairs neighbours (2k, 2k + 1), "interleaved", as GPT-J does. Llama and most later models pair k with
k + d/2, "split", which is the default here. The two differ by a permutation of the columns of W_Q
and W_K, which `to_split` and `to_interleaved` apply. Position interpolation divides the frequencies
by `factor` (Chen et al. 2023, https://arxiv.org/abs/2306.15595, eq. 4). This is exact, whereas a
division of the ids would round. Partial rotation rotates the first `fraction` of each head
(GPT-NeoX), with the frequencies of a head of that width. Angles are exact at every int32 position.

The rotation itself is in `posjax.math.rotation`, where every member of the family takes it from;
the other members (ntk, yarn, longrope, ...) differ in their frequencies.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

# `rope.rotate` and `rope.angles` are public, too: notebooks draw rotations with them.
from posjax.arguments import Fraction, Positive, checked
from posjax.math.angles import angles as angles
from posjax.math.angles import frequencies
from posjax.math.rotation import rotary_scheme, rotary_width
from posjax.math.rotation import rotate as rotate
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
PAPERS = ('su2021roformer',)


def to_interleaved(
  kernel: Shaped[Array, '*rest D'], fraction: float = 1.0
) -> Shaped[Array, '*rest D']:
  """Reorders W_Q or W_K of a model with split pairs for one with interleaved pairs.

  Args:
    kernel: the weights, with the dimensions of a head as the last axis.
    fraction: the share of each head that is rotated.

  Example:
    >>> to_interleaved(jnp.arange(6))
    Array([0, 3, 1, 4, 2, 5], dtype=int32)
  """
  width = rotary_width(kernel.shape[-1], fraction)
  order = np.arange(width).reshape(2, -1).T.ravel()
  return jnp.concatenate([kernel[..., order], kernel[..., width:]], axis=-1)


def to_split(kernel: Shaped[Array, '*rest D'], fraction: float = 1.0) -> Shaped[Array, '*rest D']:
  """Reorders W_Q or W_K of a model with interleaved pairs for one with split pairs.

  Args:
    kernel: the weights, with the dimensions of a head as the last axis.
    fraction: the share of each head that is rotated.

  Example:
    >>> to_split(jnp.array([0, 3, 1, 4, 2, 5]))
    Array([0, 1, 2, 3, 4, 5], dtype=int32)
  """
  width = rotary_width(kernel.shape[-1], fraction)
  order = np.arange(width).reshape(-1, 2).T.ravel()
  return jnp.concatenate([kernel[..., order], kernel[..., width:]], axis=-1)


@checked
def scheme(
  base: Positive = 10000.0,
  factor: Positive = 1.0,
  fraction: Fraction = 1.0,
  interleaved: bool = False,
  values: bool = False,
) -> Scheme:
  """Rotary positions.

  Args:
    base, fraction, interleaved, values: see `posjax.math.rotation`.
    factor: divides all frequencies (position interpolation), so that positions up to `factor` times
      the trained length are rotated no further than in training.

  Raises:
    ValueError: if an argument is out of range; where used, if the rotated width is odd.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(base=5e5))
    ('query', 'key')
  """
  slowed = lambda width: frequencies(width, base) / factor
  return rotary_scheme(slowed, fraction, interleaved, values=values)
