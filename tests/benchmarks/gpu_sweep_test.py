"""The sweep of a GPU, rehearsed: every line of it runs, and what fails or is late is told."""

import json
import os
import subprocess
import sys
import threading

import pytest

from benchmarks import gpu_measure, gpu_sweep
from benchmarks.gpu_measure import SMALL, Lines
from benchmarks.interleave import ROOT


def printed(capsys):
  return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_fails_is_a_line_and_what_comes_too_late_is_left_out(capsys):
  out = Lines(60.0)
  assert out.attempt('item', 'fine', lambda: {'ms': 1.0}) == {'ms': 1.0}
  assert out.attempt('item', 'bad', lambda: 1 / 0) is None
  assert Lines(0.0).attempt('item', 'late', lambda: {'ms': 1.0}) is None
  assert printed(capsys) == [
    {'item': 'item', 'what': 'fine', 'ms': 1.0},
    {'item': 'item', 'what': 'bad', 'failed': 'ZeroDivisionError: division by zero'},
    {'item': 'item', 'what': 'late', 'left_out': 'the deadline came first'},
  ]


def test_a_line_that_does_not_end_is_cut_off(capsys, monkeypatch):
  cut = threading.Event()
  monkeypatch.setattr(gpu_measure, '_GRACE', 0.1)
  monkeypatch.setattr(gpu_measure.os, '_exit', lambda code: cut.set())
  out = Lines(0.1)
  out.watch()
  out.attempt('item', 'hangs', lambda: {'cut': cut.wait(30)})
  stopped, ended = printed(capsys)
  assert stopped['stopped'].startswith('item: hangs did not end')
  assert ended['cut']


def test_alibi_in_wider_heads_is_the_references(capsys):
  """Ids beyond 128 have two parts."""
  sizes = SMALL._replace(length=300, heads=8, last=100)
  gpu_sweep.alibi(sizes, Lines(60.0))
  (found,) = printed(capsys)
  assert found['right']


def test_an_unknown_item_ends_the_command(capsys):
  with pytest.raises(SystemExit):
    gpu_sweep.main(['--items=line'])
  assert "but got ['line']" in capsys.readouterr().err


@pytest.mark.slow
def test_every_item_runs_in_a_rehearsal():
  command = [sys.executable, '-m', 'benchmarks.gpu_sweep', '--rehearse']
  environment = os.environ | {'PYTHONPATH': str(ROOT)}
  done = subprocess.run(
    command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
  )
  found = [json.loads(line) for line in done.stdout.splitlines()]
  assert list(dict.fromkeys(x['item'] for x in found)) == ['device', *gpu_sweep.ITEMS]
  assert [x for x in found if 'failed' in x] == []
  checked = [x for x in found if 'right' in x]
  assert len(checked) > 20
  assert all(x['right'] and x['ms'] > 0 for x in checked)
