"""Losses are their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.experiment.losses import cross_entropy
from tests.support.draws import DRAW


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 0.7])
def test_smoothed_labels_are_a_share_of_one_and_the_rest_for_all(smoothing):
  logits, targets = DRAW.normal(size=(2, 3, 5)), DRAW.integers(0, 5, (2, 3))
  log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  labels = np.full((2, 3, 5), smoothing / 5)
  for place in np.ndindex(2, 3):
    labels[(*place, targets[place])] += 1 - smoothing
  losses = cross_entropy(
    jnp.asarray(logits, jnp.float32), jnp.asarray(targets), jnp.ones((2, 3)), smoothing
  )
  np.testing.assert_allclose(losses.loss, -(labels * log_probs).sum(-1), rtol=2e-6)


def test_padding_adds_nothing_to_the_loss_or_to_other_gradients_even_where_it_is_nan():
  logits = jnp.asarray(DRAW.normal(size=(1, 2, 4)), jnp.float32).at[0, 1].set(jnp.nan)
  targets, weights = jnp.zeros((1, 2), jnp.int32), jnp.array([[1.0, 0.0]])
  mean = lambda logits: cross_entropy(logits, targets, weights, 0.1).mean()
  assert np.isfinite(mean(logits))
  gradient = jax.grad(mean)(logits)
  assert np.isfinite(gradient[0, 0]).all()
