"""Whole training steps, compiled for eight chips of a TPU or of GPUs, on a machine without them."""

import ast
import subprocess
import sys

import pytest

from tests.attention import ahead
from tests.experiment import step_ahead

# Collectives of a step on 8 H100 by mesh (data, fsdp, tensor, context): a decoder of 4 layers of
# width 1,024 with T5's bias, compiled by jax 0.11.2.
COUNTS = {
  (8, 1, 1, 1): {'all-reduce': 12},
  (1, 8, 1, 1): {'all-gather': 10, 'all-reduce': 10, 'reduce-scatter': 6, 'all-to-all': 1},
  (2, 4, 1, 1): {'all-gather': 10, 'all-reduce': 17, 'reduce-scatter': 5, 'all-to-all': 2},
  (4, 1, 2, 1): {'all-reduce': 37},
  (1, 4, 2, 1): {
    'all-gather': 13,
    'all-reduce': 36,
    'reduce-scatter': 5,
    'collective-permute': 3,
    'all-to-all': 1,
  },
  (1, 1, 1, 8): {'all-gather': 1, 'all-reduce': 12, 'collective-permute': 232},
  (2, 1, 1, 4): {'all-gather': 1, 'all-reduce': 12, 'collective-permute': 140},
  (1, 2, 1, 4): {
    'all-gather': 11,
    'all-reduce': 17,
    'reduce-scatter': 5,
    'collective-permute': 140,
    'all-to-all': 2,
  },
  (2, 1, 2, 2): {'all-reduce': 38, 'collective-permute': 41},
}


def compiled(target, mesh, tokens, folder):
  if missing := ahead.missing(target):
    pytest.skip(f'the compiler for {target} needs {" and ".join(missing)}')
  asked = target, str(folder), ','.join(map(str, mesh)), str(tokens)
  done = subprocess.run(
    [sys.executable, '-m', 'tests.experiment.step_ahead', *asked],
    env=ahead.environment(target, folder), capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  found = ast.literal_eval(done.stdout)
  print(target, mesh, f'{tokens:,} tokens:', f'{found["temporary"] / 2**20:,.0f} MiB', found)
  return found


@pytest.mark.slow
@pytest.mark.parametrize('target', ['v5e', 'hopper'])
def test_a_step_with_ring_attention_has_memory_linear_in_the_tokens_of_a_device(target, tmp_path):
  """A row of 65,536 tokens, and one of twice as many. What it prints is for eyes."""
  short, long = (compiled(target, (1, 1, 1, 8), n, tmp_path) for n in (65536, 131072))
  assert long['temporary'] <= 2.1 * short['temporary']
  assert short['collectives'].keys() == {'all-gather', 'all-reduce', 'collective-permute'}
  assert (short['kernels'] > 0) == (target == 'hopper')


@pytest.mark.slow
@pytest.mark.parametrize('mesh', COUNTS)
def test_each_mesh_has_the_collectives_that_are_expected(mesh, tmp_path):
  found = compiled('hopper', mesh, 65536 if mesh[3] > 1 else 8192, tmp_path)
  assert {kind: count for kind, (count, _) in found['collectives'].items()} == COUNTS[mesh]
  assert (found['kernels'] > 0) == (mesh[2] == 1)


def test_collectives_are_counted_as_often_as_their_loop_turns():
  program = """
%body (x: f32[2,3]) -> f32[2,3] {
  %a = f32[2,3]{1,0} all-reduce(%x), to_apply=%sum
  %b = (f32[2,3], f32[4,3]) all-gather-start(%a), dimensions={0}
  %c = f32[4,3]{1,0} all-gather-done(%b)
  %d = ((f32[5]{0}, f32[2]{0}), (f32[5]{0}, f32[2]{0})) all-reduce-start(%c, %c)
}

ENTRY %main (x: f32[2,3]) -> f32[2,3] {
  %w = f32[2,3] while(%x), body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %d = bf16[8]{0} collective-permute(%w), source_target_pairs={{0,1}}
}
"""
  assert step_ahead.collectives(program) == {
    'all-reduce': (10, 5 * (24 + 28)),
    'all-gather': (5, 5 * 48),
    'collective-permute': (1, 16),
  }
