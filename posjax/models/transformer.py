"""Transformers: decoders and encoders, from one set of blocks; `encoder_decoder` joins both.

A model is complex where its scheme makes complex embeddings: all its layers are, and the output
layer, which is real, reads the modulus of the last state.

Reference: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; pre-norm after Xiong et al. 2020,
https://arxiv.org/abs/2002.04745; complex models after Wang et al. 2020,
https://arxiv.org/abs/1912.12333, section 4.3. The authors' code (iclr-complex-order/complex-order
4c4ec246) divides the last modulus by 1.5, which the norm before it makes needless.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Inexact, Int

from posjax.keys import Count, Keys, Layers, Share, keys_of
from posjax.layers.cache import Cache
from posjax.models import axes
from posjax.models.blocks import Layer, Memory, RematPolicy, Weights, blocks
from posjax.models.embedding import Embedded, Embedding, make_dims
from posjax.models.layer_sets import Dtype, Norm, dropout, layer_set_of, split_key
from posjax.models.orthogonal import QueryKey, head_dim
from posjax.nnx import Readable
from posjax.scheme import Ids, PRNGKey, Scheme


class Transformer(Readable):
  """Tokens to logits over the vocabulary: a decoder if causal, otherwise an encoder.

  Args:
    vocab: V, the number of token types.
    scheme: one scheme for all layers, or a pattern of schemes that repeats. Where one of them makes
      complex embeddings, all layers are complex.
    num_layers: L; the pattern must divide it.
    width: M.
    num_heads: H; must divide the width.
    num_kv_heads: K; None means H.
    ff_width: F; None means 4 M.
    causal: whether a token sees only what precedes it.
    cross: the scheme of cross-attention to an encoder's output (`memory`), for real heads; None:
      the layers read none.
    window: sliding window, in tokens; or a pattern of windows, as long as that of schemes.
    norm: 'LayerNorm', 'RMSNorm' or 'BatchNorm'.
    pre_norm: norm before each part, and once at the end, instead of after each.
    activation: a name in jax.nn: 'gelu', 'relu', 'silu'.
    gated: gated feed-forward; with 'silu' it is SwiGLU.
    dropout_rate: of attention weights and of what each part adds.
    tied: whether the output layer is the embedding, transposed.
    remat: recompute activations in the backward pass.
    remat_policy: which of them are kept nevertheless, a name in `jax.checkpoint_policies`.
    unroll: how many periods of the pattern one step of the scan over layers runs.
    query_key: 'free', or one orthogonal matrix for queries and keys, so that W_Q^T W_K = I: in each
      of the 'heads', which are then as wide as the model, or 'joint', over all heads.
    dtype: 'float32' or 'bfloat16': in which the layers compute, and what the readout multiplies.
      Parameters, positions and logits are float32.
    implementation: of attention, as in `posjax.attend`.
    words: an embedding with which this one shares all that belongs to a word, see `Embedding`.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not divide, or a name is unknown.
  """

  def __init__(
    self,
    vocab: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    num_layers: Layers,
    width: Count,
    num_heads: Count,
    num_kv_heads: Count | None = None,
    ff_width: Count | None = None,
    causal: bool = True,
    cross: Scheme | None = None,
    window: Count | Sequence[Count | None] | None = None,
    norm: Norm = 'LayerNorm',
    pre_norm: bool = True,
    activation: str = 'gelu',
    gated: bool = False,
    dropout_rate: Share = 0.0,
    tied: bool = True,
    remat: bool = False,
    remat_policy: RematPolicy | None = None,
    unroll: Count = 1,
    query_key: QueryKey = 'free',
    dtype: Dtype = 'float32',
    implementation: str | None = None,
    words: Embedding | None = None,
    rngs: nnx.Rngs,
  ):
    pattern = _pattern(scheme, window)
    schemes = [layer.scheme for layer in pattern]
    dims = make_dims(width, num_heads, num_kv_heads, vocab)
    dims = dims._replace(head_dim=head_dim(query_key, width, num_heads))
    self.layer_set = layer_set_of(schemes, dims, dtype, implementation)
    self.embed = Embedding(schemes, dims, words=words, rngs=rngs)
    self.stack = blocks(
      pattern,
      num_layers,
      width=width,
      layer_set=self.layer_set,
      num_heads=num_heads,
      num_kv_heads=num_kv_heads,
      ff_width=ff_width or 4 * width,
      causal=causal,
      cross=cross,
      norm=norm,
      pre_norm=pre_norm,
      activation=activation,
      gated=gated,
      dropout_rate=dropout_rate,
      remat=remat,
      remat_policy=remat_policy,
      unroll=unroll,
      query_key=query_key,
      rngs=rngs,
    )
    self.readout = None if tied else axes.readout(width, vocab, use_bias=False, rngs=rngs)
    self.dropout_rate = dropout_rate

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    *,
    segments: Int[Array, 'B T'] | None = None,
    memory: Memory | None = None,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T V']:
    """Logits for the token after each (a decoder), or at each (an encoder).

    Args:
      tokens: numbers below V.
      pos: ids before place 0, [B, T] or [T]; one document counts up from where it starts.
      segments: document numbers of packed rows; 0 is padding.
      memory: what the layers read, where they cross.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout. Given, BatchNorm uses the batch's own statistics.
    """
    x = self.encode(
      tokens, pos, segments=segments, memory=memory, ids_key=ids_key, train_key=train_key
    )
    return self._logits(x)

  def encode(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    *,
    segments: Int[Array, 'B T'] | None = None,
    memory: Memory | None = None,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Inexact[Array, 'B T M']:
    """The last layer's output, normed: as `__call__`, without the readout."""
    ids = self.ids(_of_rows(pos, tokens), ids_key)
    return self.encode_ids(tokens, ids, segments=segments, memory=memory, train_key=train_key)

  def encode_ids(
    self,
    tokens: Int[Array, 'B T'],
    ids: Sequence[Ids],
    *,
    segments: Int[Array, 'B T'] | None = None,
    memory: Memory | None = None,
    train_key: PRNGKey | None = None,
  ) -> Inexact[Array, 'B T M']:
    """As `encode`, with ids after place 0, as `ids` returns them."""
    return self._run(self.embed(tokens, ids, segments), train_key, memory=memory)[0]

  def weigh(
    self,
    tokens: Int[Array, 'B T'],
    pos: Ids,
    *,
    segments: Int[Array, 'B T'] | None = None,
    memory: Memory | None = None,
  ) -> tuple[Inexact[Array, 'B T M'], Weights]:
    """As `encode`, and the attention weights of all layers, for pictures; nothing is random."""
    embedded = self.embed(tokens, self.ids(_of_rows(pos, tokens)), segments)
    return self._run(embedded, None, memory=memory, return_weights=True)

  def ids(self, pos: Ids, key: PRNGKey | None = None) -> tuple[Ids, ...]:
    """Place 0: ids for each distinct scheme, drawn once for a whole stream of tokens."""
    return self.embed.ids(pos, key)

  def init_cache(self, batch: int, capacity: int) -> tuple[Cache, ...]:
    """An empty cache for `batch` streams of at most `capacity` tokens."""
    return self.stack.init_cache(batch, capacity)

  def extend(
    self,
    tokens: Int[Array, 'B T'],
    ids: Sequence[Ids],
    caches: tuple[Cache, ...],
    *,
    segments: Int[Array, 'B T'] | None = None,
    memory: Memory | None = None,
  ) -> tuple[Float[Array, 'B T V'], tuple[Cache, ...]]:
    """Logits for more tokens of the streams in the cache: a prompt, or the next token.

    Args:
      tokens: what follows what the cache has seen.
      ids: these tokens' part of what `ids` returned.
      caches: as from `init_cache`, or from the call before.
      segments: 0 for padding.
      memory: what the layers read, where they cross.
    """
    x, after = self._run(self.embed(tokens, ids, segments), None, caches=caches, memory=memory)
    return self._logits(x), after

  def _run(self, embedded: Embedded, train_key, **context) -> tuple[Any, Any]:
    """The stack's output and what it carries on, after dropout of the embeddings."""
    keys = split_key(train_key)
    x = dropout(embedded.x, self.dropout_rate, keys[0])
    return self.stack(embedded._replace(x=x), train_key=keys[1], **context)

  def _logits(self, x):
    x = jnp.abs(x) if jnp.iscomplexobj(x) else x
    held: Any = self.embed.table.embedding if self.readout is None else self.readout.kernel
    kernel = held[...].astype(x.dtype)
    kernel = kernel.T if self.readout is None else kernel
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


def transformer_keys() -> Keys:
  """The keys of `config.model` that a `Transformer` takes."""
  return keys_of(Transformer, without=('vocab', 'scheme', 'cross', 'words', 'rngs'))


def _of_rows(pos: Ids, tokens: Array) -> Ids:
  return jnp.broadcast_to(pos, (tokens.shape[0], *pos.shape[-1:]))


def _pattern(scheme, window) -> tuple[Layer, ...]:
  schemes = (scheme,) if isinstance(scheme, Scheme) else tuple(scheme)
  windows = (window,) if window is None or isinstance(window, int) else tuple(window)
  length = max(len(schemes), len(windows))
  if {len(schemes), len(windows)} - {1, length} or not schemes or not windows:
    raise ValueError(
      f'Patterns of schemes and windows must be equally long, but got {len(schemes)} and '
      f'{len(windows)}.'
    )
  schemes, windows = schemes * (length // len(schemes)), windows * (length // len(windows))
  return tuple(Layer(s, w) for s, w in zip(schemes, windows, strict=True))
