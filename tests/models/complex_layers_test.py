"""The complex layers against complex128 NumPy, written from the paper, and the authors' code."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models import complex_layers
from posjax.models.complex_layers import Conv, Dense, LayerNorm, LSTMCell, RNNCell
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('complex_layers')


def both(name):
  return GOLDEN[f'{name}_real'] + 1j * GOLDEN[f'{name}_imag']


def narrow(z):
  return jnp.asarray(z, jnp.complex64)


def normal(*shape, seed=0):
  real, imag = np.random.default_rng(seed).normal(size=(2, *shape))
  return (real + 1j * imag).astype(np.complex64)


def jitted(model):
  graph, state = nnx.split(model)
  run = jax.jit(lambda state, *inputs: nnx.merge(graph, state)(*inputs))
  return functools.partial(run, state)


def randomized(model):
  """The model, its biases and scales moved off 0 and 1."""
  draw = np.random.default_rng(1).normal
  moved = lambda leaf: leaf + jnp.asarray(draw(size=leaf.shape), leaf.dtype)
  nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.Param)))
  return model


def kernel(layer):
  return np.asarray(layer.real.kernel[...] + 1j * layer.imag.kernel[...], np.complex128)


def bias(layer):
  real, imag = np.asarray(layer.bias.values[...], np.float64)
  return real + 1j * imag


def apart(function, z):
  return function(z.real) + 1j * function(z.imag)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


# Dense.


def test_dense_is_eq_10():
  a, b, c, d = (GOLDEN[f'dense_{n}'] for n in 'ABcd')
  layer = Dense(5, 4, activation=jax.nn.sigmoid, rngs=nnx.Rngs(0))
  layer.real.kernel[...], layer.imag.kernel[...] = jnp.float32(a.T), jnp.float32(b.T)
  layer.bias.values[...] = jnp.float32(np.stack([c, d]))
  assert error(jitted(layer)(narrow(GOLDEN['paper_emb'])), GOLDEN['dense_out']) <= 1e-6


def test_dense_without_bias_or_activation_is_the_complex_matrix_product():
  layer, z = Dense(5, 3, use_bias=False, rngs=nnx.Rngs(0)), normal(2, 7, 5)
  assert error(jitted(layer)(z), z @ kernel(layer)) <= 1e-6
  assert len(jax.tree.leaves(nnx.state(layer, nnx.Param))) == 2


def test_dense_keeps_the_size_of_its_input():
  layer = Dense(256, 256, rngs=nnx.Rngs(0))
  out = jitted(layer)(normal(400, 256))
  np.testing.assert_allclose((abs(out) ** 2).mean(), 2, rtol=0.05)
  np.testing.assert_allclose([out.real.var(), out.imag.var()], 1, rtol=0.05)


def test_dense_has_the_gradients_of_differences():
  layer, z = randomized(Dense(3, 2, activation=jnp.tanh, rngs=nnx.Rngs(0))), normal(4, 3)
  graph, params = nnx.split(layer)
  each = jnp.asarray(np.random.default_rng(2).normal(size=(2, 4, 2)), jnp.float32)

  def loss(params, z):
    out = nnx.merge(graph, params)(z)
    return (out.real * each[0] + out.imag * each[1]).sum()

  value_and_grad = jax.jit(jax.value_and_grad(loss))
  _, grads = value_and_grad(params, z)
  leaves, tree = jax.tree.flatten(params)
  for i, grad in enumerate(jax.tree.leaves(grads)):
    direction = np.random.default_rng(3).normal(size=grad.shape)
    ends = [
      value_and_grad(tree.unflatten([*leaves[:i], leaves[i] + s * direction, *leaves[i + 1 :]]), z)
      for s in (1e-2, -1e-2)
    ]
    slope = (ends[0][0] - ends[1][0]) / 2e-2
    np.testing.assert_allclose((grad * direction).sum(), slope, rtol=5e-3, atol=1e-3)


# The score.


@pytest.mark.parametrize(('conjugate', 'name'), [(True, 'hermitian'), (False, 'noconj')])
def test_the_score_is_eq_14(conjugate, name):
  q, k = (narrow(GOLDEN['paper_emb'] @ GOLDEN[f'score_W{n}']) for n in 'qk')
  found = complex_layers.attention_score(q[:, :, None], k[:, :, None], conjugate)[:, 0]
  assert found.dtype == jnp.float32
  assert error(found, GOLDEN[f'score_{name}_abs_over_sqrtn']) <= 1e-6


def test_the_score_of_grouped_heads():
  q, k = normal(2, 3, 4, 5), normal(2, 6, 2, 5, seed=1)
  found = complex_layers.attention_score(narrow(q), narrow(k))
  assert error(found, abs(loops.content(q, k))) <= 1e-6


def test_a_score_of_zero_has_the_gradient_zero():
  zero = jnp.zeros((1, 2, 1, 3), jnp.complex64)
  grad = jax.grad(lambda q: complex_layers.attention_score(q, q).sum())(zero)
  np.testing.assert_array_equal(grad, 0)
  grad = jax.grad(lambda q: complex_layers.attention_score(q, zero + 1j).sum())(zero)
  np.testing.assert_array_equal(grad, 0)


# Convolution.


@pytest.mark.parametrize(
  ('padding', 'before', 'after'), [('VALID', 0, 0), ('CAUSAL', 2, 0), ('SAME', 1, 1)]
)
def test_a_convolution_slides_a_complex_kernel_over_the_tokens(padding, before, after):
  layer = randomized(Conv(4, 5, 3, padding=padding, activation=jax.nn.relu, rngs=nnx.Rngs(0)))
  z = normal(2, 7, 4)
  padded = np.pad(z.astype(np.complex128), [(0, 0), (before, after), (0, 0)])
  expected = np.zeros((2, padded.shape[1] - 2, 5), complex)
  for b, t, n in np.ndindex(expected.shape):
    expected[b, t, n] = sum(padded[b, t + s] @ kernel(layer)[s, :, n] for s in range(3))
  expected = apart(lambda x: np.maximum(x, 0), expected + bias(layer))
  assert error(jitted(layer)(z), expected) <= 1e-6


@pytest.mark.parametrize('name', ['order', 'vanilla'])
def test_it_gives_the_features_of_the_authors_classifier(name):
  """Two sizes of filters, relu, the largest of each: real parts, then imaginary parts."""
  z, features = narrow(both(f'tf_{name}_emb')), []
  for i in range(2):
    weights, shared = both(f'tf_{name}_conv{i}')[:, :, 0], GOLDEN[f'tf_{name}_convbias{i}']
    size, width, filters = weights.shape
    layer = Conv(width, filters, size, activation=jax.nn.relu, rngs=nnx.Rngs(0))
    layer.real.kernel[...], layer.imag.kernel[...] = (
      jnp.asarray(weights.real),
      jnp.asarray(weights.imag),
    )
    layer.bias.values[...] = jnp.asarray(np.stack([shared, shared]))
    out = jitted(layer)(z)
    features += [out.real.max(1), out.imag.max(1)]
  found = np.concatenate([features[j] for j in (0, 2, 1, 3)], axis=1)
  assert error(found, GOLDEN[f'tf_{name}_pooled_features']) <= 1e-6


# Recurrent cells.


def test_a_recurrent_cell_is_eq_12():
  cell = randomized(RNNCell(3, 4, activation=jax.nn.sigmoid, rngs=nnx.Rngs(0)))
  z = normal(2, 6, 3)
  w, u = kernel(cell.dense)[:4], kernel(cell.dense)[4:]
  state, expected = np.zeros((2, 4), complex), []
  for t in range(6):
    state = apart(sigmoid, state @ w + z[:, t] @ u + bias(cell.dense))
    expected.append(state)
  assert error(jitted(nnx.RNN(cell))(z), np.stack(expected, axis=1)) <= 1e-5


def lstm(cell, z, forget_bias):
  """Each gate by itself, the parts of each as real numbers."""
  hidden = cell.hidden_width
  memory = output = np.zeros((z.shape[0], hidden), complex)
  outputs = []
  for t in range(z.shape[1]):
    both = np.concatenate([output, z[:, t]], axis=1) @ kernel(cell.dense) + bias(cell.dense)
    i, f, g, o = (both[:, j * hidden : (j + 1) * hidden] for j in range(4))
    i, f, o = (apart(sigmoid, gate) for gate in (i, f + forget_bias * (1 + 1j), o))
    g = apart(np.tanh, g)
    real = f.real * memory.real + i.real * g.real
    imag = f.imag * memory.imag + i.imag * g.imag
    memory = real + 1j * imag
    output = o.real * np.tanh(real) + 1j * o.imag * np.tanh(imag)
    outputs.append(output)
  return np.stack(outputs, axis=1), memory


@pytest.mark.parametrize('forget_bias', [1.0, 0.0])
def test_an_lstm_has_complex_gates_for_each_part(forget_bias):
  cell = randomized(LSTMCell(3, 4, forget_bias=forget_bias, rngs=nnx.Rngs(0)))
  z = normal(2, 6, 3)
  expected, last = lstm(cell, z, forget_bias)
  (memory, output), found = jitted(nnx.RNN(cell, return_carry=True))(z)
  assert error(found, expected) <= 1e-5
  assert error(memory, last) <= 1e-5
  np.testing.assert_array_equal(output, found[:, -1])


def test_recurrent_cells_forget_padding_and_run_backwards():
  cell, z = RNNCell(3, 4, rngs=nnx.Rngs(0)), normal(2, 6, 3)
  run = nnx.RNN(cell, return_carry=True)
  state, _ = run(z, seq_lengths=jnp.array([4, 6]))
  np.testing.assert_allclose(state[0], run(z[:1, :4])[0][0], atol=1e-6)
  backwards = nnx.RNN(cell, reverse=True, keep_order=True)(z)
  np.testing.assert_allclose(backwards[:, ::-1], nnx.RNN(cell)(z[:, ::-1]), atol=1e-6)


@pytest.mark.parametrize('make', [RNNCell, LSTMCell])
def test_recurrent_cells_have_finite_gradients_at_zero(make):
  graph, params = nnx.split(make(3, 4, rngs=nnx.Rngs(0)))
  run = lambda params, z: abs(nnx.RNN(nnx.merge(graph, params))(z)).sum()
  grads = jax.jit(jax.grad(run, argnums=(0, 1)))(params, jnp.zeros((1, 3, 3), jnp.complex64))
  chex.assert_tree_all_finite(grads)


# Layer norm, and all together.


def test_layer_norm_norms_each_part_by_its_own_mean_and_variance():
  layer, z = randomized(LayerNorm(5, rngs=nnx.Rngs(0))), normal(2, 3, 5) + np.float32(100)

  def norm(x, part):
    x = x.astype(np.float64)
    scale, shift = (np.asarray(p[...], np.float64) for p in (part.scale, part.bias))
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * scale + shift

  expected = norm(z.real, layer.real) + 1j * norm(z.imag, layer.imag)
  assert error(jitted(layer)(z), expected) <= 1e-5


def test_layer_norm_of_equal_numbers_has_finite_gradients():
  layer = LayerNorm(4, rngs=nnx.Rngs(0))
  grad = jax.grad(lambda z: layer(z).real.sum() + layer(z).imag.sum())(jnp.full((1, 4), 2 + 3j))
  assert jnp.isfinite(grad).all()


def test_with_shared_weights_they_make_the_authors_encoder_layer():
  """As printed by its code, in which the residuals go round the attention's output alone."""
  weights = {n.removeprefix('tclayer_param_'): GOLDEN[n] for n in GOLDEN.files if '_param_' in n}

  def dense(name, activation=None):
    w, b = weights[f'{name}.weight'], weights[f'{name}.bias']
    layer = Dense(w.shape[1], w.shape[0], activation=activation, rngs=nnx.Rngs(0))
    layer.real.kernel[...], layer.imag.kernel[...] = (
      jnp.float32(w.T),
      jnp.zeros_like(w.T, 'float32'),
    )
    layer.bias.values[...] = jnp.float32(np.stack([b, b]))
    return jax.jit(layer)

  def norm(name):
    scale, shift = weights[f'{name}.a_2'], weights[f'{name}.b_2']
    layer = LayerNorm(8, rngs=nnx.Rngs(0))
    for part in (layer.real, layer.imag):
      part.scale[...], part.bias[...] = jnp.float32(scale * np.sqrt(7 / 8)), jnp.float32(shift)
    return layer

  z = narrow(both('tclayer_x'))
  heads = (dense(f'self_attn.linears_real.{j}')(z).reshape(2, 5, 2, 4) for j in range(3))
  q, k, v = heads
  a = jax.nn.softmax(complex_layers.attention_score(q, k, conjugate=False), axis=-1)
  out = jnp.einsum('bhts,bshd->bthd', a, v).reshape(2, 5, 8)
  z = dense('self_attn.linears_real.3')(out)
  z = z + jax.lax.complex(norm('sublayer_output.0.norm')(z).real, z.imag)
  inner = dense('feed_forward.w_1', jax.nn.relu)(norm('sublayer_output.1.norm')(z))
  z = z + dense('feed_forward.w_2')(inner)
  assert error(z, both('tclayer_out')) <= 1e-5


def test_with_shared_weights_they_make_the_authors_cross_attention_and_feed_forward():
  """Their translation code, written from its formulas in float64: SubLayers.py at 4c4ec246.

  No conjugate, a temperature of sqrt(2 D), and one real projection for both parts; in the feed-
  forward layer each kernel has a bias of its own, so that the parts add them.
  """
  draw = np.random.default_rng(0).normal
  w, b = draw(size=(4, 8, 6)), draw(size=(4, 6))
  fc, fc_bias = draw(size=(6, 8)), draw(size=8)
  q, k = normal(2, 4, 8), normal(2, 6, 8, seed=1)
  mask = np.random.default_rng(2).random((2, 4, 6)) < 0.7
  mask[..., 0] = True

  scheme = posjax.get('complex_vanilla(conjugate=False)')
  options = {'head_dim': 3, 'scale': 6**-0.5, 'use_bias': True, 'model_places': True}
  layer = complex_layers.Attention(8, 2, scheme, **options, rngs=nnx.Rngs(0))
  for i, dense in enumerate((layer.query, layer.key, layer.value)):
    dense.real.kernel[...] = jnp.float32(w[i].reshape(8, 2, 3))
    dense.imag.kernel[...] = jnp.zeros((8, 2, 3))
    dense.bias.values[...] = jnp.float32(np.stack([b[i].reshape(2, 3)] * 2))
  layer.out.real.kernel[...] = jnp.float32(fc.reshape(2, 3, 8))
  layer.out.imag.kernel[...] = jnp.zeros((2, 3, 8))
  layer.out.bias.values[...] = jnp.float32(np.stack([fc_bias] * 2))

  @jax.jit
  def both_ways(q, k, mask):
    pos, memory = jnp.arange(4), layer.memorize(k, jnp.arange(6))
    return layer(q, pos, x_kv=k, kv_pos=jnp.arange(6), mask=mask), layer.read(
      q, pos, memory, mask=mask
    )

  project = lambda z, i: (z @ w[i] + b[i] * (1 + 1j)).reshape(*z.shape[:2], 2, 3)
  logits = abs(np.einsum('bthd,bshd->bhts', project(q, 0), project(k, 1))) / 6**0.5
  weights = np.where(mask[:, None], np.exp(logits), 0)
  weights /= weights.sum(-1, keepdims=True)
  mixed = np.einsum('bhts,bshd->bthd', weights, project(k, 2)).reshape(2, 4, 6)
  expected = mixed @ fc + fc_bias * (1 + 1j)
  for found in both_ways(narrow(q), narrow(k), jnp.asarray(mask[:, None])):
    assert error(found, expected) <= 1e-5

  real, imag = draw(size=(2, 8, 6))
  real_bias, imag_bias = draw(size=(2, 6))
  dense = Dense(8, 6, activation=jax.nn.relu, rngs=nnx.Rngs(0))
  dense.real.kernel[...], dense.imag.kernel[...] = jnp.float32(real), jnp.float32(imag)
  dense.bias.values[...] = jnp.float32(np.stack([real_bias - imag_bias, real_bias + imag_bias]))
  x, y = q.real, q.imag
  first = x @ real + real_bias - (y @ imag + imag_bias)
  second = y @ real + real_bias + (x @ imag + imag_bias)
  expected = np.maximum(first, 0) + 1j * np.maximum(second, 0)
  assert error(jax.jit(dense)(narrow(q)), expected) <= 1e-5
