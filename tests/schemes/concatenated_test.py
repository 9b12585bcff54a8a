import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import concatenated, learned

DIMS = posjax.Dims(width=7, num_heads=2, head_dim=4)
POS = jnp.array([[0, 1, 9], [4, 4, 2]])


def test_each_token_is_the_first_numbers_of_its_word_then_the_row_of_its_id(key):
  scheme = concatenated.scheme(max_length=10, position_width=2)
  params = scheme.init_model(key, DIMS)
  x = jax.random.normal(key, (2, 3, 7))
  found = scheme.embed(params, x, None, POS)
  for b, t in np.ndindex(2, 3):
    row = np.asarray(params['table'])[POS[b, t]]
    np.testing.assert_array_equal(found[b, t], [*np.asarray(x)[b, t, :5], *row])


@pytest.mark.parametrize('scheme', [concatenated.scheme(10), learned.scheme(10)])
def test_ids_of_all_rows_are_the_ids_of_each_row(scheme, key):
  params, x = scheme.init_model(key, DIMS), jax.random.normal(key, (2, 3, 7))
  each = scheme.embed(params, x, None, jnp.broadcast_to(POS[0], (2, 3)))
  np.testing.assert_array_equal(scheme.embed(params, x, None, POS[0]), each)


def test_a_projection_of_it_is_that_of_the_word_and_that_of_the_position(key):
  # The paper's [w ; p] W = w W_w + p W_p, in float64.
  scheme = concatenated.scheme(10)
  params = scheme.init_model(key, DIMS)
  x, w = jax.random.normal(key, (2, 3, 7)), jax.random.normal(jax.random.fold_in(key, 1), (7, 5))
  words, places = np.asarray(x, np.float64)[..., :4], np.asarray(params['table'], np.float64)[POS]
  expected = words @ np.asarray(w)[:4] + places @ np.asarray(w)[4:]
  np.testing.assert_allclose(scheme.embed(params, x, None, POS) @ w, expected, atol=1e-5)


def test_it_is_addition_with_columns_of_their_own(key):
  # [w ; 0] + [0 ; p]: learned positions whose table is zero where the word is, and the reverse.
  params = concatenated.scheme(10).init_model(key, DIMS)
  x = jax.random.normal(key, (2, 3, 7))
  table = jnp.pad(params['table'], ((0, 0), (4, 0)))
  expected = learned.scheme(10).embed({'table': table}, x.at[..., 4:].set(0), None, POS)
  found = concatenated.scheme(10).embed(params, x, None, POS)
  np.testing.assert_array_equal(found, expected)


def test_the_last_columns_of_the_words_are_not_read(key):
  scheme = concatenated.scheme(10, position_width=2)
  params = scheme.init_model(key, DIMS)
  grad = jax.grad(lambda x: (scheme.embed(params, x, None, POS) ** 2).sum())(jnp.ones((2, 3, 7)))
  np.testing.assert_array_equal(grad[0, 0], [2, 2, 2, 2, 2, 0, 0])


@pytest.mark.parametrize(('content', 'position'), [(True, False), (False, True)])
def test_a_silent_part_is_zeros_and_the_other_stays(key, content, position):
  params = concatenated.scheme(10).init_model(key, DIMS)
  x = jax.random.normal(key, (2, 3, 7))
  full = np.array(concatenated.scheme(10).embed(params, x, None, POS))
  scheme = concatenated.scheme(10, content=content, position=position)
  found = scheme.embed(params, x, None, POS)
  np.testing.assert_array_equal(found[..., :4], full[..., :4] if content else 0 * full[..., :4])
  np.testing.assert_array_equal(found[..., 4:], full[..., 4:] if position else 0 * full[..., 4:])


def test_parameters_are_the_same_whatever_is_silent(key):
  first, *others = (
    concatenated.scheme(10, None, *halves).init_model(key, DIMS)
    for halves in ((True, True), (True, False), (False, True))
  )
  for other in others:
    chex.assert_trees_all_equal(first, other)


def test_positions_take_half_of_the_model_unless_told(key):
  table = concatenated.scheme(9).init_model(key, DIMS)['table']
  assert table.shape == (9, 3)
  table = concatenated.scheme(9, position_width=6).init_model(key, DIMS)['table']
  assert table.shape == (9, 6)


def test_the_initial_table_is_normal_of_deviation_1(key):
  table = concatenated.scheme(512).init_model(key, DIMS._replace(width=64))['table']
  np.testing.assert_allclose(table.std(), 1.0, rtol=0.02)
  assert abs(table.mean()) < 0.02
  assert abs(table).max() > 3


def test_ids_outside_the_table_give_nan_beside_the_word(key):
  scheme = concatenated.scheme(max_length=4)
  pos = jnp.array([[3, 4, -1, 2**31 - 1, -(2**31), 0]])
  out = scheme.embed(scheme.init_model(key, DIMS), jnp.zeros((1, 6, 7)), None, pos)
  np.testing.assert_array_equal(jnp.isnan(out[..., 4:]).all(-1), [[0, 1, 1, 1, 1, 0]])
  assert not jnp.isnan(out[..., :4]).any()


def test_the_dtype_of_the_embeddings_stays(key):
  scheme = concatenated.scheme(10)
  out = scheme.embed(scheme.init_model(key, DIMS), jnp.ones((2, 3, 7), jnp.bfloat16), None, POS)
  assert out.dtype == jnp.bfloat16


def test_float_ids_are_refused(key):
  scheme = concatenated.scheme(4)
  with pytest.raises(TypeError, match='needs integer ids, but got float32'):
    scheme.embed(scheme.init_model(key, DIMS), jnp.ones((1, 2, 7)), None, jnp.zeros((1, 2)))


def test_arguments_out_of_range_are_refused():
  with pytest.raises(ValueError, match='got False for both content and position'):
    concatenated.scheme(content=False, position=False)


def test_a_position_that_leaves_no_room_for_the_word_is_refused(key):
  with pytest.raises(ValueError, match='below that of the model, 7, but got 7'):
    concatenated.scheme(position_width=7).init_model(key, DIMS)
  with pytest.raises(ValueError, match='at least 1 and below that of the model, 1, but got 0'):
    concatenated.scheme().init_model(key, DIMS._replace(width=1))
  with pytest.raises(ValueError, match=r'width 3 must leave room .* of width 3'):
    concatenated.concatenation(jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.array([0, 1]))
