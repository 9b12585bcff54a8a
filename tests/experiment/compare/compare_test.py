"""The command as people run it, with real processes, signals and limits."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT

COMMAND = [sys.executable, '-m', 'posjax.experiment.compare']
CONFIG = '--config=tests/experiment/support/small_grid.py'
GRID = ('--schemes=none,rope', '--seeds=2')
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
MACHINE = ('tokens_per_second', 'seconds')  # what differs from run to run


def start(folder: Path, *arguments: str, within: Sequence[str] = (), **options) -> subprocess.Popen:
  """A real second process, run by the command `within` if there is one."""
  return subprocess.Popen(
    [*within, *COMMAND, CONFIG, f'--workdir={folder}', *arguments],
    cwd=ROOT,
    env={
      **os.environ,
      'JAX_ENABLE_COMPILATION_CACHE': 'true',
      'XDG_CACHE_HOME': str(folder / 'cache'),
      'XLA_FLAGS': '',
    },
    text=True,
    **{'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, **options},
  )


def finish(process: subprocess.Popen, status: int = 0) -> str:
  """What it printed; it must have ended with this status."""
  out, error = process.communicate(timeout=400)
  assert process.returncode == status, out + error
  return out + error


def rows(folder: Path) -> list[dict]:
  text = (folder / 'results.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def lasting(folder: Path) -> dict[str, dict]:
  """The results by cell, without what the machine decides."""
  return {row['id']: {k: v for k, v in row.items() if k not in MACHINE} for row in rows(folder)}


def table(shown: str) -> str:
  """The printed tables of quality."""
  return shown[shown.index('Quality:') : shown.index('Cost of training')]


def wait_for(process: subprocess.Popen, happened) -> None:
  deadline = time.monotonic() + 240
  while not happened():
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < deadline
    time.sleep(0.01)


def saved(folder: Path, cell: str) -> bool:
  """Whether a run has a checkpoint."""
  return any(path.name.isdigit() for path in folder.glob(f'cells/{cell}-*/checkpoints/*'))


def steps(folder: Path, scheme: str, seed: int) -> int:
  (metrics, *_) = [*folder.glob(f'cells/{scheme}-seed={seed}-*/metrics.jsonl'), None]
  lines = metrics.read_text().split('\n')[:-1] if metrics else []
  return json.loads(lines[-1])['step'] if lines else 0


@pytest.mark.slow
def test_a_killed_grid_loses_at_most_the_running_cell_and_ends_with_the_same_table(tmp_path):
  """A real kill -9 of the leading process, in the middle of the third of four runs."""
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  expected = finish(start(whole, *GRID))
  process = start(killed, *GRID, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  wait_for(process, lambda: saved(killed, 'none-seed=1'))
  process.send_signal(signal.SIGKILL)
  process.wait()
  before = (killed / 'results.jsonl').read_text()
  assert len(before.splitlines()) == 2, 'it was to be killed in the third run'
  assert 20 <= steps(killed, 'none', 1) < 160
  again = finish(start(killed, *GRID))
  assert '2 of 4 runs had finished before' in again
  assert (killed / 'results.jsonl').read_text().startswith(before)  # not run again
  assert 'resuming after step' in next(killed.glob('cells/none-seed=1-*/log.txt')).read_text()
  assert lasting(killed) == lasting(whole)  # to the last bit
  assert table(again) == table(expected)
  third = finish(start(killed, *GRID))
  assert table(third) == table(expected)
  assert len(rows(killed)) == 4
  assert any((killed / 'cache' / 'posjax' / 'programs').iterdir())
  for name in ('report.html', 'quality_by_length.png', 'loss_by_step.svg', 'quality_by_cost.png'):
    assert (killed / name).stat().st_size > 1000


@pytest.mark.slow
def test_two_processes_and_two_hosts_find_what_one_finds(tmp_path):
  one, two, hosts = tmp_path / 'one', tmp_path / 'two', tmp_path / 'hosts'
  finish(start(one, *GRID))
  shown = finish(start(two, *GRID, '--processes=2'))
  assert '[4/4]' in shown
  first = finish(start(hosts, *GRID, '--hosts=2', '--host=0'))
  assert '1 to do' in first or '2 to do' in first
  last = finish(start(hosts, *GRID, '--hosts=2', '--host=1'))
  names = [path.name for path in sorted(hosts.glob('results*'))]
  assert names == ['results-0-of-2.jsonl', 'results-1-of-2.jsonl']
  assert [len((hosts / name).read_text().splitlines()) for name in names] == [2, 2]
  # Other processors may add in another order, so the table, and not the last bit.
  assert {row['id'] for row in rows(two)} == {row['id'] for row in rows(one)}
  assert 'to do' not in table(last)


@pytest.mark.slow
def test_a_cell_that_is_impossible_and_one_that_dies_are_told_and_the_others_go_on(tmp_path):
  axes = '--axes=model.num_heads=2,32'
  process = start(tmp_path, '--schemes=none,rope', '--seeds=1', axes)
  wait_for(process, lambda: saved(tmp_path, 'none-num_heads=2-seed=0'))
  os.kill(worker_of(process.pid), signal.SIGKILL)
  shown = finish(process, status=1)
  ended = {(row['scheme'], row['axes']['model.num_heads']): row for row in rows(tmp_path)}
  assert 'by signal 9' in ended['none', 2]['error']
  assert 'RoPE rotates pairs' in ended['rope', 32]['error']
  assert 'scores' in ended['none', 32]
  assert 'scores' in ended['rope', 2]
  assert 'failed: rope, num_heads=32, seed 0: RoPE rotates pairs' in shown
  assert 'Traceback' not in shown
  assert 'Traceback' in next(tmp_path.glob('cells/rope-num_heads=32-*/log.txt')).read_text()
  again = finish(start(tmp_path, '--schemes=none,rope', '--seeds=1', axes), status=1)
  assert '2 of 4 runs had finished before' in again
  assert 'by signal 9' not in again  # what died by chance succeeds when run again
  assert (
    'resuming after step' in next(tmp_path.glob('cells/none-num_heads=2-*/log.txt')).read_text()
  )


def worker_of(pid: int) -> int:
  """The process that a process started."""
  lists = [path.read_text() for path in Path(f'/proc/{pid}/task').glob('*/children')]
  children = {int(child) for children in lists for child in children.split()}
  command = {child: Path(f'/proc/{child}/cmdline').read_text() for child in children}
  (child,) = [child for child in children if 'spawn_main' in command[child]]
  return child


def alive(pid: int) -> bool:
  """Whether a process runs; one that only waits to be counted does not."""
  stat = Path(f'/proc/{pid}/stat')
  return stat.exists() and stat.read_text().rpartition(')')[2].split()[0] != 'Z'


@pytest.mark.slow
def test_without_room_there_is_one_sentence_and_no_result_is_lost(tmp_path):
  """A real limit of the size of files, under which no checkpoint fits."""
  finish(start(tmp_path, '--schemes=none', '--seeds=1'))
  before = (tmp_path / 'results.jsonl').read_text()
  limited = ('sh', '-c', 'ulimit -f 20; exec "$@"', 'sh')  # blocks of 512 or 1024 bytes
  shown = finish(start(tmp_path, *GRID, within=limited), status=1)
  assert 'had no room on the disk' in shown
  assert 'the same command goes on' in shown
  assert 'Traceback' not in shown
  assert (tmp_path / 'results.jsonl').read_text() == before
  assert '[4/4]' in finish(start(tmp_path, *GRID))
  assert (tmp_path / 'results.jsonl').read_text().startswith(before)


@pytest.mark.slow
def test_a_second_command_in_one_folder_is_refused_and_the_first_is_saved_when_stopped(tmp_path):
  endless = ('--schemes=none,rope', '--seeds=1', '--config.steps=100000')
  first = start(tmp_path, *endless)
  wait_for(first, lambda: steps(tmp_path, 'none', 0) >= 10)
  second = finish(start(tmp_path, *endless), status=1)
  assert f'is in use by process {first.pid}' in second
  assert second.strip().count('\n') == 0
  first.send_signal(signal.SIGTERM)
  assert 'the same command resumes' in finish(first)
  assert saved(tmp_path, 'none-seed=0')
  assert not (tmp_path / 'results.jsonl').exists()
  again = start(tmp_path, *endless)
  (log,) = tmp_path.glob('cells/none-*/log.txt')
  wait_for(again, lambda: 'resuming after step' in log.read_text())
  worker = worker_of(again.pid)
  again.kill()
  again.wait()
  deadline = time.monotonic() + 30
  while alive(worker) and time.monotonic() < deadline:
    time.sleep(0.1)
  left = alive(worker)
  if left:
    os.kill(worker, signal.SIGKILL)
  again.communicate()
  assert not left, 'who has nobody to work for must end, although its run would last for long'


WRONG = [
  (['--schemes=none,ropee'], 1, "Unknown scheme 'ropee'; did you mean 'rope'"),
  slow(['--schemes=none', '--axes=model.num_layer=1,2'], 1, "did you mean 'model.num_layers'"),
  slow(['--schemes=none', '--config.stepz=1'], 2, "no such key: 'stepz'. Did you mean"),
]


@pytest.mark.parametrize(('arguments', 'status', 'message'), WRONG)
def test_a_wrong_command_is_one_sentence_and_leaves_nothing(tmp_path, arguments, status, message):
  shown = finish(start(tmp_path / 'run', *arguments), status=status)
  assert message in shown
  assert shown.startswith('compare: error: ')
  assert 'Traceback' not in shown
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_grid_whose_runs_cannot_begin_ends_with_one_sentence_and_no_result(tmp_path):
  shown = finish(start(tmp_path, *GRID, '--config.model.num_heads=5'), status=1)
  assert 'compare: error: num_heads must divide the width 32, but got 5' in shown
  assert shown.strip().count('\n') == 0
  assert not (tmp_path / 'results.jsonl').exists()
  short = '--config.steps=2', '--config.optimizer.warmup_steps=9'
  shown = finish(start(tmp_path / 'short', *GRID, *short), status=1)
  assert 'which are 2, but got 9: set it, too, as with --config.optimizer.warmup_steps=1.' in shown
  assert not (tmp_path / 'short').exists()  # the keys alone tell, before any process is started
