"""Algorithmic tasks: both forms, unseen lengths, whose words are judged, and what is refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from configs import algorithmic_paper, chomsky, chomsky_paper, default, scan
from posjax.experiment.evaluation import unseen
from posjax.experiment.report import results
from posjax.experiment.task import get_task
from posjax.experiment.tasks.algorithmic import catalogue, synthetic
from posjax.experiment.tasks.algorithmic.framing import DECODER
from posjax.experiment.tasks.algorithmic.task import Sizes, continued
from tests.experiment.support import judged
from train import train

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
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
  return judged.scored(task, model, length)


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
  assert (score.values['accuracy'], score.values['token_accuracy']) == (1, 1)
  assert score.counted == 16
  assert sum(batch['weights'].sum() for batch in judged.batches(task, length)) == 16 * length
  by_position = score.arrays['loss_by_position']
  assert np.isnan(by_position[:length]).all()
  assert np.isfinite(by_position[length:]).all()


def test_one_wrong_token_spoils_an_answer_and_a_token():
  task = make(ENCODER, data='synthetic:bucket_sort')
  score = scored(task, Oracle(lambda answers: answers.at[::2, 1].set(0)), 4)
  assert score.values['accuracy'] == 0.5
  assert score.values['token_accuracy'] == 1 - 1 / 8


def test_the_end_of_an_answer_that_varies_is_judged_and_what_follows_is_not():
  task = make(ENCODER, data='synthetic:stack_manipulation')
  algorithm = catalogue.get('stack_manipulation')
  for batch in judged.batches(task, 8):
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
  counts = batch['weights'] > 0
  said = np.asarray(continued(model, batch, jax.random.key(0), Sizes(8, 4)))
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

  def stumble(model, batch, state, key):
    targets, first = batch['targets'], int(counts[0].argmax())
    said = targets.at[2:4, first].add(1).at[4:6, first].set(synthetic.EOS)
    said = said.at[6:8, first + 4].set(synthetic.SEP)
    return {'generated': said, 'targets': targets, 'weights': batch['weights']}, state

  task = make(data='synthetic:copy', greedy=True)
  counts = judged.batches(task, 4)[0]['weights'] > 0
  greedy = judged.of_length(task, 4, 'greedy')._replace(predict=stumble)
  score = judged.score(greedy, task.model(nnx.Rngs(0)))  # four letters and <eos>
  assert score.values['accuracy'] == 4 / 16
  assert score.values['token_accuracy'] == (4 * 5 + 4 * 4 + 4 * 0 + 4 * 4) / 80


@pytest.mark.parametrize('lengths', [{}, {'eval_factors': (), 'eval_lengths': (4, 6)}])
def test_the_greedy_evaluation_is_of_what_the_decoder_says_by_itself(lengths):
  """In rows that are as wide as their questions, and in rows that are padded to 64."""
  task = make(scheme='rope', data='synthetic:dyck', greedy=True, **lengths)
  model = task.model(nnx.Rngs(0))
  last = judged.lengths(task)[-1]
  score = judged.scored(task, model, last, series='greedy')
  right = tokens = answers = 0
  for batch in judged.batches(task, last):
    sizes = Sizes(last + 2, last + 1)
    said = np.asarray(continued(model, batch, jax.random.key(0), sizes))
    for row, target, weights in zip(said, batch['targets'], batch['weights'], strict=True):
      mask = weights > 0
      ended = [place for place in np.flatnonzero(mask) if row[place] == synthetic.EOS]
      upto = ended[0] if ended else len(row)
      good = [row[p] == target[p] and p <= upto for p in np.flatnonzero(mask)]
      right, tokens, answers = right + sum(good), tokens + len(good), answers + all(good)
  assert score.values['token_accuracy'] == pytest.approx(right / tokens)
  assert score.values['accuracy'] == pytest.approx(answers / 16)
  assert score.counted == 16


@pytest.mark.parametrize(
  ('scheme', 'model'),
  [
    ('rope', MODEL),
    slow('rope', ENCODER),
    slow('randomized(max_length=128)+rope', MODEL),
    ('randomized(max_length=128)+rope', ENCODER),
  ],
  ids=['decoder', 'encoder', 'decoder-randomized', 'encoder-randomized'],
)
def test_padding_rows_to_few_widths_changes_no_score(scheme, model):
  exact = make(model, scheme, data='synthetic:binary_addition')
  padded = make(
    model, scheme, data='synthetic:binary_addition', eval_factors=(), eval_lengths=(4, 5, 8)
  )
  net = exact.model(nnx.Rngs(0))
  first, second = scored(exact, net, 8), scored(padded, net, 8)
  assert second.values == pytest.approx(first.values, rel=1e-5)
  assert second.counted == first.counted
  narrow, wide = (score.arrays['loss_by_position'] for score in (first, second))
  assert len(wide) == 64
  np.testing.assert_allclose(wide[: len(narrow)], narrow, rtol=1e-4)


def test_every_length_can_be_asked_and_its_questions_stay_the_same():
  task = make(eval_factors=(), eval_lengths=(4, 5, 6, 7))
  assert judged.lengths(task) == (4, 5, 6, 7)
  for length in judged.lengths(task):
    first, second = (list(judged.batches(task, length)) for _ in range(2))
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
  asked = {tuple(row) for batch in judged.batches(task, 6) for row in batch['inputs'].tolist()}
  assert len(rows) > 150
  assert len(asked) == 16
  assert not rows & asked


def test_unseen_lengths_weigh_alike_and_one_without_a_number_leaves_none():
  task = make(ENCODER, data='synthetic:bucket_sort', eval_factors=(1, 2, 3))
  scores = {each.name: judged.score(each, Oracle()) for each in task.evaluations}

  def changed(name, **numbers):
    scores[name] = scores[name]._replace(values={**scores[name].values, **numbers})

  changed('length 8', accuracy=0.25, loss=3.0)
  changed('length 12', accuracy=0.75, loss=1.0)
  mean = unseen(task.evaluations, scores)
  assert mean == {'accuracy': 0.5, 'loss': 2.0, 'token_accuracy': 1.0}
  assert results(task, scores, '')['unseen'] == mean
  changed('length 12', accuracy=np.nan)
  assert results(task, scores, '')['unseen'] == {**mean, 'accuracy': None}
  alone = task._replace(evaluations=task.evaluations[:1])
  assert unseen(alone.evaluations, scores) == {}
  assert results(alone, {'length 4': scores['length 4']}, '')['unseen'] == {}


def test_an_encoder_is_asked_and_says_all_places_at_once():
  task = make(ENCODER, data='synthetic:bucket_sort')
  (example,) = task.ask.examples
  first = judged.batches(task, 4)[0]
  words = synthetic.vocabulary('bucket_sort')
  assert example.text.split() == [words[token] for token in first['inputs'][0][:4]]
  assert example.correct.split() == sorted(example.text.split())
  (answer,) = task.ask.answer(Oracle(), [example.text], jax.random.key(0))
  assert answer.plain == example.correct
  for texts in (['3 1 2', '2 0 1'], ['2'], ['4 1 3 0 2 1 0 4 4 1 0']):  # of any length
    answers = task.ask.answer(Oracle(), texts, jax.random.key(0))
    assert [answer.plain.split() for answer in answers] == [sorted(t.split()) for t in texts]


@pytest.mark.parametrize('model', [MODEL, ENCODER], ids=['decoder', 'encoder'])
def test_what_is_answered_to_a_question_depends_on_no_other(model):
  """Questions of several lengths in one batch, padded, against each alone."""
  task = make(model, scheme='rope', data='synthetic:binary_addition')
  made = task.model(nnx.Rngs(0))
  texts = [task.ask.examples[0].text, '1 + 1', '1 0 + 1']
  together = task.ask.answer(made, texts, jax.random.key(0))
  alone = [task.ask.answer(made, [text], jax.random.key(0))[0] for text in texts]
  assert [answer.plain for answer in together] == [answer.plain for answer in alone]
  assert all(answer.plain for answer in together)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'data': 'synthetic:bucket_sorted'}, "did you mean 'synthetic:bucket_sort'"),
    ({'data': 'synthetic:solve_equation', 'shortest': 2}, 'begins at length 3, but shortest is 2'),
    ({'shortest': 0}, 'begins at length 1, but shortest is 0'),
    ({'shortest': 5}, 'shortest <= longest, but got 5, 4'),
    ({'data': 'synthetic:binary_addition', 'longest': 2}, '3 <= shortest <= longest, but got 3, 2'),
    ({'longest': 10**9}, r'must be at most 1,048,576, but got 2,000,000,000\.'),
    ({'eval_lengths': (4, 5)}, r'the other be \(\), but got \(1, 2\) and \(4, 5\)'),
    ({'eval_factors': ()}, r'the other be \(\), but got \(\) and \(\)'),
    ({'eval_factors': (), 'eval_lengths': (5, 6)}, 'must rise from 4, .* but got .5, 6.'),
    ({'eval_factors': (), 'eval_lengths': (4, 6, 6)}, 'must rise from 4'),
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
    slow(chomsky_paper.get_config(), 5, 64, False, range(40, 501)),
  ],
)
def test_configs_build_their_tasks(config, layers, width, causal, lengths):
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  scheme = posjax.get(config.scheme)
  task = get_task(name)(scheme, config.model.to_dict(), seed=0, batch_size=4, **arguments)
  assert judged.lengths(task) == tuple(lengths)
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
  assert judged.lengths(task) == (3, 4, 5, 6)
  learned = {
    tuple(row)
    for batch in itertools.islice(task.train_batches(0, 1), 60)
    for row in batch['inputs'].tolist()
  }
  asked = [row for batch in judged.batches(task, 3) for row in batch['inputs'].tolist() if any(row)]
  assert asked
  assert not learned & {tuple(row) for row in asked}
  lengths = {
    int(n) for batch in itertools.islice(task.train_batches(0, 1), 20) for n in batch['lengths']
  }
  assert lengths == {1, 2, 3}
  for length in (4, 5, 6):
    rows = [n for batch in judged.batches(task, length) for n in batch['weights'].sum(1)]
    assert rows == [length + 1] * 16
  score = scored(task, task.model(nnx.Rngs(0)), 3)
  assert score.counted == sum((b['weights'] > 0).any(1).sum() for b in judged.batches(task, 3))
  arguments = scan.get_config().task.to_dict()
  assert arguments.pop('name') == 'algorithmic'
  assert judged.lengths(make(**{**arguments, 'data': f'file:{tmp_path}', 'longest': 4})) == (
    4,
    5,
    6,
  )
  with pytest.raises(ValueError, match=r'task\.shortest must be at least 1 word .* but got 0'):
    make(data=f'file:{tmp_path}', shortest=0, eval_factors=())
  with pytest.raises(ValueError, match='has no answers of length 9; it has 1 to 6'):
    make(data=f'file:{tmp_path}', longest=3, eval_factors=(1, 3))


@pytest.mark.slow
def test_an_encoder_learns_to_sort_and_still_sorts_most_at_twice_the_length(tmp_path):
  """configs/chomsky.py with fewer steps: 600 of 64 questions of lengths 1 to 10."""
  config = chomsky.get_config()
  config.steps = 600
  config.task.eval_lengths = (10, 15, 20)
  scores = train(config, tmp_path).scores
  assert scores['length 10'].values['token_accuracy'] > 0.95
  assert scores['length 10'].values['accuracy'] > 0.8
  assert scores['length 20'].values['token_accuracy'] > 0.8  # guessing gets 0.2
