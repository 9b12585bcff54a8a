import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.math.tables import (
  lookup,
  normal_projections,
  normal_table,
  position_heads,
)
from posjax.scheme import Dims
from tests.support.loops import error

DIMS = Dims(width=64, num_heads=4, head_dim=32, num_kv_heads=2)


def _rows(table, ids):
  """table[ids] by Python's own comparison, NaN outside."""
  out = np.full((*ids.shape, *table.shape[1:]), np.nan)
  for where in np.ndindex(*ids.shape):
    if 0 <= ids[where] < len(table):
      out[where] = table[int(ids[where])]
  return out


@pytest.mark.parametrize('row', [(), (3,), (2, 3)])
def test_rows_of_any_shape_are_found_and_ids_outside_give_nan(row):
  table = np.random.default_rng(0).normal(size=(5, *row)).astype(np.float32)
  ids = np.array([[0, 4, 5, -1], [2, -5, 2**31 - 1, -(2**31)]], np.int32)
  found = jax.jit(lookup)(table, ids)
  assert found.shape == (2, 4, *row)
  np.testing.assert_array_equal(found, _rows(table, ids))


def test_several_ids_index_the_first_axes_together_and_any_of_them_may_be_outside():
  table = jnp.arange(24.0).reshape(2, 3, 4)
  found = lookup(table, jnp.array([1, 0, 2, 1]), jnp.array([2, 0, 0, -1]))
  np.testing.assert_array_equal(found[0], [20, 21, 22, 23])
  np.testing.assert_array_equal(found[1], [0, 1, 2, 3])
  assert jnp.isnan(found[2:]).all()


def test_the_gradient_of_a_table_counts_how_often_a_row_was_used():
  table = jnp.zeros((4, 2))
  grad = jax.grad(lambda table: lookup(table, jnp.array([3, 1, 3])).sum())(table)
  np.testing.assert_array_equal(grad, [[0, 0], [1, 1], [0, 0], [2, 2]])


def test_ids_that_are_not_integers_are_refused_in_the_name_of_the_reader():
  with pytest.raises(TypeError, match='A table of positions needs integer ids, but got float32'):
    lookup(jnp.zeros((3, 2)), jnp.zeros(2))
  with pytest.raises(TypeError, match='A table of offsets needs integer ids, but got bfloat16'):
    lookup(
      jnp.zeros((3, 3)),
      jnp.zeros(2, jnp.int32),
      jnp.zeros(2, jnp.bfloat16),
      reader='A table of offsets needs',
    )


def test_heads_of_positions_are_projected_rows():
  draw = np.random.default_rng(0)
  table = draw.normal(size=(5, 6)).astype(np.float32)
  weights = draw.normal(size=(6, 2, 3)).astype(np.float32)
  pos = np.array([[0, 4, 5], [2, -1, 3]], np.int32)
  expected = np.full((2, 3, 2, 3), np.nan)
  for b, t in np.ndindex(2, 3):
    if 0 <= pos[b, t] < 5:
      row = table[pos[b, t]].astype(np.float64)
      expected[b, t] = sum(row[m] * weights[m].astype(np.float64) for m in range(6))
  found = np.asarray(position_heads(*map(jnp.asarray, (table, weights, pos))))
  np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
  assert error(np.nan_to_num(found), np.nan_to_num(expected)) < 1e-6


def test_a_normal_table_and_its_projections_give_heads_of_variance_1(key):
  params = normal_table(key, DIMS, 400) | normal_projections(key, DIMS)
  shapes = {name: x.shape for name, x in params.items()}
  assert shapes == {'table': (400, 64), 'query': (64, 4, 32), 'key': (64, 2, 32)}
  assert all(x.dtype == jnp.float32 for x in params.values())
  assert abs(params['table'].std() - 1) < 0.02
  for name in ('query', 'key'):
    heads = position_heads(params['table'], params[name], jnp.arange(400))
    assert abs(heads.std() - 1) < 0.05
