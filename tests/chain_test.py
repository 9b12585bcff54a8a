"""`chain`: the order in which members act, and what belongs to whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.chain import chain
from posjax.scheme import Scheme, Traits, Values, declares, places
from tests.support.toy_schemes import TOYS

DIMS = posjax.Dims(width=12, num_heads=4, head_dim=6, num_kv_heads=2, vocab=7)
X = jnp.ones((1, 2, 3, 4))
POS = jnp.array([[0, 1]])


def scaled(n):
  """A scheme that leaves its number n in each place: 10 x + n, or n where places are summed."""
  return Scheme(
    ids=lambda pos, key: 10 * pos + n,
    embed=lambda params, x, tokens, pos: 10 * x + params['n'],
    init_model=lambda key, dims: {'n': jnp.float32(n)},
    init=lambda key, dims: {'m': jnp.float32(n)},
    query=lambda params, x, at: 10 * x + params['n'],
    key=lambda params, x, at: 10 * x + 2 * params['m'],
    logits=lambda params, logits, q, k, q_at, k_at: 10 * logits + params['n'],
    bias=lambda params, distance: params['n'] * distance[None],
    values=Values(
      value=lambda params, x, at: 10 * x + 3 * params['m'],
      output=lambda params, x, at: 10 * x + params['n'],
      add=lambda params, weights, q_at, k_at: params['n'] * weights,
    ),
  )


def one_array(key, dims):
  return {'a': jnp.ones(1)}


THREE = [scaled(n) for n in (1, 2, 3)]
PARAMS = tuple({'n': jnp.float32(n), 'm': jnp.float32(n)} for n in (1, 2, 3))


def test_ids_embed_query_key_value_and_logits_act_in_order():
  scheme = chain(*THREE)
  zeros = 0 * X
  assert scheme.ids(POS * 0, None).tolist() == [[123, 123]]
  assert scheme.embed(PARAMS, zeros, None, POS).max() == 123
  assert scheme.query(PARAMS, zeros, POS).max() == 123
  assert scheme.key(PARAMS, zeros, POS).max() == 246
  assert scheme.values.value(PARAMS, zeros, POS).max() == 369
  assert scheme.logits(PARAMS, zeros, X, X, POS, POS).max() == 123


def test_values_turn_back_in_reverse_order_each_with_its_own_parameters():
  """What the last member did to the values last is undone first."""
  assert chain(*THREE).values.output(PARAMS, 0 * X, POS).max() == 321
  assert chain(THREE[0], chain(*THREE[1:])).values.output(PARAMS, 0 * X, POS).max() == 321


def test_biases_and_additions_are_summed_over_those_that_have_them():
  scheme = chain(THREE[0], Scheme(logits=TOYS['cosine'].logits), THREE[2])
  params = (PARAMS[0], {}, PARAMS[2])
  np.testing.assert_array_equal(scheme.bias(params, POS), 4 * POS[None])
  np.testing.assert_array_equal(scheme.values.add(params, X, POS, POS), 4 * X)


@pytest.mark.parametrize('place', places(THREE[0]) + ('prepare',))
def test_a_chain_declares_what_some_member_declares(place):
  member = TOYS['forgetful'] if place == 'prepare' else THREE[0]
  only = Scheme(**{place: getattr(member, place)})
  other = Scheme(traits=Traits(axes=1))
  scheme = chain(only, other, other)
  assert places(scheme) == (() if place == 'prepare' else (place,))
  assert declares(scheme, 'prepare') == (place == 'prepare')


def test_chain_is_flat_associative_and_knows_its_identity():
  a, b, c = THREE
  padded = chain(Scheme(), a, chain(b, Scheme()), c)
  for nested in (chain(a, b, c), chain(chain(a, b), c), chain(a, chain(b, c)), padded):
    assert nested.parts == (a, b, c)
    np.testing.assert_array_equal(
      nested.query(PARAMS, X, POS), chain(a, b, c).query(PARAMS, X, POS)
    )
  assert chain(a) is a
  assert chain(Scheme(), a) is a
  assert chain() == chain(Scheme()) == chain(Scheme(), Scheme()) == Scheme()


def test_each_member_makes_parameters_of_its_own_from_its_own_key():
  draw = Scheme(init=lambda key, dims: {'a': jax.random.normal(key, (dims.width,))})
  params = chain(draw, draw, THREE[0]).init(jax.random.key(0), DIMS)
  assert [set(p) for p in params] == [{'a'}, {'a'}, {'m'}]
  keys = jax.random.split(jax.random.key(0), 3)
  for p, key in zip(params[:2], keys, strict=False):
    np.testing.assert_array_equal(p['a'], jax.random.normal(key, (12,)))


def test_parameters_shared_by_layers_stay_with_their_member():
  scheme = chain(TOYS['two_tables'], TOYS['wide'])
  model = scheme.init_model(jax.random.key(0), DIMS)
  layer = scheme.init(jax.random.key(1), DIMS)
  assert [set(p) for p in model] == [set(), {'u', 'v'}]
  assert [set(p) for p in layer] == [{'keys', 'values'}, {'w'}]
  assert [set(p) for p in posjax.merge(model, layer)] == [{'keys', 'values'}, {'u', 'v', 'w'}]


def test_random_members_draw_from_different_keys_and_none_without_a_key():
  drawn = Scheme(ids=lambda pos, key: pos if key is None else jax.random.bits(key, pos.shape))
  key = jax.random.key(0)
  by_member = [jax.random.bits(jax.random.fold_in(key, i), POS.shape) for i in (0, 1)]
  kept = Scheme(ids=lambda pos, key: pos + (0 if key is None else jax.random.bits(key, pos.shape)))
  np.testing.assert_array_equal(chain(drawn, kept).ids(POS, key), by_member[0] + by_member[1])
  np.testing.assert_array_equal(chain(drawn, kept).ids(POS, None), POS)


def test_each_member_sees_what_it_prepared_and_its_own_last():
  gates, plain = TOYS['forgetful'], TOYS['two_tables']
  scheme = chain(plain, gates, gates)
  params = scheme.init(jax.random.key(0), DIMS)
  x = jax.random.normal(jax.random.key(1), (1, 5, 12))
  pos = jnp.arange(5)[None]
  ready, at = posjax.prepare(scheme, params, x, pos)
  assert isinstance(ready, tuple)
  np.testing.assert_array_equal(at[0], pos)
  for i in (1, 2):
    np.testing.assert_array_equal(
      at[i]['total'], posjax.prepare(gates, params[i], x, pos)[1]['total']
    )
  last = jax.tree.map(lambda leaf: leaf[:, 2], at)
  _, rest = posjax.prepare(scheme, params, x[:, 3:], pos[:, 3:], last)
  for i in (1, 2):
    np.testing.assert_allclose(rest[i]['total'], at[i]['total'][:, 3:], rtol=1e-6)


def test_members_that_prepare_nothing_share_the_ids():
  scheme = chain(THREE[0], TOYS['two_tables'])
  assert not declares(scheme, 'prepare')
  assert posjax.prepare(scheme, PARAMS[:2], X[:, 0], POS)[1] is POS


def test_the_raw_heads_reach_every_member_however_the_first_turned_them():
  """Relative scores use q before place 2, so a key table beside a turn is relative still."""
  seen = []
  spy = Scheme(logits=lambda params, logits, q, k, q_at, k_at: (seen.append((q, k)), logits)[1])
  q = jax.random.normal(jax.random.key(0), (1, 2, 4, 6))
  posjax.attend(q, q, q, chain(posjax.get('rope'), spy), ({}, {}), q_pos=POS + 5, k_pos=POS)
  np.testing.assert_array_equal(seen[0][0], q)
  np.testing.assert_array_equal(seen[0][1], q)


def test_whole_axes_are_united():
  counted, mixing = TOYS['counted'], TOYS['mixing']
  assert chain(counted, mixing, counted).traits.mixes == 'HS'
  assert chain(THREE[0], THREE[1]).traits.mixes == ''


def test_ids_per_token_must_agree_where_they_are_stated():
  one, two, any_number = (Scheme(query=THREE[0].query, traits=Traits(axes=n)) for n in (1, 2, 0))
  assert chain(any_number, two).traits.axes == chain(two, any_number, two).traits.axes == 2
  assert chain(any_number, any_number).traits.axes == 0
  with pytest.raises(ValueError, match=r'agree on the ids per token, but they want \[1, 2\]'):
    chain(one, any_number, two)


def test_constants_of_a_member_are_its_own():
  chained = chain(*(Scheme(init=one_array, traits=Traits(fixed=f)) for f in (('a',), ())))
  assert posjax.split(chained, ({'a': 1}, {'a': 2})) == (({}, {'a': 2}), ({'a': 1}, {}))
