"""Layers of two halves, against the authors' code and against their own definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models.partitioned import (
  PartitionedAttention,
  PartitionedFeedForward,
  PartitionedLinear,
)
from tests.support.loops import attention, error
from tests.support.paths import load_golden

GOLDEN = load_golden('factored')
SHAPE = (2, 5, 7)  # 4 of content, 3 of position
POS = jnp.arange(5)


def _golden(name):
  return jnp.asarray(GOLDEN[name], jnp.float32)


def _filled(layer, x, weights, **call):
  """The layer as a function of x and of the authors' weights: to q, k and v, and back."""
  graph, state = nnx.split(layer)
  flat = lambda w: jnp.moveaxis(w, 0, 1).reshape(w.shape[1], -1)  # [h, in, d] to [in, h d]

  def run(x, to_content, to_position, out_content, out_position):
    pure = nnx.to_pure_dict(state)
    for i, name in enumerate(('query', 'key', 'value')):
      pure[name]['content']['kernel'] = flat(to_content[:, :, i])
      pure[name]['position']['kernel'] = flat(to_position[:, :, i])
    pure['out']['content']['kernel'] = out_content.reshape(-1, out_content.shape[-1])
    pure['out']['position']['kernel'] = out_position.reshape(-1, out_position.shape[-1])
    return nnx.merge(graph, nnx.State(pure))(x, jnp.arange(x.shape[1]), **call)

  return run, (x, *weights)


WEIGHTS = ('w_qkv_c', 'w_qkv_p', 'w_o_c', 'w_o_p')


def _attn0(**switches):
  layer = PartitionedAttention(8, 4, 2, head_dim=4, rngs=nnx.Rngs(0), **switches)
  mask = jnp.asarray(GOLDEN['attn0_mask_true_token'])[:, None, None]
  mask = jnp.broadcast_to(mask, (2, 1, 5, 5))
  given = [_golden(f'attn0_{name}') for name in ('x', *WEIGHTS)]
  return _filled(layer, given[0], given[1:], mask=mask)


def _backward(function, given, cotangent):
  """The result and the gradients, compiled."""

  def both(given, cotangent):
    out, back = jax.vjp(function, *given)
    return out, back(cotangent)

  return jax.jit(both)(given, cotangent)


def test_attention_and_its_gradients_equal_the_authors():
  run, given = _attn0()
  out, grads = _backward(run, given, _golden('attn0_cotangent'))
  assert error(out, GOLDEN['attn0_out']) < 1e-5
  for name, grad in zip(('x', *WEIGHTS), grads, strict=True):
    assert error(grad, GOLDEN[f'attn0_grad_{name}']) < 1e-5


@pytest.mark.parametrize(
  ('name', 'switches'),
  [('content_only', {'position': False}), ('position_only', {'content': False})],
)
def test_a_silent_half_changes_the_weights_and_not_the_values(name, switches):
  run, given = _attn0(**switches)
  assert error(jax.jit(run)(*given), GOLDEN[f'attn0_out_{name}_INDEP']) < 1e-5


def _old_norm(x):
  """The layer norm of 2018: unbiased deviation, and 1e-3 added to it."""
  scaled = (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + 1e-3)
  gain, shift = (_golden(f'old_factored_param_layer_norm.{n}') for n in ('a_2', 'b_2'))
  return scaled * gain[None, None] + shift[None, None]


def test_the_layer_of_2018_with_its_scale_its_norm_and_its_residual_equals_the_authors():
  packed = jnp.array([[1] * 5 + [2] * 3])
  made = PartitionedAttention(8, 4, 2, scale=8**-0.5, rngs=nnx.Rngs(0))
  to = [
    jnp.stack([_golden(f'old_factored_param_w_{n}s{half}') for n in 'qkv'], axis=2)
    for half in (1, 2)
  ]
  out = [_golden(f'old_factored_param_proj{half}.weight').T for half in (1, 2)]
  run, given = _filled(made, _golden('old_factored_x_packed')[None], [*to, *out], segments=packed)
  layer = lambda x: _old_norm(x + run(x, *given[1:]))
  cotangent = _golden('old_factored_cotangent')[None]
  found, (grad,) = _backward(layer, given[:1], cotangent)
  assert error(found[0], GOLDEN['old_factored_out_packed']) < 1e-5
  assert error(grad[0], GOLDEN['old_factored_grad_x']) < 1e-5


def _layers():
  rngs = nnx.Rngs(0)
  return {
    'linear': PartitionedLinear((4, 3), (2, 5), rngs=rngs),
    'feed_forward': PartitionedFeedForward(7, 3, 10, rngs=rngs),
    'attention': PartitionedAttention(7, 3, 2, head_dim=4, rngs=rngs),
  }


def test_linear_is_two_matrices(key):
  layer = _layers()['linear']
  layer.content.bias[...] = jnp.array([1.0, -2.0])
  x = np.asarray(jax.random.normal(key, SHAPE), np.float64)
  weights = [np.asarray(part.kernel[...], np.float64) for part in (layer.content, layer.position)]
  halves = [x[..., :4] @ weights[0] + [1.0, -2.0], x[..., 4:] @ weights[1]]
  assert error(layer(jnp.asarray(x, jnp.float32)), np.concatenate(halves, axis=-1)) < 1e-5


def test_feed_forward_is_two_networks(key):
  layer = _layers()['feed_forward']
  x = np.asarray(jax.random.normal(key, SHAPE), np.float64)
  halves = []
  for name, half in (('content', x[..., :4]), ('position', x[..., 4:])):
    up, down = (np.asarray(getattr(one, name).kernel[...]) for one in (layer.up, layer.down))
    assert up.shape[1] == 5
    halves.append(np.maximum(half @ up, 0) @ down)
  assert error(layer(jnp.asarray(x, jnp.float32)), np.concatenate(halves, axis=-1)) < 1e-5


def test_attention_is_the_papers_pair_by_pair(key):
  # Halves of unequal width in the model, of equal width in the heads.
  layer = _layers()['attention']
  x = jax.random.normal(key, SHAPE)
  words, places = np.asarray(x, np.float64)[..., :4], np.asarray(x, np.float64)[..., 4:]
  q, k, v = (
    [
      (half @ np.asarray(getattr(one, name).kernel[...], np.float64)).reshape(2, 5, 2, 2)
      for name, half in (('content', words), ('position', places))
    ]
    for one in (layer.query, layer.key, layer.value)
  )
  logits = np.zeros((2, 2, 5, 5))
  for b, h, t, s in np.ndindex(logits.shape):
    logits[b, h, t, s] = sum(
      sum(one[b, t, h] * two[b, s, h]) for one, two in zip(q, k, strict=True)
    )
  halves = []
  for name, half in zip(('content', 'position'), v, strict=True):
    mixed, _ = attention(logits / 2, np.array(True), half)  # sqrt(4), both halves of a head
    halves.append(mixed.reshape(2, 5, 4) @ np.asarray(getattr(layer.out, name).kernel[...]))
  assert error(jax.jit(layer)(x, POS), np.concatenate(halves, axis=-1)) < 1e-5


@pytest.mark.parametrize('name', ['linear', 'feed_forward'])
def test_no_half_feels_the_other(key, name):
  layer, x = _layers()[name], jax.random.normal(key, (1, 1, 7))
  jacobian = jax.jacobian(layer)(x)[0, 0, :, 0, 0]
  cut = 2 if name == 'linear' else 4
  assert abs(jacobian[:cut, :4]).max() > 0.01
  assert abs(jacobian[cut:, 4:]).max() > 0.01
  np.testing.assert_array_equal(jacobian[:cut, 4:], 0)
  np.testing.assert_array_equal(jacobian[cut:, :4], 0)


def test_attention_lets_the_halves_meet_in_the_logits_alone(key):
  x = jax.random.normal(key, SHAPE)
  words = lambda layer: jax.jit(jax.grad(lambda x: (layer(x, POS)[..., :4] ** 2).sum()))(x)
  make = lambda **silent: PartitionedAttention(7, 3, 2, head_dim=4, rngs=nnx.Rngs(0), **silent)
  assert abs(words(make())[..., 4:]).max() > 1e-3  # where to look, from the position
  np.testing.assert_array_equal(words(make(position=False))[..., 4:], 0)


def test_a_scheme_that_adds_to_the_logits_composes(key):
  layer = PartitionedAttention(8, 4, 2, posjax.get('alibi'), causal=True, rngs=nnx.Rngs(0))
  x = jax.random.normal(key, (2, 5, 8))
  flat = [layer._heads(project(x)) for project in (layer.query, layer.key, layer.value)]
  slopes = jnp.array([2.0**-4, 2.0**-8])
  bias = posjax.Scheme(bias=lambda params, d: -slopes[:, None, None, None] * abs(d)[None])
  mixed = posjax.attend(*flat, bias, {}, q_pos=POS, k_pos=POS, causal=True)
  halves = [half.reshape(2, 5, 4) for half in jnp.split(mixed, 2, axis=-1)]
  assert error(jax.jit(layer)(x, POS), layer.out(jnp.concatenate(halves, axis=-1))) < 1e-6


def test_a_scheme_with_parameters_trains_inside_and_a_shared_one_may_come_from_the_model(key):
  scheme = posjax.get('t5(num_buckets=4, max_distance=4)')
  layer = PartitionedAttention(8, 4, 2, scheme, rngs=nnx.Rngs(0))
  x = jax.random.normal(key, (2, 5, 8))
  graph, state = nnx.split(layer, nnx.Param)
  grads = jax.jit(jax.grad(lambda s: (nnx.merge(graph, s)(x, POS) ** 2).sum()))(state)
  table = nnx.to_pure_dict(grads)['model_params']['held']['table']
  assert abs(table).max() > 1e-4
  other = PartitionedAttention(8, 4, 2, scheme, model_params=False, rngs=nnx.Rngs(0))
  assert other.model_params is None
  shared = layer.model_params()
  found = jax.jit(other)(x, POS, model_params=shared)
  assert error(found, jax.jit(layer)(x, POS)) < 1e-6
  with pytest.raises(ValueError, match='model_params must be given'):
    other(x, POS)


def test_packed_documents_are_each_alone(key):
  layer = _layers()['attention']
  x = jax.random.normal(key, (1, 5, 7))
  packed = jax.jit(layer)(x, POS, segments=jnp.array([[1, 1, 1, 2, 2]]))
  alone = [jax.jit(layer)(part, jnp.arange(part.shape[1])) for part in (x[:, :3], x[:, 3:])]
  assert error(packed, np.concatenate(alone, axis=1)) < 1e-5


def test_sizes_that_do_not_fit_are_refused():
  rngs = nnx.Rngs(0)
  with pytest.raises(ValueError, match='an even width, but got 3'):
    PartitionedAttention(6, 3, 2, rngs=rngs)
  with pytest.raises(ValueError, match='an even width, but got 9'):
    PartitionedFeedForward(6, 3, 9, rngs=rngs)
  with pytest.raises(ValueError, match=r'width of at least 1, but got \(0, 6\) and \(4, 4\)'):
    PartitionedFeedForward(6, 6, 8, rngs=rngs)
  with pytest.raises(ValueError, match='got False for both content and position'):
    PartitionedAttention(8, 4, 2, content=False, position=False, rngs=rngs)
