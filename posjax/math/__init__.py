"""Mathematics that several schemes share, as pure functions of arrays and numbers.

A formula that belongs to one scheme stands in that scheme's file. It moves here when a second
scheme needs it, because a scheme never imports another one. A module here imports jax, numpy,
jaxtyping, the types of `posjax.scheme` and its neighbours in this folder, and nothing else of
posjax. Schemes, attention, its kernels and the layers may all import from here.

  angles        position times frequency, exact at every integer position
  rotation      the rotation of pairs of dimensions: the family of RoPE
  extension     frequencies of RoPE for texts longer than those of training
  sinusoids     sines and cosines as a code of a position, or of a distance
  tables        trained tables with one row for each id
  differences   differences of ids that do not wrap around
  offsets       trained tables with one row for each offset between two tokens
  heads         products of heads, and the dtype to compute them in
  toeplitz      numbers of each distance, laid out as a tile of pairs
  piecewise_linear  a ReLU network of one number, from its straight pieces
  complex_embeddings  complex embeddings, whose phase may be a position
  priors        biases that are the logarithm of a prior over distances
  network       small networks of a few numbers, and the layer norm
  softplus      the inverse of softplus, for parameters that must stay positive
  checks        checks of the dtype of ids
"""
