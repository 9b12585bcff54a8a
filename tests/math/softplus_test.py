import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from posjax.math.softplus import inverse_softplus

VALUES = [1e-30, 1e-6, 0.01, 0.5, 1.0, 20.0, 100.0, 1e5]


def _exact(value):
  with mpmath.workprec(400):
    return float(mpmath.log(mpmath.expm1(mpmath.mpf(value))))


@pytest.mark.parametrize('value', VALUES)
def test_a_number_and_a_numpy_array_are_inverted_in_float64(value):
  assert abs(inverse_softplus(value) - _exact(value)) <= 1e-14 * abs(_exact(value)) + 1e-15
  assert inverse_softplus(np.array([value])).dtype == np.float64


def test_a_jax_array_is_inverted_in_its_own_dtype_without_overflow():
  values = jnp.array(VALUES)
  found = jax.jit(inverse_softplus)(values)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, [_exact(float(v)) for v in values], rtol=1e-6)


def test_softplus_of_the_inverse_is_the_value():
  values = jnp.array(VALUES[1:])
  np.testing.assert_allclose(jax.nn.softplus(inverse_softplus(values)), values, rtol=3e-6)
