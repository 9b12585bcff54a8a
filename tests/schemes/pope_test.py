import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.schemes import pope
from tests.support import loops
from tests.support.loops import error

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
DIMS = posjax.Dims(16, 4, 8, 2)


def _heads(*shapes):
  normal = np.random.default_rng(0).normal
  return [normal(size=shape).astype(np.float32) for shape in shapes]


def _reference(q, k, q_pos, k_pos, delta, base=10000.0):
  """Eq. 6 number by number in float64, delta [H, D] in [-2 pi, 0]; ids [T] and [S]."""
  q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
  (batch, queries, heads, width), (_, keys, kv_heads, _) = q.shape, k.shape
  softplus = lambda x: np.log1p(np.exp(x))
  out = np.zeros((batch, heads, queries, keys))
  for b, h, t, s in np.ndindex(out.shape):
    for c in range(width):
      # The paper's angle: that of the key less that of the query, plus delta.
      angle = (float(k_pos[s]) - float(q_pos[t])) * base ** (-c / width) + delta[h, c]
      size = softplus(q[b, t, h, c]) * softplus(k[b, s, h // (heads // kv_heads), c])
      out[b, h, t, s] += size * np.cos(angle) / np.sqrt(width)
  return out


def _deltas():
  return -np.random.default_rng(1).uniform(0, 2 * np.pi, (4, 8))


def test_it_is_the_papers_formula_with_a_delta_for_each_query_head():
  q, k, v = _heads((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 3))
  q_pos, k_pos, delta = np.array([3, 0, 9, 40, 4000]), np.array([0, 1, 3, 8, 9, 30, 41]), _deltas()
  params = {'phase': np.float32(-delta)}
  out = attend(q, k, v, pope.scheme(500.0), params, q_pos=q_pos, k_pos=k_pos)
  scores = _reference(q, k, q_pos, k_pos, delta, 500.0)
  assert error(out, loops.attention(scores, True, v)[0]) < 1e-5


def test_logits_depend_on_the_distance_only_at_every_position():
  q, k = (jnp.asarray(x) for x in _heads((1, 1, 4, 32), (1, 1, 2, 32)))
  params = {'phase': jnp.asarray(np.random.default_rng(1).uniform(0, 6, (4, 32)), jnp.float32)}
  scheme = pope.scheme()

  @jax.jit
  def logit(q_pos, k_pos):
    placed = scheme.query(params, q, q_pos), scheme.key(params, k, k_pos)
    return posjax.math.heads.product(*placed)

  at = lambda pos: np.full((1, 1), pos, np.int32)
  for distance in (0, 1, 1000, 131072):
    near = logit(at(distance), at(0))
    for q_pos in (131072, 10**9, 2**31 - 1):
      assert error(logit(at(q_pos), at(q_pos - distance)), near) < 1e-5


def test_content_never_moves_where_a_product_is_largest():
  # One number per head: logit(distance) / its largest is cos(distance + phase), whatever q and k.
  scheme, params = pope.scheme(), {'phase': jnp.full((1, 1), 2.0)}
  distances = np.arange(12)
  expected = np.cos(distances + 2.0)
  place = jax.jit(lambda x, k, pos: (scheme.query(params, x, pos), scheme.key(params, k, pos * 0)))
  for content in (-3.0, 0.5, 4.0):
    x = np.full((1, 12, 1, 1), content, np.float32)
    q, k = place(x, -x, distances[None])
    size = np.log1p(np.exp(content)) * np.log1p(np.exp(-content))
    assert error((q * k).sum(-1)[0, :, 0], size * expected) < 1e-5


def test_without_phases_before_and_behind_are_alike():
  q, k, v = _heads((1, 1, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8))
  params = {'phase': np.zeros((2, 8), np.float32)}
  at = lambda k_pos: attend(q, k, v, pope.scheme(), params, q_pos=np.array([9]), k_pos=k_pos)
  assert error(at(np.array([6, 8, 2])), at(np.array([12, 10, 16]))) < 1e-6


def test_at_one_position_without_phases_it_is_attention_of_the_sizes():
  q, k, v = _heads((2, 3, 2, 8), (2, 4, 2, 8), (2, 4, 2, 8))
  params = {'phase': np.zeros((2, 8), np.float32)}
  ids = {'q_pos': np.full(3, 77), 'k_pos': np.full(4, 77)}
  sizes = (np.log1p(np.exp(x)) for x in (q, k))
  expected = attend(*sizes, v, posjax.Scheme(), {}, **ids)
  assert error(attend(q, k, v, pope.scheme(), params, **ids), expected) < 1e-6


def test_there_are_as_many_frequencies_as_numbers():
  scheme, x = pope.scheme(base=100.0), np.zeros((1, 1, 1, 4), np.float32)
  placed = jax.jit(scheme.key)({}, x, np.array([[1]]))
  assert placed.shape == (1, 1, 1, 8)
  angles = 100.0 ** (-np.arange(4) / 4)
  expected = np.log(2) * np.concatenate([np.cos(angles), np.sin(angles)])
  assert error(placed[0, 0, 0], expected) < 1e-6


def test_phases_start_at_zero_or_anywhere():
  np.testing.assert_array_equal(
    pope.scheme().init(jax.random.key(0), DIMS)['phase'], np.zeros((4, 8))
  )
  many = posjax.Dims(64, 8, 64)
  phase = pope.scheme(uniform=True).init(jax.random.key(0), many)['phase']
  assert phase.shape == (8, 64)
  assert 0 <= phase.min() < 0.1
  assert 2 * np.pi - 0.1 < phase.max() < 2 * np.pi
  assert abs(phase.mean() - np.pi) < 0.3


def test_phases_are_clipped_where_they_are_used():
  q, k, v = _heads((1, 3, 4, 8), (1, 3, 2, 8), (1, 3, 2, 8))
  pos, delta = np.array([0, 3, 4]), _deltas()
  delta[0], delta[1] = 0.7, -9.0
  params = {'phase': np.float32(-delta)}
  out = attend(q, k, v, pope.scheme(), params, q_pos=pos, k_pos=pos)
  scores = _reference(q, k, pos, pos, np.clip(delta, -2 * np.pi, 0))
  assert error(out, loops.attention(scores, True, v)[0]) < 1e-5


def test_gradients_pass_at_the_ends_and_not_outside():
  end = np.float32(2 * np.pi)
  end = end if end <= 2 * np.pi else np.nextafter(end, np.float32(0))
  slopes = jax.vmap(jax.grad(pope.clipped))(jnp.array([-1e-3, 0.0, 1.0, end, 7.0]))
  np.testing.assert_array_equal(slopes, [0, 1, 1, 1, 0])


def test_a_phase_at_its_initial_zero_learns():
  q, k = (jnp.asarray(x) for x in _heads((1, 2, 4, 8), (1, 3, 2, 8)))
  q_pos, k_pos, scheme = np.array([5, 9]), np.array([0, 4, 6]), pope.scheme()

  def total(phase):
    params = {'phase': phase}
    placed = (
      scheme.query(params, q, jnp.asarray(q_pos)[None]),
      scheme.key(params, k, jnp.asarray(k_pos)[None]),
    )
    return posjax.math.heads.product(*placed).sum()

  slope = jax.jit(jax.grad(total))(np.zeros((4, 8), np.float32))
  delta = np.zeros((4, 8))
  for h, c in ((0, 0), (3, 5)):
    step = np.zeros((4, 8))
    step[h, c] = 1e-4
    ends = [
      _reference(q, k, q_pos, k_pos, d).sum() * np.sqrt(8) for d in (delta - step, delta + step)
    ]
    assert error(slope[h, c], (ends[0] - ends[1]) / 2e-4) < 1e-4


def test_bfloat16_heads_stay_bfloat16_and_near():
  (x,) = _heads((1, 4, 2, 16))
  pos, scheme = np.array([[0, 1000, 131072, 2**31 - 1]]), pope.scheme()
  low = np.asarray(x, jnp.bfloat16)
  out = jax.jit(scheme.key)({}, low, pos)
  assert out.dtype == jnp.bfloat16
  # One rounding of the result: half a unit of 8 bits.
  assert error(out, jax.jit(scheme.key)({}, np.float32(low), pos)) < 2**-8


def test_large_numbers_stay_finite_with_their_gradients():
  x = np.array([-1e4, -100.0, 0.0, 1e4], np.float32).reshape(1, 1, 1, 4)
  place = lambda x: pope.scheme().key({}, x, jnp.array([[3]])).sum()
  number, slope = jax.jit(jax.value_and_grad(place))(x)
  assert np.isfinite(number)
  assert np.isfinite(slope).all()
