"""Attention over several devices, each of which has some tokens of every row.

They are cut along the axis `context` of the mesh of `jax.set_mesh`.

  mesh       the two ways to compute it, `all_gather` and `ring`, with `jax.shard_map`
  ring       keys travel around the devices, forward and backward
  chunks     some queries with some of their keys, in tiles or in kernels
"""
