"""`attend` without any scheme's help: against torch, and against loops in float64.

Long, because each argument of `attend` has its test here.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention import masks
from posjax.scheme import Scheme, Values
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('torch_attention_bias_grads')
TOLERANCE = 2e-6


# Against torch, gradients and all. Arrays [B, H, L, D] there.


def golden(name):
  array = GOLDEN[name]
  return array.swapaxes(1, 2) if array.ndim == 4 else array


LENGTH = 33
INDEX = np.arange(LENGTH, dtype=np.int32)
APART = INDEX[:, None] - INDEX[None]
BIASES = {
  'none': (Scheme(), {}),
  'alibi': (posjax.get('alibi(learned=True)'), {'slopes': GOLDEN['slopes'].astype(np.float32)}),
  't5': (
    posjax.get('t5(num_buckets=16, max_distance=20, bidirectional=True)'),
    {'table': GOLDEN['t5_table']},
  ),
}
MASKS = {
  'full': {},
  'causal': {'causal': True},
  'causal_segments': {'causal': True, 'segments': GOLDEN['segment_ids']},
  'window8_causal': {'causal': True, 'window': 8},
}
GRADS = {'none': {}, 'alibi': {'slopes': 'dslopes'}, 't5': {'table': 'dtable'}}


def arrays(tree):
  return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, tree)


def through_attend(mask, bias):
  """Output, and gradients by q, k, v and parameters, for the golden `dout`."""
  scheme, params = BIASES[bias]
  options, index = arrays(MASKS[mask]), jnp.asarray(INDEX)
  segments = options.pop('segments', None)

  def loss(q, k, v, params):
    out = posjax.attend(
      q, k, v, scheme, params, q_pos=index, k_pos=index, q_segments=segments, k_segments=segments,
      **options,
    )  # fmt: skip
    return (out * golden('dout')).sum(), out

  inputs = [jnp.asarray(golden(name)) for name in 'qkv']
  grad = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))
  (dq, dk, dv, dparams), out = grad(*inputs, arrays(params))
  return {'out': out, 'dq': dq, 'dk': dk, 'dv': dv} | {GRADS[bias][n]: dparams[n] for n in dparams}


def closed_form(mask, bias):
  """The same in float64 NumPy, by the derivative of the softmax."""
  q, k, v, dout = (golden(n).astype(np.float64) for n in ('q', 'k', 'v', 'dout'))
  seen = np.broadcast_to(APART >= 0 if 'causal' in mask else APART == APART, (2, 2, 33, 33))
  if mask == 'causal_segments':
    document = GOLDEN['segment_ids']
    same = (document[:, :, None] == document[:, None]) & (document[:, None] > 0)
    seen = seen & same[:, None]
  if mask == 'window8_causal':
    seen = seen & (APART < 8)
  table = {
    'none': np.zeros((2, 33, 33)),
    'alibi': -GOLDEN['slopes'][:, None, None] * abs(APART),
    't5': GOLDEN['t5_table'].astype(np.float64)[GOLDEN['t5_bucket']].transpose(2, 0, 1),
  }[bias]
  logits = np.where(seen, np.einsum('bthd,bshd->bhts', q, k) * 8**-0.5 + table[None], -np.inf)
  top = np.where(seen.any(-1, keepdims=True), logits.max(-1, keepdims=True), 0)
  weights = np.exp(logits - top)
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
  dweights = np.einsum('bthd,bshd->bhts', dout, v)
  dlogits = weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
  found = {
    'out': np.einsum('bhts,bshd->bthd', weights, v),
    'dq': np.einsum('bhts,bshd->bthd', dlogits, k) * 8**-0.5,
    'dk': np.einsum('bhts,bthd->bshd', dlogits, q) * 8**-0.5,
    'dv': np.einsum('bhts,bthd->bshd', weights, dout),
  }
  if bias == 'alibi':
    found['dslopes'] = -np.einsum('bhts,ts->h', dlogits, abs(APART))
  if bias == 't5':
    found['dtable'] = np.zeros((16, 2))
    np.add.at(found['dtable'], GOLDEN['t5_bucket'], dlogits.sum(0).transpose(1, 2, 0))
  return found


def within(found, expected):
  for name, value in expected.items():
    limit = 2e-5 if name == 'out' else 1e-4
    assert abs(np.asarray(found[name]) - value).max() <= limit, name
    assert error(found[name], value) <= 1e-5, name


every_bias = pytest.mark.parametrize('bias', BIASES)


@every_bias
@pytest.mark.parametrize('mask', ['full', 'causal'])
def test_outputs_and_gradients_are_those_of_torch(mask, bias):
  found = through_attend(mask, bias)
  expected = {name: golden(f'{mask}__{bias}__{name}') for name in found}
  within(found, expected)
  within(closed_form(mask, bias), expected)


@every_bias
@pytest.mark.parametrize('mask', ['causal_segments', 'window8_causal'])
def test_outputs_and_gradients_are_those_of_the_closed_form(mask, bias):
  within(through_attend(mask, bias), closed_form(mask, bias))


# Against loops. Ids, order and documents are all different things here.

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, WIDTH, OUT = 2, 5, 7, 4, 2, 6, 3
DRAW = np.random.default_rng(0)
Q = DRAW.normal(size=(BATCH, QUERIES, HEADS, WIDTH)).astype(np.float32)
K = DRAW.normal(size=(BATCH, KEYS, KV_HEADS, WIDTH)).astype(np.float32)
V = DRAW.normal(size=(BATCH, KEYS, KV_HEADS, OUT)).astype(np.float32)
Q_POS = DRAW.integers(0, 50, (BATCH, QUERIES)).astype(np.int32)
K_POS = DRAW.integers(0, 50, (BATCH, KEYS)).astype(np.int32)
Q_ORDER = np.array([[2, 3, 4, 5, 6], [1, 0, 6, 3, 2]], np.int32)
K_ORDER = np.array([[0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]], np.int32)
Q_SEGMENTS = np.array([[1, 1, 2, 2, 0], [1, 1, 1, 2, 3]], np.int32)
K_SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 2, 2, 1]], np.int32)
SINKS = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
SLOPES = {'slopes': np.array([0.01, 0.1, 0.03, 0.2], np.float32)}
ALIBI = posjax.get('alibi')
ORDERS = {'q_order': Q_ORDER, 'k_order': K_ORDER}
DOCUMENTS = {'q_segments': Q_SEGMENTS, 'k_segments': K_SEGMENTS}


def attend(q=Q, k=K, v=V, scheme=ALIBI, params=SLOPES, q_pos=Q_POS, k_pos=K_POS, **options):
  return posjax.attend(
    *arrays((q, k, v)), scheme, arrays(params), **arrays({'q_pos': q_pos, 'k_pos': k_pos}),
    **arrays(options),
  )  # fmt: skip


def seen(
  causal=False, window=None, mask=None, q_order=Q_ORDER, k_order=K_ORDER,
  q_segments=None, k_segments=None,
):  # fmt: skip
  """Pair by pair, which may meet: [B, 1 or H, T, S]."""
  left, right = window if isinstance(window, tuple) else (window and window - 1,) * 2
  found = np.ones((BATCH, 1, QUERIES, KEYS), bool)
  for b, _, t, s in np.ndindex(found.shape):
    back = int(q_order[b, t]) - int(k_order[b, s])
    allowed = back >= 0 or not causal
    allowed = allowed and (left is None or back <= left) and (right is None or -back <= right)
    if q_segments is not None:
      allowed = allowed and q_segments[b, t] == k_segments[b, s] != 0
    found[b, 0, t, s] = allowed
  return found if mask is None else found & np.broadcast_to(mask, (BATCH, HEADS, QUERIES, KEYS))


def expected(**options):
  return both_expected(**options)[0]


def both_expected(scale=None, logit_cap=None, sinks=None, factors=None, bias=0.0, **rules):
  """The outputs, and the weights."""
  logits = loops.content(Q, K, scale)
  for b, h, t, s in np.ndindex(logits.shape):
    logits[b, h, t, s] -= float(SLOPES['slopes'][h]) * abs(int(Q_POS[b, t]) - int(K_POS[b, s]))
  return loops.attention(logits, seen(**rules), V, sinks, logit_cap, factors, bias)


@pytest.mark.parametrize(
  'options',
  [
    {},
    {'causal': True, **ORDERS},
    {'window': 3, **ORDERS},
    {'window': 1, **ORDERS},
    {'causal': True, 'window': 2, **ORDERS},
    *({'window': pair, **ORDERS} for pair in ((2, 1), (0, 3), (None, 0), (1, None), (0, 0))),
    {'causal': True, 'window': (1, 0), **ORDERS},
    {'window': (3, 1), **ORDERS, **DOCUMENTS},
    DOCUMENTS,
    {'causal': True, **ORDERS, **DOCUMENTS},
    {'sinks': SINKS},
    {'logit_cap': 0.7},
    {'scale': 1.5},
    {'causal': True, 'window': 4, **ORDERS, **DOCUMENTS, 'sinks': SINKS, 'logit_cap': 2.0},
  ],
  ids=lambda options: '+'.join(n for n in options if n[1] != '_') or 'plain',
)  # fmt: skip
def test_attend_is_the_loop_over_pairs(options):
  assert error(attend(**options), expected(**options)) <= TOLERANCE


@pytest.mark.parametrize(
  'shape',
  [
    *((*rows, QUERIES, KEYS) for rows in ((), (1, 1), (BATCH, 1), (1, HEADS), (BATCH, HEADS))),
    *((BATCH, 1, 1, KEYS), (BATCH, HEADS, QUERIES, 1), (1, KEYS)),
  ],
)
def test_a_mask_of_any_broadcast_shape_hides_what_is_false(shape):
  mask = np.random.default_rng(1).random(shape) < 0.5
  assert error(attend(mask=mask), expected(mask=mask)) <= TOLERANCE


def test_a_mask_narrows_the_other_rules():
  mask = np.random.default_rng(1).random((QUERIES, KEYS)) < 0.7
  options = {'mask': mask, 'causal': True, **ORDERS, **DOCUMENTS}
  assert error(attend(**options), expected(**options)) <= TOLERANCE


def test_a_window_is_the_pair_of_the_tokens_on_both_sides():
  for causal, pair in ((False, (2, 2)), (True, (2, None)), (True, (2, 0))):
    wide, narrow = (attend(window=w, causal=causal, **ORDERS) for w in (pair, 3))
    np.testing.assert_array_equal(wide, narrow)
  np.testing.assert_array_equal(attend(window=(None, None)), attend())


BIASES_OF_ANY_SHAPE = [
  *((*rows, QUERIES, KEYS) for rows in ((), (HEADS,), (1, 1), (BATCH, 1), (BATCH, HEADS))),
  *((BATCH, 1, 1, KEYS), (BATCH, HEADS, QUERIES, 1), (1, KEYS)),
]


@pytest.mark.parametrize('shape', BIASES_OF_ANY_SHAPE)
def test_a_bias_of_any_broadcast_shape_is_added_after_the_cap(shape):
  bias = 3 * np.random.default_rng(1).normal(size=shape).astype(np.float32)
  options = {'bias': bias, 'logit_cap': 0.7, 'sinks': SINKS, **DOCUMENTS}
  assert error(attend(**options), expected(**options)) <= TOLERANCE


def test_a_bias_has_the_gradient_of_the_logits_summed_over_what_it_is_broadcast_to():
  rng = np.random.default_rng(1)
  cotangent = rng.normal(size=(BATCH, QUERIES, HEADS, OUT))
  options = {'causal': True, 'logit_cap': 2.0, 'sinks': SINKS, **ORDERS, **DOCUMENTS}
  wide = np.repeat(V, HEADS // KV_HEADS, axis=2).astype(np.float64)
  for shape in ((BATCH, HEADS, QUERIES, KEYS), (1, HEADS, 1, KEYS)):
    bias = rng.normal(size=shape).astype(np.float32)
    _, weights = both_expected(bias=bias, **options)
    d_weights = np.einsum('bthe,bshe->bhts', cotangent, wide)
    d_logits = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    summed = d_logits.sum(tuple(axis for axis in range(4) if shape[axis] == 1), keepdims=True)
    slope = jax.grad(lambda bias: (attend(bias=bias, **options) * cotangent).sum())
    found = jax.jit(slope)(jnp.asarray(bias))
    assert found.shape == shape
    assert error(found, summed) <= 1e-5


@pytest.mark.parametrize('cap', [None, 0.7])
def test_a_bias_of_minus_infinity_or_far_below_zero_hides_its_pair(cap):
  mask = np.random.default_rng(1).random((QUERIES, KEYS)) < 0.5
  mask[1], mask[0, 0] = False, True
  hiding = np.where(mask, 0, -np.inf).astype(np.float32)
  out = lambda bias: attend(bias=bias, logit_cap=cap)
  assert error(out(hiding), expected(mask=mask, logit_cap=cap)) <= TOLERANCE
  np.testing.assert_array_equal(out(hiding)[:, 1], 0)
  slope = jax.grad(lambda bias: jnp.square(1 + out(bias)).sum())(jnp.asarray(hiding))
  np.testing.assert_array_equal(slope[~mask], 0)
  assert jnp.isfinite(slope).all()
  seeing = np.delete(np.arange(QUERIES), 1)  # where all are far below, none is hidden
  far = out(np.maximum(hiding, -1e9))
  assert error(far[:, seeing], expected(mask=mask, logit_cap=cap)[:, seeing]) <= TOLERANCE


def test_order_is_the_ids_where_none_is_given():
  assert (
    error(attend(causal=True), expected(causal=True, q_order=Q_POS, k_order=K_POS)) <= TOLERANCE
  )


@pytest.mark.parametrize('heads', [1, 2, 4])
def test_key_heads_are_shared_by_consecutive_query_heads(heads):
  k, v = np.repeat(K, 2, axis=2)[:, :, :heads], np.repeat(V, 2, axis=2)[:, :, :heads]
  logits = loops.content(Q, np.repeat(k, HEADS // heads, axis=2))
  out, _ = loops.attention(logits, seen(), np.repeat(v, HEADS // heads, axis=2))
  assert error(attend(Q, k, v, Scheme(), {}), out) <= TOLERANCE


def test_leading_axes_are_all_batch():
  one = attend(**ORDERS, causal=True)
  fold = lambda x: np.stack([x, x[::-1], x])  # [3, B, ...]
  many = attend(
    fold(Q), fold(K), fold(V), q_pos=fold(Q_POS), k_pos=fold(K_POS), q_order=fold(Q_ORDER),
    k_order=fold(K_ORDER), causal=True, mask=np.ones((3, 1, 1, QUERIES, KEYS), bool),
  )  # fmt: skip
  assert error(many, fold(one)) <= TOLERANCE
  alone = attend(
    Q[0], K[0], V[0], q_pos=Q_POS[0], k_pos=K_POS[0], q_order=Q_ORDER[0], k_order=K_ORDER[0],
    causal=True,
  )  # fmt: skip
  assert error(alone, one[0]) <= TOLERANCE


def test_ids_without_batch_axes_hold_for_every_row():
  rows = lambda x: np.broadcast_to(x[:1], x.shape)
  options = {**ORDERS, **DOCUMENTS, 'q_pos': Q_POS, 'k_pos': K_POS, 'causal': True}
  every = attend(**{name: rows(x) if name != 'causal' else x for name, x in options.items()})
  for lacking in (lambda x: x[0], lambda x: x[:1]):
    found = attend(**{name: lacking(x) if name != 'causal' else x for name, x in options.items()})
    assert error(found, every) <= TOLERANCE


def test_prepared_sides_may_lack_rows_and_reach_every_place():
  """`at` [1, T, ...] holds for every row; here the bias comes from it instead of the ids."""

  def logits(params, logits, q, k, q_at, k_at):
    return logits - jnp.moveaxis(abs(q_at['x'][:, :, None] - k_at['x'][:, None]), -1, 1)

  def prepare(params, x, pos, last, starts):
    return params, {'x': jnp.zeros((*x.shape[:2], HEADS))}

  side = lambda n: np.broadcast_to(np.arange(n, dtype=np.float32)[None, :, None], (1, n, HEADS))
  scheme = Scheme(prepare=prepare, logits=logits)
  out = attend(scheme=scheme, params={}, q_at={'x': side(QUERIES)}, k_at={'x': side(KEYS)})
  apart = abs(np.arange(QUERIES)[:, None] - np.arange(KEYS))
  assert error(out, loops.attention(loops.content(Q, K) - apart, seen(), V)[0]) <= TOLERANCE


# Rows that see nothing.


@pytest.mark.parametrize('sinks', [None, SINKS], ids=['plain', 'sinks'])
def test_masked_rows_give_zeros_and_zero_gradients(sinks):
  mask = np.ones((QUERIES, KEYS), bool)
  mask[1] = False
  mask[:, 3] = False  # and a key that nobody sees

  def out(q, k, v):
    return attend(q, k, v, mask=mask, sinks=sinks)

  np.testing.assert_array_equal(out(Q, K, V)[:, 1], 0)
  slope = jax.grad(lambda *x: jnp.square(1 + out(*x)).sum(), argnums=(0, 1, 2))
  dq, dk, dv = jax.jit(slope)(*arrays((Q, K, V)))
  np.testing.assert_array_equal(dq[:, 1], 0)
  np.testing.assert_array_equal(dk[:, 3], 0)
  np.testing.assert_array_equal(dv[:, 3], 0)
  assert all(jnp.isfinite(grad).all() for grad in (dq, dk, dv))
  assert (abs(dq[:, [0, 2, 3, 4]]).max((0, 2, 3)) > 0).all()


def test_gradients_are_zero_where_everything_is_masked():
  def loss(q, k, v, params):
    mask = np.zeros((QUERIES, KEYS), bool)
    return jnp.square(
      1 + attend(q, k, v, posjax.get('alibi(learned=True)'), params, mask=mask)
    ).sum()

  grads = jax.grad(loss, argnums=(0, 1, 2, 3))(*arrays((Q, K, V, SLOPES)))
  jax.tree.map(lambda grad: np.testing.assert_array_equal(grad, 0), grads)


def test_a_sink_has_the_gradient_of_its_logit():
  loss = lambda sinks: (attend(sinks=sinks) ** 2).sum()
  grad = jax.grad(loss)(jnp.asarray(SINKS))
  for h in range(HEADS):
    step = 1e-4 * np.eye(HEADS)[h]
    ends = [
      np.square(expected(sinks=SINKS.astype(np.float64) + way * step)).sum() for way in (1, -1)
    ]
    assert abs(grad[h] - (ends[0] - ends[1]) / 2e-4) <= 1e-4 * abs(grad).max()


def test_causality_gives_exactly_zero_gradients():
  index = np.arange(QUERIES)
  k, v = K[:, :QUERIES], V[:, :QUERIES]

  def early(q, k, v):
    out = attend(q, k, v, q_pos=index, k_pos=index, causal=True)
    return jnp.square(out[:, :3]).sum()

  grads = jax.jit(jax.grad(early, argnums=(0, 1, 2)))(*arrays((Q, k, v)))
  for grad in grads:
    np.testing.assert_array_equal(grad[:, 3:], 0)
  assert (abs(grads[2][:, :3]).max((0, 2, 3)) > 0).all()


# Dtypes.


def test_bfloat16_loses_no_more_than_the_rounding_of_its_output():
  """Logits of size 1000, which bfloat16 logits would round by 4: the weights would be noise."""
  low = [jnp.asarray(x, jnp.bfloat16) for x in (8 * Q, 8 * K, V)]
  exact = [np.asarray(x, np.float64) for x in low]
  out = attend(*low, Scheme(), {}, scale=4.0)
  logits = loops.content(exact[0], exact[1], 4.0)
  assert abs(logits).max() > 1000
  reference, _ = loops.attention(logits, seen(), exact[2])
  assert out.dtype == jnp.bfloat16
  # Half a unit in the last of 8 bits, and float32's share.
  assert (abs(np.asarray(out, np.float64) - reference) <= 2.0**-8 * abs(reference) + 1e-4).all()


def test_the_output_has_the_dtype_of_the_values():
  for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
    assert attend(v=jnp.asarray(V, dtype)).dtype == dtype


def test_float64_computes_in_float64():
  with jax.enable_x64(True):
    wide = [x.astype(np.float64) for x in (Q, K, V)]
    out = attend(*wide, Scheme(), {})
  assert out.dtype == np.float64
  assert error(out, loops.attention(loops.content(Q, K), seen(), V)[0]) <= 1e-14


def test_complex_logits_are_refused_unless_a_scheme_makes_them_real():
  turned = [(x * np.exp(1j)).astype(np.complex64) for x in (Q, K, V)]
  with pytest.raises(ValueError, match='are complex, and no scheme makes them real'):
    attend(*turned, Scheme(), {})
  real = Scheme(logits=lambda params, logits, q, k, q_at, k_at: logits.real)
  out = attend(*turned, real, {})  # k conjugated: the phases cancel
  reference, _ = loops.attention(loops.content(Q, K), seen(), V)
  assert error(out, reference * np.exp(1j)) <= TOLERANCE


# Dropout.

RATE = 0.3


@functools.cache
def factors(seed=0, heads=(2, 3), queries=64, keys=64, rate=RATE):
  index = lambda n: jnp.arange(n, dtype=jnp.int32)
  kept = masks.dropout_mask(
    jax.random.key(seed),
    rate,
    masks.dropout_rows(jnp.arange(heads[0]), heads[1]),
    index(queries),
    index(keys),
  )
  return np.asarray(kept)


def test_dropout_keeps_its_share_and_scales_it_to_the_same_mean():
  kept = factors() > 0
  np.testing.assert_allclose(factors()[kept], 1 / (1 - RATE), rtol=1e-6)
  deviation = np.sqrt(RATE * (1 - RATE) / kept.size)
  assert abs(kept.mean() - (1 - RATE)) <= 4 * deviation
  # In each row, head, query and key as well: 4.5 deviations of the worst of about 150.
  for axes in ((1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):
    shares = kept.mean(axes)
    assert abs(shares - (1 - RATE)).max() <= 4.5 * deviation * np.sqrt(shares.size)


@pytest.mark.parametrize('rate', [2.0**-20, 0.01, 0.5, 0.999])
def test_dropout_honours_small_and_large_rates(rate):
  kept = factors(rate=rate) > 0
  assert abs(kept.mean() - (1 - rate)) <= 4 * np.sqrt(rate * (1 - rate) / kept.size) + 1 / kept.size


def test_dropout_of_rows_heads_queries_and_keys_is_independent():
  kept = (factors() > 0) - (1 - RATE)
  variance = RATE * (1 - RATE)
  for axis in range(4):
    for apart in (1, 2):
      one = np.take(kept, range(kept.shape[axis] - apart), axis)
      other = np.take(kept, range(apart, kept.shape[axis]), axis)
      if one.size:
        assert abs((one * other).mean()) <= 4.5 * variance / np.sqrt(one.size)
  swapped = (kept * kept.swapaxes(2, 3))[:, :, *np.triu_indices(64, 1)]
  assert abs(swapped.mean()) <= 4.5 * variance / np.sqrt(swapped.size)


def test_a_tile_of_the_dropout_is_the_dropout_of_a_tile():
  q_index, k_index = jnp.arange(5, 12), jnp.array([40, 3, 17])
  part = masks.dropout_mask(
    jax.random.key(0), RATE, masks.dropout_rows(jnp.arange(2), 3), q_index, k_index
  )
  np.testing.assert_array_equal(part, factors()[:, :, 5:12][..., [40, 3, 17]])


def test_dropout_is_a_function_of_its_key():
  np.testing.assert_array_equal(factors(0), factors.__wrapped__(0))
  agree = ((factors(0) > 0) == (factors(1) > 0)).mean()
  assert abs(agree - (RATE**2 + (1 - RATE) ** 2)) <= 0.02


def test_attend_drops_weights_after_the_softmax():
  key = jax.random.key(3)
  dropped = masks.dropout_mask(
    key, RATE, masks.dropout_rows(jnp.arange(BATCH), HEADS), jnp.arange(QUERIES), jnp.arange(KEYS)
  )
  found = attend(dropout_rate=RATE, dropout_key=key, sinks=SINKS)
  assert error(found, expected(factors=np.asarray(dropped), sinks=SINKS)) <= TOLERANCE
  same = attend(dropout_rate=0.0, dropout_key=key, sinks=SINKS)
  np.testing.assert_array_equal(same, attend(sinks=SINKS))


def test_weights_are_those_of_the_softmax_before_dropout_and_zero_where_hidden(unchecked):
  options = {'causal': True, 'window': 4, **ORDERS, **DOCUMENTS, 'sinks': SINKS, 'logit_cap': 2.0}
  options['bias'] = np.linspace(-2, 2, QUERIES * KEYS, dtype=np.float32).reshape(QUERIES, KEYS)
  dropout = {'dropout_rate': RATE, 'dropout_key': jax.random.key(3)}
  out, weights = attend(**options, **dropout, return_weights=True)
  _, shares = both_expected(**options)
  assert weights.dtype == jnp.float32
  assert error(weights, shares) <= TOLERANCE
  np.testing.assert_array_equal(np.asarray(weights) == 0, shares == 0)
  np.testing.assert_array_equal(out, attend(**options, **dropout))
  no_keys = attend(k=K[:, :0], v=V[:, :0], k_pos=K_POS[:, :0], return_weights=True)
  assert [each.shape for each in no_keys] == [out.shape, (BATCH, HEADS, QUERIES, 0)]
  pairs = {'q': Q, 'k': K, 'v': V, 'q_pos': Q_POS, 'k_pos': K_POS}
  rows = {name: np.stack([x, x]) for name, x in pairs.items()}
  assert attend(**rows, return_weights=True)[1].shape == (2, *weights.shape)
  with pytest.raises(ValueError, match="needs implementation='dense', or None, but"):
    attend(implementation='blockwise', return_weights=True)
  with pytest.raises(TypeError, match='return_weights must be True or False, but got 1'):
    attend(return_weights=1)


def test_raw_and_typed_keys_drop_alike():
  raw = attend(dropout_rate=RATE, dropout_key=jax.random.PRNGKey(3))
  np.testing.assert_array_equal(raw, attend(dropout_rate=RATE, dropout_key=jax.random.key(3)))


def test_dropout_on_average_changes_nothing():
  draws = 2000
  one = lambda key: attend(dropout_rate=RATE, dropout_key=key)
  outs = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), draws))
  deviation = outs.std(0) / np.sqrt(draws)
  assert (abs(outs.mean(0) - expected()) <= 5 * deviation + 1e-6).all()


def test_place_4_sees_the_weights_that_were_kept():
  """`values.add` that returns the values' own sum doubles the output, dropout and all."""

  def values(params, weights, q_at, k_at):
    return jnp.einsum('bhts,bshe->bthe', weights, jnp.repeat(jnp.asarray(V), 2, axis=2))

  options = {'dropout_rate': RATE, 'dropout_key': jax.random.key(3), 'params': {}}
  plain, doubled = (
    attend(scheme=s, **options) for s in (Scheme(), Scheme(values=Values(add=values)))
  )
  assert error(doubled, 2 * np.asarray(plain)) <= TOLERANCE


def test_a_bias_that_is_nan_where_tokens_do_not_meet_spoils_no_gradient():
  """As tables give it beyond their range."""
  only_near = lambda params, distance: jnp.where(abs(distance) < 2, 0.5, jnp.nan)[None]
  q, pos = jax.random.normal(jax.random.key(0), (1, 4, 1, 2)), jnp.array([0, 1, 9, 10])
  segments = {'q_segments': jnp.array([1, 1, 2, 2]), 'k_segments': jnp.array([1, 1, 2, 2])}

  def total(q, cap):
    scheme = posjax.Scheme(bias=only_near)
    out = posjax.attend(q, q, q, scheme, {}, q_pos=pos, k_pos=pos, logit_cap=cap, **segments)
    return (out**2).sum()

  for cap in (None, 3.0):
    assert jnp.isfinite(jax.jit(jax.grad(total), static_argnums=1)(q, cap)).all()
