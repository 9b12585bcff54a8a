"""Grids and results that no run made, for tests of what is said of them."""

from configs import default
from posjax.experiment.compare.grid import cells
from posjax.experiment.compare.summary import Rules

RULES = Rules('answers', learned_accuracy=0.9, learned_share=0.5)


def grid(schemes, seeds, axes=()):
  return cells(default.get_config(), schemes, axes, seeds)


def result(qualities, exact=True, untrained=8.0, answers=1000, why=''):
  """A line of results.jsonl: quality at lengths 8, 16, 32, ...; None where there is none."""
  scores = [
    {
      'length': 8 * 2**i,
      'loss': None if value is None else 1.0 if exact else value,
      'accuracy': None if value is None else value / 100 if exact else 0.5,
      'token_accuracy': None if value is None or not exact else 0.5 + value / 200,
      'answers': answers,
      'why': why if value is None else '',
    }
    for i, value in enumerate(qualities)
  ]
  return {
    'facts': {'data': 'made up'},
    'exact': exact,
    'unit': 'nats per answer token' if exact else 'bits per byte',
    'untrained': None if exact else untrained,
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
