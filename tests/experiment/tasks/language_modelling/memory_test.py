"""Language models that remember: on streams, judged by attention length, resumed exactly."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import posjax
from posjax.experiment import checkpoint, sharding
from posjax.experiment.shards import Rows
from posjax.experiment.task import get_task
from posjax.models.transformer import Transformer
from tests.experiment.support import judged as judge
from tests.experiment.support import runs
from train import setup, train

MODEL = {'num_layers': 2, 'width': 16, 'num_heads': 2}


@pytest.fixture
def text(tmp_path):
  """Random letters, for training three segments of 8 tokens in each of 8 streams."""
  random = np.random.default_rng(0).integers(97, 122, 1200, dtype=np.uint8)
  (tmp_path / 'train.txt').write_bytes(bytes(random[:200]))
  (tmp_path / 'valid.txt').write_bytes(bytes(random[200:]))
  return f'file:{tmp_path}'


def make(text, scheme='rope', model=MODEL, **changes):
  arguments = {
    'seed': 0,
    'batch_size': 4,
    'data': text,
    'length': 8,
    'eval_factors': (1, 4),
    'eval_tokens': 100,
    'prompt': 'a',
    'sample_length': 2,
    'memory': 8,
  }
  return get_task('language_modelling')(posjax.get(scheme), model, **{**arguments, **changes})


def small(text, **changes):
  """A run on streams."""
  settings = {
    'scheme': 'transformer_xl',
    'steps': 6,
    'eval_every': 3,
    'checkpoint_every': 4,
    'task.data': text,
    'task.length': 8,
    'task.memory': 8,
    'task.eval_factors': (1, 2),
    'task.eval_tokens': 64,
    'task.prompt': 'a',
    'task.sample_length': 2,
    'model.width': 16,
    'model.dropout_rate': 0.1,
  }
  return runs.small(**{**settings, **changes})


@pytest.mark.parametrize(
  ('scheme', 'changes', 'window', 'judged'),
  [
    ('transformer_xl', {}, 8, None),
    ('transformer_xl', {}, 32, None),
    ('rope', {'eval_segment': 3, 'eval_lengths': (5,)}, 5, None),
    ('alibi', {'eval_segment': 1, 'eval_factors': (1,), 'eval_tokens': 24}, 8, None),
    (
      'transformer_xl',
      {'eval_scheme': 'transformer_xl(max_distance=3)'},
      8,
      'transformer_xl(max_distance=3)',
    ),
  ],
)
def test_a_score_is_that_of_one_pass_with_a_window(text, scheme, changes, window, judged):
  """Each row, context and all, is read at once by a model without memory."""
  task = make(text, scheme, **changes)
  graph, state = nnx.split(task.model(nnx.Rngs(0)))
  score = judge.scored(task, nnx.merge(graph, state), window)
  batches = judge.batches(task, window)
  rows = {name: np.concatenate([b[name] for b in batches], axis=1) for name in batches[0]}
  other = posjax.get(judged or scheme)
  plain = Transformer(256, other, rngs=nnx.Rngs(0), **{**MODEL, 'window': window})
  one_pass = jax.jit(lambda tokens, pos: nnx.merge(nnx.graphdef(plain), state)(tokens, pos))
  logits = one_pass(rows['inputs'], rows['positions'])
  nats = np.asarray(
    optax.softmax_cross_entropy_with_integer_labels(logits, rows['targets']), np.float64
  )
  counted = rows['weights'] > 0
  assert score.counted == counted.sum()
  assert score.values['loss'] == pytest.approx(judge.unit(task) * nats[counted].mean(), rel=1e-5)
  first = counted.argmax(1)
  assert (first >= max(judge.lengths(task))).all()  # tokens before the first that counts
  elsewhere = judge.unit(task) * nats[~counted].mean()
  assert not np.isclose(score.values['loss'], elsewhere, rtol=1e-3)


def steps(prepared, count, state=None):
  """Losses of so many steps, and the state after them."""
  state, values = prepared.state if state is None else state, []
  for step in range(1, count + 1):
    batch = sharding.put_batch(next(prepared.data), prepared.mesh)
    state, loss = prepared.step(state, batch, step)
    values.append(float(loss))
  return values, state


@pytest.mark.slow
def test_a_step_learns_from_the_segment_with_what_the_last_one_left(text):
  """Against the model called by hand, epochs and all."""
  prepared = setup(small(text, **{'model.dropout_rate': 0.0}), Path('unused'))
  graph, state = prepared.graph, nnx.merge_state(prepared.state.params, prepared.state.rest)
  model = nnx.merge(graph, jax.tree.map(jnp.copy, state))
  past, expected = model.init_past(8, 8), []
  recur = nnx.jit(lambda m, batch, past: m.recur(*batch, past))
  batches = iter(prepared.task.train_batches(0, 1))
  frozen = prepared._replace(step=_no_update(prepared))
  found, last = steps(frozen, 5)  # three to an epoch: the fourth begins anew
  for i in range(5):
    batch = next(batches)
    if i == 3:
      past = model.init_past(8, 8)
    logits, past = recur(model, (batch['inputs'], batch['positions']), past)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch['targets'])
    expected.append(float(nats.mean()))
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(last.past.inputs[0], past.inputs[0], atol=1e-5)


def _no_update(prepared):
  @jax.jit
  def step(state, batch, index):
    model = nnx.merge(prepared.graph, state.params, state.rest)
    loss, past = prepared.task.loss(model, batch, state.past, None, None)
    return state._replace(past=past), loss

  return step


@pytest.fixture
def on_one_device(text):
  return steps(setup(small(text), Path('unused')), 4)


@pytest.mark.slow
@pytest.mark.parametrize('mesh', [(8, 1, 1), (2, 2, 2)])
def test_eight_devices_learn_and_remember_what_one_does(mesh, on_one_device, text):
  sizes = dict(zip(('mesh.data', 'mesh.fsdp', 'mesh.tensor'), mesh, strict=True))
  prepared = setup(small(text, **sizes), Path('unused'))
  values, state = steps(prepared, 4)
  np.testing.assert_allclose(values, on_one_device[0], rtol=2e-5)
  past = state.past.inputs[0]
  rows = 8 // (mesh[0] * mesh[1])
  assert past.sharding.shard_shape(past.shape) == (2, rows, 8, 16)
  assert state.past.pos.sharding.shard_shape((8, 8)) == (rows, 8)
  np.testing.assert_allclose(past, on_one_device[1].past.inputs[0], atol=1e-4)


def test_a_checkpoint_holds_what_is_remembered_and_the_place_in_the_streams(text, tmp_path):
  prepared = setup(small(text, **{'model.num_layers': 1}), tmp_path / 'run')
  fresh = lambda: jax.tree.map(jnp.copy, prepared.state)
  data = lambda: Rows(prepared.task.train_batches, prepared.mesh)
  begin, unused = fresh(), fresh()
  whole, after = steps(prepared._replace(data=data()), 6)
  interrupted = prepared._replace(data=data())
  begun, state = steps(interrupted, 4, begin)
  again = data()
  with checkpoint.manager(tmp_path / 'kept', checkpoint.Choice()) as kept:
    checkpoint.save(kept, 4, state, interrupted.data)
    kept.wait_until_finished()
    step, state = checkpoint.restore(kept, unused, again)
  assert step == 4
  for index in (5, 6):
    state, loss = prepared.step(state, sharding.put_batch(next(again), prepared.mesh), index)
    begun.append(float(loss))
  assert begun == whole
  for one, other in zip(*map(jax.tree.leaves, (state.past, after.past)), strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_losses_bit_for_bit(tmp_path, text):
  """With dropout, random ids and new epochs."""
  config = '--config=tests/experiment/support/small_memory_config.py'
  runs.killed_run_resumes(tmp_path, 30, config, f'--config.task.data={text}')


@pytest.mark.slow
def test_what_lies_a_segment_back_is_learned_with_a_memory_alone(tmp_path):
  """Eight random letters of four, twice: a letter is that of eight before in 5/8 of all places."""
  random = np.random.default_rng(0).integers(97, 101, (2000, 8), dtype=np.uint8)
  for name, part in (('train', random[:1900]), ('valid', random[1900:])):
    (tmp_path / f'{name}.txt').write_bytes(bytes(part.repeat(2, axis=0).reshape(-1)))
  changes = {
    'steps': 250,
    'batch_size': 16,
    'eval_every': 250,
    'checkpoint_every': 250,
    'task.eval_tokens': 1024,
    'model.num_layers': 1,
    'model.width': 32,
    'model.dropout_rate': 0.0,
    'optimizer.learning_rate': 1e-2,
    'scheme': 'shaw',
  }
  bits = {}
  for memory in (0, 8):
    config = small(f'file:{tmp_path}', **changes, **{'task.memory': memory})
    bits[memory] = train(config, tmp_path / str(memory)).scores['length 8'].values['loss']
  assert bits[0] > 1.9  # of two: a row of eight holds the letter before the last place alone
  best = 5 / 8 * np.log2(8 / 5) + 3 / 8 * np.log2(8)  # who cannot tell the first from the second
  assert bits[8] == pytest.approx(best, abs=0.03)


WRONG = [
  ({'memory': -1}, 'task.memory must be 0 or more tokens, but got -1'),
  ({'memory': 0, 'eval_segment': 4}, 'need a task.memory of 1 or more'),
  ({'memory': 0, 'eval_lengths': (4,)}, 'need a task.memory of 1 or more'),
  ({'memory': 0, 'eval_scheme': 'rope'}, 'need a task.memory of 1 or more'),
  ({'eval_scheme': ''}, "A scheme must read like .* but got ''"),
  ({'eval_lengths': (8, 4)}, r'must be positive and rise, but got \(8, 4\)'),
  ({'eval_segment': 0}, 'at least 1 token, but got 0'),
  ({'eval_window': True}, 'eval_window is False'),
  ({'model': {**MODEL, 'window': (3, None)}}, r'None or one number, but got \(3, None\)'),
  ({'eval_tokens': 31}, 'a segment of 8 tokens for each of 4 rows, but got 31'),
  ({'batch_size': 50, 'eval_tokens': 800}, 'need a text of at least 401, but it has 200'),
  ({'eval_factors': (1, 256)}, 'need a held-out text of at least'),
]


@pytest.mark.parametrize(('changes', 'message'), WRONG)
def test_what_a_memory_cannot_be_is_refused(text, changes, message):
  with pytest.raises(ValueError, match=message):
    make(text, **changes)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'scheme': 'learned(max_length=23)'}, 'streams hold positions beyond a table'),
    ({'scheme': 'shifted+sinusoidal'}, 'draws ids at random and adds them to the embeddings'),
    ({'model.norm': 'BatchNorm'}, 'Batch norm cannot norm what is remembered'),
    ({'model.causal': False}, r'must be causal, .* but got model\.causal=False'),
  ],
)
def test_a_run_that_cannot_remember_ends_before_it_begins(text, tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    setup(small(text, **changes), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_table_as_long_as_the_streams_is_enough(text, tmp_path):
  setup(small(text, scheme='learned(max_length=24)'), tmp_path / 'run')
