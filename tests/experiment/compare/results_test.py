"""Lines of results that are there whole or not at all, and one writer."""

import json
import os
import resource
import subprocess
import sys
import time

import pytest

from posjax.experiment.compare import __main__ as command
from posjax.experiment.compare import results
from posjax.experiment.compare.pool import Ended
from posjax.experiment.locks import Busy, Gone, lock
from posjax.experiment.record import append
from tests.experiment.compare import made


def test_a_line_is_added_after_what_was_there(tmp_path):
  path = tmp_path / 'results.jsonl'
  for name in 'abc':
    append(path, {'id': name, 'n': 1})
  assert [json.loads(line)['id'] for line in path.read_text().splitlines()] == ['a', 'b', 'c']
  assert list(results.read(tmp_path)) == ['a', 'b', 'c']


def test_a_line_that_a_kill_cut_short_is_left_out_and_overwritten(tmp_path):
  path = tmp_path / 'results.jsonl'
  append(path, {'id': 'a'}, durable=True)
  for rest in ('{"id": "b", "sc', '{"id": "b"}', 'x' * 200_000):
    path.write_text('{"id": "a"}\n' + rest)
    assert list(results.read(tmp_path)) == ['a']
    append(path, {'id': 'c'})
    assert path.read_text() == '{"id": "a"}\n{"id": "c"}\n'


def test_what_succeeded_later_counts_and_what_failed_after_it_does_not(tmp_path):
  rows = [{'id': 'a', 'error': 'x'}, {'id': 'a', 'n': 1}, {'id': 'a', 'error': 'y'}]
  rows += [{'id': 'b', 'error': 'x'}, {'id': 'b', 'error': 'z'}]
  for row in rows:
    append(tmp_path / 'results.jsonl', row)
  assert results.read(tmp_path) == {'a': {'id': 'a', 'n': 1}, 'b': {'id': 'b', 'error': 'z'}}


def test_several_hosts_write_files_of_their_own_that_are_read_together(tmp_path):
  for host in (0, 1):
    append(tmp_path / f'results-{host}-of-2.jsonl', {'id': f'from {host}'})
  assert list(results.read(tmp_path)) == ['from 0', 'from 1']


@pytest.mark.parametrize(
  'line', ['{"id": ', 'nothing', '{"name": 1}', '[1]', '{"id": []}', '[' * 9999, 'caf\udce9']
)
def test_a_whole_line_that_is_no_result_is_told_with_its_place(tmp_path, line):
  (tmp_path / 'results.jsonl').write_text('{"id": "a"}\n' + line + '\n', errors='surrogateescape')
  with pytest.raises(ValueError, match=r'results\.jsonl, line 2, must be the JSON of a run'):
    results.read(tmp_path)


WRONG = [
  (('scores',), None, r'scores must be an object, but is None'),
  (('scores',), {}, 'scores must be of the evaluations length 8, length 16, but are of none'),
  (('scores', 'length 8'), 3, 'scores/length 8 must be an object, but is 3'),
  (
    ('scores', 'length 8', 'loss'),
    'x',
    "scores/length 8/loss must be a number or null, but is 'x'",
  ),
  (('scores', 'length 8', 'counted'), None, 'scores/length 8/counted must be a whole number'),
  (('evaluations',), {}, r'must be of the evaluations \(there are none\), but are of length 8'),
  (('evaluations', 'length 8', 'metrics'), {}, 'evaluations/length 8/metrics must have a metric'),
  (
    ('evaluations', 'length 8', 'metrics', 'loss', 'scale'),
    [],
    r'loss/scale must be a number, but',
  ),
  (('curve',), None, 'curve must be a list, but is None'),
  (('curve',), [[1, 2.0], 'x'], "curve/1 must be a list, but is 'x'"),
  (('curve',), [[1, 2.0, 3]], 'curve/0 must have 2 parts, but has 3'),
  (('seconds',), 'long', "seconds must be a number, but is 'long'"),
]


@pytest.mark.parametrize(('names', 'value', 'message'), WRONG)
def test_a_part_of_a_result_that_has_another_form_is_named(tmp_path, names, value, message):
  row = {
    'id': 'a',
    'scheme': 'none',
    'axes': {},
    'seed': 0,
    **made.result([2.0, None], exact=False),
  }
  row = json.loads(json.dumps(row))
  path = tmp_path / 'results.jsonl'
  append(path, row)
  assert list(results.read(tmp_path)) == ['a']
  *above, last = names
  part = row
  for name in above:
    part = part[name]
  part[last] = value
  path.write_text(json.dumps(row) + '\n')
  with pytest.raises(
    ValueError, match=rf'line 1, cannot be read: .*{message}.*; take the line out'
  ):
    results.read(tmp_path)


def test_a_line_for_which_there_is_no_room_leaves_the_file_as_it_was(tmp_path):
  """A real limit of the size of files, which writes half of the line first."""
  path = tmp_path / 'results.jsonl'
  append(path, {'id': 'a'}, durable=True)
  before = path.read_bytes()
  code = (
    'import resource, signal, sys; from posjax.experiment import locks, record\n'
    'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
    f'resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 20},) * 2)\n'
    'from pathlib import Path\n'
    'try:\n  record.append(Path(sys.argv[1]), {"id": "b" * 100})\n'
    'except OSError as error:\n  print(error.errno in locks.FULL)\n'
  )
  done = subprocess.run([sys.executable, '-c', code, path], capture_output=True, text=True)
  assert done.stdout == 'True\n', done.stderr
  assert path.read_bytes() == before
  assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


HOLD = """
import sys, time
from pathlib import Path
from posjax.experiment import locks
held = locks.lock(Path(sys.argv[1]))
print('held', flush=True)
time.sleep(100)
"""


def test_a_second_process_is_told_in_one_sentence_who_holds_the_folder(tmp_path):
  path = tmp_path / '.lock'
  first = subprocess.Popen([sys.executable, '-c', HOLD, path], stdout=subprocess.PIPE, text=True)
  assert first.stdout.readline() == 'held\n'
  with pytest.raises(Busy, match=f'is in use by process {first.pid} on'):
    lock(path, patience=0.2)
  first.kill()
  first.wait()
  first.stdout.close()
  held = lock(path)  # what a killed process held is free
  assert f'process {os.getpid()}' in path.read_text()
  held.close()


def test_a_process_that_is_about_to_end_is_waited_for(tmp_path):
  path = tmp_path / '.lock'
  code = HOLD.replace('time.sleep(100)', 'time.sleep(0.5)')
  first = subprocess.Popen([sys.executable, '-c', code, path], stdout=subprocess.PIPE, text=True)
  first.stdout.readline()
  begun = time.monotonic()
  lock(path, patience=20.0).close()
  assert time.monotonic() - begun > 0.2
  first.wait()
  first.stdout.close()


def test_a_grid_whose_folder_is_replaced_stops_and_writes_nothing_there(tmp_path, monkeypatch):
  folder, grid = tmp_path / 'grid', made.grid(['none'], 1)

  def run_all(*_):
    folder.rename(tmp_path / 'away')
    folder.mkdir()
    yield Ended(grid[0], made.result([50]))

  monkeypatch.setattr(command, 'run_all', run_all)
  path = folder / 'results.jsonl'
  with pytest.raises(Gone, match='deleted, moved or replaced'):
    command.work(command.Plan(grid, grid, 'none', made.RULES, folder, path, 1, False))
  assert not any(folder.iterdir())
