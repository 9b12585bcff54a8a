"""The fused kernels, interpreted on a CPU, in small blocks: what they give is the reference's.

Of both targets: that they compile for real ones is in `pallas_ahead_test`.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from posjax.attention.blockwise import engine as blockwise
from posjax.attention.pallas import fused
from tests.attention.blockwise_test import largest
from tests.attention.small import Case, Small
from tests.support.draws import DRAW
from tests.support.loops import error
from tests.support.programs import equations

BIASES = [
  'alibi(learned=True)', 't5', 't5(bidirectional=True)', 'gaussian', 'gaussian(per_head=True)',
  'kerple', 'sandwich(width=8)', 'dynamic_bias(width=4)',
]  # fmt: skip
TURNS = ['rope', 'pope(uniform=True)', 'tener', 'transformer_xl']
CHAINS = ['rope+alibi(learned=True)', 't5+kerple']
ALWAYS = {'t5'}


@pytest.fixture(params=['tpu', 'gpu'], autouse=True)
def target(request, monkeypatch):
  """Both in turn, unless it is no matter for what a test claims."""
  found = fused.Target(Small(request.param), interpret=True)
  monkeypatch.setattr(fused, 'target_of', lambda device, mosaic=False: found)
  return found


either_target = pytest.mark.parametrize('target', ['gpu'], indirect=True)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture
def alone(monkeypatch):
  """Nothing falls back."""

  def refused(*args):
    raise AssertionError('It was computed block-wise.')

  monkeypatch.setattr(blockwise, 'attend', refused)


def same(case, tolerance=1e-5, **options):
  """Each array to its own largest number; or, where it is small, to a tenth of that of all."""
  found, expected = (case.answer(way, **options) for way in ('pallas', 'dense'))
  most = max(float(abs(x).max()) for x in expected)
  for one, other in zip(found, expected, strict=True):
    assert one.dtype == other.dtype
    assert abs(one - other).max() <= tolerance * max(float(abs(other).max()), most / 10)


@pytest.mark.parametrize(
  'line', [line if line in ALWAYS else slow(line) for line in BIASES + TURNS + CHAINS]
)
@pytest.mark.usefixtures('alone')
def test_values_and_all_gradients_of_a_causal_scheme_are_the_references(line):
  same(Case(line), causal=True)


@pytest.mark.slow
@pytest.mark.parametrize('line', BIASES + TURNS + CHAINS)
@pytest.mark.usefixtures('alone')
def test_without_a_causal_mask_they_are_the_references(line):
  same(Case(line))


@pytest.mark.slow
@pytest.mark.parametrize(('queries', 'keys'), [(1, 29), (16, 40), (32, 17), (40, 5)])
@pytest.mark.usefixtures('alone')
def test_any_number_of_queries_and_keys_will_do(queries, keys):
  case = Case('alibi(learned=True)', queries, keys)
  same(case, causal=True, q_pos=jnp.arange(queries) + 7)


@pytest.mark.slow
@pytest.mark.parametrize(('width', 'v_width'), [(64, 64), (128, 128), (256, 256), (70, 10)])
@pytest.mark.usefixtures('alone')
def test_heads_of_any_width_are_the_references(width, v_width):
  same(Case('t5', 5, 12, width, v_width), causal=True)


SHORT = 't5(num_buckets=4, max_distance=5)'
TOO_FAR = [
  slow({'causal': True}),
  {'causal': True, 'sinks': jnp.array([1.0, -2.0, 0.0, 3.0])},
  slow({'causal': True, 'logit_cap': 2.0}),  # which has no such shortcut
  slow({'window': (20, 2)}),
]


def steps_of(kernel, case, **options):
  """How many programs the grid of a kernel has in the backward pass."""
  out = functools.partial(case.out, 'pallas', **{'q_pos': case.pos[-case.q.shape[1] :], **options})
  slope = jax.grad(lambda *args: out(*args).sum(), argnums=(0, 1, 2, 3))
  program = jax.make_jaxpr(slope)(case.q, case.k, case.v, case.params)
  calls = [one.params for one in equations(program.jaxpr) if one.primitive.name == 'pallas_call']
  (call,) = (call for call in calls if call['name'] == kernel)
  return math.prod(call['grid_mapping'].grid)


@pytest.mark.slow
@pytest.mark.parametrize('options', TOO_FAR)
@pytest.mark.usefixtures('alone')
def test_where_a_bias_is_constant_its_gradient_is_what_the_others_leave(options):
  case = Case(SHORT, 60, 77)
  same(case, **options)
  farther = steps_of('d_table', Case('t5', 60, 77), **options)
  if 'logit_cap' in options:
    assert steps_of('d_table', case, **options) == farther
  else:
    assert steps_of('d_table', case, **options) < 0.8 * farther


@pytest.mark.slow
@pytest.mark.usefixtures('alone')
def test_where_a_bias_is_constant_rows_may_begin_elsewhere():
  """Row 1 has keys of 30 tokens before, so that it is constant sooner."""
  case = Case(f'{SHORT}+t5(num_buckets=8, max_distance=9)', 40, 40)
  rows = jnp.stack([case.pos, case.pos + 30])
  same(case, q_pos=rows, k_pos=jnp.stack([case.pos, case.pos]))
  same(case, causal=True, q_pos=case.pos + 100, q_order=case.pos, k_order=case.pos)


@pytest.mark.slow
@pytest.mark.usefixtures('alone')
def test_a_window_that_looks_ahead_too_is_the_references():
  same(Case('t5(bidirectional=True)'), window=(5, 3))


@pytest.mark.slow
@pytest.mark.usefixtures('alone')
def test_caps_sinks_and_causal_windows_with_their_gradients_are_the_references():
  sinks = jnp.array([1.0, -2.0, 0.0, 9.0])
  same(Case('alibi(learned=True)'), causal=True, window=5, sinks=sinks, logit_cap=2.0)


@pytest.mark.parametrize('target', [slow('tpu'), 'gpu'], indirect=True)
@pytest.mark.usefixtures('alone')
def test_segments_padding_and_rows_that_begin_elsewhere_are_the_references():
  """The first 9 keys of row 0 and the last 9 of row 1 are padding: so are some whole blocks."""
  case = Case('t5')
  segments = jnp.asarray(np.repeat([[0, 1, 2], [1, 2, 0]], [9, 11, 9], axis=1))
  rows = jnp.stack([case.pos, case.pos + 1000])
  options = {'q_segments': segments[:, -21:], 'k_segments': segments, 'causal': True}
  options |= {'q_pos': rows[:, -21:], 'k_pos': rows}
  same(case, **options)
  out, d_q, *_ = case.answer('pallas', **options)
  np.testing.assert_array_equal(out[1, -9:], 0)
  np.testing.assert_array_equal(d_q[1, -9:], 0)


@pytest.mark.parametrize('target', [slow('tpu'), 'gpu'], indirect=True)
@pytest.mark.usefixtures('alone')
def test_bfloat16_is_summed_in_float32():
  """Weights, outputs and cotangents are rounded to 8 bits on their way: each by 2^-8 at most."""
  narrow = Case('alibi(learned=True)', 21, 29, dtype=jnp.bfloat16)
  wide = lambda x: x.astype(jnp.float32)
  found, near = (narrow.answer(way, causal=True) for way in ('pallas', 'dense'))
  narrow.q, narrow.k, narrow.v = map(wide, (narrow.q, narrow.k, narrow.v))
  exact = narrow.answer('dense', causal=True)
  for one, other, truth in zip(found, near, exact, strict=True):
    assert one.dtype == other.dtype
    assert error(one, truth) <= 3 * 2**-8


@pytest.mark.slow
@either_target
@pytest.mark.usefixtures('alone')
def test_without_a_bias_ids_need_not_count_up():
  case = Case('rope')
  shuffled = jnp.asarray(DRAW.permutation(29))
  same(case, causal=True, q_pos=shuffled[-21:], k_pos=shuffled)


@either_target
@pytest.mark.usefixtures('alone')
def test_a_compiled_function_that_closes_over_ids_of_a_batch_knows_them():
  case = Case('t5')
  ids = {'q_pos': case.pos[None, -21:], 'k_pos': case.pos[None]}
  out = lambda way: lambda q: case.out(way, q, case.k, case.v, case.params, causal=True, **ids)
  assert error(jax.jit(out('pallas'))(case.q), out('dense')(case.q)) <= 1e-5


@pytest.mark.usefixtures('alone')
def test_blocks_that_cannot_meet_are_not_computed():
  """A block of the future would give its NaN to all: zero times NaN is NaN."""
  case = Case('none', 32, 32)
  k, v = (x.at[:, 16:].set(jnp.nan) for x in (case.k, case.v))
  out = case.out('pallas', case.q, k, v, {}, causal=True)
  assert jnp.isfinite(out[:, :16]).all()
  assert not jnp.isfinite(out[:, 16:]).any()


@pytest.mark.slow
@pytest.mark.usefixtures('alone')
def test_mapped_it_is_the_same():
  case = Case('t5')
  row = lambda q, k, v: case.out('pallas', q, k, v, case.params, causal=True)
  whole = row(case.q, case.k, case.v)
  assert error(jax.vmap(row)(case.q, case.k, case.v), whole) <= 1e-6


@pytest.mark.slow
@either_target
def test_recomputed_it_is_the_same():
  case = Case('rope')
  row = lambda q: case.out('pallas', q, case.k, case.v, case.params, causal=True)
  number = lambda f: lambda q: (f(q) * case.cotangent).sum()
  plain, again = (jax.grad(number(f))(case.q) for f in (row, jax.checkpoint(row)))
  assert error(again, plain) <= 1e-6


@pytest.mark.slow
def test_the_largest_array_grows_with_the_length_not_its_square():
  """Of all that the program makes, the block-wise way for other ids included."""

  def most(length):
    case = Case('alibi(learned=True)', length, length)
    number = lambda args: (case.out('pallas', *args, causal=True) * case.cotangent).sum()
    traced = jax.make_jaxpr(jax.grad(number))((case.q, case.k, case.v, case.params))
    return largest(traced.jaxpr)

  assert most(1024) <= 2.1 * most(512)


@pytest.mark.slow
@pytest.mark.parametrize('target', ['tpu'], indirect=True)
@pytest.mark.parametrize('line', ['rope', 't5', 'alibi(learned=True)'])
@pytest.mark.usefixtures('alone')
def test_with_the_memories_of_a_tpu_simulated_nothing_races_or_is_read_unwritten(
  line, monkeypatch, capfd
):
  """Memory holds NaN until it is written, and a read out of bounds is an error."""
  simulated = pltpu.InterpretParams(
    detect_races=True, uninitialized_memory='nan', out_of_bounds_reads='raise'
  )
  found = fused.Target(Small('tpu'), simulated)
  monkeypatch.setattr(fused, 'target_of', lambda device, mosaic=False: found)
  segments = jnp.asarray(np.repeat([[0, 1, 2], [1, 2, 0]], [9, 11, 9], axis=1))
  same(Case(line), causal=True, q_segments=segments[:, -21:], k_segments=segments)
  assert 'RACE DETECTED' not in capfd.readouterr().out
