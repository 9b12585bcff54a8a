"""The task of labels of texts: what it reads, what it reports, and that it learns."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from matplotlib.figure import Figure

import posjax
from configs import classification, complex_order_paper
from posjax.experiment.run import train
from posjax.experiment.task import get_task
from posjax.experiment.tasks.classification.task import logits_of
from posjax.experiment.tasks.supervised import label_losses
from tests.experiment.support import judged

TRAIN = 'pos\tgood good film\nneg\tbad film\npos\tgood one\nneg\tbad bad one !\n' * 4
DEV = 'pos\tgood film\nneg\tnot a good film at all\n'


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'train.tsv').write_text(TRAIN)
  (tmp_path / 'dev.tsv').write_text(DEV)
  return f'file:{tmp_path}'


def made(data, scheme='none', **changes):
  config = classification.get_config()
  config.task.data = data
  config.task.widths = (3, 6)
  config.model.encoder = 'fasttext'
  config.model.width = config.model.hidden_width = 8
  config.update_from_flattened_dict(changes)
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  shared = {'seed': 0, 'batch_size': 4}
  return get_task(name)([posjax.get(scheme)], config.model.to_dict(), **shared, **arguments)


def test_it_says_what_it_read(folder):
  facts = made(folder).facts
  assert facts['texts'] == '16 to learn from, 2 held out (as given)'
  assert facts['labels'] == 'neg, pos'
  assert facts['words'] == '5 that occur 2 times or more'
  assert facts['unknown words'] == '0.0% in training texts, 50.0% held out'  # 4 of 8
  assert facts['seen before'] == '0 held-out texts equal a training text'
  assert facts['longest text'] == '6 words'
  assert facts['vectors'] == 'drawn'


def test_words_are_learned_from_training_texts_alone(folder):
  task = made(folder)
  assert [evaluation.name for evaluation in task.evaluations] == ['held out', 'training texts']
  tokens = np.concatenate([batch['inputs'].ravel() for batch in task.evaluations[0].batches()])
  assert max(batch['inputs'].shape[1] for batch in task.evaluations[0].batches()) == 6
  assert (tokens == 1).sum() == 4  # not, a, at, all
  assert task.model(nnx.Rngs(0)).embed.table.num_embeddings == 7


def test_a_text_that_is_too_long_is_an_error_or_cut_and_counted(folder):
  with pytest.raises(
    ValueError, match=r'1 texts are longer than 5 words, .*dev.tsv, line 2 has 6\): give a wider'
  ):
    made(folder, **{'task.widths': (3, 5)})
  task = made(folder, **{'task.widths': (3, 5), 'task.cut': True})
  assert task.facts['longest text'] == '6 words; 1 texts cut to 5'
  assert sum(batch['segments'].sum() for batch in task.evaluations[0].batches()) == 2 + 5


def test_vectors_keep_their_directions_and_get_the_variance_of_drawn_ones(folder, tmp_path):
  rng = np.random.default_rng(0)
  rows = {word: 3 * rng.normal(size=8) for word in ('good', 'bad', 'not')}
  path = tmp_path / 'vectors.txt'
  path.write_text(''.join(f'{word} {" ".join(map(str, row))}\n' for word, row in rows.items()))
  task = made(folder, **{'task.vectors': str(path)})
  assert task.facts['vectors'] == f'2 words have one in {path}'
  table = np.asarray(task.model(nnx.Rngs(0)).embed.table.embedding[...])
  # Words by frequency: bad and good occur 12 times each, film and one 8, ! 4.
  found = {'bad': table[2], 'good': table[3]}
  factors = [found[word] / rows[word] for word in found]
  np.testing.assert_allclose(factors, factors[0][0], rtol=1e-5)
  np.testing.assert_allclose(np.square(list(found.values())).mean(), 1 / 8, rtol=1e-5)
  assert np.abs(table[4:]).min(1).max() > 0


class _Fixed:
  """Logits by the first word of a text."""

  def __call__(self, tokens, pos, *, segments, ids_key, train_key):
    return jnp.asarray([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0]])[tokens[:, 0]]


def test_the_loss_is_the_cross_entropy_of_the_label():
  batch = {
    'inputs': jnp.array([[0, 1], [1, 1], [1, 0]]),
    'positions': jnp.zeros((3, 2), jnp.int32),
    'segments': jnp.ones((3, 2), jnp.int32),
    'labels': jnp.array([[1], [2], [0]]),
    'weights': jnp.array([[1.0], [1.0], [0.0]]),
  }
  found = label_losses(logits_of, _Fixed(), batch)
  log_sum = lambda row: np.log(np.exp(row).sum())
  expected = [log_sum(np.array([0, 1, -1.0])) - 1, log_sum(np.array([2, 0, 0.0])), 0]
  np.testing.assert_allclose(found.loss[:, 0], expected, rtol=1e-6)
  np.testing.assert_array_equal(found.correct[:2, 0], [1, 0])
  np.testing.assert_array_equal(found.weights, batch['weights'])


def test_accuracy_is_that_of_the_texts_one_by_one(folder):
  task = made(folder, 'complex_order')
  model = task.model(nnx.Rngs(1))
  score, again = (judged.score(evaluation, model) for evaluation in task.evaluations)
  lines = [line.split('\t') for line in DEV.splitlines()]
  said = task.ask.answer(model, [text for _, text in lines], jax.random.key(0))
  right = [answer.plain.split()[0] == label for answer, (label, _) in zip(said, lines, strict=True)]
  assert score.values['accuracy'] == np.mean(right)
  assert score.counted == 2
  chosen = [row for batch in task.evaluations[1].batches() for row in batch['weights'] if row]
  assert len(chosen) == again.counted == 2
  assert task.evaluations[1].role == 'training rows'
  assert again.values['accuracy'] in (0.0, 0.5, 1.0)


def test_it_answers_with_probabilities_that_sum_to_one(folder):
  task = made(folder)
  model = task.model(nnx.Rngs(0))
  (answer,) = task.ask.answer(model, ['A good FILM!'], jax.random.key(0))
  said = answer.plain
  assert re.fullmatch(r'(neg|pos) \d+\.\d%, (neg|pos) \d+\.\d%', said)
  numbers = [float(number) for number in re.findall(r'[\d.]+(?=%)', said)]
  assert sum(numbers) == pytest.approx(100, abs=0.2)
  assert numbers[0] >= numbers[1]
  assert answer.styled.plain == said
  for text, count in ((' ', 0), ('a b c d e f g', 7)):
    with pytest.raises(ValueError, match=f'should have 1 to 6 words, but has {count}'):
      task.ask.answer(model, ['a good film', text], jax.random.key(0))


def test_its_picture_shows_the_probability_of_each_label(folder):
  task = made(folder)
  model, figure = task.model(nnx.Rngs(0)), Figure()
  (answer,) = task.ask.answer(model, ['A good FILM!'], jax.random.key(0))
  answer.pictures['probabilities'](figure)
  bars = [bar.get_width() for bar in figure.axes[0].patches]
  labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
  assert ', '.join(f'{n} {w:.1f}%' for n, w in zip(labels, bars, strict=True)) == answer.plain


def small():
  """A config that learns the order of two words in seconds."""
  config = classification.get_config()
  small = {
    'scheme': 'learned(max_length=16)',
    'steps': 240,
    'log_every': 40,
    'task.widths': (16,),
    'model.width': 32,
    'model.hidden_width': 32,
    'model.dropout_rate': 0.0,
    'optimizer.learning_rate': 5e-3,
    'optimizer.warmup_steps': 20,
  }
  config.update_from_flattened_dict(small)
  return config


@pytest.mark.slow
def test_it_learns_the_order_of_two_words(tmp_path, capsys):
  result = train(small(), tmp_path)
  numbers = {name: score.values['accuracy'] for name, score in result.scores.items()}
  assert numbers['held out'] > 0.9
  assert numbers['training texts'] > 0.9
  assert 'training texts' in capsys.readouterr().out
  saved = json.loads((tmp_path / 'results.json').read_text())
  assert saved['scores']['training texts']['accuracy'] == numbers['training texts']
  assert re.match(r'asked +\S.*\nanswer +(after|before) .*\nright +(after|before)', result.sample)


@pytest.mark.slow
def test_without_positions_the_order_is_not_learned(tmp_path):
  config = small()
  config.scheme = 'none'
  config.steps = 60
  assert train(config, tmp_path).scores['held out'].values['accuracy'] < 0.65


def test_the_config_of_the_paper_makes_its_model(folder):
  config = complex_order_paper.get_config()
  sizes = {f'model.{name}': value for name, value in config.model.items()}
  task = made(folder, 'complex_order', **sizes)
  shapes = nnx.state(nnx.eval_shape(lambda: task.model(nnx.Rngs(0))), nnx.Param)
  found = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  # Words and frequencies; three sizes of complex filters with two biases; the last layer.
  assert found == 2 * 7 * 300 + 2 * (3 + 4 + 5) * 300 * 128 + 3 * 2 * 128 + (768 + 1) * 2
