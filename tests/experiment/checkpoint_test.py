"""Which checkpoints stay on the disk, and which model a run is scored and asked with."""

import itertools
import json
import math
import resource
import shutil
import sys
import time

import chex
import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

from posjax.experiment import checkpoint, report, run, trained, unreadable
from posjax.experiment.checkpoint import Choice
from posjax.experiment.evaluation import evaluate
from posjax.experiment.sharding import make_mesh
from posjax.experiment.shards import Rows
from posjax.experiment.training import State
from posjax.experiment.workdir import Unwritten
from tests.experiment.support import faults
from tests.experiment.support.runs import killed_run_resumes, losses, small
from train import setup, train


def numbers():
  """Batches of one row, 0, 1, .., whose place a checkpoint holds."""
  count = grain.MapDataset.range(100).map(lambda i: {'number': np.array([i])})
  return Rows(lambda index, shards: count.to_iter_dataset(), make_mesh())


def state_at(step):
  """A state whose numbers tell the step, with parameters of two kinds of float."""
  draw = np.random.default_rng(step).normal(size=(3, 2))
  params = {'wide': jnp.array(draw, jnp.float32), 'narrow': jnp.array(draw, jnp.bfloat16)}
  return State(params, {'mean': jnp.float32(step)}, {'count': jnp.int32(step)})


def save_all(folder, choice, metrics):
  """Saves a checkpoint after each step, with its metrics; returns the steps that are left."""
  data = numbers()
  with checkpoint.manager(folder, choice) as checkpoints:
    for step, values in metrics.items():
      checkpoint.save(checkpoints, step, state_at(step), data, values)
  return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def chosen_step(folder, choice):
  """The step of the one state that is chosen."""
  return int(checkpoint.chosen(folder, state_at(0), choice).state.optimizer['count'])


BEST = Choice(keep=2, every=5, steps=22, use='best', metric='loss')


def losses_at(*values, steps=(5, 10, 15, 20, 22)):
  return {step: {'loss': value} for step, value in zip(steps, values, strict=True)}


def test_the_last_regular_checkpoints_stay_and_the_newest_to_resume_from(tmp_path):
  choice = Choice(keep=2, every=5, steps=22)
  kept = save_all(tmp_path, choice, dict.fromkeys((3, 5, 10, 15, 17)))
  assert kept == [10, 15, 17]  # 3 and 17: a run that was interrupted
  assert chosen_step(tmp_path, choice) == 17
  assert save_all(tmp_path, choice, dict.fromkeys((20, 22))) == [20, 22]
  assert chosen_step(tmp_path, choice) == 22


def test_the_best_stays_beside_the_last_ones_and_is_chosen(tmp_path):
  assert save_all(tmp_path, BEST, losses_at(3.0, 1.0, 2.0, 1.5, 1.25)) == [10, 20, 22]
  assert chosen_step(tmp_path, BEST) == 10
  name = checkpoint.chosen(tmp_path, state_at(0), BEST).name
  assert name == 'the best checkpoint by loss, after step 10'


def test_reading_checkpoints_warns_of_nothing(tmp_path, caplog):
  """Orbax does, for every one that it only reads; absl's level is put back after that."""
  save_all(tmp_path, MEAN, dict.fromkeys((5, 10, 15)))
  caplog.clear()
  level = logging.get_verbosity()
  checkpoint.chosen(tmp_path, state_at(0), MEAN)
  assert not caplog.records
  assert logging.get_verbosity() == level


def test_the_best_of_a_resumed_run_is_the_best_of_the_whole_run(tmp_path):
  both = losses_at(3.0, 1.0, 2.0, 1.5, 1.25)
  save_all(tmp_path, BEST, {step: both[step] for step in (5, 10)})
  save_all(tmp_path, BEST, {step: both[step] for step in (15, 20, 22)})
  assert chosen_step(tmp_path, BEST) == 10


def test_where_higher_is_better_the_highest_is_the_best(tmp_path):
  choice = BEST._replace(higher=True)
  save_all(tmp_path, choice, losses_at(2.0, 3.0, 1.0, 2.5, 2.0))
  assert chosen_step(tmp_path, choice) == 10


@pytest.mark.parametrize('higher', [False, True])
def test_the_earliest_of_equals_is_the_best_and_no_number_never_is(tmp_path, higher):
  choice = BEST._replace(higher=higher)
  save_all(tmp_path, choice, losses_at(math.nan, 1.0, 1.0, math.nan, math.nan))
  assert chosen_step(tmp_path, choice) == 10


def test_a_checkpoint_of_an_interruption_is_never_the_best(tmp_path):
  kept = save_all(tmp_path, BEST, losses_at(3.0, 1.0, 0.5, 2.0, 2.0, steps=(5, 10, 12, 15, 20)))
  assert kept == [10, 15, 20]
  assert chosen_step(tmp_path, BEST) == 10


MEAN = Choice(keep=4, every=5, steps=30, use='mean', mean_of=3)


def test_the_mean_is_that_of_the_last_regular_ones_with_the_newest_statistics(tmp_path):
  assert save_all(tmp_path, MEAN, dict.fromkeys((5, 10, 15, 20, 22))) == [5, 10, 15, 20, 22]
  state, name = checkpoint.chosen(tmp_path, state_at(0), MEAN)
  assert name == 'the mean of the checkpoints after steps 10, 15, 20'
  for kind, tolerance in (('wide', 1e-6), ('narrow', 2**-8)):
    parts = [np.float64(state_at(step).params[kind]) for step in (10, 15, 20)]
    np.testing.assert_allclose(state.params[kind], np.mean(parts, axis=0), rtol=tolerance)
    assert state.params[kind].dtype == state_at(0).params[kind].dtype
  assert float(state.rest['mean']) == 20
  assert int(state.optimizer['count']) == 20


def test_the_mean_is_taken_in_float32_whatever_the_parameters_are(tmp_path):
  """Bfloat16 would add 1 to 256 in vain."""
  choice = MEAN._replace(every=1, steps=3)
  data = numbers()
  values = (256.0, 1.0, 1.0)
  with checkpoint.manager(tmp_path, choice) as checkpoints:
    for step, value in enumerate(values, start=1):
      state = State({'w': jnp.array([value], jnp.bfloat16)}, {}, {})
      checkpoint.save(checkpoints, step, state, data)
  state = checkpoint.chosen(tmp_path, state, choice).state
  assert float(state.params['w'][0]) == 86.0  # of float32; 256 / 3 is 85.5 in bfloat16


def test_too_few_checkpoints_are_told(tmp_path):
  save_all(tmp_path, MEAN, dict.fromkeys((5, 10, 12)))
  with pytest.raises(ValueError, match=r'mean of 3 .* holds 2, after steps 5, 10\.'):
    checkpoint.chosen(tmp_path, state_at(0), MEAN)


def test_a_folder_without_the_metric_is_told(tmp_path):
  save_all(tmp_path, BEST, {3: None, 5: {'loss': math.nan}})
  with pytest.raises(ValueError, match=r'no checkpoint in .* has a loss that is a number'):
    checkpoint.chosen(tmp_path, state_at(0), BEST)


WRONG = [
  (
    {'use': 'lst'},
    r"checkpoint\.use must be one of 'last', 'best', 'mean', but got 'lst'; did you mean 'last'\?",
  ),
  ({'keep': 0}, r'checkpoint\.keep must be an integer of at least 1 .* but got 0'),
  ({'metric': 'loss'}, r"metric is for checkpoint\.use='best', but got 'loss' with 'last'"),
  ({'mean_of': 2}, r"mean_of is for checkpoint\.use='mean', but got 2 with 'last'"),
  ({'use': 'best', 'metric': 'los'}, r"Unknown checkpoint\.metric 'los'; did you mean 'loss'"),
  ({'use': 'mean'}, r"'mean' needs checkpoint\.mean_of, .*got None"),
  ({'use': 'mean', 'mean_of': 0}, r'of at least 1.*got 0'),
  ({'use': 'mean', 'mean_of': 3}, r'keep must be at least checkpoint\.mean_of, 3, .* but got 2'),
  (
    {'use': 'mean', 'mean_of': 4, 'keep': 9},
    r'must be at most 3, .* 12 steps .* every 5, .* got 4',
  ),
]


@pytest.mark.parametrize(('changes', 'message'), WRONG)
def test_a_wrong_choice_is_refused_before_anything_is_trained(tmp_path, changes, message):
  config = small(**{f'checkpoint.{key}': value for key, value in changes.items()})
  with pytest.raises(ValueError, match=message):
    setup(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_the_best_checkpoint_needs_an_evaluation_during_training():
  with pytest.raises(ValueError, match='all run at the end'):
    checkpoint.choose(small(**{'checkpoint.use': 'best'}), {})


def test_a_misspelt_key_is_refused(tmp_path):
  config = small()
  config.checkpoint.kep = 3
  told = r"The config has no key 'checkpoint\.kep'; did you mean 'checkpoint\.keep'\?"
  with pytest.raises(ValueError, match=told):
    setup(config, tmp_path / 'run')


# Held-out text that is another one than the training text is learned at first, and then unlearned.
OVERFITTED = {
  'optimizer.name': 'sgd',
  'optimizer.momentum': 0.9,
  'optimizer.schedule': 'constant',
  'optimizer.learning_rate': 0.5,
  'checkpoint_every': 4,
  'task.eval_factors': (1,),
}


@pytest.fixture
def other_text(tmp_path):
  folder = tmp_path / 'text'
  folder.mkdir()
  (folder / 'train.txt').write_text('abab abab abab\n' * 400)
  (folder / 'valid.txt').write_text('the old bar is a new bar\n' * 80)
  return f'file:{folder}'


def by_hand(folder, prepared, step):
  """The parameters that a checkpoint holds, read without the code under test."""
  import orbax.checkpoint as ocp

  place = folder / 'checkpoints' / str(step) / 'state'
  return ocp.StandardCheckpointer().restore(place.resolve(), prepared.state)


def held_out_loss(prepared, state):
  """What a state scores at the training length."""
  from flax import nnx

  both = nnx.merge_state(state.params, state.rest)
  key = jax.random.key(prepared.config.seed)
  (evaluation,) = prepared.task.evaluations
  return evaluate(evaluation, prepared.graph, both, prepared.mesh, key).values['loss']


def same(tree, other):
  chex.assert_trees_all_equal(jax.tree.leaves(tree), jax.tree.leaves(other))


@pytest.mark.slow
def test_a_run_is_scored_and_asked_with_its_best_checkpoint(tmp_path, other_text, capsys):
  changes = {'task.data': other_text, 'checkpoint.use': 'best', 'checkpoint.keep': 3}
  config = small(**OVERFITTED, **changes)
  result = train(config, tmp_path / 'run')
  prepared = setup(config, tmp_path / 'run')
  states = {step: by_hand(tmp_path / 'run', prepared, step) for step in (4, 8, 12)}
  scores = {step: held_out_loss(prepared, state) for step, state in states.items()}
  best = min(scores, key=scores.get)
  assert best != 12  # or this would show nothing
  assert result.scores['length 32'].values['loss'] == scores[best]
  assert f'the best checkpoint by loss, after step {best}' in capsys.readouterr().out
  _, state = trained.restore(tmp_path / 'run', config, prepared.task)
  params = states[best].params
  asked = dict(jax.tree_util.tree_leaves_with_path(state))
  same([asked[path] for path, _ in jax.tree_util.tree_leaves_with_path(params)], params)


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_mean_as_a_whole_one(tmp_path, monkeypatch):
  """It saves once more, after step 7; that checkpoint is not one of the averaged ones."""
  changes = {'checkpoint.use': 'mean', 'checkpoint.mean_of': 2, 'task.eval_factors': (1,)}
  config = small(**changes, **{'optimizer.name': 'sgd', 'optimizer.momentum': 0.5})
  whole = train(config, tmp_path / 'whole')
  steps = iter(range(1, 100))

  class Stopped:
    def __enter__(self):
      return lambda: next(steps) == 7

    def __exit__(self, *error):
      pass

  with monkeypatch.context() as patched:
    patched.setattr(run, 'interrupts', Stopped)
    assert train(config, tmp_path / 'cut') is None
  assert (tmp_path / 'cut' / 'checkpoints' / '7').is_dir()
  cut = train(config, tmp_path / 'cut')
  assert losses(tmp_path / 'cut') == losses(tmp_path / 'whole')
  assert cut.scores['length 32'].values == whole.scores['length 32'].values
  prepared = setup(config, tmp_path / 'cut')
  parts = [by_hand(tmp_path / 'cut', prepared, step).params for step in (10, 12)]
  mean = jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), 0), *map(jax.tree.leaves, parts))
  _, state = trained.restore(tmp_path / 'cut', config, prepared.task)
  asked = dict(jax.tree_util.tree_leaves_with_path(state))
  paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(parts[0])]
  for path, expected in zip(paths, mean, strict=True):
    np.testing.assert_allclose(asked[path], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_a_killed_run_with_sgd_and_a_mean_ends_like_a_whole_one(tmp_path):
  killed_run_resumes(
    tmp_path,
    40,
    '--config=tests/experiment/support/small_config.py',
    *('--config.optimizer.name=sgd', '--config.optimizer.momentum=0.9'),
    *('--config.optimizer.schedule=vaswani', '--config.optimizer.clip_value=0.1'),
    *('--config.checkpoint.use=mean', '--config.checkpoint.mean_of=3'),
    '--config.checkpoint.keep=3',
  )
  for folder in ('whole', 'killed'):
    kept = {path.name for path in (tmp_path / folder / 'checkpoints').iterdir()}
    assert kept == {'30', '35', '40'}


# Checkpoints that cannot be read.


def saved_twice(folder, choice=None):
  """Checkpoints after steps 1 and 2, each with as many batches drawn."""
  choice, data = choice or Choice(keep=2, every=1, steps=9), numbers()
  with checkpoint.manager(folder, choice) as checkpoints:
    for step in (1, 2):
      next(data)
      checkpoint.save(checkpoints, step, state_at(step), data, {'loss': float(step)})
  return choice


def resumed(folder, choice):
  """The step that is found, whether its state and place in the data are right, and what is said."""
  said, data = [], numbers()
  unreadable.quarantine_corrupt(folder, said.append)
  with checkpoint.manager(folder, choice) as checkpoints:
    step, state = checkpoint.restore(checkpoints, state_at(0), data, said.append)
  same(state, state_at(step))
  assert next(data)['number'] == step
  return step, said


def emptied(path):
  path.write_bytes(b'')


def cut_in_half(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit_turned(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


HARMS = (lambda path: path.unlink(), emptied, cut_in_half, one_bit_turned)


def harmed_are_set_aside(folder, made, cases):
  """Harms one file of the newest checkpoint in each case; returns how many cases there were."""
  done = 0
  for name, harm in cases:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(made, folder)
    harm(folder / '2' / name)
    step, said = resumed(folder, Choice(keep=2, every=1, steps=9))
    assert step == 1, name
    assert len(said) == 1
    assert f'after step 2 cannot be read (its file {name} is' in said[0], said
    assert (
      f'set aside as {folder / "2.unreadable"}, and the run goes on from the one bef' in said[0]
    )
    assert (folder / '2.unreadable' / 'state').is_dir()
    done += 1
  return done


def noted_files(folder):
  return sorted(json.loads((folder / '2' / unreadable.HASHES).read_text()))


def test_a_checkpoint_with_a_harmed_file_is_set_aside_and_the_one_before_is_taken(tmp_path):
  """Each file in one way: deleted, emptied, cut, or with one bit changed, which reads as well."""
  saved_twice(tmp_path / 'made')
  names = noted_files(tmp_path / 'made')
  assert {'state/_METADATA', 'data/process_0-of-1.json'} <= set(names)
  cases = list(zip(names, itertools.cycle(HARMS), strict=False))
  assert harmed_are_set_aside(tmp_path / 'copy', tmp_path / 'made', cases) >= 10


@pytest.mark.slow
def test_every_file_of_a_checkpoint_harmed_in_every_way_is_set_aside(tmp_path):
  saved_twice(tmp_path / 'made')
  cases = list(itertools.product(noted_files(tmp_path / 'made'), HARMS))
  assert harmed_are_set_aside(tmp_path / 'copy', tmp_path / 'made', cases) >= 50


def test_checkpoints_without_good_hashes_are_set_aside_where_orbax_cannot_read_them(tmp_path):
  """Those of an earlier version have no hashes; a file or an empty folder is no checkpoint."""
  choice = saved_twice(tmp_path)
  (tmp_path / '2' / unreadable.HASHES).unlink()
  assert resumed(tmp_path, choice) == (2, [])
  (tmp_path / '2' / 'state' / '_METADATA').write_text('')
  step, said = resumed(tmp_path, choice)
  assert step == 1
  assert 'after step 2 cannot be read (JSONDecodeError: ' in said[0]
  (tmp_path / '2').mkdir()
  (tmp_path / '3').write_text('')
  step, said = resumed(tmp_path, choice)
  assert step == 1
  assert '(it is no folder)' in said[0]
  assert f'(it is empty): it is set aside as {tmp_path / "2.unreadable.again"}' in said[1]


def test_without_one_that_can_be_read_checkpoints_are_refused_and_stay(tmp_path):
  choice = saved_twice(tmp_path)
  for step in '12':
    emptied(tmp_path / step / 'state' / '_METADATA')
  message = r'that after step 2: its file state/_METADATA is not .*; that after step 1: its file'
  with pytest.raises(ValueError, match=message):
    checkpoint.check(tmp_path, state_at(0))
  with pytest.raises(ValueError, match=message):
    unreadable.quarantine_corrupt(tmp_path)
  with pytest.raises(ValueError, match=r'2 cannot be read \(its file state/_METADATA is not what'):
    checkpoint.chosen(tmp_path, state_at(0), choice)
  for step in '12':
    (tmp_path / step / unreadable.HASHES).unlink()
  with (
    pytest.raises(ValueError, match=r'No checkpoint in .* can be read'),
    checkpoint.manager(tmp_path, choice) as checkpoints,
  ):
    checkpoint.restore(checkpoints, state_at(0), numbers())
  assert {path.name for path in tmp_path.iterdir()} == {'1', '2'}


def test_a_harmed_metric_of_the_best_checkpoint_is_noticed_before_it_is_read(tmp_path):
  choice = saved_twice(tmp_path, BEST._replace(every=1, steps=9))
  emptied(tmp_path / '2' / 'metrics' / 'metrics')
  step, said = resumed(tmp_path, choice)
  assert step == 1
  assert 'its file metrics/metrics is not what was saved' in said[0]


def test_a_run_whose_newest_checkpoint_is_harmed_says_so_and_ends_as_if_it_were_not(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  folder = faults.stopped_run(tmp_path / 'made', monkeypatch)
  config = faults.line(tmp_path / 'made' / 'points.txt')
  whole = train(config, tmp_path / 'whole')
  one_bit_turned(max((folder / 'checkpoints' / '5').rglob('ocdbt.process_0/d/*')))
  capsys.readouterr()
  harmed = train(config, folder)
  shown = capsys.readouterr().out
  assert 'the checkpoint after step 5 cannot be read (its file state/' in shown
  assert 'resuming after step 4' in shown
  assert losses(folder) == losses(tmp_path / 'whole')
  assert harmed.scores['all points'].values == whole.scores['all points'].values


def test_a_full_disk_prints_nothing_beside_the_error(tmp_path, monkeypatch):
  """Each array that TensorStore could not write had a traceback of its own."""
  printed = []
  monkeypatch.setattr(sys, 'unraisablehook', lambda given: printed.append(given.exc_value))
  state = list(jax.random.normal(jax.random.key(0), (40, 10_000)))
  data = numbers()
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  try:
    with (  # noqa: PT012, since closing raises as well
      pytest.raises(Unwritten, match='File too large'),
      checkpoint.manager(tmp_path, Choice()) as checkpoints,
    ):
      resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
      checkpoint.save(checkpoints, 1, state, data)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  time.sleep(0.3)  # its threads end
  assert not printed
