"""Recurrent encoder and decoder with attention: translation before the Transformer.

The encoder is a `RecurrentEncoder`. The decoder's first state is a function of the states with
which the directions of the encoder end: the hidden state of each layer is tanh(W s), and the memory
of an LSTM W' s, where s is [forward at the last word | backward at the first]. (Bahdanau et al.
take the backward one alone, Luong et al. copy the states.) The decoder then reads the encoder's
states in one of two orders:

  'luong'     the cells read the token, the new state asks, and tanh(W [context; state]) is the
              output. With input feeding, the cells also read the output of the step before.
  'bahdanau'  the state of the step before asks, and the cells read the token and the context. The
              output takes the larger of each two entries (maxout) of U s + V y + C context.

What asks is the state of the last layer, and who is asked answers by `posjax.attend`, with one head
and any scheme that compares queries and keys. Both may be projected for the comparison alone; the
context is a mean of the encoder's own states.

Reference: Luong, Pham, Manning 2015, https://arxiv.org/abs/1508.04025, sections 3 and 3.3;
Bahdanau, Cho, Bengio 2015, https://arxiv.org/abs/1409.0473, section A.2, whose output takes the
state of the step before in A.2.2, and the new one in eq. 4; here it is the new one. The GRU's reset
gate multiplies the recurrent product, as in Flax, PyTorch and cuDNN, not the state before it as in
the paper.

B rows, S source and T target tokens, N hidden width, E width of the encoder's states.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from posjax.attention import attend
from posjax.expression import get
from posjax.keys import Count, Keys, Layers, Share, check_value, keys_of
from posjax.models import axes
from posjax.models.embedding import Embedding, make_dims
from posjax.models.layer_sets import REAL, dropout, is_complex, split_key
from posjax.models.pooling import Encoded, pool, zero_padding
from posjax.models.recurrent_encoder import RecurrentEncoder
from posjax.models.sides import Side
from posjax.nnx import Parameters
from posjax.scheme import Dims, Ids, PRNGKey, Scheme, declares, init, places

Cell = Literal['rnn', 'lstm', 'gru']
Order = Literal['luong', 'bahdanau']


class Memory(NamedTuple):
  """The source sentences as the decoder reads them.

  Attributes:
    states: of the encoder.
    keys: the states as they are compared with what asks.
    segments: 1 at a token, 0 in the padding.
    pos: ids of the source tokens, before place 0.
  """

  states: Float[Array, 'B S E']
  keys: Float[Array, 'B S D']
  segments: Int[Array, 'B S']
  pos: Ids


class Carried(NamedTuple):
  """All that the decoder carries from one token to the next.

  Attributes:
    cells: the carry of each layer's cell.
    output: the output of the step before; zeros at first.
  """

  cells: tuple[Any, ...]
  output: Float[Array, 'B N']


class State(NamedTuple):
  """The state of decoding, whose arrays have rows first.

  Attributes:
    carried: of the decoder.
    memory: the sources.
    ids: of all target tokens that may come, [B, C], for each scheme.
    count: how many target tokens it has taken.
  """

  carried: Carried
  memory: Memory
  ids: tuple[Ids, ...]
  count: Int[Array, ' B']


class RecurrentEncoderDecoder(nnx.Module):
  """Source tokens to logits for target tokens, a `SequenceToSequence`.

  A row holds one sentence on each side.

  Args:
    source_vocab: token types of the source.
    target_vocab: token types of the target.
    scheme: one scheme, of the embeddings of both sides. Recurrent cells know order by themselves,
      and need none.
    cell: 'rnn', 'lstm' or 'gru', of both sides.
    width: M, of the embeddings.
    hidden_width: N, of the decoder's states, and of each direction of the encoder.
    num_layers: of both sides.
    bidirectional: whether the encoder reads from the end, too.
    order: 'luong' or 'bahdanau', see the module.
    input_feeding: whether the cells read the output of the step before; in Luong's order.
    similarity: the comparison of a decoder's state and an encoder's, as a line for `posjax.get`;
      None is the scaled dot product.
    similarity_width: D, to which both are projected for the comparison. None projects none of the
      two; where they are not equally wide, it projects the encoder's states to the width of the
      decoder's.
    dropout_rate: of the embeddings, and of the outputs before the readout.
    shared: whether both sides have one table of embeddings, and one set of the scheme's parameters.
    forget_bias: the initial bias of an LSTM's forget gates; 1 remembers at first.
    rngs: a stream for `params`.

  Raises:
    ValueError: if a name is unknown, sizes do not fit, or a scheme does what is lost here.
  """

  def __init__(
    self,
    source_vocab: int,
    target_vocab: int,
    scheme: Scheme | Sequence[Scheme] = Scheme(),  # noqa: B008 (immutable)
    *,
    cell: Cell,
    width: Count,
    hidden_width: Count,
    num_layers: Layers = 1,
    bidirectional: bool = True,
    order: Order = 'luong',
    input_feeding: bool = False,
    similarity: str | None = None,
    similarity_width: Count | None = None,
    dropout_rate: Share = 0.0,
    shared: bool = False,
    forget_bias: float = 1.0,
    rngs: nnx.Rngs,
  ):
    check_value('model.cell', Cell, cell)
    check_value('model.order', Order, order)
    if order == 'bahdanau' and input_feeding:
      raise ValueError(
        "model.input_feeding belongs to the order 'luong', but got it with 'bahdanau', whose cells "
        'read the context.'
      )
    if shared and source_vocab != target_vocab:
      raise ValueError(
        'A table of embeddings is shared by vocabularies of one size, but got '
        f'{source_vocab} and {target_vocab}.'
      )
    scheme = _check_embeds(scheme, make_dims(width, 1, None, source_vocab))
    self.order, self.input_feeding, self.dropout_rate = order, input_feeding, dropout_rate
    embed = lambda vocab: Embedding([scheme], make_dims(width, 1, None, vocab), rngs=rngs)
    self.source_embed = embed(source_vocab)
    self.target_embed = None if shared else embed(target_vocab)
    sizes = {'num_layers': num_layers, 'bidirectional': bidirectional}
    make = CELLS[cell]
    if cell == 'lstm':
      make = functools.partial(make, forget_bias=forget_bias)
    self.encoder = RecurrentEncoder(make, width, hidden_width=hidden_width, **sizes, rngs=rngs)
    states = self.encoder.features
    bridge = (2 if cell == 'lstm' else 1) * hidden_width
    self.bridges = nnx.List([nnx.Linear(states, bridge, rngs=rngs) for _ in range(num_layers)])
    read = width + (states if order == 'bahdanau' else hidden_width if input_feeding else 0)
    widths = [read] + [hidden_width] * (num_layers - 1)
    self.cells = nnx.List([make(each, hidden_width, rngs=rngs) for each in widths])
    self._make_similarity(similarity, similarity_width, hidden_width, states, rngs)
    if order == 'luong':
      self.output = nnx.Linear(states + hidden_width, hidden_width, rngs=rngs)
    else:
      self.output = nnx.Linear(states + hidden_width + width, 2 * hidden_width, rngs=rngs)
    self.readout = axes.readout(hidden_width, target_vocab, use_bias=False, rngs=rngs)

  def _make_similarity(self, line, similarity_width, hidden_width, states, rngs):
    self.similarity = Scheme() if line is None else get(line)
    _check_compares(self.similarity)
    compared = similarity_width or hidden_width
    project = lambda width: nnx.Linear(width, compared, use_bias=False, rngs=rngs)
    self.query = project(hidden_width) if similarity_width else None
    self.key = project(states) if similarity_width or states != hidden_width else None
    dims = Dims(compared, num_heads=1, head_dim=compared)
    params = init(self.similarity, rngs.params(), dims)
    self.similarity_params = Parameters(self.similarity, params)

  def __call__(
    self,
    source: Side,
    target: Side,
    *,
    ids_key: PRNGKey | None = None,
    train_key: PRNGKey | None = None,
  ) -> Float[Array, 'B T V']:
    """Teacher forcing: logits for the token after each target token, the first a start mark.

    Args:
      source: what is read.
      target: what has been generated.
      ids_key: random key of place 0; None leaves ids unchanged.
      train_key: random key of dropout; None drops nothing.

    Raises:
      ValueError: if a row is seen to hold several sentences; in a compiled program, its logits are
        NaN.
    """
    outputs, _, _ = self._taught(source, target, ids_key, train_key)
    key = None if train_key is None else jax.random.fold_in(train_key, 2)
    return self.readout(dropout(outputs, self.dropout_rate, key))

  def begin(self, source: Side, capacity: int, key: PRNGKey | None = None) -> State:
    """Reads the sources, once; see `SequenceToSequence`.

    Raises:
      ValueError: as a call.
    """
    batch = source.tokens.shape[0]
    row = jnp.arange(batch)
    keys = [None, None]
    if key is not None:
      drawn = jax.vmap(lambda row: jax.random.split(jax.random.fold_in(key, row)))(row)
      keys = [drawn[:, 0], drawn[:, 1]]
    pos = jnp.broadcast_to(jnp.arange(capacity, dtype=jnp.int32), (batch, capacity))
    ids = _ids_by_row(self._target_embed, pos, keys[1])
    # The padding counts from 0 again, so that it changes no draw.
    real = jnp.where(source.segments != 0, _pos(source), 0)
    memory, carried = self._read(source, _ids_by_row(self.source_embed, real, keys[0]), None)
    return State(carried, memory, ids, jnp.zeros((batch,), jnp.int32))

  def step(self, tokens: Int[Array, ' B'], state: State) -> tuple[Float[Array, 'B V'], State]:
    """Logits for the token after the next target token of each row, and the state after it.

    Where a row has taken as many tokens as its state has places, its logits are NaN.
    """
    capacity = state.ids[0].shape[1]
    now = jnp.minimum(state.count, capacity - 1)[:, None]
    ids = [jnp.take_along_axis(each, now, axis=1) for each in state.ids]
    x = self._target_embed(tokens[:, None], ids).x[:, 0]
    carried, _ = self._advance(state.carried, x, state.count, state.memory)
    logits = jnp.where((state.count < capacity)[:, None], self.readout(carried.output), jnp.nan)
    return logits, state._replace(carried=carried, count=state.count + 1)

  def select(self, state: State, rows: Int[Array, ' M']) -> State:
    """The state of some rows, taken from those of a state."""
    return jax.tree.map(lambda x: x[rows], state)

  def attention(self, source: Side, target: Side) -> Mapping[str, Float[Array, 'L B H T S']]:
    """The attention weights of teacher forcing: 'cross', of one layer and one head."""
    _, queries, memory = self._taught(source, target, None, None)
    one_hot = jnp.eye(source.tokens.shape[1])[None]
    one_hot = jnp.broadcast_to(one_hot, (len(queries), *one_hot.shape[1:]))
    # The mean of one-hot vectors by some weights is the weights.
    weights = self.context(
      queries, _pos(target), target.segments != 0, memory._replace(states=one_hot)
    )
    return {'cross': weights[None, :, None]}

  def context(
    self,
    queries: Float[Array, 'B T N'],
    pos: Ids,
    real: Bool[Array, 'B T'],
    memory: Memory,
  ) -> Float[Array, 'B T _']:
    """The mean of the memory's states by the attention of each query.

    Args:
      queries: states of the decoder.
      pos: their ids, before place 0.
      real: False in the padding, whose context is zeros.
      memory: the source sentences.
    """
    q = queries if self.query is None else self.query(queries)
    found = attend(
      q[:, :, None],
      memory.keys[:, :, None],
      memory.states[:, :, None],
      self.similarity,
      self.similarity_params(),
      q_pos=pos,
      k_pos=memory.pos,
      q_segments=real.astype(jnp.int32),
      k_segments=memory.segments,
    )
    return found[:, :, 0]

  @property
  def _target_embed(self) -> Embedding:
    return self.source_embed if self.target_embed is None else self.target_embed

  def _taught(self, source: Side, target: Side, ids_key, train_key) -> tuple[Array, Array, Memory]:
    """The outputs for all target tokens, what asked for each of them, and the memory."""
    ids_keys = split_key(ids_key)
    fold = lambda i: None if train_key is None else jax.random.fold_in(train_key, i)
    source_ids = self.source_embed.ids(_pos(source), ids_keys[0])
    memory, carried = self._read(source, source_ids, fold(0))
    ids = self._target_embed.ids(_pos(target), ids_keys[1])
    x = self._embedded(self._target_embed, target, ids, fold(1))
    outputs, queries = self._decode(x, target, carried, memory)
    return outputs, queries, memory

  def _embedded(self, embed: Embedding, side: Side, ids, key) -> Float[Array, 'B T M']:
    """The embeddings after dropout; zeros in the padding, and NaN in rows of several sentences."""
    several = _several(side)
    x = dropout(embed(side.tokens, ids).x, self.dropout_rate, key)
    return jnp.where(several[:, None, None], jnp.nan, zero_padding(x, side.segments != 0))

  def _read(self, source: Side, ids, key) -> tuple[Memory, Carried]:
    """The encoder's states, and the decoder's first ones."""
    embedded = self.source_embed(source.tokens, ids, source.segments)
    x = self._embedded(self.source_embed, source, ids, key)
    encoded = self.encoder(embedded._replace(x=x))
    keys = encoded.x if self.key is None else self.key(encoded.x)
    memory = Memory(encoded.x, keys, (source.segments != 0).astype(jnp.int32), _pos(source))
    return memory, self._first(encoded)

  def _first(self, encoded: Encoded) -> Carried:
    last = pool('last', encoded)
    hidden_width = self.readout.in_features

    def carry(bridge):
      parts = bridge(last)
      hidden = jnp.tanh(parts[:, :hidden_width])
      memory = parts[:, hidden_width:]
      return (memory, hidden) if memory.shape[1] else hidden

    zeros = jnp.zeros((last.shape[0], hidden_width), last.dtype)
    return Carried(tuple(map(carry, self.bridges)), zeros)

  def _decode(self, x, target: Side, carried: Carried, memory: Memory) -> tuple[Array, Array]:
    """The outputs [B, T, N] for all tokens, and what asked for each of them."""
    by_token = jnp.moveaxis(x, 1, 0)
    if self.order == 'luong' and not self.input_feeding:
      # The cells read nothing of the attention: all tokens ask at once.
      _, states = jax.lax.scan(self._run_cells, carried.cells, by_token)
      states = jnp.moveaxis(states, 0, 1)
      context = self.context(states, _pos(target), target.segments != 0, memory)
      return self._output(states, context, x), states

    def step(carried, now):
      token, pos = now
      carried, query = self._advance(carried, token, pos, memory)
      return carried, (carried.output, query)

    _, outputs = jax.lax.scan(step, carried, (by_token, _pos(target).T))
    return jax.tree.map(lambda y: jnp.moveaxis(y, 0, 1), outputs)

  def _advance(
    self, carried: Carried, x: Float[Array, 'B M'], pos: Ids, memory: Memory
  ) -> tuple[Carried, Float[Array, 'B N']]:
    """One target token of each row: what is carried on, and what asked."""

    def context(query):
      every = jnp.ones((len(query), 1), bool)
      return self.context(query[:, None], pos[:, None], every, memory)[:, 0]

    if self.order == 'bahdanau':
      query = _hidden(carried.cells[-1])
      found = context(query)
      cells, state = self._run_cells(carried.cells, jnp.concatenate([x, found], axis=-1))
    else:
      read = jnp.concatenate([x, carried.output], axis=-1) if self.input_feeding else x
      cells, query = self._run_cells(carried.cells, read)
      state, found = query, context(query)
    return Carried(cells, self._output(state, found, x)), query

  def _run_cells(self, cells: tuple[Any, ...], x: Array) -> tuple[tuple[Any, ...], Array]:
    """One step of all layers: their carries, and the state of the last."""
    after = []
    for cell, carry in zip(self.cells, cells, strict=True):
      carry, x = cell(carry, x)
      after.append(carry)
    return tuple(after), x

  def _output(self, state: Array, context: Array, x: Array) -> Array:
    if self.order == 'luong':
      return jnp.tanh(self.output(jnp.concatenate([context, state], axis=-1)))
    pairs = self.output(jnp.concatenate([state, x, context], axis=-1))
    return pairs.reshape(*pairs.shape[:-1], -1, 2).max(-1)


def seq2seq_keys() -> Keys:
  """The keys of `config.model` that a `RecurrentEncoderDecoder` takes."""
  return keys_of(
    RecurrentEncoderDecoder, without=('source_vocab', 'target_vocab', 'scheme', 'rngs')
  )


CELLS = {'rnn': REAL.rnn, 'lstm': REAL.lstm, 'gru': REAL.gru}


def _check_embeds(given: Scheme | Sequence[Scheme], dims: Dims) -> Scheme:
  """The one scheme, which acts on real embeddings, or not at all.

  Raises:
    ValueError: if it does anything else, or there are several.
  """
  (scheme, *others) = (given,) if isinstance(given, Scheme) else given
  if others:
    raise ValueError(
      f'A recurrent model takes one scheme, but got {1 + len(others)} of them: patterns are for '
      'the layers of a Transformer.'
    )
  for part in scheme.parts or (scheme,):
    used = places(part)
    if used and not {'ids', 'embed'} & set(used):
      raise ValueError(
        'A recurrent model has no self-attention, and would lose what the scheme does in '
        f'{", ".join(used)}; it needs one that acts on embeddings, or none.'
      )
  if is_complex(scheme, dims):
    raise ValueError(
      'The cells of this recurrent model are real, but got a scheme of complex embeddings.'
    )
  return scheme


def _check_compares(similarity: Scheme) -> None:
  """Raises ValueError if a similarity does more than compare a query with a key."""
  for part in similarity.parts or (similarity,):
    other = {'ids', 'embed', 'values'} & set(places(part))
    other |= {name for name in ('prepare', 'init_model') if declares(part, name)}
    if other or part.traits.axes > 1:
      raise ValueError(
        'model.similarity must be a scheme that compares queries with keys, and does no more, but '
        f'got one with {", ".join(sorted(other)) or "several ids per token"}.'
      )


def _hidden(carry: Any) -> Array:
  """The hidden state of a cell, which is what it gives as its output."""
  return carry[1] if isinstance(carry, tuple) else carry


def _pos(side: Side) -> Ids:
  """The ids of all tokens, [B, T]."""
  pos = jnp.arange(side.tokens.shape[1], dtype=jnp.int32) if side.pos is None else side.pos
  return jnp.broadcast_to(pos, side.tokens.shape)


def _ids_by_row(embed: Embedding, pos: Int[Array, 'B T'], keys: Any) -> tuple[Ids, ...]:
  """Place 0, for each row by its own key."""
  if keys is None:
    return embed.ids(pos)
  return jax.vmap(embed.ids)(pos, keys)


def _several(side: Side) -> Bool[Array, ' B']:
  """Which rows hold several sentences.

  Raises:
    ValueError: if some are seen to.
  """
  several = jnp.asarray(side.segments > 1).any(1)
  traced = isinstance(several, jax.core.Tracer)
  if not traced and several.is_fully_addressable and np.asarray(several).any():
    raise ValueError(
      'A recurrent model reads one sentence in each row, but got rows of several: '
      f'{np.flatnonzero(several).tolist()}.'
    )
  return several
