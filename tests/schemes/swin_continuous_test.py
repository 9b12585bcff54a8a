import chex
import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.schemes import swin_continuous
from tests.support.loops import attention, content, error

attend = jax.jit(posjax.attend, static_argnums=3)
PIXELS = np.array([(y, x) for y in range(3) for x in range(4)])


def _params(key, hidden=9):
  params = swin_continuous.scheme(3, 4, hidden).init(key, posjax.Dims(24, 6, 4))
  draw = np.random.default_rng(1).normal
  return {n: jnp.asarray(draw(size=p.shape) * 0.5, jnp.float32) for n, p in params.items()}


def _bias(params, dy, dx):
  """The authors' formula in float64, for a window of 3 x 4: one number for each head."""
  p = {name: np.asarray(value, np.float64) for name, value in params.items()}
  x = np.array([dy * 8 / (3 - 1), dx * 8 / (4 - 1)])
  x = np.sign(x) * np.log2(abs(x) + 1) / np.log2(8)
  x = np.maximum(x @ p['kernel'] + p['offset'], 0) @ p['out_kernel']
  return 16 / (1 + np.exp(-x))


def test_attention_is_the_authors_formula_pair_by_pair(key):
  params = _params(key)
  draw = np.random.default_rng(0).normal
  q, k, v = (draw(size=(2, n, h, 4)) for n, h in ((5, 6), (12, 2), (12, 2)))
  q_pos = np.stack([PIXELS[[3, 0, 11, 7, 7]], PIXELS[:5] + 20])  # one beyond the window
  logits = content(q, k)
  for b, t, s in np.ndindex(2, 5, 12):
    logits[b, :, t, s] += _bias(params, *(q_pos[b, t] - PIXELS[s]))
  single = [jnp.asarray(x, jnp.float32) for x in (q, k, v)]
  scheme = swin_continuous.scheme(3, 4, 9)
  out = attend(*single, scheme, params, q_pos=q_pos, k_pos=PIXELS)
  assert error(out, attention(logits, True, v)[0]) < 1e-5


def test_the_corners_of_any_window_have_the_same_coordinates():
  corner = np.log2(9) / 3
  for height, width in ((2, 2), (8, 16), (24, 3)):
    d = jnp.array([[height - 1, 1 - width], [0, 0]])
    found = swin_continuous.coordinates(d, height, width)
    np.testing.assert_allclose(found, [[corner, -corner], [0, 0]], rtol=1e-6)


def test_the_bias_lies_between_0_and_16_for_any_offset(key):
  far = jnp.array([[0, 0], [2**20, -(2**20)], [-(2**30), 5]])
  seen = swin_continuous.coordinates(far, 3, 4)
  params = _params(key)
  found = swin_continuous.bias(params['kernel'], params['offset'], params['out_kernel'], seen)
  assert (found >= 0).all()
  assert (found <= 16).all()


def test_it_is_continuous(key):
  scheme, params = swin_continuous.scheme(3, 4, 9), _params(key)
  d = jnp.stack([jnp.linspace(-2, 2, 4001), jnp.linspace(3, -3, 4001)], -1)
  found = scheme.bias(params, d)
  assert abs(np.diff(found)).max() < 0.05
  np.testing.assert_allclose(found[:, 1000], _bias(params, -1, 1.5), rtol=1e-5)


def test_it_starts_as_a_constant_eight_nearly(key):
  scheme = swin_continuous.scheme(8, 8)
  params = scheme.init(key, posjax.Dims(24, 6, 4))
  assert {name: p.shape for name, p in params.items()} == {
    'kernel': (2, 512), 'offset': (512,), 'out_kernel': (512, 6)
  }  # fmt: skip
  np.testing.assert_array_equal(params['offset'], 0)
  for name in ('kernel', 'out_kernel'):
    assert abs(params[name].std() - 0.02) < 2e-3
  found = scheme.bias(params, jnp.array([[0, 0], [7, -7]]))
  np.testing.assert_array_equal(found[:, 0], 8)
  np.testing.assert_allclose(found, 8, atol=0.2)


def test_gradients_are_finite_at_the_token_itself(key):
  scheme, params = swin_continuous.scheme(3, 4, 9), _params(key)
  grads = jax.grad(lambda p, d: scheme.bias(p, d).sum(), (0, 1))(params, jnp.zeros((1, 2)))
  chex.assert_tree_all_finite(grads)
