"""Trees from files of brackets: `file:PATH`."""

from posjax.experiment.data import corpus
from posjax.experiment.data.expression import path_of
from posjax.experiment.tasks.parsing import tree
from posjax.experiment.tasks.parsing.tree import Tree

Placed = tuple[Tree, str]  # a tree, and where it begins


def read(place: str, held_out: str | None) -> tuple[list[Placed], list[Placed]]:
  """Reads a file of training trees, or a folder that may have held-out ones, too.

  Args:
    place: a file, or a folder with one file named `train.` and perhaps one named `dev.`, `val.`,
      `valid.` or `validation.`, with any ending; `~` is the home folder.
    held_out: the file of held-out trees; None for the one that the folder may have.

  Returns:
    Training trees and held-out ones, perhaps none.

  Raises:
    ValueError: a tree is none (`tree.read`); a line is no UTF-8; two files of the folder have such
      a name; or the held-out file is the training one, or holds no tree.
    FileNotFoundError: there is no such file.
  """
  train, judged = corpus.paths(place, 'train.trees')
  if held_out is not None:
    judged = path_of(held_out)
    if not judged.is_file():
      raise FileNotFoundError(f'held_out should be a file of trees, but none is at {judged}.')
    if judged.resolve() == train.resolve():
      raise ValueError(f'held_out should be another file than {train}, which is learned from.')
  every = lambda path: tree.read(corpus.lines(path))
  return every(train), [] if judged is None else corpus.check_held_out(judged, every(judged))
