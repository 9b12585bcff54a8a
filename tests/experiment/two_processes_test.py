"""Two real processes on one mesh: each has its rows, and both have the whole result."""

import json
import os
import socket
import subprocess
import sys

import jax
import pytest

from posjax.experiment import sharding
from tests.experiment.one_of_two import numbers
from tests.experiment.runs import ROOT


def free_port() -> int:
  with socket.socket() as one:
    one.bind(('127.0.0.1', 0))
    return one.getsockname()[1]


@pytest.mark.slow
def test_two_processes_score_a_model_as_one_does(tmp_path):
  """One device each; the last batch of rows is filled up, since rows are odd in number."""
  port, files = str(free_port()), [tmp_path / f'{index}.json' for index in range(2)]
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  processes = [
    subprocess.Popen(
      [sys.executable, '-m', 'tests.experiment.one_of_two', str(index), port, str(file)],
      cwd=ROOT,
      env=environment,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index, file in enumerate(files)
  ]
  for process in processes:
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
  first, second = (json.loads(file.read_text()) for file in files)
  assert first == second
  assert first['devices'] == 2
  assert jax.process_count() == 1
  alone = numbers(sharding.make_mesh(), tmp_path)
  assert alone.keys() == first['numbers'].keys()
  for name, values in alone.items():
    assert first['numbers'][name] == pytest.approx(values, rel=1e-4), name
