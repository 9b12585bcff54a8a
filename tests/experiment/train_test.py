"""train.py as people run it: it learns, resumes bit for bit, and says what is wrong."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

import posjax

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from configs import algorithmic, default  # noqa: E402
from posjax.experiment import interrupt, run, sharding  # noqa: E402
from train import setup, train  # noqa: E402

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def small(**changes) -> ConfigDict:
  """The default, at a size for tests; '.' in a key descends."""
  config = default.get_config()
  settings = {
    'steps': 12,
    'batch_size': 8,
    'log_every': 1,
    'eval_every': 6,
    'checkpoint_every': 5,
    'task.length': 32,
    'task.eval_tokens': 1024,
    'task.eval_factors': (1, 4),
    'task.sample_length': 8,
    'model.num_layers': 2,
    'model.width': 32,
    'model.num_heads': 4,
    'optimizer.warmup_steps': 2,
  }
  config.update_from_flattened_dict({**settings, **changes})
  return config


def losses(workdir: Path) -> dict[int, float]:
  rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return {row['step']: row['loss'] for row in rows if 'loss' in row}


def start(workdir: Path, cache: Path, *flags: str, **options) -> subprocess.Popen:
  """A real second process; processes with one cache compile each program once."""
  compiled = {
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'JAX_COMPILATION_CACHE_DIR': str(cache),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  flags = flags or ('--config=tests/experiment/small_config.py',)
  return subprocess.Popen(
    [sys.executable, 'train.py', f'--workdir={workdir}', *flags],
    cwd=ROOT,
    env={**os.environ, **compiled, 'XLA_FLAGS': ''},
    text=True,
    **{'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, **options},
  )


def finish(process: subprocess.Popen) -> str:
  """What it printed; it must have gone well."""
  out, error = process.communicate(timeout=300)
  assert process.returncode == 0, error
  return out


def test_a_run_learns_and_returns_all_that_it_learned(tmp_path, capsys):
  result = train(small(steps=40), tmp_path)
  learned = losses(tmp_path)
  assert list(learned) == list(range(1, 41))
  assert np.mean([learned[i] for i in range(36, 41)]) < learned[1] - 1.5
  assert [score.length for score in result.scores] == [32, 128]
  assert {score.tokens for score in result.scores} == {1024}  # the same ones at each length
  assert result.sample.startswith('def ')
  for name in ('config.json', 'results.json', 'report.png', 'tensorboard', 'checkpoints'):
    assert (tmp_path / name).exists()
  shown = capsys.readouterr().out
  assert 'bits per byte' in shown
  assert '4x' in shown
  assert 'sha256' in shown
  tokens = jnp.zeros((1, 4), jnp.int32)
  assert np.isfinite(result.model(tokens, jnp.arange(4))).all()


def test_beyond_a_learned_table_there_is_a_word_and_no_crash(tmp_path, capsys):
  result = train(small(scheme='learned(max_length=64)', steps=3), tmp_path)
  assert [np.isfinite(score.loss) for score in result.scores] == [True, False]
  assert 'beyond its table' in capsys.readouterr().out
  rows = json.loads((tmp_path / 'results.json').read_text())['scores']
  assert [row['loss'] is None for row in rows] == [False, True]


def test_ids_that_a_scheme_refuses_are_reported_at_their_length(tmp_path, capsys):
  result = train(small(scheme='randomized(max_length=64)+rope', steps=3), tmp_path)
  assert [bool(score.refused) for score in result.scores] == [False, True]
  assert 'refused: ' in capsys.readouterr().out


def test_a_finished_run_reports_again_and_trains_no_more(tmp_path):
  first = train(small(steps=4), tmp_path)
  again = train(small(steps=4), tmp_path)
  assert [s.loss for s in first.scores] == [s.loss for s in again.scores]
  assert first.history == again.history


def test_a_killed_run_resumes_to_the_same_losses_bit_for_bit(tmp_path):
  """A real kill -9, at a step that is no checkpoint, with dropout, random ids and packing."""
  whole, killed, cache = tmp_path / 'whole', tmp_path / 'killed', tmp_path / 'cache'
  finish(start(whole, cache))
  process = start(killed, cache, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  deadline = time.monotonic() + 240
  while not (killed / 'checkpoints' / '10').exists() and time.monotonic() < deadline:
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert len(losses(killed)) < 40, 'the run was over before it could be killed'
  assert 'resuming after step' in finish(start(killed, cache))
  assert losses(killed) == losses(whole)  # json keeps every bit of a float
  both = [json.loads((run / 'results.json').read_text()) for run in (whole, killed)]
  assert both[0] == both[1]


def test_an_interrupted_run_saves_and_says_how_to_resume(tmp_path):
  process = start(tmp_path / 'run', tmp_path / 'cache', stderr=subprocess.DEVNULL)
  for line in process.stdout:
    if line.startswith('step      7'):
      process.send_signal(signal.SIGTERM)
      break
  assert 'the same command resumes' in finish(process)
  saved = max(int(folder.name) for folder in (tmp_path / 'run' / 'checkpoints').iterdir())
  assert saved == max(losses(tmp_path / 'run'))
  assert saved >= 7


def test_a_signal_right_after_it_was_asked_for_stops_the_next_step_and_that_one_is_saved(
  tmp_path, monkeypatch, capsys
):
  """The real signal; no save is due before step 5, so that only a stop can save."""

  @contextlib.contextmanager
  def signalled():
    with interrupt.interrupts() as stopped:

      def ask():
        answer = stopped()
        signal.raise_signal(signal.SIGTERM)
        return answer

      yield ask

  monkeypatch.setattr(run, 'interrupts', signalled)
  assert train(small(), tmp_path) is None
  assert 'stopped after step 2, and saved' in capsys.readouterr().out
  assert [folder.name for folder in (tmp_path / 'checkpoints').iterdir()] == ['2']
  assert list(losses(tmp_path)) == [1, 2]


def first_losses(config: ConfigDict, workdir: Path) -> list[float]:
  """Three steps of a run, without what follows them."""
  prepared = setup(config, workdir)
  state, values = prepared.state, []
  for step in (1, 2, 3):
    state, loss = prepared.step(state, sharding.put_batch(next(prepared.data), prepared.mesh), step)
    values.append(float(loss))
  return values


@pytest.fixture(scope='module')
def losses_on_one_device():
  return first_losses(small(), Path('unused'))


@pytest.mark.parametrize('mesh', [slow((8, 1, 1)), (2, 2, 2), slow((1, 4, 2))])
def test_eight_devices_learn_what_one_learns(mesh, losses_on_one_device):
  sizes = dict(zip(('mesh.data', 'mesh.fsdp', 'mesh.tensor'), mesh, strict=True))
  np.testing.assert_allclose(
    first_losses(small(**sizes), Path('unused')), losses_on_one_device, rtol=2e-5
  )


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
  assert result.scores[0].accuracy > 0.9  # longest trained
  assert result.scores[1].accuracy < 0.5  # four times as long
  for score in result.scores:
    # The first wrong token ends a right answer both ways; after it, only forcing helps.
    assert score.greedy_accuracy == score.accuracy <= score.greedy_token_accuracy
    assert score.greedy_token_accuracy <= score.token_accuracy
  means = json.loads((tmp_path / 'results.json').read_text())['unseen']
  assert means['accuracy'] == result.scores[1].accuracy
  assert result.sample.startswith('question')
  assert '\nright' in result.sample


WRONG = [
  ({'scheme': 'ropee'}, ValueError, "Unknown scheme 'ropee'; did you mean 'rope'"),
  ({'scheme': 'rope(bse=3)'}, ValueError, "Wrong arguments for scheme 'rope'.*'bse'.*It takes"),
  ({'model.num_heads': 5}, ValueError, 'num_heads must divide the width 32, but got 5'),
  ({'model.num_kv_heads': 3}, ValueError, 'key heads must divide the query heads'),
  ({'scheme': 'rope', 'model.num_heads': 32}, ValueError, 'RoPE turns pairs'),
  ({'scheme': 'randomized(max_length=16)'}, ValueError, '32 tokens may need more than the 16'),
  ({'scheme': 'learned(max_length=16)'}, ValueError, 'positions beyond a table of the scheme'),
  ({'task.data': 'file:nowhere'}, FileNotFoundError, 'nowhere'),
  ({'task.data': 'python_doc'}, ValueError, "did you mean 'python_docs'"),
  ({'task.name': 'translating'}, ValueError, "Unknown task 'translating'"),
  ({'task.length': 1_000_000}, ValueError, 'eval_tokens must hold the longest evaluation'),
  ({'task.eval_factors': (2, 4)}, ValueError, 'eval_factors must begin with 1'),
  ({'mesh.data': 3}, ValueError, 'batch_size must be a multiple of 3'),
  ({'mesh.data': 64}, ValueError, 'needs 64 devices, but there are 8'),
  ({'mesh.tensor': 8}, ValueError, 'cannot be divided over 8 devices of the tensor axis'),
  ({'optimizer.warmup_steps': 12}, ValueError, r'warmup_steps must be in \[0, 12\)'),
  ({'log_every': 0}, ValueError, 'log_every must be at least 1'),
  ({'model.window': 0}, ValueError, 'window must be at least 1'),
]


@pytest.mark.parametrize(('changes', 'error', 'message'), WRONG)
def test_a_wrong_config_is_refused_before_anything_is_written(
  tmp_path, changes, error, message, unchecked
):
  with pytest.raises(error, match=message):
    train(small(**changes), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_an_empty_file_is_refused(tmp_path, unchecked):
  (tmp_path / 'empty.txt').touch()
  with pytest.raises(ValueError, match=r'empty\.txt'):
    train(small(**{'task.data': f'file:{tmp_path}/empty.txt'}), tmp_path / 'run')


def test_a_folder_of_another_run_is_refused_and_kept(tmp_path):
  train(small(steps=3), tmp_path)
  kept = (tmp_path / 'metrics.jsonl').read_bytes()
  with pytest.raises(ValueError, match='holds a run with another scheme, steps'):
    train(small(steps=4, scheme='rope'), tmp_path)
  assert (tmp_path / 'metrics.jsonl').read_bytes() == kept


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
  wild = {'optimizer.learning_rate': 1e30, 'optimizer.warmup_steps': 0}
  with pytest.raises(FloatingPointError, match=r'after step .* or the learning rate is too high'):
    train(small(**wild), tmp_path)


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--config.schme=rope', 'schme'),
    ('--config.steps=many', 'many'),
    ('--config=configs/nowhere.py', 'nowhere'),
    ('--config.scheme=ropee', "did you mean 'rope'"),
  ],
)
def test_the_command_line_says_one_sentence_and_no_traceback(tmp_path, flag, message):
  process = start(tmp_path / 'run', tmp_path / 'cache', flag)
  error = process.communicate(timeout=120)[1]
  assert process.returncode != 0
  assert message in error
  assert 'Traceback' not in error
  assert not (tmp_path / 'run').exists()


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
