"""No positional encoding: the order of tokens shows in the causal mask alone, if there is one.

A decoder without positions (NoPE) can recover them from its mask; an encoder without them is
equivariant to permutations of its input.

Reference: Haviv et al. 2022, https://arxiv.org/abs/2203.16634; Kazemnejad et al. 2023,
https://arxiv.org/abs/2305.19466, theorems 1 and 2.
"""

from posjax.arguments import checked
from posjax.scheme import Scheme

SHIFT_INVARIANT = True
BIBTEX = r"""
@article{haviv2022transformer,
  title={Transformer Language Models without Positional Encodings Still Learn Positional
    Information},
  author={Haviv, Adi and Ram, Ori and Press, Ofir and Izsak, Peter and Levy, Omer},
  journal={arXiv preprint arXiv:2203.16634},
  year={2022},
}

@article{kazemnejad2023impact,
  title={The Impact of Positional Encoding on Length Generalization in Transformers},
  author={Kazemnejad, Amirhossein and Padhi, Inkit and Natesan Ramamurthy, Karthikeyan and Das,
    Payel and Reddy, Siva},
  journal={arXiv preprint arXiv:2305.19466},
  year={2023},
}
"""


@checked
def scheme() -> Scheme:
  """The scheme in which every field does nothing, which is the identity of `chain`.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ()
  """
  return Scheme()
