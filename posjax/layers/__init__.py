"""Attention layers: all that `posjax.nnx` and `posjax.linen` share, as pure functions.

  layer        the attention layer without its weights
  projections  the linear maps and the norms of a layer, without their weights
  arguments    checks of sizes, numbers, switches and keys
  tokens       the tokens of one side, and checks of their arrays
  parameters   a scheme's parameters as a layer holds them
  cache        keys and values of the tokens so far, or of an encoder's tokens, for decoding
  recurrence   attention to a remembered segment, as in Transformer-XL
  hook         any scheme inside Flax's own attention modules

A module here imports its neighbours, `posjax.attention`, `posjax.math` and `posjax.scheme`. Flax
itself is imported in `posjax/nnx.py` and `posjax/linen.py` only.
"""
