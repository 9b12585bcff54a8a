"""The record of a run while it goes: metrics.jsonl, TensorBoard events, and a progress bar."""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from posjax.experiment.plain import console
from posjax.experiment.workdir import METRICS

Row = dict[str, Any]


class Record:
  """Appends rows to metrics.jsonl and to TensorBoard; a resumed run drops rows past its step."""

  def __init__(
    self,
    workdir: Path,
    step: int,
    writes: bool = True,
    check: Callable[[], None] = lambda: None,
  ):
    self.path, self.board, self.check = workdir / METRICS, None, check
    if writes:
      kept = [row for row in read(self.path) if row['step'] <= step]
      partial = self.path.with_name(self.path.name + '.partial')
      partial.write_text(''.join(json.dumps(row) + '\n' for row in kept))
      os.replace(partial, self.path)
      self.board = Board(workdir / 'tensorboard', step + 1)

  def write(self, step: int, **values: float) -> None:
    """One row: the step, and numbers by name. A number that is not finite becomes null."""
    if self.board is None:
      return
    self.check()
    clean = {name: value if math.isfinite(value) else None for name, value in values.items()}
    append(self.path, {'step': step, **clean})
    self.board.write(step, {name: value for name, value in clean.items() if value is not None})

  def __enter__(self):
    return self

  def __exit__(self, kind, *error):
    if self.board is None:
      return
    with contextlib.suppress(OSError) if kind else contextlib.nullcontext():
      self.board.close()
      handle = os.open(self.path, os.O_RDONLY)
      try:
        os.fsync(handle)
      finally:
        os.close(handle)


class Board:
  """Events for TensorBoard, written at once: an error of the disk is raised where it happens.

  (tensorboardX's own writer has a thread that dies of such an error, and callers that then wait for
  it without end.)
  """

  def __init__(self, folder: Path, first: int):
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto import event_pb2
    from tensorboardX.summary import scalar

    folder.mkdir(exist_ok=True)
    proto: Any = event_pb2  # whose classes are made when it is imported
    self.event, self.scalar = proto.Event, scalar
    self.writer = EventsWriter(str(folder / 'events'))
    start = proto.SessionLog(status=proto.SessionLog.START)
    for marked in ({'file_version': 'brain.Event:2'}, {'session_log': start}):
      self.writer.write_event(self.event(step=first, **marked))

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Numbers by name, at a step."""
    for name, value in values.items():
      # TensorBoard's names have no spaces, and tensorboardX would log a warning at each.
      summary = self.scalar(re.sub(r'[^-/\w.]', '_', name), value)
      self.writer.write_event(self.event(wall_time=time.time(), step=step, summary=summary))
    self.writer.flush()

  def close(self) -> None:
    """Ends the file."""
    self.writer.close()


def append(path: Path, row: Mapping[str, Any], durable: bool = False) -> None:
  """Adds a line of JSON. Only one process may write.

  Raises:
    OSError: if it cannot be written; the file is then as it was.
  """
  line = (json.dumps(row) + '\n').encode()
  handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    whole = _whole(handle)
    os.ftruncate(handle, whole)
    try:
      os.lseek(handle, whole, os.SEEK_SET)
      _write(handle, line)
      if durable:
        os.fsync(handle)
    except OSError:
      os.ftruncate(handle, whole)
      raise
  finally:
    os.close(handle)


def _write(handle: int, line: bytes) -> None:
  while line:
    line = line[os.write(handle, line) :]


def _whole(handle: int) -> int:
  """The size of a file up to the end of its last whole line."""
  size = os.fstat(handle).st_size
  tail = b''
  at = size
  while at > 0 and b'\n' not in tail:
    at = max(0, at - 65536)
    tail = os.pread(handle, size - at, at)
  return at + tail.rfind(b'\n') + 1


def read(path: Path) -> list[Row]:
  """The whole rows of a metrics file; a last line that a kill cut short is left out."""
  if not path.exists():
    return []
  lines = path.read_bytes().split(b'\n')[:-1]
  return [_row(path, number, line) for number, line in enumerate(lines, start=1)]


def _row(path: Path, number: int, line: bytes) -> Row:
  row = None
  with contextlib.suppress(ValueError, RecursionError):
    row = json.loads(line)
  if isinstance(row, dict) and type(row.get('step')) is int and all(map(_is_number, row.values())):
    return row
  raise ValueError(
    f'{path}, line {number}, should be the losses after a step as JSON, but is '
    f'{line[:40].decode(errors="replace")!r}: mend the line, or take it out.'
  )


def _is_number(value: Any) -> bool:
  return value is None or type(value) in (int, float)


def lost_rows(rows: Sequence[Row], step: int, log_every: int) -> str:
  """A sentence about rows that should be there and are not, or are there in vain; '' if none is."""
  last = max((row['step'] for row in rows), default=0)
  if not step:
    again = 'there is no checkpoint to go on from, so training begins again at step 1'
    return f'{again}, and the rows of {METRICS} are written anew' if rows else ''
  if last < step // log_every * log_every:
    there = f'ends after step {last}' if rows else 'holds no row, or was taken away'
    return (
      f'{METRICS} {there}, while the checkpoint is one after step {step}: the losses in between '
      'are lost, and the curves of the report lack them'
    )
  return ''


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
