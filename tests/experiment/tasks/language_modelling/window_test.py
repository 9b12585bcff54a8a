"""A language model beyond its training length, and with a sliding window of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import posjax
from configs import default, length_generalization
from posjax.experiment.report import results
from posjax.experiment.task import get_task
from tests.experiment.support import judged

L = 8
MODEL = {'num_layers': 1, 'width': 16, 'num_heads': 2}


@pytest.fixture
def text(tmp_path):
  content = np.random.default_rng(0).integers(97, 122, 4000, dtype=np.uint8)
  (tmp_path / 'text').write_bytes(bytes(content))
  return f'file:{tmp_path}/text'


def make(text, scheme='rope', model=MODEL, **changes):
  arguments = {
    'seed': 0,
    'batch_size': 4,
    'data': text,
    'length': L,
    'eval_factors': (1, 4),
    'eval_tokens': 64,
    'prompt': 'a',
    'sample_length': 2,
    'eval_window': True,
  }
  return get_task('language_modelling')(posjax.get(scheme), model, **{**arguments, **changes})


def scored(task, length, series=''):
  return judged.scored(task, task.model(nnx.Rngs(0)), length, series=series)


def by_position(score):
  return score.arrays['loss_by_position']


@pytest.mark.parametrize('scheme', ['rope', 'alibi'])
def test_a_token_in_a_window_has_the_loss_that_its_last_tokens_alone_give(text, scheme):
  """One layer, and a scheme of distances: each context is cut out and read from position 0."""
  task = make(text, scheme)
  model = task.model(nnx.Rngs(0))
  whole, windowed = scored(task, 4 * L), scored(task, 4 * L, 'windowed')
  graph, state = nnx.split(model)
  pos = jnp.arange(L)

  @jax.jit
  def last(tokens, target, end):
    logits = nnx.merge(graph, state)(tokens[None], pos)[0, end]
    return optax.softmax_cross_entropy_with_integer_labels(logits, target)

  expected = np.zeros(4 * L)
  rows = [
    row
    for batch in judged.batches(task, 4 * L)
    for row in zip(batch['inputs'], batch['targets'], strict=True)
  ]
  for inputs, targets in rows:
    for place in range(4 * L):
      start = max(place - L + 1, 0)
      context = np.zeros(L, np.int32)
      context[: place + 1 - start] = inputs[start : place + 1]
      expected[place] += last(context, targets[place], place - start)
  expected *= judged.unit(task) / len(rows)
  np.testing.assert_allclose(by_position(windowed), expected, rtol=2e-4)
  assert windowed.values['loss'] == pytest.approx(expected.mean(), rel=2e-4)
  assert not np.allclose(by_position(whole)[L:], expected[L:], rtol=1e-3)


def test_a_window_of_the_training_length_changes_nothing_there(text):
  task = make(text)
  scores = {
    evaluation.name: scored(task, evaluation.length, evaluation.series)
    for evaluation in task.evaluations
  }
  assert set(scores) == {'length 8', 'length 32', 'length 8, windowed', 'length 32, windowed'}
  assert scores['length 8, windowed'].values == pytest.approx(scores['length 8'].values, rel=1e-6)
  whole, windowed = scores['length 32'], scores['length 32, windowed']
  np.testing.assert_allclose(by_position(windowed)[:L], by_position(whole)[:L], rtol=1e-5)
  written = results(task, scores, '')
  assert len(written['arrays']['length 32, windowed']['loss_by_position']) == 4 * L
  assert written['scores']['length 32, windowed']['loss'] == windowed.values['loss']
  assert written['unseen'] == {n: whole.values[n] for n in ('loss', 'accuracy')}


def test_no_window_is_scored_where_none_is_asked_for(text):
  task = make(text, eval_window=False)
  assert [evaluation.name for evaluation in task.evaluations] == ['length 8', 'length 32']
  assert all(evaluation.model is None for evaluation in task.evaluations)


def test_a_model_that_has_a_window_is_not_compared_with_one(text):
  with pytest.raises(ValueError, match=r'model\.window must be None, but got 4'):
    make(text, model={**MODEL, 'window': 4})


def test_the_config_tests_up_to_sixteen_training_lengths_with_a_window():
  config, plain = length_generalization.get_config(), default.get_config()
  assert config.task.eval_factors == (1, 2, 4, 8, 16)
  assert (config.task.eval_window, plain.task.eval_window) == (True, False)
  assert config.task.keys() == plain.task.keys()
  assert config.task.eval_tokens % (16 * config.task.length) == 0
