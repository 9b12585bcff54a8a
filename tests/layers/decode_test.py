"""A layer with a cache says what one full pass says: token by token, by chunks, on a ring."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.nnx import Attention
from tests.support.loops import error
from tests.support.toy_schemes import TOYS

BATCH, LENGTH, WIDTH = 2, 9, 12
TOLERANCE = 1e-5
LINES = ('rope', 'alibi', 'rope(base=100.)+alibi')
LONGEST = 'forgetful+rope+two_tables'
CHAINED = posjax.chain(TOYS['forgetful'], posjax.get('rope'), TOYS['two_tables'])
TOY_NAMES = [name for name in TOYS if name != 'waves']  # its heads are complex: no projection is
SCHEMES = {line: posjax.get(line) for line in LINES} | {n: TOYS[n] for n in TOY_NAMES}
SCHEMES |= {LONGEST: CHAINED}


def layer(scheme, **kwargs):
  made = Attention(
    WIDTH, 4, scheme, head_dim=6, num_kv_heads=2, causal=True, rngs=nnx.Rngs(3), **kwargs
  )
  if made.sinks is not None:
    made.sinks[...] = jnp.array([1.0, -1.0, 0.5, 3.0])
  return made


def stream(scheme, length=LENGTH):
  """x and ids [B, T] or [B, T, n]: rows start at different ids."""
  x = jax.random.normal(jax.random.key(1), (BATCH, length, WIDTH))
  start = jnp.array([[3], [40]])
  pos = start + jnp.arange(length, dtype=jnp.int32)[None]
  return x, jnp.stack([pos // 3, pos % 3], axis=-1) if scheme.traits.axes == 2 else pos


def full(layer, x, pos, **kwargs):
  order = jnp.arange(x.shape[1])
  return jax.jit(functools.partial(layer, order=order, **kwargs))(x, pos)


def by_chunks(layer, x, pos, chunks, capacity=None, segments=None, bias=None):
  step = jax.jit(lambda x, cache, pos, s, bias: layer.extend(x, cache, pos, segments=s, bias=bias))
  cache, out, start = layer.init_cache(x.shape[0], capacity), [], 0
  segments = jnp.ones(x.shape[:2], jnp.int32) if segments is None else segments
  for count in chunks:
    part = slice(start, start + count)
    more = None if bias is None else bias[..., part, :]
    y, cache = step(x[:, part], cache, pos[:, part], segments[:, part], more)
    out.append(y)
    start += count
  return jnp.concatenate(out, axis=1)


MECHANISMS = ('rope(base=100.)+alibi', 'forgetful', 'counted', 'two_tables', 'streets')


@pytest.mark.parametrize('name', [*MECHANISMS, 'shared_table', 'wide', LONGEST])
def test_token_by_token_is_one_causal_pass(name):
  one = layer(SCHEMES[name])
  x, pos = stream(SCHEMES[name])
  expected = full(one, x, pos)
  assert error(by_chunks(one, x, pos, [1] * LENGTH, LENGTH + 2), expected) < TOLERANCE


def test_prefill_and_decoding_honour_sinks_a_cap_and_biases():
  one = layer(CHAINED, sinks=True, logit_cap=0.5, use_bias=True)
  x, pos = stream(CHAINED)
  assert error(by_chunks(one, x, pos, [5, 1, 1, 2], LENGTH), full(one, x, pos)) < TOLERANCE


@pytest.mark.parametrize('window', [None, 4])
def test_ids_that_leave_out_numbers_decide_what_a_token_sees_as_in_a_call(window):
  one, x = layer(SCHEMES['rope'], window=window), stream(SCHEMES['rope'])[0]
  pos = jnp.broadcast_to(jnp.array([0, 1, 2, 5, 6, 9, 10, 11, 40]), x.shape[:2])
  found = by_chunks(one, x, pos, [3] + [1] * 6, None if window else LENGTH)
  assert error(found, jax.jit(one)(x, pos)) < TOLERANCE


RINGS = [('rope', (9,)), ('alibi', (6, 1, 1, 1)), ('counted', (5, 1, 1, 1, 1))]
RINGS += [(LONGEST, c) for c in ((1,) * 9, (2, 3, 4))]


@pytest.mark.parametrize(('name', 'chunks'), RINGS, ids=str)
def test_a_ring_is_a_full_pass_with_a_window(name, chunks):
  one = layer(SCHEMES[name], window=4)
  x, pos = stream(SCHEMES[name])
  expected = full(one, x, pos)
  assert error(by_chunks(one, x, pos, chunks), expected) < TOLERANCE
  assert error(full(layer(SCHEMES[name]), x, pos), expected) > 0.01  # the window is felt


def test_a_ring_of_a_pair_holds_the_tokens_on_the_left_and_the_query():
  one, x, pos = layer(SCHEMES['rope'], window=(3, 0)), *stream(SCHEMES['rope'])
  assert one.init_cache(BATCH).k.shape[1] == 4
  expected = full(layer(SCHEMES['rope'], window=4), x, pos)
  assert error(by_chunks(one, x, pos, (5, 1, 1, 1, 1)), expected) < TOLERANCE
  with pytest.raises(ValueError, match='hold its window of 4 tokens, but has 3 slots'):
    one.init_cache(BATCH, 3)
  with pytest.raises(ValueError, match='needs a capacity, the tokens in all, but got none'):
    layer(SCHEMES['rope'], window=(None, 0)).init_cache(BATCH)


@pytest.mark.parametrize(('name', 'window'), [('rope', None), ('counted', 4)])
def test_a_bias_has_a_column_for_each_token_of_the_stream(name, window):
  one, x, pos = layer(SCHEMES[name], window=window), *stream(SCHEMES[name])
  bias = 2 * jax.random.normal(jax.random.key(7), (BATCH, 4, LENGTH, LENGTH))
  expected = full(one, x, pos, bias=bias)
  capacity = None if window else LENGTH
  found = by_chunks(one, x, pos, (7, 1, 1), capacity, bias=bias)
  assert error(found, expected) < TOLERANCE
  assert error(full(one, x, pos), expected) > 0.01  # the bias is felt
  if window:  # tokens that the bias does not know
    short, _ = jax.jit(one.extend)(x, one.init_cache(BATCH), pos, bias=bias[..., :7])
    assert jnp.isfinite(short[:, :7]).all()
    assert jnp.isnan(short[:, 7:]).all()


def test_a_ring_longer_than_its_window_is_the_same():
  one = layer(CHAINED, window=3)
  x, pos = stream(CHAINED)
  assert error(by_chunks(one, x, pos, [4, 1, 3, 1], 5), full(one, x, pos)) < TOLERANCE


@pytest.mark.parametrize(('name', 'window'), [('counted', None), ('counted', 3), (LONGEST, 3)])
def test_left_padding_is_no_padding(name, window):
  one, pad = layer(SCHEMES[name], window=window), 3
  x, pos = stream(SCHEMES[name])
  noise = 10 * jax.random.normal(jax.random.key(5), (BATCH, pad, WIDTH))
  padded = jnp.concatenate([noise, x], axis=1)
  segments = jnp.concatenate([jnp.zeros((BATCH, pad)), jnp.ones((BATCH, LENGTH))], axis=1)
  padded_pos = jnp.concatenate([jnp.zeros((BATCH, pad), jnp.int32), pos], axis=1)
  chunks, capacity = (pad + 4, 1, 1, 3), None if window else pad + LENGTH
  found = by_chunks(one, padded, padded_pos, chunks, capacity, segments.astype(jnp.int32))
  assert error(found[:, pad:], full(one, x, pos)) < TOLERANCE
  np.testing.assert_array_equal(found[:, :pad], 0)


def test_rows_of_different_lengths_decode_together():
  one = layer(SCHEMES['rope(base=100.)+alibi'])
  x, pos = stream(SCHEMES['rope'])
  segments = jnp.array([[1] * LENGTH, [0, 0] + [1] * (LENGTH - 2)])
  found = by_chunks(one, x, pos, [5, 1, 1, 1, 1], LENGTH, segments)
  assert error(found[0], full(one, x[:1], pos[:1])[0]) < TOLERANCE
  assert error(found[1, 2:], full(one, x[1:, 2:], pos[1:, 2:])[0]) < TOLERANCE


def test_packed_documents_are_each_alone():
  one = layer(CHAINED, window=3)
  x, pos = stream(CHAINED)
  pos = jnp.concatenate([pos[:, :4], pos[:, 4:] - 4], axis=1)
  segments = jnp.broadcast_to(jnp.array([1] * 4 + [2] * 5), (BATCH, LENGTH))
  found = by_chunks(one, x, pos, [3, 3, 1, 1, 1], None, segments)
  for part in (slice(0, 4), slice(4, LENGTH)):
    assert error(found[:, part], full(one, x[:, part], pos[:, part])) < TOLERANCE


def test_ids_changed_by_the_model_decode_by_their_order():
  scheme = SCHEMES['stretched']
  one = layer(scheme, model_places=True)
  x, pos = stream(scheme)
  pos = scheme.ids(pos, jax.random.key(2))
  assert error(by_chunks(one, x, pos, [4] + [1] * 5, LENGTH), full(one, x, pos)) < TOLERANCE


def test_shared_parameters_come_from_the_model():
  scheme = SCHEMES['shared_table']
  one = layer(scheme, model_params=False)
  shared = scheme.init_model(jax.random.key(7), posjax.Dims(WIDTH, 4, 6, 2))
  x, pos = stream(scheme)
  extend = jax.jit(functools.partial(one.extend, model_params=shared))
  found, _ = extend(x, one.init_cache(BATCH, LENGTH), pos)
  assert error(found, full(one, x, pos, model_params=shared)) < TOLERANCE


def test_overflow_is_nan_under_jit_and_stays_so():
  one = layer(SCHEMES['rope'])
  x, pos = stream(SCHEMES['rope'])
  found = by_chunks(one, x, pos, [4, 3, 1, 1], 6)
  assert jnp.isfinite(found[:, :4]).all()
  assert jnp.isnan(found[:, 4:]).all()


def test_overflow_is_an_error_outside_jit():
  one = layer(SCHEMES['rope'])
  x, pos = stream(SCHEMES['rope'])
  _, cache = jax.jit(one.extend)(x[:, :4], one.init_cache(BATCH, 6), pos[:, :4])
  with pytest.raises(ValueError, match='6 slots, 4 of them taken, so 3 tokens do not fit'):
    one.extend(x[:, 4:7], cache, pos[:, 4:7])


@pytest.mark.parametrize(
  ('param', 'kept'), [(jnp.float32, jnp.float32), (jnp.bfloat16, jnp.float32)]
)
def test_the_cache_is_as_wide_as_the_projections_and_the_output_as_the_full_pass(param, kept):
  one = layer(SCHEMES['rope'], param_dtype=param)
  x, pos = stream(SCHEMES['rope'])
  for dtype in (jnp.float32, jnp.bfloat16):
    cache = one.init_cache(BATCH, LENGTH)
    y, _ = jax.eval_shape(one.extend, x.astype(dtype), cache, pos)
    assert cache.k.dtype == kept
    assert (
      y.dtype == jax.eval_shape(one, x.astype(dtype), pos).dtype == jnp.promote_types(dtype, param)
    )


def test_a_bfloat16_layer_decodes_near_the_float32_one():
  x, pos = stream(CHAINED)
  narrow = layer(CHAINED, dtype=jnp.bfloat16)
  assert narrow.init_cache(BATCH, LENGTH).k.dtype == jnp.bfloat16
  found = by_chunks(narrow, x, pos, [5, 1, 1, 1, 1], LENGTH)
  assert found.dtype == jnp.bfloat16
  assert error(found.astype(jnp.float32), full(layer(CHAINED), x, pos)) < 0.03


@pytest.mark.parametrize(
  ('widen', 'add_logits', 'tokens', 'width'),
  [(1, False, 1, 6), (2, False, 1, 12), (3, False, LENGTH, 6), (1, True, LENGTH, 6)],
)
def test_keys_are_placed_once_unless_they_widen_a_lot_or_are_wanted_raw(
  widen, add_logits, tokens, width
):
  """`key` is called with one token, or with all slots; the cache is as wide as what it keeps."""
  seen = []

  def key(params, k, at):
    seen.append(k.shape[1])
    return jnp.concatenate([k * (1 + at[..., None, None])] * widen, axis=-1)

  def query(params, q, at):
    return jnp.concatenate([q / (1 + at[..., None, None])] * widen, axis=-1)

  def logits(params, logits, q, k, q_at, k_at):
    return logits + jnp.repeat(k[..., 0], 2, axis=-1).swapaxes(1, 2)[:, :, None]

  scheme = posjax.Scheme(query=query, key=key)
  one = layer(scheme._replace(logits=logits) if add_logits else scheme)
  x, pos = stream(scheme)
  assert one.init_cache(BATCH, LENGTH).k.shape[-1] == width
  found = by_chunks(one, x, pos, (1,) * LENGTH, LENGTH)
  assert seen[-1] == tokens
  assert error(found, full(one, x, pos)) < TOLERANCE


def test_new_ids_and_lengths_do_not_retrace():
  one, traces = layer(SCHEMES['rope']), []

  @jax.jit
  def step(x, cache, pos):
    traces.append(1)
    return one.extend(x, cache, pos)

  x, pos = stream(SCHEMES['rope'])
  cache = one.init_cache(BATCH, LENGTH)
  for i in range(4):
    _, cache = step(x[:, i : i + 1], cache, pos[:, i : i + 1])
  assert len(traces) == 1


def test_what_cannot_be_cached_is_refused(unchecked):
  x, pos = stream(SCHEMES['rope'])
  encoder = Attention(WIDTH, 4, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match='must be causal, but got causal=False'):
    encoder.init_cache(BATCH, LENGTH)
  one = layer(SCHEMES['rope'])
  with pytest.raises(ValueError, match='must be causal, but got causal=False'):
    encoder.extend(x, one.init_cache(BATCH, LENGTH), pos)
  with pytest.raises(ValueError, match='needs a capacity, the tokens in all, but got none'):
    one.init_cache(BATCH)
  with pytest.raises(ValueError, match='hold its window of 5 tokens, but has 4 slots'):
    layer(SCHEMES['rope'], window=5).init_cache(BATCH, 4)
  with pytest.raises(ValueError, match=r'pos must be \(2, 9\) or \(9,\), but got \(2, 8\)'):
    one.extend(x, one.init_cache(BATCH, LENGTH), pos[:, 1:])
  with pytest.raises(ValueError, match=r'segments must be \(2, 9\) or \(9,\), but got \(2, 3\)'):
    one.extend(x, one.init_cache(BATCH, LENGTH), pos, segments=jnp.ones((2, 3), jnp.int32))
  with pytest.raises(ValueError, match=r'x must be \[B, T, 12\], but got shape \(9, 12\)'):
    one.extend(x[0], one.init_cache(BATCH, LENGTH), pos)
