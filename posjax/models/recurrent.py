"""A Transformer with segment-level recurrence: it reads a stream in segments, and remembers.

Every layer attends to its inputs of the tokens before the segment as well, so that context is not
cut at the segments' borders, and reaches back further with every layer. Any scheme will do whose
ids mean the same in every segment; relative ones are Transformer-XL's reason to be.

Reference: Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860, section 3.2. Where the
authors' code differs: it remembers the last layer's output as well, which nothing reads.

With complex embeddings, x_d e^(i (w_jd pos + t_jd)), it is the complex Transformer-XL of Wang et
al. 2020, https://arxiv.org/abs/1912.12333, section 4.3 and appendix B. A scheme of such embeddings,
which takes the modulus of complex attention logits at place 3, is chained with one for the
distances across segments: 'transformer_xl+complex_order'. The paper gives no formula for the two
together. We keep from the authors' code (iclr-complex-order/complex-order 4c4ec246) that phases
count from the start of each segment, and that what is remembered keeps its own: a frequency's
gradient grows with the position, and with that of a stream it would have no bounds. We differ, by
the paper, in the score: |z| / sqrt(D) of the whole z = (q + u) . conj(k) + (q + v) . W_R R (eq.
14), where that code has |AC| + |BD| of unconjugated products with a slip in an imaginary part; and
in complex projections (eq. 10), where it projects both parts by real layers. u, v and W_R are real.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.layers.tokens import Tokens
from posjax.models.past import Past, empty, extended, joined
from posjax.models.transformer import Transformer
from posjax.scheme import Ids, PRNGKey


class RecurrentTransformer(Transformer):
  """A decoder that goes on from segment to segment; called, it is a `Transformer` without memory.

  Args: those of `Transformer`. With a `window`, each token sees that many, remembered ones included
  (the authors' same_length); without, all that is remembered and what precedes it in its segment.
  """

  def init_past(self, batch: int, size: int) -> Past:
    """Nothing remembered yet of `batch` streams, by layers that remember `size` tokens."""
    layer = (self.stack.repeats, batch, size, self.embed.table.features)
    return empty(len(self.embed.which), layer, self.layer_set.dtype)

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
    before, ids = joined(past, self.embed.schemes, pos, ids_key)
    embedded = self.embed(tokens, self._ids_to_embed(ids), segments)
    embedded = embedded._replace(ids=self.embed.by_layer(ids))
    layers = [
      Tokens(inputs, ids_before, past.segments)
      for inputs, ids_before in zip(past.inputs, self.embed.by_layer(before), strict=True)
    ]
    x, inputs = self._run(embedded, train_key, past=layers)
    return self._logits(x), extended(past, inputs, pos, segments)

  def _ids_to_embed(self, ids: Sequence[Ids]) -> Sequence[Ids]:
    """The ids at place 1, where complex phases count from the start of the segment."""
    return [each - each[:, :1] for each in ids] if self.layer_set.is_complex else ids
