"""A small run that can be stopped, harmed at a step, copied, and held against what it was."""

import contextlib
import shutil
from pathlib import Path

from posjax.experiment import run
from tests.experiment.support import line_config
from train import train

POINTS = '1 2\n2 4\n3 5\n4 9\n'


def line(data: Path, **changes):
  """The config of the toy run, on a file of points; '.' in a key descends."""
  config = line_config.get_config()
  config.update_from_flattened_dict({'task.data': str(data), **changes})
  return config


def at_each_step(monkeypatch, happen) -> None:
  """Has a run call `happen(step)` after each step; it stops and saves where that is true."""

  @contextlib.contextmanager
  def interrupts():
    steps = iter(range(happen.first, 10**6))
    yield lambda: bool(happen(next(steps)))

  monkeypatch.setattr(run, 'interrupts', interrupts)


def after(step, what=lambda: True, first=1):
  """For `at_each_step`: what happens after one step of a run that begins with the step `first`."""
  happen = lambda now: now == step and what()
  happen.first = first
  return happen


def contents(folder: Path) -> dict[str, bytes]:
  """Every file of a folder but the lock, and every folder."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b'folder'
    for path in folder.rglob('*')
    if path.name != '.lock'
  }


def stopped_run(folder: Path, monkeypatch) -> Path:
  """A run of six steps, stopped after the fifth: its checkpoints are those after 2, 4 and 5."""
  folder.mkdir()
  (folder / 'points.txt').write_text(POINTS)
  with monkeypatch.context() as patched:
    at_each_step(patched, after(5))
    assert train(line(folder / 'points.txt'), folder / 'run') is None
  return folder / 'run'


def copied(folder: Path, to: Path) -> Path:
  return Path(shutil.copytree(folder, to))
