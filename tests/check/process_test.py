"""A process as the parent sees it: whatever becomes of it, the next question is answered."""

import json
import sys
import time
from pathlib import Path

import pytest

from posjax.check.process import Budget, Ended, OutOfTime, Worker

FAKE = Path(__file__).with_name('fake_worker.py')
FINE = {'kind': ['', 'rope'], 'width': 64, 'dtype': 'float32'}
BAD = FINE | {'kind': ['', 'alibi']}


@pytest.fixture
def worker_with():
  """Makes a worker with a fault; it is ended with the test."""
  made = []

  def make(fault):
    command = [sys.executable, str(FAKE), json.dumps({'alibi': fault})]
    made.append(Worker('blockwise', command))
    return made[0]

  yield make
  for worker in made:
    worker.close()


@pytest.mark.parametrize(
  ('fault', 'how'),
  [
    ('killed', r'^crashed \(signal 9, SIGKILL\)$'),
    ('exits', r'^crashed \(exit code 3\): A library has the last word\.$'),
    ('raises', '^failed: ValueError: no$'),
    ('hangs', '^no answer within 1 s$'),
  ],
)
def test_a_process_that_ends_is_told_and_the_next_question_is_answered(worker_with, fault, how):
  worker, budget = worker_with(fault), Budget(60.0)
  assert worker.ask(budget, 30.0, 'compare', **FINE)['error'] == 1e-7
  with pytest.raises(Ended, match=how):
    worker.ask(budget, 1.0, 'compare', **BAD)
  assert worker.ask(budget, 30.0, 'compare', **FINE)['error'] == 1e-7


def test_the_end_of_the_budget_is_no_fault_of_the_process(worker_with):
  worker = worker_with('hangs')
  worker.ask(Budget(60.0), 30.0, 'compare', **FINE)
  begun = time.monotonic()
  with pytest.raises(OutOfTime):
    worker.ask(Budget(0.2), 30.0, 'compare', **BAD)
  assert time.monotonic() - begun < 10


def test_a_command_that_does_not_start_is_told():
  with pytest.raises(Ended, match=r'crashed \(exit code 2\): .*No such file'):
    Worker('dense', [sys.executable, 'no_such_file.py']).ask(Budget(60.0), 30.0, 'facts')


def test_no_variable_of_the_caller_chooses_the_default_of_a_process(monkeypatch):
  monkeypatch.setenv('POSJAX_IMPLEMENTATION', 'dense')
  code = 'import json, os; print("{}"); print(json.dumps(dict(os.environ)))'
  worker = Worker('dense', [sys.executable, '-c', code])
  assert 'POSJAX_IMPLEMENTATION' not in worker.ask(Budget(60.0), 30.0, 'facts')
  worker.close()
