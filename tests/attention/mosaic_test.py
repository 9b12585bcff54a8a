"""The Mosaic kernels, interpreted on a CPU: what they give is the reference's, and nothing races.

JAX interprets them since 0.11.2, for which Python 3.12 is needed. `.ci/run` runs this file in a
second environment where it finds one.
"""

import json
import os
import subprocess
import sys

import jax
import pytest

from tests.attention import mosaic

# Weights, outputs and cotangents are rounded to 8 bits on their way: each by 2^-8 at most. In the
# gradient of a bias, the rounding of a query's output counts once for each of its keys.
ROUNDED, ROUNDED_FOR_EACH_KEY = 3 * 2**-8, 6 * 2**-8
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(jax.__version_info__ < (0, 11, 2), reason='needs jax 0.11.2'),
]


@pytest.fixture(scope='module')
def printed(tmp_path_factory):
  """What the process prints, in whose last case a race is planted."""
  path = tmp_path_factory.mktemp('mosaic') / 'printed.txt'
  environment = {**os.environ, **mosaic.ENVIRONMENT}
  with path.open('w') as file:
    command = [sys.executable, '-m', 'tests.attention.mosaic']
    subprocess.run(command, env=environment, stdout=file, timeout=1200, check=True)
  return path.read_text()


@pytest.fixture(scope='module')
def errors(printed):
  lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{')]
  return {line['case']: line['errors'] for line in lines}


@pytest.mark.parametrize('case', mosaic.CASES)
def test_values_and_all_gradients_are_the_references(case, errors):
  kernels, dense = errors[case]
  for error, rounding in zip(kernels[:4], dense[:4], strict=True):
    assert error <= max(ROUNDED, 2 * rounding)
  assert max(kernels[4:], default=0) <= ROUNDED_FOR_EACH_KEY


def test_no_warpgroup_reads_or_writes_what_another_writes(printed):
  end = printed.index('"case": "other lengths and widths"')
  assert 'RACE DETECTED' not in printed[:end]
  assert 'RACE DETECTED' in printed[end:]
