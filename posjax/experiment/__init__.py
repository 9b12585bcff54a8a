"""Experiments with posjax: tasks, models, data and training.

`posjax.experiment.load(workdir)` returns a trained model, the schemes of its layers with their
parameters, its config and its task. `posjax.experiment.terms` says of its logits what share comes
from content and what from positions.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from posjax.experiment.loading import load as load
  from posjax.experiment.logit_terms import terms as terms

_HOMES = {'load': 'posjax.experiment.loading', 'terms': 'posjax.experiment.logit_terms'}


def __getattr__(name: str) -> Any:
  """They are imported when they are asked for: with them come Flax, Orbax and all models."""
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    return getattr(importlib.import_module(_HOMES[name]), name)
  except ModuleNotFoundError as error:
    missing = (error.name or 'posjax').partition('.')[0]
    if missing == 'posjax':
      raise
    raise ImportError(
      f'posjax.experiment.{name} needs {missing}, which is not installed: '
      "pip install 'posjax[train]'."
    ) from error
