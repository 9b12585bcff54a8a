"""The task of sentence pairs: what it reads, what it reports, and that it learns."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from matplotlib.figure import Figure

import posjax
from configs import sentence_pairs, sentence_pairs_paper, snli_small
from posjax.experiment.run import train
from posjax.experiment.task import get_task
from posjax.experiment.tasks.sentence_pairs.task import logits_of, sides
from posjax.experiment.tasks.supervised import label_losses
from tests.experiment.support import judged

TRAIN = 'yes\tA dog barks .\tA dog is loud\nno\tA cat\tA dog\n-\tA\tB\nno\ta cat\ta bird\n' * 4
DEV = 'yes\tA dog barks .\tA dog is loud\nno\tA cat sleeps on the old mat\tno\n-\tA\tB\n'
KEY = jax.random.key(0)


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'train.tsv').write_text(TRAIN)
  (tmp_path / 'dev.tsv').write_text(DEV)
  return f'file:{tmp_path}'


def made(data, scheme='none', config=sentence_pairs, **changes):
  config = config.get_config()
  config.task.data = data
  config.task.widths = (4, 8)
  small = {'model.width': 8, 'model.num_heads': 2, 'model.ff_width': 8, 'model.word_width': 6}
  config.update_from_flattened_dict({**small, 'model.hidden_width': 4, **changes})
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  shared = {'seed': 0, 'batch_size': 2}
  return get_task(name)([posjax.get(scheme)], config.model.to_dict(), **shared, **arguments)


def test_it_says_what_it_read(folder):
  ngrams = {'task.ngrams': (3,), 'task.ngrams_per_word': 4, 'task.min_count': 8}
  facts = made(folder, **ngrams).facts
  assert facts['pairs'] == '12 to learn from, 2 held out (as given)'
  assert facts['left out'] == '4 training pairs have no label, 1 held-out pairs have no label'
  assert facts['labels'] == 'no, yes'
  assert facts['most frequent label'] == 'yes, 50.0% of the held-out pairs'
  assert facts['words'] == '3 that occur often enough'  # a, dog and cat
  assert facts['seen before'] == (
    '1 held-out pairs equal a training pair, and 1 have the premise of one'
  )
  assert facts['longest sentence'] == '7 words'
  assert re.match(r'\d+ of 3 letters; 2 words have more than 4, of', facts['character n-grams'])
  assert 'character n-grams' not in made(folder).facts


def test_a_batch_holds_both_sentences_and_the_ngrams_of_each_word(folder):
  task = made(folder, **{'task.ngrams': (3,), 'task.ngrams_per_word': 4})
  short, long = task.evaluations[0].batches()
  assert short['premise'].shape == short['hypothesis'].shape == (2, 4)
  assert long['premise_ngrams'].shape == (2, 8, 4)
  assert short['tokens'].tolist() == [8, 0]
  assert short['weights'].tolist() == [[1], [0]]
  # 'a' is '<a>'; 'dog' is '<do', 'dog' and 'og>'; the padding has none.
  assert (short['premise_ngrams'][0] != 0).sum(-1).tolist() == [1, 3, 4, 1]
  np.testing.assert_array_equal(short['premise_ngrams'][0, 1], short['hypothesis_ngrams'][0, 1])
  assert not long['hypothesis_ngrams'][0, 1:].any()
  assert (long['premise'][0] == 1).sum() == 5  # words that training has not
  assert sides(made(folder).evaluations[0].batches()[0])[0].ngrams.shape == (2, 4, 0)


def test_a_sentence_that_is_too_long_is_an_error_or_cut_and_counted(folder):
  with pytest.raises(
    ValueError,
    match=r'1 pairs have a sentence longer than 5 words, .*dev.tsv, line 2 has 7\): give',
  ):
    made(folder, **{'task.widths': (3, 5)})
  task = made(folder, **{'task.widths': (3, 5), 'task.cut': True})
  assert task.facts['longest sentence'] == '7 words; 1 pairs cut to 5'
  assert sum(batch['tokens'].sum() for batch in task.evaluations[0].batches()) == 8 + 6


def test_vectors_of_another_width_are_refused_with_file_and_line(folder, tmp_path):
  path = tmp_path / 'vectors.txt'
  path.write_text('dog 1 2 3 4 5 6\ncat 1 2 3\n')
  with pytest.raises(ValueError, match=r'vectors.txt, line 2 should be a word and 6 numbers'):
    made(folder, **{'task.vectors': str(path)})
  path.write_text('dog 1 2 3 4 5 6\ncat 6 5 4 3 2 1\nmouse 0 0 0 0 0 0\n')
  task = made(folder, **{'task.vectors': str(path), 'model.train_words': False})
  assert task.facts['vectors'] == f'2 words have one in {path}'
  assert task.facts['sha256'] != made(folder).facts['sha256']


def test_a_model_takes_the_keys_of_its_architecture_and_says_what_is_missing(folder):
  for architecture, scheme in (('esim', 'none'), ('one_row', 'gaussian')):
    task = made(folder, scheme, **{'task.architecture': architecture})
    assert nnx.eval_shape(lambda task=task: task.model(nnx.Rngs(0))) is not None
  config = sentence_pairs.get_config()
  arguments = config.task.to_dict()
  model = config.model.to_dict()
  del model['interaction_layers']
  with pytest.raises(ValueError, match=r"must have the key 'model.interaction_layers'"):
    get_task(arguments.pop('name'))([posjax.get('none')], model, seed=0, batch_size=2, **arguments)


class _Fixed:
  """Logits by the first words of both sentences."""

  def __call__(self, premise, hypothesis, *, ids_key, train_key):
    logits = jnp.asarray([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0]])
    return logits[premise.tokens[:, 0]] + 2 * logits[hypothesis.tokens[:, 0]]


def test_the_loss_is_the_cross_entropy_of_the_label():
  batch = {
    'premise': jnp.array([[0, 1], [1, 1], [1, 0]]),
    'hypothesis': jnp.array([[1, 1], [0, 1], [1, 0]]),
    'labels': jnp.array([[0], [2], [0]]),
    'weights': jnp.array([[1.0], [1.0], [0.0]]),
  }
  found = label_losses(logits_of, _Fixed(), batch)
  log_sum = lambda row: np.log(np.exp(row).sum())
  expected = [log_sum(np.array([4, 1, -1.0])) - 4, log_sum(np.array([2, 2, -2.0])) + 2, 0]
  np.testing.assert_allclose(found.loss[:, 0], expected, rtol=1e-5)
  np.testing.assert_array_equal(found.correct[:2, 0], [1, 0])


def test_it_answers_with_probabilities_draws_the_alignment_and_is_scored_by_its_answers(folder):
  task = made(folder, **{'task.architecture': 'esim', 'task.widths': (8,)})
  model = task.model(nnx.Rngs(0))
  lines = [line.split('\t') for line in DEV.splitlines()[:2]]
  texts = [f'{lines[0][1]}\t{lines[0][2]}', f'{lines[1][1]} ||| {lines[1][2]}']
  said = task.ask.answer(model, texts, KEY)
  for answer in said:
    assert re.fullmatch(r'(no|yes) \d+\.\d%, (no|yes) \d+\.\d%', answer.plain)
    found = [float(number) for number in re.findall(r'[\d.]+(?=%)', answer.plain)]
    assert sum(found) == pytest.approx(100, abs=0.2)
    assert found[0] >= found[1]
    assert answer.styled.plain == answer.plain
  score, again = (judged.score(each, model) for each in task.evaluations)
  right = [
    answer.plain.split()[0] == label for answer, (label, *_) in zip(said, lines, strict=True)
  ]
  assert score.values['accuracy'] == np.mean(right)
  assert (score.counted, again.counted) == (2, 2)
  assert task.evaluations[1].role == 'training rows'
  assert set(said[0].pictures) == {'probabilities', 'premise reads', 'hypothesis reads'}
  figure = Figure()
  said[1].pictures['hypothesis reads'](figure)
  (axes,) = figure.axes
  assert [label.get_text() for label in axes.get_xticklabels()][:3] == ['a', 'cat', 'sleeps']
  assert axes.images[0].get_array().shape == (1, 7)  # 'no' reads seven words


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('A dog', "a premise and a hypothesis with a tab or ' \\|\\|\\| ' between, but is 'A dog'"),
    ('A\tB\tC', 'a premise and a hypothesis with a tab'),
    (' ||| B', 'The premise should have 1 to 8 words, but has 0'),
    ('A ||| ' + 'B ' * 9, 'The hypothesis should have 1 to 8 words, but has 9'),
  ],
)
def test_a_question_that_is_no_pair_is_an_error(folder, text, message):
  with pytest.raises(ValueError, match=message):
    made(folder).ask.answer(None, [text], KEY)


@pytest.mark.slow
def test_which_words_are_near_is_learned_with_positions(tmp_path):
  scores = train(sentence_pairs.get_config(), tmp_path).scores
  assert scores['held out'].values['accuracy'] > 0.95
  assert scores['training pairs'].values['accuracy'] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(('scheme', 'differ'), [('none', False), ('gaussian', True)])
def test_a_model_without_positions_reads_both_of_two_twins_alike(scheme, differ):
  task = made('synthetic:near_1k', scheme, **{'task.widths': (24,)})
  graph, state = nnx.split(task.model(nnx.Rngs(0)))
  run = jax.jit(lambda state, batch: nnx.merge(graph, state)(*sides(batch)))
  (batch, *_) = task.evaluations[0].batches()  # two rows: a twin, and the other one
  logits = np.asarray(run(state, {name: jnp.asarray(x) for name, x in batch.items()}))
  assert batch['labels'].ravel().tolist() == [0, 1]
  assert (np.abs(logits[0] - logits[1]).max() > 1e-4 * np.abs(logits).max()) == differ


def test_the_papers_config_does_not_train_vectors_and_has_three_blocks(folder, tmp_path):
  vectors = tmp_path / 'vectors.txt'
  vectors.write_text('dog 1 2 3 4 5 6\n')
  given = {'task.vectors': str(vectors), 'model.width': 8, 'model.char_width': 4}
  task = made(folder, 'sinusoidal+gaussian', config=sentence_pairs_paper, **given)
  model = nnx.eval_shape(lambda: task.model(nnx.Rngs(0)))
  trained = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
  layer = lambda attentions: attentions * (4 * 8 * 8 + 2 * 8) + 2 * 8 * 8 + 8 + 8 + 2 * 8
  head = (2 * 8 * 8 + 8) + (8 * 8 + 8) + (2 * 8 * 8 + 8) + (8 * 2 + 2)
  assert trained == 3 * layer(1) + layer(2) + (6 + 4) * 8 + 2 + head  # W_e, and w and b


def test_the_config_of_snli_small_makes_the_papers_blocks(folder):
  task = made(folder, 'sinusoidal+gaussian', config=snli_small, **{'model.width': 8})
  shapes = nnx.state(nnx.eval_shape(lambda: task.model(nnx.Rngs(0))), nnx.Param)
  found = sum(leaf.size for leaf in jax.tree.leaves(shapes))
  words = 2 + int(task.facts['words'].split()[0])
  ngrams = 2 + int(task.facts['character n-grams'].split()[0])
  d = ff = 8
  layer = lambda attentions: attentions * (4 * d * d + 2 * d) + 2 * d * ff + ff + d + 2 * d
  expected = words * 6 + ngrams * 32 + (6 + 32) * d + 2  # the vectors, W_e, w and b
  expected += 2 * layer(1) + layer(2)  # M = 2, N = 1
  expected += (2 * d * d + d) + (d * d + d) + (2 * d * d + d) + (d * 2 + 2)
  assert found == expected
