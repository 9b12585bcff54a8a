import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.angles import angles, frequencies
from posjax.positions import grid
from posjax.schemes import interpolated

attend = jax.jit(
  functools.partial(posjax.attend, model_places=True), static_argnums=3, static_argnames='causal'
)


@pytest.mark.parametrize('factor', [0.5, 2.0, 3.0, 7.3])
def test_ids_are_divided_by_the_factor(factor):
  pos = np.array([[0, 1, 2, 1000], [-5, 8, 131071, 2**24 - 1]])
  out = jax.jit(lambda p: interpolated.scheme(factor).ids(p, None))(jnp.asarray(pos, jnp.int32))
  assert out.dtype == jnp.float32
  np.testing.assert_allclose(out, pos / factor, rtol=2**-23)


def test_a_factor_of_one_changes_no_value():
  pos = jnp.arange(100)
  np.testing.assert_array_equal(interpolated.scheme(1.0).ids(pos, None), pos)


def test_a_key_changes_nothing(key):
  scheme, pos = interpolated.scheme(3.0), jnp.arange(10)
  np.testing.assert_array_equal(scheme.ids(pos, key), scheme.ids(pos, None))


@pytest.mark.parametrize('factor', [2.0, 3.0])
def test_rope_on_interpolated_ids_is_rope_with_the_factor(key, factor):
  q, k, v = jax.random.normal(key, (3, 1, 12, 2, 16))
  pos = jnp.array([0, 1, 2, 3, 50, 51, 52, 53, 400, 401, 402, 403])
  chained = posjax.chain(interpolated.scheme(factor), posjax.get('rope'))
  shrunk = chained.ids(pos, None)
  order = {'q_order': pos, 'k_order': pos, 'causal': True}
  out = attend(q, k, v, chained, ({}, {}), q_pos=shrunk, k_pos=shrunk, **order)
  exact = posjax.get(f'rope(factor={factor})')
  expected = attend(q, k, v, exact, {}, q_pos=pos, k_pos=pos, causal=True)
  assert abs(out - expected).max() / abs(expected).max() < 1e-5


def test_alibi_on_interpolated_ids_has_smaller_slopes():
  distance = jnp.arange(-8, 9)
  shrunk = interpolated.scheme(4.0).ids(distance, None)
  bias, slopes = posjax.get('alibi(learned=True)').bias, jnp.array([1.0, 0.5])
  got = bias({'slopes': slopes}, shrunk)
  np.testing.assert_array_equal(got, bias({'slopes': slopes / 4}, distance))


def test_the_rounding_is_what_the_docstring_says():
  pos = np.arange(2**17)
  for factor, least, most in ((3.0, 1e-3, 2.7e-3), (8.0, 0.0, 0.0)):
    out = np.asarray(interpolated.scheme(factor).ids(jnp.asarray(pos), None), np.float64)
    assert least <= abs(out - pos / factor).max() <= most


def test_rope_with_the_factor_is_exact_where_interpolated_ids_are_not():
  pos = np.arange(2**16, 2**16 + 64)
  sine = np.sin(pos / 3.0)  # of the fastest frequency
  turned = angles(jnp.asarray(pos), frequencies(2) / 3.0)[:, 0]
  rounded = angles(interpolated.scheme(3.0).ids(jnp.asarray(pos), None), frequencies(2))[:, 0]
  assert abs(np.sin(turned) - sine).max() < 1e-6
  assert abs(np.sin(rounded) - sine).max() > 3e-4


def test_any_number_of_axes_is_divided():
  pos = grid(3, 5)[None]
  out = interpolated.scheme(2.0).ids(pos, None)
  assert out.shape == (1, 15, 2)
  np.testing.assert_array_equal(out, np.asarray(pos) / 2)


def test_float_ids_keep_their_dtype_and_have_gradients():
  scheme = interpolated.scheme(4.0)
  slope = jax.grad(lambda p: scheme.ids(p, None).sum())(jnp.array([1.0, 2.5]))
  np.testing.assert_array_equal(slope, [0.25, 0.25])
  with jax.enable_x64(True):
    assert scheme.ids(jnp.array([1.5], jnp.float64), None).dtype == jnp.float64


def test_a_table_refuses_what_it_gives(key):
  scheme = posjax.get('interpolated(2.0)+learned(8)')
  params = scheme.init_model(key, posjax.Dims(4, 1, 4))
  pos = scheme.ids(jnp.arange(4)[None], None)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    scheme.embed(params, jnp.zeros((1, 4, 4)), None, pos)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_ids_of_narrow_floats_are_refused(dtype):
  with pytest.raises(TypeError, match='Ids must be integers, float32 or float64, but got'):
    interpolated.scheme(2.0).ids(jnp.zeros(3, dtype), None)
