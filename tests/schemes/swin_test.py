import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.positions import grid
from posjax.schemes import swin
from tests.support.loops import attention, content, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3)
GOLDEN = load_golden('swin')
PIXELS = np.array([(y, x) for y in range(3) for x in range(4)])


def _params(key, heads=6):
  params = swin.scheme(3, 4).init(key, posjax.Dims(24, heads, 4))
  return {'table': 50 * params['table']}


def test_attention_is_the_papers_formula_pair_by_pair(key):
  params = _params(key)
  table = np.asarray(params['table'], np.float64)
  draw = np.random.default_rng(0).normal
  q, k, v = (draw(size=(2, n, h, 4)) for n, h in ((5, 6), (12, 2), (12, 2)))
  q_pos = np.stack([PIXELS[[3, 0, 11, 7, 7]], PIXELS[:5]])
  logits = content(q, k)
  for b, h, t, s in np.ndindex(logits.shape):
    dy, dx = q_pos[b, t] - PIXELS[s]
    logits[b, h, t, s] += table[dy + 2, dx + 3, h]
  single = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]
  out = attend(*single, swin.scheme(3, 4), params, q_pos=q_pos, k_pos=PIXELS)
  assert error(out, attention(logits, True, v)[0]) < 1e-5


def test_the_bias_equals_hugging_faces():
  table = jnp.asarray(GOLDEN['table']).reshape(5, 7, 2)
  found = swin.bias(table, jnp.asarray(PIXELS[:, None] - PIXELS[None]))
  np.testing.assert_array_equal(found, GOLDEN['bias'][0])


def test_rows_of_the_flat_table_are_hugging_faces():
  rows = jnp.arange(35.0).reshape(5, 7, 1)
  found = swin.bias(rows, jnp.asarray(PIXELS[:, None] - PIXELS[None]))[0]
  np.testing.assert_array_equal(found, GOLDEN['index'])


def test_the_ids_of_a_grid_are_those_of_the_window(key):
  table = _params(key)['table']
  pos = grid(3, 4)
  np.testing.assert_array_equal(pos, PIXELS)
  assert jnp.isfinite(swin.bias(table, pos[:, None] - pos[None])).all()


def test_an_offset_outside_of_the_window_is_nan(key):
  table = _params(key)['table']
  y, x = np.meshgrid(np.arange(-9, 10), np.arange(-9, 10), indexing='ij')
  found = swin.bias(table, jnp.asarray(np.stack([y, x], -1)))
  inside = (abs(y) < 3) & (abs(x) < 4)
  np.testing.assert_array_equal(np.isnan(found), np.broadcast_to(~inside, found.shape))


def test_windows_apart_by_segments_do_not_disturb_each_other(key):
  params, scheme = _params(key), swin.scheme(3, 4)
  q, k, v = jax.random.normal(key, (3, 1, 24, 6, 4))
  pos = jnp.asarray(
    np.concatenate([PIXELS, PIXELS + [0, 4]])
  )  # two windows side by side in one image
  window = jnp.asarray(np.arange(24) // 12 + 1)[None]
  how = {'q_segments': window, 'k_segments': window}

  def out(q, k, v, pos, **how):
    return posjax.attend(q, k, v, scheme, params, q_pos=pos, k_pos=pos, **how)

  both, back = jax.vjp(lambda q: out(q, k, v, pos, **how), q)
  alone = [out(*(x[:, i : i + 12] for x in (q, k, v)), jnp.asarray(PIXELS)) for i in (0, 12)]
  assert error(both, jnp.concatenate(alone, 1)) < 1e-6
  assert jnp.isfinite(back(both)[0]).all()


def test_each_entry_is_trained_by_its_own_offset(key):
  y, x = 2, -3
  grad = jax.grad(lambda t: swin.bias(t, jnp.array([[y, x], [9, 9]]))[:, 0].sum())
  found = grad(_params(key)['table'])
  assert found[y + 2, x + 3].tolist() == [1] * 6
  assert found.sum() == 6


def test_one_token_has_one_entry(key):
  params = swin.scheme(1, 1).init(key, posjax.Dims(24, 6, 4))
  assert params['table'].shape == (1, 1, 6)
  found = swin.bias(params['table'], jnp.zeros((1, 2), jnp.int32))
  np.testing.assert_array_equal(found[:, 0], params['table'][0, 0])


def test_initial_entries_have_deviation_two_hundredths(key):
  table = swin.scheme(16, 16).init(key, posjax.Dims(24, 6, 4))['table']
  assert table.shape == (31, 31, 6)
  assert abs(table.std() - 0.02) < 1e-3


def test_fractions_of_a_token_are_refused(key):
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    swin.bias(_params(key)['table'], jnp.zeros((3, 2)))
