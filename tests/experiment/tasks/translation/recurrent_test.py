"""The recurrent encoder and decoder, against its equations in loops over float64 numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import posjax
from posjax.experiment.tasks.translation import recurrent as seq2seq
from posjax.experiment.tasks.translation import search
from posjax.experiment.tasks.translation.recurrent import (
  Memory,
  RecurrentEncoderDecoder,
  seq2seq_keys,
)
from posjax.keys import check_section
from posjax.models.sides import SequenceToSequence, Side
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('attention_similarities')
M, N = 4, 6
SOURCE, TARGET = (9, 11)  # vocabularies
LENGTHS = (5, 1, 3), (2, 6, 4)  # of the sources, and of the targets


def made(source=SOURCE, target=TARGET, **changes):
  """A model of random parameters, which costs no compilation of its initial values."""
  options = {'cell': 'rnn', 'width': M, 'hidden_width': N, **changes}
  make = lambda: RecurrentEncoderDecoder(source, target, **options, rngs=nnx.Rngs(0))
  model, draw = nnx.eval_shape(make), np.random.default_rng(1).normal
  fill = lambda leaf: jnp.asarray(0.5 * draw(size=leaf.shape), leaf.dtype)
  nnx.update(model, jax.tree.map(fill, nnx.state(model)))
  return model


def side(vocab, lengths, width):
  """Random sentences; the padding holds token 0."""
  draw = np.random.default_rng(vocab).integers(1, vocab, (len(lengths), width))
  segments = (np.arange(width)[None] < np.array(lengths)[:, None]).astype(np.int32)
  return Side(jnp.asarray(draw * segments, jnp.int32), jnp.asarray(segments))


def sides():
  return side(SOURCE, LENGTHS[0], 6), side(SOURCE, LENGTHS[1], 7)


def calls(model, function, *args):
  """`function(model, *args)`, compiled."""
  graph, state = nnx.split(model)
  return jax.jit(lambda state, *args: function(nnx.merge(graph, state), *args))(state, *args)


def stepped(model, source, target, capacity):
  """The logits of `step` for all target tokens."""
  step = lambda state, tokens: model.step(tokens, state)[::-1]
  _, logits = jax.lax.scan(step, model.begin(source, capacity), target.tokens.T)
  return jnp.moveaxis(logits, 0, 1)


# The equations.


def wide(variable):
  return np.asarray(variable[...], np.float64)


def dense(layer, x):
  return x @ wide(layer.kernel) + (0 if layer.bias is None else wide(layer.bias))


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def advance(cell, carry, x):
  """One step of a cell: (carry, output)."""
  gates = lambda count, state: zip(
    np.split(dense(cell.dense_i, x), count),
    np.split(dense(cell.dense_h, state), count),
    strict=True,
  )
  if isinstance(cell, nnx.OptimizedLSTMCell):
    memory, state = carry
    i, f, g, o = (a + b for a, b in gates(4, state))
    memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
    state = sigmoid(o) * np.tanh(memory)
    return (memory, state), state
  if isinstance(cell, nnx.GRUCell):
    r, z, n = gates(3, carry)
    update, candidate = sigmoid(sum(z)), np.tanh(n[0] + sigmoid(sum(r)) * n[1])
    state = (1 - update) * candidate + update * carry
  else:
    ((a, b),) = gates(1, carry)
    state = np.tanh(a + b)
  return state, state


def read(encoder, inputs):
  """The encoder's states for one sentence, and those with which its directions end."""
  zeros = np.zeros(N)
  for layer in encoder.layers:
    cells = (layer.forward_rnn.cell, layer.backward_rnn.cell) if encoder.bidirectional else None
    directions = []
    for cell, order in zip(cells or (layer.cell,), (1, -1), strict=False):
      carry = (zeros, zeros) if isinstance(cell, nnx.OptimizedLSTMCell) else zeros
      states = []
      for x in inputs[::order]:
        carry, state = advance(cell, carry, x)
        states.append(state)
      directions.append(states[::order])
    inputs = np.concatenate(directions, axis=-1)
  ends = [each[-1 if place == 0 else 0] for place, each in enumerate(directions)]
  return inputs, np.concatenate(ends)


def compare(model, line, query, keys):
  """The similarity of a query and each key, from source 004's table."""
  params = {name: wide(each)[0] for name, each in model.similarity_params.held.items()}
  query = query if model.query is None else dense(model.query, query)
  keys = keys if model.key is None else dense(model.key, keys)
  if line == 'additive':
    hidden = np.tanh(query @ params['query'] + keys @ params['key'])
    return hidden @ params['vector']
  if line == 'general':
    return (query @ params['weights']) @ keys.T
  if line == 'cosine':
    return keys @ query / (np.linalg.norm(keys, axis=1) * np.linalg.norm(query))
  return keys @ query / (1 if line == 'unscaled' else len(query) ** 0.5)


def expected_logits(model, line, source, target):
  """The logits for one pair of sentences, without padding, token by token."""
  embed = lambda one, tokens: wide(one.table.embedding)[np.asarray(tokens)] * M**0.5
  states, ends = read(model.encoder, embed(model.source_embed, source))
  carries, logits, output = [], [], np.zeros(N)
  for bridge, cell in zip(model.bridges, model.cells, strict=True):
    first = dense(bridge, ends)
    hidden = np.tanh(first[:N])
    carries.append((first[N:], hidden) if isinstance(cell, nnx.OptimizedLSTMCell) else hidden)
  for y in embed(model.source_embed if model.target_embed is None else model.target_embed, target):
    query = carries[-1][1] if isinstance(carries[-1], tuple) else carries[-1]
    x = np.concatenate([y, output]) if model.input_feeding else y
    if model.order == 'bahdanau':
      context = mean(states, compare(model, line, query, states))
      x = np.concatenate([y, context])
    for place, cell in enumerate(model.cells):
      carries[place], x = advance(cell, carries[place], x)
    if model.order == 'bahdanau':
      output = dense(model.output, np.concatenate([x, y, context])).reshape(-1, 2).max(-1)
    else:
      context = mean(states, compare(model, line, x, states))
      output = np.tanh(dense(model.output, np.concatenate([context, x])))
    logits.append(dense(model.readout, output))
  return np.array(logits)


def mean(states, logits):
  weights = np.exp(logits - logits.max())
  return weights @ states / weights.sum()


FEW = [
  ({'cell': 'gru', 'order': 'luong', 'bidirectional': False}, 'none'),
  ({'cell': 'lstm', 'order': 'bahdanau', 'num_layers': 2}, 'additive(width=5)'),
]
SIMILARITIES = ('none', 'additive', 'general', 'cosine', 'unscaled')
ORDERS = ({'order': 'luong'}, {'order': 'luong', 'input_feeding': True}, {'order': 'bahdanau'})
SIZES = (
  {'bidirectional': False},
  {'num_layers': 2, 'similarity_width': 3},
  {'shared': True},
)
ALL = [
  ({'cell': cell, **order, **size}, line)
  for cell, order, line, size in itertools.product(
    ('rnn', 'lstm', 'gru'), ORDERS, SIMILARITIES, SIZES
  )
]


def with_nan_in_the_padding(model):
  """Token 0 is in the padding alone."""
  for embed in filter(None, (model.source_embed, model.target_embed)):
    embed.table.embedding[...] = embed.table.embedding[...].at[0].set(jnp.nan)


def agrees(options, line):
  """Whether call and steps equal the equations, for each row of a padded batch."""
  sizes = {'target': SOURCE} if options.get('shared') else {}
  model = made(similarity=None if line == 'none' else line, **options, **sizes)
  source, target = sides()
  with_nan_in_the_padding(model)
  both = lambda model, *sides: (model(*sides), stepped(model, *sides, 7))
  called, steps = calls(model, both, source, target)
  for i, (read, said) in enumerate(zip(*LENGTHS, strict=True)):
    expected = expected_logits(
      model, line.partition('(')[0], source.tokens[i, :read], target.tokens[i, :said]
    )
    assert error(called[i, :said], expected) < 2e-5
    assert error(steps[i, :said], expected) < 2e-5


@pytest.mark.parametrize(('options', 'line'), FEW)
def test_call_and_steps_equal_the_equations_of_each_sentence_alone(options, line):
  agrees(options, line)


def test_steps_equal_the_call_where_embeddings_and_similarity_know_positions():
  model = made(bidirectional=False, scheme=posjax.get('sinusoidal'), similarity='unscaled+alibi')
  source, target = sides()
  source = source._replace(pos=3 * jnp.arange(6))
  both = lambda model, *sides: (model(*sides), stepped(model, *sides, 7))
  called, steps = calls(model, both, source, target)
  real = target.segments[..., None]
  assert error(steps * real, called * real) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(('options', 'line'), ALL)
def test_all_cells_orders_and_similarities_equal_their_equations(options, line):
  agrees(options, line)


# Attention.


@pytest.mark.parametrize(
  ('line', 'name'),
  [
    ('cosine', 'cosine'),
    ('additive(width=6)', 'additive'),
    ('general', 'general'),
    ('unscaled', 'dot'),
    (None, 'scaled_dot'),
  ],
)
def test_the_decoder_reads_the_context_of_text_004(line, name):
  of = lambda kind: jnp.asarray(GOLDEN[f'c0_{kind}'], jnp.float32)
  (queries, width), keys = of('s').shape, len(of('h'))
  sizes = {'hidden_width': width, 'bidirectional': False, 'similarity': line}
  model = made(**sizes)
  held = model.similarity_params.held
  if name == 'additive':
    held['query'][...], held['key'][...] = jnp.split(of('W_add').T[None], 2, axis=1)
    held['vector'][...] = of('v_add')[None]
  if name == 'general':
    held['weights'][...] = of('W_general')[None]
  ones = jnp.ones((1, keys), jnp.int32)
  memory = Memory(of('h')[None], of('h')[None], ones, jnp.arange(keys)[None])
  pos, real = jnp.arange(queries)[None], jnp.ones((1, queries), bool)
  context = model.context(of('s')[None], pos, real, memory)
  assert error(context[0], of(f'{name}_context')) < 1e-5


def test_pictures_show_the_weights_of_each_target_token_over_the_words_of_its_source():
  model = made(order='bahdanau', similarity='general')
  source, target = sides()
  (weights,) = calls(model, lambda model, *sides: model.attention(*sides)['cross'], source, target)
  assert weights.shape == (3, 1, 7, 6)
  shown = (target.segments[:, :, None] * source.segments[:, None])[:, None]
  np.testing.assert_array_equal(weights > 0, shown > 0)
  np.testing.assert_allclose(weights.sum(-1)[:, 0], target.segments, rtol=1e-6)
  # The first token's query is the first state of the decoder.
  embedded = wide(model.source_embed.table.embedding)[np.asarray(source.tokens[0, :5])] * M**0.5
  states, ends = read(model.encoder, embedded)
  logits = compare(model, 'general', np.tanh(dense(model.bridges[0], ends)), states)
  assert error(weights[0, 0, 0, :5], mean(np.eye(5), logits)) < 2e-5


# The padding, and rows that cannot be read.


def loss(model, source, target):
  """The mean over the real tokens of the logits of token 1."""
  logits = model(source, target)[..., 1]
  return jnp.where(target.segments != 0, logits, 0).mean()


def test_the_padding_has_no_gradient_whatever_it_holds():
  model = made(bidirectional=False)
  with_nan_in_the_padding(model)
  grads = calls(model, nnx.grad(loss), *sides())
  for leaf in jax.tree.leaves(grads):
    assert jnp.isfinite(leaf).all()
  for embed in (grads.source_embed, grads.target_embed):
    rows = abs(embed.table.embedding[...]).max(1)
    assert not rows[0]
    assert (rows > 0).sum() > 3


def test_rows_of_several_sentences_are_refused_or_nan_and_others_are_read(unchecked):
  model = made(bidirectional=False)
  source, target = sides()
  packed = source._replace(segments=source.segments.at[0, 3:5].set(2))
  with pytest.raises(ValueError, match=r'reads one sentence in each row, .* several: \[0\]'):
    model(packed, target)
  logits = calls(model, lambda model, *sides: model(*sides), packed, target)
  assert jnp.isnan(logits[0, :2]).all()
  assert jnp.isfinite(logits[1:]).all()


def test_a_state_has_logits_for_as_many_tokens_as_it_was_made_for_and_rows_are_selected():
  model = made(bidirectional=False)
  source, _ = sides()
  rows = jnp.array([2, 0, 0])

  def run(model, source):
    state = model.begin(source, 1)
    logits, after = model.step(jnp.ones(3, jnp.int32), state)
    return logits, model.step(jnp.ones(3, jnp.int32), model.select(state, rows))[0], after.count, (
      model.step(jnp.ones(3, jnp.int32), after)[0]
    )  # fmt: skip

  logits, chosen, count, beyond = calls(model, run, source)
  assert error(chosen, logits[rows]) < 1e-6
  assert count.tolist() == [1, 1, 1]
  assert jnp.isnan(beyond).all()


@pytest.mark.slow
def test_random_ids_of_a_row_depend_on_neither_its_neighbours_nor_its_padding():
  model = made(bidirectional=False, scheme=posjax.get('randomized(max_length=99)+sinusoidal'))
  source, _ = sides()
  tokens = jnp.ones(3, jnp.int32)

  def run(model, source, key):
    state = model.begin(source, 4, key)
    return model.step(tokens[: len(state.count)], state)[0]

  key = jax.random.key(3)
  together = calls(model, run, source, key)
  alone = jax.tree.map(lambda x: x[:1, :5], source)  # the row without its padding
  assert error(calls(model, run, alone, key)[0], together[0]) < 1e-6
  assert error(calls(model, run, source, jax.random.key(4)), together) > 1e-3


# Initial values, options and their errors.


def test_an_lstm_starts_with_forget_gates_open_and_other_biases_zero():
  sizes = {'cell': 'lstm', 'width': 4, 'hidden_width': 2, 'bidirectional': False}

  @jax.jit  # which computes no other initial values
  def biases():
    model = RecurrentEncoderDecoder(8, 8, **sizes, rngs=nnx.Rngs(0))
    return [cell.dense_h.bias[...] for cell in (*model.cells, model.encoder.layers[0].cell)]

  for bias in biases():
    assert bias.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


def test_dropout_acts_on_the_embeddings_of_both_sides_and_on_the_outputs(monkeypatch):
  model, seen = made(dropout_rate=0.5, bidirectional=False), []

  def spy(x, rate, key):
    seen.append((x.shape, rate, key))
    return x

  monkeypatch.setattr(seq2seq, 'dropout', spy)
  source, target = sides()
  # The key is followed by its name, which no compiled program would tell.
  fold_in = jax.random.fold_in
  followed = lambda key, i: (key, i) if key == 'ours' else fold_in(key, i)
  monkeypatch.setattr(jax.random, 'fold_in', followed)
  for key in ('ours', None):
    nnx.eval_shape(lambda model, key=key: model(source, target, train_key=key), model)
  shapes, rates, keys = zip(*seen, strict=True)
  assert shapes == 2 * ((3, 6, M), (3, 7, M), (3, 7, N))
  assert set(rates) == {0.5}
  assert keys[:3] == (('ours', 0), ('ours', 1), ('ours', 2))
  assert keys[3:] == (None, None, None)


def test_it_has_the_calls_of_all_models_that_translate():
  assert isinstance(made(), SequenceToSequence)


def test_wrong_options_are_refused(unchecked):
  for options, told in [
    ({'cell': 'lstmm'}, "model.cell must be one of 'rnn', 'lstm', 'gru', but got 'lstmm'; did you"),
    ({'order': 'bahdana'}, "model.order must be one of 'luong', 'bahdanau', but got 'bahdana'"),
    ({'order': 'bahdanau', 'input_feeding': True}, 'model.input_feeding belongs to the order'),
    ({'shared': True}, 'shared by vocabularies of one size, but got 9 and 11'),
    ({'similarity': 'aditive'}, "'aditive'"),
    ({'similarity': 'randomized(max_length=9)'}, 'does no more, but got one with ids'),
    ({'similarity': 'unscaled+forgetting'}, 'does no more, but got one with prepare'),
    ({'scheme': 2 * [posjax.get('none')]}, 'takes one scheme, but got 2 of them'),
    ({'scheme': posjax.get('rope')}, 'no self-attention, and would lose .* in query, key'),
    ({'scheme': posjax.get('complex_order')}, 'are real, but got a scheme of complex embeddings'),
  ]:
    with pytest.raises(ValueError, match=told):
      made(**options)
  given = {'cell': 'gru', 'width': 4, 'hidden_width': 4}
  check_section('model', given, seq2seq_keys())
  with pytest.raises(ValueError, match=r"did you mean 'model.order'"):
    check_section('model', {**given, 'ordr': 'luong'}, seq2seq_keys())


# It learns.


@pytest.mark.slow
@pytest.mark.parametrize('cell', ['rnn', 'lstm', 'gru'])
@pytest.mark.parametrize('order', ['luong', 'bahdanau'])
def test_it_learns_to_reverse_sentences_and_says_them_by_greedy_search(cell, order):
  draw = np.random.default_rng(0)
  rows, width, vocab = 32, 7, 12
  lengths = draw.integers(1, width, rows)
  source, inputs, targets = np.zeros((3, rows, width), np.int32)
  for i, length in enumerate(lengths):
    words = draw.integers(3, vocab, length)
    source[i, : length + 1] = [*words, 2]
    inputs[i, : length + 1] = [1, *words[::-1]]
    targets[i, : length + 1] = [*words[::-1], 2]
  segments = jnp.asarray(np.arange(width)[None] <= lengths[:, None], jnp.int32)
  source, target = Side(jnp.asarray(source), segments), Side(jnp.asarray(inputs), segments)
  sizes = {'width': 32, 'hidden_width': 64, 'order': order, 'similarity': 'additive'}
  model = RecurrentEncoderDecoder(vocab, vocab, cell=cell, **sizes, rngs=nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

  def loss(model):
    log_probs = jax.nn.log_softmax(model(source, target))
    said = jnp.take_along_axis(log_probs, jnp.asarray(targets)[..., None], -1)[..., 0]
    return -(said * segments).sum() / segments.sum()

  @nnx.jit
  def train(model, optimizer):
    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value

  for _ in range(300):
    last = train(model, optimizer)
  assert last < 0.1
  limits = jnp.full(rows, width, jnp.int32)
  marks = {'start': 1, 'end': 2, 'max_lengths': limits, 'capacity': width}
  said = search.greedy(model, source, **marks)
  np.testing.assert_array_equal(said.tokens, targets)
  assert said.finished.all()
  best = search.beam_search(model, source, beams=3, alpha=0.6, **marks)
  np.testing.assert_array_equal(best.tokens, targets)


@pytest.mark.parametrize('line', ['rope(values=True)', 'cosine+shaw', 'sinusoidal'])
def test_a_similarity_that_does_more_than_compare_is_refused(line):
  message = 'compares queries with keys, and does no more, but got one with'
  with pytest.raises(ValueError, match=message):
    seq2seq._check_compares(posjax.get(line))
