import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

import posjax
from posjax.math.angles import angles, frequencies
from posjax.math.rotation import rotary_scheme, rotary_width
from posjax.schemes import interpolated, rope
from tests.support.loops import attention, causal, content
from tests.support.paths import load_golden
from tests.support.rotations import heads, turned

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
GOLDEN = load_golden('rope')


@functools.cache
def _scheme(**arguments):
  scheme = rope.scheme(**arguments)
  return scheme._replace(query=jax.jit(scheme.query), key=jax.jit(scheme.key))


def _error(got, expected):
  expected = np.asarray(expected, np.float64)
  return abs(np.asarray(got, np.float64) - expected).max() / abs(expected).max()


def _rotated(x, pos, base=10000.0, interleaved=False):
  """Eq. 15 in float64: each pair as one complex number. x [T, H, D], pos [T]."""
  x, half = np.asarray(x, np.float64), x.shape[-1] // 2
  first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
  angle = np.asarray(pos, np.float64)[:, None] * base ** (-np.arange(half) / half)
  turned = (first + 1j * second) * np.exp(1j * angle)[:, None]
  out = np.empty_like(x)
  if interleaved:
    out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
  else:
    out[..., :half], out[..., half:] = turned.real, turned.imag
  return out


class Rotation(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True, with_device=True)
  @parameterized.parameters(False, True)
  def test_it_is_the_papers_rotation(self, interleaved):
    x = jax.random.normal(jax.random.key(0), (1, 6, 2, 8))
    pos = np.array([0, 1, 2, 50, 4000, 30000])
    out = self.variant(_scheme(base=500.0, interleaved=interleaved).query)({}, x, pos[None])
    chex.assert_equal_shape([out, x])
    expected = _rotated(x[0], pos, 500.0, interleaved)
    chex.assert_trees_all_close(out[0], expected.astype(np.float32), rtol=0, atol=4e-6)

  @chex.variants(with_jit=True, without_jit=True)
  def test_turning_both_sides_by_one_more_position_changes_no_product(self):
    scheme, (q, k) = _scheme(), jax.random.normal(jax.random.key(0), (2, 1, 5, 2, 64))
    products = self.variant(
      lambda pos: jnp.einsum('bthd,bshd->bhts', scheme.query({}, q, pos), scheme.key({}, k, pos))
    )
    pos = jnp.arange(5)[None]
    chex.assert_trees_all_close(products(pos), products(pos + 2**30), rtol=0, atol=2e-5)


def test_logits_depend_on_the_distance_only_at_every_position(key):
  q, k = jax.random.normal(key, (2, 1, 1, 2, 64))
  scheme = _scheme()

  def logit(q_pos, k_pos):
    ids = [jnp.array([[pos]], jnp.int32) for pos in (q_pos, k_pos)]
    placed = scheme.query({}, q, ids[0]), scheme.key({}, k, ids[1])
    return jnp.einsum('bthd,bshd->h', *placed)

  for distance in (0, 1, 1000, 131072):
    near = logit(distance, 0)
    for q_pos in (131072, 10**6, 10**9, 2**31 - 1):
      assert _error(logit(q_pos, q_pos - distance), near) < 1e-5


@pytest.mark.parametrize('layout', ['half', 'interleaved'])
@pytest.mark.parametrize('name', ['q', 'k'])
def test_it_equals_hugging_face(layout, name):
  x = jnp.asarray(GOLDEN[name].swapaxes(1, 2))
  pos = jnp.asarray(GOLDEN['position_ids'], jnp.int32)
  expected = GOLDEN[f'{name}_{layout}'].swapaxes(1, 2)
  interleaved = layout == 'interleaved'
  out = _scheme(interleaved=interleaved).query({}, x, pos)
  assert _error(out[0], expected[0]) < 1e-6
  # Their float32 angle is off at position 5000; ours is not.
  assert _error(out[1], expected[1]) < 1e-4
  assert _error(out[1], _rotated(x[1], pos[1], interleaved=interleaved)) < 1e-6


def test_it_equals_deepminds_code_with_gradients():
  x, cotangent = jnp.asarray(GOLDEN['rope0_x']), jnp.asarray(GOLDEN['rope0_cotangent'])
  scheme, pos = _scheme(interleaved=True), jnp.broadcast_to(jnp.arange(5), (2, 5))
  out, back = jax.vjp(lambda x: scheme.query({}, x, pos), x)
  assert _error(out, GOLDEN['rope0_out']) < 1e-6
  assert _error(back(cotangent)[0], GOLDEN['rope0_grad']) < 1e-6
  off = jnp.broadcast_to(jnp.asarray(GOLDEN['rope0_pos_off']), (2, 5))
  assert _error(scheme.query({}, x, off), GOLDEN['rope0_out_off']) < 1e-6


def test_a_fraction_turns_the_first_numbers_with_frequencies_of_that_width(key):
  x, pos = jax.random.normal(key, (1, 5, 2, 16)), np.arange(5)
  for interleaved in (False, True):
    out = _scheme(fraction=0.5, interleaved=interleaved).key({}, x, jnp.asarray(pos)[None])
    np.testing.assert_array_equal(out[..., 8:], x[..., 8:])
    turned = _rotated(x[0, ..., :8], pos, interleaved=interleaved)
    assert _error(out[0, ..., :8], turned) < 1e-6


def test_the_length_of_a_head_stays(key):
  x = jax.random.normal(key, (1, 4, 2, 32))
  out = _scheme().query({}, x, jnp.array([[0, 77, 10**8, -(2**31)]]))
  norms = [jnp.linalg.norm(y, axis=-1) for y in (out, x)]
  np.testing.assert_allclose(*norms, rtol=1e-6)


def test_converters_undo_each_other():
  kernel = jnp.arange(24.0).reshape(2, 12)
  for fraction in (1.0, 0.5):
    there = rope.to_interleaved(kernel, fraction)
    np.testing.assert_array_equal(rope.to_split(there, fraction), kernel)
    np.testing.assert_array_equal(
      rope.to_interleaved(rope.to_split(kernel, fraction), fraction), kernel
    )


@pytest.mark.parametrize('fraction', [1.0, 0.5])
def test_both_layouts_are_one_model_with_converted_weights(key, fraction):
  x_key, q_key, k_key = jax.random.split(key, 3)
  x = jax.random.normal(x_key, (2, 7, 12))
  w_q, w_k = (jax.random.normal(each, (12, 3, 8)) for each in (q_key, k_key))
  pos = jnp.array([0, 1, 2, 3, 900, 901, 5000])

  def values(w_q, w_k, scheme, v):
    q, k = (jnp.einsum('btm,mhd->bthd', x, w) for w in (w_q, w_k))
    return attend(q, k, v, scheme, {}, q_pos=pos, k_pos=pos, causal=True)

  v = jnp.einsum('btm,mhd->bthd', x, w_k)
  split = values(w_q, w_k, _scheme(fraction=fraction), v)
  converted = [rope.to_interleaved(w, fraction) for w in (w_q, w_k)]
  pairs = values(*converted, _scheme(fraction=fraction, interleaved=True), v)
  assert _error(pairs, split) < 1e-5


def test_a_factor_is_interpolation_of_the_ids(key):
  x, pos = jax.random.normal(key, (1, 50, 1, 16)), jnp.arange(50)[None]
  shrunk = interpolated.scheme(3.0).ids(pos, None)
  out = _scheme(factor=3.0).query({}, x, pos)
  assert _error(out, _scheme().query({}, x, shrunk)) < 1e-5
  # Four times the trained length turns no further than trained.
  quarter = _scheme(factor=4.0).query({}, x, 4 * pos)
  np.testing.assert_allclose(quarter, _scheme().query({}, x, pos), atol=1e-6)


def test_interpolation_equals_lucidrains():
  x, pos = jnp.asarray(GOLDEN['pi_q'].swapaxes(1, 2)), jnp.arange(20)[None]
  out = _scheme(factor=4.0, interleaved=True).query({}, x, pos)
  assert _error(out, GOLDEN['pi_q_factor4'].swapaxes(1, 2)) < 1e-6


def test_any_frequencies_make_a_scheme_and_the_attention_factor_grows_what_turns(key):
  x, pos = jax.random.normal(key, (1, 5, 2, 16)), np.arange(5)
  scheme = rotary_scheme(lambda width: 7.0 ** -np.arange(width / 2), 0.5, attention_factor=1.5)
  out = scheme.query({}, x, jnp.asarray(pos)[None])
  np.testing.assert_array_equal(out[..., 8:], x[..., 8:])
  assert _error(out[0, ..., :8], 1.5 * _rotated(x[0, ..., :8], pos, 7.0**4)) < 1e-6
  np.testing.assert_array_equal(out, scheme.key({}, x, jnp.asarray(pos)[None]))


def test_a_width_that_is_a_quotient_is_found_again():
  assert 14 / 50 * 50 != 14
  assert rotary_width(50, 14 / 50) == 14


def test_at_position_0_nothing_turns(key):
  x = jax.random.normal(key, (2, 3, 2, 4))
  np.testing.assert_array_equal(_scheme().query({}, x, jnp.zeros((2, 3), jnp.int32)), x)


def test_with_a_huge_base_only_the_first_pair_turns(key):
  x, pos = jax.random.normal(key, (1, 4, 1, 8)), jnp.arange(4)[None]
  out = _scheme(base=1e30, interleaved=True).query({}, x, pos)
  expected = _scheme(fraction=0.25, interleaved=True).query({}, x, pos)
  np.testing.assert_allclose(out, expected, atol=1e-6)


def test_bfloat16_heads_stay_bfloat16_and_near(key):
  x, pos = jax.random.normal(key, (1, 4, 2, 64)), jnp.array([[0, 1000, 131072, 2**31 - 1]])
  x = x.astype(jnp.bfloat16)
  out = _scheme().query({}, x, pos)
  assert out.dtype == jnp.bfloat16
  # One rounding of the result: half a unit of 8 bits.
  assert _error(out, _scheme().query({}, x.astype(jnp.float32), pos)) < 2**-8


def test_float_ids_have_gradients(key):
  x = jax.random.normal(key, (1, 1, 1, 4))
  turn = lambda pos: rope.rotate(x, angles(pos, frequencies(4)))
  at = jnp.array([[2.5]])
  slope = jax.jvp(turn, (at,), (jnp.ones_like(at),))[1]
  first, second = jnp.split(turn(at), 2, axis=-1)
  speed = jnp.array([1.0, 0.01]).reshape(1, 1, 1, 2)
  np.testing.assert_allclose(
    slope, jnp.concatenate([-second * speed, first * speed], axis=-1), atol=1e-5
  )


@pytest.mark.parametrize('fraction', [1.0, 0.3])
def test_a_width_that_is_not_even_is_refused(fraction):
  x, pos = jnp.zeros((1, 2, 1, 5)), jnp.zeros((1, 2), jnp.int32)
  with pytest.raises(ValueError, match=r'positive and even, but fraction .* of head\s+width 5'):
    _scheme(fraction=fraction).query({}, x, pos)


def test_narrow_float_ids_are_refused():
  with pytest.raises(TypeError, match='Ids must be integers, float32 or float64, but got bfloat16'):
    _scheme().query({}, jnp.zeros((1, 2, 1, 4)), jnp.zeros((1, 2), jnp.bfloat16))


@pytest.mark.parametrize('interleaved', [False, True])
def test_values_turn_by_the_distance_of_their_key_with_frequencies_of_their_own_width(interleaved):
  """sum_j w_ij R(v_j, (p_j - p_i) f), for values narrower than queries and keys."""
  q, k, v, q_pos, k_pos = heads(8)
  v = v[..., :6]
  ids = {'q_pos': jnp.asarray(q_pos), 'k_pos': jnp.asarray(k_pos)}
  scheme = rope.scheme(base=500.0, interleaved=interleaved, values=True)
  found = attend(*map(jnp.asarray, (q, k, v)), scheme, {}, causal=True, **ids)
  of_keys, of_values = ([500.0 ** (-i / n) for i in range(n)] for n in (4, 3))
  turn = lambda x, pos, at: turned(x, pos, at, interleaved)
  logits = content(turn(q, q_pos, of_keys), turn(k, k_pos, of_keys))
  _, weights = attention(logits, causal(q_pos, k_pos), v)
  expected = np.zeros((*q.shape[:3], 6))
  for t in range(q.shape[1]):
    moved = turn(np.repeat(v, 2, axis=2), k_pos - q_pos[:, t : t + 1], of_values)
    expected[:, t] = np.einsum('bhs,bshe->bhe', weights[:, :, t], moved)
  assert _error(found, expected) < 1e-5


def test_the_output_turns_back_what_the_value_turned_at_every_position(key):
  v = jax.random.normal(key, (1, 3, 2, 10))
  pos = jnp.array([[1, 2**20, 2**31 - 1]])
  for arguments in ({}, {'fraction': 0.6, 'interleaved': True, 'factor': 3.0}):
    scheme = rope.scheme(values=True, **arguments)
    turned_values = scheme.values.value({}, v, pos)
    assert _error(scheme.values.output({}, turned_values, pos), v) < 1e-6
    assert _error(turned_values, v) > 0.1
  assert posjax.places(rope.scheme(values=True)) == ('query', 'key', 'values')
  assert posjax.places(rope.scheme()) == ('query', 'key')


def test_the_attention_factor_is_not_for_values(key):
  v, pos = jax.random.normal(key, (1, 3, 2, 8)), jnp.array([[0, 5, 40]])
  line = 'yarn(factor=4.0, original_length=64, values=True)'
  norms = [jnp.linalg.norm(x, axis=-1) for x in (v, posjax.get(line).values.value({}, v, pos))]
  assert _error(*norms) < 1e-6
  spread = posjax.get('partial(share=0.5, values=True)').values.value({}, v, pos)
  np.testing.assert_array_equal(spread[..., 2:4], v[..., 2:4])  # slow pairs stay
  assert _error(spread, v) > 0.1
