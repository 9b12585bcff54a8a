"""Relative effective context lengths of trained language models: how far back each one gains.

  python -m posjax.experiment.tasks.language_modelling.recl runs/xl runs/shaw --lengths=64,128,256

The folders are of train.py, with one text and a `task.memory`: each length is what a token sees in
a layer, by default those of the first config. Models are compared as one group, over the hardest
tokens and over all of them, as in table 8 of Dai et al. 2019, https://arxiv.org/abs/1901.02860.
`--allow-imports` imports schemes of your own, as `posjax.experiment.ask` does.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from absl import logging
from rich.console import Console
from rich.table import Table

from posjax.experiment import sharding, trained
from posjax.experiment.evaluation import predictions
from posjax.experiment.run import make_task
from posjax.experiment.tasks.language_modelling.effective_context import (
  relative_effective_context_length,
)
from posjax.foreign import imports

SHARES = (0.1, 0.5, 1.0)  # of the tokens, the hardest: those of the paper


def lengths_of(
  workdirs: Sequence[str],
  lengths: Sequence[int] = (),
  shares: Sequence[float] = SHARES,
  *,
  allow_imports: bool = False,
) -> dict[float, dict[str, int]]:
  """The relative effective context length of each folder's model, by share of the tokens.

  Args:
    workdirs: folders of train.py, two or more, whose models are judged by the same tokens.
    lengths: what a token sees in a layer, itself included; none: those of the first config.
    shares: as in `relative_effective_context_length`.
    allow_imports: as of `posjax.experiment.load`.

  Raises:
    FileNotFoundError: if a folder holds no run, or no checkpoint yet.
    ValueError: if there are fewer than two different folders, a model has no memory, or they are
      not judged by the same tokens at the same lengths; or as `posjax.experiment.load`.
  """
  if len(set(workdirs)) != len(workdirs) or len(workdirs) < 2:
    raise ValueError(f'Two or more different folders are compared, but got {list(workdirs)}.')
  group, tokens = {}, {}
  for workdir in workdirs:
    with imports(allowed=allow_imports):
      group[workdir], tokens[workdir] = losses(Path(workdir), lengths)
    lengths = lengths or tuple(group[workdir])
    first = tokens[workdirs[0]]
    if not np.array_equal(first, tokens[workdir]):
      raise ValueError(f'{workdir} is not judged by the same tokens as {workdirs[0]}.')
  return {share: relative_effective_context_length(group, share) for share in shares}


def losses(workdir: Path, lengths: Sequence[int]) -> tuple[dict[int, np.ndarray], np.ndarray]:
  """By length, nats of each token [N]; and the tokens.

  Raises:
    FileNotFoundError: as `lengths_of`.
    ValueError: if the model has no memory, or a length is none.
  """
  config = trained.read_config(workdir)
  if not config.task.get('memory'):
    raise ValueError(
      f'{workdir}: a context length is that of a memory, so task.memory must be set.'
    )
  if lengths:
    config.task.eval_lengths = tuple(lengths)
  task, mesh = make_task(config, workdir), sharding.make_mesh()
  graph, state = trained.restore(workdir, config, task)
  found, tokens = {}, np.zeros(0)
  for evaluation in task.evaluations:
    arrays = [each for _, each in predictions(evaluation, graph, state, mesh, jax.random.key(0))]
    counts = [each['weights'] > 0 for each in arrays]
    pick = lambda name, arrays=arrays, counts=counts: np.concatenate(
      [each[name][count] for each, count in zip(arrays, counts, strict=True)]
    )
    found[evaluation.length], tokens = pick('loss').astype(np.float64), pick('targets')
  return found, tokens


def show(found: Mapping[float, Mapping[str, int]]) -> None:
  """A table, one line for each model."""
  table = Table(title='Relative effective context length, tokens')
  table.add_column('model')
  for share in found:
    table.add_column('all tokens' if share == 1 else f'hardest {share:.0%}', justify='right')
  for workdir in next(iter(found.values())):
    table.add_row(workdir, *(str(each[workdir]) for each in found.values()))
  Console(width=None if sys.stdout.isatty() else 160).print(table)


def _plain_numbers(text: str) -> tuple[int, ...]:
  try:
    return tuple(int(number) for number in text.split(','))
  except ValueError:
    what = f'should be whole numbers with commas between, but got {text!r}'
    raise argparse.ArgumentTypeError(what) from None


def main() -> None:
  """The command line."""
  parser = argparse.ArgumentParser('recl', description='How far back trained models gain.')
  parser.add_argument('workdirs', nargs='+', help='folders of the runs')
  parser.add_argument('--lengths', type=_plain_numbers, default=(), help='as 64,128,192')
  parser.add_argument(
    '--allow-imports', action='store_true', help='imports the modules that the folders name'
  )
  given = parser.parse_args()
  logging.set_verbosity(logging.ERROR)  # orbax says at length that it only reads
  try:
    show(lengths_of(given.workdirs, given.lengths, allow_imports=given.allow_imports))
  except (ValueError, TypeError, OSError, ImportError) as error:
    sys.exit(f'recl: error: {error}')


if __name__ == '__main__':
  main()
