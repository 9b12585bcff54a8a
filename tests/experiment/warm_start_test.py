"""A run that begins with the weights of another one: which it takes, and that it does take them."""

import chex
import jax
import numpy as np
import pytest

from posjax.experiment import checkpoint, report, trained
from posjax.experiment.run import make_task
from tests.experiment.support import faults
from tests.experiment.support.runs import losses, small
from train import run, setup, train

FEW = {'steps': 4, 'checkpoint_every': 2, 'eval_every': 4, 'model.num_layers': 1}
FEW |= {'task.eval_factors': (1,), 'task.eval_tokens': 64, 'task.sample_length': 2}

YARN = 'yarn(factor=4,original_length=32)+t5'


@pytest.fixture(scope='module')
def source(tmp_path_factory):
  """A run with RoPE and a table, of which the mean of two checkpoints is the model."""
  folder = tmp_path_factory.mktemp('source') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, 'draw', lambda *arguments: None)
    mean = {'checkpoint.use': 'mean', 'checkpoint.mean_of': 2}
    train(small(scheme='rope+t5', **FEW, **mean), folder)
  return folder


def by_path(tree):
  path_of = lambda path: jax.tree_util.keystr(path, simple=True, separator='/')
  return {path_of(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def weights_of(folder):
  """The model of a run that is asked, with its own code."""
  config = trained.read_config(folder)
  return by_path(trained.restore(folder, config, make_task(config, folder))[1])


def test_a_run_goes_on_from_the_weights_of_another_with_a_new_optimizer(tmp_path, monkeypatch):
  folder = faults.stopped_run(tmp_path / 'made', monkeypatch)
  points = tmp_path / 'made' / 'points.txt'
  begun = setup(faults.line(points, start_from=str(folder), seed=3), tmp_path / 'run')
  state = setup(faults.line(points), tmp_path / 'like').state
  choice = checkpoint.Choice(steps=6, every=2)
  saved = checkpoint.chosen(folder / 'checkpoints', state, choice).state
  assert abs(by_path(saved.params)['slope/value']).max() > 0
  chex.assert_trees_all_equal(by_path(begun.state.params), by_path(saved.params))
  chex.assert_trees_all_equal(by_path(begun.state.optimizer), by_path(state.optimizer))
  assert begun.started_from == (
    f'weights of {folder}, the last checkpoint, after step 5: 2 taken with 128 numbers: height, '
    'slope; none made anew'
  )


@pytest.mark.slow
@pytest.mark.parametrize(('scheme', 'mesh'), [('none', {}), (YARN, {'mesh.tensor': 2})])
def test_weights_of_another_scheme_are_taken_and_what_is_made_anew_is_named(
  scheme, mesh, source, tmp_path
):
  config = small(scheme=scheme, **FEW, **mesh, start_from=str(source), seed=5)
  begun = setup(config, tmp_path / 'run')
  there, ours = weights_of(source), by_path(begun.state.params)
  other = by_path(setup(small(scheme=scheme, **FEW, seed=5), tmp_path / 'other').state.params)
  assert len(ours) > 10
  for path, value in ours.items():
    np.testing.assert_allclose(value, there[path], rtol=1e-6, atol=1e-7)
    assert path.endswith(('bias/value', 'scale/value')) or abs(value - other[path]).max() > 1e-3
  if scheme == 'none':
    run(begun)
    _, before = trained.restore(tmp_path / 'run', config, begun.task, step=0)
    chex.assert_trees_all_equal({**ours, **by_path(before)}, by_path(before))
  said = begun.started_from
  assert f'{len(ours)} taken with ' in said
  assert 'the mean of the checkpoints after steps 2, 4' in said
  assert 'none made anew' in said
  assert ('left there: ' in said) == (scheme == 'none')


@pytest.mark.slow
def test_other_shapes_are_made_anew_and_the_run_resumes_without_the_other_one(
  source, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  config = small(scheme='rope', **{**FEW, 'model.ff_width': 16}, start_from=str(source))
  train(config, tmp_path / 'run')
  shown = capsys.readouterr().out
  assert ' made anew: ' in shown
  assert 'feed_forward/up/kernel (1, 32, 16)' in shown
  assert 'feed_forward/up/kernel (1, 32, 128)' in shown
  before = losses(tmp_path / 'run')
  source.rename(source.with_name('moved'))
  try:
    train(config, tmp_path / 'run')
    assert losses(tmp_path / 'run') == before
    with pytest.raises(FileNotFoundError, match='start_from should be the folder of a run, but'):
      setup(config, tmp_path / 'new')
  finally:
    source.with_name('moved').rename(source)


@pytest.mark.slow
def test_other_tokens_and_other_models_are_refused(source, tmp_path):
  changes = {'task.tokens': 'characters'}
  with pytest.raises(ValueError, match=r'tokens have the same numbers, but .* vocabulary\.json'):
    setup(small(**FEW, **changes, start_from=str(source)), tmp_path / 'run')
  wider = {**FEW, 'model.width': 16, 'model.norm': 'RMSNorm', 'model.num_heads': 2}
  wider |= {'scheme': 'none', 'start_from': str(source)}
  with pytest.raises(ValueError, match='weights of the same names and shapes, but'):
    setup(small(**wider), tmp_path / 'run')
