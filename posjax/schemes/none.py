"""No positional encoding: the order of tokens shows in the causal mask alone, if there is one.

A decoder without positions (NoPE) can recover them from its mask; an encoder without them is
equivariant to permutations of its input.

Reference: Haviv et al. 2022, https://arxiv.org/abs/2203.16634; Kazemnejad et al. 2023,
https://arxiv.org/abs/2305.19466, theorems 1 and 2.
"""

from posjax.arguments import checked
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('haviv2022transformer', 'kazemnejad2023impact')


@checked
def scheme() -> Scheme:
  """The scheme in which every field does nothing, which is the identity of `chain`.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ()
  """
  return Scheme(traits=Traits(axes=0))
