"""The input of models: token embeddings, and positions at place 0 and 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models.embedding import Embedding, make_dims
from posjax.scheme import Scheme

V, M = 11, 8
DIMS = make_dims(M, 2, None, V)
TOKENS = jnp.array([[3, 0, 7, 7], [1, 2, 10, 4]])
SEGMENTS = jnp.array([[1, 1, 1, 0], [1, 1, 2, 2]])


def scaled(factor):
  """A scheme that shifts ids, multiplies embeddings, and adds their ids."""
  return Scheme(
    ids=lambda pos, key: pos + factor,
    init_model=lambda key, dims: {'factor': jnp.float32(factor)},
    embed=lambda params, x, tokens, pos: params['factor'] * x + pos[..., None],
  )


def test_a_token_is_its_row_times_the_root_of_the_width_and_what_each_scheme_makes_of_it():
  two, three = scaled(2), scaled(3)
  embedding = Embedding([two, three, two], DIMS, rngs=nnx.Rngs(0))
  pos = jnp.arange(4)[None]
  embedded = embedding(TOKENS, embedding.ids(pos), SEGMENTS)
  rows = np.asarray(embedding.table.embedding[...], np.float64)[np.asarray(TOKENS)]
  at = np.arange(4)[None, :, None]
  expected = 3 * (2 * rows * np.sqrt(M) + at + 2) + at + 3  # equal schemes embed once
  np.testing.assert_allclose(embedded.x, expected, rtol=1e-5)
  np.testing.assert_array_equal(jnp.concatenate(embedded.ids), pos + jnp.array([[2], [3], [2]]))
  assert [float(params['factor']) for params in embedded.model_params] == [2, 3, 2]
  np.testing.assert_array_equal(embedded.real, SEGMENTS != 0)


def test_initial_embeddings_have_the_variance_of_their_width_or_are_those_given():
  dims = make_dims(64, 2, None, 500)
  drawn = Embedding([Scheme()], dims, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(drawn.table.embedding[...].var() * 64, 1, rtol=0.05)
  vectors = np.asarray(jax.random.normal(jax.random.key(1), (V, M)))
  given = Embedding([Scheme()], DIMS, vectors=vectors, rngs=nnx.Rngs(0))
  x = given(TOKENS, given.ids(jnp.arange(4)[None])).x
  np.testing.assert_allclose(x, vectors[np.asarray(TOKENS)] * np.sqrt(M), rtol=1e-6)
  with pytest.raises(ValueError, match=r'must be \[V, M\] = \(11, 8\), but got \(8, 11\)'):
    Embedding([Scheme()], DIMS, vectors=vectors.T, rngs=nnx.Rngs(0))


def test_random_ids_are_drawn_for_each_scheme_from_the_key_alone():
  embedding = Embedding([posjax.get('randomized(max_length=64)')], DIMS, rngs=nnx.Rngs(0))
  pos = jnp.broadcast_to(jnp.arange(4), (2, 4))
  (plain,), (one,), (same,) = (
    embedding.ids(pos, key) for key in (None, jax.random.key(1), jax.random.key(1))
  )
  np.testing.assert_array_equal(plain, pos)
  np.testing.assert_array_equal(one, same)
  assert (one != pos).any()
