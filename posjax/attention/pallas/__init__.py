"""Attention in fused kernels, written in Pallas for TPUs and for NVIDIA GPUs.

`fused` computes attention by kernels where they can do it, and in tiles elsewhere.

  formulas      the formulas of one tile, which the kernels of all backends share
  ranges        which blocks of keys a block of queries visits
  table         a bias by distance, in the layout that kernels read
  gpu, mosaic, tpu   how the kernels of one backend are called: Triton, Mosaic GPU, Mosaic TPU
  gpu_kernels, mosaic_kernels, tpu_kernels   the kernels themselves
  tpu_grids     the order in which a TPU's grid visits tiles
"""
