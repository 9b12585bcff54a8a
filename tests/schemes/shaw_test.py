import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import shaw
from tests.support.paths import load_golden

GOLDEN = load_golden('shaw')
CASES = ['c0', 'c2', 'c4', 'c5']
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _error(got, expected):
  expected = np.asarray(expected, np.float64)
  return abs(np.asarray(got, np.float64) - expected).max() / max(abs(expected).max(), 1e-30)


def _reference(q, k, v, params, q_pos, k_pos, clip):
  """Eqs. 3-5 in float64, pair by pair. q [T, H, D], k and v [S, K, D], tables [H, N, D]."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  (queries, heads, width), shared = q.shape, q.shape[1] // k.shape[1]
  tables = {name: np.broadcast_to(t, (heads, *t.shape[-2:])) for name, t in params.items()}
  out = np.zeros((queries, heads, width))
  for i in range(queries):
    rows = [min(max(int(pos) - int(q_pos[i]), -clip), clip) + clip for pos in k_pos]
    for h in range(heads):
      keys, values = k[:, h // shared], v[:, h // shared]
      keys = keys + tables['keys'][h, rows] if 'keys' in tables else keys
      values = values + tables['values'][h, rows] if 'values' in tables else values
      weights = np.exp(keys @ q[i, h] / np.sqrt(width))
      out[i, h] = weights / weights.sum() @ values
  return out


@pytest.mark.parametrize(
  ('tables', 'per_head'),
  [((True, True), False), ((True, True), True), ((True, False), True), ((False, True), False)],
)
def test_it_is_the_papers_equations(key, tables, per_head):
  scheme = shaw.scheme(2, *tables, per_head=per_head)
  params = scheme.init(key, posjax.Dims(24, 6, 4, 2))
  q = jax.random.normal(key, (2, 5, 6, 4))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 7, 2, 4))  # 2 heads for 6 queries
  q_pos, k_pos = jnp.array([[3, 0, 9, 4, 4], [0, 1, 2, 3, 4]]), jnp.array([0, 3, 4, 5, 8, 9, 100])
  out = attend(q, k, v, scheme, params, q_pos=q_pos, k_pos=k_pos)
  expected = [_reference(q[b], k[b], v[b], params, q_pos[b], k_pos, 2) for b in range(2)]
  assert _error(out, np.stack(expected)) < 1e-5


@pytest.mark.parametrize('per_head', [False, True])
@pytest.mark.parametrize('begin', [-90, 40, 90])  # before all keys, among them, behind all
def test_tokens_all_farther_apart_than_the_tables_reach_are_too(key, begin, per_head):
  scheme = shaw.scheme(2, per_head=per_head)
  params = scheme.init(key, posjax.Dims(16, 4, 4, 2))
  q = jax.random.normal(key, (2, 48, 4, 4))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 48, 2, 4))
  pos = {'q_pos': begin + jnp.arange(48), 'k_pos': jnp.arange(48)}
  out = attend(q, k, v, scheme, params, **pos)
  expected = [_reference(q[b], k[b], v[b], params, *pos.values(), 2) for b in range(2)]
  assert _error(out, np.stack(expected)) < 1e-5


@pytest.mark.parametrize('case', CASES)
def test_values_and_gradients_equal_tensor2tensor(case):
  get = lambda name: jnp.asarray(GOLDEN[f'{case}_{name}'], jnp.float32)
  tokens_first = lambda name: get(name).swapaxes(1, 2)
  q, k, v, cotangent = map(tokens_first, ('q', 'k', 'v', 'cotangent'))
  scheme = shaw.scheme(int(GOLDEN[f'{case}_clip_k']))
  pos = jnp.arange(q.shape[1])

  def out(q, k, v, params):
    return attend(q, k, v, scheme, params, q_pos=pos, k_pos=pos)

  params = {'keys': get('K_table'), 'values': get('V_table')}
  got, back = jax.vjp(out, q, k, v, params)
  assert _error(got, tokens_first('out')) < 1e-5
  *heads, tables = back(cotangent)
  for grad, name in zip(heads, ('grad_q', 'grad_k', 'grad_v'), strict=True):
    if abs(GOLDEN[f'{case}_{name}']).max() > 0:
      assert _error(grad, tokens_first(name)) < 1e-5
    else:  # one token: nothing to choose from
      np.testing.assert_allclose(grad, 0, atol=1e-6)
  for name, golden in (('keys', 'grad_K_table'), ('values', 'grad_V_table')):
    np.testing.assert_allclose(
      tables[name], get(golden), atol=1e-5 * max(abs(get(golden)).max(), 0.1)
    )


@pytest.mark.parametrize('case', CASES)
def test_rows_of_the_tables_equal_tensor2tensor(case):
  pos = jnp.arange(GOLDEN[f'{case}_rel_index'].shape[0])
  got = shaw.index(pos, pos, int(GOLDEN[f'{case}_clip_k']))
  np.testing.assert_array_equal(got, GOLDEN[f'{case}_rel_index'])


def test_keys_alone_equal_both_tables_with_zeros_in_the_other():
  # The authors' run had zeros for the values.
  get = lambda name: jnp.asarray(GOLDEN[f'c5_{name}'], jnp.float32)
  q, k, v = (get(name).swapaxes(1, 2) for name in 'qkv')
  scheme, pos = shaw.scheme(2, values=False), jnp.arange(5)
  out = attend(q, k, v, scheme, {'keys': get('K_table')}, q_pos=pos, k_pos=pos)
  assert _error(out, get('out').swapaxes(1, 2)) < 1e-5


def test_the_6_by_6_table_of_text_000():
  pos = jnp.arange(6)
  np.testing.assert_array_equal(shaw.index(pos, pos, 3) - 3, GOLDEN['seed000_table_n6_k3'])


@pytest.mark.parametrize('name', ['cross', 'self_causal'])
def test_it_is_the_module_of_text_001(name):
  get = lambda name: jnp.asarray(GOLDEN[f'seed001_{name}'], jnp.float32)
  project = lambda x, to: x @ get(f'W{to}').T + get(f'b{to}').reshape(1, 1, -1)
  heads = lambda x: x.reshape(*x.shape[:2], 3, 4)
  x = get('q')
  other = get('k') if name == 'cross' else x
  q, k, v = heads(project(x, 'q')), heads(project(other, 'k')), heads(project(other, 'v'))
  params = {'keys': get('K_table'), 'values': get('V_table')}
  # Queries and keys are both numbered from 0, however many there are.
  ids = {'q_pos': jnp.arange(q.shape[1]), 'k_pos': jnp.arange(k.shape[1])}
  out = attend(q, k, v, shaw.scheme(2), params, **ids, causal=name != 'cross')
  assert _error(project(out.reshape(*x.shape), 'o'), get(f'out_{name}')) < 1e-5


def test_both_tables_hold_as_many_numbers_as_text_000_says(key):
  params = shaw.scheme(16).init(key, posjax.Dims(512, 8, 64))
  held = sum(x.size for x in jax.tree.leaves(params))
  assert held == shaw.parameter_count(16, 64) == (2 * 16 + 1) * 64 * 2
  per_head = shaw.scheme(16, per_head=True).init(key, posjax.Dims(512, 8, 64))
  assert sum(x.size for x in jax.tree.leaves(per_head)) == 8 * held


def test_initial_tables_are_glorot_uniform(key):
  dims = posjax.Dims(256, 4, 64)
  limit = np.sqrt(6 / (33 + 64))
  for params in (shaw.scheme(16).init(key, dims), shaw.scheme(16, per_head=True).init(key, dims)):
    for table in params.values():
      assert 0.98 * limit < abs(table).max() <= limit
    assert abs(params['keys'] - params['values']).max() > 0.1


def test_beyond_the_clip_all_offsets_are_alike():
  ends = jnp.array([2, 3, 1000, 2**31 - 1])
  np.testing.assert_array_equal(shaw.index(jnp.array([0]), ends, 2), [[4, 4, 4, 4]])
  np.testing.assert_array_equal(shaw.index(ends, jnp.array([0]), 2)[:, 0], [0, 0, 0, 0])


def test_a_max_distance_of_0_adds_one_vector_to_every_value(key):
  q, k, v = jax.random.normal(key, (3, 2, 5, 2, 4))
  scheme, ids = shaw.scheme(0), {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(5)}
  params = scheme.init(key, posjax.Dims(8, 2, 4))
  plain = attend(q, k, v, posjax.Scheme(), {}, **ids)
  expected = plain + params['values'].reshape(1, 1, 1, 4)
  np.testing.assert_allclose(attend(q, k, v, scheme, params, **ids), expected, atol=1e-6)


def test_tables_of_zeros_are_no_positions(key):
  q, k, v = jax.random.normal(key, (3, 2, 5, 2, 4))
  ids = {'q_pos': jnp.arange(5), 'k_pos': jnp.arange(5)}
  params = {'keys': jnp.zeros((9, 4)), 'values': jnp.zeros((9, 4))}
  out = attend(q, k, v, shaw.scheme(4), params, **ids)
  np.testing.assert_allclose(out, attend(q, k, v, posjax.Scheme(), {}, **ids), atol=1e-6)


def test_a_query_independent_key_table_is_a_t5_bias(key):
  # With the first number of every query at 2 sqrt(D), q . table is a bias by offset.
  q, k, v = jax.random.normal(key, (3, 1, 6, 2, 4))
  q = q.at[..., 0].set(2.0)
  steps = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4])  # of the offsets -2 .. 2
  table = jnp.zeros((5, 4)).at[:, 0].set(steps)
  pos = jnp.arange(6)
  out = attend(q, k, v, shaw.scheme(2, values=False), {'keys': table}, q_pos=pos, k_pos=pos)
  bias = lambda params, distance: jnp.tile(steps[jnp.clip(-distance, -2, 2) + 2], (2, 1, 1, 1))
  expected = attend(q, k, v, posjax.Scheme(bias=bias), {}, q_pos=pos, k_pos=pos)
  np.testing.assert_allclose(out, expected, atol=1e-6)


def test_it_never_holds_a_vector_for_each_pair(key):
  tokens, width = 32, 24
  x = jnp.zeros((1, tokens, 2, width))
  pos = jnp.arange(tokens)
  scheme = shaw.scheme(3)
  params = scheme.init(key, posjax.Dims(48, 2, width))
  loss = lambda q, p: posjax.attend(q, x, x, scheme, p, q_pos=pos, k_pos=pos).sum()
  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, params)
  assert _largest(jaxpr.jaxpr) < tokens * tokens * width


def _largest(jaxpr):
  """The size of the largest array in a jaxpr, index arrays apart."""
  sizes = [0]
  for equation in jaxpr.eqns:
    arrays = [v.aval for v in equation.outvars]
    sizes += [a.size for a in arrays if jnp.issubdtype(a.dtype, jnp.floating)]
    for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, 'jaxpr')):
      if hasattr(inner, 'jaxpr'):
        sizes.append(_largest(inner.jaxpr))
  return max(sizes)


@pytest.mark.parametrize('place', ['keys', 'values'])
def test_float_ids_are_refused(key, place):
  scheme = shaw.scheme(2, **{'keys': False, 'values': False, place: True})
  params = scheme.init(key, posjax.Dims(4, 1, 4))
  x, pos = jnp.zeros((1, 3, 1, 4)), jnp.arange(3.0)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    posjax.attend(x, x, x, scheme, params, q_pos=pos, k_pos=pos)


def test_arguments_out_of_range_are_refused():
  with pytest.raises(ValueError, match='needs a table, but both keys and values are False'):
    shaw.scheme(keys=False, values=False)
