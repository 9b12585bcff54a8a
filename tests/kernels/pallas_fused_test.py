"""The fused kernels, interpreted on a CPU, in small blocks: what they give is the reference's.

Of both targets: that they compile for real ones is in `pallas_ahead_test`.
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.kernels import blockwise, fused, gpu_kernels, pallas_gpu, pallas_tpu, tpu_kernels
from tests.loops import error

HEADS, KV_HEADS, WIDTH = 4, 2, 8
DRAW = np.random.default_rng(0)
BIASES = [
  'alibi(learned=True)', 't5', 't5(bidirectional=True)', 'gaussian(per_head=True)', 'kerple',
  'sandwich(width=8)', 'dynamic_bias(width=4)',
]  # fmt: skip
TURNS = ['rope', 'pope(uniform=True)', 'tener', 'transformer_xl']
CHAINS = ['rope+alibi(learned=True)', 't5+kerple']


class Small:
  """A target whose blocks suit a short attention, interpreted."""

  def __init__(self, name):
    self.real = pallas_tpu if name == 'tpu' else pallas_gpu
    self.forward, self.backward, self.refusal = (
      getattr(self.real, field) for field in ('forward', 'backward', 'refusal')
    )

  def plan(self, rules, x, interpret):
    assert interpret
    if self.real is pallas_tpu:
      return tpu_kernels.Plan(rules, 16, interpret)
    blocks = [(16, 8), (8, 16), (8, 8), (8, 8)]
    return pallas_gpu.Plan(rules, *(gpu_kernels.Blocks(*b, 4, 2) for b in blocks), interpret)


@pytest.fixture(params=['tpu', 'gpu'], autouse=True)
def target(request, monkeypatch):
  """Both in turn, unless a test says that what it claims is no matter of the target."""
  found = fused.Target(Small(request.param), interpret=True)
  monkeypatch.setattr(fused, 'here', lambda: found)
  return found


either_target = pytest.mark.parametrize('target', ['gpu'], indirect=True)
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.fixture
def alone(monkeypatch):
  """Nothing falls back."""

  def refused(*args):
    raise AssertionError('It was computed block-wise.')

  monkeypatch.setattr(blockwise, 'attend', refused)


class Case:
  """Random heads, values and cotangents; the queries are the last of the keys' tokens."""

  def __init__(self, line='none', queries=21, keys=29, width=WIDTH, v_width=None, dtype=None):
    self.scheme = posjax.get(line)
    dims = posjax.Dims(16, HEADS, width, KV_HEADS)
    params = posjax.init(self.scheme, jax.random.key(0), dims)
    moved = lambda x: x + 0.1 * jnp.asarray(DRAW.normal(size=x.shape), x.dtype)
    self.params = jax.tree.map(moved, params)
    normal = lambda *shape: jnp.asarray(DRAW.normal(size=(2, *shape)), dtype or jnp.float32)
    self.q, self.k = normal(queries, HEADS, width), normal(keys, KV_HEADS, width)
    self.v = normal(keys, KV_HEADS, v_width or width)
    self.cotangent = normal(queries, HEADS, v_width or width).astype(jnp.float32)
    self.pos = jnp.arange(keys)

  def out(self, implementation, q, k, v, params, **options):
    side = {'q_pos': self.pos[-self.q.shape[-3] :], 'k_pos': self.pos, **options}
    return posjax.attend(q, k, v, self.scheme, params, implementation=implementation, **side)

  def answer(self, implementation, **options):
    """The output, and the gradients of q, k, v, parameters and sinks."""
    sinks = options.pop('sinks', None)

    def number(args):
      *args, sinks = args
      out = self.out(implementation, *args, sinks=sinks, **options).astype(jnp.float32)
      return (out * self.cotangent).sum(), out

    args = (self.q, self.k, self.v, self.params, sinks)
    grads, out = jax.grad(number, has_aux=True)(args)
    return [out, *jax.tree.leaves(grads)]


def same(case, tolerance=1e-5, **options):
  """Each array to its own largest number; or, where it is small, to a tenth of that of all."""
  found, expected = (case.answer(way, **options) for way in ('pallas', 'dense'))
  most = max(float(abs(x).max()) for x in expected)
  for one, other in zip(found, expected, strict=True):
    assert one.dtype == other.dtype
    assert abs(one - other).max() <= tolerance * max(float(abs(other).max()), most / 10)


@pytest.mark.parametrize('line', BIASES + TURNS + CHAINS)
@pytest.mark.usefixtures('alone')
def test_values_and_all_gradients_of_a_causal_scheme_are_the_references(line):
  same(Case(line), causal=True)


@pytest.mark.slow
@pytest.mark.parametrize('line', BIASES + TURNS + CHAINS)
@pytest.mark.usefixtures('alone')
def test_without_a_causal_mask_they_are_the_references(line):
  same(Case(line))


@pytest.mark.parametrize(
  ('queries', 'keys'), [(17, 32), (32, 17), slow(1, 29), slow(16, 40), slow(40, 5)]
)
@pytest.mark.usefixtures('alone')
def test_any_number_of_queries_and_keys_will_do(queries, keys):
  case = Case('alibi(learned=True)', queries, keys)
  same(case, causal=True, q_pos=jnp.arange(queries) + 7)


@pytest.mark.parametrize(
  ('width', 'v_width'), [slow(64, 64), slow(128, 128), slow(256, 256), (70, 10)]
)
@pytest.mark.usefixtures('alone')
def test_heads_of_any_width_are_the_references(width, v_width):
  same(Case('none', 5, 12, width, v_width), causal=True)


@pytest.mark.usefixtures('alone')
def test_a_window_that_looks_ahead_too_is_the_references():
  same(Case('t5(bidirectional=True)'), window=6)


@pytest.mark.usefixtures('alone')
def test_caps_sinks_and_causal_windows_with_their_gradients_are_the_references():
  sinks = jnp.array([1.0, -2.0, 0.0, 9.0])
  same(Case('alibi(learned=True)'), causal=True, window=5, sinks=sinks, logit_cap=2.0)


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


@either_target
def test_in_a_compiled_program_any_ids_are_the_references():
  """The kernel where they count up, the block-wise way where they do not: one program."""
  case = Case('t5')

  @functools.partial(jax.jit, static_argnums=0)
  def answer(implementation, pos):
    order = {'q_order': case.pos[-21:], 'k_order': case.pos}
    side = {'q_pos': pos[-21:], 'k_pos': pos, 'causal': True, **order}
    return case.answer(implementation, **side)

  for pos in (case.pos + 3, jnp.asarray(DRAW.permutation(29))):
    for one, other in zip(answer('pallas', pos), answer('dense', pos), strict=True):
      assert error(one, other) <= 1e-5


@either_target
@pytest.mark.parametrize('shuffled', [False, True])
def test_the_program_takes_the_kernel_exactly_where_ids_count_up(shuffled, monkeypatch):
  """Poisoned, the block-wise way shows where it was taken."""
  case = Case('t5')
  poison = lambda *args: jnp.full((2, 21, HEADS, WIDTH), jnp.nan)
  monkeypatch.setattr(blockwise, 'attend', poison)
  pos = jnp.asarray(DRAW.permutation(29)) if shuffled else case.pos + 5
  args = case.q, case.k, case.v, case.params
  run = lambda pos: case.out('pallas', *args, q_pos=pos[-21:], k_pos=pos)
  assert jnp.isnan(jax.jit(run)(pos)).all() == shuffled
  assert jnp.isnan(run(pos)).all() == shuffled


@either_target
@pytest.mark.usefixtures('alone')
def test_without_a_bias_ids_need_not_count_up():
  case = Case('rope')
  shuffled = jnp.asarray(DRAW.permutation(29))
  same(case, causal=True, q_pos=shuffled[-21:], k_pos=shuffled)


@pytest.mark.usefixtures('alone')
def test_blocks_that_cannot_meet_are_not_computed():
  """A block of the future would give its NaN to all: zero times NaN is NaN."""
  case = Case('none', 32, 32)
  k, v = (x.at[:, 16:].set(jnp.nan) for x in (case.k, case.v))
  out = case.out('pallas', case.q, k, v, {}, causal=True)
  assert jnp.isfinite(out[:, :16]).all()
  assert not jnp.isfinite(out[:, 16:]).any()


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


def test_the_largest_array_grows_with_the_length_not_its_square():
  """Of all that the program makes, the block-wise way for other ids included."""

  def most(length):
    case = Case('alibi(learned=True)', length, length)
    number = lambda args: (case.out('pallas', *args, causal=True) * case.cotangent).sum()
    traced = jax.make_jaxpr(jax.grad(number))((case.q, case.k, case.v, case.params))
    return largest(traced.jaxpr)

  assert most(1024) <= 2.1 * most(512)


REFUSED = [
  ('shaw(max_distance=4)', {}, 'the scheme has logits'),
  ('t5', {'mask': jnp.ones((21, 29), bool)}, 'there is a mask'),
  ('t5', {'dropout_rate': 0.5, 'dropout_key': jax.random.key(0)}, 'there is dropout'),
  ('t5', {'k_pos': jnp.arange(29)[::-1]}, 'the bias is of ids that do not count up by one'),
  ('alibi', {'k_pos': 1.5 * jnp.arange(29)}, 'the bias is of ids that are not single integers'),
]


@either_target
@pytest.mark.parametrize(('line', 'options', 'why'), REFUSED)
def test_what_the_kernels_cannot_compute_is_computed_block_wise(line, options, why):
  case = Case(line)
  options = {'q_pos': case.pos[-21:], 'k_pos': case.pos, **options}
  args = case.q, case.k, case.v
  assert fused.chosen(*args, case.scheme, case.params, **options) == f'blockwise: {why}'
  out = [case.out(way, *args, case.params, **options) for way in ('pallas', 'blockwise')]
  np.testing.assert_array_equal(*out)


@either_target
def test_other_dtypes_and_too_wide_heads_are_refused():
  case = Case('none')
  ask = lambda x: fused.chosen(x, x, x, case.scheme, {}, q_pos=case.pos, k_pos=case.pos)
  x = jnp.ones((1, 29, 1, 2))
  assert ask(x.astype(jnp.float16)) == 'blockwise: the heads are neither float32 nor bfloat16'
  assert ask(jnp.ones((1, 29, 1, 516))) == 'blockwise: a head is wider than 2048 bytes'
  assert ask(x) == 'pallas'


@either_target
def test_the_choice_can_be_asked_for_before_the_ids_are_known():
  case = Case('t5')
  found = []

  def ask(pos):
    args = case.q, case.k, case.v, case.scheme, case.params
    found.append(fused.chosen(*args, q_pos=pos[-21:], k_pos=pos))

  jax.make_jaxpr(ask)(case.pos)
  assert found == ['pallas where the ids count up by one, else blockwise']


@either_target
def test_here_there_is_no_device_for_the_kernels(monkeypatch):
  monkeypatch.undo()
  case = Case('rope')
  args = case.q, case.k, case.v, case.scheme, case.params
  said = fused.chosen(*args, q_pos=case.pos[-21:], k_pos=case.pos)
  assert said == 'blockwise: there is no TPU, nor an NVIDIA GPU of compute capability 8 or more'


@either_target
@pytest.mark.parametrize(
  ('backend', 'capability', 'module'),
  [('tpu', None, 'pallas_tpu'), ('gpu', '9.0', 'pallas_gpu'), ('gpu', '8.0', 'pallas_gpu'),
   ('gpu', '12.0', 'pallas_gpu'), ('gpu', '7.5', None), ('gpu', 'gfx90a', None),
   ('cpu', None, None)],
)  # fmt: skip
def test_each_device_has_its_kernels(backend, capability, module, monkeypatch):
  monkeypatch.undo()
  device = types.SimpleNamespace(**({'compute_capability': capability} if capability else {}))
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  monkeypatch.setattr(jax, 'devices', lambda: [device])
  found = fused.here()
  assert (found and found.kernels.__name__) == (module and f'posjax.kernels.{module}')


def largest(jaxpr):
  """Numbers of the largest array that a program makes, inner programs included."""
  sizes = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars]
  inner = [p for equation in jaxpr.eqns for p in jax.tree.leaves(list(equation.params.values()))]
  programs = [getattr(p, 'jaxpr', p) for p in inner]
  return max(sizes + [largest(p) for p in programs if hasattr(p, 'eqns')], default=0)
