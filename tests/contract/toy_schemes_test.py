"""Each mechanism of the record, through `attend`, against loops over pairs in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from tests.support import loops
from tests.support.toy_schemes import REACH, TOYS

DIMS = posjax.Dims(width=12, num_heads=4, head_dim=6, num_kv_heads=2, vocab=7)
QUERIES, KEYS = 5, 9  # the queries are the last tokens of the stream
TOLERANCE = 2e-6  # float32 rounding of logits of size 10


@pytest.fixture
def case():
  """q, k, v, x, ids of the whole stream, and parameters, all float32 or int32."""
  draw = np.random.default_rng(0).normal
  return {
    'q': draw(size=(2, QUERIES, 4, 6)).astype(np.float32),
    'k': draw(size=(2, KEYS, 2, 6)).astype(np.float32),
    'v': draw(size=(2, KEYS, 2, 6)).astype(np.float32),
    'x': draw(size=(2, KEYS, 12)).astype(np.float32),
    'pos': np.sort(np.random.default_rng(1).integers(0, 30, (2, KEYS)), axis=1).astype(np.int32),
  }


def run(name, case, params=None, pos=None):
  """`attend` with toy `name`, causal; its parameters in float64, and its output."""
  scheme = TOYS[name]
  params = posjax.init(scheme, jax.random.key(3), DIMS) if params is None else params
  pos = case['pos'] if pos is None else pos
  order = jnp.arange(KEYS)

  @jax.jit
  def attended(params, pos, q, k, v, x):
    ready, at = posjax.prepare(scheme, params, x, pos)
    return posjax.attend(
      q, k, v, scheme, ready, causal=True, model_places=True,
      q_pos=pos[:, -QUERIES:], k_pos=pos, q_order=order[-QUERIES:], k_order=order,
      q_at=jax.tree.map(lambda leaf: leaf[:, -QUERIES:], at), k_at=at,
    )  # fmt: skip

  out = attended(params, pos, *(case[name] for name in 'qkvx'))
  return jax.tree.map(lambda p: np.asarray(p, np.float64), params), out


def seen():
  order = np.arange(KEYS)[None]
  return loops.causal(order[:, -QUERIES:], order)


def pairs(term, case):
  """term(b, h, t, s, q, k) of each pair, in float64; t counts among the queries."""
  logits = np.zeros((2, 4, QUERIES, KEYS))
  q, k = case['q'].astype(np.float64), case['k'].astype(np.float64)
  for b, h, t, s in np.ndindex(logits.shape):
    logits[b, h, t, s] = term(b, h, t, s, q[b, t, h], k[b, s, h // 2])
  return logits


def distance(case, b, t, s):
  return int(case['pos'][b, t + KEYS - QUERIES] - case['pos'][b, s])


def clipped(case, b, t, s):
  return int(np.clip(distance(case, b, t, s), -REACH, REACH)) + REACH


def test_a_prepared_side_may_mix_neighbouring_tokens(case):
  params, out = run('convolved', case)
  y = np.pad(case['x'].astype(np.float64) @ params['w'], ((0, 0), (2, 0), (0, 0)))
  weight = y[:, 2:] + 2 * y[:, 1:-1] - 3 * y[:, :-2]
  term = lambda b, h, t, s, q, k: q @ k / np.sqrt(6) + weight[b, s, h]
  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_logits_may_replace_the_content(case):
  params, out = run('cosine', case)

  def term(b, h, t, s, q, k):
    return params['temperature'][h] * q @ k / np.sqrt((q @ q + 1e-6) * (k @ k + 1e-6))

  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_whole_rows_arrive_masked_and_in_token_order(case):
  params, out = run('counted', case)
  logits = loops.content(case['q'], case['k'])
  changed = logits.copy()
  for b, h, t, s in np.ndindex(logits.shape):
    ahead = range(s, KEYS - QUERIES + t + 1)
    count = min(sum(1 / (1 + np.exp(-logits[b, h, t, j])) for j in ahead), 4)
    scores = params['table'] @ case['q'][b, t, h].astype(np.float64)
    changed[b, h, t, s] += np.interp(count, np.arange(5), scores)
  expected, _ = loops.attention(changed, seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_widened_heads_give_the_relative_terms_of_transformer_xl(case):
  params, out = run('wide', case)
  frequencies = 100.0 ** (-np.arange(0, 6, 2) / 6)

  def term(b, h, t, s, q, k):
    angle = distance(case, b, t, s) * frequencies
    code = np.concatenate([np.sin(angle), np.cos(angle)])
    content = (q + params['u'][h]) @ k
    return 6**-0.5 * (content + (q + params['v'][h]) @ params['w'][h] @ code)

  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_prepared_sides_carry_sums_over_the_tokens_between(case):
  params, out = run('forgetful', case)
  gates = -np.logaddexp(0, -case['x'].astype(np.float64) @ params['w'])

  def term(b, h, t, s, q, k):
    between = range(s + 1, KEYS - QUERIES + t + 1)
    return 6**-0.5 * q @ k + sum(gates[b, j, h] for j in between)

  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_a_bias_sees_the_signed_distance_on_each_axis(case):
  cells = np.random.default_rng(2).integers(0, 5, (2, KEYS, 2)).astype(np.int32)
  params, out = run('streets', case, pos=cells)

  def term(b, h, t, s, q, k):
    apart = abs(cells[b, t + KEYS - QUERIES] - cells[b, s])
    return 6**-0.5 * q @ k - params['slopes'][h] @ apart

  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_a_table_shared_by_layers_meets_each_layers_projections_in_prepare(case):
  params, out = run('shared_table', case)

  def term(b, h, t, s, q, k):
    row = params['table'][clipped(case, b, t, s)]
    return 6**-0.5 * (q @ k + q @ (row @ params['w_k'][:, h]) + k @ (row @ params['w_q'][:, h]))

  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_complex_heads_meet_conjugated_and_a_scheme_makes_them_real(case):
  turn = np.exp(1j * np.arange(6)).astype(np.complex64)
  case = {**case, **{n: case[n] * turn ** (1 + i) for i, n in enumerate('qkv')}}
  _, out = run('waves', case)
  logits = abs(loops.content(case['q'], case['k']))
  expected, _ = loops.attention(logits, seen(), case['v'])
  assert out.dtype == jnp.complex64
  assert loops.error(out, expected) <= TOLERANCE


def test_complex_embeddings_turn_by_position_at_each_words_frequency(case):
  scheme = TOYS['waves']
  params = posjax.init(scheme, jax.random.key(3), DIMS)
  tokens = np.random.default_rng(4).integers(0, 7, (2, KEYS))
  out = scheme.embed(params, jnp.asarray(case['x']), jnp.asarray(tokens), jnp.asarray(case['pos']))
  expected = np.zeros((2, KEYS, 12), np.complex128)
  for b, t, m in np.ndindex(expected.shape):
    phase = float(case['pos'][b, t]) * float(params['frequency'][tokens[b, t], m])
    expected[b, t, m] = case['x'][b, t, m] * np.exp(1j * phase)
  assert loops.error(out, expected) <= 3e-6  # a float32 phase near 30


def test_logits_may_mix_heads(case):
  params, out = run('mixing', case)
  logits = loops.content(case['q'], case['k'])
  changed = logits.copy()
  for b, t, s in np.ndindex(2, QUERIES, KEYS):
    changed[b, :, t, s] += np.tanh(logits[b, :, t, s] @ params['inner']) @ params['outer']
  expected, _ = loops.attention(changed, seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE


def test_values_add_what_the_weights_pick_from_a_table(case):
  params, out = run('two_tables', case)

  def term(b, h, t, s, q, k):
    return 6**-0.5 * (q @ k + q @ params['keys'][clipped(case, b, t, s)])

  expected, weights = loops.attention(pairs(term, case), seen(), case['v'])
  for b, h, t, s in np.ndindex(weights.shape):
    row = params['values'][clipped(case, b, t, s)]
    expected[b, t, h] += weights[b, h, t, s] * row
  assert loops.error(out, expected) <= TOLERANCE


def test_random_ids_keep_order_and_repeat_with_their_key(case):
  ids = TOYS['stretched'].ids
  pos = jnp.tile(jnp.arange(KEYS), (50, 1))
  drawn = ids(pos, jax.random.key(1))
  steps = np.diff(drawn, axis=1)
  np.testing.assert_array_equal(steps, np.repeat(steps[:, :1], KEYS - 1, axis=1))
  assert set(steps[:, 0]) == {2, 3, 4, 5}
  np.testing.assert_array_equal(drawn, ids(pos, jax.random.key(1)))
  np.testing.assert_array_equal(pos, ids(pos, None))


def test_ids_that_a_scheme_changed_reach_its_other_places(case):
  pos = TOYS['stretched'].ids(jnp.asarray(case['pos']), jax.random.key(1))
  case = {**case, 'pos': np.asarray(pos)}
  params, out = run('stretched', case)

  def term(b, h, t, s, q, k):
    return 6**-0.5 * q @ k - params['slopes'][h] * abs(distance(case, b, t, s))

  expected, _ = loops.attention(pairs(term, case), seen(), case['v'])
  assert loops.error(out, expected) <= TOLERANCE
