import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import grouped, rope
from tests.support import loops
from tests.support.loops import error

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _heads(*shapes):
  normal = np.random.default_rng(0).normal
  return [normal(size=shape).astype(np.float32) for shape in shapes]


def _distance(i, j, group, window):
  return i - j if i - j < window else i // group - j // group + window - window // group


def _reference(q, k, q_pos, k_pos, distance, base=10000.0, interleaved=False):
  """RoPE pair by pair in float64 at distance(i, j); ids [T] and [S]."""
  q, k, half = np.asarray(q, np.float64), np.asarray(k, np.float64), q.shape[-1] // 2
  pairs = lambda x: (x[0::2] + 1j * x[1::2]) if interleaved else (x[:half] + 1j * x[half:])
  shared, frequency = q.shape[2] // k.shape[2], base ** (-np.arange(half) / half)
  out = np.zeros((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  for b, h, t, s in np.ndindex(out.shape):
    turn = np.exp(1j * distance(int(q_pos[t]), int(k_pos[s])) * frequency)
    product = pairs(q[b, t, h]) * pairs(k[b, s, h // shared]).conj() * turn
    out[b, h, t, s] = product.sum().real / np.sqrt(2 * half)
  return out


@pytest.mark.parametrize(
  ('group', 'window', 'interleaved'), [(3, 4, False), (4, 10, True), (5, 1, False)]
)
def test_it_is_the_papers_formula(group, window, interleaved):
  q, k, v = _heads((2, 5, 4, 6), (2, 9, 2, 6), (2, 9, 2, 3))
  q_pos, k_pos = np.array([0, 3, 11, 12, 900]), np.array([0, 1, 2, 3, 5, 8, 11, 12, 899])
  scheme = grouped.scheme(group, window, 500.0, interleaved)
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  distance = functools.partial(_distance, group=group, window=window)
  scores = _reference(q, k, q_pos, k_pos, distance, 500.0, interleaved)
  seen = loops.causal(q_pos[None], k_pos[None])
  assert error(out, loops.attention(scores, seen, v)[0]) < 1e-5


def test_the_distances_of_a_small_case_written_by_hand():
  # Windows of 4, groups of 2: the last of ten tokens is 6 from the first, not 9.
  q_ids, k_ids = grouped.grouped_ids(jnp.arange(10), jnp.arange(10), 2, 4)
  far = q_ids[9] - k_ids[:6]
  np.testing.assert_array_equal(far, [6, 6, 5, 5, 4, 4])


def test_the_floor_is_kept_where_the_group_does_not_divide_the_window():
  q_ids, _ = grouped.grouped_ids(jnp.array([10]), jnp.array([0]), 4, 10)
  np.testing.assert_array_equal(q_ids, [10 // 4 + 10 - 2])


def test_no_distance_reaches_beyond_the_groups():
  # A length of n with windows w and groups G needs at most (n - w) / G + w + 1 distances.
  pos = jnp.arange(1000)
  q_ids, k_ids = grouped.grouped_ids(pos, pos, 8, 64)
  assert int(q_ids.max() - k_ids.min()) <= (1000 - 64) / 8 + 64 + 1


@pytest.mark.parametrize(('group', 'window'), [(1, 3), (7, 1001)])
def test_groups_of_one_and_long_windows_are_rope(group, window):
  q, k, v = _heads((1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8))
  ids = dict.fromkeys(('q_pos', 'k_pos'), np.array([0, 1, 5, 900, 1000]))
  out = attend(q, k, v, grouped.scheme(group, window), {}, **ids, causal=True)
  assert error(out, attend(q, k, v, rope.scheme(), {}, **ids, causal=True)) < 1e-5


def test_logits_stay_under_shifts_by_whole_groups_at_every_position_and_under_no_others():
  q, k = _heads((1, 1, 2, 32), (1, 4, 1, 32))
  logits = jax.jit(functools.partial(grouped.rotated_logits, group=6, window=20))
  back = np.array([[0, 5, 19, 100]])
  at = lambda pos: logits(q, k, np.full((1, 1), pos, np.int32), np.int32(pos - back))
  near = at(102)
  for far in (102 + 6 * 10**4, 102 + 6 * 10**8):
    assert error(at(far), near) < 1e-5
  assert error(at(107), near) > 1e-2
  # Within the window they depend on the distance alone.
  assert error(at(2**31 - 1)[..., :3], near[..., :3]) < 1e-5


def test_tokens_of_a_far_group_are_alike():
  q, k = _heads((1, 1, 2, 8), (1, 1, 2, 8))
  logits = jax.jit(functools.partial(grouped.rotated_logits, group=4, window=8))
  at = lambda pos: logits(q, k, np.array([[40]]), np.array([[pos]]))
  assert error(at(11), at(8)) < 1e-6
  assert error(at(12), at(8)) > 1e-2


def test_gradients_reach_near_and_far_keys():
  q, k = (jnp.asarray(x) for x in _heads((1, 1, 2, 6), (1, 2, 1, 6)))
  ids = jnp.array([[20]]), jnp.array([[1, 19]])
  of = lambda k: grouped.rotated_logits(q, k, *ids, 3, 4).sum()
  slope = jax.jit(jax.grad(of))(k)
  for s, c in ((0, 1), (1, 4)):
    unit = np.zeros((1, 2, 1, 6))
    unit[0, s, 0, c] = 1
    distance = functools.partial(_distance, group=3, window=4)
    assert error(slope[0, s, 0, c], _reference(q, unit, [20], [1, 19], distance).sum()) < 1e-5


@pytest.mark.parametrize('side', [0, 1])
def test_float_ids_are_refused(side):
  ids = [jnp.arange(3), jnp.arange(3)]
  ids[side] = ids[side].astype(jnp.float32)
  with pytest.raises(TypeError, match='whole tokens and needs integer ids, but got float32'):
    grouped.grouped_ids(*ids, 3, 4)


def test_a_width_that_is_not_even_is_refused():
  x, pos = jnp.zeros((1, 2, 1, 5)), jnp.zeros((1, 2), jnp.int32)
  with pytest.raises(ValueError, match='positive and even'):
    grouped.rotated_logits(x, x, pos, pos, 3, 4)
