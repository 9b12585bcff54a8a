"""Two real processes: on one mesh, of one run, and of two runs that want the same folder."""

import json
import os
import random
import re
import socket
import subprocess
import sys
import time

import jax
import pytest

from posjax.experiment import sharding
from tests.experiment.support.faults import POINTS
from tests.experiment.support.one_of_two import numbers
from tests.experiment.support.runs import ROOT, losses, start


def free_port() -> int:
  with socket.socket() as one:
    one.bind(('127.0.0.1', 0))
    return one.getsockname()[1]


def joined(module, paths):
  """Runs a module as two processes of one JAX program, each with its path; what they print."""
  port, environment = str(free_port()), {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  processes = [
    subprocess.Popen(
      [sys.executable, '-m', module, str(index), port, str(path)],
      cwd=ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index, path in enumerate(paths)
  ]
  ended = [process.communicate(timeout=300) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], ended
  return [output for output, _ in ended]


@pytest.mark.slow
def test_two_processes_score_a_model_as_one_does(tmp_path):
  """One device each; the last batch of rows is filled up, since rows are odd in number."""
  files = [tmp_path / f'{index}.json' for index in range(2)]
  joined('tests.experiment.support.one_of_two', files)
  first, second = (json.loads(file.read_text()) for file in files)
  assert first == second
  assert first['devices'] == 2
  assert jax.process_count() == 1
  alone = numbers(sharding.make_mesh(), tmp_path)
  assert alone.keys() == first['numbers'].keys()
  for name, values in alone.items():
    assert first['numbers'][name] == pytest.approx(values, rel=1e-4), name


def contest(folder, points, seconds):
  """Two commands on one folder, the second so many seconds later; the codes and the errors."""
  flags = ('--config=tests/experiment/support/line_config.py', f'--config.task.data={points}')
  # Longer than the second one waits for the first; with checkpoints that it could pick up.
  flags += ('--config.steps=20000', '--config.log_every=100', '--config.eval_every=10000')
  flags += ('--config.checkpoint_every=2500',)
  first = start(folder, folder.parent / 'cache', *flags, stdout=subprocess.DEVNULL)
  time.sleep(seconds)
  second = start(folder, folder.parent / 'cache', *flags, stdout=subprocess.DEVNULL)
  errors = [process.communicate(timeout=200)[1] for process in (first, second)]
  return [process.returncode for process in (first, second)], errors


TOLD = (
  r'train\.py: error: \S+ is in use by process \d+ on \S+, since [-0-9: ]+; wait for it, or '
  r'stop it\.\n'
)


def check_contest(folder, points, seconds):
  """Whichever came first ends well; one that comes when the other has ended may end well, too."""
  codes, errors = contest(folder, points, seconds)
  assert 0 in codes, errors
  for code, error in zip(codes, errors, strict=True):
    assert re.fullmatch(TOLD if code else '', error), error
  rows = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
  assert [row['step'] for row in rows if 'loss' in row] == [*range(100, 20_001, 100)]
  assert len(losses(folder)) == 200
  assert (folder / 'results.json').exists()
  return codes.count(1)


@pytest.mark.slow
def test_two_runs_on_one_folder_lose_no_row_and_the_second_says_one_sentence(tmp_path):
  """Twenty times, at intervals of up to six seconds."""
  draw, points = random.Random(0), tmp_path / 'points.txt'
  points.write_text(POINTS)
  refused = [
    check_contest(tmp_path / str(number), points, draw.uniform(0, 6)) for number in range(20)
  ]
  assert sum(refused) >= 10


@pytest.mark.slow
def test_the_processes_of_one_run_share_its_folder_and_write_it_once(tmp_path):
  """The run is stopped after its third step, and the same two processes go on with it."""
  (tmp_path / 'points.txt').write_text(POINTS)
  outputs = joined('tests.experiment.support.run_of_two', [tmp_path, tmp_path])
  text = (tmp_path / 'run' / 'metrics.jsonl').read_text()
  rows = [json.loads(line) for line in text.splitlines()]
  assert [row['step'] for row in rows if 'loss' in row] == [1, 2, 3, 4, 5, 6]
  said = [json.loads(out.splitlines()[-1]) for out in outputs]
  assert said[0] == said[1]
  assert said[0]['stopped']
  assert said[0]['last'] == 6


@pytest.mark.slow
def test_the_environment_of_slurm_joins_the_processes_of_a_run(tmp_path, monkeypatch):
  (tmp_path / 'points.txt').write_text(POINTS)
  flags = ('--config=tests/experiment/support/line_config.py', '--config.mesh.data=2', '--cluster')
  flags += (f'--config.task.data={tmp_path / "points.txt"}',)
  said = {'SLURM_JOB_ID': free_port(), 'SLURM_STEP_NODELIST': 'localhost', 'SLURM_NTASKS': 2}
  processes = []
  for index in range(2):
    said |= {'SLURM_PROCID': index, 'SLURM_LOCALID': index, 'SLURM_STEP_NUM_NODES': 1}
    for name, value in said.items():
      monkeypatch.setenv(name, str(value))
    processes.append(start(tmp_path / 'run', tmp_path / 'cache', *flags))
  ended = [process.communicate(timeout=300) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], ended
  places = sorted(path.name for path in (tmp_path / 'run/checkpoints/6/data').glob('process*'))
  assert places == ['process_0-of-2.json', 'process_1-of-2.json']
  assert list(losses(tmp_path / 'run')) == [1, 2, 3, 4, 5, 6]
