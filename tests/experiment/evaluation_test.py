"""Losses and scores by length, against what can be counted by hand, and what tasks refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.experiment import sharding
from posjax.experiment.evaluation import evaluate
from posjax.experiment.losses import next_token
from posjax.experiment.task import get_task
from posjax.experiment.tasks.language_modelling.pipeline import windows
from posjax.experiment.tasks.language_modelling.task import cut, evaluation_lengths
from posjax.models.transformer import Transformer
from tests.experiment.support import judged

MODEL = {'num_layers': 1, 'width': 16, 'num_heads': 2}


def algorithmic(**changes):
  arguments = {
    'seed': 0,
    'batch_size': 8,
    'data': 'synthetic:reverse',
    'shortest': 1,
    'longest': 4,
    'eval_factors': (1, 2),
    'eval_examples': 20,
  }
  return get_task('algorithmic')(posjax.get('none'), MODEL, **{**arguments, **changes})


class Oracle(nnx.Module):
  """Knows every target but those it is told to miss; what surrounds it is the real scorer."""

  def __init__(self, answers):
    self.answers = answers

  def __call__(self, tokens, pos, *, segments, ids_key=None, train_key=None):
    return 10.0 * jax.nn.one_hot(self.answers(tokens), 20)


def reverse_of(tokens):
  """`<bos> prompt <sep> answer`: what follows each token of the answer. Marks are 0 to 3."""
  length = tokens.shape[1] // 2 - 1
  answer = jnp.concatenate([tokens[:, length:0:-1], jnp.full_like(tokens[:, :1], 3)], axis=1)
  return jnp.concatenate([tokens[:, : length + 1], answer], axis=1)


def scored(task, answers, length):
  return judged.scored(task, Oracle(answers), length)


def test_every_answer_of_an_oracle_is_right():
  task = algorithmic()
  score = scored(task, reverse_of, 4)
  assert score.values['accuracy'] == 1
  assert score.counted == 24  # three batches of 8
  weights = sum(batch['weights'].sum() for batch in judged.batches(task, 4))
  assert weights == 24 * 5  # four symbols and <eos>
  assert score.values['loss'] == pytest.approx(
    np.log(np.exp(10) + 19) - 10, abs=1e-6
  )  # float32 near 10


def test_one_wrong_symbol_makes_the_whole_answer_wrong():
  miss = lambda tokens: reverse_of(tokens).at[::4, 6].set(0)  # every fourth row
  assert scored(algorithmic(), miss, 4).values['accuracy'] == 0.75


def test_only_the_answer_is_scored():
  blind = lambda tokens: reverse_of(tokens).at[:, :5].set(0)  # <bos> and the prompt
  assert scored(algorithmic(), blind, 4).values['accuracy'] == 1


def test_padding_reaches_no_loss_even_if_it_is_no_number():
  model = lambda tokens, pos, **_: jnp.where((tokens == 0)[..., None], jnp.nan, jnp.ones((1, 3, 5)))
  tokens = jnp.array([[1, 2, 0]])
  batch = {
    'inputs': tokens,
    'targets': tokens,
    'positions': jnp.arange(3)[None],
    'segments': jnp.array([[1, 1, 0]]),
  }
  assert next_token(model, batch)[0].mean() == pytest.approx(np.log(5), rel=1e-5)


def test_the_mean_loss_is_over_tokens_not_over_rows():
  logits = jnp.log(jnp.array([[[0.5, 0.5], [0.5, 0.5]], [[0.25, 0.75], [1e-9, 1.0]]]))
  batch = {
    'inputs': jnp.zeros((2, 2), jnp.int32),
    'targets': jnp.zeros((2, 2), jnp.int32),
    'positions': jnp.zeros((2, 2), jnp.int32),
    'segments': jnp.array([[1, 1], [1, 0]]),
  }
  losses, _ = next_token(lambda *_, **__: logits, batch)
  expected = (np.log(2) + np.log(2) + np.log(4)) / 3
  assert losses.mean() == pytest.approx(expected, rel=1e-5)


def test_every_length_scores_the_same_targets():
  text = (bytes(np.random.default_rng(0).integers(97, 122, 1000, dtype=np.uint8)),)
  whole = list(windows(text, length=64, batch_size=1, count=3))
  for length in (8, 32, 64):
    batches = cut(whole, length, rows=2)
    targets = np.concatenate([batch['targets'].ravel() for batch in batches])
    np.testing.assert_array_equal(targets, np.concatenate([w['targets'].ravel() for w in whole]))
    for batch in batches:
      assert batch['inputs'].shape[1] == length
      np.testing.assert_array_equal(batch['positions'][0], np.arange(length))


@pytest.mark.parametrize('factors', [(), (2, 4), (1, 3, 4), (1, 0)])
def test_evaluation_lengths_that_cannot_be_cut_from_the_longest_are_refused(factors, unchecked):
  with pytest.raises(ValueError, match='eval_factors must begin with 1 and divide the largest'):
    evaluation_lengths(16, factors)


def test_rows_that_fill_up_a_batch_for_many_devices_count_for_nothing():
  one, many = sharding.make_mesh(), sharding.make_mesh(data=8)
  task = algorithmic(eval_examples=5)
  model = task.model(nnx.Rngs(0))
  scores = [judged.scored(task, model, 4, mesh) for mesh in (one, many)]
  assert scores[0].counted == scores[1].counted == 5
  assert scores[0].values == pytest.approx(scores[1].values, rel=1e-5)
  by_position = [score.arrays['loss_by_position'] for score in scores]
  np.testing.assert_allclose(*by_position, rtol=1e-5)


def test_a_second_evaluation_traces_nothing_and_a_window_has_a_program_of_its_own():
  task, traced = algorithmic(), []

  def predict(model, batch, state, key):
    traced.append(batch['inputs'].shape)
    losses, state = next_token(model, batch, state, key)
    return losses._asdict(), state

  model = task.model(nnx.Rngs(0))
  whole = judged.of_length(task, 4)._replace(predict=predict)
  first = judged.score(whole, model)
  assert len(traced) == 1
  assert judged.score(whole, task.model(nnx.Rngs(1))).values != first.values
  assert len(traced) == 1
  make = lambda rngs: Transformer(20, posjax.get('none'), rngs=rngs, **MODEL, window=2)
  windowed = whole._replace(model=make)
  other = judged.score(windowed, model)
  assert len(traced) == 2
  assert other.values['loss'] != first.values['loss']
  assert judged.score(windowed, model).values == other.values
  assert len(traced) == 2


def test_an_answer_that_is_no_number_leaves_no_number_and_says_why():
  task = algorithmic()
  wrong = lambda tokens: jnp.where(tokens == tokens.max(), jnp.nan, 0.0)

  class Beyond(Oracle):
    def __call__(self, tokens, pos, *, segments, ids_key=None, train_key=None):
      return super().__call__(tokens, pos, segments=segments) + wrong(tokens)[..., None]

  score = judged.scored(task, Beyond(reverse_of), 4)
  assert all(np.isnan(number) for number in score.values.values())
  assert (score.why, score.counted) == ('beyond its table', 24)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'data': 'python_docs'},
      "Unknown questions 'python_docs'. There are: synthetic:addition, .*, file:PATH",
    ),
    ({'data': 'synthetic:revers'}, "did you mean 'synthetic:reverse'"),
    ({'shortest': 5}, 'shortest <= longest, but got 5, 4'),
    ({'eval_factors': (2,)}, 'eval_factors must begin with 1'),
  ],
)
def test_an_algorithmic_task_refuses_what_does_not_fit(changes, message, unchecked):
  with pytest.raises(ValueError, match=message):
    algorithmic(**changes)


def test_evaluation_asks_other_questions_than_training():
  task = algorithmic()
  train = next(iter(task.train_batches(0, 1)))
  rows = {tuple(row) for row in train['inputs'][train['lengths'] == 4].tolist()}
  asked = {tuple(row) for batch in judged.batches(task, 4) for row in batch['inputs'].tolist()}
  assert not rows & asked


def test_left_out_are_the_numbers_without_each_group_of_rows():
  """Against the same evaluation of all rows but those of one group, which are neighbours."""
  task = algorithmic(eval_examples=33, batch_size=10)  # 4 batches, in groups of 2 rows each
  each = judged.of_length(task, 8)
  model = Oracle(lambda tokens: reverse_of(tokens).at[::3, 12].set(0))
  graph, state = nnx.split(model)
  whole = functools.partial(evaluate, graph=graph, state=state, key=jax.random.key(0))
  score = whole(each, mesh=sharding.make_mesh(), leave_out=True)
  rows = {
    name: np.concatenate([np.asarray(batch[name]) for batch in each.batches()])
    for name in next(iter(each.batches()))
  }
  count = len(rows['inputs'])
  group = np.arange(count) * 20 // count
  assert len(score.left_out['accuracy']) == len(score.left_out['loss']) == 20
  right = np.arange(count) % 10 % 3 > 0
  assert score.values['accuracy'] == pytest.approx(right.mean())
  for left in range(20):
    kept = group != left
    assert score.left_out['accuracy'][left] == pytest.approx(right[kept].mean())
  assert len(set(score.left_out['loss'])) > 1
  assert whole(each, mesh=sharding.make_mesh()).left_out == {}
