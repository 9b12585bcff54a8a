import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import fourier
from tests.support.loops import error

WIDTH = 12


@functools.cache
def _made(**settings):
  """A scheme, its compiled embed, and parameters moved off zeros."""
  scheme = fourier.scheme(**{'num_features': 10, 'hidden': 5, **settings})
  params = scheme.init_model(jax.random.key(0), posjax.Dims(WIDTH, 2, 6))
  draw = np.random.default_rng(1).normal
  moved = {n: p + 0.3 * draw(size=p.shape).astype(np.float32) for n, p in params.items()}
  return scheme, jax.jit(scheme.embed), moved


def _reference(x, pos, params, frequencies, groups=1):
  """Algorithm 1 of the paper in float64, token by token and group by group; pos [B, T, n]."""
  params = {name: np.asarray(p, np.float64) for name, p in params.items()}
  frequencies = np.asarray(frequencies, np.float64)
  out = np.asarray(x, np.float64).copy()
  share = x.shape[-1] // groups
  for b, t in np.ndindex(x.shape[:2]):
    for group, ids in enumerate(np.split(np.asarray(pos, np.float64)[b, t], groups)):
      angle = [sum(i * w for i, w in zip(ids, row, strict=True)) for row in frequencies]
      both = np.concatenate([np.cos(angle), np.sin(angle)])
      hidden = params['hidden'].T @ (both / np.sqrt(len(both))) + params['hidden_bias']
      hidden = [0.5 * h * (1 + math.erf(h / math.sqrt(2))) for h in hidden]
      code = params['out'].T @ np.array(hidden) + params['out_bias']
      out[b, t, group * share : (group + 1) * share] += code
  return out


@pytest.mark.parametrize(('axes', 'groups'), [(1, 1), (2, 1), (3, 3), (4, 2)])
@pytest.mark.parametrize('seed', [None, 3])
def test_it_is_the_papers_algorithm(axes, groups, seed):
  _, embed, params = _made(axes=axes, groups=groups, gamma=2.0, constant_seed=seed)
  draw = np.random.default_rng(2)
  x = draw.normal(size=(2, 5, WIDTH)).astype(np.float32)
  pos = draw.integers(-20, 20, (2, 5, axes)).astype(np.int32)
  constants = fourier.constants(seed or 0, 10, axes // groups, 2.0)
  frequencies = params.get('frequencies', constants)
  expected = _reference(x, pos, params, frequencies, groups)
  found = embed(params, x, None, pos if axes > 1 else pos[..., 0])
  assert error(found, expected) < 1e-5
  assert error(x, expected) > 0.1


def test_attention_sees_the_codes_through_the_embeddings():
  scheme, embed, params = _made()
  draw = np.random.default_rng(3).normal
  x = draw(size=(1, 6, WIDTH)).astype(np.float32)
  pos = jnp.array([[0, 3, 1, 9, 9, 2]])
  heads = lambda x: x.reshape(1, 6, 2, 6)
  coded = embed(params, x, None, pos)
  q = heads(coded)
  out = posjax.attend(q, q, q, scheme, params, q_pos=pos, k_pos=pos, model_places=True)
  coded = _reference(x, np.asarray(pos)[..., None], params, params['frequencies'])
  q = coded.reshape(1, 6, 2, 6)
  weights = np.exp(np.einsum('bthd,bshd->bhts', q, q) / np.sqrt(6))
  weights /= weights.sum(-1, keepdims=True)
  assert error(out, np.einsum('bhts,bshd->bthd', weights, q)) < 1e-5


@pytest.mark.parametrize('axes', [1, 2])
def test_with_many_features_their_products_are_half_a_gaussian_of_the_distance(axes):
  frequencies = fourier.constants(0, 40000, axes, gamma=3.0)
  pos = np.random.default_rng(4).integers(-4, 5, (30, axes))
  code = np.asarray(fourier.features(fourier.exact_angles(jnp.asarray(pos), frequencies)))
  squared = np.square(pos[:, None] - pos[None]).sum(-1)
  expected = np.exp(-squared / (2 * 3.0**2)) / 2
  # 20,000 cosines of standard deviation below 0.71, over twice their number: 4.5 of these.
  assert abs(code @ code.T - expected).max() < 4.5 * 0.71 / 2 / np.sqrt(20000)


def test_products_of_features_depend_on_the_difference_of_the_ids_alone():
  _, _, params = _made(axes=2)
  code = lambda pos: fourier.features(fourier.trained_angles(pos, params['frequencies']))
  x, y = jnp.array([[1, 5]]), jnp.array([[4, 3]])
  for shift in ([[0, 0]], [[7, -2]], [[-30, 11]]):
    moved = (code(x + jnp.array(shift)) * code(y + jnp.array(shift))).sum()
    np.testing.assert_allclose(moved, (code(x) * code(y)).sum(), atol=1e-5)


def test_features_have_half_the_squared_length_at_every_id():
  frequencies = fourier.constants(0, 16)
  pos = jnp.array([[0], [-7], [2**31 - 1]])
  squares = jnp.square(fourier.features(fourier.exact_angles(pos, frequencies))).sum(-1)
  np.testing.assert_allclose(squares, 0.5, rtol=1e-6)


def test_constant_and_trained_frequencies_are_exact_at_far_ids():
  pos = np.array([[2**20 + 1], [10**9 + 7]])
  frequencies = np.float64(np.float32(fourier.constants(0, 64)))
  # In longdouble, whose 64 bits hold the product.
  angle = pos.astype(np.longdouble) * frequencies.astype(np.longdouble).T
  found = fourier.exact_angles(jnp.asarray(pos), frequencies)
  np.testing.assert_allclose(np.sin(np.float64(found)), np.float64(np.sin(angle)), atol=1e-6)
  trained = fourier.trained_angles(jnp.asarray(pos), jnp.asarray(frequencies, jnp.float32))
  np.testing.assert_allclose(np.sin(np.float64(trained)), np.float64(np.sin(angle)), atol=1e-6)


def test_initial_frequencies_have_the_deviation_1_over_gamma():
  for gamma in (1.0, 10.0):
    scheme = fourier.scheme(num_features=8000, hidden=1, gamma=gamma)
    drawn = scheme.init_model(jax.random.key(0), posjax.Dims(4, 1, 4))['frequencies']
    for frequencies in (drawn, fourier.constants(0, 8000, 1, gamma)):
      assert frequencies.shape == (4000, 1)
      assert abs(np.std(frequencies) * gamma - 1) < 0.05
      assert abs(np.mean(frequencies)) * gamma < 0.07


def test_only_trained_frequencies_are_parameters():
  assert 'frequencies' in _made()[2]
  scheme, _, params = _made(constant_seed=0)
  assert sorted(params) == ['hidden', 'hidden_bias', 'out', 'out_bias']
  assert posjax.split(scheme, params) == (params, {})


def test_trained_frequencies_have_the_gradient_of_differences():
  scheme, _, params = _made()
  pos, x = jnp.array([[0, 1, 5]]), jnp.zeros((1, 3, WIDTH))
  weights = np.random.default_rng(5).normal(size=(1, 3, WIDTH))
  loss = lambda f: (scheme.embed({**params, 'frequencies': f}, x, None, pos) * weights).sum()
  grad = np.asarray(jax.grad(loss)(params['frequencies']))
  number = lambda f: (_reference(np.zeros(x.shape), pos[..., None], params, f) * weights).sum()
  held = np.asarray(params['frequencies'], np.float64)
  for i in range(5):
    step = np.zeros((5, 1))
    step[i] = 1e-5
    slope = (number(held + step) - number(held - step)) / 2e-5
    np.testing.assert_allclose(grad[i, 0], slope, rtol=1e-4, atol=1e-5 * abs(grad).max())


def test_seeds_stand_for_different_constants_and_each_for_the_same():
  first = fourier.constants(1, 64, 2)
  np.testing.assert_array_equal(first, fourier.constants(1, 64, 2))
  assert abs(first - fourier.constants(2, 64, 2)).max() > 0.5


def test_groups_share_their_frequencies_and_their_network():
  # Two groups of one id: swapping the ids swaps the halves of the code.
  _, embed, params = _made(axes=2, groups=2)
  x = np.zeros((1, 3, WIDTH), np.float32)
  pos = np.array([[[1, 9], [4, 4], [0, -3]]], np.int32)
  code, swapped = embed(params, x, None, pos), embed(params, x, None, pos[..., ::-1])
  np.testing.assert_array_equal(np.roll(code, WIDTH // 2, axis=-1), swapped)
  np.testing.assert_array_equal(code[0, 1, : WIDTH // 2], code[0, 1, WIDTH // 2 :])


def test_ids_for_all_rows_are_those_of_each_row_and_the_dtype_stays():
  scheme, embed, params = _made(axes=2)
  x, pos = jnp.ones((2, 6, WIDTH)), posjax.positions.grid(2, 3)
  rows = jnp.broadcast_to(pos, (2, 6, 2))
  np.testing.assert_allclose(
    embed(params, x, None, pos), embed(params, x, None, rows), rtol=1e-6, atol=1e-6
  )
  narrow = jax.eval_shape(scheme.embed, params, x.astype(jnp.bfloat16), None, pos)
  assert narrow.dtype == jnp.bfloat16


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'num_features': 7}, 'their number must be even, but got 7'),
    ({'axes': 3, 'groups': 2}, 'must divide the axes, but got 2 groups of 3 axes'),
  ],
)
def test_arguments_out_of_range_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    fourier.scheme(**settings)


def test_a_width_that_the_groups_do_not_divide_is_refused(key):
  scheme = fourier.scheme(axes=2, groups=2)
  with pytest.raises(ValueError, match='The 2 groups must divide the width, but got 9'):
    scheme.init_model(key, posjax.Dims(9, 1, 9))
  _, _, params = _made(axes=2, groups=2)
  with pytest.raises(ValueError, match='The 2 groups must divide the width, but got 9'):
    scheme.embed(params, jnp.zeros((1, 2, 9)), None, jnp.zeros((1, 2, 2), jnp.int32))
