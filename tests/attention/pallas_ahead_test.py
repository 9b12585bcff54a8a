"""Every fused kernel, compiled for a TPU v5e and for an H100, on a machine without them.

What they compute is in `pallas_fused_test`. `pytest -m slow -s` prints what each kernel uses.
"""

import subprocess
import sys

import pytest

from tests.attention import ahead


@pytest.mark.slow
@pytest.mark.parametrize('target', ['tpu', 'cuda'])
@pytest.mark.parametrize('what', ['kernels', 'schemes'])
def test_it_compiles_for(target, what, tmp_path):
  missing = ahead.missing(target)
  if missing:
    pytest.skip(f'the compiler for {target} needs {" and ".join(missing)}')
  done = subprocess.run(
    [sys.executable, '-m', 'tests.attention.ahead', target, what, str(tmp_path)],
    env=ahead.environment(target, tmp_path), capture_output=True, text=True, check=False,
  )  # fmt: skip
  print(done.stdout)
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.count('\n  d_table: ') >= 2, 'no kernel was found in what was compiled'
