"""On a Hopper GPU or a TPU: what the device computes is what the host's CPU computes by `dense`.

JAX_PLATFORMS=cuda,cpu pytest tests/attention/device_test.py

The fused kernels run with the blocks that users get, over several blocks of queries and of keys.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention.blockwise import engine as blockwise
from posjax.attention.devices import here
from posjax.attention.pallas import fused
from tests.attention.pallas_fused_test import BIASES, CHAINS, TURNS
from tests.attention.small import Case

pytestmark = pytest.mark.skipif(
  fused.target_of(here()) is None, reason='needs a Hopper GPU or a TPU'
)

LINES = ['none', *BIASES, *TURNS, *CHAINS]
TILED = ['shaw', 'fire(threshold=64.0)', 'xpos']
CLOSE = 1e-4  # two ways to sum 700 products in float32 differ by 2e-5; products of 10 bits by 1e-3
ROUNDED = 3 * 2**-8  # weights, outputs and cotangents in bfloat16, each rounded on its way


@pytest.fixture(autouse=True)
def exact_products():
  """Products of float32 arrays are not rounded to 10 bits, as a GPU does by default."""
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture
def alone(monkeypatch):
  """Nothing falls back."""

  def refused(*args):
    raise AssertionError('It was computed block-wise.')

  monkeypatch.setattr(blockwise, 'attend', refused)


def error(case: Case, way: str, **options) -> float:
  """The largest error of the output and of all gradients, each to its own largest number."""
  found = case.answer(way, **options)
  with jax.default_device(jax.devices('cpu')[0]):
    wide = lambda x: jnp.asarray(np.asarray(x), jnp.float32 if _real(x) else x.dtype)
    moved = lambda tree: jax.tree.map(lambda x: wide(x) if isinstance(x, jax.Array) else x, tree)
    exact = object.__new__(Case)
    exact.__dict__.update(moved(vars(case)))
    expected = exact.answer('dense', **moved(options))
  found, expected = ([np.asarray(x, np.float64) for x in xs] for xs in (found, expected))
  most = max(abs(x).max() for x in expected)
  return max(
    abs(one - other).max() / max(abs(other).max(), most / 10)
    for one, other in zip(found, expected, strict=True)
  )


def _real(x: jax.Array) -> bool:
  return jnp.issubdtype(x.dtype, jnp.floating)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('line', LINES)
@pytest.mark.usefixtures('alone')
def test_fused_values_and_all_gradients_are_the_references(line, causal):
  assert error(Case(line, 300, 700, 64), 'pallas', causal=causal) <= CLOSE


@pytest.mark.parametrize('line', ['none', 'rope', 't5'])
@pytest.mark.usefixtures('alone')
def test_fused_bfloat16_errs_by_its_own_rounding(line):
  case = Case(line, 300, 700, 64, dtype=jnp.bfloat16)
  assert error(case, 'pallas', causal=True) <= ROUNDED


@pytest.mark.parametrize(('width', 'v_width'), [(32, 32), (128, 128), (256, 256), (70, 10)])
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.usefixtures('alone')
def test_fused_heads_of_any_width_are_the_references(width, v_width, dtype):
  case = Case('t5', 130, 260, width, v_width, dtype)
  most = CLOSE if dtype == jnp.float32 else ROUNDED
  assert error(case, 'pallas', causal=True) <= most


@pytest.mark.usefixtures('alone')
def test_fused_windows_caps_and_sinks_are_the_references():
  sinks = jnp.array([1.0, -2.0, 0.0, 9.0])
  case = Case('alibi(learned=True)', 300, 700, 64)
  assert error(case, 'pallas', causal=True, window=100, sinks=sinks, logit_cap=2.0) <= CLOSE
  assert error(Case('t5(bidirectional=True)', 300, 700, 64), 'pallas', window=(100, 30)) <= CLOSE


@pytest.mark.usefixtures('alone')
def test_fused_segments_and_padding_are_the_references():
  case = Case('t5', 300, 700, 64)
  segments = jnp.asarray(np.repeat([[0, 1, 2], [1, 2, 0]], [150, 300, 250], axis=1))
  rows = jnp.stack([case.pos, case.pos + 1000])
  options = {'q_segments': segments[:, -300:], 'k_segments': segments, 'causal': True}
  assert error(case, 'pallas', q_pos=rows[:, -300:], k_pos=rows, **options) <= CLOSE


@pytest.mark.usefixtures('alone')
def test_fused_without_a_bias_ids_need_not_count_up():
  case = Case('rope', 300, 700, 64)
  shuffled = jnp.asarray(np.random.default_rng(0).permutation(700))
  assert error(case, 'pallas', causal=True, q_pos=shuffled[-300:], k_pos=shuffled) <= CLOSE


@pytest.mark.parametrize('line', [*LINES, *TILED])
def test_blockwise_values_and_all_gradients_are_the_references(line):
  assert error(Case(line, 300, 700, 16), 'blockwise', causal=True) <= CLOSE


@pytest.mark.parametrize('line', [*LINES, *TILED])
def test_dense_values_and_all_gradients_are_the_references(line):
  assert error(Case(line, 300, 700, 16), 'dense', causal=True) <= CLOSE
