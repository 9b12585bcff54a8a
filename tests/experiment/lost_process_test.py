"""Real processes of one run, of which one is killed or told to end: what becomes of the others."""

import shutil
import signal
import time

import jax
import numpy as np
import pytest

from posjax.experiment import cluster
from tests.experiment.support.runs import losses, start
from tests.experiment.two_processes_test import free_port

STEPS = 60


def together(count, folder, cache, steps=STEPS):
  """The processes of a run of a real model with dropout, random ids and packed rows."""
  port = free_port()
  flags = ('--config=tests/experiment/support/small_config.py', f'--config.steps={steps}')
  flags += (f'--config.mesh.data={count}', f'--coordinator=127.0.0.1:{port}')
  return [
    start(folder, cache, *flags, f'--processes={count}', f'--process={index}')
    for index in range(count)
  ]


def ended(processes):
  """Their exit codes and errors, once all have ended."""
  errors = [process.communicate(timeout=400)[1] for process in processes]
  return [process.returncode for process in processes], errors


def whole(count, folder, cache, steps=STEPS):
  """The losses of a run that is left alone until its end."""
  codes, errors = ended(together(count, folder, cache, steps))
  assert codes == [0] * count, errors
  found = losses(folder)
  assert list(found) == list(range(1, steps + 1))
  return found


def wait_for(folder, step, processes):
  """Until a checkpoint after this step is there."""
  deadline = time.monotonic() + 400
  while not (folder / 'checkpoints' / str(step)).exists():
    assert time.monotonic() < deadline
    assert all(process.poll() is None for process in processes), ended(processes)
    time.sleep(0.01)


def stopped_by_a_kill(count, victim, folder, cache):
  """A run whose process is killed: after how many seconds all others ended, and their errors."""
  processes = together(count, folder, cache)
  wait_for(folder, 20, processes)
  processes[victim].kill()
  killed, others = time.monotonic(), [p for i, p in enumerate(processes) if i != victim]
  while any(process.poll() is None for process in others):
    assert time.monotonic() < killed + 60, 'the others go on'
    time.sleep(0.05)
  seconds = time.monotonic() - killed
  codes, errors = ended(processes)
  assert codes[victim] == -signal.SIGKILL
  assert 0 not in codes
  return seconds, [error for i, error in enumerate(errors) if i != victim]


@pytest.mark.slow
@pytest.mark.parametrize(('count', 'victim'), [(2, 1), (2, 0), (4, 2)])
def test_where_one_process_is_killed_the_others_stop_and_a_restart_keeps_the_losses(
  count, victim, tmp_path
):
  cache = tmp_path / 'cache'
  expected = whole(count, tmp_path / 'whole', cache)
  seconds, errors = stopped_by_a_kill(count, victim, tmp_path / 'killed', cache)
  print(f'{count} processes, {victim} killed: the others ended after {seconds:.1f} s')
  print(*errors, sep='\n')
  assert len(losses(tmp_path / 'killed')) < STEPS
  if victim:  # where the first is killed, JAX may end the others before an error reaches them
    assert any('Another process of this run ended' in error for error in errors), errors
  shutil.copytree(tmp_path / 'killed', tmp_path / 'fewer')
  assert whole(count, tmp_path / 'killed', cache) == expected
  fewer = whole(count // 2, tmp_path / 'fewer', cache)
  assert fewer == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_where_one_process_hangs_the_others_stop_within_a_minute(tmp_path):
  """Nothing is closed then, as where a transport only waits: its heartbeat is missing."""
  processes = together(2, tmp_path / 'run', tmp_path / 'cache', steps=5000)
  wait_for(tmp_path / 'run', 10, processes)
  processes[1].send_signal(signal.SIGSTOP)
  stopped = time.monotonic()
  try:
    processes[0].wait(timeout=60)
    print(f'the other one ended after {time.monotonic() - stopped:.1f} s')
  finally:
    processes[1].kill()
  codes, errors = ended(processes)
  assert codes[0] not in (0, 143)
  print(errors[0][-2000:])


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_process_saves_in_all_of_them_and_is_their_exit_code(number, tmp_path):
  cache, count = tmp_path / 'cache', 2
  processes = together(count, tmp_path / 'run', cache, steps=5000)
  wait_for(tmp_path / 'run', 10, processes)
  processes[1].send_signal(number)
  codes, errors = ended(processes)
  assert codes == [143, 130 if number == signal.SIGINT else 143], errors
  kept = [int(path.name) for path in (tmp_path / 'run' / 'checkpoints').iterdir()]
  assert max(kept) == max(losses(tmp_path / 'run'))  # all saved after the same step
  assert max(kept) % 5 or len(kept) < 4


def test_processes_that_know_different_things_are_refused_together(monkeypatch):
  """What each of two processes sees, which is the same for both."""
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  mine = {'config': 'a', 'data': '0' * 64}
  sent = []

  def refusal(facts, others):
    for known in (facts, others):
      monkeypatch.setattr(cluster, '_gathered', lambda array: sent.append(array) or array[None])
      cluster.check_alike(known)
    both = np.stack(sent[-2:])
    monkeypatch.setattr(cluster, '_gathered', lambda array: both)
    cluster.check_alike(facts)

  refusal(mine, dict(mine))
  with pytest.raises(ValueError, match='have the same data, but process 1 has another than'):
    refusal(mine, {**mine, 'data': '1' * 64})


@pytest.mark.parametrize(
  ('given', 'why'),
  [
    ({'processes': 2}, r'--process go together, but got no --coordinator\.'),
    ({'process': 1, 'cluster': True}, 'so give one or the other'),
    ({'coordinator': 'here:1', 'processes': 2, 'process': 2}, r'in \[0, 2\), but got 2'),
  ],
)
def test_processes_that_are_named_in_part_are_refused(given, why):
  with pytest.raises(ValueError, match=why):
    cluster.join(**given)
