import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.softplus import inverse_softplus
from posjax.schemes import gaussian
from tests.support.loops import attention, content, error
from tests.support.paths import load_golden

GOLDEN = load_golden('gaussian')
DIMS = posjax.Dims(width=16, num_heads=4, head_dim=4, num_kv_heads=2)
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='scale')


def _softplus(raw):
  return np.log1p(np.exp(np.asarray(raw, np.float64)))


@pytest.mark.parametrize('per_head', [False, True])
@pytest.mark.parametrize('b', [-0.7, None])
def test_attention_is_the_papers_pair_by_pair(key, per_head, b):
  scheme = gaussian.scheme(0.3, b, per_head)
  draw = lambda leaf: leaf + jnp.linspace(-1, 1, leaf.size)
  params = jax.tree.map(draw, posjax.init(scheme, key, DIMS))
  q = jax.random.normal(key, (2, 5, 4, 4))
  k, v = jax.random.normal(jax.random.fold_in(key, 1), (2, 2, 7, 2, 4))
  q_pos, k_pos = np.array([[3, 0, 11, 4, 4], [0, 1, 2, 3, 4]]), np.array([0, 3, 4, 5, 8, 9, 11])
  out = attend(q, k, v, scheme, params, q_pos=jnp.asarray(q_pos), k_pos=jnp.asarray(k_pos))
  heads = range(4) if per_head else [0] * 4
  logits = content(np.asarray(q), np.asarray(k))
  for batch, h, t, s in np.ndindex(logits.shape):
    w = _softplus(params['raw_w'][heads[h]])
    offset = -_softplus(params['raw_b'][heads[h]]) if b else 0.0
    logits[batch, h, t, s] -= abs(w * float(q_pos[batch, t] - k_pos[s]) ** 2 + offset)
  expected, _ = attention(logits, np.array(True), np.asarray(v))
  assert error(out, expected) < 1e-5


@pytest.mark.parametrize('case', ['c0', 'c2'])
def test_values_and_gradients_equal_an_independent_loop(case):
  get = lambda name: jnp.asarray(GOLDEN[f'{case}_{name}'], jnp.float32)
  tokens_first = lambda name: get(name).swapaxes(1, 2)
  heads, (w, b) = map(tokens_first, 'qkv'), (get('w')[None], get('b')[None])
  real = jnp.asarray(GOLDEN[f'{case}_mask_true_token'])[:, None, None]
  tokens = real.shape[-1]
  mask, pos = jnp.broadcast_to(real, (len(real), 1, tokens, tokens)), jnp.arange(tokens)
  prior = posjax.Scheme(
    init=lambda key, dims: {'w': jnp.ones(1), 'b': jnp.zeros(1)},
    bias=lambda params, distance: gaussian.bias(params['w'], params['b'], distance),
  )

  def layer(q, k, v, w, b):
    params = {'w': w, 'b': b}
    return posjax.attend(q, k, v, prior, params, q_pos=pos, k_pos=pos, mask=mask)

  @jax.jit
  def backward(cotangent, *given):
    out, back = jax.vjp(layer, *given)
    return out, back(cotangent)

  out, (*grads, grad_w, grad_b) = backward(tokens_first('cotangent'), *heads, w, b)
  assert error(out, tokens_first('out')) < 1e-5
  found = [*(grad.swapaxes(1, 2) for grad in grads), grad_w[0], grad_b[0]]
  for name, grad in zip('qkvwb', found, strict=True):
    expected = GOLDEN[f'{case}_grad_{name}']
    if tokens > 1 or name == 'v':
      assert error(grad, expected) < 1e-5
    else:  # one token: nothing to choose from
      np.testing.assert_allclose(grad, expected, atol=1e-6)


@pytest.mark.parametrize(
  ('name', 'w', 'b'),
  [('gauss_pi', np.pi, 0.0), ('gauss_w', 0.3, 0.0), ('gauss_wb', 0.3, -0.7)]
  + [('gauss_wpib', 0.3 * np.pi, -0.7)],
)
def test_pi_is_in_w(name, w, b):
  pos = jnp.arange(6)
  found = gaussian.bias(jnp.array([w]), jnp.array([b]), pos[:, None] - pos[None])
  assert error(found[0], GOLDEN[f'bias_{name}_L6_w0.3_bm0.7']) < 1e-6


def test_a_prior_that_multiplies_the_weights_is_a_bias_that_is_added():
  # softmax(x . x) times exp(-pi d^2), divided by its sum: both sides of the paper's equation.
  x = jnp.asarray(GOLDEN['equiv_x'], jnp.float32)[:, None]
  pos, each = jnp.arange(6), jnp.eye(6)[:, None]
  ids = {'q_pos': pos, 'k_pos': pos, 'scale': 1.0}
  plain = attend(x, x, each, posjax.Scheme(), {}, **ids)[:, 0]
  distance = np.subtract.outer(np.arange(6), np.arange(6))
  weighted = np.asarray(plain, np.float64) * np.exp(-np.pi * distance**2)
  weighted /= weighted.sum(-1, keepdims=True)
  prior = gaussian.scheme(float(np.pi), None)
  params = prior.init_model(jax.random.key(0), DIMS)
  found = attend(x, x, each, prior, params, **ids)[:, 0]
  assert error(found, weighted) < 1e-5
  assert error(found, GOLDEN['equiv_weights']) < 1e-5


@pytest.mark.parametrize(('w', 'b', 'at'), [(0.25, -1.0, 2.0), (2.0, -0.5, 0.5), (0.3, 0.0, 0.0)])
def test_the_priors_maximum_is_at_the_root_of_minus_b_over_w(w, b, at):
  distance = jnp.linspace(-4, 4, 801)
  found = gaussian.bias(jnp.array([w]), jnp.array([b]), distance)[0]
  np.testing.assert_allclose(abs(distance[found.argmax()]), at, atol=1e-5)
  np.testing.assert_allclose(found.max(), 0, atol=1e-5)
  np.testing.assert_allclose(found[400], b, atol=1e-6)  # the token itself pays |b|


def test_the_gradient_where_the_absolute_value_is_zero_is_zero():
  loss = lambda w, b: gaussian.bias(w, b, jnp.array([2])).sum()
  for grad in jax.grad(loss, argnums=(0, 1))(jnp.array([0.25]), jnp.array([-1.0])):
    np.testing.assert_array_equal(grad, [0.0])


def test_both_directions_are_alike():
  distance = jnp.arange(-9, 10)
  found = gaussian.bias(jnp.array([0.2, 0.1]), jnp.array([-1.0, -3.0]), distance)
  np.testing.assert_array_equal(found, found[:, ::-1])


def test_squares_of_far_distances_do_not_wrap():
  distance = jnp.array([46341, 2**20, 2**31 - 1, -(2**31) + 1])
  found = gaussian.bias(jnp.array([0.5]), jnp.array([-1.0]), distance)[0]
  np.testing.assert_allclose(found, -0.5 * np.asarray(distance, np.float64) ** 2, rtol=1e-6)


def test_a_narrow_w_counts_every_token():
  distance = jnp.array([257, 2049])
  found = gaussian.bias(jnp.array([0.5], jnp.bfloat16), jnp.array([-1.0], jnp.bfloat16), distance)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found[0], 1 - 0.5 * np.asarray(distance) ** 2.0, rtol=1e-7)


@pytest.mark.parametrize('value', [1e-6, 0.1, 1.0, 50.0, 1e5])
def test_numbers_start_at_what_was_asked_for(key, value):
  np.testing.assert_allclose(_softplus(inverse_softplus(0.1)), 0.1, rtol=1e-6)
  params = gaussian.scheme(value, -value).init_model(key, DIMS)
  found = [jax.nn.softplus(params[name]) for name in ('raw_w', 'raw_b')]
  np.testing.assert_allclose(found, [[value]] * 2, rtol=2e-6)


def test_signs_hold_wherever_training_goes():
  raw = jnp.array([-50.0, -1.0, 0.0, 30.0])
  scheme = gaussian.scheme(per_head=True)
  found = scheme.bias({'raw_w': raw, 'raw_b': raw}, jnp.array([0, 10]))
  assert (found[:, 0] <= 0).all()  # -|b|
  only_w = scheme.bias({'raw_w': raw, 'raw_b': raw - 100}, jnp.array([10]))
  assert (only_w < 0).all()


def test_one_pair_is_the_models_or_each_head_of_each_layer_has_its_own(key):
  whole, per_head = gaussian.scheme(), gaussian.scheme(per_head=True)
  shapes = lambda tree: {name: leaf.shape for name, leaf in tree.items()}
  assert shapes(whole.init_model(key, DIMS)) == {'raw_w': (1,), 'raw_b': (1,)}
  assert whole.init(key, DIMS) == {}
  assert shapes(per_head.init(key, DIMS)) == {'raw_w': (4,), 'raw_b': (4,)}
  assert per_head.init_model(key, DIMS) == {}


def test_without_b_there_is_no_parameter_for_it(key):
  scheme = gaussian.scheme(0.5, None)
  params = scheme.init_model(key, DIMS)
  assert set(params) == {'raw_w'}
  np.testing.assert_allclose(scheme.bias(params, jnp.array([0, 3])), [[0, -4.5]], rtol=1e-6)


@pytest.mark.parametrize('b', [-0.7, None])
def test_a_prior_that_is_not_trained_has_the_same_bias_and_no_gradient(key, b):
  learned, fixed = gaussian.scheme(np.pi, b), gaussian.scheme(np.pi, b, trained=False)
  distance = jnp.arange(-4, 5)
  params = fixed.init_model(key, DIMS)
  found = fixed.bias(params, distance)
  signed = np.pi * np.arange(-4.0, 5) ** 2 + (b or 0)
  np.testing.assert_allclose(found[0], -abs(signed), rtol=1e-6)
  trained, constant = posjax.split(fixed, params)
  assert not trained
  assert set(constant) == set(learned.init_model(key, DIMS))
  total = lambda scheme: jax.grad(lambda params: scheme.bias(params, distance).sum())(params)
  assert all(grad == 0 for grad in jax.tree.leaves(total(fixed)))
  assert all(grad != 0 for grad in jax.tree.leaves(total(learned)))


def test_heads_that_are_not_trained_cannot_differ():
  with pytest.raises(ValueError, match='per_head=True needs trained=True, but got trained=False'):
    gaussian.scheme(per_head=True, trained=False)


@pytest.mark.parametrize('w', [0.0, -0.5, np.inf, np.nan])
def test_a_w_that_is_not_positive_is_refused(w):
  with pytest.raises(ValueError, match=f'must be (positive|a finite number), but got {w}'):
    gaussian.scheme(w)


@pytest.mark.parametrize('b', [0.0, 0.5, -np.inf, np.nan])
def test_a_b_that_is_not_negative_is_refused(b):
  with pytest.raises(
    ValueError, match=f'must be (negative, or None.*|a finite number), but got {b}'
  ):
    gaussian.scheme(b=b)
