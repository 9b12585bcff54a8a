"""Every fused kernel, compiled for TPUs and for GPUs, on a machine without them.

What they compute is in `pallas_fused_test`. `pytest -m slow -s` prints what each kernel uses.
"""

import ast
import re
import subprocess
import sys

import jax
import pytest

from tests.attention import ahead


@pytest.mark.slow
@pytest.mark.parametrize('target', [*ahead.TPUS, 'hopper', 'ampere', 'ada', 'mosaic'])
@pytest.mark.parametrize('what', ['kernels', 'schemes'])
def test_it_compiles_for(target, what, tmp_path):
  missing = ahead.missing(target)
  if missing:
    pytest.skip(f'the compiler for {target} needs {" and ".join(missing)}')
  if target == 'mosaic' and jax.__version_info__ < (0, 11, 2):
    pytest.skip('Mosaic needs jax 0.11.2')
  done = subprocess.run(
    [sys.executable, '-m', 'tests.attention.ahead', target, what, str(tmp_path)],
    env=ahead.environment(target, tmp_path), capture_output=True, text=True, check=False,
  )  # fmt: skip
  print(done.stdout)
  assert done.returncode == 0, done.stderr[-3000:]
  if target == 'mosaic':
    used = re.findall(
      r'(\d+) KiB of shared memory, (\d+) registers, (\d+) bytes spilled', done.stdout
    )
    assert len(used) >= 4, 'no kernel was found in what was compiled'
    assert max(int(shared) for shared, _, _ in used) <= 227
    assert {(registers, spilled) for _, registers, spilled in used} == {('168', '0')}
  else:
    assert done.stdout.count('\n  d_table: ') >= 2, 'no kernel was found in what was compiled'


@pytest.mark.slow
@pytest.mark.parametrize('target', ['v5e', 'hopper'])
def test_a_ring_of_eight_compiles_with_memory_linear_in_the_tokens_of_a_device(target, tmp_path):
  """With all gradients and a learned bias; in kernels on GPUs. What it prints is for eyes."""
  if missing := ahead.missing(target):
    pytest.skip(f'the compiler for {target} needs {" and ".join(missing)}')
  memory = []
  for tokens in (65536, 131072):
    asked = 'around', str(tmp_path), 'ring', 't5', str(tokens)
    done = subprocess.run(
      [sys.executable, '-m', 'tests.attention.ahead', target, *asked],
      env=ahead.environment(target, tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = ast.literal_eval(done.stdout)
    print(
      f'{target}, {tokens:,} tokens: {found["memory"] / 2**20:,.1f} MiB on each device, {found}'
    )
    assert (found['all-gather'], found['all-to-all'], found['reduce-scatter']) == (0, 0, 0)
    assert found['all-reduce'] == 1  # of the cotangent of the parameters
    assert found['collective-permute'] > 0
    assert (found['kernels'] > 0) == (target == 'hopper')
    memory.append(found['memory'])
  assert memory[1] <= 2.1 * memory[0]


@pytest.mark.slow
def test_under_a_mesh_no_device_gathers_the_rows_of_others(tmp_path):
  """Alone, the kernels would: XLA cannot cut them, so that they are not chosen there."""
  if missing := ahead.missing('hopper'):
    pytest.skip(f'the compiler needs {" and ".join(missing)}')
  done = subprocess.run(
    [sys.executable, '-m', 'tests.attention.ahead', 'hopper', 'mesh', str(tmp_path)],
    env=ahead.environment('hopper', tmp_path), capture_output=True, text=True, check=True,
  )  # fmt: skip
  found = ast.literal_eval(done.stdout)
  assert (found['chosen'], found['in shard_map']) == (0, 0)
  assert found['alone'] > 0
