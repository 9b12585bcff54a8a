"""The task of parsing: what it reads, scores and says, and that it learns."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from matplotlib.figure import Figure

import posjax
from configs import gum, parsing
from posjax.experiment.run import train
from posjax.experiment.task import get_task
from posjax.experiment.tasks.parsing import metrics as bracket_metrics
from posjax.experiment.tasks.parsing.spans import sentence
from posjax.experiment.tasks.parsing.tree import parsed
from tests.experiment.support import judged
from tests.models.text_made import moved

KEY = jax.random.key(0)
TRAIN = [
  '(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sleeps)) (. .)))',
  '(TOP (S (NP (PRP she)) (VP (VBZ sees) (NP (DT a) (NN cat)))))',
  '(TOP (NP (NN cat)))',
]
HELD_OUT = [
  '(TOP (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (PRP she))) (. .)))',
  '(TOP (SQ (VP (VB see) (NP (DT a) (NN dog)))))',
]
SMALL = {
  'model.width': 8,
  'model.num_heads': 2,
  'model.hidden_width': 8,
  'model.label_width': 8,
  'task.widths': (4, 8),
  'task.min_count': 1,
}


def written(folder, train=TRAIN, held_out=HELD_OUT):
  (folder / 'train.trees').write_text('\n'.join(train), encoding='utf-8')
  (folder / 'dev.trees').write_text('\n'.join(held_out), encoding='utf-8')
  return f'file:{folder}'


def made(data, scheme='concatenated', **changes):
  config = parsing.get_config()
  config.task.data = data
  config.update_from_flattened_dict(SMALL | changes)
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  shared = {'seed': 0, 'batch_size': 2}
  return get_task(name)([posjax.get(scheme)], config.model.to_dict(), **shared, **arguments)


def without_encoder(data, **changes):
  """A task whose model compiles fast."""
  task = made(data, 'none', **{'model.encoder': 'none', 'task.widths': (8,), **changes})
  return task, moved(task.model(nnx.Rngs(3)))


def test_every_held_out_sentence_is_scored_once_by_its_brackets_and_asked_it_says_its_tree(
  tmp_path,
):
  held_out = [*HELD_OUT, HELD_OUT[0]]
  task, model = without_encoder(written(tmp_path, held_out=held_out))
  texts = [' '.join(sentence(parsed(line)).words) for line in held_out]
  answers = task.ask.answer(model, texts, KEY)
  trees = [sentence(parsed(answer.plain)) for answer in answers]
  assert [' '.join(tree.words) for tree in trees] == texts
  assert {tag for tree in trees for tag in tree.tags} == {'XX'}
  references = [sentence(parsed(line)) for line in held_out]
  counts = [
    bracket_metrics.count(tree.spans, one) for tree, one in zip(trees, references, strict=True)
  ]
  right, said, there = np.sum(counts, axis=0)
  score = judged.score(task.evaluations[0], model)
  np.testing.assert_allclose(score.values['f1'], 2 * right / (said + there))
  assert score.counted == sum(len(one.words) for one in references)
  assert [each.role for each in task.evaluations] == ['trained', 'training rows']
  # The loss is the mean over sentences, of which each counts once, whatever fills the batches.
  graph, state = nnx.split(model)
  loss = jax.jit(lambda state, batch: task.loss(nnx.merge(graph, state), batch, None, None, None))
  losses = [
    float(loss(state, {name: array[[row, row]] for name, array in batch.items()})[0])
    for batch in task.evaluations[0].batches()
    for row in np.flatnonzero(batch['row'] >= 0)
  ]
  assert len(losses) == 3
  np.testing.assert_allclose(score.values['loss'], np.mean(losses), rtol=1e-5)
  figure = Figure()
  answers[0].pictures['tree'](figure)
  assert {text.get_text() for text in figure.axes[0].texts} >= {'the', 'cat', 'sees', 'she', '.'}
  assert 'cat' in answers[0].styled.plain
  # A text is split as treebanks are, and markup is text.
  (answer,) = task.ask.answer(model, ['[b] She’s (not) here.'], KEY)
  words = sentence(parsed(answer.plain)).words
  assert words == ('[', 'b', ']', 'She', '’s', '-LRB-', 'not', '-RRB-', 'here', '.')


def test_it_says_what_it_read(tmp_path):
  facts = made(written(tmp_path), **{'task.tags': True, 'model.characters': 'cnn'}).facts
  assert facts['sentences'] == '3 in training, 2 held out (as given)'
  assert 'SQ::VP' in facts['unseen labels']
  assert facts['baseline'].startswith('F1 ')
  assert facts['tags'].startswith('5 known')
  assert {'letters', 'vocabulary', 'left out', 'taken off', 'sha256'} <= set(facts)


def test_a_parser_of_tags_is_asked_with_tags(tmp_path):
  task, model = without_encoder(written(tmp_path), **{'task.tags': True})
  (answer,) = task.ask.answer(model, ['the/DT and/or/CC'], KEY)
  said = sentence(parsed(answer.plain))
  assert (said.words, said.tags) == (('the', 'and/or'), ('DT', 'CC'))
  assert task.ask.examples[1].text == 'see/VB a/DT dog/NN'
  for wrong in ('the/DT dog', 'the/ dog/NN', '/DT'):
    with pytest.raises(ValueError, match="each word with its own, as in 'the/DT dog/NN', but one"):
      task.ask.answer(model, [wrong], KEY)


def test_a_text_without_words_and_positions_beyond_a_table_are_told(tmp_path):
  task, model = without_encoder(written(tmp_path))
  with pytest.raises(ValueError, match='a word or more, but has none'):
    task.ask.answer(model, ['a', '  '], KEY)
  short = made(written(tmp_path), 'learned(max_length=4)', **{'model.encoder': 'none'})
  answers = short.ask.answer(moved(short.model(nnx.Rngs(0))), ['a b c d e'], KEY)
  assert 'beyond a table' in answers[0].plain


def test_silence_is_judged_in_each_layer_and_from_each_layer_upward(tmp_path):
  task = made(written(tmp_path), **{'task.silence': True, 'model.num_layers': 3})
  others = {each.name: each for each in task.evaluations if each.role == 'other'}
  assert list(others)[:5] == [
    'content silent in layer 1',
    'content silent in layer 2',
    'content silent in layer 3',
    'content silent from layer 1',
    'content silent from layer 2',
  ]
  assert len(others) == 10
  assert not any(each.during for each in others.values())
  heard = lambda one: [block.attention.counts for block in one.model(nnx.Rngs(0)).encoder.blocks]
  both, content, position = (True, True), (True, False), (False, True)
  assert heard(others['position silent in layer 2']) == [both, content, both]
  assert heard(others['content silent from layer 2']) == [both, position, position]
  for wrong, message in (
    ({'model.encoder': 'transformer'}, "needs model.encoder='partitioned'"),
    ({'model.silent_position': (2,)}, r'but got model.silent_position=\(2,\)'),
  ):
    with pytest.raises(ValueError, match=message):
      made(written(tmp_path), **{'task.silence': True, **wrong})


def test_configs_are_read():
  assert gum.get_config().task.name == parsing.get_config().task.name == 'parsing'
  steps, rows = gum.get_config().steps, gum.get_config().batch_size
  assert 99 < steps * rows / 3707 < 101


@pytest.mark.slow
@pytest.mark.parametrize('loss', ['hinge', 'nll'])
def test_it_learns_generated_sentences_and_silence_costs_it(tmp_path, loss):
  config = parsing.get_config()
  config.steps, config.eval_every, config.checkpoint_every = 150, 150, 150
  config.task.loss, config.task.silence = loss, True
  config.task.widths = (24,)
  train(config, tmp_path)
  scores = json.loads((tmp_path / 'results.json').read_text())
  f1 = {name: one['f1'] for name, one in scores['scores'].items()}
  assert f1['held out'] > 0.9
  assert f1['position silent from layer 1'] < f1['held out']
