"""No positional encoding: order is known through the causal mask alone, if at all.

A decoder without positions (NoPE) can recover them from its mask; an encoder without them is
equivariant to permutations of its input.

Reference: Haviv et al. 2022, https://arxiv.org/abs/2203.16634; Kazemnejad et al. 2023,
https://arxiv.org/abs/2305.19466, theorems 1 and 2.
"""

from posjax.scheme import Scheme

SHIFT_INVARIANT = True


def scheme() -> Scheme:
  """The record whose every field does nothing: the identity of `chain`.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ()
  """
  return Scheme()
