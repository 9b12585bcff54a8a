"""Transformers: decoder-only, encoder-only, and encoder-decoder, from one set of blocks.

Reference: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; pre-norm after Xiong et al. 2020,
https://arxiv.org/abs/2002.04745. Embeddings have variance 1/M and are multiplied by sqrt(M)
(section 3.4), so that they are as large as the sinusoids which may be added to them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Inexact, Int

from posjax.experiment.models.blocks import Layer, Memory, Parts, Stack, normalize
from posjax.layers.cache import Cache
from posjax.nnx import Parameters
from posjax.scheme import Dims, Ids, PRNGKey, Scheme


class Transformer(nnx.Module):
  """Tokens to logits over the vocabulary: a decoder if causal, otherwise an encoder.

  Args:
    vocab: V, the number of token types.
    scheme: one scheme for all layers, or a pattern of schemes that repeats.
    num_layers: L; the pattern must divide it.
    width: M.
    num_heads: H; must divide the width.
    num_kv_heads: K; None means H.
    ff_width: F; None means 4 M.
    causal: whether a token sees only what precedes it.
    cross: whether the layers read an encoder's output (`memory`).
    window: sliding window, in tokens; or a pattern of windows, as long as that of schemes.
    norm: 'LayerNorm', 'RMSNorm' or 'BatchNorm'.
    pre_norm: norm before each part, and once at the end, instead of after each.
    activation: a name in jax.nn: 'gelu', 'relu', 'silu'.
    gated: gated feed-forward; with 'silu' it is SwiGLU.
    dropout_rate: of attention weights and of what each part adds.
    tied: whether the output layer is the embedding, transposed.
    remat: recompute activations in the backward pass.
    unroll: how many periods of the pattern one step of the scan over layers runs.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not divide, or a name is unknown.
  """

  parts = Parts()

  def __init__(
    self,
    vocab: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    num_layers: int,
    width: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    ff_width: int | None = None,
    causal: bool = True,
    cross: bool = False,
    window: int | Sequence[int | None] | None = None,
    norm: str = 'LayerNorm',
    pre_norm: bool = True,
    activation: str = 'gelu',
    gated: bool = False,
    dropout_rate: float = 0.0,
    tied: bool = True,
    remat: bool = False,
    unroll: int = 1,
    rngs: nnx.Rngs,
  ):
    if width % num_heads:
      raise ValueError(f'num_heads must divide the width {width}, but got {num_heads}.')
    pattern = _pattern(scheme, window)
    dims = Dims(width, num_heads, width // num_heads, num_kv_heads or num_heads, vocab)
    # Equal schemes share their model parameters, and embed once.
    self.schemes = tuple(dict.fromkeys(layer.scheme for layer in pattern))
    self.which = tuple(self.schemes.index(layer.scheme) for layer in pattern)
    self.shared = nnx.List([Parameters(s, s.init_model(rngs.params(), dims)) for s in self.schemes])
    init = nnx.initializers.normal(width**-0.5)
    self.embedding = nnx.Embed(vocab, width, embedding_init=init, rngs=rngs)
    self.stack = Stack(
      pattern,
      num_layers,
      width=width,
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
      unroll=unroll,
      parts=self.parts,
      rngs=rngs,
    )
    self.norm = self.parts.norm(norm)(width, rngs=rngs) if pre_norm else None
    self.readout = None if tied else nnx.Linear(width, vocab, use_bias=False, rngs=rngs)
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
      memory: an encoder's output, where the layers cross.
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
    ids = self.ids(jnp.broadcast_to(pos, (tokens.shape[0], *pos.shape[-1:])), ids_key)
    x, _ = self._run(tokens, ids, None, segments, memory, train_key)
    return x

  def ids(self, pos: Ids, key: PRNGKey | None = None) -> tuple[Ids, ...]:
    """Place 0: ids for each distinct scheme, drawn once for a whole stream of tokens."""
    return tuple(scheme.ids(pos, key) for scheme in self.schemes)

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
      memory: an encoder's output, where the layers cross.
    """
    x, after = self._run(tokens, ids, caches, segments, memory, None)
    return self._logits(x), after

  def _run(self, tokens, ids, caches, segments, memory, train_key, past=None) -> tuple[Any, Any]:
    shared = [parameters() for parameters in self.shared]
    x = self._embed(tokens, ids if past is None else self._embedded_at(ids), shared)
    keys = (None, None) if train_key is None else jax.random.split(train_key)
    x = nnx.Dropout(self.dropout_rate)(x, deterministic=train_key is None, rngs=keys[0])
    x, after = self.stack(
      x,
      [ids[i] for i in self.which],
      model_params=[shared[i] for i in self.which],
      train_key=keys[1],
      caches=caches,
      past=past,
      segments=segments,
      memory=memory,
    )
    return x if self.norm is None else normalize(self.norm, x, segments, train_key), after

  def _embedded_at(self, ids):
    """Ids for place 1 in a segment of a stream."""
    return ids

  def _embed(self, tokens, ids, shared):
    x = self.embedding(tokens) * self.embedding.features**0.5
    for scheme, params, one in zip(self.schemes, shared, ids, strict=True):
      x = scheme.embed(params, x, tokens, one)  # place 1
    self._check_embedded(x)
    return x

  def _check_embedded(self, x):
    """Raises ValueError if the layers are of other numbers."""
    if jnp.iscomplexobj(x):
      raise ValueError(
        'The scheme makes complex embeddings, but the layers of this model are real: they would '
        'lose the imaginary parts. Complex ones are in posjax.experiment.models.complex_layers.'
      )

  def _logits(self, x):
    return self.embedding.attend(x) if self.readout is None else self.readout(x)


class EncoderDecoder(nnx.Module):
  """Source tokens to logits for target tokens: an encoder, and a decoder that reads it.

  Cross-attention knows no positions, as in Vaswani et al., Shaw et al. and T5.

  Args:
    source_vocab: token types of the source.
    target_vocab: token types of the target.
    scheme: of the self-attention on both sides; one, or a pattern.
    model: further arguments of `Transformer`, for both sides; `causal` and `cross` are set here.
    rngs: a stream for `params`.
  """

  def __init__(
    self,
    source_vocab: int,
    target_vocab: int,
    scheme: Scheme | Sequence[Scheme],
    model: Mapping[str, Any],
    *,
    rngs: nnx.Rngs,
  ):
    encoder: dict[str, Any] = {**model, 'causal': False}
    decoder: dict[str, Any] = {**model, 'causal': True, 'cross': True}
    self.encoder = Transformer(source_vocab, scheme, **encoder, rngs=rngs)
    self.decoder = Transformer(target_vocab, scheme, **decoder, rngs=rngs)

  def __call__(
    self,
    source: Int[Array, 'B S'],
    target: Int[Array, 'B T'],
    *,
    source_pos: Ids,
    target_pos: Ids,
    source_segments: Int[Array, 'B S'],
    target_segments: Int[Array, 'B T'],
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T V']:
    """Logits for the token after each target token; arguments as in `Transformer`.

    A target token reads the source tokens of its own segment.
    """
    ids_keys = (None, None) if ids_key is None else jax.random.split(ids_key)
    train_keys = (None, None) if train_key is None else jax.random.split(train_key)
    x = self.encoder.encode(
      source, source_pos, segments=source_segments, ids_key=ids_keys[0], train_key=train_keys[0]
    )
    return self.decoder(
      target,
      target_pos,
      segments=target_segments,
      memory=Memory(x, source_segments),
      ids_key=ids_keys[1],
      train_key=train_keys[1],
    )


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
