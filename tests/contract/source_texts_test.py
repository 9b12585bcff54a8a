"""What the source texts claim of positions and of scaling, proved or measured in float64.

Text 000 prints the bilinear form of two codes both as p W_Q W_K^T p' (rows) and as p^T W_Q^T W_K p'
(columns); here codes are rows of P, projections act as P W^T, and the form is P W_Q^T W_K P^T.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import sinusoidal
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('sinusoidal')


def _codes(count, width, base=100.0):
  """Sinusoidal codes of 0 .. count - 1, [count, width]."""
  angle = np.outer(np.arange(count), base ** (-np.arange(0, width, 2) / width))
  return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(count, width)


def _closed_form(count, width, base=100.0):
  """The sum of cosines of the distance, for every pair."""
  distance = np.subtract.outer(np.arange(count), np.arange(count))
  return sum(np.cos(distance * base ** (-i / width)) for i in range(0, width, 2))


def _explained(values):
  """The share of the variance of [count, count] values that the signed distance explains."""
  count = len(values)
  diagonals = [np.diagonal(values, i) for i in range(1 - count, count)]
  within = sum(np.square(x - x.mean()).sum() for x in diagonals)
  return 1 - within / np.square(values - values.mean()).sum()


def _orthogonal(width, seed=0):
  return np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))[0]


def _softmax(logits):
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True)


# Text 000: projections and the distance.


def test_random_projections_ruin_the_dot_product_and_orthogonal_ones_keep_it():
  # Text 000: PE(20) W_Q^T W_K PE(20 + o), entries uniform in [-1, 1].
  encoding = jax.jit(sinusoidal.encoding, static_argnums=1)
  random = np.random.RandomState(int(GOLDEN['wqwk_seed']))
  w_q, w_k = (random.uniform(-1, 1, (64, 64)) for _ in range(2))
  codes = np.asarray(encoding(20 + jnp.asarray(GOLDEN['dot_closed_offsets'], jnp.int32), 64))
  start = np.asarray(encoding(jnp.array(int(GOLDEN['wqwk_pos'])), 64))
  ruined = codes @ (w_k.T @ (w_q @ start))
  assert error(ruined, GOLDEN['wqwk_curve']) < 1e-5
  assert abs(ruined - ruined[::-1]).max() > 10  # no longer even
  orthogonal, _ = np.linalg.qr(w_q)
  kept = codes @ (orthogonal.T @ (orthogonal @ start))
  assert error(kept, GOLDEN['dot_closed_d64']) < 1e-6
  np.testing.assert_allclose(kept, GOLDEN['wqwk_curve_orth_W'], atol=1e-4)


@pytest.mark.parametrize(('width', 'base'), [(32, 100.0), (64, 100.0), (64, 10000.0)])
def test_after_random_projections_the_distance_says_little(width, base):
  codes, closed = _codes(80, width, base), _closed_form(80, width, base)
  explained, correlated = [], []
  for seed in range(20):
    w_q, w_k = np.random.default_rng(seed).uniform(-1, 1, (2, width, width))
    form = codes @ w_q.T @ w_k @ codes.T
    explained.append(_explained(form))
    correlated.append(abs(np.corrcoef(form.ravel(), closed.ravel())[0, 1]))
  assert max(explained) < 0.5
  assert np.median(explained) < 0.25
  assert max(correlated) < 0.5
  assert np.median(correlated) < 0.25
  assert _explained(codes @ codes.T) > 1 - 1e-12  # without them it says all


def test_projections_whose_product_is_the_identity_restore_the_closed_form():
  codes, closed = _codes(80, 32), _closed_form(80, 32)
  rotation = _orthogonal(32)
  assert error(codes @ rotation.T @ rotation @ codes.T, closed) < 1e-13
  # Any invertible W_Q does, with its inverse, transposed, as W_K.
  w_q = np.random.default_rng(1).normal(size=(32, 32))
  w_k = np.linalg.inv(w_q).T
  assert np.linalg.cond(w_q) > 10
  assert error(codes @ w_q.T @ w_k @ codes.T, closed) < 1e-10
  # And nothing near it does: a rotation on one side only keeps neither form nor distance.
  assert error(codes @ rotation.T @ codes.T, closed) > 0.5


def test_attention_over_codes_sees_the_distance_alone_with_one_orthogonal_projection():
  count, width, rotation = 24, 16, _orthogonal(16)
  pos = jnp.arange(count)
  codes = sinusoidal.scheme(100.0).embed({}, jnp.zeros((1, count, width)), None, pos[None])
  every = jnp.eye(count)[None, :, None]  # as values: the output is then the weights

  @jax.jit
  def weights(w_q, w_k):
    q, k = (jnp.einsum('btm,dm->btd', codes, w)[:, :, None] for w in (w_q, w_k))
    return posjax.attend(q, k, every, posjax.Scheme(), {}, q_pos=pos, k_pos=pos)[0, :, 0]

  expected = _softmax(_closed_form(count, width) / np.sqrt(width))
  kept = weights(jnp.asarray(rotation, jnp.float32), jnp.asarray(rotation, jnp.float32))
  assert error(kept, expected) < 1e-5
  w_q, w_k = np.random.default_rng(2).uniform(-1, 1, (2, width, width)).astype(np.float32)
  logits = np.log(np.maximum(np.asarray(weights(w_q, w_k), np.float64), 1e-30))
  assert _explained(logits) < 0.5


def test_the_sum_over_narrow_heads_restores_it_and_no_head_alone_does():
  codes, closed, rotation = _codes(80, 32), _closed_form(80, 32), _orthogonal(32)
  heads = [codes @ part.T @ part @ codes.T for part in rotation.reshape(4, 8, 32)]
  assert error(sum(heads), closed) < 1e-13
  for head in heads:
    assert error(head, closed) > 0.3
    assert _explained(head) < 0.9


def test_a_head_narrower_than_the_model_cannot_restore_it():
  """W_Q^T W_K has at most the head's rank, and the closed form that of the model.

  By Eckart and Young no matrix of rank r is nearer to it than its truncated singular value
  decomposition: a bound over all W_Q and W_K at once, not over some that were tried.
  """
  width = 8
  codes, closed = _codes(128, width), _closed_form(128, width)
  left, values, right = np.linalg.svd(closed)
  assert values[width - 1] > 25  # rank 8
  assert values[width] < 1e-9
  for rank in range(1, width):
    least = np.sqrt(np.square(values[rank:]).sum() / np.square(values).sum())
    assert least > 0.25
    # The bound is attained by projections: P+ is the inverse of the codes on their span.
    inverse = np.linalg.pinv(codes)
    w_q = (inverse @ left[:, :rank] * values[:rank]).T
    w_k = (inverse @ right[:rank].T).T
    form = codes @ w_q.T @ w_k @ codes.T
    found = np.linalg.norm(form - closed) / np.linalg.norm(closed)
    np.testing.assert_allclose(found, least, rtol=1e-9)
    # And by none of these.
    for seed in range(5):
      w_q, w_k = np.random.default_rng(seed).normal(size=(2, rank, width))
      form = codes @ w_q.T @ w_k @ codes.T
      nearest = (form * closed).sum() / np.square(form).sum() * form
      assert np.linalg.norm(nearest - closed) / np.linalg.norm(closed) >= least


def test_a_narrow_head_can_keep_some_frequencies_and_then_sees_the_distance_alone():
  # What is lost is a part of the sum, not the dependence on the distance.
  codes, keep = _codes(80, 32), np.eye(32)[:8]  # the sines and cosines of four frequencies
  form = codes @ keep.T @ keep @ codes.T
  assert _explained(form) > 1 - 1e-12
  distance = np.subtract.outer(np.arange(80), np.arange(80))
  partial = sum(np.cos(distance * 100.0 ** (-i / 32)) for i in range(0, 8, 2))
  assert error(form, partial) < 1e-13


# Text 004: the division by sqrt(d).

WIDTHS = (1, 4, 16, 64, 256)


@pytest.mark.parametrize('law', ['normal', 'uniform', 'signs'])
def test_the_variance_of_a_dot_product_is_its_width_and_1_after_scaling(law):
  random = np.random.default_rng(0)
  draws = {
    'normal': lambda shape: random.normal(size=shape),
    'uniform': lambda shape: random.uniform(-np.sqrt(3), np.sqrt(3), shape),
    'signs': lambda shape: random.choice([-1.0, 1.0], shape),
  }
  for width in WIDTHS:
    q, k = draws[law]((2, 10000, width))
    dots = (q * k).sum(-1)
    # Normal numbers of width 1 have the largest standard error, sqrt(8 / 10000): four of these.
    assert abs(dots.var() / width - 1) < 0.12
    assert abs((dots / np.sqrt(width)).var() - 1) < 0.12
    assert abs(dots.mean()) < 4 * np.sqrt(width / 10000)


def test_the_variance_is_exactly_the_width_over_all_vectors_of_signs():
  for width in range(1, 7):
    every = np.array(np.meshgrid(*[[-1, 1]] * width)).reshape(width, -1).T
    dots = every @ every.T
    assert dots.mean() == 0
    assert np.square(dots).mean() == width


def _saturation(width, scale):
  """Mean entropy, largest weight and Jacobian's norm of the softmax over 64 keys."""
  random = np.random.default_rng(0)
  q, k = random.normal(size=(300, width)), random.normal(size=(64, width))
  weights = _softmax(q @ k.T * scale)
  entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(-1)
  jacobian = np.einsum('ni,ij->nij', weights, np.eye(64)) - weights[:, :, None] * weights[:, None]
  norms = np.sqrt(np.square(jacobian).sum((1, 2)))
  return entropy.mean(), weights.max(-1).mean(), norms.mean(), np.median(norms)


def test_without_scaling_the_softmax_becomes_one_hot_and_its_jacobian_vanishes():
  found = np.array([_saturation(width, 1.0) for width in (16, 64, 256, 1024, 4096)])
  entropy, largest, jacobian, median = found.T
  assert (np.diff(entropy) < 0).all()
  assert (np.diff(largest) > 0).all()
  assert (np.diff(jacobian) < 0).all()
  assert entropy[-1] < 0.1 < 1 < entropy[0]
  assert largest[-1] > 0.95 > 0.7 > largest[0]
  assert jacobian[-1] < 0.05 < 0.25 < jacobian[0]
  assert median[-1] < 1e-6


def test_with_scaling_neither_changes_with_the_width():
  found = np.array([_saturation(width, width**-0.5) for width in (16, 64, 256, 1024, 4096)])
  entropy, largest, jacobian, median = found.T
  assert np.ptp(entropy) < 0.1
  assert entropy.min() > 0.85 * np.log(64)
  assert largest.max() < 0.15
  for norms in (jacobian, median):
    assert np.ptp(norms) < 0.02
    assert norms.min() > 0.15


def test_in_attend_the_gradient_of_the_logits_vanishes_without_scaling_only():
  random, pos = np.random.default_rng(3), jnp.arange(32)

  def size(width, scheme):
    q, k = jnp.asarray(random.normal(size=(2, 1, 32, 1, width)), jnp.float32)
    v = jnp.asarray(random.normal(size=(1, 32, 1, 1)), jnp.float32)
    none = {'added': jnp.zeros((1, 1, 32, 32))}
    probe = scheme._replace(
      init=lambda key, dims: none, bias=lambda params, distance: params['added']
    )
    total = lambda params: posjax.attend(q, k, v, probe, params, q_pos=pos, k_pos=pos).sum()
    gradient = jax.jit(jax.grad(total))(none)['added']
    return np.median(np.linalg.norm(gradient[0, 0], axis=-1))

  scaled = [size(width, posjax.Scheme()) for width in (16, 1024)]
  unscaled = [size(width, posjax.get('unscaled')) for width in (16, 1024)]
  assert 0.7 < scaled[1] / scaled[0] < 1.4
  assert unscaled[1] / unscaled[0] < 0.05
