"""One generator for the tests; `tests/conftest.py` puts it back to its start before each of them.

So what a test draws depends on the test alone, not on which ones its process ran before it.
"""

import numpy as np

DRAW = np.random.default_rng(0)
START = DRAW.bit_generator.state


def start_again():
  """Puts the generator back to its start."""
  DRAW.bit_generator.state = START
