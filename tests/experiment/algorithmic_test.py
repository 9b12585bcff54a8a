"""Algorithmic tasks: both forms, unseen lengths, whose words are judged, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from configs import algorithmic_paper, chomsky, chomsky_paper, default, scan
from posjax.experiment import sharding
from posjax.experiment.data.questions import catalogue, synthetic
from posjax.experiment.data.questions.framing import DECODER
from posjax.experiment.evaluation import evaluate, unseen
from posjax.experiment.report import results
from posjax.experiment.tasks import get_task
from posjax.experiment.tasks.algorithmic import at_once, continued
from train import train

MODEL = {'num_layers': 1, 'width': 16, 'num_heads': 2, 'causal': True}
ENCODER = {**MODEL, 'causal': False}


def make(model=MODEL, scheme='none', **changes):
  arguments = {
    'seed': 0,
    'batch_size': 8,
    'data': 'synthetic:reverse',
    'shortest': None,
    'longest': 4,
    'eval_factors': (1, 2),
    'eval_examples': 16,
  }
  return get_task('algorithmic')(posjax.get(scheme), model, **{**arguments, **changes})


def scored(task, model, length):
  graph, state = nnx.split(model)
  return evaluate(task, graph, state, length, sharding.make_mesh(), jax.random.key(0))


class Oracle(nnx.Module):
  """An encoder that sorts the prompt into its empty places, whatever stands there."""

  def __init__(self, wrong=lambda answers: answers):
    self.wrong = wrong

  def __call__(self, tokens, pos, *, segments, ids_key=None, train_key=None):
    half = tokens.shape[1] // 2
    answers = jnp.sort(tokens[:, :half], axis=1)
    whole = jnp.concatenate([jnp.zeros_like(answers), self.wrong(answers)], axis=1)
    return 10.0 * jax.nn.one_hot(whole, 9)


@pytest.mark.parametrize('length', [4, 8])
def test_every_place_of_an_oracle_encoder_is_right(length):
  task = make(ENCODER, data='synthetic:bucket_sort')
  score = scored(task, Oracle(), length)
  assert (score.accuracy, score.token_accuracy) == (1, 1)
  assert score.tokens == 16 * length
  assert np.isnan(score.by_position[:length]).all()
  assert np.isfinite(score.by_position[length:]).all()


def test_one_wrong_token_spoils_an_answer_and_a_token():
  task = make(ENCODER, data='synthetic:bucket_sort')
  score = scored(task, Oracle(lambda answers: answers.at[::2, 1].set(0)), 4)
  assert score.accuracy == 0.5
  assert score.token_accuracy == 1 - 1 / 8


def test_the_end_of_an_answer_that_varies_is_judged_and_what_follows_is_not():
  task = make(ENCODER, data='synthetic:stack_manipulation')
  algorithm = catalogue.get('stack_manipulation')
  for batch in task.eval_batches(8):
    for inputs, targets, weights in zip(
      *map(batch.get, ('inputs', 'targets', 'weights')), strict=True
    ):
      assert (inputs == synthetic.SEP).sum() == 9
      stack = []
      for symbol in inputs[:8] - len(synthetic.MARKS):
        word = algorithm.alphabet[symbol]
        stack = stack[:-1] if word == 'pop' else [*stack, word[-1]]
      said = [synthetic.vocabulary('stack_manipulation')[token] for token in targets[weights > 0]]
      assert said == [*reversed(stack), '<eos>']
      assert not weights[:8].any()


def test_a_decoder_goes_on_as_if_all_were_read_anew():
  """Left-padded prompts and a cache, against one full pass per token and row."""
  model = make(scheme='rope', data='synthetic:dyck').model(nnx.Rngs(0))
  questions = [([0, 2, 0], [1, 3, 1]), ([2], [3]), ([0, 1], []), ([2, 2, 3, 0, 1], [3])]
  rows = [DECODER.row(prompt, answer, 0, 12) for prompt, answer in questions]
  batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  said, counts = continued(model, batch, jax.random.key(0)), batch['weights'] > 0
  graph, state = nnx.split(model)
  pos = jnp.arange(batch['inputs'].shape[1])
  anew = jax.jit(lambda tokens: nnx.merge(graph, state)(tokens, pos)[0].argmax(-1))
  for row, mask, inputs in zip(said, counts, batch['inputs'], strict=True):
    tokens, start = np.where(np.arange(len(pos)) <= mask.argmax(), inputs, 0), int(mask.argmax())
    for place in range(start, start + int(mask.sum())):
      word = int(anew(tokens[None])[place])
      assert row[place] == word
      if place + 1 < len(tokens):
        tokens[place + 1] = word
    assert not row[~mask].any()


def test_greedy_accuracy_counts_the_models_own_words():
  """Four rows say all; four stumble at the first word; four end too soon; four err at the end."""

  def stumble(model, batch, key):
    said, first = batch['targets'].copy(), int(batch['weights'][0].argmax())
    said[2:4, first] += 1
    said[4:6, first] = synthetic.EOS
    said[6:8, first + 4] = synthetic.SEP
    return said

  task = make(data='synthetic:copy')._replace(continued=stumble)
  score = scored(task, task.model(nnx.Rngs(0)), 4)  # four letters and <eos>
  assert score.greedy_accuracy == 4 / 16
  assert score.greedy_token_accuracy == (4 * 5 + 4 * 4 + 4 * 0 + 4 * 4) / 80


@pytest.mark.parametrize('scheme', ['rope', 'randomized(max_length=128)+rope'])
@pytest.mark.parametrize('model', [MODEL, ENCODER], ids=['decoder', 'encoder'])
def test_padding_rows_to_few_widths_changes_no_score(scheme, model):
  exact = make(model, scheme, data='synthetic:binary_addition')
  padded = make(
    model, scheme, data='synthetic:binary_addition', eval_factors=(), eval_lengths=(4, 5, 8)
  )
  net = exact.model(nnx.Rngs(0))
  first, second = scored(exact, net, 8), scored(padded, net, 8)
  assert second.loss == pytest.approx(first.loss, rel=1e-5)
  assert second.tokens == first.tokens
  assert len(second.by_position) == 64
  np.testing.assert_allclose(
    second.by_position[: len(first.by_position)], first.by_position, rtol=1e-4
  )


def test_every_length_can_be_asked_and_its_questions_stay_the_same():
  task = make(eval_factors=(), eval_lengths=(4, 5, 6, 7))
  assert task.lengths == (4, 5, 6, 7)
  for length in task.lengths:
    first, second = (list(task.eval_batches(length)) for _ in range(2))
    assert all(np.array_equal(a[n], b[n]) for a, b in zip(first, second, strict=True) for n in a)
    assert {int(n) for batch in first for n in batch['lengths']} == {length}


@pytest.mark.parametrize('model', [MODEL, ENCODER], ids=['decoder', 'encoder'])
def test_training_asks_every_length_up_to_the_longest_from_the_shortest_there_is(model):
  task = make(model, data='synthetic:solve_equation', longest=6)
  batches = list(itertools.islice(task.train_batches(0, 1), 12))
  assert {int(n) for batch in batches for n in batch['lengths']} == {3, 4, 5, 6}
  assert 'training lengths' in task.facts


@pytest.mark.parametrize('model', [MODEL, ENCODER], ids=['decoder', 'encoder'])
def test_where_one_length_is_trained_it_is_judged_by_other_questions(model):
  task = make(model, shortest=6, longest=6, eval_factors=(1,))
  learned = itertools.islice(task.train_batches(0, 1), 20)
  rows = {tuple(row) for batch in learned for row in batch['inputs'].tolist()}
  judged = {tuple(row) for batch in task.eval_batches(6) for row in batch['inputs'].tolist()}
  assert len(rows) > 150
  assert len(judged) == 16
  assert not rows & judged


def test_unseen_lengths_weigh_alike_and_one_without_a_number_leaves_none():
  task = make(ENCODER, data='synthetic:bucket_sort', eval_factors=(1, 2, 3))
  scores = [scored(task, Oracle(), length) for length in task.lengths]
  scores[1] = scores[1]._replace(accuracy=0.25, loss=3.0)
  scores[2] = scores[2]._replace(accuracy=0.75, loss=1.0)
  mean = unseen(scores)
  assert (mean.accuracy, mean.loss, mean.token_accuracy) == (0.5, 2.0, 1.0)
  assert results(scores, '')['unseen']['accuracy'] == 0.5
  assert results(scores, '')['unseen']['greedy_accuracy'] is None
  scores[2] = scores[2]._replace(accuracy=np.nan)
  assert results(scores, '')['unseen']['accuracy'] is None
  assert unseen(scores[:1]) is None
  assert results(scores[:1], '')['unseen'] == {}


def test_an_encoder_shows_a_question_an_answer_and_the_right_one():
  task = make(ENCODER, data='synthetic:bucket_sort')
  lines = [line.split() for line in task.sample(Oracle(), jax.random.key(0)).split('\n')]
  assert [line[0] for line in lines] == ['question', 'answer', 'right']
  assert sorted(lines[0][1:]) == lines[1][1:] == lines[2][1:]
  batch = next(iter(task.eval_batches(4)))
  assert at_once(Oracle(), batch, jax.random.key(0)).tolist() == batch['targets'].tolist()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'data': 'synthetic:bucket_sorted'}, "did you mean 'synthetic:bucket_sort'"),
    ({'data': 'synthetic:solve_equation', 'shortest': 2}, 'begins at length 3, but shortest is 2'),
    ({'shortest': 0}, 'begins at length 1, but shortest is 0'),
    ({'shortest': 5}, 'shortest <= longest, but got 5, 4'),
    ({'data': 'synthetic:binary_addition', 'longest': 2}, '3 <= shortest <= longest, but got 3, 2'),
    ({'eval_lengths': (4, 5)}, r'the other be \(\), but got \(1, 2\) and \(4, 5\)'),
    ({'eval_factors': ()}, r'the other be \(\), but got \(\) and \(\)'),
    ({'eval_factors': (), 'eval_lengths': (5, 6)}, 'must rise from 4, .* but got .5, 6.'),
    ({'eval_factors': (), 'eval_lengths': (4, 6, 6)}, 'must rise from 4'),
    ({'eval_examples': 0}, 'eval_examples must be at least 1, but got 0'),
    ({'data': 'synthetic:copy_unique', 'longest': 100}, '128 keys, too few for 200 symbols'),
    ({'data': 'synthetic:'}, "Unknown questions 'synthetic:'. There are: .*sort, .*, file:PATH"),
    ({'data': 'file:'}, "Unknown questions 'file:'; did you mean 'file:PATH'"),
    ({'model': ENCODER, 'greedy': True}, 'greedy needs a causal model'),
    ({'model': ENCODER, 'data': 'file:x'}, 'empty places would tell: it needs a causal model'),
  ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(changes, message, unchecked):
  with pytest.raises(ValueError, match=message) as error:
    make(**changes)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('config', 'layers', 'width', 'causal', 'lengths'),
  [
    (algorithmic_paper.get_config(), 12, 768, True, range(20, 41)),
    (chomsky.get_config(), 3, 64, False, range(10, 31)),
    (chomsky_paper.get_config(), 5, 64, False, range(40, 501)),
  ],
)
def test_configs_build_their_tasks(config, layers, width, causal, lengths):
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  scheme = posjax.get(config.scheme)
  task = get_task(name)(scheme, config.model.to_dict(), seed=0, batch_size=4, **arguments)
  assert task.lengths == tuple(lengths)
  assert (config.model.num_layers, config.model.width, config.model.causal) == (
    layers,
    width,
    causal,
  )
  assert sorted(config.keys()) == sorted(default.get_config().keys())


def test_a_file_is_a_task_too(tmp_path):
  (tmp_path / 'train.tsv').write_text(
    ''.join(f'{"go " * n}w{k}\t{"GO " * n}\n' for n in range(1, 7) for k in range(60))
  )
  task = make(data=f'file:{tmp_path}', longest=3, eval_factors=())
  assert task.lengths == (3, 4, 5, 6)
  learned = {
    tuple(row)
    for batch in itertools.islice(task.train_batches(0, 1), 60)
    for row in batch['inputs'].tolist()
  }
  judged = [row for batch in task.eval_batches(3) for row in batch['inputs'].tolist() if any(row)]
  assert judged
  assert not learned & {tuple(row) for row in judged}
  lengths = {
    int(n) for batch in itertools.islice(task.train_batches(0, 1), 20) for n in batch['lengths']
  }
  assert lengths == {1, 2, 3}
  for length in (4, 5, 6):
    rows = [n for batch in task.eval_batches(length) for n in batch['weights'].sum(1)]
    assert rows == [length + 1] * 16
  score = scored(task, task.model(nnx.Rngs(0)), 3)
  assert score.tokens == sum(np.sum(batch['weights']) for batch in task.eval_batches(3))
  arguments = scan.get_config().task.to_dict()
  assert arguments.pop('name') == 'algorithmic'
  assert make(**{**arguments, 'data': f'file:{tmp_path}', 'longest': 4}).lengths == (4, 5, 6)
  with pytest.raises(ValueError, match='has no answers of length 9; it has 1 to 6'):
    make(data=f'file:{tmp_path}', longest=3, eval_factors=(1, 3))


@pytest.mark.slow
def test_an_encoder_learns_to_sort_and_still_sorts_most_at_twice_the_length(tmp_path):
  """configs/chomsky.py with fewer steps: 600 of 64 questions of lengths 1 to 10."""
  config = chomsky.get_config()
  config.steps = 600
  config.task.eval_lengths = (10, 15, 20)
  scores = train(config, tmp_path).scores
  assert scores[0].token_accuracy > 0.95
  assert scores[0].accuracy > 0.8
  assert scores[2].token_accuracy > 0.8  # guessing gets 0.2
