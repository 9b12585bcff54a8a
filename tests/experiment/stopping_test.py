"""A run that is killed, interrupted or over: the same command goes on, and nothing is lost."""

import contextlib
import signal
import subprocess

from posjax.experiment import interrupt, run
from tests.experiment.runs import finish, killed_run_resumes, losses, small, start
from train import train


def test_a_finished_run_reports_again_and_trains_no_more(tmp_path):
  first = train(small(steps=4), tmp_path)
  again = train(small(steps=4), tmp_path)
  assert list(first.scores) == ['length 32', 'length 128']
  for name, score in first.scores.items():
    assert score.values == again.scores[name].values
  assert first.history == again.history


def test_a_killed_run_resumes_to_the_same_losses_bit_for_bit(tmp_path):
  """With dropout, random ids and packing."""
  killed_run_resumes(tmp_path, steps=40)


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
