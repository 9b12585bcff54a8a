import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import rope, xpos
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('xpos')
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
logits = jax.jit(xpos.rotated_logits, static_argnums=(4, 5, 6, 7, 8))


def _reference(q, k, q_pos, k_pos, width, scale_base=512.0, gamma=0.4, interleaved=False):
  """Pair by pair in float64: q and k [B, T, H, D] and [B, S, K, D], ids [B, T] and [B, S]."""
  q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
  half, head_dim = width // 2, q.shape[-1]
  frequency = np.array([10000.0 ** (-2 * c / width) for c in range(half)])
  zeta = np.array([(2 * c / width + gamma) / (1 + gamma) for c in range(half)])

  def pairs(x):
    if interleaved:
      return x[0:width:2] + 1j * x[1:width:2]
    return x[:half] + 1j * x[half:width]

  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(out.shape):
    distance = float(q_pos[b, t]) - float(k_pos[b, s])
    one, other = q[b, t, h], k[b, s, h // (q.shape[2] // k.shape[2])]
    turned = pairs(one) * pairs(other).conj() * np.exp(1j * distance * frequency)
    turned = (turned * zeta ** (distance / scale_base)).sum().real
    out[b, h, t, s] = (turned + one[width:] @ other[width:]) / np.sqrt(head_dim)
  return out


def _heads(tokens, keys, heads, kv_heads, width):
  normal = np.random.default_rng(0).normal
  shapes = [(2, tokens, heads, width), (2, keys, kv_heads, width), (2, keys, kv_heads, width)]
  return [normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(('fraction', 'interleaved'), [(1.0, False), (0.5, True)])
def test_it_is_the_papers_formula(fraction, interleaved):
  q, k, v = _heads(5, 7, 4, 2, 12)
  q_pos = np.array([[3, 0, 9, 40, 400], [900, 901, 3, 5, 5]])
  k_pos = np.array([[0, 1, 3, 8, 9, 30, 41], [7, 901, 2, 5, 800, 0, 1]])
  arguments = {'scale_base': 64.0, 'gamma': 0.7, 'fraction': fraction, 'interleaved': interleaved}
  ids = {'q_pos': q_pos, 'k_pos': k_pos}
  out = attend(q, k, v, xpos.scheme(**arguments), {}, **ids, causal=True)
  width = int(12 * fraction)
  scores = _reference(q, k, q_pos, k_pos, width, 64.0, 0.7, interleaved)
  seen = loops.causal(q_pos, k_pos)
  assert error(out, loops.attention(scores, seen, np.asarray(v))[0]) < 1e-5


def test_logits_equal_x_transformers():
  q, k = (GOLDEN[name].swapaxes(1, 2) for name in 'qk')
  pos = np.broadcast_to(np.arange(20), (2, 20))
  found = logits(q, k, pos, pos, 10000.0, 512.0, 0.4, 1.0, True)
  assert error(found * np.sqrt(16), GOLDEN['logits']) < 1e-5


def test_decays_equal_x_transformers_and_the_papers_ends():
  assert error(xpos.decays(16), GOLDEN['zeta']) < 1e-6
  assert xpos.decays(64)[0] == 0.4 / 1.4
  np.testing.assert_allclose(xpos.decays(64)[-1], (62 / 64 + 0.4) / 1.4)


def test_logits_depend_on_the_distance_only_at_every_position():
  q, k, _ = _heads(1, 1, 2, 1, 32)
  id_of = lambda pos: np.full((2, 1), pos, np.int32)
  at = lambda q_pos, k_pos: logits(q, k, id_of(q_pos), id_of(k_pos))
  for distance in (0, 1, 1000, 20000):
    near = at(distance, 0)
    expected = _reference(q, k, np.full((2, 1), distance), np.zeros((2, 1)), 32)
    assert error(near, expected) < 1e-5
    for q_pos in (131072, 10**9, 2**31 - 1):
      assert error(at(q_pos, q_pos - distance), near) < 1e-5


def test_a_tile_of_distant_queries_is_exact_where_two_sided_powers_overflow():
  q, k, v = _heads(6, 6, 2, 2, 16)
  pos = np.array([[45000, 45001, 50000, 50007, 60000, 70000]] * 2)
  assert float(np.finfo(np.float32).max) < (1.4 / 0.4) ** (45000 / 512)
  ids = {'q_pos': pos, 'k_pos': pos}
  out = attend(q, k, v, xpos.scheme(), {}, **ids, causal=True)
  scores = _reference(q, k, pos, pos, 16)
  assert error(out, loops.attention(scores, loops.causal(pos, pos), np.asarray(v))[0]) < 1e-5


def test_a_pair_that_does_not_turn_falls_off_by_its_zeta():
  # With a huge base the second pair hardly turns: zeta_1 = (0.5 + 0.4) / 1.4.
  x = np.array([0, 1, 0, 0], np.float32).reshape(1, 1, 1, 4)
  for distance in (0, 100, 512, 5000):
    found = logits(x, x, np.array([[distance]]), np.array([[0]]), 1e20)
    np.testing.assert_allclose(found[0, 0, 0, 0], 0.5 * (0.9 / 1.4) ** (distance / 512), rtol=1e-5)


def test_keys_far_back_add_exactly_nothing():
  q, k, _ = _heads(1, 1, 2, 1, 32)
  zero = np.zeros((2, 1), np.int32)
  for far in (10**6, 10**9, 2**31 - 1):
    np.testing.assert_array_equal(logits(q, k, zero + far, zero), 0)


@pytest.mark.parametrize('slow', [{'scale_base': 1e12}, {'gamma': 1e9}])
def test_without_decay_it_is_rope(slow):
  q, k, v = _heads(5, 5, 4, 2, 8)
  pos = np.array([0, 1, 5, 900, 1000])
  out = attend(q, k, v, xpos.scheme(**slow), {}, q_pos=pos, k_pos=pos)
  expected = attend(q, k, v, rope.scheme(), {}, q_pos=pos, k_pos=pos)
  assert error(out, expected) < 1e-5


def test_beyond_reach_is_nan_and_within_it_is_not():
  q, k, _ = _heads(1, 2, 1, 1, 8)
  most = int(xpos.reach(0.4, 512.0))
  zero = np.zeros((2, 1), np.int32)
  found = logits(q, k, zero, np.broadcast_to(np.array([most, most + 1]), (2, 2)))
  assert np.isfinite(found[..., 0]).all()
  assert np.isnan(found[..., 1]).all()
  # Queries: twice the reach from end to end.
  pos = np.broadcast_to(np.array([0, 2 * most + 4]), (2, 2))
  assert np.isnan(logits(k, k, pos, pos)).all()
  pos = np.broadcast_to(np.array([0, 2 * most - 2]), (2, 2))
  seen = np.tri(2, dtype=bool)
  assert np.isfinite(logits(k, k, pos, pos)[..., seen]).all()


def test_keys_too_far_ahead_spoil_neither_values_nor_gradients_under_a_causal_mask():
  q, k, v = map(jnp.asarray, _heads(2, 4, 2, 2, 8))
  pos = jnp.array([7, 9]), jnp.array([3, 8, 10**5, 2**30])

  @functools.partial(jax.jit, static_argnums=2)
  def gradients(q, k, seen):
    call = functools.partial(posjax.attend, causal=True, q_pos=pos[0], k_pos=pos[1][:seen])
    loss = lambda q, k: (call(q, k[:, :seen], v[:, :seen], xpos.scheme(), {}) ** 2).sum()
    return jax.grad(loss, argnums=(0, 1))(q, k)

  every, near = gradients(q, k, 4), gradients(q, k, 2)
  assert error(every[0], near[0]) < 1e-6
  assert error(every[1], near[1]) < 1e-6
  np.testing.assert_array_equal(every[1][:, 2:], 0)


def test_gradients_are_those_of_the_formula():
  q, k, _ = _heads(2, 3, 2, 1, 8)
  q_pos, k_pos = np.array([[5, 90]] * 2), np.array([[0, 4, 60]] * 2)
  each = np.random.default_rng(0).normal(size=(2, 2, 2, 3))
  ids = jnp.asarray(q_pos), jnp.asarray(k_pos)
  of = lambda q, k: (xpos.rotated_logits(q, k, *ids, 10000.0, 40.0) * each).sum()
  grads = jax.jit(jax.grad(of, argnums=(0, 1)))(q, k)
  # Bilinear: the gradient by one number is the value at its unit vector.
  for which, index in ((0, (1, 1, 0, 3)), (1, (0, 2, 0, 6))):
    unit = [q, k]
    unit[which] = np.zeros_like(unit[which])
    unit[which][index] = 1
    expected = (_reference(*unit, q_pos, k_pos, 8, 40.0) * each).sum()
    assert error(grads[which][index], expected) < 1e-5


def test_float_ids_count_fractions_of_a_token_and_have_gradients():
  q, k, _ = _heads(1, 1, 1, 1, 8)
  for q_pos, k_pos in ((0.5, 0.25), (1e6 + 0.25, 1e6)):
    ids = [np.full((2, 1), pos, np.float32) for pos in (q_pos, k_pos)]
    assert error(logits(q, k, *ids), _reference(q, k, *ids, 8)) < 1e-5
  q_pos, k_pos = (np.full((2, 1), pos, np.float32) for pos in (4.0, 1.5))
  fixed = [jnp.asarray(x) for x in (q, k, k_pos)]
  of = lambda pos: xpos.rotated_logits(*fixed[:2], pos, fixed[2], 10000.0, 20.0).sum()
  slope = jax.jit(jax.grad(of))(q_pos)
  step = lambda h: _reference(q, k, q_pos + h, k_pos, 8, 20.0)[:, 0, 0]
  assert error(slope, (step(2**-12) - step(-(2**-12))) * 2**11) < 1e-5


def test_bfloat16_heads_are_multiplied_in_float32():
  q, k, _ = _heads(1, 3, 2, 1, 16)
  q, k = (np.asarray(x, jnp.bfloat16) for x in (q, k))
  pos = [np.full((2, 1), 131072), np.array([[0, 70, 131072 - 50]] * 2)]
  found = logits(q, k, *pos)
  assert found.dtype == jnp.float32
  assert error(found, _reference(q, k, *pos, 16)) < 1e-5


def test_a_width_that_is_not_even_is_refused():
  x, pos = jnp.zeros((1, 2, 1, 5)), jnp.zeros((1, 2), jnp.int32)
  with pytest.raises(ValueError, match=r'positive and even, but fraction 1.0 of head width 5'):
    posjax.attend(x, x, x, xpos.scheme(), {}, q_pos=pos, k_pos=pos)
