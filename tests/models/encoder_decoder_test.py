"""The encoder-decoder: cached is uncached, batched is alone, padding is nothing; every scheme."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.keys import check_section
from posjax.models.encoder_decoder import EncoderDecoder, encoder_decoder_keys
from posjax.models.sides import Side
from tests.contract.schemes_test import CHAINS, LINES

V, S, T = 11, 6, 5
SIZES = {'num_layers': 2, 'width': 16, 'num_heads': 2}
LENGTHS = np.array([[4, 6, 1], [4, 5, 2]])  # of the sources and the targets, of three rows
KEY = jax.random.key(9)


def translator(line, seed=0, **changes):
  schemes = [posjax.get(one) for one in line.split('|')]
  return jittered(EncoderDecoder(V, V, schemes, **{**SIZES, **changes}, rngs=nnx.Rngs(seed)))


def jittered(model):
  """The model, with biases, norms and tables off their first values."""
  draw = np.random.default_rng(1).normal
  step = lambda leaf: leaf + 0.1 * jnp.asarray(draw(size=leaf.shape), leaf.dtype)
  nnx.update(model, jax.tree.map(step, nnx.state(model, nnx.Param)))
  return model


def side(length, lengths, seed, padding=7):
  """Random tokens, and `padding` behind them."""
  tokens = jax.random.randint(jax.random.key(seed), (len(lengths), length), 0, V)
  real = np.arange(length) < np.asarray(lengths)[:, None]
  return Side(jnp.where(real, tokens, padding), jnp.asarray(real, jnp.int32))


SOURCE, TARGET = side(S, LENGTHS[0], 3), side(T, LENGTHS[1], 4)


def rows(side, kept, length=None):
  return jax.tree.map(lambda leaf: leaf[np.array(kept), :length], side)


def functions(model):
  """Teacher forcing, and decoding token by token; each compiled once for each shape."""
  graph, state = nnx.split(model)

  @jax.jit
  def forced(state, source, target):
    return nnx.merge(graph, state)(source, target)

  @jax.jit
  def stepped(state, source, tokens, key=None):
    made = nnx.merge(graph, state)
    begun = made.begin(source, T, key)
    step = lambda carried, now: made.step(now, carried)[::-1]
    return jax.lax.scan(step, begun, tokens.T)[1].swapaxes(0, 1)

  return lambda *args: forced(state, *args), lambda *args: stepped(state, *args)


def check_decoding(line, **changes):
  """All that decoding must satisfy, with three programs: forced, stepped, and stepped for a row."""
  forced, stepped = functions(translator(line, **changes))
  real, tokens = np.asarray(TARGET.segments, bool), TARGET.tokens
  expected = np.asarray(forced(SOURCE, TARGET))
  found = np.asarray(stepped(SOURCE, tokens))
  assert np.isfinite(found[real]).all()
  np.testing.assert_allclose(found[real], expected[real], atol=3e-5, rtol=1e-4)
  noisy = SOURCE._replace(tokens=jnp.where(SOURCE.segments != 0, SOURCE.tokens, 2))
  np.testing.assert_array_equal(stepped(noisy, tokens), found)
  alone = stepped(rows(SOURCE, [0], LENGTHS[0, 0]), tokens[:1])  # and without its padding
  np.testing.assert_allclose(alone[0], found[0], atol=3e-5, rtol=1e-4)
  assert not np.allclose(found[0], stepped(SOURCE._replace(tokens=SOURCE.tokens[::-1]), tokens)[0])


OFTEN = 'sinusoidal|rope'


@pytest.mark.parametrize(
  'line',
  [
    OFTEN,
    *(
      pytest.param(one, marks=pytest.mark.slow)
      for one in (*LINES, *CHAINS)
      if one != 't5' and posjax.get(one).traits.axes < 2
    ),
  ],
)
def test_step_by_step_batched_and_padded_is_teacher_forcing_alone(line):
  check_decoding(line)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('line', 'changes'),
  [
    ('alibi', {'window': 2}),
    ('alibi', {'decoder_layers': 4}),
    ('alibi', {'cross_scheme': 't5'}),
    ('alibi', {'query_key': 'joint'}),
    ('complex_order', {'cross_scheme': 'gaussian', 'shared': True}),
  ],
)
def test_windows_layers_and_cross_schemes_decode_likewise(line, changes):
  check_decoding(line, **changes)


@pytest.mark.parametrize('line', ['none', 'sinusoidal'])
def test_the_order_of_the_source_is_lost_without_positions_and_only_then(line):
  forced, _ = functions(translator(line, num_layers=1, unroll=1))
  order = np.array([[2, 0, 3, 1, 4, 5], [5, 3, 0, 4, 2, 1], [0, 1, 2, 3, 4, 5]])  # padding stays
  mixed = SOURCE._replace(tokens=jnp.take_along_axis(SOURCE.tokens, order, axis=1))
  logits, others = (np.asarray(forced(source, TARGET)) for source in (SOURCE, mixed))
  there = np.asarray(TARGET.segments)[:2] != 0
  off = abs(logits - others)[:2][there].max()
  assert (off < 1e-5) if line == 'none' else (off > 1e-2)


@pytest.mark.slow
def test_rows_of_a_state_are_reordered_and_its_random_ids_are_those_of_the_row():
  """Cross-attention has a bias of its own, so that its ids are reordered as well."""
  line = 'randomized(max_length=64)+rope'
  model = translator(line, cross_scheme='gaussian', shared=True, num_layers=1, decoder_layers=1)
  graph, state = nnx.split(model)
  order = jnp.array([2, 0, 0])

  @jax.jit
  def said(state, source, tokens, rows):
    made = nnx.merge(graph, state)
    begun = made.begin(source, T, KEY)
    first, begun = made.step(tokens[:, 0], begun)
    straight, _ = made.step(tokens[:, 1], begun)
    moved, _ = made.step(tokens[rows, 1], made.select(begun, rows))
    return first, straight, moved, begun.ids

  first, straight, moved, ids = said(state, SOURCE, TARGET.tokens, order)
  np.testing.assert_allclose(moved, straight[order], atol=1e-6)
  assert not np.allclose(straight[0], straight[2])
  assert (np.diff(ids[0]) > 0).all()
  assert len(np.unique(ids[0], axis=0)) == 3  # each row draws for itself
  one = rows(SOURCE, [0], LENGTHS[0, 0])
  alone = said(state, one, TARGET.tokens[:1], jnp.array([0]))
  np.testing.assert_allclose(alone[0][0], first[0], atol=1e-5)
  np.testing.assert_allclose(alone[1][0], straight[0], atol=1e-5)
  np.testing.assert_array_equal(alone[3][0][0], ids[0][0])


@pytest.mark.slow
def test_a_cross_scheme_adds_its_bias_by_the_distance_of_target_and_source():
  """In the first layer: the logarithms of the weights differ by the bias, and a number per row."""
  made = [translator('none', cross_scheme=line) for line in (None, 'alibi')]
  weights = jax.jit(lambda *args: [model.attention(*args)['cross'][0] for model in made])
  plain, biased = (np.asarray(each) for each in weights(SOURCE, TARGET))
  scheme, sizes = posjax.get('alibi'), posjax.Dims(width=16, num_heads=2, head_dim=8)
  distance = np.subtract.outer(np.arange(T), np.arange(S))
  bias = scheme.bias(posjax.init(scheme, KEY, sizes), jnp.asarray(distance))
  for row, (source, target) in enumerate(LENGTHS.T):
    cut = (row, slice(None), slice(target), slice(source))
    found = np.log(biased[cut]) - np.log(plain[cut]) - bias[:, :target, :source]
    np.testing.assert_allclose(found, np.broadcast_to(found[..., :1], found.shape), atol=1e-5)
  assert abs(np.log(biased[1]) - np.log(plain[1])).max() > 0.1


def test_attention_weights_are_shares_of_what_a_token_sees_in_the_order_of_the_layers():
  model = translator('none', num_layers=4, decoder_layers=2, window=(2, None))
  found = nnx.jit(lambda model: model.attention(SOURCE, TARGET))(model)
  sizes = {'encoder': (4, 3, 2, S, S), 'decoder': (2, 3, 2, T, T), 'cross': (2, 3, 2, T, S)}
  assert {name: each.shape for name, each in found.items()} == sizes
  real = {'encoder': (SOURCE, SOURCE), 'decoder': (TARGET, TARGET), 'cross': (TARGET, SOURCE)}
  for name, each in found.items():
    queries, keys = (np.asarray(side.segments)[None, :, None] for side in real[name])
    total = np.broadcast_to(queries, each.shape[:-1])
    np.testing.assert_allclose(each.sum(-1), total, atol=1e-6)
    assert not (np.asarray(each) * (1 - keys[..., None, :])).any()
  assert not np.triu(found['decoder'], 1).any()
  far = abs(np.subtract.outer(np.arange(S), np.arange(S))) > 1
  assert [bool((np.asarray(layer) * far).any()) for layer in found['encoder']] == [False, True] * 2


def test_a_shared_vocabulary_shares_what_belongs_to_words_and_no_positions():
  def names(**changes):
    # Without a reference that is shared twice, as optimizers and checkpoints see it.
    flat = nnx.to_flat_state(nnx.state(translator(**changes), nnx.Param))
    return {'.'.join(map(str, path)): leaf.size for path, leaf in flat}

  line = 'complex_order+learned'
  apart, shared = names(line=line), names(line=line, shared=True)
  gone = {name.split('.', 1)[1]: size for name, size in apart.items() if name not in shared}
  # The table of words, and a frequency for each word and dimension; not the table of positions.
  assert gone == {'embed.table.embedding': V * 16, 'embed.shared.0.held.0.frequency': V * 16}
  assert len([name for name in shared if 'table' in name and 'held' in name]) == 2


@pytest.mark.slow
def test_a_shared_table_learns_from_both_sides():
  model = translator('none', shared=True, num_layers=1)
  graph, params = nnx.split(model)
  assert model.encoder.embed.table is model.decoder.embed.table
  loss = lambda params: (nnx.merge(graph, params)(SOURCE, TARGET) ** 2).sum()
  grad = nnx.to_flat_state(jax.jit(jax.grad(loss))(params))
  (table,) = [leaf[...] for path, leaf in grad if path[-1] == 'embedding']
  only_source = set(np.unique(SOURCE.tokens)) - set(np.unique(TARGET.tokens))
  assert all(np.abs(table[word]).max() > 0 for word in only_source)


def test_the_keys_of_the_model_are_checked_and_what_cannot_be_is_refused(unchecked):
  keys = encoder_decoder_keys()
  check_section('model', {**SIZES, 'cross_scheme': 'alibi', 'decoder_layers': None}, keys)
  with pytest.raises(ValueError, match=r"did you mean 'model\.cross_scheme'"):
    check_section('model', {**SIZES, 'croos_scheme': 'alibi'}, keys)
  with pytest.raises(ValueError, match='one vocabulary for both sides, but got 11 and 12 token'):
    EncoderDecoder(11, 12, posjax.get('none'), shared=True, **SIZES, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match=r"the layers alone, .* but 'cape\+rope' acts on ids"):
    translator('none', cross_scheme='cape+rope')
  with pytest.raises(ValueError, match="'forgetting' looks at the tokens before it"):
    translator('none', cross_scheme='forgetting')
