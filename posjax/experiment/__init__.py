"""Experiments with posjax: tasks, models, data and training.

`posjax.experiment.load(workdir)` returns a trained model, the schemes of its layers with their
parameters, and its config.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from posjax.experiment.loading import load as load


def __getattr__(name: str) -> Any:
  """`load` is imported when it is asked for: with it come Flax, Orbax and all models."""
  if name != 'load':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    from posjax.experiment.loading import load
  except ModuleNotFoundError as error:
    missing = (error.name or 'posjax').partition('.')[0]
    if missing == 'posjax':
      raise
    raise ImportError(
      f'posjax.experiment.load needs {missing}, which is not installed: '
      "pip install 'posjax[train]'."
    ) from error
  return load
