"""Models of sentence pairs: their formulas, and what must make no difference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.experiment.tasks.sentence_pairs import model as pairs
from posjax.experiment.tasks.sentence_pairs.esim import ESIM
from posjax.experiment.tasks.sentence_pairs.gaussian_transformer import GaussianTransformer
from posjax.experiment.tasks.sentence_pairs.model import PairModel, Sentence
from posjax.experiment.tasks.sentence_pairs.one_row import OneRow, joined
from tests.support.loops import error

VOCAB, NGRAMS, LABELS = 7, 5, 3
LENGTHS = [(3, 2), (1, 4), (4, 4)]  # words of premise and hypothesis
WORDS = {'word_width': 6, 'char_width': 3, 'train_words': True, 'train_characters': True}
FEED = {'pre_norm': False, 'activation': 'relu'}
LAYERS = {'width': 8, 'num_layers': 1, 'num_heads': 2, **FEED}
MAKE = {
  'gaussian_transformer': (
    GaussianTransformer,
    'sinusoidal+gaussian',
    {**LAYERS, 'interaction_layers': 1, 'ff_width': 8},
  ),
  'esim': (ESIM, 'none', {'hidden_width': 4}),
  'one_row': (OneRow, 'rope', {**LAYERS, 'encoder': 'transformer', 'hidden_width': 8}),
  'one_row_lstm': (
    OneRow,
    'none',
    {'encoder': 'lstm', 'width': 8, 'hidden_width': 4, 'num_layers': 1, 'bidirectional': True},
  ),
}
# ESIM's formula below is computed for each pair by itself, without padding.
each_model = pytest.mark.parametrize(
  'name',
  [
    'gaussian_transformer',
    *(pytest.param(each, marks=pytest.mark.slow) for each in MAKE if each[0] != 'g'),
  ],
)


def made(name, ngrams=NGRAMS, **changes):
  make, scheme, sizes = MAKE[name]
  scheme = posjax.get(changes.pop('scheme', scheme))
  words = {key: changes.pop(key, value) for key, value in WORDS.items()}
  return make(VOCAB, ngrams, LABELS, scheme, rngs=nnx.Rngs(0), **sizes, **words, **changes)


def sentences(width, lengths=LENGTHS, ngrams=NGRAMS):
  """The same words in rows of any width, each side."""
  rng = np.random.default_rng(0)
  sides = [np.zeros((len(lengths), width), np.int32) for _ in range(2)]
  grams = [np.zeros((len(lengths), width, 2 if ngrams else 0), np.int32) for _ in range(2)]
  for row, counts in enumerate(lengths):
    for side, count in enumerate(counts):
      sides[side][row, :count] = rng.integers(1, VOCAB, count)
      drawn = rng.integers(0, NGRAMS, (count, 2))
      grams[side][row, :count] = drawn if ngrams else drawn[:, :0]
  return [Sentence(jnp.asarray(x), jnp.asarray(g)) for x, g in zip(sides, grams, strict=True)]


@functools.cache
def compiled(name):
  """A model, and its logits and alignment, compiled once for each width of sentences."""
  model = made(name)
  graph, _ = nnx.split(model)

  @jax.jit
  def run(state, *given):
    model = nnx.merge(graph, state)
    return model(*given), model.alignment(*given)

  return model, run


@pytest.mark.slow
@each_model
def test_padding_changes_nothing_and_a_pair_does_not_know_its_neighbours(name):
  model, run = compiled(name)
  assert isinstance(model, PairModel)
  state = nnx.state(model)
  found, _ = run(state, *sentences(4))
  assert found.shape == (3, LABELS)
  assert np.isfinite(found).all()
  assert error(run(state, *sentences(7))[0], found) < 1e-5
  turn = lambda x: jnp.roll(x, 1, axis=0).at[0].set(0)  # a row that is filled up
  moved, _ = run(state, *jax.tree.map(turn, sentences(4)))
  assert error(moved[1:], found[:2]) < 1e-5
  assert np.isfinite(moved).all()
  assert error(run(state, *reversed(sentences(4)))[0], found) > 1e-3  # the sides are two


@pytest.mark.parametrize('name', ['gaussian_transformer', 'esim'])
def test_a_swapped_pair_has_the_same_features_swapped(name):
  model, run = compiled(name)
  one, other = sentences(4)
  (_, there), (_, back) = (run(nnx.state(model), *given) for given in ((one, other), (other, one)))
  assert error(back['hypothesis'], there['premise']) < 1e-5
  assert error(back['premise'], there['hypothesis']) < 1e-5
  # With a dense layer that treats both sides alike, the label cannot depend on their order.
  alike = nnx.clone(model)
  first = alike.predict[0] if name == 'gaussian_transformer' else alike.hidden
  half = first.kernel.shape[0] // 2
  first.kernel[...] = jnp.concatenate([first.kernel[...][:half]] * 2)
  state = nnx.state(alike)
  assert error(run(state, other, one)[0], run(state, one, other)[0]) < 1e-5


@pytest.mark.parametrize('name', ['gaussian_transformer', 'esim'])
def test_an_alignment_is_a_distribution_over_the_words_of_the_other_sentence(name):
  model, run = compiled(name)
  _, found = run(nnx.state(model), *sentences(4))
  for side, (reader, read) in {'premise': (0, 1), 'hypothesis': (1, 0)}.items():
    for row, lengths in enumerate(LENGTHS):
      weights = np.asarray(found[side])[:, row, :, : lengths[reader]]
      np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
      assert (weights[..., lengths[read] :] == 0).all()


def test_a_sentence_without_words_gets_no_weight_and_its_gradient_is_finite():
  model, run = compiled('esim')
  logits, found = run(nnx.state(model), *sentences(4, [(3, 0), (0, 2), (2, 2)]))
  assert np.isfinite(logits).all()
  assert (np.asarray(found['premise'])[:, 0] == 0).all()
  assert (np.asarray(found['hypothesis'])[:, 1] == 0).all()
  # ESIM has its weights from this function of JAX, which must do so for their gradient, too.
  scores, real = jnp.array([[[3.0, 1e4]], [[2.0, 1.0]]]), jnp.array([[True, False], [False] * 2])
  weigh = lambda x: jax.nn.softmax(x, where=real[:, None])
  np.testing.assert_array_equal(weigh(scores), [[[1, 0]], [[0, 0]]])
  assert np.isfinite(jax.grad(lambda x: weigh(x)[..., 0].sum())(scores)).all()


# Formulas, in float64.


def wide(x):
  return np.asarray(x, np.float64)


def dense(layer, x):
  return x @ wide(layer.kernel[...]) + wide(layer.bias[...])


def relu(x):
  return np.maximum(x, 0)


def test_the_comparison_is_the_papers_word_by_word():
  model, given = compiled('gaussian_transformer')[0], pairs.both(*sentences(4))
  x, y = jax.random.normal(jax.random.key(1), (2, 6, 4, 8))
  found = model.compared(given, x, y)
  lengths = [count for side in zip(*LENGTHS, strict=True) for count in side]
  for row, length in enumerate(lengths):
    total = np.zeros(8)
    for word in range(length):
      both = np.concatenate([wide(x)[row, word], wide(y)[row, word]])
      total += dense(model.compare[1], relu(dense(model.compare[0], both)))
    assert error(found[row], total / np.sqrt(length)) < 1e-5


def test_the_embedding_is_the_word_and_the_largest_of_its_ngrams_and_sinusoids():
  (model, _), (given, _) = compiled('gaussian_transformer'), sentences(4)
  table = wide(model.words.table.embedding[...]) * np.sqrt(6)
  grams = wide(model.words.characters.embedding[...]) * np.sqrt(3)
  found = np.asarray(model._embedded(given, None, None).x)
  tokens, each = np.asarray(given.tokens), np.asarray(given.ngrams)
  for row, place in np.ndindex(3, 4):
    if place >= LENGTHS[row][0]:
      continue
    own = [grams[i] for i in each[row, place] if i]
    characters = np.max(own, axis=0) if own else np.zeros(3)
    x = np.concatenate([table[tokens[row, place]], characters])
    angles = place / 10000 ** (np.arange(4) / 4)
    waves = np.stack([np.sin(angles), np.cos(angles)], -1).ravel()
    expected = x @ wide(model.project.kernel[...]) + waves
    assert error(found[row, place], expected) < 1e-5


def _lstm(cell, x):
  """The states of Flax's cell over rows of words, from zeros; its gates are i, f, g, o."""
  kernel, recurrent = wide(cell.dense_i.kernel[...]), wide(cell.dense_h.kernel[...])
  bias = wide(cell.dense_h.bias[...])
  state = memory = np.zeros(len(recurrent))
  sigmoid, states = lambda x: 1 / (1 + np.exp(-x)), []
  for word in x:
    i, f, g, o = np.split(word @ kernel + state @ recurrent + bias, 4)
    memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
    state = sigmoid(o) * np.tanh(memory)
    states.append(state)
  return np.array(states)


def _bilstm(encoder, x):
  layer = encoder.layers[0]
  forward, backward = layer.forward_rnn.cell, layer.backward_rnn.cell
  return np.concatenate([_lstm(forward, x), _lstm(backward, x[::-1])[::-1]], axis=-1)


def test_esim_is_the_papers():
  (model, run), given = compiled('esim'), sentences(4)
  found, _ = run(nnx.state(model), *given)
  table = wide(model.words.table.embedding[...]) * np.sqrt(6)
  grams = wide(model.words.characters.embedding[...]) * np.sqrt(3)

  def embed(side, row, length):
    words = []
    for place in range(length):
      own = [grams[i] for i in np.asarray(side.ngrams)[row, place] if i]
      characters = np.max(own, axis=0) if own else np.zeros(3)
      words.append(np.concatenate([table[side.tokens[row, place]], characters]))
    return np.array(words)

  softmax = lambda e: np.exp(e) / np.exp(e).sum(-1, keepdims=True)
  for row, lengths in enumerate(LENGTHS):
    sides = zip(given, lengths, strict=True)
    a, b = (_bilstm(model.encode, embed(side, row, length)) for side, length in sides)
    e = a @ b.T
    pooled = []
    for own, read in ((a, softmax(e) @ b), (b, softmax(e.T) @ a)):
      m = np.concatenate([own, read, own - read, own * read], axis=-1)
      v = _bilstm(model.compose, relu(dense(model.project, m)))
      pooled += [v.mean(0), v.max(0)]
    expected = dense(model.readout, np.tanh(dense(model.hidden, np.concatenate(pooled))))
    assert error(found[row], expected) < 1e-5


def test_both_sentences_stand_in_one_row_with_a_separator_and_no_padding_between():
  one, other = sentences(4)
  row, second = jax.tree.map(
    np.asarray, jax.jit(functools.partial(joined, separator=VOCAB))(one, other)
  )
  one, other = jax.tree.map(np.asarray, (one, other))
  for at, (first, last) in enumerate(LENGTHS):
    words = [*one.tokens[at, :first], VOCAB, *other.tokens[at, :last]]
    rest = 9 - len(words)
    np.testing.assert_array_equal(row.tokens[at], [*words, *[0] * rest])
    np.testing.assert_array_equal(second[at], [0] * (first + 1) + [1] * last + [0] * rest)
    grams = np.concatenate([one.ngrams[at, :first], [[0, 0]], other.ngrams[at, :last]])
    np.testing.assert_array_equal(row.ngrams[at, : len(words)], grams)
    assert not row.ngrams[at, len(words) :].any()


# Vectors that are trained, and vectors that are not.


@pytest.mark.parametrize(
  'name',
  ['esim', *(pytest.param(each, marks=pytest.mark.slow) for each in MAKE if each != 'esim')],
)
def test_frozen_vectors_are_no_parameters_and_others_have_gradients(name):
  model = made(name, train_words=False, train_characters=True)
  graph, params, rest = nnx.split(model, nnx.Param, ...)
  total = lambda params: nnx.merge(graph, params, rest).words(sentences(4)[0]).sum()
  grads = nnx.to_pure_dict(jax.grad(total)(params))
  assert 'table' not in grads['words']
  assert np.abs(grads['words']['characters']['embedding']).max() > 0
  frozen = made(name, train_words=True, train_characters=False)
  assert 'characters' not in nnx.to_pure_dict(nnx.state(frozen, nnx.Param))['words']
  np.testing.assert_array_equal(  # drawn alike, whether they are trained or not
    frozen.words.characters.embedding[...], model.words.characters.embedding[...]
  )


def test_vectors_of_a_file_are_the_first_rows_of_the_table():
  vectors = np.random.default_rng(0).normal(size=(VOCAB, 6)).astype(np.float32)
  for name in ('gaussian_transformer', 'one_row'):
    table = made(name, vectors=vectors, train_words=False).words.table.embedding[...]
    np.testing.assert_array_equal(table[:VOCAB], vectors)
    assert len(table) == VOCAB + (name == 'one_row')
  with pytest.raises(ValueError, match=r'vectors must be \[V, M\] = \(7, 6\), but got \(7, 5\)'):
    made('esim', vectors=vectors[:, :5])


@pytest.mark.parametrize(
  ('name', 'changes', 'message'),
  [
    ('gaussian_transformer', {'scheme': 'complex_order'}, 'schemes of real embeddings'),
    ('esim', {'scheme': 'complex_order'}, 'schemes of real embeddings'),
    ('esim', {'scheme': 'gaussian'}, 'encoder of ESIM has no attention, .* does in bias'),
    ('one_row_lstm', {'scheme': 'gaussian'}, "'lstm' has no attention"),
  ],
)
def test_what_a_model_cannot_use_is_refused(name, changes, message):
  with pytest.raises(ValueError, match=message):
    made(name, **changes)


def test_inputs_of_another_form_are_refused():
  with pytest.raises(ValueError, match=r'rows of the same width, but premises are \(3, 4\) and'):
    made('esim')(sentences(4)[0], sentences(5)[1])
  with pytest.raises(ValueError, match='reads no n-grams of a word, but got 2'):
    made('esim', ngrams=0)(*sentences(4))
