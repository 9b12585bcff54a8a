"""The cache alone: slots, the newest token, the ring, and what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.layers import cache as caches
from tests.support.toy_schemes import TOYS

DIMS = posjax.Dims(width=12, num_heads=4, head_dim=6, num_kv_heads=2)


def tokens(start, count, batch=1):
  """k, v, at, pos, segments whose numbers are the tokens' indices."""
  index = jnp.broadcast_to(jnp.arange(start, start + count), (batch, count))
  heads = jnp.broadcast_to(index[..., None, None], (batch, count, 2, 6)).astype(jnp.float32)
  return heads, -heads, {'total': heads[:, :, :, 0].repeat(2, 2)}, index, jnp.ones_like(index)


def forgetful(capacity, **kwargs):
  return caches.empty(TOYS['forgetful'], DIMS, 1, capacity, **kwargs)


def held(cache):
  """Indices of the tokens in the slots; -1 where nothing is seen."""
  index = np.where(cache.segments[0] != 0, cache.k[0, :, 0, 0], -1)
  seen = index >= 0
  for same in (-cache.v[0, :, 1, 5], cache.at['total'][0, :, 3], cache.pos[0], cache.order[0]):
    np.testing.assert_array_equal(index[seen], np.asarray(same)[seen])
  return index.astype(int).tolist()


def test_an_empty_cache_has_the_form_of_what_prepare_returns_and_shows_nothing():
  cache = forgetful(5)
  assert cache.k.shape == cache.v.shape == (1, 5, 2, 6)
  assert jax.tree.map(jnp.shape, cache.at) == {'total': (1, 5, 4)}
  assert not cache.segments.any()
  assert cache.length == 0


def test_a_scheme_that_prepares_nothing_stores_no_at():
  assert caches.empty(posjax.get('rope+alibi'), DIMS, 1, 5).at is None


def test_a_chain_stores_the_at_of_each_member():
  scheme = posjax.chain(TOYS['forgetful'], posjax.get('rope'))
  at = caches.empty(scheme, DIMS, 2, 5).at
  assert jax.tree.map(jnp.shape, at) == ({'total': (2, 5, 4)}, (2, 5))


def test_ids_take_the_number_of_axes_and_the_dtype_asked_for():
  assert caches.empty(TOYS['streets'], DIMS, 2, 5).pos.shape == (2, 5, 2)
  wide = caches.empty(posjax.Scheme(), DIMS, 2, 5, axes=3, pos_dtype=jnp.float32).pos
  assert (wide.shape, wide.dtype) == ((2, 5, 3), jnp.float32)


def test_tokens_fill_the_slots_in_order():
  seen, cache = caches.append(forgetful(6), *tokens(0, 3))
  assert held(seen) == held(cache) == [0, 1, 2, -1, -1, -1]
  _, cache = caches.append(cache, *tokens(3, 2))
  assert held(cache) == [0, 1, 2, 3, 4, -1]
  assert cache.length == 5


@pytest.mark.parametrize('chunks', [(1,) * 11, (3, 3, 3, 2), (11,), (4, 1, 6), (5, 6)])
def test_a_ring_keeps_the_last_tokens_each_in_its_slot(chunks):
  cache, start = forgetful(4), 0
  for count in chunks:
    _, cache = caches.append(cache, *tokens(start, count), window=4)
    start += count
    expected = [[i for i in range(start) if i % 4 == slot][-1:] or [-1] for slot in range(4)]
    assert held(cache) == [i for (i,) in expected]
  assert cache.length == 11


def test_several_tokens_on_a_ring_see_the_old_ones_that_they_replace():
  _, cache = caches.append(forgetful(4), *tokens(0, 6), window=4)
  seen, cache = caches.append(cache, *tokens(6, 3), window=4)
  assert held(seen) == [2, 3, 4, 5, 6, 7, 8]
  assert held(cache) == [8, 5, 6, 7]


@pytest.mark.parametrize('count', [2, 4, 7])
def test_sorted_slots_show_tokens_in_order_after_the_empty_slots(count):
  _, cache = caches.append(forgetful(4), *tokens(0, count), window=4)
  seen, stored = caches.append(cache, *tokens(count, 1), window=4, sorted_slots=True)
  last = list(range(max(0, count - 3), count + 1))
  assert held(seen) == [-1] * (4 - len(last)) + last
  assert sorted(held(stored)) == sorted(held(seen))


def test_the_newest_at_is_zero_at_first_and_follows_the_tokens():
  cache = forgetful(4)
  np.testing.assert_array_equal(caches.last(cache)['total'], np.zeros((1, 4)))
  for count in (3, 1, 6):
    start = int(cache.length)
    _, cache = caches.append(cache, *tokens(start, count), window=4)
    np.testing.assert_array_equal(caches.last(cache)['total'], np.full((1, 4), start + count - 1.0))


def test_a_full_cache_is_an_error():
  _, cache = caches.append(forgetful(4), *tokens(0, 3))
  with pytest.raises(ValueError, match='has 4 slots, 3 of them taken, so 2 tokens do not fit'):
    caches.append(cache, *tokens(3, 2))


def test_more_tokens_than_slots_are_an_error_under_jit_too():
  with pytest.raises(ValueError, match='has 4 slots, 0 of them taken, so 5 tokens do not fit'):
    jax.jit(caches.append)(forgetful(4), *tokens(0, 5))


def test_a_full_cache_under_jit_gives_nan_values_and_tells_by_its_length():
  _, cache = caches.append(forgetful(4), *tokens(0, 3))
  _, cache = jax.jit(caches.append)(cache, *tokens(3, 2))
  assert jnp.isnan(cache.v[:, 2:]).all()
  assert cache.length == 5


def test_a_ring_shorter_than_its_window_is_an_error():
  with pytest.raises(ValueError, match='hold its window of 5 tokens, but has 4 slots'):
    caches.append(forgetful(4), *tokens(0, 1), window=5)


def test_keys_and_values_are_rounded_to_the_cache_and_nothing_else_is():
  _, cache = caches.append(forgetful(4, dtype=jnp.bfloat16), *tokens(0, 1))
  assert cache.k.dtype == cache.v.dtype == jnp.bfloat16
  k, v, at, pos, segments = tokens(0, 1)
  with pytest.raises(TypeError, match='holds pos as int32, but got float32'):
    caches.append(forgetful(4), k, v, at, pos.astype(jnp.float32), segments)
  narrow = forgetful(4)
  narrow = narrow._replace(at=jax.tree.map(lambda a: a.astype(jnp.bfloat16), narrow.at))
  with pytest.raises(TypeError, match='holds at as bfloat16, but got float32'):
    caches.append(narrow, k, v, at, pos, segments)


def test_what_does_not_fit_the_cache_is_named():
  k, v, at, pos, segments = tokens(0, 1)
  with pytest.raises(ValueError, match=r'k must be \(1, 1, 2, 6\) for this cache, but got \(2,'):
    caches.append(forgetful(4), *tokens(0, 1, batch=2))
  with pytest.raises(ValueError, match=r'pos must be \(1, 1\) for this cache, but got \(1, 1, 2\)'):
    caches.append(forgetful(4), k, v, at, jnp.zeros((1, 1, 2), jnp.int32), segments)
  with pytest.raises(ValueError, match=r'at must be PyTreeDef.*but got PyTreeDef'):
    caches.append(forgetful(4), k, v, None, pos, segments)
  with pytest.raises(ValueError, match='at least one slot, but got capacity=0'):
    forgetful(0)


def test_a_cache_is_carried_by_scan():
  def step(cache, i):
    k, v, at, pos, segments = tokens(0, 1)
    moved = (k + i, v - i, jax.tree.map(lambda a: a + i, at), pos + i, segments)
    return caches.append(cache, *moved)[1], None

  cache, _ = jax.lax.scan(step, forgetful(6), jnp.arange(4))
  assert held(cache) == [0, 1, 2, 3, -1, -1]
