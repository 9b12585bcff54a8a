import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.scheme import Scheme, Traits
from posjax.schemes import alibi, dape, t5
from tests.support import loops
from tests.support.draws import DRAW

DIMS = posjax.Dims(16, 4, 4, 2)


@functools.partial(jax.jit, static_argnums=3, static_argnames='causal')
def attend(q, k, v, scheme, params, q_pos, k_pos, causal=False):
  return posjax.attend(q, k, v, scheme, params, q_pos=q_pos, k_pos=k_pos, causal=causal)


def _random(*shape):
  return jnp.asarray(DRAW.normal(size=shape), jnp.float32)


def _heads(queries=5, keys=6):
  shapes = (queries, 4), *[(keys, 2)] * 2
  return [_random(2, *shape, 4) for shape in shapes]


def _network(width=3, heads=4):
  shapes = {'from_logits': (heads, width), 'from_bias': (heads, width), 'offset': (width,)}
  return {name: _random(*s) for name, s in shapes.items()} | {'out': _random(width, heads)}


IDS = np.array([[3, 0, 9, 4, 4], [0, 1, 2, 3, 4]]), np.array([[0, 3, 4, 5, 8, 9]] * 2)


def _reference(q, k, v, params, bias):
  """A + B + f(A, B) pair by pair, from the definition. bias [B, H, T, S]."""
  p = {name: np.asarray(x, np.float64) for name, x in params.items()}
  weights = np.concatenate([p['from_logits'], p['from_bias']])
  content = loops.content(*(np.asarray(x) for x in (q, k)))
  logits = content + bias
  for b, _, t, s in np.ndindex(content[:, :1].shape):
    both = np.concatenate([content[b, :, t, s], bias[b, :, t, s]])
    hidden = both @ weights + p['offset']
    logits[b, :, t, s] += np.where(hidden > 0, hidden, 0.01 * hidden) @ p['out']
  return loops.attention(logits, True, np.asarray(v))[0]


def _pairs(of):
  """of(h, i, j) for every pair, [B, H, T, S]."""
  q_pos, k_pos = IDS
  out = np.zeros((2, 4, q_pos.shape[1], k_pos.shape[1]))
  for b, h, t, s in np.ndindex(out.shape):
    out[b, h, t, s] = of(h, q_pos[b, t], k_pos[b, s])
  return out


def test_it_is_the_papers_definition_over_alibi():
  params, (q, k, v) = _network() | {'inner_slopes': _random(4)}, _heads()
  out = attend(q, k, v, dape.scheme('alibi', width=3), params, *map(jnp.asarray, IDS))
  bias = _pairs(lambda h, i, j: -float(params['inner_slopes'][h]) * abs(i - j))
  assert loops.error(out, _reference(q, k, v, params, bias)) < 1e-5


def test_it_is_the_papers_definition_over_a_bias_of_both_positions():
  # As FIRE's, which a scheme adds at the same place as the content.
  def logits(params, logits, q, k, q_at, k_at):
    bias = k_at[:, None] / (1.0 + q_at[:, :, None])
    return logits + params['steps'][None, :, None, None] * bias[:, None]

  inner = Scheme(init=lambda key, dims: {'steps': jnp.ones(dims.num_heads)}, logits=logits)
  params, (q, k, v) = _network() | {'inner_steps': _random(4)}, _heads()
  out = attend(q, k, v, dape.scheme(inner, width=3), params, *map(jnp.asarray, IDS))
  bias = _pairs(lambda h, i, j: float(params['inner_steps'][h]) * j / (1 + i))
  assert loops.error(out, _reference(q, k, v, params, bias)) < 1e-5


def test_a_head_takes_part_in_the_corrections_of_all():
  logits, biases = _random(1, 4, 2, 3), _random(1, 4, 2, 3)
  params = _network(8)
  one = lambda x: dape.correction(params, x, biases)
  jacobian = jax.jit(jax.jacobian(one))(logits)[0, :, 0, 0, 0]  # of the pair (0, 0)
  assert (abs(jacobian[:, :, 0, 0]) > 1e-3).all()
  np.testing.assert_array_equal(jacobian[:, :, 0, 1:], 0)
  np.testing.assert_array_equal(jacobian[:, :, 1], 0)


def test_the_correction_depends_on_the_content():
  params, biases = _network(), jnp.ones((1, 4, 1, 1))
  first, second = (dape.correction(params, _random(1, 4, 1, 1), biases) for _ in range(2))
  assert abs(first - second).min() > 1e-3


@pytest.mark.parametrize('inner', ['alibi', 't5(8, 20, bidirectional=True)'])
def test_output_weights_of_zeros_are_the_inner_scheme(key, inner):
  scheme, alone, (q, k, v) = dape.scheme(inner, width=3), posjax.get(inner), _heads()
  own = jax.jit(lambda: posjax.init(alone, key, DIMS))()
  own = jax.tree.map(lambda x: 10 * x, own)
  params = _network() | {f'inner_{name}': x for name, x in own.items()}
  params['out'] = jnp.zeros((3, 4))
  pos = [jnp.asarray(ids) for ids in IDS]
  expected = attend(q, k, v, alone, own, *pos)
  assert loops.error(attend(q, k, v, scheme, params, *pos), expected) < 1e-6
  plain = attend(q, k, v, Scheme(), {}, *pos)
  assert loops.error(plain, expected) > 1e-3


def test_without_an_inner_bias_the_content_alone_is_adapted():
  params, (q, k, v) = _network(), _heads()
  out = attend(q, k, v, dape.scheme('none', width=3), params, *map(jnp.asarray, IDS))
  assert loops.error(out, _reference(q, k, v, params, np.zeros((2, 4, 5, 6)))) < 1e-5


def test_the_content_is_what_place_2_made_of_it():
  # After a member that turns nothing but doubles the queries.
  double = Scheme(query=lambda params, x, at: 2 * x)
  params, (q, k, v) = _network() | {'inner_slopes': _random(4)}, _heads()
  pos = [jnp.asarray(ids) for ids in IDS]
  scheme = dape.scheme('alibi', width=3)
  out = attend(q, k, v, posjax.chain(double, scheme), ({}, params), *pos)
  assert loops.error(out, attend(2 * q, k, v, scheme, params, *pos)) < 1e-6


def test_constants_and_shared_parameters_of_the_inner_scheme_stay_so(key):
  over_alibi, over_t5 = dape.scheme('alibi'), dape.scheme('t5')
  assert over_alibi.traits.fixed == ('inner_slopes',)
  assert dape.scheme('alibi(learned=True)').traits.fixed == over_t5.traits.fixed == ()
  made = jax.jit(lambda: (over_alibi.init(key, DIMS), over_t5.init_model(key, DIMS)))()
  np.testing.assert_array_equal(made[0]['inner_slopes'], np.float32(alibi.slopes(4)))
  assert {name: x.shape for name, x in made[1].items()} == {'inner_table': (32, 4)}
  assert not posjax.scheme.declares(over_alibi, 'init_model')
  _, fixed = posjax.split(over_alibi, made[0])
  assert set(fixed) == {'inner_slopes'}

  heads, pos = _heads(3, 3), jnp.arange(3)
  loss = lambda params: attend.__wrapped__(*heads, over_alibi, params, pos, pos)[:, 0].sum()
  grads = jax.jit(jax.grad(loss))(made[0])
  np.testing.assert_array_equal(grads['inner_slopes'], 0)
  assert abs(np.asarray(grads['out'])).max() > 1e-4


def test_initial_weights_are_uniform_within_one_over_the_root_of_the_inputs(key):
  params = jax.jit(lambda: dape.scheme('alibi').init(key, posjax.Dims(48, 16, 4)))()
  assert params['offset'].shape == (32,)
  limits = {'from_logits': 32, 'from_bias': 32, 'offset': 32, 'out': 32}
  for name, inputs in limits.items():
    assert 0.8 * inputs**-0.5 < abs(np.asarray(params[name])).max() <= inputs**-0.5
  assert abs(np.asarray(params['from_logits']) - np.asarray(params['from_bias'])).max() > 0.1
  few = jax.jit(lambda: dape.scheme('alibi', width=64).init(key, posjax.Dims(8, 2, 4)))()
  assert abs(np.asarray(few['from_logits'])).max() > 0.4
  assert abs(np.asarray(few['out'])).max() <= 1 / 8


def test_a_line_and_a_scheme_are_the_same():
  params, (q, k, v) = _network() | {'inner_table': _random(8, 4)}, _heads()
  pos = [jnp.asarray(ids) for ids in IDS]
  line, given = dape.scheme('t5(8)', 3), dape.scheme(t5.scheme(8), 3)
  one, other = (attend(q, k, v, scheme, params, *pos) for scheme in (line, given))
  np.testing.assert_array_equal(one, other)


def test_what_needs_all_keys_needs_them_here():
  adding = Scheme(logits=lambda params, logits, *rest: logits + 1.0, traits=Traits(mixes='S'))
  assert dape.scheme(adding).traits.mixes == 'HS'


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'inner': 'alibi+t5'}, 'adapts one scheme, but got a chain of 2'),
    ({'inner': 'rope'}, r"on the logits only, but got a scheme of \['query', 'key'\]"),
    ({'inner': 'shaw'}, r"on the logits only, but got a scheme of \['values'\]"),
    ({'inner': Scheme(prepare=lambda *given: given[:2])}, r"got a scheme of \['prepare'\]"),
    ({'inner': 'alibii'}, "Unknown scheme 'alibii'; did you mean 'alibi'"),
  ],
)
def test_what_it_cannot_adapt_is_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    dape.scheme(**arguments)


def test_an_inner_that_is_no_scheme_is_refused(unchecked):
  with pytest.raises(TypeError, match='inner must be a Scheme or a string, but got 3'):
    dape.scheme(3)
