"""Schemes inside Flax's own attention modules: the numbers of `attend`, or a refusal."""

import jax
import jax.extend
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx

import posjax
import posjax.nnx
from tests.support.loops import error
from tests.support.programs import equations
from tests.support.toy_schemes import TOYS

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 12, 3
DIMS = posjax.Dims(WIDTH, HEADS, WIDTH // HEADS)
POS = jnp.arange(LENGTH) + 3
TOLERANCE = 1e-6
SCHEME = posjax.chain(posjax.get('rope'), TOYS['two_tables'])
PARAMS = posjax.init(SCHEME, jax.random.key(2), DIMS)
CAUSAL = POS[:, None] >= POS[None]


ANY = {'q_pos': POS, 'model_places': True}


def hook(scheme=SCHEME, params=PARAMS, **kwargs):
  return posjax.attention_fn(scheme, params, **({'q_pos': POS, 'frozen': True} | kwargs))


@pytest.fixture
def x():
  return jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))


def nnx_module(attention_fn, **kwargs):
  kwargs = {'attention_fn': attention_fn, 'decode': False, 'use_bias': False} | kwargs
  return nnx.MultiHeadAttention(HEADS, WIDTH, rngs=nnx.Rngs(0), **kwargs)


def linen_module(attention_fn, **kwargs):
  kwargs = {'attention_fn': attention_fn, 'use_bias': False} | kwargs
  return nn.MultiHeadDotProductAttention(HEADS, **kwargs)


def weights(module):
  """The kernels of an nnx module, as linen's parameters."""
  names = ('query', 'key', 'value', 'out')
  return {'params': {name: {'kernel': getattr(module, name).kernel[...]} for name in names}}


def reference(x, **kwargs):
  """`attend` between the projections that both modules have."""
  module = nnx_module(hook())
  q, k, v = module.query(x), module.key(x), module.value(x)
  kwargs = {'q_pos': POS, 'k_pos': POS} | kwargs
  return module.out(posjax.attend(q, k, v, SCHEME, PARAMS, **kwargs))


def test_both_modules_say_what_attend_says(x):
  module = nnx_module(hook())
  assert error(module(x), reference(x)) < TOLERANCE
  variables = weights(module)
  assert error(linen_module(hook()).apply(variables, x), reference(x)) < TOLERANCE


@pytest.mark.filterwarnings('ignore:SelfAttention will be deprecated:DeprecationWarning')
def test_self_attention_of_linen_says_what_attend_says(x):
  module = nn.SelfAttention(HEADS, use_bias=False, attention_fn=hook())
  assert error(module.apply(weights(nnx_module(hook())), x), reference(x)) < TOLERANCE


def test_causality_by_flag_argument_and_mask_is_the_same(x):
  expected = reference(x, causal=True)
  variables = weights(nnx_module(hook()))
  assert error(nnx_module(hook(causal=True))(x), expected) < TOLERANCE
  assert error(nnx_module(hook())(x, is_causal=True), expected) < TOLERANCE
  assert error(nnx_module(hook())(x, mask=CAUSAL[None, None]), expected) < TOLERANCE
  assert error(linen_module(hook(causal=True)).apply(variables, x), expected) < TOLERANCE
  mask = nn.make_causal_mask(jnp.ones((BATCH, LENGTH)), dtype=bool)
  assert error(linen_module(hook()).apply(variables, x, mask=mask), expected) < TOLERANCE


def test_a_bias_that_flax_hands_over_is_added_with_its_gradient():
  heads = jax.random.normal(jax.random.key(4), (3, BATCH, LENGTH, HEADS, WIDTH // HEADS))
  bias = POS[:, None] % 3 - CAUSAL / 2
  number = lambda bias: jnp.square(hook()(*heads, bias=bias[None, None])).sum()
  direct = lambda bias: jnp.square(
    posjax.attend(*heads, SCHEME, PARAMS, q_pos=POS, k_pos=POS, bias=bias)
  ).sum()
  both = lambda bias: [jax.value_and_grad(f)(bias) for f in (number, direct)]
  found, expected = jax.jit(both)(bias)
  assert error(found[0], expected[0]) < TOLERANCE
  assert error(found[1], expected[1]) < TOLERANCE
  assert abs(expected[1]).max() > 0.01


def test_windows_and_segments_are_those_of_attend(x):
  segments = jnp.array([1, 1, 2, 2, 2])
  expected = reference(x, window=2, q_segments=segments, k_segments=segments)
  assert error(nnx_module(hook(window=2, q_segments=segments))(x), expected) < TOLERANCE
  expected = reference(x, window=(0, 2))
  assert error(nnx_module(hook(window=(0, 2)))(x), expected) < TOLERANCE
  with pytest.raises(ValueError, match='right of the window must be 0 or None, but got 2'):
    hook(window=(0, 2), causal=True)
  with pytest.raises(ValueError, match='right of the window must be 0 or None, but got 2'):
    nnx_module(hook(window=(0, 2)))(x, is_causal=True)


def test_cross_attention_has_ids_of_its_own_for_the_keys(x):
  k_pos = jnp.array([9, 1, 4])
  module = nnx_module(hook(k_pos=k_pos))
  q, k, v = module.query(x), module.key(x[:, :3]), module.value(x[:, :3])
  out = posjax.attend(q, k, v, SCHEME, PARAMS, q_pos=POS, k_pos=k_pos)
  assert error(module(x, x[:, :3]), module.out(out)) < TOLERANCE


def test_a_scheme_that_changes_ids_is_causal_by_order(x):
  scheme = TOYS['stretched']
  params = posjax.init(scheme, jax.random.key(0), DIMS)
  hook = lambda *args, **kwargs: posjax.attention_fn(*args, **ANY, **kwargs)
  with pytest.raises(ValueError, match='changes the ids, so causal and window need q_order'):
    nnx_module(hook(scheme, params))(x, is_causal=True)
  found = nnx_module(hook(scheme, params, q_order=POS))(x, is_causal=True)
  expected = nnx_module(hook(scheme, params))(x, mask=CAUSAL[None, None])
  assert error(found, expected) < TOLERANCE


def test_dropout_is_drawn_per_head_and_only_when_not_deterministic(x):
  kwargs = {'dropout_rate': 0.5, 'broadcast_dropout': False}
  module = nnx_module(hook(), **kwargs)
  assert error(module(x, deterministic=True), reference(x)) < TOLERANCE
  draw = lambda seed: module(x, deterministic=False, rngs=nnx.Rngs(dropout=seed))
  assert error(draw(1), draw(1)) == 0
  assert error(draw(2), draw(1)) > 0.1
  linen, variables = linen_module(hook(), **kwargs), weights(module)
  draw = lambda s: linen.apply(variables, x, deterministic=False, dropout_rng=jax.random.key(s))
  assert error(draw(1), draw(1)) == 0
  assert error(draw(2), draw(1)) > 0.1


def test_bfloat16_is_near_float32(x):
  found = nnx_module(hook(), dtype=jnp.bfloat16)(x)
  assert found.dtype == jnp.bfloat16
  assert error(found.astype(jnp.float32), reference(x)) < 0.03


class Learned(nnx.Module):
  """A scheme's parameters, trained inside Flax's module."""

  def __init__(self, scheme, dims, pos, rngs):
    self.scheme = scheme
    self.pos = nnx.data(pos)
    self.table = nnx.data(jax.tree.map(nnx.Param, scheme.init(rngs.params(), dims)))

  def __call__(self, *args, **kwargs):
    params = {name: param[...] for name, param in self.table.items()}
    made = posjax.attention_fn(self.scheme, params, q_pos=self.pos, frozen=False)
    return made(*args, **kwargs)


def test_a_learned_scheme_is_trained_inside_flax(x):
  scheme = TOYS['two_tables']
  module = nnx_module(Learned(scheme, DIMS, POS, nnx.Rngs(4)))
  names = set(nnx.to_pure_dict(nnx.state(module, nnx.Param))['attention_fn']['table'])
  assert names == {'keys', 'values'}
  optimizer = nnx.Optimizer(module, optax.sgd(0.1), wrt=nnx.Param)

  @nnx.jit
  def step(module, optimizer):
    loss, gradients = nnx.value_and_grad(lambda module: jnp.square(module(x) - x).mean())(module)
    optimizer.update(module, gradients)
    return loss

  before = module.attention_fn.table['values'][...]
  losses = [float(step(module, optimizer)) for _ in range(5)]
  assert losses[-1] < losses[0]
  assert error(module.attention_fn.table['values'][...], before) > 1e-3


class LinenLearned(nn.Module):
  """The same in linen: the module that makes the function holds the parameters."""

  @nn.compact
  def __call__(self, x):
    params = self.param('positions', TOYS['two_tables'].init, DIMS)
    made = posjax.attention_fn(TOYS['two_tables'], params, q_pos=POS, frozen=False)
    return nn.MultiHeadDotProductAttention(HEADS, attention_fn=made)(x)


def test_a_learned_scheme_is_trained_in_linen_by_the_module_that_holds_it(x):
  module = LinenLearned()
  loss = lambda params: jnp.square(module.apply({'params': params}, x) - x).mean()
  gradient = jax.jit(lambda key: jax.grad(loss)(module.init(key, x)['params']))
  found = gradient(jax.random.key(0))['positions']
  assert {name: bool((abs(g) > 0).any()) for name, g in found.items()} == {
    'keys': True, 'values': True
  }  # fmt: skip


def test_parameters_that_flax_would_not_train_are_refused_or_frozen_by_name(x):
  table = posjax.get('t5+alibi')
  params = posjax.init(table, jax.random.key(0), DIMS)
  with pytest.raises(ValueError, match='which a Flax module would not see and not train: use pos'):
    posjax.attention_fn(table, params, q_pos=POS)
  constant = posjax.get('rope+alibi')  # nothing to train
  posjax.attention_fn(constant, posjax.init(constant, jax.random.key(0), DIMS), q_pos=POS)

  def out(params, frozen):
    q = x.reshape(BATCH, LENGTH, HEADS, -1)
    return posjax.attention_fn(table, params, q_pos=POS, frozen=frozen)(q, q, q).sum()

  gradients = jax.jit(lambda params: [jax.grad(out)(params, frozen) for frozen in (True, False)])
  held, moved = (found[0]['table'] for found in gradients(params))
  assert not held.any()
  assert moved.any()


def test_wrong_arguments_are_refused(x, unchecked):
  make = lambda scheme=SCHEME, params=PARAMS, **kwargs: posjax.attention_fn(
    scheme, params, **({'q_pos': POS, 'frozen': True} | kwargs)
  )
  heads = jnp.ones((2, len(POS), 4, 4))
  with pytest.raises(TypeError, match=r'scheme must be a posjax\.Scheme, as posjax\.get makes'):
    make('rope')
  with pytest.raises(TypeError, match=r'must be a tuple of 2 dicts, as from posjax\.init'):
    make(params={})
  with pytest.raises(ValueError, match=r'must be a tuple of 2 dicts, .* but got 1'):
    make(params=({},))
  for window, message in ((0, 'an integer of at least 1 .*, but got 0'), (1.5, 'an integer')):
    with pytest.raises((TypeError, ValueError), match=f'The window must be {message}'):
      make(window=window)
  with pytest.raises(ValueError, match=r"implementation must be None or one of .* got {'dense'}"):
    make(implementation={'dense'})(heads, heads, heads)
  for name in ('q_pos', 'k_pos', 'q_order', 'k_order', 'q_segments', 'k_segments'):
    with pytest.raises(TypeError, match=f'{name} must be an array, but got list'):
      make(**{name: [1, 2, 3, 4, 5]})
  for name in ('causal', 'model_places', 'frozen'):
    with pytest.raises(TypeError, match=f"{name} must be True or False, but got 'no'"):
      make(**{name: 'no'})
  with pytest.raises(TypeError, match=r'module must be one of Flax, .* but got 3'):
    make()(heads, heads, heads, module=3)


def test_masks_of_zeros_and_ones_are_those_of_flax_and_other_numbers_are_refused(x, unchecked):
  mask = nn.make_causal_mask(jnp.ones((BATCH, LENGTH)))  # float32 unless asked otherwise
  assert error(nnx_module(hook())(x, mask=mask), reference(x, causal=True)) < TOLERANCE
  with pytest.raises(ValueError, match='mask must hold True or False, or 1 and 0, but got other n'):
    nnx_module(hook())(x, mask=jnp.where(mask > 0, 0.0, -jnp.inf))
  with pytest.raises(TypeError, match=r'mask must be boolean, .* but got float32'):
    posjax.nnx.Attention(WIDTH, HEADS, rngs=nnx.Rngs(0))(x, POS, mask=mask)


def test_what_a_hook_cannot_see_is_refused():
  with pytest.raises(ValueError, match=r"layer's input, which Flax does not hand over; use posjax"):
    hook(TOYS['forgetful'], {})


def test_what_flax_asks_for_and_attend_does_not_do_is_refused(x):
  module = nnx_module(hook())
  q = module.query(x)
  with pytest.raises(ValueError, match=r'computes in float32, but got dtype=.*bfloat16'):
    hook()(q, q, q, dtype=jnp.bfloat16)
  cls = {'qk_attn_weights_einsum_cls': lambda: jnp.einsum}
  cls |= {'attn_weights_value_einsum_cls': lambda: jnp.einsum}
  with pytest.raises(ValueError, match='cannot honour qk_attn_weights_einsum, attn_weights_value'):
    linen_module(hook(), **cls).apply(weights(module), x)


def precisions(jaxpr):
  """The precision of each product of a program."""
  names = ((equation.primitive.name, equation.params) for equation in equations(jaxpr))
  return [params['precision'] for name, params in names if name == 'dot_general']


def test_a_precision_is_that_of_every_product_and_of_its_derivatives(x):
  q = x.reshape(BATCH, LENGTH, HEADS, -1)
  highest = jax.lax.Precision.HIGHEST
  for given in ('highest', highest, (highest, highest)):
    call = lambda q, given=given: hook()(q, q, q, precision=given).sum()
    found = set(precisions(jax.make_jaxpr(jax.grad(call))(q).jaxpr))
    assert found == {(highest, highest)}
  row = jnp.zeros((1, 512, 1, 4))  # so long that attention would be computed in tiles
  plain = posjax.attention_fn(posjax.Scheme(), {}, q_pos=jnp.arange(512))
  call = lambda row: plain(row, row, row, precision='highest').sum()
  assert set(precisions(jax.make_jaxpr(jax.grad(call))(row).jaxpr)) == {(highest, highest)}
  with pytest.raises(ValueError, match="precision needs implementation='dense', or None, but got"):
    hook(implementation='blockwise')(q, q, q, precision='highest')
  for wrong in ('huge', ('high', 'highest'), 3):
    with pytest.raises(ValueError, match=r'The precision must be one of .* for all products'):
      hook()(q, q, q, precision=wrong)


def test_weights_that_flax_stores_are_those_of_its_own_function(x):
  plain = posjax.attention_fn(posjax.Scheme(), {}, q_pos=POS)
  modules = nnx_module(nnx.dot_product_attention), nnx_module(plain)
  stored = []
  for module in modules:
    call = nnx.capture(module, nnx.Intermediate)
    _, found = call(x, mask=CAUSAL[None, None], sow_weights=True)
    stored.append(found['attention_weights'][0])
  assert stored[1].shape == (BATCH, HEADS, LENGTH, LENGTH)
  assert error(stored[1], stored[0]) < TOLERANCE
  kwargs = {'mask': CAUSAL[None, None], 'sow_weights': True, 'mutable': ['intermediates']}
  _, found = linen_module(plain).apply(weights(modules[0]), x, **kwargs)
  assert error(found['intermediates']['attention_weights'][0], stored[0]) < TOLERANCE
  with pytest.raises(ValueError, match="return_weights=True needs implementation='dense'"):
    nnx_module(hook(implementation='blockwise'))(x, sow_weights=True)


def test_dropout_as_flax_broadcasts_it_drops_the_same_pairs_everywhere(x):
  module = nnx_module(hook(), dropout_rate=0.5)  # Flax's default
  assert error(module(x, deterministic=True), reference(x)) < TOLERANCE
  call = jax.jit(lambda key: module(x, deterministic=False, rngs=nnx.Rngs(dropout=key)))
  draw = lambda seed: call(jax.random.key(seed))
  assert error(draw(1), draw(1)) == 0
  assert error(draw(2), draw(1)) > 0.1
  zeros = jnp.zeros((BATCH, LENGTH, HEADS, LENGTH))
  v = jnp.broadcast_to(jnp.eye(LENGTH)[None, :, None], zeros.shape)  # the output is the weights
  kwargs = {'dropout_rate': 0.5, 'deterministic': False, 'dropout_rng': jax.random.key(3)}

  def dropped(implementation, **more):
    call = posjax.attention_fn(posjax.Scheme(), {}, q_pos=POS, implementation=implementation)
    return jax.jit(lambda: call(zeros, zeros, v, **kwargs, **more))()

  left = dropped('dense')
  assert error(left, jnp.broadcast_to(left[:1, :, :1], left.shape)) == 0
  assert jnp.unique(left.round(4)).tolist() == pytest.approx([0.0, 2 / LENGTH])
  assert error(dropped('blockwise'), left) < TOLERANCE
  apart = dropped('dense', broadcast_dropout=False)
  assert error(apart, jnp.broadcast_to(apart[:1, :, :1], left.shape)) > 0.1


def test_values_of_another_kind_are_refused_in_the_call(x):
  heads = jnp.zeros((BATCH, LENGTH, 2, 8))
  for arguments, message in (
    ({'dropout_rate': jnp.nan}, 'nan'),
    ({'dropout_rate': 'x'}, "'x'"),
    ({'is_causal': 'no'}, "is_causal must be True or False, but got 'no'"),
    ({'deterministic': 'no'}, "deterministic must be True or False, but got 'no'"),
    ({'dtype': 'x'}, "dtype must be a dtype .* but got 'x'"),
  ):
    with pytest.raises((TypeError, ValueError), match=message):
      hook()(heads, heads, heads, **arguments)


def test_lengths_other_than_the_ids_are_refused(x):
  with pytest.raises(ValueError, match=r'q_pos must be \(2, 4\).*, but got \(5,\)'):
    nnx_module(hook())(x[:, :4])
  with pytest.raises(ValueError, match=r'k_pos must be \(2, 4\).*, but got \(5,\)'):
    nnx_module(hook())(x, x[:, :4])


def test_decoding_with_the_cache_of_flax_needs_the_ids_of_the_new_tokens(x, unchecked):
  module = nnx_module(hook(), decode=True)
  module.init_cache((BATCH, LENGTH, WIDTH))
  with pytest.raises(ValueError, match=r'q_pos must be \(2, 1\).*, but got \(5,\)'):
    module(x[:, :1])
  linen = linen_module(hook(), decode=True)
  variables = linen.init(jax.random.key(0), x)
  with pytest.raises(ValueError, match=r'q_pos must be \(2, 1\).*, but got \(5,\)'):
    linen.apply(variables, x[:, :1], mutable=['cache'])

  @jax.jit
  def step(cache, i):
    at_i = lambda array, axis: jax.lax.dynamic_slice_in_dim(array, i, 1, axis)
    made = linen_module(hook(q_pos=at_i(POS, 0), k_pos=POS), decode=True)
    y, changed = made.apply(weights(module) | {'cache': cache}, at_i(x, 1), mutable=['cache'])
    return changed['cache'], y[:, 0]

  _, out = jax.lax.scan(step, variables['cache'], jnp.arange(LENGTH))
  assert error(out.swapaxes(0, 1), reference(x, causal=True)) < 1e-5
