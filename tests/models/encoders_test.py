"""Parts of encoders of texts, against torch, or loops over float64 numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models import encoders, pooling
from posjax.models.blocks import Block, Layer
from posjax.models.complex_layers import GRUCell
from posjax.models.embedding import Embedded
from posjax.models.encoders import get_encoder
from posjax.models.layer_sets import COMPLEX, REAL, real_parts
from posjax.scheme import Dims
from tests.models.text_made import moved, normal
from tests.support.loops import error
from tests.support.paths import load_golden

LAYERS = {'real': REAL, 'complex': COMPLEX}


def encoder(name, kind, width, **options):
  """An encoder off its initial values."""
  return moved(get_encoder(name)(LAYERS[kind], width, rngs=nnx.Rngs(0), **options))


def recurrent(cell, kind, bidirectional):
  sizes = {'hidden_width': 4, 'num_layers': 1, 'bidirectional': bidirectional}
  return encoder(cell, kind, 5, **sizes)


def encoded(model, x, real):
  """Features of each token."""
  graph, state = nnx.split(model)
  run = jax.jit(lambda state, *inputs: nnx.merge(graph, state)(Embedded(*inputs)).x)
  return run(state, jnp.asarray(x), (), (), jnp.asarray(real, jnp.int32))


def pooled(model, kind, x, real):
  """One vector a row, by the encoder's own pooling or by that of the name."""
  graph, state = nnx.split(model)

  @jax.jit
  def run(state, x, segments):
    model = nnx.merge(graph, state)
    vectors = pooling.pool(model.pooling or kind, model(Embedded(x, segments=segments)))
    return model.after_pooling(vectors)

  return run(state, jnp.asarray(x), jnp.asarray(real, jnp.int32))


# Recurrent cells: torch for the real ones, loops for the complex ones.


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize('cell', ['rnn', 'lstm', 'gru'])
def test_real_recurrent_states_are_those_of_torch(cell, bidirectional):
  torch = pytest.importorskip('torch')
  model = recurrent(cell, 'real', bidirectional)
  theirs = getattr(torch.nn, cell.upper())(5, 4, batch_first=True, bidirectional=bidirectional)
  (layer,) = model.layers
  cells = (layer.forward_rnn, layer.backward_rnn) if bidirectional else (layer,)
  for suffix, one in zip(('', '_reverse'), (each.cell for each in cells), strict=False):
    for name, dense in (('ih', one.dense_i), ('hh', one.dense_h)):
      getattr(theirs, f'weight_{name}_l0{suffix}').data = torch.tensor(
        np.asarray(dense.kernel[...].T)
      )
      bias = 0 * dense.kernel[0] if dense.bias is None else dense.bias[...]
      getattr(theirs, f'bias_{name}_l0{suffix}').data = torch.tensor(np.asarray(bias))
  x, real = normal(2, 6, 5), np.arange(6)[None] < np.array([[6], [4]])
  features = encoded(model, x, real)
  found = pooled(model, 'last', x, real)
  for i, length in enumerate((6, 4)):
    with torch.no_grad():
      states, _ = theirs(torch.tensor(x[i : i + 1, :length]))
    assert error(features[i, :length], states[0].numpy()) <= 1e-6
    expected = states[0, -1].numpy()
    if bidirectional:
      expected = np.concatenate([states[0, -1, :4].numpy(), states[0, 0, 4:].numpy()])
    assert error(found[i], expected) <= 1e-6


@pytest.mark.parametrize('cell', ['rnn', 'lstm'])
@pytest.mark.parametrize('suffix', ['', '_bi'])
def test_recurrent_states_are_those_recorded_of_torch(cell, suffix):
  golden = load_golden('recurrent')
  sizes = {'hidden_width': 4, 'num_layers': 1, 'bidirectional': suffix == '_bi'}
  model = encoder(cell, 'real', 3, **sizes)
  (layer,) = model.layers
  cells = (layer.forward_rnn, layer.backward_rnn) if suffix else (layer,)
  for direction, one in zip(('', '_reverse'), (each.cell for each in cells), strict=False):
    get = lambda kind: golden[f'{cell}{suffix}_{kind}_l0{direction}']  # noqa: B023 (called here)
    one.dense_i.kernel[...] = jnp.asarray(get('weight_ih').T, jnp.float32)
    one.dense_h.kernel[...] = jnp.asarray(get('weight_hh').T, jnp.float32)
    both = one.dense_h if one.dense_i.bias is None else one.dense_i  # torch has two that add up
    both.bias[...] = jnp.asarray(get('bias_ih') + get('bias_hh'), jnp.float32)
  x = golden['x'].astype(np.float32)
  states = encoded(model, x, np.ones(x.shape[:2]))
  assert error(states, golden[f'{cell}{suffix}_out']) <= 1e-6


def kernel(layer):
  return np.asarray(layer.real.kernel[...] + 1j * layer.imag.kernel[...], np.complex128)


def bias(layer):
  if layer.bias.values is None:
    return 0
  real, imag = np.asarray(layer.bias.values[...], np.float64)
  return real + 1j * imag


def apart(function, z):
  return function(z.real) + 1j * function(z.imag)


def times(a, b):
  return a.real * b.real + 1j * a.imag * b.imag


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def test_the_complex_gru_is_its_equations():
  cell, z = moved(GRUCell(5, 4, rngs=nnx.Rngs(0))), normal(3, 2, 5, field='complex')
  w, u, b = kernel(cell.input), kernel(cell.state), bias(cell.input)
  state, carry = np.zeros((2, 4), complex), cell.initialize_carry((2, 5))
  for one in z:
    inside, before = one @ w + b, state @ u
    r = apart(sigmoid, inside[:, :4] + before[:, :4])
    update = apart(sigmoid, inside[:, 4:8] + before[:, 4:8])
    new = apart(np.tanh, inside[:, 8:] + times(r, before[:, 8:]))
    state = times(1 + 1j - update, new) + times(update, state)
    carry, out = cell(carry, jnp.asarray(one))
    np.testing.assert_array_equal(carry, out)
  assert error(carry, state) <= 1e-6


def test_two_complex_directions_are_each_direction_alone():
  both = recurrent('gru', 'complex', bidirectional=True)
  x, real = normal(1, 4, 5, field='complex'), np.ones((1, 4), bool)
  (layer,) = both.layers
  ends = []
  for cell, words in ((layer.forward_rnn.cell, x[0]), (layer.backward_rnn.cell, x[0][::-1])):
    carry = cell.initialize_carry((5,))
    for word in words:
      carry, _ = cell(carry, jnp.asarray(word))
    ends.append(carry)
  assert error(pooled(both, 'last', x, real)[0], np.concatenate(ends)) <= 1e-6


# FastText, the convolutions, the Transformer block.


@pytest.mark.parametrize('field', LAYERS)
def test_fasttext_is_a_dense_layer_of_the_mean(field):
  model = encoder('fasttext', field, 5, hidden_width=4, activation='tanh')
  x, lengths = normal(2, 6, 5, field=field), (6, 4)
  dense = model.dense
  for i, length in enumerate(lengths):
    mean = x[i, :length].astype(np.complex128).sum(0) / length
    if field == 'real':
      expected = np.tanh(mean.real @ np.asarray(dense.kernel[...], np.float64) + dense.bias[...])
    else:
      expected = apart(np.tanh, mean @ kernel(dense) + bias(dense))
    real = np.arange(6)[None] < np.array(lengths)[:, None]
    assert error(pooled(model, None, x, real)[i], expected) <= 1e-6


@pytest.mark.parametrize('field', LAYERS)
def test_the_cnn_is_the_largest_of_each_filter_over_whole_windows(field):
  model = encoder('cnn', field, 3, hidden_width=4, kernel_sizes=(2, 3), activation='relu')
  x, lengths = normal(3, 6, 3, field=field), (6, 2, 1)
  real = np.arange(6)[None] < np.array(lengths)[:, None]
  found = pooled(model, None, x, real)
  for i, length in enumerate(lengths):
    expected = []
    for size, conv in zip((2, 3), model.convs, strict=True):
      w = np.asarray(conv.kernel[...], np.float64) if field == 'real' else kernel(conv)
      b = np.asarray(conv.bias[...], np.float64) if field == 'real' else bias(conv)
      text = np.zeros((max(length, size), 3), np.complex128)
      text[:length] = x[i, :length]
      answers = np.array(
        [np.einsum('sm,smn->n', text[t : t + size], w) + b for t in range(len(text) - size + 1)]
      )
      positive = np.maximum(answers.real, 0).max(0) + 1j * np.maximum(answers.imag, 0).max(0)
      expected.append(positive)
    assert error(found[i], np.concatenate(expected)) <= 1e-6


def test_the_complex_cnn_is_that_of_the_authors():
  golden = load_golden('complex_layers')
  both = lambda name: golden[f'tf_order_{name}_real'] + 1j * golden[f'tf_order_{name}_imag']
  model = encoder('cnn', 'complex', 6, hidden_width=3, kernel_sizes=(2, 3), activation='relu')
  for i, conv in enumerate(model.convs):
    weights, shared = both(f'conv{i}')[:, :, 0], golden[f'tf_order_convbias{i}']
    conv.real.kernel[...], conv.imag.kernel[...] = map(jnp.asarray, (weights.real, weights.imag))
    conv.bias.values[...] = jnp.asarray(np.stack([shared, shared]))
  z = both('emb').astype(np.complex64)
  found = real_parts(pooled(model, None, z, np.ones(z.shape[:2], bool)))
  assert error(found, golden['tf_order_pooled_features']) <= 1e-6


def norm(layer, z):
  def one(part, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * np.asarray(part.scale[...]) + np.asarray(part.bias[...])

  return one(layer.real, z.real) + 1j * one(layer.imag, z.imag)


@pytest.mark.parametrize('pre_norm', [False, True])
def test_the_complex_block_is_its_equations(pre_norm):
  scheme = posjax.get('complex_order')
  block = moved(
    Block(
      Layer(scheme),
      layer_set=COMPLEX,
      width=6,
      num_heads=2,
      ff_width=5,
      pre_norm=pre_norm,
      attention_bias=True,
      activation='relu',
      dropout_rate=0.0,
      rngs=nnx.Rngs(0),
    )
  )
  z = normal(1, 4, 6, field='complex')
  dims = Dims(6, 2, 3, 2, 11)
  shared = scheme.init_model(jax.random.key(0), dims)
  pos, segments = jnp.arange(4)[None], jnp.array([[1, 1, 1, 0]])
  run = lambda block, z: block(z, pos, segments=segments, model_params=shared)[0]
  found = nnx.jit(run)(block, jnp.asarray(z))[0, :3]

  def attend(z):
    a = block.attention
    flat = lambda layer: (kernel(layer).reshape(6, 6), bias(layer).reshape(6))
    q, k, v = (z @ w + b for w, b in map(flat, (a.query, a.key, a.value)))
    heads = []
    for h in (slice(0, 3), slice(3, 6)):
      scores = abs(q[:, h] @ k[:, h].conj().T) / np.sqrt(3)  # eq. 14
      weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
      heads.append(weights @ v[:, h])
    return np.concatenate(heads, axis=1) @ flat(a.out)[0] + flat(a.out)[1]

  def feed_forward(z):
    ff = block.feed_forward
    hidden = apart(lambda x: np.maximum(x, 0), z @ kernel(ff.up) + bias(ff.up))
    return hidden @ kernel(ff.down) + bias(ff.down)

  expected = z[0, :3].astype(np.complex128)
  for part, layer in zip((attend, feed_forward), block.norms, strict=True):
    if pre_norm:
      expected = expected + part(norm(layer, expected))
    else:
      expected = norm(layer, expected + part(expected))
  assert error(found, expected) <= 2e-6


@pytest.mark.parametrize('field', LAYERS)
@pytest.mark.parametrize('name', pooling.POOLINGS)
def test_pooling_is_a_loop_over_the_tokens(name, field):
  x = normal(3, 5, 2, field=field)
  real = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
  x[1, 0] = np.nan
  largest = lambda z: z.real.max(0) + (1j * z.imag.max(0) if field == 'complex' else 0)
  loops = {'mean': lambda z: z.sum(0) / len(z), 'max': largest, 'last': lambda z: z[-1]}
  found = pooling.POOLINGS[name](jnp.asarray(x), jnp.asarray(real))
  for i in (0, 1):
    np.testing.assert_allclose(found[i], loops[name](x[i][real[i]]), rtol=1e-6)
  np.testing.assert_array_equal(found[2], 0)


@pytest.mark.parametrize('name', pooling.POOLINGS)
def test_groups_of_features_are_pooled_each_with_its_own_mask(name):
  groups = []
  for seed in (1, 2):
    counts = np.random.default_rng(seed).random((3, 5)) < 0.5
    counts[0, 0], counts[2] = True, False
    groups.append((normal(3, 5, 2, seed=seed), counts))
  both = pooling.Encoded(tuple(pooling.Group(*map(jnp.asarray, group)) for group in groups))
  loops = {'mean': lambda x: x.mean(0), 'max': lambda x: x.max(0), 'last': lambda x: x[-1]}
  expected = np.zeros((3, 4))
  for i, j in np.ndindex(3, 2):
    x, counts = groups[j]
    if counts[i].any():
      expected[i, 2 * j : 2 * j + 2] = loops[name](x[i, counts[i]])
  np.testing.assert_allclose(pooling.pool(name, both), expected, rtol=1e-6)
  np.testing.assert_array_equal(both.x, np.concatenate([x for x, _ in groups], axis=-1))


def test_only_the_last_state_of_a_backward_direction_is_that_at_the_first_token():
  x, counts = normal(1, 4, 2), jnp.array([[False, True, True, False]])
  forward = pooling.Group(jnp.asarray(x), counts)
  both = pooling.Encoded((forward, forward._replace(backward=True)))
  np.testing.assert_array_equal(pooling.pool('last', both)[0], [*x[0, 2], *x[0, 1]])
  np.testing.assert_array_equal(pooling.pool('max', both)[0], [*x[0, 1:3].max(0)] * 2)


def test_the_first_token_is_found_after_left_padding():
  x, real = normal(1, 4, 2), np.array([[False, True, True, False]])
  np.testing.assert_array_equal(pooling.first(jnp.asarray(x), jnp.asarray(real)), x[:, 1])


@pytest.mark.parametrize(
  ('name', 'option', 'value'),
  [
    ('partitioned', 'query_key', 'heads'),
    ('lstm', 'query_key', 'joint'),
    ('transformer', 'silent_content', (1,)),
    ('cnn', 'silent_position', [1]),
  ],
)
def test_what_an_encoder_cannot_do_is_refused(name, option, value):
  given = {option: value}
  with pytest.raises(ValueError, match=f"'{name}' has no model.{option}, but got .*{value[-1]}"):
    encoders.make(name, (posjax.Scheme(),), 8, given, layer_set=REAL, rngs=nnx.Rngs(0))


@pytest.mark.parametrize('kind', ['real', 'complex'])
def test_an_lstm_keeps_what_its_forget_gates_let_through(kind):
  """With all kernels 0 and a memory of 1, a step leaves sigmoid(forget_bias) of each part."""
  for given, expected in (({}, 1.0), ({'forget_bias': 3.0}, 3.0), ({'forget_bias': 0.0}, 0.0)):
    sizes = {'hidden_width': 4, 'num_layers': 1, 'bidirectional': False, **given}
    model = get_encoder('lstm')(LAYERS[kind], 5, rngs=nnx.Rngs(0), **sizes)
    cell = model.layers[0].cell
    for path, value in nnx.iter_graph(cell):
      if isinstance(value, nnx.Param) and path[-1] != 'bias':
        value[...] = jnp.zeros_like(value[...])
    x = jnp.zeros((1, 5))
    x, one = (x, jnp.ones((1, 4))) if kind == 'real' else (x + 0j, jnp.full((1, 4), 1 + 1j))
    (kept, _), _ = cell((one, 0 * one), x)
    np.testing.assert_allclose(kept, one / (1 + np.exp(-expected)), rtol=1e-6)
