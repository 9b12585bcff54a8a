"""The authors' Transformer-XL: the same losses, memories and gradients from the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import posjax
from posjax.models.recurrent import RecurrentTransformer
from tests.support.paths import load_golden

GOLDEN = load_golden('transformer_xl_model')
QKV = 'dec_attn.qkv_net.weight'


def as_the_authors(**changes):
  """Our model with the weights of the authors', and its bias of the output."""
  weight = lambda name: jnp.asarray(GOLDEN[f'lmparam_{name}'], jnp.float32)
  model = RecurrentTransformer(
    13,
    changes.pop('scheme', posjax.get('transformer_xl')),
    num_layers=2,
    width=8,
    num_heads=2,
    ff_width=12,
    pre_norm=False,
    activation='relu',
    rngs=nnx.Rngs(0),
    **changes,
  )
  shared = {0: {'held': {'u': weight('r_w_bias'), 'v': weight('r_r_bias')}}}
  table = {'embedding': weight('word_emb.emb_layers.0.weight')}
  params = {'embed': {'table': table, 'shared': shared}}
  layers = [block_of(lambda name, i=i: weight(f'layers.{i}.{name}')) for i in range(2)]
  params['stack'] = {'periods': {0: jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}}
  graph, state = nnx.split(model)
  assert jax.tree.structure(nnx.to_pure_dict(state)) == jax.tree.structure(params)
  nnx.replace_by_pure_dict(state, params)
  model = nnx.merge(graph, state)
  for norm in model.stack.periods[0].norms:
    norm.epsilon = 1e-5  # PyTorch's
  return model, weight('crit.out_layers.0.bias')


def block_of(weight):
  """One layer's weights, from PyTorch's [out, in]."""
  qkv = [part.reshape(2, 4, 8).transpose(2, 0, 1) for part in jnp.split(weight(QKV), 3)]
  kernels = [{'kernel': part} for part in qkv]
  norm = lambda name: {'scale': weight(f'{name}.weight'), 'bias': weight(f'{name}.bias')}
  linear = lambda name: {'kernel': weight(f'{name}.weight').T, 'bias': weight(f'{name}.bias')}
  attention = dict(zip(('query', 'key', 'value'), kernels, strict=True))
  attention['out'] = {'kernel': weight('dec_attn.o_net.weight').T.reshape(2, 4, 8)}
  w_r = weight('dec_attn.r_net.weight').reshape(2, 4, 8).transpose(2, 0, 1)
  return {
    'attention': {**attention, 'scheme_params': {'w_r': w_r}},
    'feed_forward': {'up': linear('pos_ff.CoreNet.0'), 'down': linear('pos_ff.CoreNet.3')},
    'norms': {0: norm('dec_attn.layer_norm'), 1: norm('pos_ff.layer_norm')},
  }


def authors_losses(model, bias, data, length, past):
  """Losses [B, T] and memories after each segment."""
  graph, state = nnx.split(model)
  recur = jax.jit(lambda *args: nnx.merge(graph, state).recur(*args))
  losses, pasts = [], []
  for at in range(0, len(data) - 1, length):
    tokens = jnp.asarray(data[at : at + length + 1].T, jnp.int32)
    logits, past = recur(tokens[:, :-1], at + jnp.arange(length), past)
    logits += bias[None, None]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    losses.append(loss)
    pasts.append(past)
  return losses, pasts


def compare_memory(past, name):
  for i in range(2):
    expected = GOLDEN[f'{name}_layer{i}'].swapaxes(0, 1)
    inputs = past.inputs[0][i, :, -expected.shape[1] :]
    np.testing.assert_allclose(inputs, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_the_authors_model_in_segments_of_training():
  model, bias = as_the_authors()
  losses, pasts = authors_losses(model, bias, GOLDEN['lm_data'], 4, model.init_past(2, 5))
  for i, loss in enumerate(losses):
    np.testing.assert_allclose(loss.T, GOLDEN[f'lm_loss_seg{i}'], rtol=1e-5)
  compare_memory(pasts[0], 'lm_mem_seg0')
  compare_memory(pasts[2], 'lm_mem_seg2')


@pytest.mark.parametrize('clamp', [None, 4])
@pytest.mark.parametrize(('memory', 'window'), [(6, 6), (4, None), (40, None)])
def test_a_longer_memory_a_clamp_and_as_many_keys_for_each_query(clamp, memory, window):
  line = 'transformer_xl' if clamp is None else f'transformer_xl(max_distance={clamp})'
  model, bias = as_the_authors(scheme=posjax.get(line), window=window)
  losses, _ = authors_losses(model, bias, GOLDEN['lm_data'], 3, model.init_past(2, memory))
  expected = formula(GOLDEN['lm_data'], 3, memory, window, clamp)
  np.testing.assert_allclose(jnp.concatenate(losses, axis=1), expected, rtol=1e-5)


def test_the_formula_is_that_of_the_authors_model():
  expected = np.concatenate([GOLDEN[f'lm_loss_seg{i}'] for i in range(3)]).T
  np.testing.assert_allclose(formula(GOLDEN['lm_data'], 4, 5, None, None), expected, rtol=1e-9)


def formula(data, length, memory, window, clamp):
  """Losses [B, T] in float64, row by row and pair by pair, without the authors' shift of rows."""
  return np.stack([of_row(row, length, memory, window, clamp) for row in data.T])


def of_row(row, length, memory, window, clamp):
  weight = lambda name: GOLDEN[f'lmparam_{name}']
  table, past, said = weight('word_emb.emb_layers.0.weight'), [np.zeros((0, 8))] * 2, []
  for at in range(0, len(row) - 1, length):
    h = table[row[at : at + length]] * 8**0.5
    for i in range(2):
      own = lambda name, i=i: weight(f'layers.{i}.{name}')
      both = np.concatenate([past[i], h])
      past[i] = both[-memory:]
      h = norm(h + attended(h, both, own, window, clamp), own, 'dec_attn.layer_norm')
      up = np.maximum(h @ own('pos_ff.CoreNet.0.weight').T + own('pos_ff.CoreNet.0.bias'), 0)
      down = up @ own('pos_ff.CoreNet.3.weight').T + own('pos_ff.CoreNet.3.bias')
      h = norm(h + down, own, 'pos_ff.layer_norm')
    logits = h @ table.T + weight('crit.out_layers.0.bias')
    chosen = np.take_along_axis(logits, row[at + 1 : at + length + 1, None], axis=1)[:, 0]
    said.append(np.log(np.exp(logits).sum(1)) - chosen)
  return np.concatenate(said)


def attended(h, both, own, window, clamp):
  q, k, v = (part.reshape(2, 4, 8) for part in np.split(own(QKV), 3))
  w_r, out = own('dec_attn.r_net.weight').reshape(2, 4, 8), np.zeros((len(h), 2, 4))
  u, v_r = GOLDEN['lmparam_r_w_bias'], GOLDEN['lmparam_r_r_bias']
  for t in range(len(h)):
    place = len(both) - len(h) + t
    first = 0 if window is None else max(place - window + 1, 0)
    for head in range(2):
      query, scores = q[head] @ h[t], []
      for s in range(first, place + 1):
        distance = place - s if clamp is None else min(place - s, clamp)
        angle = distance / 10_000.0 ** (np.arange(0, 8, 2) / 8)
        code = w_r[head] @ np.concatenate([np.sin(angle), np.cos(angle)])
        scores.append((query + u[head]) @ (k[head] @ both[s]) + (query + v_r[head]) @ code)
      weights = np.exp(np.array(scores) / 2.0)
      out[t, head] = weights @ (both[first : place + 1] @ v[head].T) / weights.sum()
  return out.reshape(len(h), 8) @ own('dec_attn.o_net.weight').T


def norm(x, own, name):
  x = x - x.mean(-1, keepdims=True)
  x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
  return x * own(f'{name}.weight') + own(f'{name}.bias')


def test_gradients_are_those_of_the_authors_model():
  """Of keys and values they come through what is remembered as well; to that itself, none."""
  model, bias = as_the_authors()
  graph, state = nnx.split(model)

  @jax.jit
  def gradients(state, bias):
    def total(state, bias):
      model = nnx.merge(graph, state)
      losses, _ = authors_losses(model, bias, GOLDEN['lm_data'], 4, model.init_past(2, 5))
      return sum(loss.mean() for loss in losses)

    return jax.grad(total, (0, 1))(state, bias)

  found, of_bias = gradients(state, bias)
  found = nnx.to_pure_dict(found)
  expected = lambda name: GOLDEN[f'lmgrad_{name}']

  def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * abs(theirs).max())

  close(of_bias, expected('crit.out_layers.0.bias'))
  close(found['embed']['table']['embedding'], expected('word_emb.emb_layers.0.weight'))
  close(found['embed']['shared'][0]['held']['u'], expected('r_w_bias'))
  close(found['embed']['shared'][0]['held']['v'], expected('r_r_bias'))
  for i in range(2):
    ours = jax.tree.map(lambda leaf, i=i: leaf[i], found['stack']['periods'][0])
    theirs = block_of(lambda name, i=i: jnp.asarray(expected(f'layers.{i}.{name}')))
    jax.tree.map(close, ours, theirs)
