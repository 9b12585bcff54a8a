"""Attention in which a scheme says where position enters: `attend`, and the ways to compute it.

`attend` reads its arguments (`inputs`), and hands them to one of the implementations, which call
the places of the scheme (`places`) and give the same numbers.

  dispatch     `attend`, `weights`, and `chosen`, the implementation that computes a call
  choice       which implementation computes a call, and why
  devices      the kinds of devices between which it chooses
  inputs       the arguments, checked, in the form that implementations take
  parameters   whether parameters are those that the scheme would make for these heads
  padding      tokens that nothing sees, which count as zero
  places       places 2 to 4 of a scheme, for some queries and some keys
  masks        which pairs of tokens may attend, and the dropout mask
  softmax      one step of the online softmax
  distances    a scheme's bias, computed once for each distance
  schedule     which tiles hold pairs that may attend, and the diagonals of tiles
  dense        the reference: all logits at once
  blockwise/   attention in tiles, for every scheme, in plain JAX
  pallas/      fused kernels, for TPUs and GPUs
  cudnn        cuDNN's fused attention, for NVIDIA GPUs
  context/     attention over several devices, which share the tokens of a row
  explicit     meshes with explicit axis types

A module here imports its neighbours, the record (`posjax.scheme`, `posjax.expression`) and
`posjax.math`. It knows no scheme by name, and nothing of layers, Flax or experiments.
"""

from posjax.attention.dispatch import IMPLEMENTATIONS as IMPLEMENTATIONS
from posjax.attention.dispatch import attend as attend
from posjax.attention.dispatch import chosen as chosen
from posjax.attention.dispatch import weights as weights
