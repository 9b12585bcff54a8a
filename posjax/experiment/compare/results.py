"""results.jsonl: a line for each cell that ended, and the form of these lines.

A line describes its evaluations, so that it can be read without the task that made it:

  evaluations: by name, `role`, `length` and `metrics`; of each metric `unit`, `higher`, `best` and
    `scale`, as of `posjax.experiment.task.Metric`. The first evaluation is the headline, and so is
    its first metric.
  scores: by evaluation, the number of each metric, `counted` and `why`; where they are known,
    `constant` and `left_out` by metric, as of `posjax.experiment.evaluation.Score`.
  read: hashes of the examples as they were spelled, and of the vocabulary; older lines lack them.
  dtype, attention: as of `posjax.experiment.run.computing`; older lines lack them.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]

_EACH = '*'  # every name of an object
_METRIC: Mapping[str, Any] = {'unit': str, 'higher': bool, 'best': float | None, 'scale': float}
_EVALUATION = {'role': str, 'length': int | None, 'metrics': {_EACH: _METRIC}}
# What a line holds, by name: a type, an object with these names, a list of one form, or a list of
# parts that have a form each.
_FORM: Mapping[str, Any] = {
  'id': str,
  'scheme': str,
  'axes': dict,
  'seed': int,
  'facts': dict,
  'unit': str,
  'evaluations': {_EACH: _EVALUATION},
  'scores': {_EACH: {'counted': int, 'why': str}},
  'curve': [(float, float | None)],
  'parameters': int,
  'step_bytes': int,
  'tokens_per_second': float,
  'seconds': float,
  'device': str,
  'versions': dict,
}


def check(line: Line) -> None:
  """Raises ValueError, with the name, if a line of a run that ended well has another form."""
  _check(_FORM, line, '')
  evaluations, scores = line['evaluations'], line['scores']
  if not evaluations or set(evaluations) != set(scores):
    raise ValueError(
      f'scores must be of the evaluations {", ".join(evaluations) or "(there are none)"}, but are '
      f'of {", ".join(scores) or "none"}'
    )
  for name, each in scores.items():
    if not evaluations[name]['metrics']:
      raise ValueError(f'evaluations/{name}/metrics must have a metric, but has none')
    for metric in each.keys() & evaluations[name]['metrics'].keys():
      _check(float | None, each[metric], f'scores/{name}/{metric}')


def _check(form: Any, value: Any, place: str) -> None:
  """Compares a value with a part of `_FORM`, and each part of it in turn."""
  kind = dict if isinstance(form, dict) else list if isinstance(form, list | tuple) else form
  kind = _NUMBERS.get(kind, kind)
  if not isinstance(value, kind):
    raise ValueError(f'{place} must be {_WORDS[kind]}, but is {_shown(value)}')
  if isinstance(form, dict):
    forms = dict.fromkeys(value, form[_EACH]) if _EACH in form else form
    missing = [name for name in forms if name not in value]
    if missing:
      raise ValueError(f'{place or "it"} must have {missing[0]!r}, but has not')
    for name, part in forms.items():
      _check(part, value[name], f'{place}/{name}'.lstrip('/'))
  elif isinstance(form, list):
    for i, part in enumerate(value):
      _check(form[0], part, f'{place}/{i}')
  elif isinstance(form, tuple):
    if len(value) != len(form):
      raise ValueError(f'{place} must have {len(form)} parts, but has {len(value)}')
    for i, part in enumerate(form):
      _check(part, value[i], f'{place}/{i}')


def _shown(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 40 else f'{text[:40]}..'


# A number of JSON that has no point is whole in Python.
_NUMBERS: Mapping[Any, Any] = {float: int | float, float | None: int | float | None}
_WORDS: Mapping[Any, str] = {
  str: 'a text',
  bool: 'true or false',
  int: 'a whole number',
  int | None: 'a whole number or null',
  int | float: 'a number',
  int | float | None: 'a number or null',
  dict: 'an object',
  list: 'a list',
}


EXAMPLES = 'spelled examples'


def hashes(line: Line) -> dict[str, str]:
  """SHA-256 of what a run has read: of its files, its vocabulary and its examples as spelled.

  Those that a line does not have are left out: a generated task has no files, and lines of older
  versions do not say how their examples are spelled.
  """
  read = line.get('read', {})
  found = {
    'data': line.get('facts', {}).get('sha256'),
    'a vocabulary': read.get('vocabulary'),
    EXAMPLES: read.get('examples'),
  }
  return {name: sha256 for name, sha256 in found.items() if sha256 is not None}


def other_data(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
  """Words on the first hash that is not the expected one; '' where all are."""
  names = [name for name in found if name in expected and expected[name] != found[name]]
  return f'{names[0]} {found[names[0]]}, not {expected[names[0]]}' if names else ''


def judged(line: Line) -> list[str]:
  """The evaluations that enter the means of a comparison, in their order."""
  return [name for name, each in line['evaluations'].items() if each['role'] in _JUDGED]


_JUDGED = ('trained', 'unseen')


def label(line: Line, name: str) -> str:
  """How an evaluation is called above a column: by its length, where it has one."""
  length = line['evaluations'][name]['length']
  return name if length is None else str(length)


def headline(line: Line) -> tuple[str, Mapping[str, Any]]:
  """The first metric of the first evaluation, and its description."""
  first = next(iter(line['evaluations'].values()))
  return next(iter(first['metrics'].items()))


def read(folder: Path) -> dict[str, dict[str, Any]]:
  """The lines of cells that ended, the last one of each; a line that a kill cut short is left out.

  A line of success stays, whatever failed later.

  Raises:
    ValueError: if a whole line is no result.
  """
  found = {}
  for path in sorted(folder.glob('results*.jsonl')):
    for number, line in enumerate(path.read_bytes().split(b'\n')[:-1], start=1):
      row = _row(path, number, line)
      name = row['id']
      if 'error' not in row or 'error' in found.get(name, row):
        found[name] = row
  return found


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
  place = f'{path}, line {number},'
  row = None
  with contextlib.suppress(ValueError, RecursionError):
    row = json.loads(line)
  if not isinstance(row, dict) or not isinstance(row.get('id'), str):
    raise ValueError(
      f'{place} must be the JSON of a run, but is {line[:40].decode(errors="replace")!r}; take the '
      'line out to have it run again.'
    )
  if 'scores' not in row:
    return row
  try:
    check(row)
  except ValueError as error:
    raise ValueError(
      f'{place} cannot be read: {error}; take the line out to have it run again.'
    ) from error
  return row
