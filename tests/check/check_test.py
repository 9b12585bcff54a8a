"""`python -m posjax.check`: its page, its JSON and its exit code.

Most processes here are `fake_worker.py`, which knows no JAX; a real one, and real ones with faults,
are in the last tests.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posjax.check import __main__ as command
from posjax.check import cases, collectives, page, values
from posjax.check.report import Report
from tests.support.paths import ROOT

FAKE = ROOT / 'tests' / 'check' / 'fake_worker.py'
FAULTY = ROOT / 'tests' / 'check' / 'faulty_worker.py'


def run(capsys, *argv, **faults):
  """The exit code, and the page or the JSON, where 'blockwise' has these faults by scheme."""
  code = command.main(argv, [sys.executable, str(FAKE), json.dumps(faults)])
  return code, capsys.readouterr().out


def real(*argv, devices=1, **options):
  """The same of real processes, which compute on one CPU, or on one that pretends to be several."""
  flags = re.sub(r'(device_count)=8', rf'\1={devices}', os.environ['XLA_FLAGS'])
  environment = os.environ | {'XLA_FLAGS': flags, 'PYTHONPATH': str(ROOT)}
  line = [sys.executable, '-m', 'posjax.check', *argv]
  return subprocess.run(
    line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, **options
  )


def test_where_everything_is_right_the_page_says_so_and_the_exit_code_is_0(capsys):
  code, page = run(capsys)
  assert code == 0
  assert 'cudnn is not here: there is no GPU.' in page
  assert re.search(r'a learned bias \(t5\) +0\.00 6/6 +0\.00 6/6', page)
  assert 'Nothing is wrong; compared cases: 108.' in page
  assert re.search(
    r'^rope +1,024 +1\.0 ms, 1 MiB +1\.0 ms, 1 MiB +dense, the fastest$', page, re.MULTILINE
  )
  assert re.search(r'^rope +2,048 +no memory +no memory +dense$', page, re.MULTILINE)
  assert 'Nothing needs to be set' in page
  assert max(map(len, page.splitlines())) <= 100


def test_a_kernel_that_is_wrong_crashes_or_hangs_is_a_line_and_the_rest_goes_on(
  capsys, monkeypatch
):
  monkeypatch.setattr(values, 'LIMIT', 0.5)
  faults = {'alibi': 'killed', 't5': 'wrong', 'none': 'hangs', 'shaw': 'raises'}
  code, page = run(capsys, '--only', 'width 64, float32', **faults)
  assert code == 1
  lines = [
    'blockwise, no positions (none), width 64, float32: no answer within 0 s',
    'blockwise, a fixed bias (alibi), width 64, float32: crashed (signal 9, SIGKILL)',
    'blockwise, a learned bias (t5), width 64, float32: wrong: the error of the keys is 5.0e-01',
    'blockwise, logits (shaw), width 64, float32: failed: ValueError: no',
  ]
  for line in lines:
    assert f'- {line}' in page
  assert len(re.findall('^- ', page, re.MULTILINE)) == len(lines)
  assert re.search(r'a fixed bias \(alibi\) +0\.00 1/1 +ended 0/1', page)
  assert re.search(r'a learned bias \(t5\) +0\.00 1/1 +WRONG 0/1', page)
  assert re.search(r'grouped heads \(rope\) +0\.00 1/1 +0\.00 1/1', page)


def test_a_case_that_falls_back_to_tiles_is_not_counted_as_right(capsys):
  code, page = run(capsys, shaw='tiles')
  assert code == 0
  assert re.search(r'logits \(shaw\) +0\.00 6/6 +tiles', page)
  assert 'tiles: blockwise leaves to blockwise logits: it cannot.' in page
  assert 'compared cases: 102.' in page
  assert re.search(r'^shaw +512 +1\.0 ms, 1 MiB +tiles +dense, the fastest$', page, re.MULTILINE)


def test_json_has_every_number(capsys):
  code, printed = run(capsys, '--json', t5='wrong', rope='slow')
  found = json.loads(printed)
  assert code == 1
  assert found['versions'] == {'posjax': '0'}
  wrong = [x for x in found['results'] if x['status'] == 'wrong']
  assert {(x['implementation'], x['scheme']) for x in wrong} == {('blockwise', 't5')}
  assert {(x['width'], x['dtype']) for x in wrong} == {
    (width, dtype) for width in (64, 128, 256) for dtype in ('float32', 'bfloat16')
  }
  assert all(x['error'] > x['bound'] for x in wrong)
  timed = [x for x in found['speeds'] if x['seconds']]
  assert {(x['scheme'], x['length']) for x in timed} == {
    (scheme, length) for scheme in ('rope', 't5', 'shaw') for length in (512, 1024)
  }
  assert found['problems']


def test_what_there_is_no_time_for_is_said(capsys, monkeypatch):
  monkeypatch.setattr(command, '_QUICK', 4.0)
  code, page = run(capsys, '--quick', **{'rope(values=True)': 'hangs'})
  assert code == 0
  assert re.search(r'left out for lack of time: .*\d+ cases of blockwise', page)


def test_words_that_no_case_has_are_refused(capsys):
  with pytest.raises(SystemExit, match="a case with the words 't6', but got none"):
    run(capsys, '--only', 't6')


def test_where_jax_does_not_start_that_is_all(capsys):
  with pytest.raises(SystemExit, match=r'JAX cannot be used here: crashed \(exit code 2\)'):
    command.main([], [sys.executable, 'no_such_file.py'])


def test_ctrl_c_ends_everything():
  """The processes are in sessions of their own: only the parent hears it."""
  code = f"""if True:
    import sys
    from posjax.check import __main__ as command
    fake = [sys.executable, {str(FAKE)!r}, '{{"none": "hangs"}}']
    sys.exit(command.main([], fake))"""
  process = subprocess.Popen([sys.executable, '-c', code], cwd=ROOT, stderr=subprocess.PIPE)
  started = []
  while len(started) < 4 and process.poll() is None:
    time.sleep(0.1)
    threads = Path(f'/proc/{process.pid}/task').glob('*/children')
    started = [child for thread in threads for child in thread.read_text().split()]
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate(timeout=30)
  assert process.returncode == 130
  assert errors.decode().splitlines()[-1] == 'Interrupted.'
  assert 'Traceback' not in errors.decode()
  assert len(started) == 4
  for child in started:
    with pytest.raises(ProcessLookupError):
      os.kill(int(child), 0)


def test_on_this_machine_it_is_right():
  done = real('--only=queries width 64, float32', '--json')
  found = json.loads(done.stdout)
  assert (done.returncode, found['problems']) == (0, [])
  assert found['platform'] == 'cpu'
  assert [(x['implementation'], x['status']) for x in found['results']] == [
    ('dense', 'reference'),
    ('blockwise', 'correct'),
  ]
  assert 0 < found['results'][1]['error'] <= found['results'][1]['bound'] < 1e-4
  assert (
    found['implementations']['pallas']
    == 'there are no such kernels for this device and this version of JAX'
  )
  assert 'NVIDIA' in found['implementations']['cudnn']


@pytest.mark.slow
def test_several_devices_compute_attention_together():
  done = real('--only=bias t5 width 64, float32', '--json', devices=4)
  found = json.loads(done.stdout)
  assert (done.returncode, found['problems']) == (0, [])
  assert {(x['implementation'], x['status']) for x in found['results']} == {
    ('dense', 'reference'), ('blockwise', 'correct'), ('all_gather', 'correct'),
    ('ring', 'correct'),
  }  # fmt: skip


@pytest.mark.usefixtures('eight_devices')
def test_what_devices_exchange_is_a_line_for_each_collective():
  found = collectives.measure(2**18)
  assert [(x.name, x.received) for x in found] == [
    ('all-gather', 7 * 2**15), ('reduce-scatter', 7 * 2**15), ('permute', 2**15),
  ]  # fmt: skip
  facts = {'devices': ['cpu'] * 8, 'platform': 'cpu', 'platform_version': 'cpu', 'versions': {}}
  facts |= {'system': 'Linux', 'processors': 1, 'capability': None, 'implementations': {}}
  result = values.Result('dense', cases.cases()[0], 'reference')
  shown = page.text(Report(facts, [result], [], 1.0, found))
  assert re.search(r'^permute +0 MiB +[\d.,]+ GB/s$', shown, re.MULTILINE)
  broken = Report(facts, [result], [], 1.0, no_collectives='failed: XlaRuntimeError: no link')
  assert broken.problems == ['collectives: failed: XlaRuntimeError: no link']


@pytest.mark.slow
def test_real_processes_with_faults_are_lines():
  """A wrong implementation that a test registers, and one that is killed by the system."""
  code = f"""if True:
    import sys
    from posjax.check import __main__ as command
    argv = ['--only=bias width 64, float32']
    sys.exit(command.main(argv, [sys.executable, {str(FAULTY)!r}]))"""
  done = subprocess.run(
    [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert done.returncode == 1, done.stderr
  assert 'blockwise, a fixed bias (alibi), width 64, float32: crashed (signal 9' in done.stdout
  assert 'blockwise, a learned bias (t5), width 64, float32: wrong: the error' in done.stdout


@pytest.mark.slow
def test_quick_is_done_in_two_minutes():
  begun = time.monotonic()
  done = real('--quick')
  assert time.monotonic() - begun < 120
  assert done.returncode == 0, done.stdout
  assert ' 512 ' in done.stdout
