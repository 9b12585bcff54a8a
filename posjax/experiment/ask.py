"""Asks a trained model: a continuation, a label or an answer, as its task has it.

  python -m posjax.experiment.ask --workdir=runs/text8-rope 'the history of ' 'in the year '
  python -m posjax.experiment.ask --workdir=runs/labels < texts.txt > labels.txt
  python -m posjax.experiment.ask --workdir=runs/text8-rope - < several_lines.txt
  python -m posjax.experiment.ask --workdir=runs/labels --plot=labels.png 'what a film'

Texts are arguments, or the lines of the standard input, which are answered in batches; `-` takes
the whole standard input as one text. A terminal shows styled answers, a pipe or a file gets plain
ones, and `--plot` draws the pictures that a task has. Where several arguments have answers of more
than one line, a line with the text stands above each. The work folder is one of train.py: its
config, its vocabulary and the checkpoint that `config.checkpoint` names are used. A scheme or task
of your own, which a config names by its module, is imported with `--allow-imports` alone, since
that runs its code, and a work folder may come from somebody else.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
from absl import logging
from flax import nnx
from jax.errors import JaxRuntimeError
from ml_collections import ConfigDict
from rich.console import Console

from posjax.experiment import plain, trained
from posjax.experiment.plain import in_picture
from posjax.experiment.run import make_task
from posjax.experiment.task import Answer, Ask, get_task
from posjax.foreign import imports
from posjax.keys import Seed, check_value, keys_of

TITLE = 60  # letters of a text above its picture, at most
ROWS = 64  # texts in a batch, unless the standard input is a terminal


class Trained(NamedTuple):
  """A trained model that can be asked."""

  asked: Ask
  model: nnx.Module


def load(workdir: str | Path, *, length: int | None = None, allow_imports: bool = False) -> Trained:
  """The last model of a work folder.

  Args:
    workdir: a folder of train.py, which may still be training.
    length: tokens to say, for tasks that have a `sample_length`; by default that one.
    allow_imports: as of `posjax.experiment.load`.

  Raises:
    FileNotFoundError: if there is no run in the folder, or no checkpoint yet.
    ValueError: if the task cannot be asked, a number is out of range, the data are not those of the
      run, the checkpoint is of another model than the folder's config, or that names a module to
      import.
  """
  workdir = Path(workdir)
  with imports(allowed=allow_imports):
    config = trained.read_config(workdir)
    if length is not None:
      _set_length(config, length)
    task = make_task(config, workdir)
    trained.check_data(task, workdir)
    if task.ask is None:
      raise ValueError(f'{workdir}: this model of the task {config.task.name} cannot be asked.')
    return Trained(task.ask, nnx.merge(*trained.restore(workdir, config, task)))


def ask(
  workdir: str | Path,
  texts: Sequence[str],
  *,
  seed: int = 0,
  length: int | None = None,
  allow_imports: bool = False,
) -> list[Answer]:
  """Asks the model of a work folder about texts, all of them in one batch.

  Args:
    workdir: as of `load`.
    texts: what to continue, to label or to answer, as the task takes it.
    seed: of what is sampled, and of random ids.
    length: as of `load`.
    allow_imports: as of `posjax.experiment.load`.

  Raises:
    FileNotFoundError: as `load`.
    ValueError: as `load`, or if there is no text, or one cannot be read.
  """
  check_value('seed', Seed, seed)
  asked, model = load(workdir, length=length, allow_imports=allow_imports)
  _check(texts, asked.empty)
  return asked.answer(model, texts, jax.random.key(seed))


def _check(texts: Sequence[str], empty: bool) -> None:
  if not texts or not (empty or all(texts)):
    raise ValueError('A text to ask is empty.' if texts else 'There is no text to ask.')
  for text in texts:
    check_value('A text to ask', str, text)


def _set_length(config: ConfigDict, length: int) -> None:
  if 'sample_length' not in config.task:
    raise ValueError(f'The task {config.task.name} says as much as it has to: it takes no length.')
  keys = keys_of(get_task(config.task.name)).known
  check_value('length', keys['sample_length'].hint, length)
  config.task.sample_length = length


def batches(texts: Sequence[str], entered: Any, empty: bool = False) -> Iterator[list[str]]:
  """The texts of a command: its arguments, the whole standard input for '-', or its lines.

  Raises:
    ValueError: if a text is empty and has no answer, or there is none.
  """
  try:
    yield from _entered(texts, entered, empty)
  except UnicodeDecodeError as error:
    raise ValueError(
      f'The standard input must be text in {error.encoding}, but it holds the byte '
      f'0x{error.object[error.start]:02x}.'
    ) from error


def _entered(texts: Sequence[str], entered: Any, empty: bool) -> Iterator[list[str]]:
  if texts == ['-']:
    texts = [entered.read().removesuffix('\n')]
  if texts:
    _check(texts, empty)
    yield list(texts)
    return
  rows, read = 1 if entered.isatty() else ROWS, 0
  lines = (line.removesuffix('\n') for line in entered)
  while batch := list(itertools.islice(lines, rows)):
    if not (empty or all(batch)):
      raise ValueError(f'Line {read + batch.index("") + 1} of the standard input is empty.')
    _check(batch, empty)
    yield batch
    read += len(batch)
  if not read:
    raise ValueError('There is no text to ask.')


def answers(one: Trained, groups: Iterator[list[str]], seed: int) -> Iterator[tuple[str, Answer]]:
  """Each text of some batches with its answer; each batch draws numbers of its own."""
  key = jax.random.key(seed)
  for i, texts in enumerate(groups):
    # The first batch draws as `ask` and the end of a run do.
    found = one.asked.answer(one.model, texts, jax.random.fold_in(key, i) if i else key)
    yield from zip(texts, found, strict=True)


def show(answer: Answer, console: Console) -> None:
  """Prints an answer: styled in a terminal, plain elsewhere."""
  if console.is_terminal and answer.styled is not None:
    console.print(answer.styled, soft_wrap=True)
  else:
    print(answer.plain, flush=True)


def separated(found: Sequence[tuple[str, Answer]]) -> Iterator[tuple[str, Answer]]:
  """Answers with the line to print above each; '' where each is one line itself."""
  many = len(found) > 1 and any('\n' in answer.plain for _, answer in found)
  for i, (text, answer) in enumerate(found):
    yield ('\n' * (i > 0) + f'==> {text!r} <==' if many else ''), answer


def draw(path: str | Path, found: Sequence[tuple[str, Answer]]) -> None:
  """Draws the pictures of answers into one file, a row for each answer.

  Raises:
    ValueError: if they have no pictures, or there is no such format.
  """
  from matplotlib.figure import Figure

  drawn = [(text, answer) for text, answer in found if answer.pictures]
  if not drawn:
    raise ValueError('--plot needs a task whose answers have pictures, but these have none.')
  most = max(len(answer.pictures) for _, answer in drawn)
  figure = Figure(figsize=(6 * most, 4 * len(drawn)), layout='constrained')
  parts = figure.subfigures(len(drawn), most, squeeze=False)
  for (text, answer), row in zip(drawn, parts, strict=True):
    for part, (name, picture) in zip(row, answer.pictures.items(), strict=False):
      part.suptitle(in_picture(f'{name}: {text[:TITLE]}'))
      picture(part)
  figure.savefig(path, dpi=120)


class OneLine(argparse.ArgumentParser):
  """A parser whose errors are one line."""

  def error(self, message: str) -> NoReturn:
    """Ends the program."""
    self.exit(2, f'{self.prog}: error: {message} (--help says more).\n')


def main() -> None:
  """The command line."""
  parser = OneLine('ask', description='Asks a model that train.py has trained.')
  parser.add_argument('--workdir', required=True, help='folder of the run')
  parser.add_argument('--length', type=int, help="tokens to say; by default the config's")
  parser.add_argument('--seed', type=int, default=0, help='of what is sampled')
  parser.add_argument(
    '--allow-imports', action='store_true', help='imports the modules that the folder names'
  )
  parser.add_argument('--plot', metavar='FILE', help='draws the pictures of the answers')
  parser.add_argument(
    'text',
    nargs='*',
    help="what to ask; none asks each line of the standard input, '-' all of it as one text",
  )
  given = parser.parse_args()
  logging.set_verbosity(logging.ERROR)  # orbax says at length that it only reads
  try:
    check_value('--seed', Seed, given.seed)
    one = load(given.workdir, length=given.length, allow_imports=given.allow_imports)
    console, found = plain.console(), []
    groups = batches(given.text, sys.stdin, one.asked.empty)
    if given.text:
      found = list(answers(one, groups, given.seed))
      for above, answer in separated(found):
        if above:
          print(above)
        show(answer, console)
    else:  # a line of the standard input has a line of its own, as soon as there is one
      for text, answer in answers(one, groups, given.seed):
        show(answer, console)
        if given.plot:
          found.append((text, answer))
    if given.plot:
      draw(given.plot, found)
  except KeyboardInterrupt:
    sys.exit(130)
  except (ValueError, TypeError, OSError, ImportError, MemoryError, JaxRuntimeError) as error:
    sys.exit(f'ask: error: {plain.sentence(error)}')


if __name__ == '__main__':
  main()
