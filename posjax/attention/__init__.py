"""Attention in which a scheme says where position enters: `attend`, and the ways to compute it.

`attend` checks its arguments (`inputs`), calls place 2, and hands the rest to one of four
implementations, which give the same numbers.

  dispatch     `attend`, and `chosen`, the implementation that it takes by default
  weighing     `weights`, the attention weights without values
  inputs       the checks, and the arguments in the form that implementations take
  parameters   whether parameters are those that the scheme would make for these heads
  padding      tokens that nothing sees, which count as zero
  places       places 3 and 4 of a scheme, for some queries and some keys
  values       what place 4 does to values before they are summed, and to the sum
  masks        which pairs of tokens may attend, and the dropout mask
  softmax      one step of the online softmax
  distances    a scheme's bias, computed once for each distance
  schedule     which tiles hold pairs that may attend, and the diagonals of tiles
  dense        the reference: all logits at once
  blockwise/   attention in tiles, for every scheme, in plain JAX
  pallas/      fused kernels, for TPUs and GPUs
  cudnn        cuDNN's fused attention, for NVIDIA GPUs

A module here imports its neighbours, the record (`posjax.scheme`, `posjax.expression`) and
`posjax.math`. It knows no scheme by name, and nothing of layers, Flax or experiments.
"""

from posjax.attention.dispatch import IMPLEMENTATIONS as IMPLEMENTATIONS
from posjax.attention.dispatch import attend as attend
from posjax.attention.dispatch import chosen as chosen
from posjax.attention.weighing import weights as weights
