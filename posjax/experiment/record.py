"""The record of a run while it goes: metrics.jsonl, TensorBoard events, and a progress bar."""

import json
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from posjax.experiment.config_keys import completed
from posjax.experiment.plain import console

VOCABULARY = 'vocabulary.json'


class Record:
  """Appends rows to metrics.jsonl and to TensorBoard; a resumed run drops rows past its step."""

  def __init__(self, workdir: Path, step: int):
    from tensorboardX import SummaryWriter

    self.path = workdir / 'metrics.jsonl'
    kept = [row for row in read(self.path) if row['step'] <= step]
    partial = self.path.with_suffix('.partial')
    partial.write_text(''.join(json.dumps(row) + '\n' for row in kept))
    os.replace(partial, self.path)
    self.file = self.path.open('a')
    self.board = SummaryWriter(str(workdir / 'tensorboard'), purge_step=step + 1)

  def write(self, step: int, **values: float) -> None:
    """One row: the step, and numbers by name. A number that is not finite becomes null."""
    clean = {name: value if math.isfinite(value) else None for name, value in values.items()}
    self.file.write(json.dumps({'step': step, **clean}) + '\n')
    self.file.flush()
    for name, value in values.items():
      # TensorBoard's names have no spaces, and it would log a warning at each.
      self.board.add_scalar(re.sub(r'[^-/\w.]', '_', name), value, step)

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self.file.flush()
    os.fsync(self.file.fileno())
    self.file.close()
    self.board.close()


def read(path: Path) -> list[dict[str, Any]]:
  """The whole rows of a metrics file; a last line that a kill cut short is left out."""
  if not path.exists():
    return []
  lines = path.read_text().split('\n')[:-1]
  return [json.loads(line) for line in lines]


def check_workdir(config: str, workdir: Path) -> None:
  """A folder holds one run: another config must not go on where this one stopped.

  Args:
    config: as JSON.
    workdir: the folder, which need not exist.

  Raises:
    ValueError: if the folder holds a run with another config.
  """
  path = workdir / 'config.json'
  if not path.exists():
    return
  there, here = completed(json.loads(path.read_text())), completed(json.loads(config))
  keys = sorted({*there, *here} - {'compare'})  # which is of the report of a grid, not of a run
  differ = [key for key in keys if there.get(key) != here.get(key)]
  if differ:
    raise ValueError(
      f'{workdir} holds a run with another {", ".join(differ)}; give another --workdir.'
    )


def stored_vocabulary(workdir: Path) -> dict[str, Any] | None:
  """The vocabulary that the run in a folder stored; None if there is no run, or it stored none."""
  path = workdir / VOCABULARY
  if not path.exists() or not (workdir / 'config.json').exists():
    return None
  return json.loads(path.read_text())


def write_json(path: Path, value: Any) -> None:
  """Writes a file whole or not at all."""
  partial = path.with_name(path.name + '.partial')
  partial.write_text(json.dumps(value, indent=2) + '\n')
  os.replace(partial, path)


class Bar:
  """A progress bar with loss, tokens per second and time left; plain lines where no terminal."""

  def __init__(self, start: int, steps: int, unit: str):
    self.unit, self.begun, self.tokens = unit, time.monotonic(), 0
    self.progress = Progress(
      TextColumn('{task.description}'),
      BarColumn(),
      MofNCompleteColumn(),
      TextColumn('{task.fields[values]}', markup=False),
      TimeRemainingColumn(),
      console=console(),
    )
    self.bar = self.progress.add_task('training', total=steps, completed=start, values='compiling')
    self.lively = self.progress.console.is_terminal

  def __enter__(self):
    if self.lively:
      self.progress.start()
    return self

  def __exit__(self, *error):
    self.progress.stop()

  def update(self, step: int, values: Mapping[str, float]) -> None:
    """Shows the state after `step`."""
    shown = f'{values["loss"]:.3f} {self.unit}, {values["tokens_per_second"]:,.0f} tokens/s'
    self.progress.update(self.bar, completed=step, values=shown)
    if not self.lively:
      total = self.progress.tasks[0].total
      spent = time.monotonic() - self.begun
      self.say(f'step {step:>6}/{total:.0f}  {shown}  {spent:.0f} s')

  def say(self, line: str) -> None:
    """Prints a line above the bar."""
    self.progress.console.print(line, soft_wrap=True)
