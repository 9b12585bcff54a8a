import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.angles import frequencies
from posjax.positions import grid
from posjax.schemes import sinusoidal
from posjax.schemes.sinusoidal import scheme
from tests.support.paths import load_golden

encoding = jax.jit(
  sinusoidal.encoding,
  static_argnums=(1, 2),
  static_argnames=('base', 'interleaved', 'cos_first', 'endpoint'),
)
GOLDEN = load_golden('sinusoidal')


def _error(got, expected):
  return abs(np.asarray(got, np.float64) - expected).max() / abs(np.asarray(expected)).max()


def test_it_is_the_papers_formula():
  pos, width = np.array([0, 1, 17, 999]), 10
  expected = np.zeros((4, width))
  for i in range(width // 2):
    expected[:, 2 * i] = np.sin(pos / 10000 ** (2 * i / width))
    expected[:, 2 * i + 1] = np.cos(pos / 10000 ** (2 * i / width))
  assert _error(encoding(jnp.asarray(pos), width), expected) < 1e-6


def test_it_prints_the_4_by_4_table_of_text_002():
  code = encoding(jnp.arange(4), 4, base=100.0)
  np.testing.assert_allclose(code, GOLDEN['seed_4x4_n100_printed'], atol=2e-7)


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if n.startswith('interleaved_')])
def test_it_equals_the_function_of_text_002(name):
  length, width, base = (int(part[1:]) for part in name.split('_')[1:])
  assert _error(encoding(jnp.arange(length), width, float(base)), GOLDEN[name]) < 1e-6


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if n.startswith('t2t_')])
def test_halves_with_endpoint_equal_tensor2tensor(name):
  length, width, start, base = (int(p.strip('LCstarmx')) for p in name.split('_')[1:5])
  pos = start + jnp.arange(length)
  code = encoding(pos, width, float(base), interleaved=False, endpoint=True)
  assert _error(code, GOLDEN[name]) < 1e-6


def test_halves_equal_transformer_xl():
  pos = jnp.asarray(GOLDEN['xl_halfsplit_pos'], jnp.float32)
  assert _error(encoding(pos, 8, interleaved=False), GOLDEN['xl_halfsplit_d8']) < 1e-6


@pytest.mark.parametrize('name', [n for n in GOLDEN.files if n.startswith('sincos_')])
def test_halves_equal_deepminds_code_at_negative_positions_too(name):
  length, width, negative, base = (int(p.strip('Ldnegmax')) for p in name.split('_')[1:])
  pos = jnp.arange(-length if negative else 0, length)
  assert _error(encoding(pos, width, float(base), interleaved=False), GOLDEN[name]) < 1e-6


def test_cosines_first_swap_the_halves():
  # The layout of complex-order, without its factor pi.
  pos, w = np.arange(9), 10000.0 ** (-2 * np.arange(4) / 8)
  expected = np.concatenate([np.cos(np.outer(pos, w)), np.sin(np.outer(pos, w))], axis=1)
  code = encoding(jnp.asarray(pos), 8, interleaved=False, cos_first=True)
  assert _error(code, expected) < 1e-6
  pairs = encoding(jnp.asarray(pos), 8, cos_first=True)
  np.testing.assert_array_equal(pairs.reshape(9, 4, 2)[..., 0], code[:, :4])


def test_layouts_are_permutations_but_the_endpoint_is_not():
  pos = jnp.arange(1, 6)
  pairs, halves = encoding(pos, 8), encoding(pos, 8, interleaved=False)
  np.testing.assert_array_equal(halves, jnp.concatenate([pairs[:, 0::2], pairs[:, 1::2]], axis=1))
  ends = encoding(pos, 8, interleaved=False, endpoint=True)
  assert abs(jnp.sort(halves) - jnp.sort(ends)).max() > 0.1


@pytest.mark.parametrize('offset', [1, 5, 17])
def test_a_shift_is_a_matrix_that_does_not_depend_on_the_position(offset):
  matrix = sinusoidal.shift_matrix(offset, 8)
  np.testing.assert_allclose(matrix, GOLDEN[f'shift_matrix_k{offset}_d8'], atol=1e-12)
  np.testing.assert_allclose(matrix @ matrix.T, np.eye(8), atol=1e-12)
  pos = jnp.array([0, 1, 100, 12345, -7])
  shifted = np.asarray(encoding(pos, 8)) @ matrix.T
  assert _error(encoding(pos + offset, 8), shifted) < 1e-6


def test_a_shift_is_a_sum_of_products_of_codes():
  # Text 000: PE(p + k, 2i) and PE(p + k, 2i + 1) from those of p and k.
  p, k = jnp.arange(50)[:, None], jnp.array([[1, 7, 300]])
  code = lambda pos: np.asarray(encoding(pos, 16), np.float64)
  at_p, at_k, at_sum = code(p), code(k), code(p + k)
  sin_p, cos_p, sin_k, cos_k = at_p[..., 0::2], at_p[..., 1::2], at_k[..., 0::2], at_k[..., 1::2]
  assert _error(at_sum[..., 0::2], sin_p * cos_k + cos_p * sin_k) < 1e-6
  assert _error(at_sum[..., 1::2], cos_p * cos_k - sin_p * sin_k) < 1e-6


@pytest.mark.parametrize('width', [8, 64, 512])
def test_the_dot_product_is_a_sum_of_cosines_from_i_0(width):
  offsets = jnp.asarray(GOLDEN['dot_closed_offsets'], jnp.int32)
  expected = GOLDEN[f'dot_closed_d{width}']
  assert _error(sinusoidal.dot(offsets, width), expected) < 1e-6
  for pos in (0, 20, 5000):
    codes = encoding(pos + offsets, width) @ encoding(jnp.array(pos), width)
    assert _error(codes, expected) < 2e-6


def test_the_sum_from_i_1_that_text_000_prints_is_not_the_dot_product():
  printed, true = GOLDEN['wqwk_sum_i_from1_as_printed_d8'], GOLDEN['dot_closed_d8']
  offsets = GOLDEN['dot_closed_offsets']
  np.testing.assert_allclose(true - printed, np.cos(offsets), atol=1e-12)
  assert _error(printed, true) > 0.1


def test_the_dot_product_is_even_and_largest_at_no_distance():
  distance = jnp.arange(1, 3000)
  ahead, back = sinusoidal.dot(distance, 64), sinusoidal.dot(-distance, 64)
  np.testing.assert_allclose(ahead, back, atol=4e-6)
  assert sinusoidal.dot(jnp.array(0), 64) == 32
  assert ahead.max() < 32


def test_codes_are_bounded_at_every_position():
  pos = jnp.asarray(np.random.default_rng(0).integers(-(2**31), 2**31, 5000), jnp.int32)
  assert abs(encoding(pos, 32)).max() <= 1


def test_different_positions_have_different_codes():
  codes = np.asarray(encoding(jnp.arange(4096), 64))
  squared = 2 * (32 - codes @ codes.T)
  assert abs(squared.diagonal()).max() < 1e-4
  np.fill_diagonal(squared, np.inf)
  assert squared.min() > 0.5


def test_wavelengths_run_from_2_pi_towards_2_pi_base():
  lengths = sinusoidal.wavelengths(512, 1000.0)
  assert lengths[0] == 2 * np.pi
  np.testing.assert_allclose(lengths[1:] / lengths[:-1], 1000 ** (1 / 256), rtol=1e-12)
  assert 0.97 * 2000 * np.pi < lengths[-1] < 2000 * np.pi


def test_with_the_endpoint_the_slowest_wavelength_is_2_pi_base():
  # Text 004 has base 1000 and wavelengths [2 pi, 2000 pi]: so the code that it refers to.
  lengths = 2 * np.pi / frequencies(64, 1000.0, endpoint=True)
  np.testing.assert_allclose(lengths[[0, -1]], [2 * np.pi, 2000 * np.pi], rtol=1e-13)


@pytest.mark.parametrize('width', [1, 3, 7])
@pytest.mark.parametrize('interleaved', [True, False])
def test_an_odd_width_ends_in_a_zero(width, interleaved):
  code = encoding(jnp.arange(5), width, interleaved=interleaved)
  assert code.shape == (5, width)
  np.testing.assert_array_equal(code[:, -1], 0)


def test_two_axes_share_the_width():
  pos, x = grid(3, 4)[None], jnp.zeros((1, 12, 8))
  out = scheme(axes=2).embed({}, x, None, pos)
  rows, columns = encoding(pos[..., 0], 4), encoding(pos[..., 1], 4)
  np.testing.assert_array_equal(out, jnp.concatenate([rows, columns], axis=-1))


def test_the_code_is_added_and_the_dtype_stays(key):
  x, pos = jax.random.normal(key, (2, 3, 4)), jnp.array([[0, 1, 2], [5, 0, 9]])
  added = scheme(base=100.0).embed({}, x, None, pos)
  np.testing.assert_array_equal(added, x + encoding(pos, 4, 100.0))
  assert scheme().embed({}, x.astype(jnp.bfloat16), None, pos).dtype == jnp.bfloat16


def test_float_ids_have_gradients(key):
  slope = jax.grad(lambda p: encoding(p, 2)[0, 0])(jnp.array([3.0]))
  np.testing.assert_allclose(slope, np.cos(3.0), rtol=1e-6)


def test_errors_say_what_is_wrong():
  with pytest.raises(ValueError, match='The 3 axes must divide the width, but got 8'):
    scheme(axes=3).embed({}, jnp.zeros((1, 2, 8)), None, jnp.zeros((1, 2, 3), jnp.int32))
  with pytest.raises(ValueError, match='2 x 2 blocks, but the width is 5'):
    sinusoidal.shift_matrix(1, 5)


def test_ids_for_all_rows_are_those_of_each_row():
  x = jnp.ones((2, 3, 8))
  pos = jnp.arange(3)
  rows = jnp.broadcast_to(pos, (2, 3))
  embed = scheme().embed
  np.testing.assert_array_equal(embed({}, x, None, pos), embed({}, x, None, rows))
