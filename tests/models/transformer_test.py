"""The experiment's Transformers: what their parts must do, whatever the scheme."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.sides import Side
from posjax.models.transformer import Transformer
from tests.support.programs import equations

V, T = 11, 9
TOKENS = jax.random.randint(jax.random.key(5), (2, T), 0, V)
POS = jnp.arange(T)


def transformer(*schemes, **changes):
  arguments = {'num_layers': 2, 'width': 16, 'num_heads': 2, 'rngs': nnx.Rngs(0), **changes}
  return Transformer(V, [posjax.get(s) for s in schemes], **arguments)


def jitted(model):
  """The model as a function of its inputs, compiled once for all calls alike."""
  graph, state = nnx.split(model)
  return jax.jit(lambda *args, **kwargs: nnx.merge(graph, state)(*args, **kwargs))


def test_a_decoder_sees_nothing_of_what_follows():
  model = jitted(transformer('none', 'rope'))
  changed = TOKENS.at[:, 5:].set(0)
  before, after = model(TOKENS, POS), model(changed, POS)
  np.testing.assert_array_equal(before[:, :5], after[:, :5])
  assert not np.allclose(before[:, 5], after[:, 5])


def test_an_encoder_without_positions_is_equivariant_to_permutations():
  model = jitted(transformer('none', causal=False))
  order = jax.random.permutation(jax.random.key(1), T)
  permuted = model(TOKENS[:, order], POS)
  np.testing.assert_allclose(permuted, model(TOKENS, POS)[:, order], atol=1e-5)


@pytest.mark.parametrize(
  ('schemes', 'window'),
  [
    (['sinusoidal'], None),
    (['learned'], None),
    (['t5', 'none'], None),
    (['shaw', 'rope'], None),
    (['rope'], (3, None)),  # a ring beside a full cache
    (['rope'], 100),  # a window longer than all that comes
  ],
)
def test_token_by_token_through_the_cache_equals_one_pass(schemes, window):
  model = transformer(*schemes, window=window)
  graph, state = nnx.split(model)
  extend = jax.jit(lambda *args: nnx.merge(graph, state).extend(*args))
  ids = model.ids(jnp.broadcast_to(POS, TOKENS.shape))
  caches, said = model.init_cache(2, T), []
  for start, stop in ((0, 4), *((i, i + 1) for i in range(4, T))):
    now = [one[:, start:stop] for one in ids]
    logits, caches = extend(TOKENS[:, start:stop], now, caches)
    said.append(logits)
  full = jitted(model)(TOKENS, POS)
  np.testing.assert_allclose(jnp.concatenate(said, axis=1), full, atol=1e-5)


def test_packed_documents_are_each_as_alone():
  model = jitted(transformer('sinusoidal', 'alibi'))
  segments = jnp.where(POS < 5, 1, 2)[None].repeat(2, axis=0)
  packed = model(TOKENS, posjax.positions.from_segments(segments), segments=segments)
  np.testing.assert_allclose(packed[:, :5], model(TOKENS[:, :5], POS[:5]), atol=1e-5)
  np.testing.assert_allclose(packed[:, 5:], model(TOKENS[:, 5:], POS[: T - 5]), atol=1e-5)


def test_the_scan_runs_the_layers_one_after_the_other():
  """Against the blocks taken out of the stack and called in a plain loop."""
  model = transformer('rope', 'alibi', num_layers=4)

  def both(model):
    graph, state = nnx.split(model.stack.periods)
    x = model.embed.table(TOKENS) * 4.0
    for period in range(2):
      one = jax.tree.map(lambda leaf, i=period: leaf[i], state)
      for block in nnx.merge(graph, one):
        x, _ = block(x, jnp.broadcast_to(POS, TOKENS.shape))
    return model.embed.table.attend(model.stack.norm(x)), model(TOKENS, POS)

  np.testing.assert_allclose(*jax.jit(both)(model), atol=1e-5)


def test_a_pattern_of_windows_limits_only_its_own_layers():
  """Two layers with window 2 reach two tokens back; with one layer unlimited, all are reached."""

  def reached(window):
    model = jitted(transformer('none', window=window))
    changed = TOKENS.at[:, 0].add(1) % V
    moved = abs(model(TOKENS, POS) - model(changed, POS)).max(axis=(0, 2))
    return [int(i) for i in np.flatnonzero(moved > 0)]

  assert reached(2) == [0, 1, 2]
  assert reached((2, None)) == list(range(T))


def test_remat_changes_no_gradient_and_its_policy_keeps_products():
  def gradient(**options):
    graph, params, rest = nnx.split(transformer('rope', **options), nnx.Param, ...)
    loss = lambda p: (nnx.merge(graph, p, rest)(TOKENS, POS) ** 2).mean()
    products = str(jax.make_jaxpr(jax.grad(loss))(params)).count('dot_general')
    return products, jax.tree.leaves(jax.jit(jax.grad(loss))(params))

  none, kept = gradient(remat=True), gradient(remat=True, remat_policy='dots_saveable')
  plain = gradient()
  assert none[0] > kept[0] == plain[0]
  for leaves in zip(none[1], kept[1], plain[1], strict=True):
    for one in leaves[:2]:
      np.testing.assert_allclose(one, leaves[2], rtol=1e-4, atol=1e-6)
  with pytest.raises(ValueError, match=r"needs model\.remat=True, but got 'dots_saveable'"):
    transformer('rope', remat_policy='dots_saveable')


def test_batch_norm_learns_its_statistics_in_training_from_real_tokens_only():
  model = transformer('none', norm='BatchNorm')
  segments = jnp.where(POS < 6, 1, 0)[None].repeat(2, axis=0)
  statistics = lambda: jax.tree.leaves(nnx.state(model, nnx.BatchStat))
  start = [np.array(x) for x in statistics()]
  model(TOKENS, POS, segments=segments)
  for before, after in zip(start, statistics(), strict=True):
    np.testing.assert_array_equal(before, after)
  model(TOKENS, POS, segments=segments, train_key=jax.random.key(0))
  first = [np.array(x) for x in statistics()]
  assert any(abs(a - b).max() > 1e-3 for a, b in zip(start, first, strict=True))
  other = transformer('none', norm='BatchNorm')
  other(TOKENS.at[:, 6:].set(0), POS, segments=segments, train_key=jax.random.key(0))
  for one, two in zip(first, jax.tree.leaves(nnx.state(other, nnx.BatchStat)), strict=True):
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_dropout_acts_in_training_only_and_follows_its_key():
  model = jitted(transformer('none', dropout_rate=0.5))
  train = lambda seed: model(TOKENS, POS, train_key=jax.random.key(seed))
  np.testing.assert_array_equal(train(1), train(1))
  assert not np.allclose(train(1), train(2))
  np.testing.assert_array_equal(model(TOKENS, POS), model(TOKENS, POS))


def test_random_ids_are_drawn_from_their_key_and_are_plain_without_one():
  model = jitted(transformer('randomized(max_length=64)+rope'))
  plain = jitted(transformer('rope'))
  np.testing.assert_allclose(model(TOKENS, POS), plain(TOKENS, POS), atol=1e-6)
  drawn = lambda seed: model(TOKENS, POS, ids_key=jax.random.key(seed))
  np.testing.assert_array_equal(drawn(1), drawn(1))
  assert not np.allclose(drawn(1), drawn(2))


def test_layers_share_one_table_where_the_scheme_says_so():
  shared, own = transformer('t5', 't5'), transformer('t5(shared=False)')
  size = lambda model: sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
  assert size(own) - size(shared) == 32 * 2  # one more table of 32 buckets x 2 heads


def test_the_number_of_parameters_is_as_counted_by_hand():
  model = transformer('none')
  attention, feed_forward, norms = 4 * 16 * 16, 2 * 16 * 64 + 64 + 16, 2 * 2 * 16
  expected = V * 16 + 2 * (attention + feed_forward + norms) + 2 * 16
  assert sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))) == expected


def test_swiglu_and_an_own_readout_are_what_their_formulas_say():
  model = transformer('none', gated=True, activation='silu', tied=False, norm='RMSNorm')
  graph, state = nnx.split(model.stack.periods)
  part = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], state))[0].feed_forward
  x = jax.random.normal(jax.random.key(2), (1, 1, 16))
  gate, up = part.gate(x), part.up(x)
  np.testing.assert_allclose(part(x), part.down(gate / (1 + jnp.exp(-gate)) * up), atol=1e-6)
  assert model.readout.kernel.shape == (16, V)


def test_post_norm_ends_every_block_with_its_norm():
  model = transformer('none', pre_norm=False)
  x = jax.jit(lambda model: model.encode(TOKENS, POS))(model)
  np.testing.assert_allclose(x.mean(-1), 0, atol=1e-5)
  np.testing.assert_allclose(x.std(-1), 1, atol=1e-3)
  assert model.stack.norm is None


def encoder_decoder():
  sizes = {'num_layers': 2, 'width': 16, 'num_heads': 2}
  return jitted(EncoderDecoder(V, V, posjax.get('rope'), **sizes, rngs=nnx.Rngs(0)))


def translate(model, source, source_segments, target=TOKENS):
  pos = posjax.positions.from_mask(source_segments != 0)
  return model(Side(source, source_segments, pos), Side(target, jnp.ones_like(target)))


@pytest.mark.slow
def test_an_encoder_decoder_reads_its_source_and_not_its_padding():
  model, source = encoder_decoder(), jax.random.randint(jax.random.key(3), (2, 6), 0, V)
  whole = translate(model, source, jnp.ones_like(source))
  padded = jnp.concatenate([jnp.full((2, 3), 7), source], axis=1)
  segments = jnp.concatenate([jnp.zeros((2, 3), jnp.int32), jnp.ones_like(source)], axis=1)
  np.testing.assert_allclose(translate(model, padded, segments), whole, atol=1e-5)
  assert not np.allclose(translate(model, source.at[:, 0].add(1) % V, segments[:, 3:]), whole)


@pytest.mark.slow
def test_an_encoder_decoder_is_causal_in_its_target():
  model, ones = encoder_decoder(), jnp.ones_like(TOKENS)
  before = translate(model, TOKENS, ones)
  after = translate(model, TOKENS, ones, target=TOKENS.at[:, 4:].set(0))
  np.testing.assert_array_equal(before[:, :4], after[:, :4])


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_heads': 3}, 'num_heads must divide the width 16, but got 3'),
    ({'num_layers': 3}, 'pattern of 2 layers must divide num_layers, but got 3'),
    (
      {'norm': 'LayerNrom'},
      r"norm must be one of .*, but got 'LayerNrom'; did you mean 'LayerNorm'\?",
    ),
    ({'activation': 'gleu'}, "activation must be a name in jax.nn, but got 'gleu'"),
    ({'window': (1, 2, 3)}, 'equally long, but got 2 and 3'),
  ],
)
def test_sizes_and_names_that_do_not_fit_are_refused(changes, message, unchecked):
  with pytest.raises(ValueError, match=message):
    transformer('none', 'rope', **changes)


def jittered(model):
  """The model, with biases and norms that are neither 0 nor 1."""
  draw = np.random.default_rng(1).normal
  step = lambda leaf: leaf + 0.1 * jnp.asarray(draw(size=leaf.shape), leaf.dtype)
  nnx.update(model, jax.tree.map(step, nnx.state(model, nnx.Param)))
  return model


def test_a_scheme_of_complex_embeddings_makes_every_layer_complex():
  model = jittered(transformer('complex_order'))
  x, found = jax.jit(lambda model: (model.encode(TOKENS, POS), model(TOKENS, POS)))(model)
  assert x.dtype == jnp.complex64
  assert min(abs(x.real).max(), abs(x.imag).max()) > 0.1
  kernels = [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree.leaves_with_path(nnx.state(model.stack, nnx.Param))
    if 'kernel' in jax.tree_util.keystr(path)
  ]
  assert len(kernels) == 2 * 6  # attention's four and the feed-forward layer's two, in two parts
  assert all('real' in name or 'imag' in name for name in kernels)
  expected = abs(x) @ model.embed.table.embedding[...].T
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_complex_encoder_decoder_reads_complex_memory_by_its_modulus():
  """Cross-attention pair by pair in complex128: softmax of |q . conj(k)| / sqrt(D)."""
  sizes = {'num_layers': 2, 'width': 16, 'num_heads': 2}
  model = jittered(EncoderDecoder(V, V, posjax.get('complex_order'), **sizes, rngs=nnx.Rngs(0)))
  source = jax.random.randint(jax.random.key(3), (2, 6), 0, V)
  ones = jnp.ones_like(source)
  logits = translate(jitted(model), source, ones)
  assert logits.dtype == jnp.float32
  assert not np.allclose(translate(jitted(model), source.at[:, 0].add(1) % V, ones), logits)

  graph, state = nnx.split(model.decoder.stack.periods)
  layer = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[0], state))[0].cross
  x, z = (
    jax.lax.complex(*jax.random.normal(jax.random.key(seed), (2, 1, length, 16)))
    for seed, length in ((1, 3), (2, 5))
  )
  found = layer(x, jnp.zeros(3, jnp.int32), x_kv=z, kv_pos=jnp.zeros(5, jnp.int32))[0]
  kernel = lambda name: sum(
    unit * np.asarray(getattr(getattr(layer, name), part).kernel[...], np.float64)
    for unit, part in ((1, 'real'), (1j, 'imag'))
  )
  q = np.einsum('tm,mhd->thd', np.asarray(x[0], np.complex128), kernel('query'))
  k, v = (
    np.einsum('sm,mhd->shd', np.asarray(z[0], np.complex128), kernel(name))
    for name in ('key', 'value')
  )
  weights = np.exp(abs(np.einsum('thd,shd->hts', q, k.conj())) / 8**0.5)
  mixed = np.einsum('hts,shd->thd', weights / weights.sum(-1, keepdims=True), v)
  expected = np.einsum('thd,hdm->tm', mixed, kernel('out'))
  np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)


def products(jaxpr):
  """The dtypes of all matrix products of a program, with the size that each sums over."""
  for equation in equations(jaxpr):
    if equation.primitive.name == 'dot_general':
      (contracted, _), _ = equation.params['dimension_numbers']
      size = int(np.prod([equation.invars[0].aval.shape[axis] for axis in contracted]))
      yield size, {str(x.aval.dtype) for x in equation.invars}


@pytest.mark.parametrize('line', ['rope', 'alibi', 't5', 'shaw', 'transformer_xl', 'learned'])
def test_in_bfloat16_layers_multiply_bfloat16_and_parameters_and_logits_are_float32(line):
  """Products of float32 are those of attention alone, over heads of 8 or over 9 tokens."""
  sizes = {'width': 24, 'num_heads': 3, 'ff_width': 40}
  wide, narrow = (transformer(line, dtype=x, **sizes) for x in ('float32', 'bfloat16'))
  graph, params = nnx.split(narrow)
  assert {str(x.dtype) for x in jax.tree.leaves(params)} <= {'float32', 'uint32', 'key<fry>'}

  def number(params):
    logits = nnx.merge(graph, params)(TOKENS, POS)
    assert logits.dtype == jnp.float32
    return jnp.square(logits).mean()

  floats = nnx.state(narrow, nnx.Param)
  loss = lambda floats: number(nnx.merge_state(params, floats))
  assert {str(x.dtype) for x in jax.tree.leaves(jax.eval_shape(jax.grad(loss), floats))} == {
    'float32'
  }
  found = list(products(jax.make_jaxpr(number)(params).jaxpr))
  dense = [dtypes for size, dtypes in found if size in (24, 40)]
  assert len(dense) >= 7  # of a layer: queries, keys, values, output, two of the MLP; the readout
  assert all(dtypes == {'bfloat16'} for dtypes in dense)
  exact, near = wide(TOKENS, POS), narrow(TOKENS, POS)
  assert 0 < float(abs(near - exact).max() / abs(exact).max()) < 0.05
