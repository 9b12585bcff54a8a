"""The model that scores spans: the authors' arrays, and what it reads makes the difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from configs import parsing_paper
from posjax.experiment.tasks.parsing.model import Parser, Sizes, Spans
from posjax.models.blocks import Residual
from posjax.models.sentences import Sentences
from tests.models.text_made import jitted, moved
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('parser')
SIZES = Sizes(words=9, labels=5, characters=7, tags=4)
SMALL = {
  'width': 8,
  'num_heads': 2,
  'num_layers': 2,
  'hidden_width': 12,
  'label_width': 6,
  'pre_norm': False,
  'activation': 'relu',
}
LETTERS = {'characters': 'cnn', 'character_width': 6}


def made(scheme='concatenated', sizes=SIZES, **options):
  schemes = [posjax.get(line) for line in scheme.split('|')]
  return moved(Parser(sizes, schemes, rngs=nnx.Rngs(0), **{**SMALL, **options}))


def drawn(width, letters, lengths):
  """Sentences of these lengths; what stands in the padding is not 0 but for the letters."""
  draw, rows = np.random.default_rng(0).integers, len(lengths)
  segments = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
  count = draw(1, letters + 1, (rows, width, 1))
  characters = np.where(np.arange(letters) < count, draw(1, 7, (rows, width, letters)), 0)
  words, tags = draw(1, 9, (rows, width)), draw(1, 4, (rows, width))
  return Sentences(*map(jnp.asarray, (words, segments, characters, tags)))


def golden(name):
  return jnp.asarray(GOLDEN[name], jnp.float32)


def set_linear(layer, name):
  layer.kernel[...], layer.bias[...] = golden(f'{name}.weight').T, golden(f'{name}.bias')


def set_norm(layer, name):
  layer.scale[...], layer.bias[...] = golden(f'{name}.weight'), golden(f'{name}.bias')


def authors_parser():
  """The parser with the parameters of the authors' encoder, and of their scores of spans."""
  model = made('concatenated(max_length=10)', encoder='partitioned')
  (shared,) = model.embed.shared
  shared.held['table'][...] = golden('encparam_timing.timing_table')
  set_norm(model.norm, 'encparam_timing.norm')
  flat = lambda w: jnp.moveaxis(w, 0, 1).reshape(w.shape[1], -1)  # [h, in, d] to [in, h d]
  for at, block in enumerate(model.encoder.blocks):
    own = f'encparam_layers.{at}'
    for half, c in (('content', 'c'), ('position', 'p')):
      weights = golden(f'{own}.self_attn.w_qkv_{c}')
      for i, name in enumerate(('query', 'key', 'value')):
        getattr(getattr(block.attention, name), half).kernel[...] = flat(weights[:, :, i])
      out = golden(f'{own}.self_attn.w_o_{c}')
      getattr(block.attention.out, half).kernel[...] = out.reshape(-1, out.shape[-1])
      for i, name in ((1, 'up'), (2, 'down')):
        set_linear(getattr(getattr(block.feed_forward, name), half), f'{own}.linear{i}.linear_{c}')
    set_norm(block.norms[0], f'{own}.norm_attn')
    set_norm(block.norms[1], f'{own}.norm_ff')
  set_linear(model.spans.hidden, 'span_f_label_0')
  set_norm(model.spans.norm, 'span_f_label_1')
  set_linear(model.spans.readout, 'span_f_label_3')
  return model


def test_the_factored_encoder_and_the_scores_of_spans_equal_the_authors():
  model, real = authors_parser(), GOLDEN['enc_mask']
  # The last columns of a word's vector are never read: the table of positions replaces them.
  content = jnp.pad(golden('enc_content_in'), ((0, 0), (0, 0), (0, 4)), constant_values=9)
  pos = jnp.broadcast_to(jnp.arange(5), (2, 5))
  graph, state = nnx.split(model)

  @jax.jit
  def run(state, content, segments, annotations):
    model = nnx.merge(graph, state)
    embedded = model.embed.add(content, segments, model.embed.ids(pos), segments)
    embedded = embedded._replace(x=model.norm(embedded.x))
    return embedded.x, model.encoder(embedded).x, model.spans(annotations)

  segments = jnp.asarray(real, jnp.int32)
  timed, out, scores = run(state, content, segments, golden('span_annotations'))
  assert error(timed[real], GOLDEN['enc_after_timing'][real]) < 4e-5  # epsilon is 1e-5 there
  assert error(out[real], GOLDEN['enc_out'][real]) < 2e-5
  first, last = np.triu_indices(5)
  assert error(scores[:, first, last], GOLDEN['span_scores'][:, first, last]) < 3e-6
  np.testing.assert_array_equal(scores[..., 0], 0)


def padded(one, more):
  """The first sentence alone, in a wider row with other padding."""
  wider = [(0, 0), (0, more)]
  return Sentences(
    jnp.pad(one.words[:1], wider, constant_values=3),
    jnp.pad(one.segments[:1], wider),
    jnp.pad(one.characters[:1], [*wider, (0, 2)]),
    jnp.pad(one.tags[:1], wider, constant_values=2),
  )


def changed(array, row, place):
  """Another number, but 0 where there was 0."""
  other = np.array(array)
  other[row, place] = (other[row, place] % 3 + 1) * (other[row, place] > 0)
  return jnp.asarray(other)


def test_a_sentence_is_scored_alone_by_its_words_letters_and_tags_and_by_no_padding():
  run, many = jitted(made(encoder='partitioned', **LETTERS)), drawn(5, 4, (4, 0, 5))
  plain = np.asarray(run(sentences=many))
  assert plain.shape == (3, 5, 5, SIZES.labels)
  assert np.isfinite(plain).all()
  first, last = np.triu_indices(4)
  alone = np.asarray(run(sentences=padded(many, 3)))[0, first, last]
  np.testing.assert_allclose(alone, plain[0, first, last], rtol=1e-4, atol=1e-5)
  assert not plain[:, 2, 1].any()  # no span ends before it begins
  for part in ('words', 'characters', 'tags'):
    swap = lambda row, place, part=part: run(
      sentences=many._replace(**{part: changed(getattr(many, part), row, place)})
    )
    assert abs(swap(2, 2) - plain)[2].max() > 1e-3, part
    np.testing.assert_array_equal(np.asarray(swap(2, 2))[:2], plain[:2])
    if part != 'characters':
      np.testing.assert_array_equal(np.asarray(swap(0, 4))[0, first, last], plain[0, first, last])


@pytest.mark.slow
def test_a_silent_half_is_that_of_a_query_of_zeros_in_the_same_layer():
  """The parameters are the same, and nothing but the named layers is silent."""
  one, make = drawn(5, 4, (5,)), lambda **silent: made(encoder='partitioned', **silent)
  run = jax.jit(lambda model, one: model(one))
  found = {}
  for half in ('content', 'position'):
    for layer in (1, 2):
      model = make()
      query = getattr(model.encoder.blocks[layer - 1].attention.query, half)
      query.kernel[...] = jnp.zeros_like(query.kernel[...])
      silent = make(**{f'silent_{half}': (layer,)})
      zeroed, found[half, layer] = (np.asarray(run(each, one)) for each in (model, silent))
      np.testing.assert_allclose(found[half, layer], zeroed, rtol=1e-5, atol=1e-6)
  heard = np.asarray(run(make(), one))
  for scores in found.values():
    assert abs(scores - heard).max() > 1e-3


@pytest.mark.slow
def test_the_first_layers_attend_by_position_alone_where_the_pattern_says_so():
  model, one = made('position_only|learned(stddev=1.0)', encoder='transformer'), drawn(5, 4, (5,))
  weigh = jax.jit(lambda model, one: model.encoder.weigh(model._embed(one, None, None)).own)
  plain, other = weigh(model, one), weigh(model, one._replace(words=changed(one.words, 0, 2)))
  np.testing.assert_array_equal(plain[0], other[0])
  assert abs(plain[1] - other[1]).max() > 1e-3


def test_without_an_encoder_a_span_is_scored_by_the_words_at_its_ends():
  run, one = jitted(made('none', encoder='none')), drawn(6, 4, (6,))
  plain = run(sentences=one)
  difference = abs(plain - run(sentences=one._replace(words=changed(one.words, 0, 3))))[0].max(-1)
  # Fenceposts 3 and 4 are those at word 3, and a span is the difference of two of them.
  apart = {(first, last) for first, last in np.argwhere(difference > 1e-4).tolist()}
  touched = {3, 4}
  expected = {(i, j) for i in range(6) for j in range(i, 6) if touched & {i, j + 1}}
  assert apart == expected


@pytest.mark.slow
def test_dropout_is_shared_by_all_words_of_a_sentence_and_by_no_two_sentences(key):
  x = jnp.ones((2, 5, 64))
  norm = nnx.LayerNorm(64, rngs=nnx.Rngs(0))
  add = np.asarray(Residual(True, 0.5, True)(x, jnp.ones_like, norm, None, key))  # 1, or 1 + 2
  np.testing.assert_array_equal(add, np.repeat(add[:, :1], 5, 1))
  assert set(np.unique(add)) == {1.0, 3.0}
  assert not np.array_equal(add[0], add[1])
  # Equal words have equal vectors in training, too; no two numbers would be alike by themselves.
  words = jnp.full((2, 4), 3)
  same = Sentences(words, words * 0 + 1, jnp.full((2, 4, 3), 2), words)
  model = made('none', encoder='none', width=32, **LETTERS, vector_dropout=0.5, letter_dropout=0.5)
  dropped = np.asarray(jax.jit(lambda model: model.annotate(same, train_key=key))(model))
  np.testing.assert_allclose(dropped[:, 1:5], np.repeat(dropped[:, 1:2], 4, 1), rtol=1e-5)
  assert abs(dropped[0, 1] - dropped[1, 1]).max() > 1e-3
  for encoder in ('partitioned', 'transformer'):
    model = made(encoder=encoder, dropout_rate=0.5)
    part = model.encoder.blocks if encoder == 'partitioned' else model.encoder.stack.periods
    assert all(block.residual == Residual(False, 0.5, True) for block in part)


@pytest.mark.slow
def test_each_dropout_drops_in_training_alone(key):
  one = drawn(5, 4, (5, 3))
  for name in ('dropout_rate', 'vector_dropout', 'letter_dropout', 'character_dropout'):
    run = jitted(made(encoder='partitioned', **LETTERS, **{name: 0.5}))
    plain = run(sentences=one)
    assert abs(plain - run(sentences=one, train_key=key)).max() > 1e-3, name
    np.testing.assert_array_equal(plain, run(sentences=one))


@pytest.mark.slow
def test_hidden_words_are_unknown_ones(key):
  model, one = made(encoder='partitioned', word_dropout=0.9999999), drawn(5, 4, (5, 3))
  run = jitted(model)
  unknown = one._replace(words=jnp.ones_like(one.words))
  np.testing.assert_allclose(run(sentences=one, train_key=key), run(sentences=unknown), rtol=1e-5)
  assert abs(run(sentences=one) - run(sentences=unknown)).max() > 1e-3


def test_what_does_not_fit_is_refused():
  refused = lambda message: pytest.raises(ValueError, match=message)
  with refused('from 1 to 2, but got'):
    made(encoder='partitioned', silent_content=(3,))
  with refused('got False for both content and position'):
    made(encoder='partitioned', silent_content=(1,), silent_position=(1,))
  with refused('Partitioned layers are real'):
    made('complex_order', encoder='partitioned')
  with refused('The pattern of 2 layers must divide num_layers, but got 3'):
    made('concatenated|none', encoder='partitioned', num_layers=3)
  with refused("The encoder 'none' has no attention"):
    made('rope', encoder='none')
  with refused('half of the features, but got an odd 5'):
    Spans(5, 4, 3, rngs=nnx.Rngs(0))
  with refused('a label besides that of no constituent, but got 1'):
    Spans(4, 4, 1, rngs=nnx.Rngs(0))


def test_the_papers_config_makes_a_model_of_its_size():
  # Half of the width each for content and position: 8 layers of 2 x 4 matrices of 512 x 512, and of
  # 2 x 2 of 512 x 1,024; the layer that scores spans has 1,024 x 250, and an LSTM reads letters.
  config = parsing_paper.get_config()
  scheme = posjax.get(config.scheme)
  sizes = Sizes(words=1, labels=2, characters=1)
  make = lambda: Parser(sizes, scheme, rngs=nnx.Rngs(0), **config.model.to_dict())
  params = nnx.state(nnx.eval_shape(make), nnx.Param)
  assert round(sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6) == 34
