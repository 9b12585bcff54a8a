import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import dual_chunk, rope
from tests.support import loops
from tests.support.loops import error

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')

# The case of figure 2 of the paper, by hand: chunks of 6, trained on 10; row i, keys j <= i.
BY_HAND = [
  [0],
  [1, 0],
  [2, 1, 0],
  [3, 2, 1, 0],
  [4, 3, 2, 1, 0],
  [5, 4, 3, 2, 1, 0],
  [6, 5, 4, 3, 2, 1, 0],
  [7, 6, 5, 4, 3, 2, 1, 0],
  [8, 7, 6, 5, 4, 3, 2, 1, 0],
  [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
  [9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 0],
  [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0],
]


def _heads(*shapes):
  normal = np.random.default_rng(0).normal
  return [normal(size=shape).astype(np.float32) for shape in shapes]


def _distance(i, j, chunk, length):
  """The paper's M[i][j] for j not after i."""
  behind, r = i // chunk - j // chunk, i % chunk
  return {0: r, 1: min(r + chunk, length - 1)}.get(behind, length - 1) - j % chunk


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
  ('chunk', 'length', 'interleaved'), [(6, 10, False), (4, 5, True), (3, 9, False)]
)
def test_it_is_the_papers_formula(chunk, length, interleaved):
  q, k, v = _heads((2, 5, 4, 6), (2, 9, 2, 6), (2, 9, 2, 3))
  q_pos, k_pos = np.array([0, 3, 11, 12, 900]), np.array([0, 1, 2, 3, 5, 8, 11, 12, 899])
  scheme = dual_chunk.scheme(chunk, length, 500.0, interleaved)
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos, causal=True)
  distance = functools.partial(_distance, chunk=chunk, length=length)
  scores = _reference(q, k, q_pos, k_pos, distance, 500.0, interleaved)
  seen = loops.causal(q_pos[None], k_pos[None])
  assert error(out, loops.attention(scores, seen, v)[0]) < 1e-5


def test_distances_are_those_written_by_hand():
  q, k = _heads((1, 12, 2, 16), (1, 12, 1, 16))
  pos = np.arange(12)
  logits = jax.jit(functools.partial(dual_chunk.rotated_logits, chunk_size=6, length=10))
  found = logits(q, k, pos[None], pos[None])
  read = lambda i, j: BY_HAND[i][j] if j <= i else 0
  expected = _reference(q, k, pos, pos, read)
  seen = np.tri(12, dtype=bool)
  assert error(np.asarray(found)[..., seen], expected[..., seen]) < 1e-5


def _distances(tokens, chunk, length):
  """[T, T], from the three positions of each query."""
  pos = jnp.arange(tokens)
  each = [np.asarray(ids) for ids in dual_chunk.query_ids(pos, chunk, length)]
  chunks = np.arange(tokens) // chunk
  which = np.minimum(chunks[:, None] - chunks, 2)
  return np.choose(np.maximum(which, 0), [ids[:, None] for ids in each]) - np.arange(tokens) % chunk


@pytest.mark.parametrize(('chunk', 'length'), [(6, 10), (7, 8), (3, 11)])
def test_no_distance_exceeds_the_trained_length(chunk, length):
  found = _distances(60, chunk, length)[np.tri(60, dtype=bool)]
  assert found.min() == 0
  assert found.max() == length - 1


@pytest.mark.parametrize(('chunk', 'length'), [(6, 10), (7, 8), (3, 6)])
def test_the_nearest_tokens_keep_their_distance_across_chunks(chunk, length):
  found, pos = _distances(60, chunk, length), np.arange(60)
  back = pos[:, None] - pos
  near = (back >= 0) & (back < length - chunk)
  np.testing.assert_array_equal(found[near], back[near])


def test_within_one_chunk_it_is_rope():
  q, k, v = _heads((1, 5, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8))
  ids = dict.fromkeys(('q_pos', 'k_pos'), np.array([3000, 3001, 3005, 3900, 5999]))
  out = attend(q, k, v, dual_chunk.scheme(3000, 3001), {}, **ids)
  assert error(out, attend(q, k, v, rope.scheme(), {}, **ids)) < 1e-5


def test_logits_stay_under_shifts_by_whole_chunks_at_every_position_and_under_no_others():
  q, k = _heads((1, 1, 2, 32), (1, 4, 1, 32))
  logits = jax.jit(functools.partial(dual_chunk.rotated_logits, chunk_size=60, length=80))
  back = np.array([[0, 5, 50, 150]])
  at = lambda pos: logits(q, k, np.full((1, 1), pos, np.int32), np.int32(pos - back))
  near = at(207)
  for far in (207 + 60 * 10**4, 207 + 60 * 10**7):
    assert error(at(far), near) < 1e-5
  assert error(at(217), near) > 1e-2


def test_it_never_holds_a_vector_for_each_pair():
  x, pos = jnp.zeros((1, 32, 1, 24)), jnp.arange(32)[None]
  jaxpr = jax.make_jaxpr(lambda x: dual_chunk.rotated_logits(x, x, pos, pos, 6, 10))(x)
  sizes = [v.aval.size for equation in jaxpr.jaxpr.eqns for v in equation.outvars]
  assert 32 * 32 <= max(sizes) < 32 * 32 * 24
  products = [e for e in jaxpr.jaxpr.eqns if e.primitive.name == 'dot_general']
  assert len(products) == 3


def test_gradients_reach_keys_of_every_chunk():
  q, k = (jnp.asarray(x) for x in _heads((1, 1, 2, 6), (1, 3, 1, 6)))
  ids = jnp.array([[20]]), jnp.array([[1, 13, 19]])
  of = lambda k: dual_chunk.rotated_logits(q, k, *ids, 6, 10).sum()
  slope = jax.jit(jax.grad(of))(k)
  distance = functools.partial(_distance, chunk=6, length=10)
  for s in range(3):
    unit = np.zeros((1, 3, 1, 6))
    unit[0, s, 0, 4] = 1
    assert error(slope[0, s, 0, 4], _reference(q, unit, [20], [1, 13, 19], distance).sum()) < 1e-5


@pytest.mark.parametrize('side', ['q_pos', 'k_pos'])
def test_float_ids_are_refused(side):
  x, ids = jnp.zeros((1, 3, 1, 4)), {'q_pos': jnp.arange(3)[None], 'k_pos': jnp.arange(3)[None]}
  ids[side] = ids[side].astype(jnp.float32)
  with pytest.raises(TypeError, match='whole tokens and needs integer ids, but got float32'):
    dual_chunk.rotated_logits(x, x, **ids, chunk_size=6, length=10)


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ({'length': 6}, 'must be above the chunk_size 6, the rest being the local window, but got 6'),
  ],
)
def test_arguments_out_of_range_are_refused(argument, message):
  with pytest.raises(ValueError, match=message):
    dual_chunk.scheme(**{'chunk_size': 6, 'length': 10, **argument})


def test_a_width_that_is_not_even_is_refused():
  x, pos = jnp.zeros((1, 2, 1, 5)), jnp.zeros((1, 2), jnp.int32)
  with pytest.raises(ValueError, match='positive and even'):
    dual_chunk.rotated_logits(x, x, pos, pos, 6, 10)
