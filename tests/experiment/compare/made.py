"""Grids and results that no run made, for tests of what is said of them."""

from configs import default
from posjax.experiment.compare.grid import cells
from posjax.experiment.compare.summary import Rules

RULES = Rules('', '', learned=0.9, margin=0.0)
LOSS = RULES._replace(learned=0.5)


def grid(schemes, seeds, axes=()):
  return cells(default.get_config(), schemes, axes, seeds)


def result(qualities, exact=True, constant=8.0, answers=1000, why=''):
  """A line of results.jsonl: quality at lengths 8, 16, 32, ...; None where there is none."""
  share = {'higher': True, 'best': 1.0, 'scale': 100.0}
  loss = {'unit': 'bits per byte', 'higher': False, 'best': None, 'scale': 1.0}
  metrics = {'loss': loss}
  if exact:
    metrics = {
      'accuracy': {'unit': '% of answers right', **share},
      'token_accuracy': {'unit': '% of tokens right', **share},
      'loss': {**loss, 'unit': 'nats per answer token'},
    }
  scores, evaluations = {}, {}
  for i, value in enumerate(qualities):
    name, numbers = f'length {8 * 2**i}', {'loss': value}
    if exact:
      known = value is not None
      numbers = {
        'accuracy': value / 100 if known else None,
        'token_accuracy': 0.5 + value / 200 if known else None,
        'loss': 1.0 if known else None,
      }
    words = why if value is None else ''
    best = {'constant': {'loss': constant}}
    scores[name] = {**numbers, 'counted': answers, 'why': words, **best}
    role = 'unseen' if i else 'trained'
    evaluations[name] = {'role': role, 'length': 8 * 2**i, 'metrics': metrics}
  return {
    'facts': {'data': 'made up'},
    'unit': metrics['loss']['unit'],
    'evaluations': evaluations,
    'scores': scores,
    'curve': [[10, 2.0], [20, 1.0]],
    'held_out': [],
    'parameters': 1000,
    'step_bytes': 5_000_000,
    'tokens_per_second': 1234.0,
    'seconds': 3.0,
    'device': 'cpu',
    'versions': {'posjax': '0', 'jax': '0'},
  }


def with_training_rows(line, accuracy):
  """The line, with an evaluation of the training rows."""
  metrics = {'accuracy': line['evaluations']['length 8']['metrics']['accuracy']}
  rows = {'role': 'training rows', 'length': None, 'metrics': metrics}
  score = {'accuracy': accuracy, 'counted': 100, 'why': ''}
  return {
    **line,
    'evaluations': {**line['evaluations'], 'training texts': rows},
    'scores': {**line['scores'], 'training texts': score},
  }
