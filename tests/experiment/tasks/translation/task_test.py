"""The task of translation: what it reads, scores and says, and that it learns."""

import functools
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sacrebleu
from flax import nnx
from matplotlib.figure import Figure

import posjax
from configs import (
  complex_order_translation_paper,
  multi30k,
  translation,
  translation_big_paper,
  translation_paper,
  translation_recurrent,
)
from posjax.experiment import ask, evaluation, sharding
from posjax.experiment.run import train
from posjax.experiment.task import get_task
from posjax.experiment.tasks.translation import generated
from posjax.experiment.tasks.translation.batches import batch as make_batch
from posjax.experiment.tasks.translation.search import greedy
from posjax.experiment.tasks.translation.vocabulary import END, START, Coded, restore
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.sides import Side

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
PAIRS = [
  ('ein Hund', 'a dog'),
  ('zwei Hunde', 'two dogs'),
  ('eine Katze', 'a cat'),
  ('zwei Katzen laufen', 'two cats run'),
] * 4
KEY = jax.random.key(0)
JUDGED = [('ein Hund läuft', 'a dog runs'), ('', ''), ('zwei Katzen', 'two cats')]


@pytest.fixture
def folder(tmp_path):
  for name, pairs in (('train', PAIRS), ('val', JUDGED)):
    for side, language in enumerate(('de', 'en')):
      lines = ''.join(f'{pair[side]}\n' for pair in pairs)
      (tmp_path / f'{name}.{language}').write_text(lines)
  return f'file:{tmp_path}'


def configured(config, data, **changes):
  config.task.data = data
  config.task.widths = (4, 8)
  if data.startswith('file:'):
    config.task.source, config.task.target = 'de', 'en'
  small = {'model.width': 8, 'model.num_layers': 1}
  recurrent = 'cell' in config.model
  small |= {'model.hidden_width': 8} if recurrent else {'model.num_heads': 2, 'model.ff_width': 8}
  config.model.shared = False
  config.update_from_flattened_dict(small | changes)
  config.batch_size = 2
  return config


def made(data, scheme='none', config=translation, **changes):
  config = configured(config.get_config(), data, **changes)
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  shared = {'seed': 0, 'batch_size': 2}
  schemes = [posjax.get(line) for line in scheme.split('|')]
  return get_task(name)(schemes, config.model.to_dict(), **shared, **arguments)


def scores(task, name, leave_out=False):
  """A score of an untrained model."""
  graph, state = nnx.split(task.model(nnx.Rngs(0)))
  (found,) = [each for each in task.evaluations if each.name == name]
  return evaluation.evaluate(found, graph, state, sharding.make_mesh(), KEY, leave_out)


def test_it_says_what_it_read_and_how_it_scores(folder):
  facts = made(folder).facts
  assert facts['pairs'] == '16 to learn from, 3 held out (val.de and val.en)'
  assert facts['empty'] == '1 held-out pairs have an empty side'
  assert facts['scores'].startswith('BLEU nrefs:1|case:mixed|')
  assert len(facts['sha256']) == 64


def test_every_sentence_is_scored_once_by_sacrebleu_also_an_empty_one(folder):
  task = made(folder, **{'task.widths': (4,)})  # one of them is wider
  graph, state = nnx.split(task.model(nnx.Rngs(0)))
  first = task.evaluations[0]
  said = []
  for batch, arrays in evaluation.predictions(
    first, graph, state, sharding.make_mesh(), jax.random.key(0)
  ):
    said += first.metrics['bleu'].update(arrays, batch)
  assert [number for number, _ in sorted(said)] == [0, 1, 2]
  hypotheses = [text for _, text in sorted(said)]
  score = scores(task, 'beam 4', leave_out=True)
  targets = [target for _, target in JUDGED]
  expected = sacrebleu.corpus_bleu(hypotheses, [targets]).score
  assert score.values['bleu'] == pytest.approx(expected)
  assert score.counted == 3
  without = [
    [[text for i, text in enumerate(each) if i != left] for each in (hypotheses, targets)]
    for left, _ in said  # in the order of the rows; one that fills up the last batch is no group
  ]
  expected = [sacrebleu.corpus_chrf(theirs, [right]).score for theirs, right in without]
  assert score.left_out['chrf'] == pytest.approx(expected)
  assert len(set(expected)) > 1


@pytest.mark.parametrize('config', [translation, translation_recurrent])
def test_own_tokens_are_those_of_greedy_search_one_by_one(folder, config):
  task = made(folder, config=config, **{'task.widths': (8,)})
  model = task.model(nnx.Rngs(0))
  graph, state = nnx.split(model)
  batch = jax.tree.map(jnp.asarray, task.evaluations[0].batches()[0])
  source = Side(batch['source'], batch['source_segments'])

  @jax.jit
  def log_probs(state, said, count):
    target = Side(said, jnp.broadcast_to((jnp.arange(8) < count).astype(jnp.int32), (2, 8)))
    logits = nnx.merge(graph, state)(source, target)
    return jax.nn.log_softmax(logits[:, count - 1])

  said = np.zeros((2, 8), np.int32)
  said[:, 0], loss, counted = START, 0.0, 0
  going = batch['segments'][:, 0] != 0
  for place in range(8):
    found = log_probs(state, said, place + 1)
    going = going & (batch['segments'][:, place] != 0)
    for row in np.flatnonzero(going):
      loss, counted = loss - float(found[row, batch['targets'][row, place]]), counted + 1
    own = found.at[:, jnp.array([0, START])].set(-jnp.inf).argmax(-1)
    going = going & (own != END)
    if place < 7:
      said[:, place + 1] = own
  (judge,) = [each for each in task.evaluations if each.name == 'own tokens']
  arrays, _ = jax.jit(lambda state: judge.predict(nnx.merge(graph, state), batch, None, KEY))(state)
  assert float(arrays['weights'].sum()) == counted
  np.testing.assert_allclose(float(arrays['loss'].sum()), loss, rtol=1e-5)


@pytest.mark.slow
def test_a_sentence_beyond_a_table_has_no_score_and_says_so(folder):
  task = made(folder, 'learned(max_length=3)')
  assert scores(task, 'beam 4').why == 'beyond its table'
  model = task.model(nnx.Rngs(0))
  (answer,) = task.ask.answer(model, ['zwei Katzen laufen laufen'], KEY)
  assert answer.plain == '(no translation: positions lie beyond a table of the scheme)'
  assert not answer.pictures


@pytest.mark.slow
@pytest.mark.parametrize('tokens', ['words', slow('characters'), slow('bytes')])
def test_it_answers_an_empty_line_unseen_characters_and_2000_words(folder, tokens):
  sizes = {'task.widths': (8, 32), 'task.beams': 1, 'task.extra_length': 1}
  task = made(folder, **{'task.tokens': tokens, **sizes})
  model = task.model(nnx.Rngs(0))
  for text in ('', 'Ω 日本 ein', 'Hund ' * (2000 if tokens == 'words' else 4)):
    (answer,) = task.ask.answer(model, [text], KEY)
    assert '\n' not in answer.plain
    assert '(no translation' not in answer.plain


@pytest.mark.slow
def test_the_answer_to_a_text_does_not_depend_on_the_texts_beside_it(folder):
  task = made(folder, 'sinusoidal')
  model, key = task.model(nnx.Rngs(1)), jax.random.key(0)
  texts = ['ein Hund', '', 'zwei Katzen laufen und ein Hund']
  together = [answer.plain for answer in task.ask.answer(model, texts, key)]
  assert together == [task.ask.answer(model, [text], key)[0].plain for text in texts]


def test_a_translation_that_does_not_end_says_so(folder):
  task = made(folder, **{'task.extra_length': 1, 'task.beams': 1, 'task.widths': (8,)})
  model = task.model(nnx.Rngs(0))
  texts = ['ein', 'Hund', 'zwei Katzen', '']
  notes = [' (not ended after ' in each.plain for each in task.ask.answer(model, texts, KEY)]
  pairs = [Coded(task_ids(task, text), np.zeros(0, np.int32)) for text in texts]
  batch = jax.tree.map(jnp.asarray, make_batch(pairs, 8))
  source = Side(batch['source'], batch['source_segments'])
  limits = source.segments.sum(1) + 1
  found = greedy(model, source, start=START, end=END, max_lengths=limits, capacity=9, key=KEY)
  assert notes == [not ended for ended in found.finished.tolist()]
  assert any(notes)


def task_ids(task, text):
  """The ids of a source text, by the vocabulary that the task stores."""
  return restore(task.vocabulary).source.encode(text)


@pytest.mark.parametrize(
  ('config', 'names'),
  [(translation, {'encoder', 'decoder', 'cross'}), (translation_recurrent, {'cross'})],
)
def test_pictures_have_a_map_for_each_head_with_the_tokens_beside_it(folder, config, names):
  task = made(folder, config=config, **{'model.num_layers': 2} if config is translation else {})
  (answer,) = task.ask.answer(task.model(nnx.Rngs(0)), ['zwei Katzen'], KEY)
  assert set(answer.pictures) == names
  for name, draw in answer.pictures.items():
    figure = Figure()
    draw(figure)
    maps = [axes.images[0].get_array() for axes in figure.axes]
    assert len(maps) == (4 if config is translation else 1)
    for one in maps:
      np.testing.assert_allclose(one.sum(1), 1, rtol=1e-5)
    words = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    if name != 'decoder':
      assert words == ['zwei', 'Katzen', '</s>'] or len(figure.axes) > 1
    figure.savefig(io.BytesIO())


def test_it_refuses_what_does_not_fit(folder):
  with pytest.raises(ValueError, match=r"no key 'model.bidirectional'"):
    made(folder, config=translation_recurrent, **{'task.architecture': 'transformer'})
  with pytest.raises(ValueError, match=r'one scheme, for its embeddings, but got 2'):
    made(folder, 'none|sinusoidal', translation_recurrent)
  for config in (translation, translation_recurrent):
    with pytest.raises(ValueError, match=r'model.shared .* needs task.joint, but task.joint is F'):
      made(folder, config=config, **{'model.shared': True})
  with pytest.raises(
    ValueError, match=r'up to 2 tokens, the last of task.widths, but only 0 of 16'
  ):
    made(folder, **{'task.widths': (2,)})


@pytest.mark.slow
@pytest.mark.parametrize('config', [translation, translation_recurrent])
def test_it_learns_to_say_sentences_backwards_resumes_and_is_asked(tmp_path, config):
  config = config.get_config()
  config.steps = 300
  config.eval_every = 300
  result = train(config, tmp_path)
  assert result.scores['beam 4'].values['right'] > 0.9
  assert result.scores['training sentences'].values['right'] > 0.9
  stored = json.loads((tmp_path / 'vocabulary.json').read_text())
  assert set(stored) == {'source', 'target'}
  (answer,) = ask.ask(tmp_path, ['A m n B'])
  assert answer.plain == 'B n m A'


@pytest.mark.slow
@pytest.mark.parametrize('name', ['reversed', 'agreement'])
def test_behind_an_encoder_without_positions_no_more_than_chance_is_right(tmp_path, name):
  """With `none` the decoder has no positions either; its causal mask tells the order of its own."""
  right = {}
  for scheme in ('none', 'sinusoidal'):
    config = translation.get_config()
    config.scheme = scheme
    config.task.data = f'synthetic:{name}'
    config.steps = config.eval_every = config.checkpoint_every = 300
    scores = train(config, tmp_path / scheme).scores
    right[scheme] = [scores[one].values['right'] for one in ('greedy', 'beam 4')]
  _, held_out, _ = generated.pairs(name)
  chance = generated.chance(name, [source for source, _, _ in held_out])
  # As many are right by luck: the orders of the held-out sentences were drawn.
  luck = 4 * np.sqrt(chance * (1 - chance) / len(held_out))
  assert max(right['none']) < chance + luck
  assert min(right['sinusoidal']) > 0.8
  assert chance + luck < 0.4


def test_the_configs_are_those_of_the_task(folder):
  config = multi30k.get_config()
  config.task.data = folder
  config.task.vocab_size = 280
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  task = get_task(name)(
    [posjax.get(config.scheme)], config.model.to_dict(), seed=0, batch_size=4, **arguments
  )
  batch = next(iter(task.train_batches(0, 1)))
  shapes = {name: array.shape for name, array in batch.items()}
  assert shapes['source'] == shapes['inputs'] == shapes['targets'] == shapes['segments']


@pytest.mark.parametrize(
  ('config', 'pieces', 'millions'),
  [
    (translation_paper, 32_768, 49),
    (translation_big_paper, 32_768, 210),  # 32,771 x 1024, and 6 x (4 + 8) and 6 x (8 + 8) matrices
    (complex_order_translation_paper, 4000, 92),
  ],
)
def test_the_papers_configs_make_models_of_their_size(config, pieces, millions):
  # Shaw: 32,771 x 512 embeddings, 6 x (4 + 4) and 6 x (8 + 4) matrices of 512 x 512, 12 pairs of
  # tables for 8 heads. Complex: twice the matrices, 6 x (4 + 8) and 6 x (8 + 8), and frequencies.
  config = config.get_config()
  vocab = pieces + 3
  scheme = posjax.get(config.scheme)
  make = lambda: EncoderDecoder(vocab, vocab, scheme, rngs=nnx.Rngs(0), **config.model.to_dict())
  params = nnx.state(nnx.eval_shape(make), nnx.Param)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  assert round(count / 1e6) == millions
