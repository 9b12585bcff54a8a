"""The model that tags words: what it reads makes the difference, and nothing else does."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.experiment.tasks.tagging.model import Field, Sizes, Tagger
from posjax.models.sentences import Sentences
from tests.models.text_made import jitted, moved

SIZES = Sizes(words=9, characters=7, bigrams=8)
TAGS = ('O', 'B-x', 'I-x', 'E-x', 'S-x')
SMALL = {'width': 8, 'num_heads': 2, 'num_layers': 1, 'hidden_width': 8, 'word_width': 4}
TENER = {'encoder': 'transformer', 'pre_norm': False, 'activation': 'relu', **SMALL}
LSTM = {'encoder': 'lstm', **SMALL}
LETTERS = {
  'character_width': 6,
  'character_heads': 3,
  'character_hidden': 4,
  'character_scheme': 'tener',
}
KINDS = {
  'transformer': ('tener', {**TENER, **LETTERS, 'characters': 'transformer', 'bigram_width': 3}),
  'cnn': ('sinusoidal+rope', {**TENER, **LETTERS, 'characters': 'cnn'}),
  'lstm': ('none', {**LSTM, **LETTERS, 'characters': 'lstm'}),
}


def made(scheme='tener', **options):
  return moved(Tagger(SIZES, TAGS, posjax.get(scheme), rngs=nnx.Rngs(0), **options))


def drawn(rows, width, letters, lengths):
  """Sentences of these lengths; what stands in the padding is not 0 but for the letters."""
  draw = np.random.default_rng(0).integers
  segments = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
  count = draw(1, letters + 1, (rows, width, 1))
  characters = np.where(np.arange(letters) < count, draw(1, 7, (rows, width, letters)), 0)
  words, bigrams = draw(1, 9, (rows, width)), draw(1, 8, (rows, width))
  arrays = {'words': words, 'segments': segments, 'characters': characters, 'bigrams': bigrams}
  return Sentences(**{name: jnp.asarray(array) for name, array in arrays.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind', ['cnn', *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('transformer', 'lstm'))]
)
def test_neither_padding_nor_other_sentences_make_a_difference(kind):
  scheme, options = KINDS[kind]
  run = jitted(made(scheme, **options))
  many = drawn(3, 6, 4, (4, 0, 6))
  out = np.asarray(run(sentences=many))
  assert np.isfinite(out).all()
  wider = [(0, 0), (0, 3)]
  padded = Sentences(
    jnp.pad(many.words[:1], wider, constant_values=3),
    jnp.pad(many.segments[:1], wider),
    jnp.pad(many.characters[:1], [*wider, (0, 2)], constant_values=0),
    bigrams=jnp.pad(many.bigrams[:1], wider, constant_values=5),
  )
  alone = np.asarray(run(sentences=padded))
  np.testing.assert_allclose(alone[0, :4], out[0, :4], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_reads_words_letters_and_bigrams_and_nothing_in_the_padding():
  scheme, options = KINDS['transformer']
  run, one = jitted(made(scheme, **options)), drawn(3, 6, 4, (6, 4, 6))
  plain = np.asarray(run(sentences=one))
  for part in ('words', 'characters', 'bigrams'):
    other = np.array(getattr(one, part))
    other[0, 2, ...] = (other[0, 2, ...] % 5 + 1) * (other[0, 2, ...] > 0)
    changed = np.asarray(run(sentences=one._replace(**{part: jnp.asarray(other)})))
    assert abs(changed - plain)[0, 2].max() > 1e-3, part
    np.testing.assert_array_equal(changed[1:], plain[1:])
    other = np.array(getattr(one, part))
    other[1, 4:] = np.minimum(other[1, 4:] + 1, 6)
    padded = np.asarray(run(sentences=one._replace(**{part: jnp.asarray(other)})))
    np.testing.assert_array_equal(padded[1, :4], plain[1, :4])


def test_only_a_scheme_that_is_even_gives_a_reversed_sentence_the_reversed_emissions():
  """So no even scheme knows left from right: what follows from the data generator is exact."""
  one = drawn(1, 6, 4, (6,))
  back = Sentences(one.words[:, ::-1], one.segments)
  forth = Sentences(one.words, one.segments)
  for scheme, even in (('tener(even=True)', True), ('alibi', True), ('tener', False)):
    run = jitted(made(scheme, **TENER))
    outs = [np.asarray(run(sentences=each)) for each in (forth, back)]
    difference = abs(outs[0] - outs[1][:, ::-1]).max()
    assert difference < 1e-5 if even else difference > 1e-2


def test_without_an_output_projection_heads_are_joined():
  joined, projected = (
    Tagger(SIZES, TAGS, posjax.get('tener'), output_projection=out, rngs=nnx.Rngs(0), **TENER)
    for out in (False, True)
  )
  own = nnx.to_flat_state(nnx.state(projected, nnx.Param))
  kept = dict(nnx.to_flat_state(nnx.state(joined, nnx.Param)))
  outs = [(path, leaf) for path, leaf in own if path not in kept]
  ((path, leaf),) = outs
  assert 'out' in path
  leaf = leaf.replace(jnp.eye(8).reshape(1, 2, 4, 8))
  nnx.update(projected, nnx.from_flat_state([*kept.items(), (path, leaf)]))
  one = drawn(1, 6, 4, (6,))
  results = [np.asarray(jitted(model)(sentences=one)) for model in (joined, projected)]
  np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_hidden_words_are_unknown_ones():
  model = made(**TENER, word_dropout=0.9999999)
  one = drawn(1, 6, 4, (4,))
  run = jitted(model)
  hidden = run(sentences=one, train_key=jax.random.key(0))
  np.testing.assert_allclose(
    hidden[:, :4], run(sentences=one._replace(words=one.words * 0 + 1))[:, :4]
  )
  assert abs(hidden - run(sentences=one))[:, :4].max() > 1e-3


@pytest.mark.slow
def test_each_dropout_drops_in_training_alone():
  one = drawn(1, 6, 4, (6,))
  scheme, options = KINDS['transformer']
  for name in ('dropout_rate', 'vector_dropout', 'character_dropout', 'readout_dropout'):
    run = jitted(made(scheme, **{**options, name: 0.5}))
    plain, dropped = run(sentences=one), run(sentences=one, train_key=jax.random.key(0))
    assert abs(plain - dropped).max() > 1e-3, name
    np.testing.assert_array_equal(plain, run(sentences=one))


def _paths(field, emissions):
  """The score of every path over a sentence, in float64."""
  transitions, start, end = (
    np.asarray(leaf[...], np.float64) for leaf in (field.between, field.start, field.end)
  )
  emissions = np.asarray(emissions, np.float64)
  count, kinds = emissions.shape
  for path in itertools.product(range(kinds), repeat=count):
    score = start[path[0]] + end[path[-1]] + sum(emissions[at, tag] for at, tag in enumerate(path))
    yield path, score + sum(transitions[pair] for pair in itertools.pairwise(path))


def _is_legal(path):
  inside = False
  for tag in path:
    if inside != (TAGS[tag][0] in 'IE'):
      return False
    inside = TAGS[tag][0] in 'BI'
  return not inside


@pytest.mark.parametrize('constrained', [False, True])
def test_the_loss_is_the_sum_over_all_paths_and_the_answer_the_best_legal_one(constrained):
  field = moved(Field(TAGS, constrained))
  emissions = np.random.default_rng(3).normal(size=(2, 4, 5)).astype(np.float32)
  tags, lengths = np.array([[1, 3, 4, 0], [4, 1, 3, 2]]), np.array([4, 3])
  loss = field.nll(*map(jnp.asarray, (emissions, tags, lengths)))
  found, scores = field.decode(jnp.asarray(emissions), jnp.asarray(lengths))
  for row, length in enumerate(lengths):
    paths = dict(_paths(field, emissions[row, :length]))
    right = tuple(tags[row, :length].tolist())
    counted = [score for path, score in paths.items() if not constrained or _is_legal(path)]
    expected = np.log(np.exp(counted).sum()) - paths[right]
    np.testing.assert_allclose(loss[row], expected, rtol=1e-5)
    best = max(filter(_is_legal, paths), key=paths.__getitem__)
    assert tuple(np.asarray(found[row, :length]).tolist()) == best
    np.testing.assert_allclose(scores[row], paths[best], rtol=1e-5)


@pytest.mark.slow
def test_attention_weights_are_a_transformers():
  one = drawn(2, 6, 4, (6, 3))
  weights = np.asarray(made(**TENER).weigh(one).own)
  assert weights.shape == (1, 2, 2, 6, 6)
  np.testing.assert_allclose(weights[:, 1, :, :3].sum(-1), 1, rtol=1e-5)
  assert not weights[:, 1, :, :, 3:].any()
  with pytest.raises(ValueError, match='those of a Transformer, but the encoder is none'):
    made('none', **LSTM).weigh(one)


@pytest.mark.slow
def test_a_complex_scheme_makes_a_complex_encoder_and_real_emissions():
  one = drawn(1, 6, 4, (6,))
  out = made('complex_order', **TENER)(one)
  assert out.shape == (1, 6, 5)
  assert out.dtype == jnp.float32
