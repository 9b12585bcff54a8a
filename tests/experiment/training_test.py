"""One step: gradients of parts of a batch, and updates that are skipped."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from posjax.experiment import checkpoint, optimizer, report, sharding, training
from posjax.experiment.run import make_task
from posjax.experiment.task import Task, Unit
from tests.experiment.support.faults import POINTS, line
from tests.experiment.support.runs import losses, small
from train import setup, train

SGD = optax.sgd(0.1)


def trained(config, steps=3):
  """The losses and the parameters of the first steps of a run."""
  prepared = setup(config, Path('unused'))
  state, found = prepared.state, []
  for step in range(1, steps + 1):
    state, loss = prepared.step(state, sharding.put_batch(next(prepared.data), prepared.mesh), step)
    found.append(float(loss))
  return found, jax.tree.leaves(state.params)


def weighted(model, batch, state, ids_key, train_key):
  squares = (model(batch['x']) - batch['y']) ** 2
  return (squares * batch['w']).sum() / batch['w'].sum(), state


def test_tokens_are_laid_out_over_devices_where_twice_as_many_divide_them():
  """Training with a ring does so, where the task and its scheme allow another order."""

  def loss(model, batch, state, ids_key, train_key):
    places = jnp.arange(batch['inputs'].shape[1])
    return (batch['inputs'] * places[None] * model.weight[...]).sum(), state

  class Model(nnx.Module):
    def __init__(self):
      self.weight = nnx.Param(jnp.ones(()))

  graph, params = nnx.split(Model())
  for length, order in ((8, [0, 1, 6, 7, 2, 3, 4, 5]), (6, [0, 1, 2, 3, 4, 5])):
    task = Task({}, None, None, loss, Unit(''), ())
    step = training.make_step(task, graph, SGD, seed=0, zigzag=2)
    state = training.State(params, nnx.State({}), SGD.init(params), None)
    _, value = step(jax.tree.map(jnp.copy, state), {'inputs': jnp.arange(length)[None]}, 1)
    assert value == np.dot(order, np.arange(length))


@pytest.mark.usefixtures('eight_devices')
@pytest.mark.parametrize(
  ('scheme', 'implementation', 'moved'),
  [
    ('rope', 'ring', True),
    pytest.param('rope', 'all_gather', False, marks=pytest.mark.slow),
    pytest.param('rope+forgetting', 'ring', False, marks=pytest.mark.slow),
  ],
)
def test_a_run_lays_tokens_out_where_the_scheme_goes_by_their_ids(
  scheme, implementation, moved, monkeypatch
):
  made = []
  make_step = training.make_step
  monkeypatch.setattr(training, 'make_step', lambda *a, **k: made.append(k) or make_step(*a, **k))
  setup(
    small(scheme=scheme, **{'mesh.context': 2, 'attention.implementation': implementation}),
    Path('unused'),
  )
  assert made[0].get('zigzag', 1) == (2 if moved else 1)


def test_accumulated_gradients_are_those_of_the_large_batch(tmp_path):
  """The parts weigh differently, and one of them nothing, so a mean of means would differ."""
  (tmp_path / 'points.txt').write_text(POINTS)
  task = make_task(line(tmp_path / 'points.txt'), tmp_path)
  task = task._replace(loss=weighted, weight=lambda batch: batch['w'].sum())
  x, y = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
  batch = {'x': x, 'y': y, 'w': np.float32([0, 1, 5, 0, 2, 1, 0, 1, 0, 0, 3, 0])}
  assert batch['w'].reshape(4, 3).sum(0).tolist() == [0, 7, 6]

  def stepped(accumulate):
    graph, state = training.create(task, SGD, sharding.make_mesh(), 0)
    step = training.make_step(task, graph, SGD, 0, accumulate=accumulate)
    state, loss = step(state, batch, 1)
    return [loss, *jax.tree.leaves(state.params)]

  for one, other in zip(stepped(3), stepped(1), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [{}, {'mesh.data': 2, 'mesh.tensor': 2}, {'mesh.fsdp': 2}])
def test_a_language_model_accumulates_to_the_large_batch_on_any_mesh(mesh):
  """Packed rows have different numbers of targets."""
  few = {'model.num_layers': 1, 'model.width': 8, 'model.num_heads': 2, 'optimizer.name': 'sgd'}
  few |= {'optimizer.learning_rate': 1.0, 'optimizer.clip_norm': None, 'scheme': 'alibi+t5'}
  whole, params = trained(small(**few))
  parts, again = trained(small(**few, **mesh, accumulate=4))
  np.testing.assert_allclose(parts, whole, rtol=1e-6)
  for one, other in zip(again, params, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_where_parts_do_not_add_up_accumulation_is_refused(tmp_path):
  (tmp_path / 'points.txt').write_text(POINTS)
  task = make_task(line(tmp_path / 'points.txt'), tmp_path)
  normed = nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.BatchStat)
  state = training.State(None, None, None)
  for each, found, why in (
    (task, state._replace(rest=normed), "the norm 'BatchNorm', which is over a whole batch"),
    (task, state._replace(past=jnp.zeros(2)), 'remembers the batch before'),
    (task._replace(weight=None), state, r'no mean over tokens or rows \(Task.weight\)'),
  ):
    training.check_accumulation(each, found, 1)
    with pytest.raises(ValueError, match=why):
      training.check_accumulation(each, found, 2)
  with pytest.raises(ValueError, match='1 devices times the 3 parts of accumulate, but got 4'):
    setup(line(tmp_path / 'points.txt', accumulate=3), tmp_path / 'run')


SPOILT = '1 2\n2 4\n3 5\n4 9\n' * 4 + '1 nan\n'


@pytest.fixture
def spoilt(tmp_path, monkeypatch):
  """A file of points, some of whose batches have a loss that is no number."""
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  (tmp_path / 'points.txt').write_text(SPOILT)
  return tmp_path / 'points.txt'


def by_hand(config, folder, last=None):
  """The losses and parameters where an update with a batch that holds NaN is not made at all."""
  prepared = setup(config, folder)
  chain = optimizer.make(config.steps, **config.optimizer)
  params = prepared.state.params
  state, found = chain.init(params), {}

  def loss(params, batch):
    model = nnx.merge(prepared.graph, params, prepared.state.rest)
    return jnp.mean((model(batch['x']) - batch['y']) ** 2)

  for step in range(1, (last or config.steps) + 1):
    batch = next(prepared.data)
    if np.isnan(batch['y']).any():
      found[step] = None
      continue
    found[step], grads = jax.value_and_grad(loss)(params, batch)
    updates, state = chain.update(grads, state, params)
    params = optax.apply_updates(params, updates)
  return found, jax.tree.leaves(params)


def test_updates_that_are_not_finite_are_skipped_counted_and_change_nothing(spoilt, tmp_path):
  config = line(spoilt, seed=1, steps=40, skip_not_finite=20, checkpoint_every=15)
  expected, params = by_hand(config, tmp_path / 'by_hand')
  bad = [step for step, loss in expected.items() if loss is None]
  assert 2 < len(bad) < 20
  result = train(config, tmp_path / 'run')
  found = losses(tmp_path / 'run')
  assert [step for step, loss in found.items() if loss is None] == bad
  for step in set(found) - set(bad):
    np.testing.assert_allclose(found[step], expected[step], rtol=1e-5)
  for one, other in zip(jax.tree.leaves(nnx.state(result.model)), params, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
  counts = {row['step']: row['skipped'] for row in result.history if 'skipped' in row}
  assert counts == {step: sum(b <= step for b in bad) for step in range(bad[0], 41)}


def test_past_the_limit_the_run_stops_with_the_batch_and_the_state_before_it(spoilt, tmp_path):
  config = line(spoilt, seed=1, steps=40, skip_not_finite=2, log_every=7, checkpoint_every=5)
  expected, _ = by_hand(config, tmp_path / 'by_hand')
  bad = [step for step, loss in expected.items() if loss is None][2]
  before = by_hand(config, tmp_path / 'by_hand', bad - 1)[1]
  with pytest.raises(FloatingPointError, match=f'step {bad} is not finite, as it was 2 times') as e:
    train(config, tmp_path / 'run')
  place = tmp_path / 'run' / 'not_finite' / str(bad)
  batch = dict(np.load(place / 'batch-0.npz'))
  assert np.isnan(batch['y']).any()
  assert str(e.value).endswith(f'whose sha256 is {checkpoint.batch_hash(batch)}.')
  prepared = setup(config, tmp_path / 'other')
  saved = checkpoint.ocp.StandardCheckpointer().restore(place / 'state', prepared.state)
  for one, other in zip(jax.tree.leaves(saved.params), before, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
  kept = [int(path.name) for path in (tmp_path / 'run' / 'checkpoints').iterdir()]
  assert max(kept) < bad
  with pytest.raises(FloatingPointError, match=f'step {bad} is not finite'):
    train(config, tmp_path / 'run')  # the same command finds the same
  config.skip_not_finite = 30
  assert train(config, tmp_path / 'run') is not None
