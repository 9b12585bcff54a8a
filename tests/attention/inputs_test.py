"""What `attend` refuses: every message at the border is read here."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import posjax
import posjax.linen
import posjax.nnx
from posjax.attention import inputs
from posjax.scheme import Scheme, Traits, Values
from tests.support.toy_schemes import TOYS

pytestmark = pytest.mark.usefixtures('unchecked')

FLAT = jnp.ones((4, 6))
Q, K = jnp.ones((2, 3, 4, 6)), jnp.ones((2, 5, 2, 6))  # B 2, T 3, S 5, H 4, K 2, D 6
PARAMS = {'slopes': jnp.ones(4)}
DRAW = np.random.default_rng(0)
NAN = jnp.array([0.0, jnp.nan, 1.0])
PAIRS, KEYS = (jnp.asarray(DRAW.normal(size=x.shape), jnp.float32) for x in (Q, K))
ALIBI = posjax.get('alibi')
MOVED = Scheme(ids=lambda pos, key: pos + 1)
STREETS = TOYS['streets']
GATES = TOYS['forgetful']


def ids(*shape, dtype=jnp.int32):
  return jnp.zeros(shape, dtype)


def seen(*shape):
  return jnp.ones(shape, bool)


def attend(q=Q, k=K, v=K, scheme=ALIBI, params=PARAMS, **options):
  options = {'q_pos': ids(3), 'k_pos': ids(5)} | options
  return posjax.attend(q, k, v, scheme, params, **options)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'q': FLAT}, r'^q must be \[\*B, tokens, heads, width\], but got shape \(4, 6\)\.$'),
    ({'k': FLAT}, r'^k must be \[\*B, tokens, heads, width\], but got shape'),
    ({'v': FLAT}, r'^v must be \[\*B, tokens, heads, width\], but got shape'),
    ({'q': Q[0]}, r'k must agree on the batch and the head width, but got \(3, 4, 6\) and \(2'),
    ({'q': Q[..., :4]}, r'batch and the head width, but got \(2, 3, 4, 4\) and \(2, 5, 2, 6\)\.$'),
    ({'v': K[:, :4]}, r'k and v must agree on batch, tokens and heads, but got \(2, 5, 2, 6\) and'),
    ({'v': K[:, :, :1]}, r'on batch, tokens and heads, but got .* and \(2, 5, 1, 6\)\.$'),
    ({'q': Q[:, :, :3]}, r'key heads must divide the query heads, but got 2 and 3\.$'),
    ({'k': K[:, :, :0], 'v': K[:, :, :0]}, r'must divide the query heads, but got 0 and 4\.$'),
    ({'implementation': 'fast'}, r"implementation must be .* but got 'fast'\.$"),
    ({'window': 2**31}, r'^The window must be an integer .* below 2\^31, .* but got 2147483648\.$'),
    ({'window': (1, 2, 3)}, r'^A window of two ends must be \(left, right\), but got'),
    ({'window': (-1, 2)}, r'^left of the window must be an integer of at least 0 .* but got -1\.$'),
    (
      {'window': (1, 2), 'causal': True},
      r'^A causal query sees no token after itself, so right .* must be 0 or None, but got 2\.$',
    ),
    ({'bias': np.ones((3, 4))}, r'^bias must have the axes of queries and keys, \(3, 5\), and'),
    ({'bias': np.ones(5)}, r'^bias must have the axes .* to \(2, 4, 3, 5\), but got \(5,\)\.$'),
    ({'bias': np.ones((3, 1, 1, 5))}, r'^bias must .* to \(2, 4, 3, 5\), but got \(3, 1, 1, 5\)'),
    ({'bias': np.ones((1, 2, 4, 3, 5))}, r'^bias must .* to \(2, 4, 3, 5\), but got \(1, 2, 4'),
    ({'logit_cap': float('inf')}, r'logit cap must be a finite number above 0, but got inf\.$'),
    ({'logit_cap': 1e-45}, r'logit cap must be a number in the range of float32, but got 1e-45\.$'),
    ({'scale': float('nan')}, r'^The scale must be a finite number, but got nan\.$'),
    ({'scale': -float('inf')}, r'^The scale must be a finite number, but got -inf\.$'),
    ({'scale': np.float64(1e39)}, r'scale must be .* range of float32, but got .*1e\+39\)\.$'),
    ({'scale': 10**400}, r'scale must be a finite number, but got an integer of 401 digits\.$'),
    ({'dropout_rate': float('nan')}, r'dropout rate must be .* 0 and below 1, but got nan\.$'),
    ({'implementation': ['dense']}, r"implementation must be .* but got \['dense'\]\.$"),
    ({'q': Q[:, :, :0]}, r'^q must have heads of a width of at least 1, but got shape'),
    ({'q': Q[..., :0], 'k': K[..., :0]}, r'^q must have heads of a width of at least 1, but got'),
    ({'q': Q.swapaxes(1, 2), 'k': K.swapaxes(1, 2), 'v': K.swapaxes(1, 2)},
     r'with 3 and 5 tokens, as there are ids, but got \(2, 4, 3, 6\) and \(2, 2, 5, 6\), where h'),
    ({'scheme': 'rop'}, r"^Unknown scheme 'rop'; did you mean"),
    ({'causal': True, 'q_order': NAN}, r'^q_order must be .* got NaN\.$'),
    ({'window': 2, 'k_order': np.array([0.0, np.nan, 1, 2, 3])}, r'^k_order must be .* got NaN\.$'),
    ({'causal': True, 'k_pos': jnp.full(5, jnp.nan)}, r'^k_pos must be .* but got NaN\.$'),
    ({'k_pos': np.arange(5) + 2**31 - 2},
     r'^k_pos must fit int32 unless .* but got numbers from 2147483646 to 2147483650\.$'),
    ({'window': 0}, r'window must be an integer of at least 1 .* or None, but got 0\.$'),
    ({'logit_cap': 0.0}, r'logit cap must be a finite number above 0, but got 0\.0\.$'),
    ({'logit_cap': float('nan')}, r'logit cap must be a finite number above 0, but got nan\.$'),
    ({'dropout_rate': 1.0}, r'dropout rate must be a finite .* 0 and below 1, but got 1\.0\.$'),
    ({'dropout_rate': -0.1}, r'dropout rate must be a finite .* 0 and below 1, but got -0\.1\.$'),
    ({'dropout_rate': 0.1}, r'A dropout rate of 0\.1 needs a dropout_key, but got none\.$'),
    ({'q_segments': ids(3)}, r'^q_segments need k_segments as well, but got none\.$'),
    ({'k_segments': ids(5)}, r'^k_segments need q_segments as well, but got none\.$'),
    ({'sinks': jnp.ones(2)}, r'sinks must be one per head, shape \(4,\), but got \(2,\)\.$'),
    ({'q_pos': ids(4)}, r'^q_pos must be \(2, 3\), with or without the batch, but got \(4,\)\.$'),
    ({'k_pos': ids(2, 3)}, r'^k_pos must be \(2, 5\), with or without .* got \(2, 3\)\.$'),
    ({'k_pos': ids(3, 5)}, r'^k_pos must be \(2, 5\), with or without the batch, but got \(3, 5\)'),
    ({'q_pos': ids(2, 3, 1)}, r'^q_pos must be \(2, 3\), with or without .* got \(2, 3, 1\)\.$'),
    ({'q_pos': ids()}, r'^q_pos must be \(2, 3\), with or without the batch, but got \(\)\.$'),
    ({'q_order': ids(2)}, r'^q_order must be \(2, 3\), with or without .* got \(2,\)\.$'),
    ({'k_order': ids(1, 1, 5)}, r'^k_order must be \(2, 5\), .* but got \(1, 1, 5\)\.$'),
    ({'q_segments': ids(2), 'k_segments': ids(5)}, r'^q_segments must be \(2, 3\), .* \(2,\)\.$'),
    ({'mask': seen(5, 3)}, r'^The mask .* \(2, 4, 3, 5\) .* or to \(3, 5\), but got \(5, 3\)\.$'),
    ({'mask': seen(2, 3, 5)}, r'mask must broadcast to .* but got \(2, 3, 5\)\.$'),
    ({'mask': seen(2, 2, 3, 5)}, r'mask must broadcast to .* but got \(2, 2, 3, 5\)\.$'),
    ({'mask': seen(1, 3, 5)}, r'mask must broadcast to .* but got \(1, 3, 5\)\.$'),
    ({'mask': seen(2, 4, 2, 5)}, r'mask must broadcast to .* but got \(2, 4, 2, 5\)\.$'),
    ({'mask': seen(5)}, r'mask must broadcast to .* but got \(5,\)\.$'),
  ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_was_expected_and_got(options, message):
  with pytest.raises(ValueError, match=message):
    attend(**options)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'q': Q.astype(int)}, r'^q must be float16, bfloat16 or wider, but got int32\.$'),
    ({'k': K > 0}, r'^k must be float16, bfloat16 or wider, but got bool\.$'),
    ({'v': np.ones(K.shape, np.uint8)}, r'^v must be float16, bfloat16 or wider, but got uint8\.$'),
    ({'q': Q.astype(jnp.float8_e4m3fn)}, r'^q must be float16, bfloat16 or wider, but got float8_'),
    ({'q': Q.tolist()}, r'^q must be an array of JAX or NumPy, but got \[\[.*\.$'),
    ({'k': None}, r'^k must be an array of JAX or NumPy, but got None\.$'),
    ({'v': 'v'}, r"^v must be an array of JAX or NumPy, but got 'v'\.$"),
    ({'v': np.full(K.shape, 'v')}, r'^v must be an array of numbers, but got <U1\.$'),
    ({'q_pos': None}, r'^q_pos must be an array of JAX or NumPy, but got None\.$'),
    ({'k_pos': range(5)}, r'^k_pos must be an array of JAX or NumPy, but got range\(0, 5\)\.$'),
    ({'mask': [[True]]}, r'^mask must be an array of JAX or NumPy, but got \[\[.*\.$'),
    ({'sinks': 0.5}, r'^sinks must be an array of JAX or NumPy, but got 0\.5\.$'),
    ({'sinks': jnp.ones(4, int)}, r'^sinks must be float16, bfloat16 or wider, but got int32\.$'),
    (
      {'scheme': None},
      r'^The scheme must be a Scheme, or a line for posjax\.get, but got None',
    ),
    (
      {'scheme': posjax.schemes},
      r'^The scheme must be a Scheme, or .* but got the module posjax\.schemes\.$',
    ),
    ({'window': (1, 2.0)}, r'^right of the window must be an integer .*, or None, but got 2\.0\.$'),
    ({'bias': np.ones((3, 5), bool)}, r'^bias must be .* got bool; pairs are hidden by mask'),
    ({'bias': np.ones((3, 5), int)}, r'^bias must be float16, bfloat16 or wider, but got int'),
    ({'bias': [0.0]}, r'^bias must be an array of JAX or NumPy, but got'),
    (
      {'window': float('nan')},
      r'^The window must be an integer .*, a pair \(left, right\), or None, but got nan\.$',
    ),
    (
      {'window': 1.5},
      r'^The window must be an integer .*, a pair \(left, right\), or None, but got 1\.5\.$',
    ),
    (
      {'window': True},
      r'^The window must be an integer .*, a pair \(left, right\), or None, but got True\.$',
    ),
    (
      {'window': jnp.ones(2, int)},
      r'must be an integer .* or None, but got an array int32\[2\]\.$',
    ),
    ({'causal': 'no'}, r"^causal must be True or False, but got 'no'\.$"),
    ({'causal': 1}, r'^causal must be True or False, but got 1\.$'),
    (
      {'logit_cap': '3'},
      r"^The logit cap must be a finite number above 0, or None, but got '3'\.$",
    ),
    (
      {'logit_cap': True},
      r'^The logit cap must be a finite number above 0, or None, but got True\.$',
    ),
    ({'scale': 1j}, r'^The scale must be a finite number, but got 1j\.$'),
    (
      {'scale': jnp.ones((4, 1, 1))},
      r'^The scale must be a finite number, but got an array float32\[',
    ),
    ({'dropout_rate': None}, r'^The dropout rate must be a finite number, but got None\.$'),
    (
      {'dropout_key': 0},
      r'^dropout_key must be one random key, as jax\.random\.key\(0\), but got 0\.$',
    ),
    (
      {'dropout_key': jnp.ones(2)},
      r'^dropout_key must be one random key, .* an array float32\[2\]',
    ),
    (
      {'dropout_key': jax.random.split(jax.random.key(0))},
      r'^dropout_key must be one random key, as',
    ),
    ({'mask': jnp.ones((3, 5))}, r'^The mask must be boolean, True may attend, but got float32\.$'),
    (
      {'mask': jnp.ones((3, 5), jnp.int32)},
      r'mask must be boolean, True may attend, but got int32',
    ),
    (
      {'q_pos': ids(3, dtype=jnp.bfloat16)},
      r'^q_pos must be signed integers or float32, but got bfloat16',
    ),
    (
      {'k_pos': ids(5, dtype=jnp.float16)},
      r'^k_pos must be signed integers or float32, but got float16',
    ),
    ({'k_pos': ids(5, dtype=bool)}, r'^k_pos must be signed integers or float32, but got bool\.$'),
    (
      {'q_order': ids(3, dtype=jnp.bfloat16)},
      r'^q_order must be signed integers or float32, but got',
    ),
    (
      {'q_segments': ids(3, dtype=jnp.float32), 'k_segments': ids(5)},
      r'^q_segments must be integers, but got float32\.$',
    ),
    (
      {'q_segments': ids(3), 'k_segments': ids(5, dtype=bool)},
      r'^k_segments must be integers, but got bool\.$',
    ),
  ],
)
def test_dtypes_that_would_lose_something_are_refused(options, message):
  with pytest.raises(TypeError, match=message):
    attend(**options)


@pytest.mark.parametrize('rule', [{'causal': True}, {'window': 3}])
def test_changed_ids_are_no_order(rule):
  order = {'q_order': ids(3), 'k_order': ids(5)}
  for missing in ({}, {'q_order': ids(3)}, {'k_order': ids(5)}):
    with pytest.raises(
      ValueError, match=r'changes the ids, so causal and window need q_order and k'
    ):
      attend(scheme=MOVED, params={}, model_places=True, **rule, **missing)
  assert attend(scheme=MOVED, params={}, model_places=True, **rule, **order).shape == Q.shape
  assert attend(scheme=MOVED, params={}, model_places=True).shape == Q.shape


@pytest.mark.parametrize('rule', [{'causal': True}, {'window': 3}])
def test_two_ids_per_token_are_no_order(rule):
  options = {
    'scheme': STREETS, 'params': {'slopes': jnp.ones((4, 2))}, 'q_pos': ids(3, 2),
    'k_pos': ids(2, 5, 2),
  }  # fmt: skip
  with pytest.raises(
    ValueError, match=r'There are 2 ids per token, so causal and window need q_order'
  ):
    attend(**options, **rule)
  assert attend(**options).shape == Q.shape
  assert attend(**options, **rule, q_order=ids(3), k_order=ids(5)).shape == Q.shape


@pytest.mark.parametrize('rule', [{'causal': True}, {'window': 3}])
def test_two_ids_per_token_are_no_order_where_the_scheme_takes_any_number(rule):
  scheme = Scheme(traits=Traits(axes=0))
  options = {'scheme': scheme, 'params': {}, 'q_pos': ids(2, 3, 2), 'k_pos': ids(2, 5, 2)}
  with pytest.raises(
    ValueError, match=r'There are 2 ids per token, so causal and window need q_order'
  ):
    attend(**options, **rule)
  assert attend(**options).shape == Q.shape


@pytest.mark.parametrize(
  ('shape', 'shown'), [((3,), r'\(3,\)'), ((2, 3), r'\(2, 3\)'), ((2, 3, 3), r'\(2, 3, 3\)')]
)
def test_a_scheme_of_two_axes_wants_two_ids_per_token(shape, shown):
  expected = rf'^q_pos must be \(2, 3, 2\), with or without the batch, but got {shown}\.$'
  with pytest.raises(ValueError, match=expected):
    attend(scheme=STREETS, params={'slopes': jnp.ones((4, 2))}, q_pos=ids(*shape), k_pos=ids(5, 2))


def test_a_scheme_that_prepares_wants_both_sides():
  at = {'total': jnp.zeros((2, 3, 4))}
  for given in ({}, {'q_at': at}, {'k_at': at}):
    with pytest.raises(
      ValueError, match=r'prepares its sides, so q_at and k_at must be given: par'
    ):
      attend(scheme=GATES, params=PARAMS, **given)


@pytest.mark.parametrize('shape', [(2, 4, 4), (3, 3, 4), (3, 4), (2,)])
def test_prepared_sides_begin_with_the_tokens(shape):
  side = {'total': jnp.zeros((2, 5, 4))}
  with pytest.raises(ValueError, match=r'^q_at.* must .*, but got'):
    attend(
      scheme=GATES, params={'w': jnp.ones((24, 4))}, q_at={'total': jnp.zeros(shape)}, k_at=side
    )


def test_errors_come_when_traced_and_not_when_run():
  with pytest.raises(ValueError, match='window must be an integer of at least 1'):
    jax.eval_shape(lambda q: attend(q=q, window=0), Q)


def test_numbers_that_decide_what_is_computed_must_be_known_when_traced():
  for name in ('window', 'logit_cap', 'dropout_rate'):
    with pytest.raises(TypeError, match='must be known when JAX traces the program, but got'):
      jax.eval_shape(lambda x, name=name: attend(**{name: x}), 3)
  with pytest.raises(TypeError, match='causal must be True or False, but got'):
    jax.eval_shape(lambda x: attend(causal=x), True)


def test_a_traced_scale_has_a_gradient_in_the_reference_and_is_refused_elsewhere():
  total = lambda scale, **how: attend(q=0.1 * PAIRS, k=KEYS, v=KEYS, scale=scale, **how).sum()
  step = 1e-2
  difference = (total(0.3 + step) - total(0.3 - step)) / (2 * step)
  np.testing.assert_allclose(jax.grad(total)(0.3), difference, rtol=1e-2)
  for name in ('blockwise', 'pallas', 'cudnn'):
    with pytest.raises(ValueError, match=f"A traced scale needs .*'dense', but got '{name}'"):
      jax.eval_shape(lambda x, name=name: total(x, implementation=name), 0.3)
  with pytest.raises(
    TypeError, match='A traced scale must be one real number, but got an array int32'
  ):
    jax.eval_shape(total, 1)


def test_numbers_may_be_those_of_numpy_and_jax():
  like = attend(q=PAIRS, k=KEYS, v=KEYS, window=2, scale=0.5, logit_cap=3.0, causal=True)
  for kind in (np, jnp):
    rest = {'scale': kind.float32(0.5), 'logit_cap': kind.float32(3), 'causal': np.True_}
    same = attend(q=PAIRS, k=KEYS, v=KEYS, window=kind.int32(2), **rest)
    np.testing.assert_array_equal(same, like)


def test_arrays_may_be_those_of_numpy_and_the_scheme_a_line():
  pos = {'q_pos': np.arange(3), 'k_pos': np.arange(5)}
  out = attend(*map(np.asarray, (PAIRS, KEYS, KEYS)), 'alibi', PARAMS, **pos, causal=True)
  pos = {name: jnp.asarray(x) for name, x in pos.items()}
  np.testing.assert_array_equal(out, attend(PAIRS, KEYS, KEYS, **pos, causal=True))


@pytest.mark.slow
def test_a_mask_may_have_size_1_along_every_axis():
  """As Flax's: [B, 1, 1, S] hides keys, [B, 1, T, 1] blanks queries."""
  whole, draw = (2, 4, 3, 5), np.random.default_rng(3)
  out = lambda mask, **how: attend(q=PAIRS, k=KEYS, v=KEYS, mask=mask, **how)
  for shape in ((2, 4, 3, 1), (1, 5), (2, 1, 1, 5)):
    mask = jnp.asarray(draw.random(shape) < 0.6)
    full = out(jnp.broadcast_to(mask, whole))
    np.testing.assert_allclose(out(mask), full, atol=1e-6)
  for name in ('blockwise', 'pallas', 'cudnn'):
    np.testing.assert_allclose(out(mask, implementation=name), full, atol=1e-6)
  for shape in itertools.product(*((1, n) for n in whole)):
    assert inputs.make_mask(jnp.ones(shape, bool), Q, K).shape == (*shape[:2], 3, 5)


def test_a_mask_of_several_leading_axes_may_lack_some_of_their_rows():
  q, k = jnp.ones((7, 2, 3, 4, 6)), jnp.ones((7, 2, 5, 2, 6))
  mask = jnp.arange(7).reshape(7, 1, 1, 1, 1) % 2 == 0
  expected = jnp.broadcast_to(mask, (7, 2, 1, 3, 5)).reshape(14, 1, 3, 5)
  np.testing.assert_array_equal(inputs.make_mask(mask, q, k), expected)


@pytest.mark.parametrize('implementation', sorted(posjax.attention.IMPLEMENTATIONS))
def test_nothing_to_compute_gives_nothing_and_no_keys_give_zeros(implementation):
  how = {'implementation': implementation}
  count = min(2, jax.device_count())
  with jax.set_mesh(jax.make_mesh((count,), ('context',), axis_types=(AxisType.Auto,))):
    assert attend(q=Q[:, :0], q_pos=ids(0), **how).shape == (2, 0, 4, 6)
    assert attend(q=Q[:0], k=K[:0], v=K[:0], **how).shape == (0, 3, 4, 6)
    assert attend(v=K[..., :0], **how).shape == (2, 3, 4, 0)
    blind = attend(k=K[:, :0], v=K[:, :0].astype(jnp.bfloat16), k_pos=ids(0), **how)
  np.testing.assert_array_equal(blind, jnp.zeros(Q.shape, jnp.bfloat16))


def test_a_dropout_key_without_a_rate_drops_nothing():
  rules = inputs.make_rules(Q, None, False, None, None, 0.0, jax.random.key(0), False)
  assert rules.dropout_rate == 0


def test_the_scale_is_that_of_the_incoming_width():
  assert inputs.make_rules(Q, None, False, None, None, 0.0, None, False).scale == 6**-0.5
  assert inputs.make_rules(Q, 2.0, False, None, None, 0.0, None, False).scale == 2.0


def test_a_side_holds_what_travels_with_its_tokens_flattened():
  x = jnp.arange(2 * 3 * 5 * 4 * 6.0).reshape(2, 3, 5, 4, 6)
  side = inputs.make_side('q', x, ALIBI, jnp.arange(5))
  assert side.raw.shape == (6, 5, 4, 6)
  np.testing.assert_array_equal(side.at, jnp.tile(jnp.arange(5), (6, 1)))
  for field in (side.pos, side.order):
    np.testing.assert_array_equal(field, jnp.arange(5)[None])
  np.testing.assert_array_equal(side.segments, jnp.ones((1, 5)))
  np.testing.assert_array_equal(side.index, jnp.arange(5))


def test_parameters_that_are_missing_are_asked_for(unchecked):
  with pytest.raises(ValueError, match=r"but got params\['slopes'\] missing"):
    attend(params={})
  chained = posjax.get('rope+alibi')
  with pytest.raises(TypeError, match=r'a tuple of 2 dicts, as from posjax\.init.*but got {'):
    attend(scheme=chained, params=PARAMS)
  with pytest.raises(ValueError, match='missing'):
    attend(scheme=chained, params=({}, {}))


def test_a_bias_without_its_heads_is_refused(unchecked):
  flat = posjax.Scheme(bias=lambda params, distance: -abs(distance).astype(jnp.float32))
  with pytest.raises(ValueError, match=r'bias must return \[H, 1, 3, 5\], heads first, but got'):
    attend(scheme=flat, params={})


def test_narrow_ids_are_widened_before_they_can_wrap():
  """127 - (-128) is 255, which int8 cannot hold; 3 - 5 is -2, which uint8 cannot."""
  wide = attend(q_pos=jnp.array([127, 3, 0]), k_pos=jnp.array([-128, 5, 0, 1, 2]))
  for dtype in (jnp.int8, jnp.int16):
    ids = {'q_pos': jnp.array([127, 3, 0], dtype), 'k_pos': jnp.array([-128, 5, 0, 1, 2], dtype)}
    np.testing.assert_array_equal(attend(**ids), wide)
  unsigned = {'q_pos': jnp.arange(3, dtype=jnp.uint8), 'k_pos': jnp.arange(5, dtype=jnp.uint8)}
  signed = {'q_pos': jnp.arange(3), 'k_pos': jnp.arange(5)}
  np.testing.assert_array_equal(attend(**unsigned), attend(**signed))


def test_unsigned_ids_that_no_signed_one_holds_are_refused(unchecked):
  with pytest.raises(TypeError, match='k_pos must be signed integers or float32, but got uint32'):
    attend(k_pos=jnp.arange(5, dtype=jnp.uint32))


def test_layers_and_the_hook_take_arrays_of_numpy_inside_all_transformations(unchecked):
  x, numbers = jnp.ones((1, 4, 16)), np.arange(4)
  scheme, order = posjax.get('rope'), {'order': numbers, 'segments': numbers + 1}
  layer = posjax.nnx.Attention(16, 2, scheme, causal=True, rngs=nnx.Rngs(0))
  module = posjax.linen.Attention(16, 2, scheme, causal=True)
  params = module.init(jax.random.key(0), x, numbers)
  hook = posjax.attention_fn(scheme, {}, q_pos=numbers, q_order=numbers, q_segments=numbers + 1)
  for run in (
    lambda x: layer(x, numbers, **order),
    lambda x: module.apply(params, x, numbers, **order),
    lambda x: hook(*[x.reshape(1, 4, 2, 8)] * 3, is_causal=True).reshape(x.shape),
  ):
    branch = lambda x, run=run: jax.lax.cond(True, jax.checkpoint(run), run, x)
    loop = lambda x, branch=branch: jax.lax.scan(lambda _, x: (None, branch(x)), None, x[None])[1]
    assert jax.eval_shape(jax.jit(loop), x).shape == (1, *x.shape)
  with pytest.raises(ValueError, match=r'pos must fit int32 .* from 0 to 3000000000'):
    layer(x, numbers * 10**9)


def test_ids_of_numpy_that_float32_would_move_are_refused(unchecked):
  assert attend(q_pos=np.arange(3) / 3).shape == Q.shape
  for far in (2.0**24 + 1, 1e6 + 0.01):
    with pytest.raises(ValueError, match='q_pos must be integers, or float64 numbers that float'):
      attend(q_pos=np.array([0, 1, far]))


RETURNED = {
  'query': lambda params, q, at: q[:, :2],
  'key': lambda params, k, at: k[:, :, :1],
  'values.value': lambda params, v, at: v[:, :2],
  'logits': lambda params, logits, q, k, q_at, k_at: logits[:, :1],
  'values.add': lambda params, weights, q_at, k_at: weights.sum(-1, keepdims=True),
  'values.output': lambda params, out, at: out[:, :1],
}


@pytest.mark.parametrize('implementation', ['dense', 'blockwise'])
@pytest.mark.parametrize('place', RETURNED)
def test_a_place_that_returns_other_axes_is_refused(place, implementation):
  field, _, part = place.partition('.')
  function = RETURNED[place]
  scheme = Scheme(**{field: Values(**{part: function}) if part else function})
  with pytest.raises(ValueError, match=rf"The scheme's {place} must return \[2, .* but got shape"):
    attend(scheme=scheme, params={}, implementation=implementation)


def test_place_2_makes_heads_of_one_width():
  wider = Scheme(query=lambda params, q, at: jnp.concatenate([q, q], -1))
  with pytest.raises(ValueError, match='heads of one width, but got 12 and 6'):
    attend(scheme=wider, params={})


@pytest.mark.parametrize('implementation', ['dense', 'blockwise'])
def test_an_infinite_sink_takes_all_and_another_head_keeps_its_gradient(implementation):
  def run(sinks):
    return attend(q=PAIRS, k=KEYS, v=KEYS, sinks=sinks, implementation=implementation)

  sinks = jnp.array([jnp.inf, 0, -jnp.inf, 1])
  np.testing.assert_array_equal(run(sinks)[:, :, 0], 0)
  slopes = jax.grad(lambda sinks: run(sinks).sum())(sinks)
  assert jnp.isfinite(slopes).all()
  assert slopes[1] != 0


@pytest.mark.parametrize('line', ['sinusoidal', 'learned(max_length=9)', 'randomized(99)+alibi'])
def test_a_scheme_that_acts_before_the_first_layer_needs_a_model_that_says_so(line):
  scheme = posjax.get(line)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(24, 4, 6))
  with pytest.raises(ValueError, match=r'before the first layer .* but got model_places=False'):
    attend(scheme=scheme, params=params)
  assert attend(scheme=scheme, params=params, model_places=True).shape == Q.shape
