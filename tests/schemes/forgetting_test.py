import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.schemes import alibi, forgetting
from tests.support.loops import attention, causal, content, error
from tests.support.paths import load_golden

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')
cumulative = jax.jit(forgetting.cumulative)
differences = jax.jit(forgetting.differences)
GOLDEN = load_golden('forgetting')
DIMS = posjax.Dims(5, 6, 4, 2)


def _params(key):
  kernel, offset = jax.random.split(key)
  return {'kernel': jax.random.normal(kernel, (5, 6)), 'offset': jax.random.normal(offset, (6,))}


def _biases(params, x):
  """Sums of log gates over l = j + 1 .. i, in float64, pair by pair; later keys are left at 0."""
  kernel, offset = (np.asarray(params[name], np.float64) for name in ('kernel', 'offset'))
  batch, tokens, _ = x.shape
  found = np.zeros((batch, kernel.shape[1], tokens, tokens))
  for b, i in np.ndindex(batch, tokens):
    for j in range(i + 1):
      for one in range(j + 1, i + 1):
        found[b, :, i, j] += np.log(1 / (1 + np.exp(-(x[b, one] @ kernel + offset))))
  return found


def _inputs(tokens, kv_heads=2):
  draw = np.random.default_rng(0).normal
  q, k, v = (draw(size=(2, tokens, heads, 4)) for heads in (6, kv_heads, kv_heads))
  return draw(size=(2, tokens, 5)), q, k, v


def _single(*arrays):
  return [jnp.asarray(x, jnp.float32) for x in arrays]


def _sides(at, order):
  return {'q_at': at, 'k_at': at, 'q_pos': order, 'k_pos': order, 'causal': True}


def test_attention_is_the_papers_formula_pair_by_pair(key):
  params, scheme = _params(key), forgetting.scheme()
  for tokens, kv_heads in ((7, 2), (1, 6)):
    x, q, k, v = _inputs(tokens, kv_heads)
    order = np.arange(tokens)
    seen = causal(order[None], order[None])
    expected = attention(content(q, k) + _biases(params, x), seen, v)[0]
    _, at = posjax.prepare(scheme, params, *_single(x), jnp.asarray(order))
    out = attend(*_single(q, k, v), scheme, params, **_sides(at, order))
    assert error(out, expected) < 1e-5


def test_the_biases_equal_x_transformers():
  get = lambda name: jnp.asarray(GOLDEN[f'causal__{name}'])
  kernel, offset = get('w__to_forget_gates.0.weight').T, get('w__to_forget_gates.0.bias')
  total = cumulative(forgetting.log_gates(kernel, offset, get('x')))
  assert error(differences(total, total), GOLDEN['causal__bias']) < 1e-5


def test_constant_gates_are_alibi(key):
  slopes = jnp.asarray(alibi.slopes(6), jnp.float32)
  # sigmoid(b) = e^-slope: b = -log(e^slope - 1).
  params = {'kernel': jnp.zeros((5, 6)), 'offset': -jnp.log(jnp.expm1(slopes))}
  x, q, k, v = _single(*_inputs(9))
  scheme, order = forgetting.scheme(), jnp.arange(9)
  _, at = posjax.prepare(scheme, params, x, order)
  out = attend(q, k, v, scheme, params, **_sides(at, order))
  like = attend(q, k, v, alibi.scheme(), {'slopes': slopes}, **_sides(None, order))
  assert error(out, like) < 1e-5


def test_open_gates_are_no_positions(key):
  params = {'kernel': jnp.zeros((5, 6)), 'offset': jnp.full(6, 40.0)}
  x, q, k, v = _single(*_inputs(9))
  scheme, order = forgetting.scheme(), jnp.arange(9)
  _, at = posjax.prepare(scheme, params, x, order)
  out = attend(q, k, v, scheme, params, **_sides(at, order))
  assert error(out, attend(q, k, v, posjax.Scheme(), {}, **_sides(None, order))) < 1e-6


def test_a_closed_gate_hides_what_came_before_its_token(key):
  gates = jnp.zeros((1, 6, 1)).at[0, 3].set(-1e4)
  found = differences(cumulative(gates), cumulative(gates))[0, 0]
  np.testing.assert_array_equal(found[3:, :3], -1e4)
  np.testing.assert_array_equal(found[3:, 3:], 0)
  np.testing.assert_array_equal(found[:3, :3], 0)


def _long():
  """Steps of 100,000 tokens that sum to about -70,000, and their cumulative sums in float64."""
  steps = -np.random.default_rng(0).uniform(0.2, 1.2, 100_000).astype(np.float32)
  return steps, np.cumsum(steps.astype(np.float64))


def test_sums_of_near_tokens_are_right_at_the_end_of_a_long_stream():
  steps, exact = _long()
  assert exact[-1] < -69_000
  total = cumulative(jnp.asarray(steps)[None, :, None])
  near = slice(99_900, None)
  end = tuple(part[:, near] for part in total)
  found = differences(end, end)[0, 0]
  assert error(found, exact[near, None] - exact[None, near]) < 1e-6
  assert abs(np.diag(found, -1) - steps[near][1:]).max() < 1e-7  # neighbours: one step, exactly
  high, low = (np.asarray(part, np.float64)[0, :, 0] for part in total)
  np.testing.assert_allclose(high + low, exact, rtol=1e-12)


def test_plain_float32_sums_would_be_wrong_there():
  steps, exact = _long()
  plain = np.asarray(jax.jit(jnp.cumsum)(jnp.asarray(steps)))
  i = np.arange(99_000, 100_000)
  assert abs((plain[i] - plain[i - 1]) - (exact[i] - exact[i - 1])).max() > 1e-3


def test_decoding_token_by_token_does_not_lose_digits():
  steps, exact = _long()

  def decode(last, step):
    total = forgetting.cumulative(step[None, None], last)
    last = tuple(part[0] for part in total)
    return last, last

  zero = (jnp.zeros(1), jnp.zeros(1))
  (_, _), (high, low) = jax.jit(lambda s: jax.lax.scan(decode, zero, s))(jnp.asarray(steps))
  assert high.dtype == low.dtype == jnp.float32
  found = np.asarray(high, np.float64)[:, 0] + np.asarray(low)[:, 0]
  np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_a_stream_in_parts_is_the_stream(key):
  steps = -jax.random.uniform(key, (2, 9, 3))
  whole = cumulative(steps)
  first = cumulative(steps[:, :4])
  second = cumulative(steps[:, 4:], tuple(part[:, -1] for part in first))
  for one, other, both in zip(first, second, whole, strict=True):
    np.testing.assert_allclose(jnp.concatenate([one, other], 1), both, atol=1e-6)


def test_gradients_are_those_of_a_plain_sum(key):
  # Each step moves all sums over it, by one; the low parts, what rounding leaves, by nothing.
  steps = -jax.random.uniform(key, (7, 1))
  high, low = jax.jacobian(cumulative)(steps)
  np.testing.assert_allclose(high[:, 0, :, 0], np.tri(7), atol=1e-6)
  np.testing.assert_allclose(low[:, 0, :, 0], 0, atol=1e-6)


def test_gates_of_narrow_inputs_are_made_in_float32(key):
  params = _params(key)
  x = jnp.asarray(_inputs(7)[0], jnp.bfloat16)
  found = forgetting.log_gates(params['kernel'], params['offset'], x)
  assert found.dtype == jnp.float32
  kernel, offset = (np.asarray(params[name], np.float64) for name in ('kernel', 'offset'))
  expected = -np.log1p(np.exp(-(np.asarray(x, np.float64) @ kernel + offset)))
  assert error(found, expected) < 1e-6


def test_gates_start_as_a_half_nearly(key):
  params = forgetting.scheme().init(key, posjax.Dims(300, 8, 4))
  assert abs(params['kernel'].std() - 0.02) < 1e-3
  np.testing.assert_array_equal(params['offset'], 0)
  gates = jnp.exp(forgetting.log_gates(params['kernel'], params['offset'], jnp.zeros((1, 1, 300))))
  np.testing.assert_allclose(gates, 0.5, rtol=1e-6)
