"""Ids and orders that are 2^31 and more apart, which int32 cannot subtract."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention import distances, masks, schedule
from posjax.attention.blockwise import engine
from posjax.attention.inputs import Rules, Tokens, read_window
from tests.support import loops
from tests.support.draws import DRAW

LEAST, MOST = -(2**31), 2**31 - 1
ORDER = np.array([[LEAST, -3, -1, 0, 2, 3, MOST - 1, MOST], [MOST, 0, LEAST, 1, -1, 5, -2, 2**30]])
ORDER = ORDER.astype(np.int32)
RULES = [
  {'causal': True},
  {'window': 3},
  {'window': MOST},
  {'window': (1, MOST)},
  {'window': (None, 2)},
  {'causal': True, 'window': 2},
  {'causal': True, 'window': MOST},
]


def seen(order, causal=False, window=None):
  """Pair by pair, in Python's integers."""
  left, right = window if isinstance(window, tuple) else (window and window - 1,) * 2
  found = np.zeros((order.shape[0], 1, order.shape[1], order.shape[1]), bool)
  for b, _, t, s in np.ndindex(found.shape):
    back = int(order[b, t]) - int(order[b, s])
    near = (left is None or back <= left) and (right is None or -back <= right)
    found[b, 0, t, s] = (back >= 0 or not causal) and near
  return found


def rules(causal=False, window=None):
  return Rules(1.0, causal, read_window(window, causal), None, 0.0)


def normal(*shape):
  return jnp.asarray(DRAW.normal(size=shape), jnp.float32)


@pytest.mark.parametrize('options', [RULES[0], RULES[1], RULES[4]], ids=str)
def test_no_query_sees_the_future_or_beyond_its_window(options):
  q, k, v = normal(2, 8, 2, 4), normal(2, 8, 2, 4), normal(2, 8, 2, 3)
  order, pos = jnp.asarray(ORDER), jnp.arange(8)
  out = posjax.attend(
    q, k, v, posjax.Scheme(), {}, q_pos=pos, k_pos=pos, q_order=order, k_order=order,
    implementation='dense', **options,
  )  # fmt: skip
  q, k, v = map(np.asarray, (q, k, v))
  expected, _ = loops.attention(loops.content(q, k), seen(ORDER, **options), v)
  np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize('options', RULES, ids=str)
def test_no_tile_is_left_out_that_has_a_visible_pair_and_none_unmasked_that_hides_one(options):
  blocks = jnp.asarray(ORDER.reshape(2, 4, 2))
  tokens = Tokens(blocks, jnp.ones_like(blocks))
  some, whole = schedule.visible_tiles(rules(**options), tokens, tokens)
  tiles = seen(ORDER, **options)[:, 0].reshape(2, 4, 2, 4, 2).swapaxes(2, 3)
  assert (np.asarray(some) >= tiles.any((3, 4))).all()
  assert (np.asarray(whole) <= tiles.all((3, 4))).all()


def test_visible_pairs_are_the_same_for_orders_of_kernels_and_of_masks():
  q, k = jnp.asarray(ORDER)[:, :, None], jnp.asarray(ORDER)[:, None]
  for options in RULES:
    found = masks.within_reach(q, k, rules(**options), jnp.array(True))
    np.testing.assert_array_equal(found, seen(ORDER, **options)[:, 0])


SEEN_BY_DISTANCE = ['alibi', 'shaw(max_distance=4)']
SELDOM = [
  *('t5(bidirectional=True)', 'kerple', 'gaussian', 'deberta(max_distance=9)', "dape('alibi')"),
  *('transformer_xl(max_distance=3)', 'dynamic_bias(width=4)', 'fire(threshold=4.0)'),
]
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def compiled(line, q_pos, k_pos, implementation='dense'):
  """Attention in a program that does not know the ids when it is traced."""
  scheme = posjax.get(line)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(8, 2, 4))
  x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 3, 2, 4)), jnp.float32)
  params, _at = posjax.prepare(scheme, params, jnp.ones((1, 3, 8)), jnp.asarray([q_pos]))
  prepares = posjax.scheme.declares(scheme, 'prepare')

  def run(q_pos, k_pos):
    sides = {'q_at': q_pos[None], 'k_at': k_pos[None]} if prepares else {}
    return posjax.attend(
      x, x, x, scheme, params, q_pos=q_pos, k_pos=k_pos, implementation=implementation, **sides
    )

  return jax.jit(run)(jnp.array(q_pos, jnp.int32), jnp.array(k_pos, jnp.int32))


@pytest.mark.parametrize('line', [*SEEN_BY_DISTANCE, *map(slow, SELDOM)])
def test_a_distance_beyond_int32_is_taken_for_the_largest_of_int32(line):
  farthest = compiled(line, [MOST] * 3, [0, 0, 0])
  np.testing.assert_array_equal(compiled(line, [MOST] * 3, [-7, LEAST, -1]), farthest)


def test_ids_that_end_and_begin_again_do_not_count_up():
  over, back = jnp.array([[MOST - 1, MOST, LEAST]], jnp.int32), jnp.array([[0, 1, 2]], jnp.int32)
  assert not distances.contiguous(over, back)
  assert not distances.contiguous(back + LEAST, back + MOST - 2)
  assert distances.contiguous(back + 2**30, back)


def test_tiles_and_reference_agree_on_ids_of_both_ends(monkeypatch):
  monkeypatch.setattr(engine, 'tile_size', lambda *sizes: (2, 2))
  ids = [MOST - 1, MOST, LEAST], [LEAST, -1, MOST]
  found, expected = (compiled('alibi', *ids, way) for way in ('blockwise', 'dense'))
  np.testing.assert_allclose(found, expected, atol=1e-6)


def known(q_pos, k_pos, scheme='alibi', **options):
  x, arrays = jnp.ones((1, 2, 2, 4)), [jnp.asarray(ids, jnp.int32) for ids in (q_pos, k_pos)]
  params = {'slopes': jnp.ones(2)} if scheme == 'alibi' else {}
  pos = dict(zip(('q_pos', 'k_pos'), arrays, strict=True))
  return posjax.attend(x, x, x, posjax.get(scheme), params, **pos, **options)


def test_known_ids_that_are_too_far_apart_for_a_distance_are_refused():
  for pos in (([0, MOST], [-1, 5]), ([-1, 5], [0, MOST])):
    with pytest.raises(ValueError, match=r'at most 2147483647, but got 2147483647 and -1\.'):
      known(*pos)


def test_far_ids_of_padding_and_of_schemes_without_distances_are_taken():
  segments = {'q_segments': jnp.array([1, 1]), 'k_segments': jnp.array([0, 1])}
  for options in (segments, {'scheme': 'none'}):
    assert jnp.isfinite(known([0, MOST], [LEAST, 5], **options)).all()
