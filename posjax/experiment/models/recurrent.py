"""A Transformer with segment-level recurrence: it reads a stream in segments, and remembers.

Every layer attends to its inputs of the tokens before the segment as well, so that context is not
cut at the segments' borders, and reaches back further with every layer. Any scheme will do whose
ids mean the same in every segment; relative ones are Transformer-XL's reason to be.

Reference: Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860, section 3.2. Where the
authors' code differs: it remembers the last layer's output as well, which nothing reads.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.experiment.models.past import Past, empty, extended, joined
from posjax.experiment.models.transformer import Transformer
from posjax.layers.tokens import Tokens
from posjax.scheme import Ids, PRNGKey


class RecurrentTransformer(Transformer):
  """A decoder that goes on from segment to segment; called, it is a `Transformer` without memory.

  Args: those of `Transformer`. With a `window`, each token sees that many, remembered ones included
  (the authors' same_length); without, all that is remembered and what precedes it in its segment.
  """

  dtype = None  # of what is remembered; None is that of the embeddings

  def init_past(self, batch: int, size: int) -> Past:
    """Nothing remembered yet of `batch` streams, by layers that remember `size` tokens."""
    layer = (self.stack.repeats, batch, size, self.embedding.features)
    dtype = self.dtype or self.embedding.embedding.dtype
    return empty(len(self.which), layer, dtype)

  def recur(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    past: Past,
    *,
    segments: Int[Array, 'B T'] | None = None,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> tuple[Float[Array, 'B T V'], Past]:
    """Logits for the next segment of streams, and what is remembered after it.

    Args:
      tokens: what follows what was remembered.
      pos: ids before place 0, [B, T] or [T], which go on counting up along a stream.
      past: as from `init_past`, or from the call before.
      segments: another document than before sees nothing of what is remembered; 0 is padding.
      ids_key: as in a call.
      train_key: as in a call.

    Raises:
      ValueError: if the model is no decoder alone, or has batch norm, or a scheme adds random ids.
    """
    block = self.stack.periods[0]
    if block.cross is not None or not block.attention.layer.causal:
      raise ValueError('Only a causal model without an encoder remembers segments.')
    if isinstance(block.norms[0], nnx.BatchNorm):
      raise ValueError('Batch norm cannot norm what is remembered: its batch is over.')
    pos = jnp.broadcast_to(pos, tokens.shape)
    segments = jnp.ones(tokens.shape, jnp.int32) if segments is None else segments
    before, ids = joined(past, self.schemes, pos, ids_key)
    layers = [
      Tokens(inputs, before[i], past.segments)
      for inputs, i in zip(past.inputs, self.which, strict=True)
    ]
    x, inputs = self._run(tokens, ids, None, segments, None, train_key, layers)
    return self._logits(x), extended(past, inputs, pos, segments)
