"""Where the tests find the repository and the arrays of the authors' code."""

from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]  # of the repository
GOLDEN = ROOT / 'tests' / 'golden'


def load_golden(name):
  """The arrays of `tests/golden/<name>.npz` by their names."""
  return np.load(GOLDEN / f'{name}.npz')
