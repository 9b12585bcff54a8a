"""A run that is killed, interrupted or over: the same command goes on, and nothing is lost."""

import contextlib
import json
import re
import resource
import signal
import subprocess
import time
from random import Random

import pytest

from posjax.experiment import interrupt, report, run
from tests.experiment.support.faults import POINTS, line
from tests.experiment.support.runs import finish, killed_run_resumes, losses, start
from train import train

LINE = '--config=tests/experiment/support/line_config.py'


@pytest.fixture
def points(tmp_path):
  (tmp_path / 'points.txt').write_text(POINTS)
  return tmp_path / 'points.txt'


def begun(tmp_path, points, steps, **options):
  """A real process, which trains the toy task for so many steps."""
  changes = [f'--config.task.data={points}', f'--config.steps={steps}']
  often = ['--config.eval_every=1000', '--config.checkpoint_every=200', '--config.log_every=100']
  return start(tmp_path / 'run', tmp_path / 'cache', LINE, *changes, *often, **options)


def wait_until(process, happened):
  deadline = time.monotonic() + 120
  while not happened():
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < deadline
    time.sleep(0.01)


def checkpoints(tmp_path):
  return {path.name for path in tmp_path.glob('run/checkpoints/*') if path.name.isdigit()}


def test_a_finished_run_reports_again_and_trains_no_more(tmp_path, points):
  first = train(line(points), tmp_path / 'run')
  again = train(line(points), tmp_path / 'run')
  assert list(first.scores) == ['all points']
  for name, score in first.scores.items():
    assert score.values == again.scores[name].values
  assert first.history == again.history


def test_a_killed_run_is_resumed_where_it_was_saved_and_keeps_its_losses(
  tmp_path, points, monkeypatch, capsys
):
  """A real kill -9; that what follows is the same to the last bit is shown with a real model."""
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  process = begun(tmp_path, points, 100_000, stdout=subprocess.DEVNULL)
  wait_until(process, lambda: len(checkpoints(tmp_path)) > 1)
  process.kill()
  process.communicate()
  before, saved = losses(tmp_path / 'run'), max(map(int, checkpoints(tmp_path)))
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  changes = {key: config[key] for key in ('eval_every', 'checkpoint_every', 'log_every', 'steps')}

  @contextlib.contextmanager
  def at_once():
    yield lambda: True

  monkeypatch.setattr(run, 'interrupts', at_once)
  assert train(line(points, **changes), tmp_path / 'run') is None
  assert f'resuming after step {saved}' in capsys.readouterr().out
  now = losses(tmp_path / 'run')
  assert now == {step: loss for step, loss in before.items() if step <= saved}
  assert len(now) >= 4


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_losses_bit_for_bit(tmp_path):
  """With dropout, random ids and packing."""
  killed_run_resumes(tmp_path, steps=40)


KILLS = 50


def killed_at_random(draw, process, folder, number):
  """Kills a run for the so many-th time: at a step, a moment after it, or while it then saves.

  Returns whether a half-written checkpoint was left behind.
  """
  step, saving = int(5.5 * number) + draw.randint(1, 10), draw.random() < 0.5
  rows, deadline = folder / 'metrics.jsonl', time.monotonic() + 300

  def has_happened(happened):
    while not happened():
      assert process.poll() is None, process.communicate()
      assert time.monotonic() < deadline
      time.sleep(0.0005)

  has_happened(lambda: len(list(folder.glob('tensorboard/*'))) > number)  # it has begun to train
  has_happened(lambda: rows.read_bytes().count(b'\n') >= step)
  if saving:
    has_happened(lambda: list(folder.glob('checkpoints/*tmp*')))
  time.sleep(draw.choice([0, 0, 0.003, 0.01, 0.03]))
  process.kill()
  process.wait()
  return bool(list(folder.glob('checkpoints/*tmp*')))


@pytest.mark.slow
def test_fifty_kills_at_any_moment_lose_no_loss_and_leave_nothing_behind(tmp_path):
  """Kill -9 of a real model with dropout, random ids and packing, also while it saves."""
  whole, killed, cache, draw = tmp_path / 'whole', tmp_path / 'killed', tmp_path / 'c', Random(0)
  flags = ('--config=tests/experiment/support/small_config.py', '--config.steps=300')
  flags += ('--config.eval_every=1000', '--config.task.eval_factors=(1,)')
  finish(start(whole, cache, *flags))
  amid = 0
  for number in range(KILLS):
    process = start(killed, cache, *flags, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    amid += killed_at_random(draw, process, killed, number)
    print(number, 'killed after step', max(losses(killed), default=0), flush=True)
  assert max(losses(killed)) < 300, 'the run was over before it was killed for the last time'
  print(f'{amid} of {KILLS} while a checkpoint was saved')
  assert amid >= KILLS // 10
  finish(start(killed, cache, *flags))
  assert list(losses(killed)) == list(range(1, 301))
  assert losses(killed) == losses(whole)  # json keeps every bit of a float
  names = lambda folder: {
    str(path.relative_to(folder))
    for path in folder.rglob('*')
    if 'tensorboard' not in path.parts and path.parent.name != 'd'  # whose names are drawn
  }
  assert names(killed) == names(whole)


def test_an_interrupted_run_saves_and_says_how_to_resume(tmp_path, points):
  process = begun(tmp_path, points, 100_000, stderr=subprocess.DEVNULL)
  for shown in process.stdout:
    if shown.startswith('step '):
      process.send_signal(signal.SIGTERM)
      break
  assert 'the same command resumes' in finish(process, 143)
  saved = max(map(int, checkpoints(tmp_path)))
  assert saved // 100 * 100 == max(losses(tmp_path / 'run'))
  assert saved >= 100


QUIET = '\ninterrupted: what was saved stays, and the same command goes on.\n'


def test_a_second_ctrl_c_ends_a_run_at_once_without_a_traceback(tmp_path, points):
  """Where the first one is not served yet, since the step that runs takes long: it is stopped."""
  process = begun(tmp_path, points, 100_000, stdout=subprocess.DEVNULL)
  wait_until(process, lambda: checkpoints(tmp_path))
  process.send_signal(signal.SIGINT)
  process.send_signal(signal.SIGINT)
  _, error = process.communicate(timeout=60)
  assert (process.returncode, error) in ((130, QUIET), (130, ''))  # before it was saved, or after
  assert checkpoints(tmp_path)


@pytest.fixture
def sigint():
  """Python's own handler: tests that a shell runs in the background begin with another one."""
  found = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield signal.default_int_handler
  signal.signal(signal.SIGINT, found)


def test_a_second_ctrl_c_does_what_one_did_before(sigint):
  with interrupt.interrupts() as stopped:
    signal.raise_signal(signal.SIGINT)
    assert stopped()
    assert signal.getsignal(signal.SIGINT) == sigint
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
  assert signal.getsignal(signal.SIGINT) == sigint


@pytest.mark.slow
@pytest.mark.parametrize('seconds', [0.3, 1.0, 2.0, 3.0, 4.0, 5.0])
def test_ctrl_c_before_training_begins_ends_without_a_traceback(seconds, tmp_path):
  """While modules are loaded, the data are read, or the model is made and compiled."""
  process = start(tmp_path / 'run', tmp_path / 'cache', stdout=subprocess.DEVNULL)
  time.sleep(seconds)
  process.send_signal(signal.SIGINT)
  _, error = process.communicate(timeout=60)
  assert (process.returncode, error) in ((130, QUIET), (130, ''))
  assert not (tmp_path / 'run' / 'results.json').exists()


@pytest.mark.slow
def test_one_ctrl_c_or_two_at_any_time_end_a_run_without_a_traceback(tmp_path, points):
  for number in range(12):
    process = begun(tmp_path, points, 100_000, stdout=subprocess.DEVNULL)
    time.sleep(2 + 0.5 * number)
    process.send_signal(signal.SIGINT)
    time.sleep(0.03 * (number % 4))
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    # Orbax may warn of a checkpoint that it has just begun.
    assert 'Traceback' not in error, error
    assert error == '' or error.endswith(QUIET), error


def test_a_signal_right_after_it_was_asked_for_stops_the_next_step_and_that_one_is_saved(
  tmp_path, points, monkeypatch, capsys
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
  assert train(line(points, checkpoint_every=5), tmp_path / 'run') is None
  assert 'stopped after step 2, and saved' in capsys.readouterr().out
  assert checkpoints(tmp_path) == {'2'}
  assert list(losses(tmp_path / 'run')) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize('room', [20_000, 60_000])
def test_a_command_without_room_says_one_sentence_and_no_traceback(room, tmp_path, points):
  """A real limit of the size of files, which losses or checkpoints reach."""
  changes = [f'--config.task.data={points}', '--config.steps=100000', '--config.log_every=1']
  process = start(
    tmp_path / 'run',
    tmp_path / 'cache',
    LINE,
    *changes,
    '--config.checkpoint_every=50',
    '--config.eval_every=100000',
    stdout=subprocess.DEVNULL,
  )
  resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, room))  # long before it writes
  _, error = process.communicate(timeout=200)
  assert process.returncode == 1
  assert re.fullmatch(r'train\.py: error: .*File too large.*; what was saved .*\n', error), error
  assert checkpoints(tmp_path)
