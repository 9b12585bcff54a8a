"""Attention in tiles: memory linear in the length, for every scheme, in plain JAX.

`engine` runs over all tiles, forward and backward.

  tiles      one tile, forward and backward
  unrolled   rows of tiles without loops and branches, for GPUs and TPUs
  operands   the operands of attention, cut into tiles
  groups     some heads at a time, for the caches of a CPU
  cut        cutting arrays into tiles, and joining the results
"""
