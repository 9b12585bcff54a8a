import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.checks import check_ids, check_integer_ids, float_ids


@pytest.mark.parametrize('dtype', [jnp.int8, jnp.uint32, jnp.int32, jnp.float32])
def test_integers_and_float32_count_as_ids(dtype):
  check_ids(jnp.zeros(2, dtype))


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_narrow_floats_are_no_ids(dtype):
  message = f'^Ids must be integers, float32 or float64, but got {jnp.dtype(dtype).name}'
  for reader in (check_ids, float_ids):
    with pytest.raises(TypeError, match=message):
      reader(jnp.zeros(2, dtype))


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_floats_are_no_integer_ids_and_the_reader_is_named(dtype):
  message = f'^A table of offsets needs integer ids, but got {jnp.dtype(dtype).name}'
  with pytest.raises(TypeError, match=message):
    check_integer_ids(jnp.zeros(2, dtype), 'A table of offsets needs')
  check_integer_ids(jnp.zeros(2, jnp.uint8))


@pytest.mark.parametrize('dtype', [jnp.int8, jnp.uint32, jnp.int32])
def test_integer_ids_become_float32_and_floats_stay(dtype):
  found = float_ids(jnp.array([0, 5, 100], dtype))
  assert found.dtype == jnp.float32
  np.testing.assert_array_equal(found, [0, 5, 100])
  given = jnp.array([0.5, -3.25])
  np.testing.assert_array_equal(float_ids(given), given)
