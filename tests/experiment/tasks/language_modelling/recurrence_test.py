"""Segment recurrence: what is remembered is exact, whatever the scheme, and learned from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.layers import recurrence
from posjax.layers.tokens import Tokens
from posjax.models.past import place, remembered
from posjax.models.recurrent import RecurrentTransformer
from posjax.nnx import Attention

V, T = 11, 24
TOKENS = jax.random.randint(jax.random.key(5), (2, T), 0, V)


def decoder(*schemes, **changes):
  arguments = {'num_layers': 2, 'width': 16, 'num_heads': 2, 'rngs': nnx.Rngs(0), **changes}
  return RecurrentTransformer(V, [posjax.get(scheme) for scheme in schemes], **arguments)


def in_segments(model, length, size, tokens=TOKENS, start=0):
  """The logits of a text read segment by segment, and what is remembered at its end."""
  graph, state = nnx.split(model)
  recur = jax.jit(lambda *args: nnx.merge(graph, state).recur(*args))
  past, said = model.init_past(len(tokens), size), []
  for at in range(0, tokens.shape[1], length):
    segment = tokens[:, at : at + length]
    logits, past = recur(segment, start + at + jnp.arange(segment.shape[1]), past)
    said.append(logits)
  return jnp.concatenate(said, axis=1), past


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
EXACT = [
  (['transformer_xl'], 7, 4, 6),  # schemes, window, segment, memory
  (['transformer_xl'], 7, 1, 6),  # exact sliding: token by token
  slow(['transformer_xl(max_distance=5)'], 7, 12, 9),
  (['transformer_xl'], None, 8, 40),  # a memory that is longer than the text
  (['shaw'], 7, 6, 6),
  slow(['rope'], 5, 3, 4),
  (['alibi'], None, 8, 24),
  slow(['t5'], 7, 8, 8),
  slow(['sinusoidal'], 7, 6, 6),
  (['learned(max_length=24)'], 7, 6, 6),
  slow(['none'], 7, 6, 6),
  (['randomized(max_length=64)+rope'], 7, 6, 6),  # no key: ids are what they are
  slow(['shaw+alibi'], 7, 6, 6),
  (['forgetting'], 7, 6, 6),  # counts along the stream, from what it remembers
  (['cope'], 7, 6, 6),  # sums over the keys
  (['rope', 'none'], 7, 6, 6),
]


@pytest.mark.parametrize(('schemes', 'window', 'segment', 'memory'), EXACT)
def test_segments_with_memory_say_what_one_pass_over_the_text_says(
  schemes, window, segment, memory
):
  model = decoder(*schemes, window=window)
  graph, state = nnx.split(model)
  whole = jax.jit(lambda pos: nnx.merge(graph, state)(TOKENS, pos))(jnp.arange(T))
  said, _ = in_segments(model, segment, memory)
  np.testing.assert_allclose(said, whole, atol=1e-5)


def test_a_memory_that_is_too_short_forgets():
  model = decoder('rope', window=7)
  whole = model(TOKENS, jnp.arange(T))
  said, _ = in_segments(model, 4, 5)
  np.testing.assert_allclose(said[:, :4], whole[:, :4], atol=1e-5)
  assert abs(said - whole).max() > 1e-3


def test_distances_hold_at_the_last_positions_that_there_are():
  model = decoder('transformer_xl')
  near, _ = in_segments(model, 6, 12)
  far, _ = in_segments(model, 6, 12, start=2**31 - 1 - T)
  np.testing.assert_allclose(far, near, atol=1e-5)


def test_another_document_sees_nothing_of_what_is_remembered():
  model = decoder('alibi')
  past = in_segments(model, 6, 12)[1]
  other = jnp.full((2, 6), 2)
  said, after = model.recur(TOKENS[:, :6], jnp.arange(6), past, segments=other)
  np.testing.assert_allclose(said, model(TOKENS[:, :6], jnp.arange(6)), atol=1e-5)
  assert after.segments.tolist() == [[1] * 6 + [2] * 6] * 2
  assert after.pos.tolist() == [[*range(18, 24), *range(6)]] * 2


def test_what_is_remembered_is_the_last_of_it():
  np.testing.assert_array_equal(remembered(jnp.ones((1, 2)), jnp.arange(5.0)[None]), [[3, 4]])
  np.testing.assert_array_equal(remembered(jnp.ones((1, 3)), jnp.zeros((1, 1))), [[1, 1, 0]])


def test_weights_learn_from_what_is_remembered_and_it_gets_no_gradient():
  layer = Attention(8, 2, posjax.get('rope'), causal=True, rngs=nnx.Rngs(0))
  x, old = jax.random.normal(jax.random.key(1), (2, 1, 4, 8))
  graph, state = nnx.split(layer)

  def loss(state, old, x):
    said = nnx.merge(graph, state)(x, jnp.arange(4, 8), past=Tokens(old, jnp.arange(4)))
    return (said**2).sum()

  # As cross-attention to both, with the gradients of the remembered inputs cut by hand.
  both = jnp.concatenate([old, x], axis=1)

  def crossed(state):
    attend = nnx.merge(graph, state)
    return (attend(x, jnp.arange(4, 8), x_kv=both, kv_pos=jnp.arange(8)) ** 2).sum()

  def alone(state):
    return (nnx.merge(graph, state)(x, jnp.arange(4, 8)) ** 2).sum()

  @jax.jit
  def slopes(state, old, x):
    return (
      jax.grad(loss, (0, 1, 2))(state, old, x),
      jax.grad(crossed)(state),
      jax.grad(alone)(state),
    )

  (weights, to_old, to_x), expected, without = slopes(state, old, x)
  assert not to_old.any()
  assert abs(to_x).max() > 0
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), weights, expected)
  for name in ('key', 'value'):
    assert abs(weights[name]['kernel'][...] - without[name]['kernel'][...]).max() > 1e-2


def test_random_ids_are_drawn_for_what_is_remembered_too():
  scheme, key = posjax.get('randomized(max_length=64)+rope'), jax.random.key(3)
  pos = jnp.array([[995, 996, 997, 0, 1]])  # a new epoch begins
  ids = place(scheme, pos, key)
  assert ids.shape == (1, 5)
  assert (jnp.diff(ids) > 0).all()
  assert 0 <= ids.min() <= ids.max() < 64
  np.testing.assert_array_equal(place(scheme, pos, None), pos)
  interpolated = posjax.get('interpolated(factor=2.0)')  # not random: no draw
  np.testing.assert_allclose(place(interpolated, pos, key), pos / 2)


def test_random_ids_that_are_added_to_what_is_remembered_are_refused():
  model = decoder('randomized(max_length=64)+sinusoidal')
  call = (TOKENS[:, :4], jnp.arange(4), model.init_past(2, 4))
  with pytest.raises(ValueError, match='draws ids at random and adds them to the embeddings'):
    model.recur(*call, ids_key=jax.random.key(0))


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'causal': False}, 'Only a causal model'),
    ({'cross': posjax.get('none')}, 'Only a causal model'),
    ({'norm': 'BatchNorm'}, 'Batch norm cannot norm what is remembered'),
  ],
)
def test_a_model_that_cannot_remember_says_so(changes, message):
  model = decoder('none', **changes)
  with pytest.raises(ValueError, match=message):
    model.recur(TOKENS[:, :4], jnp.arange(4), model.init_past(2, 4))


def test_a_memory_holds_a_token():
  with pytest.raises(ValueError, match='at least 1 token, but got 0'):
    decoder('none').init_past(2, 0)


def test_what_does_not_come_before_x_is_refused(unchecked):
  layer = Attention(8, 2, causal=True, rngs=nnx.Rngs(0))
  x, pos = jnp.ones((2, 3, 8)), jnp.arange(3)
  with pytest.raises(ValueError, match='no x_kv and no order'):
    layer(x, pos, past=Tokens(x, pos), x_kv=x, kv_pos=pos)
  with pytest.raises(ValueError, match='no x_kv and no order'):
    layer(x, pos, past=Tokens(x, pos), order=pos)
  with pytest.raises(ValueError, match=r'rows and the width of x, \(2, 8\), but got \(1, 3, 8\)'):
    layer(x, pos, past=Tokens(x[:1], pos))
  with pytest.raises(ValueError, match='pos must be'):
    layer(x, pos, past=Tokens(x, jnp.arange(4)))
  assert recurrence.joined(Tokens(x, pos), Tokens(x, pos + 3)).order.tolist() == [*range(6)]
