"""The Transformer encoder-decoder: it reads a source, and says a target token by token.

References: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, sections 3.1 and 3.4; complex
models after Wang et al. 2020, https://arxiv.org/abs/1912.12333, section 4.2.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from posjax.expression import get
from posjax.keys import Count, Keys, Layers, Share, keys_of
from posjax.layers import cache as caches
from posjax.layers.cache import Cache
from posjax.layers.tokens import Tokens
from posjax.models.blocks import Memory, RematPolicy
from posjax.models.layer_sets import Dtype, Norm, split_key
from posjax.models.orthogonal import QueryKey
from posjax.models.sides import Side
from posjax.models.transformer import Transformer
from posjax.scheme import Dims, Ids, PRNGKey, Scheme, declares, init, prepare


class State(NamedTuple):
  """A decoder in the middle of its sentences; its tokens so far are counted by the caches.

  Attributes:
    ids: of all target tokens that may come, after place 0, [B, capacity]; one entry per distinct
      scheme.
    caches: of self-attention, one entry per layer of the pattern, stacked over the repetitions.
    memory: the keys of cross-attention, likewise.
  """

  ids: tuple[Ids, ...]
  caches: tuple[Cache, ...]
  memory: tuple[Cache, ...]


class EncoderDecoder(nnx.Module):
  """Source tokens to logits for target tokens: an encoder, and a decoder that reads its output.

  It has the interface `sides.SequenceToSequence`. Cross-attention knows no positions, as in Vaswani
  et al., Shaw et al. and T5, unless `cross_scheme` says so.

  Args:
    source_vocab: token types of the source.
    target_vocab: token types of the target.
    scheme: of the self-attention on both sides; one, or a pattern that repeats over the layers.
      Where one makes complex embeddings, all layers are complex.
    num_layers: of the encoder; the pattern must divide it.
    decoder_layers: of the decoder; None: as many.
    shared: whether both languages have one vocabulary, with one table for the embeddings of both
      sides and, where it is tied, the readout (Vaswani et al., section 3.4). What a scheme trains
      for each word, as `complex_order`'s frequencies, is shared with the table. All else that a
      scheme trains, a table of positions or of offsets, belongs to positions: each side has its
      own.
    cross_scheme: of cross-attention, as `posjax.get` reads it; None knows no positions. It gets the
      ids of both sides before place 0, and each layer has its own parameters.
    width: M.
    num_heads: H; must divide the width.
    num_kv_heads: K; None means H.
    ff_width: F; None means 4 M.
    window: of the self-attention on both sides, as in `Transformer`.
    norm: 'LayerNorm', 'RMSNorm' or 'BatchNorm'.
    pre_norm: norm before each part, and once at the end, instead of after each.
    activation: a name in jax.nn.
    gated: gated feed-forward.
    dropout_rate: of attention weights, of embeddings, and of what each part adds.
    tied: whether the output layer is the target's embedding, transposed.
    remat: recompute activations in the backward pass.
    remat_policy: which of them are kept nevertheless, a name in `jax.checkpoint_policies`.
    unroll: how many periods of the pattern one step of the scan over layers runs.
    query_key: of self-attention on both sides, as in `Transformer`.
    dtype: of both sides, as in `Transformer`.
    implementation: of attention, as in `posjax.attend`.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not fit, a name is unknown, or the cross scheme cannot be computed.
  """

  def __init__(
    self,
    source_vocab: int,
    target_vocab: int,
    scheme: Scheme | Sequence[Scheme],
    *,
    num_layers: Layers,
    decoder_layers: Layers | None = None,
    shared: bool = False,
    cross_scheme: str | None = None,
    width: Count,
    num_heads: Count,
    num_kv_heads: Count | None = None,
    ff_width: Count | None = None,
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
    rngs: nnx.Rngs,
  ):
    if shared and source_vocab != target_vocab:
      raise ValueError(
        'model.shared needs one vocabulary for both sides, but got '
        f'{source_vocab} and {target_vocab} token types.'
      )
    both: dict[str, Any] = {
      'width': width,
      'num_heads': num_heads,
      'num_kv_heads': num_kv_heads,
      'ff_width': ff_width,
      'window': window,
      'norm': norm,
      'pre_norm': pre_norm,
      'activation': activation,
      'gated': gated,
      'dropout_rate': dropout_rate,
      'remat': remat,
      'remat_policy': remat_policy,
      'unroll': unroll,
      'query_key': query_key,
      'dtype': dtype,
      'implementation': implementation,
      'rngs': rngs,
    }
    # Tied, the encoder has no readout, which nothing would use.
    self.encoder = Transformer(
      source_vocab, scheme, num_layers=num_layers, causal=False, tied=True, **both
    )
    self.decoder = Transformer(
      target_vocab,
      scheme,
      num_layers=decoder_layers or num_layers,
      cross=_cross_scheme(cross_scheme),
      tied=tied,
      words=self.encoder.embed if shared else None,
      **both,
    )

  def __call__(
    self,
    source: Side,
    target: Side,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T V']:
    """Logits for the token after each target token, which reads the source of its own segment.

    Args:
      source: what is read.
      target: the target tokens so far, a start mark first.
      ids_key: random key of place 0, on both sides; None leaves ids unchanged.
      train_key: random key of dropout. Given, BatchNorm uses the batch's own statistics.
    """
    ids_keys = split_key(ids_key)
    train_keys = split_key(train_key)
    pos = _pos(source)
    x = self.encoder.encode(
      source.tokens, pos, segments=source.segments, ids_key=ids_keys[0], train_key=train_keys[0]
    )
    return self.decoder(
      target.tokens,
      _pos(target),
      segments=target.segments,
      memory=Memory(Tokens(x, pos, source.segments), _pos(target)),
      ids_key=ids_keys[1],
      train_key=train_keys[1],
    )

  def begin(self, source: Side, capacity: int, key: PRNGKey | None = None) -> State:
    """Reads the sources: the encoder runs, and cross-attention projects its output, once.

    Args:
      source: what is read.
      capacity: how many target tokens may come. Beyond them, logits are NaN.
      key: draws the random ids of both sides, of each row by `jax.random.fold_in(key, row)`: what a
        row says depends on neither the other rows nor its padding. None leaves ids unchanged.
    """
    batch, pos = source.tokens.shape[0], _pos(source)
    row_keys = None if key is None else _row_keys(key, batch)
    ids = _ids(self.encoder, pos, None if row_keys is None else row_keys[:, 0])
    x = self.encoder.encode_ids(source.tokens, ids, segments=source.segments)
    steps = jnp.broadcast_to(jnp.arange(capacity, dtype=jnp.int32), (batch, capacity))
    return State(
      _ids(self.decoder, steps, None if row_keys is None else row_keys[:, 1]),
      self.decoder.init_cache(batch, capacity),
      self.decoder.stack.memorize(Tokens(x, pos, source.segments)),
    )

  def step(self, tokens: Int[Array, ' B'], state: State) -> tuple[Float[Array, 'B V'], State]:
    """Logits for the token after the next target token of each row, and the state after it.

    Args:
      tokens: the next target token of each row; the start mark first.
      state: from `begin`, `select`, or the step before.
    """
    step = state.caches[0].length[0]
    now = [jax.lax.dynamic_slice_in_dim(one, step, 1, axis=1) for one in state.ids]
    logits, after = self.decoder.extend(
      tokens[:, None], now, state.caches, memory=Memory(state.memory, step[None])
    )
    return logits[:, 0], state._replace(caches=after)

  def select(self, state: State, rows: Int[Array, ' N']) -> State:
    """The state of N rows, taken from the rows of a state: beams are copied and reordered by it."""
    select = jax.vmap(lambda cache: caches.select(cache, rows))  # over the layers
    return State(
      tuple(ids[rows] for ids in state.ids),
      tuple(map(select, state.caches)),
      tuple(map(select, state.memory)),
    )

  def attention(self, source: Side, target: Side) -> Mapping[str, Float[Array, 'L B H T S']]:
    """The attention weights of all layers: of the 'encoder', of the 'decoder', and between them.

    Args:
      source: what is read; the weights of 'cross' are [L, B, H, T, S].
      target: the target tokens so far.
    """
    pos = _pos(source)
    x, own = self.encoder.weigh(source.tokens, pos, segments=source.segments)
    memory = Memory(Tokens(x, pos, source.segments), _pos(target))
    _, seen = self.decoder.weigh(
      target.tokens, _pos(target), segments=target.segments, memory=memory
    )
    cross: Any = seen.cross
    return {'encoder': own.own, 'decoder': seen.own, 'cross': cross}


def encoder_decoder_keys() -> Keys:
  """The keys of `config.model` that an `EncoderDecoder` takes."""
  return keys_of(EncoderDecoder, without=('source_vocab', 'target_vocab', 'scheme', 'rngs'))


def _pos(side: Side) -> Ids:
  """Ids before place 0. Those of the padding are 0, so that no scheme learns how much there is."""
  pos = jnp.arange(side.tokens.shape[1], dtype=jnp.int32) if side.pos is None else side.pos
  return jnp.where(side.segments != 0, pos, 0)


def _row_keys(key: PRNGKey, batch: int) -> PRNGKey:
  """Two keys for each row, [B, 2], which do not depend on the number of rows."""
  of_row = lambda row: jax.random.split(jax.random.fold_in(key, row))
  return jax.vmap(of_row)(jnp.arange(batch))


def _ids(model: Transformer, pos: Int[Array, 'B T'], keys: PRNGKey | None) -> tuple[Ids, ...]:
  """Place 0, of each row by its own key."""
  return model.ids(pos) if keys is None else jax.vmap(model.ids)(pos, keys)


def _cross_scheme(line: str | None) -> Scheme:
  """The scheme of cross-attention.

  Raises:
    ValueError: if it acts before the first layer, or on the target as a whole.
  """
  if line is None:
    return Scheme()
  scheme = get(line)
  before = [place for place in ('ids', 'embed') if declares(scheme, place)]
  if before:
    raise ValueError(
      'model.cross_scheme must act within the layers alone, on queries, keys, logits or values, '
      f'but {line!r} acts on {" and ".join(before)}.'
    )
  if _looks_back(scheme):
    raise ValueError(
      'model.cross_scheme must take each target token by itself, so that targets are generated '
      f'token by token, but {line!r} looks at the tokens before it.'
    )
  return scheme


def _looks_back(scheme: Scheme) -> bool:
  """Whether what `prepare` returns for a token depends on the token before it."""
  if not declares(scheme, 'prepare'):
    return False
  sizes = Dims(width=8, num_heads=2, head_dim=4, num_kv_heads=2, vocab=2)
  with jax.ensure_compile_time_eval():  # the caller may be traced
    params, pos = init(scheme, jax.random.key(0), sizes), jnp.arange(2)[None]
    x = jax.random.normal(jax.random.key(1), (1, 2, sizes.width))
    _, both = prepare(scheme, params, x, pos)
    _, second = prepare(scheme, params, x[:, 1:], pos[:, 1:])
    same = jax.tree.map(lambda both, one: bool(jnp.allclose(both[:, 1:], one)), both, second)
  return not all(jax.tree.leaves(same))
