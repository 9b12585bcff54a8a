"""Queries and keys of one orthogonal matrix: W_Q^T W_K = I stays so, whatever training does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import posjax
from posjax.experiment.tasks.classification.model import Classifier
from posjax.models.orthogonal import Orthogonal
from posjax.models.transformer import Transformer
from tests.support.loops import error

V, T, M, H = 11, 6, 16, 2
SIZES = {'num_layers': 2, 'width': M, 'num_heads': H}
TOKENS = jax.random.randint(jax.random.key(5), (2, T), 0, V)


def decoder(query_key, **changes):
  options = {**SIZES, 'query_key': query_key, **changes}
  return Transformer(V, posjax.get('rope'), **options, rngs=nnx.Rngs(0))


def classifier(query_key):
  options = {'hidden_width': 8, 'pre_norm': True, 'activation': 'relu', 'encoder': 'transformer'}
  scheme = posjax.get('transformer_xl')
  return Classifier(V, 3, scheme, query_key=query_key, **options, **SIZES, rngs=nnx.Rngs(0))


def run(model, tokens):
  if isinstance(model, Classifier):
    return model(tokens, jnp.arange(T), segments=jnp.ones_like(tokens))
  return model(tokens, jnp.arange(T))


def trained(model, steps=5):
  """The model after some steps of Adam with decay, far larger ones than anyone would take."""
  graph, params, rest = nnx.split(model, nnx.Param, ...)
  optimizer = optax.adamw(0.1, weight_decay=0.1)

  @jax.jit
  def step(params, state):
    loss = lambda params: (run(nnx.merge(graph, params, rest), TOKENS) ** 2).mean()
    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

  state = optimizer.init(params)
  for _ in range(steps):
    params, state = step(params, state)
  return nnx.merge(graph, params, rest)


def first_attention(model):
  stack = model.encoder.stack if isinstance(model, Classifier) else model.stack
  graph, state = nnx.split(stack.periods)
  return nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], state))[0].attention


@pytest.mark.slow
@pytest.mark.parametrize(
  ('make', 'query_key'),
  [
    (decoder, 'joint'),
    (decoder, 'heads'),
    (classifier, 'joint'),
    (classifier, 'heads'),
  ],
)
def test_the_matrices_are_orthogonal_after_training_and_keep_the_dot_products(make, query_key):
  before = first_attention(made := make(query_key)).query.matrix()
  before = np.asarray(before, np.float64)
  attention = first_attention(trained(made))
  w = np.asarray(attention.query.matrix(), np.float64)
  assert abs(w - before).max() > 0.1
  assert abs(w.swapaxes(1, 2) @ w - np.eye(M)).max() < 1e-5
  assert abs(before.swapaxes(1, 2) @ before - np.eye(M)).max() < 1e-5
  x = np.random.default_rng(0).normal(size=(1, T, M)).astype(np.float32)
  q, k = (np.asarray(project(jnp.asarray(x))[0]) for project in (attention.query, attention.key))
  products = np.einsum('thd,shd->hts', q, k)
  expected = x[0] @ x[0].T
  if query_key == 'joint':  # the sum over the heads, and no head alone
    assert products.shape[0] == H
    assert q.shape[-1] == M // H
    assert error(products.sum(0), expected) < 1e-5
    assert error(products[0], expected) > 0.1
  else:
    assert error(products, np.broadcast_to(expected, products.shape)) < 1e-5


@pytest.mark.parametrize('joint', [True, False])
def test_real_and_complex_numbers_keep_their_products_whatever_the_parameters_are(joint):
  matrix = Orthogonal(4, 2, joint, rngs=nnx.Rngs(0))
  matrix.skew[...] = jax.random.normal(jax.random.key(1), matrix.skew.shape)
  z = np.random.default_rng(0).normal(size=(2, 1, 3, 4)).astype(np.float32)
  z = z[0] + 1j * z[1]
  q = np.asarray(matrix(jnp.asarray(z)))[0]
  products = np.einsum('thd,shd->hts', q, q.conj())
  expected = z[0] @ z[0].conj().T
  found = products.sum(0)[None] if joint else products
  assert error(found, np.broadcast_to(expected, found.shape)) < 1e-5


def test_a_model_has_one_matrix_for_both_and_names_and_shared_key_heads_are_refused(unchecked):
  attention = first_attention(decoder('heads', num_layers=1))
  assert attention.query is attention.key
  assert attention.query.matrix().shape == (H, M, M)
  with pytest.raises(ValueError, match="query_key must be one of 'free', 'heads', 'joint', but"):
    decoder('tied')
  with pytest.raises(ValueError, match='a key head for each of the 2 heads, but got num_kv_heads'):
    decoder('joint', num_kv_heads=1)
