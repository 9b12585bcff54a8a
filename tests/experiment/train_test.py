"""train.py as people run it: it learns, on one device and on many."""

import contextlib
import functools
import io
import itertools
import json
import math
from pathlib import Path
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from matplotlib import cbook
from matplotlib.figure import Figure
from ml_collections import ConfigDict

import posjax
from configs import algorithmic
from posjax.experiment import optimizer, report, sharding, training
from posjax.experiment.run import ask_examples, make_task
from posjax.experiment.shards import Rows
from posjax.experiment.task import Ask, Example
from tests.experiment.support import faults
from tests.experiment.support.runs import losses, small
from train import Result, setup, train


def test_a_run_learns_and_returns_all_that_it_learned(tmp_path, capsys):
  result = train(small(steps=40), tmp_path)
  learned = losses(tmp_path)
  assert list(learned) == list(range(1, 41))
  assert np.mean([learned[i] for i in range(36, 41)]) < learned[1] - 1.5
  assert list(result.scores) == ['length 32', 'length 128']
  counted = {score.counted for score in result.scores.values()}
  assert counted == {1024}  # the same ones at each length
  assert result.sample.startswith('def ')
  for name in ('config.json', 'results.json', 'report.png', 'tensorboard', 'checkpoints'):
    assert (tmp_path / name).exists()
  shown = capsys.readouterr().out
  assert 'bits per byte' in shown
  assert '4x' in shown
  assert 'sha256' in shown
  tokens = jnp.zeros((1, 4), jnp.int32)
  assert np.isfinite(result.model(tokens, jnp.arange(4))).all()


class Undrawn(NamedTuple):
  """A run on a path that looks like markup and like a formula, whose picture cannot be saved."""

  result: Result
  figure: Figure
  stored: dict  # results.json when the picture was to be saved
  shown: str
  title: str


@pytest.fixture(scope='module')
def undrawn(tmp_path_factory):
  folder = tmp_path_factory.mktemp('undrawn')
  path = folder / '$_$[' / 'b]$x.txt'  # '[/b]' would close a style of rich
  path.parent.mkdir()
  path.write_text('the old bar is a new bar\n' * 2000)
  found = []

  def fail(figure, *args, **options):
    found.extend([figure, json.loads((folder / 'run' / 'results.json').read_text())])
    raise RuntimeError('no\npicture')

  config = small(**{'task.data': f'file:{path}', 'task.prompt': '[/b] $_$ [bold]'})
  with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
    patch.setattr(Figure, 'savefig', fail)
    result = train(config, folder / 'run')
  return Undrawn(result, *found, shown.getvalue(), f'alibi: file:{path}')


@pytest.mark.slow
def test_the_held_out_curve_of_the_picture_ends_with_the_final_score(undrawn):
  result = undrawn.result
  curves = {line.get_label(): line.get_xydata() for line in undrawn.figure.axes[0].get_lines()}
  evaluated = [row['eval_loss'] for row in result.history if 'eval_loss' in row]
  expected = [(6, evaluated[0]), (12, result.scores['length 32'].values['loss'])]
  np.testing.assert_allclose(curves['length 32'], expected)


@pytest.mark.slow
def test_a_picture_that_fails_loses_nothing(undrawn):
  for name, score in undrawn.result.scores.items():
    assert undrawn.stored['scores'][name]['loss'] == score.values['loss']
  assert undrawn.stored['sample'] == undrawn.result.sample
  assert 'report.png could not be drawn: no picture\n' in undrawn.shown


def test_what_looks_like_markup_or_a_formula_is_text_in_pictures_and_tables(undrawn):
  assert not cbook.is_math_text(undrawn.figure.get_suptitle())
  shown = undrawn.figure.get_suptitle().replace('\\$', '$')
  assert shown == f'{undrawn.title} (float32, dense attention)'
  squeezed = lambda text: ''.join(text.split())  # a title is wrapped at the width of its table
  assert squeezed(undrawn.title) in squeezed(undrawn.shown)
  assert undrawn.result.sample.startswith('[/b] $_$ [bold]')
  assert undrawn.result.sample in undrawn.shown


@pytest.mark.slow
def test_batch_norm_trains_in_a_run_and_its_model_speaks(tmp_path, monkeypatch):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  sizes = {'steps': 2, 'model.num_layers': 1, 'model.width': 8, 'task.eval_factors': (1,)}
  few = {'task.length': 8, 'task.eval_tokens': 64, 'task.sample_length': 3}
  few['optimizer.warmup_steps'] = 1
  result = train(small(**sizes, **few, **{'model.norm': 'BatchNorm'}), tmp_path / 'run')
  statistics = jax.tree.leaves(nnx.state(result.model, nnx.BatchStat))
  assert statistics
  for leaf in statistics:  # means were 0, and variances 1
    assert min(abs(leaf).max(), abs(leaf - 1).max()) > 1e-4
  assert 'no answer' not in result.sample


def test_a_sample_that_fails_is_told_in_its_place():
  def fail(model, texts, key):
    raise RuntimeError('RESOURCE_EXHAUSTED: out of\nmemory')

  said = ask_examples(Ask(fail, (Example('a'),)), nnx.Linear(1, 1, rngs=nnx.Rngs(0)), 0)
  assert said == '(no answer to the examples: RESOURCE_EXHAUSTED: out of memory)'


@pytest.mark.slow
def test_beyond_a_learned_table_there_is_a_word_and_no_crash(tmp_path, capsys):
  result = train(small(scheme='learned(max_length=64)', steps=3), tmp_path)
  numbers = [score.values['loss'] for score in result.scores.values()]
  assert [np.isfinite(number) for number in numbers] == [True, False]
  assert 'beyond its table' in capsys.readouterr().out
  rows = json.loads((tmp_path / 'results.json').read_text())['scores']
  assert [row['loss'] is None for row in rows.values()] == [False, True]
  assert [row['why'] for row in rows.values()] == ['', 'beyond its table']


@pytest.mark.slow
def test_ids_that_a_scheme_refuses_are_reported_at_their_length(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  result = train(small(scheme='randomized(max_length=64)+rope', steps=3), tmp_path)
  assert [bool(score.why) for score in result.scores.values()] == [False, True]
  assert 'may need more than the 64' in result.scores['length 128'].why
  assert 'refused: ' in capsys.readouterr().out


def first_losses(config: ConfigDict, steps: int) -> list[float]:
  """The first steps of a run, without what comes before and after them."""
  task, mesh = make_task(config, Path('unused')), sharding.make_mesh(**config.mesh)
  sharding.check_context(mesh, config.attention.implementation)
  transform = optimizer.make(config.steps, **config.optimizer)
  graph, state = training.create(task, transform, mesh, config.seed)
  step = training.make_step(task, graph, transform, config.seed, mesh)
  rows, values = Rows(task.train_batches, mesh), []
  for number in range(1, steps + 1):
    state, loss = step(state, sharding.put_batch(next(rows), mesh), number)
    values.append(float(loss))
  return values


# Parameters of the scheme are cut, too. Heads, rows, widths and tokens divide over eight devices.
CUT = {'scheme': 'alibi(learned=True)+t5', 'model.num_heads': 8, 'model.unroll': 1}
CUT |= {'task.eval_factors': (1,)}


@functools.cache
def losses_on_one_device(steps):
  return first_losses(small(**CUT, steps=20), steps)


MESHES = [sizes for sizes in itertools.product((1, 2, 4, 8), repeat=4) if math.prod(sizes) == 8]
DEFAULT = ((1, 2, 4, 1), (2, 2, 2, 1), (2, 1, 2, 2))


def test_there_are_twenty_meshes_of_eight_devices():
  assert len(MESHES) == 20
  assert set(DEFAULT) < set(MESHES)


def check_mesh(mesh, steps):
  sizes = dict(zip(('mesh.data', 'mesh.fsdp', 'mesh.tensor', 'mesh.context'), mesh, strict=True))
  if mesh[3] > 1:
    sizes['attention.implementation'] = 'ring'
  found = np.array(first_losses(small(**CUT, **sizes, steps=20), steps))
  difference = abs(found / np.array(losses_on_one_device(steps)) - 1)
  print(mesh, f'{difference[:5].max():.1e} over 5 steps, {difference.max():.1e} over {steps}')
  assert difference[:5].max() < 1e-5
  assert difference.max() < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures('eight_devices')
@pytest.mark.parametrize('mesh', DEFAULT)
def test_eight_devices_learn_in_five_steps_what_one_learns(mesh):
  check_mesh(mesh, 5)


@pytest.mark.slow
@pytest.mark.usefixtures('eight_devices')
@pytest.mark.parametrize('mesh', MESHES)
def test_eight_devices_learn_in_twenty_steps_what_one_learns(mesh):
  check_mesh(mesh, 20)


@pytest.mark.slow
@pytest.mark.usefixtures('eight_devices')
def test_a_run_goes_on_with_another_mesh(tmp_path, monkeypatch):
  """Its checkpoints are cut in other ways, and its losses differ by rounding alone."""
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  fits = {**CUT, 'task.eval_tokens': 64, 'task.sample_length': 2}
  train(small(**fits), tmp_path / 'whole')
  faults.at_each_step(monkeypatch, faults.after(7))
  sizes = {'mesh.fsdp': 4, 'mesh.tensor': 2}
  assert train(small(**fits, **sizes), tmp_path / 'cut') is None
  faults.at_each_step(monkeypatch, faults.after(0))
  train(small(**fits, **{'mesh.data': 2, 'mesh.tensor': 4}), tmp_path / 'cut')
  found, expected = losses(tmp_path / 'cut'), losses(tmp_path / 'whole')
  assert list(found) == list(range(1, 13))
  assert found == pytest.approx(expected, rel=1e-5)


def test_parameters_are_really_spread_over_the_devices(tmp_path):
  prepared = setup(small(**{'mesh.fsdp': 2, 'mesh.tensor': 4}), tmp_path / 'run')
  kernel = prepared.state.params['stack']['periods'][0]['attention']['query']['kernel'][...]
  shard = kernel.sharding.shard_shape(kernel.shape)
  assert kernel.shape == (2, 32, 4, 8)
  assert shard == (2, 16, 1, 8)
  mean = jax.tree.leaves_with_path(prepared.state.optimizer)
  like = [leaf for path, leaf in mean if leaf.shape == kernel.shape]
  assert like
  assert all(leaf.sharding.shard_shape(leaf.shape) == shard for leaf in like)


@pytest.mark.slow
def test_an_algorithm_is_learned_and_its_answers_are_scored_whole(tmp_path, capsys):
  config = algorithmic.get_config()
  small_task = {
    'steps': 150,
    'task.data': 'synthetic:copy',
    'task.longest': 2,
    'task.eval_factors': (1, 4),
    'task.eval_examples': 64,
    'task.greedy': True,
    'model.num_layers': 2,
    'model.width': 64,
    'scheme': 'rope',
    'eval_every': 100,
    'checkpoint_every': 150,
    'optimizer.learning_rate': 3e-3,
  }
  config.update_from_flattened_dict(small_task)
  result = train(config, tmp_path)
  scores = {name: score.values for name, score in result.scores.items()}
  assert scores['length 2']['accuracy'] > 0.9  # longest trained
  assert scores['length 8']['accuracy'] < 0.5  # four times as long
  for name in ('length 2', 'length 8'):
    forced, greedy = scores[name], scores[f'{name}, greedy']
    # The first wrong token ends a right answer both ways; after it, only forcing helps.
    assert greedy['accuracy'] == forced['accuracy'] <= greedy['token_accuracy']
    assert greedy['token_accuracy'] <= forced['token_accuracy']
  means = json.loads((tmp_path / 'results.json').read_text())['unseen']
  assert means['accuracy'] == scores['length 8']['accuracy']
  assert result.sample.startswith('asked')
  assert '\nright' in result.sample


def test_a_scheme_of_ones_own_trains_like_any_other(tmp_path):
  mine = posjax.Scheme(
    init=lambda key, dims: {'rate': jnp.ones(dims.num_heads)},
    bias=lambda params, distance: -jnp.multiply.outer(params['rate'], jnp.log1p(abs(distance))),
  )
  prepared = setup(small(scheme='mine'), tmp_path / 'run', schemes=[mine])
  batch = sharding.put_batch(next(prepared.data), prepared.mesh)
  state, loss = prepared.step(prepared.state, batch, 1)
  assert np.isfinite(float(loss))
  held = jax.tree.leaves_with_path(state.params)
  assert any("'rate'" in jax.tree_util.keystr(path) for path, _ in held)


@pytest.mark.slow
def test_in_bfloat16_weights_are_float32_and_the_model_is_scored_from_them(tmp_path, monkeypatch):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  sizes = {'steps': 4, 'task.eval_factors': (1,), 'task.eval_tokens': 64, 'task.sample_length': 3}
  asked = {'model.dtype': 'bfloat16', 'attention.implementation': 'dense'}
  first = train(small(**sizes, **asked), tmp_path)
  results = json.loads((tmp_path / 'results.json').read_text())
  assert results['dtype'] == 'bfloat16'
  assert results['attention'] == {'asked': 'dense', 'chosen': ['dense']}
  weights = jax.tree.leaves(nnx.state(first.model, nnx.Param))
  assert {str(x.dtype) for x in weights} == {'float32'}
  again = train(small(**sizes, **asked), tmp_path)  # from the checkpoint
  chex.assert_trees_all_equal(again.scores['length 32'].values, first.scores['length 32'].values)
