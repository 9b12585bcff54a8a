"""A process that runs one cell after another: orders come in by lines, and so do answers go out.

It ends when whoever started it does, however that ended.
"""

import base64
import contextlib
import json
import os
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from posjax.experiment.compare.cell import Refused, remember_programs, run_cell
from posjax.experiment.compare.results import FULL
from posjax.experiment.plain import sentence


def order(config: Any, folder: Path, **options: Any) -> str:
  """An order for a worker, as one line; `options` are those of `run_cell`."""
  value = {'folder': str(folder), 'options': options}
  return json.dumps({**value, 'config': base64.b64encode(pickle.dumps(config)).decode()})


def main(argv: Sequence[str]) -> None:
  """Works until its orders end.

  Args:
    argv: the processors to run on, as '0,1'; '' for all.
  """
  if argv[0] and hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, map(int, argv[0].split(',')))
  logging.set_verbosity(logging.WARNING)  # orbax tells every file otherwise
  answers = os.fdopen(os.dup(1), 'w')
  remember_programs()
  orders = queue.SimpleQueue()
  threading.Thread(target=_listen, args=(orders,), daemon=True).start()
  while True:
    told = json.loads(orders.get())
    config = pickle.loads(base64.b64decode(told['config']))
    answers.write(json.dumps(attempt(config, Path(told['folder']), **told['options'])) + '\n')
    answers.flush()


def _listen(orders: queue.SimpleQueue) -> None:
  for line in sys.stdin:
    orders.put(line)
  os._exit(0)  # nobody is there any more


def attempt(config: Any, folder: Path, **options: Any) -> dict[str, Any]:
  """The row of a cell; or `stopped`; or `error`.

  Beside an error, `full` says whether there was no room, and `refused` whether no step was taken.

  Args:
    config: of the cell.
    folder: of the cell.
    **options: of `run_cell`.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with _said_to(folder / 'log.txt'):
      row = run_cell(config, folder, **options)
  except Exception as error:  # whatever it is, the other cells go on
    refused = isinstance(error, Refused)
    return {'error': sentence(error), 'full': full(error), 'refused': refused}
  return {'stopped': True} if row is None else row


@contextlib.contextmanager
def _said_to(path: Path) -> Generator[None]:
  """Sends everything that is printed within it to a file, by libraries too, and tracebacks."""
  before = [os.dup(1), os.dup(2)]
  handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
  try:
    for number in (1, 2):
      os.dup2(handle, number)
    yield
  except Exception:
    with contextlib.suppress(OSError):
      traceback.print_exc()
    raise
  finally:
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError):
        stream.flush()
    for number, old in zip((1, 2), before, strict=True):
      os.dup2(old, number)
      os.close(old)
    os.close(handle)


def full(error: BaseException | None) -> bool:
  """Whether an error, or one that led to it, is that there is no room on the disk."""
  while error is not None:
    texts = [os.strerror(number) for number in FULL]
    if getattr(error, 'errno', None) in FULL or any(text in str(error) for text in texts):
      return True
    error = error.__cause__ or error.__context__
  return False


if __name__ == '__main__':
  main(sys.argv[1:])
