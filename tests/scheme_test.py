"""The record itself: what its defaults do, and how parameters are made, merged and split."""

import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax import scheme as record
from posjax.scheme import Dims, Scheme, Tiled, Traits, Values, declares, merge, places, split
from tests.support.toy_schemes import TOYS

DIMS = Dims(width=12, num_heads=4, head_dim=6, num_kv_heads=2, vocab=7)
PLACES = ('ids', 'embed', 'query', 'key', 'logits', 'bias', 'values')


def test_a_default_field_hands_back_what_it_got():
  scheme, x = Scheme(), jnp.arange(24.0).reshape(1, 2, 3, 4)
  pos, params = jnp.array([[3, 4]]), {'a': x}
  assert scheme.ids(pos, jax.random.key(0)) is pos
  assert scheme.embed(params, x, None, pos) is x
  assert posjax.prepare(scheme, params, x[:, :, 0], pos) == (params, pos)
  assert scheme.query(params, x, pos) is x
  assert scheme.key(params, x, pos) is x
  assert scheme.values.value(params, x, pos) is scheme.values.output(params, x, pos) is x
  assert scheme.logits(params, x, x, x, pos, pos) is x
  assert scheme.init(jax.random.key(0), DIMS) == scheme.init_model(jax.random.key(0), DIMS) == {}
  assert scheme.bias is scheme.values.add is None
  assert scheme.traits == (1, '', (), Tiled(), ())
  assert scheme.parts == ()


def test_two_schemes_that_do_nothing_are_equal_and_hash_alike():
  assert Scheme() == Scheme()
  assert hash(Scheme()) == hash(Scheme())


def filled(place):
  function = lambda *args: None
  return Values(add=function) if place == 'values' else function


@pytest.mark.parametrize('place', PLACES)
def test_places_names_a_field_that_is_set(place):
  scheme = Scheme(**{place: filled(place)})
  assert places(scheme) == (place,)
  assert declares(scheme, place)
  assert not any(declares(scheme, other) for other in Scheme._fields if other != place)


def test_places_are_in_the_order_in_which_they_act():
  scheme = Scheme(**{place: filled(place) for place in reversed(PLACES)})
  assert places(scheme) == PLACES
  assert places(Scheme()) == ()


def test_parameters_are_no_place():
  assert places(Scheme(init=lambda key, dims: {'a': 1}, traits=Traits(fixed=('a',)))) == ()


PROTOCOLS = {
  **{'ids': 'IdsFn', 'embed': 'EmbedFn', 'init': 'InitFn', 'init_model': 'InitFn'},
  **{'prepare': 'PrepareFn', 'query': 'HeadsFn', 'key': 'HeadsFn', 'logits': 'LogitsFn'},
}


@pytest.mark.parametrize('field', PROTOCOLS)
def test_the_documented_protocols_name_the_arguments_of_the_defaults(field):
  """A scheme written from the protocol is called as the record's own defaults are."""
  protocol = getattr(record, PROTOCOLS[field])
  assert inspect.getdoc(protocol)
  documented = list(inspect.signature(protocol.__call__).parameters)[1:]
  assert list(inspect.signature(getattr(Scheme(), field)).parameters) == documented


def test_init_merges_what_the_model_and_the_layer_make_from_different_keys():
  draw = lambda name: lambda key, dims: {name: jax.random.normal(key, (dims.num_heads,))}
  params = posjax.init(Scheme(init_model=draw('a'), init=draw('b')), jax.random.key(0), DIMS)
  model_key, layer_key = jax.random.split(jax.random.key(0))
  np.testing.assert_array_equal(params['a'], jax.random.normal(model_key, (4,)))
  np.testing.assert_array_equal(params['b'], jax.random.normal(layer_key, (4,)))
  assert set(params) == {'a', 'b'}


def test_merge_goes_member_by_member():
  assert merge({'a': 1}, {'b': 2}) == {'a': 1, 'b': 2}
  assert merge(({'a': 1}, {}), ({'b': 2}, {'a': 3})) == ({'a': 1, 'b': 2}, {'a': 3})
  assert merge((), ()) == ()


def test_a_parameter_that_both_trees_hold_is_refused():
  with pytest.raises(ValueError, match=r"named once, but both trees hold \['a', 'c'\]"):
    merge({'a': 1, 'b': 2, 'c': 3}, {'c': 4, 'a': 5})
  with pytest.raises(ValueError, match=r"both trees hold \['a'\]"):
    merge(({}, {'a': 1}), ({}, {'a': 2}))


def test_members_of_different_number_are_not_merged():
  with pytest.raises(ValueError, match='of one scheme, but got 2 and 1 members'):
    merge(({}, {}), ({},))


def test_init_split_and_merge_refuse_what_is_no_scheme_key_or_tree(unchecked):
  dims, key = Dims(8, 2, 4), jax.random.key(0)
  for call, message in (
    (lambda: posjax.init('t5', key, dims), "must be a posjax.Scheme, .* but got 't5'"),
    (lambda: posjax.init(posjax.get('t5'), 7, dims), 'key must be one random key, .* but got 7'),
    (lambda: split(None, {}), 'must be a posjax.Scheme, .* but got None'),
    (lambda: split(Scheme, {}), 'must be a posjax.Scheme'),
    (lambda: split(posjax.get('rope'), 'x'), "must be a dict, as from posjax.init.* got 'x'"),
    (lambda: split(posjax.get('rope+alibi'), {}), 'must be a tuple of 2 dicts, .* but got {}'),
    (lambda: merge({}, 'x'), "must be dicts, .* but got 'x' as layer"),
    (lambda: merge(None, {}), 'must be dicts, .* but got None as model'),
    (lambda: merge({}, ({},)), 'must be dicts, .* as layer'),
  ):
    with pytest.raises(TypeError, match=message):
      call()
  with pytest.raises(ValueError, match=r'a tuple of 2 dicts, .* but got 1'):
    split(posjax.get('rope+alibi'), ({},))


def test_split_parts_constants_from_what_is_trained_and_merge_joins_them():
  scheme = Scheme(traits=Traits(fixed=('b',)))
  trained, fixed = split(scheme, {'a': 1, 'b': 2})
  assert (trained, fixed) == ({'a': 1}, {'b': 2})
  chained = posjax.chain(TOYS['stretched'], TOYS['two_tables'])
  params = posjax.init(chained, jax.random.key(0), DIMS)
  trained, fixed = split(chained, params)
  assert [set(part) for part in trained] == [set(), {'keys', 'values'}]
  assert [set(part) for part in fixed] == [{'slopes'}, set()]
  assert jax.tree.structure(merge(trained, fixed)) == jax.tree.structure(params)
  chex.assert_trees_all_equal(merge(trained, fixed), params)


def test_dims_know_their_defaults():
  assert Dims(8, 2, 4) == Dims(width=8, num_heads=2, head_dim=4, num_kv_heads=None, vocab=0)


@pytest.mark.parametrize('size', ['width', 'num_heads', 'head_dim', 'num_kv_heads', 'vocab'])
def test_a_size_is_a_positive_integer(size, unchecked):
  good = {'width': 12, 'num_heads': 4, 'head_dim': 6, 'num_kv_heads': 2, 'vocab': 7}
  wrong = [0.5, 4.0, '4', True, [4], {}, 1j, np.float32(4), np.ones(1), -1, 2**31, float('nan')]
  wrong += [] if size == 'vocab' else [0]
  wrong += [] if size == 'num_kv_heads' else [None]
  for value in wrong:
    for make in (lambda changed: Dims(**{**good, **changed}), lambda c: Dims(**good)._replace(**c)):
      with pytest.raises((TypeError, ValueError), match=f"^Dims' {size} must be an integer.* got"):
        make({size: value})


def test_sizes_of_numpy_become_pythons(unchecked):
  dims = Dims(np.int64(12), np.uint8(4), 6, None, np.int32(0))
  assert dims == (12, 4, 6, None, 0)
  assert {type(size) for size in dims} == {int, type(None)}
  assert isinstance(dims._replace(width=3), Dims)


def test_key_heads_divide_the_query_heads(unchecked):
  with pytest.raises(ValueError, match='key heads must divide the query heads, but got 3 and 4'):
    Dims(12, 4, 6, num_kv_heads=3)


def test_a_line_or_other_sizes_in_place_of_the_record_are_refused(unchecked):
  key = jax.random.key(0)
  for wrong in ('rope', None, 3, {}):
    for use in (places, posjax.chain, lambda scheme: posjax.init(scheme, key, DIMS)):
      with pytest.raises(TypeError, match=r'must be a posjax\.Scheme, .* but got'):
        use(wrong)
  for wrong in ((8, 2, 4), None, 'x', {'width': 8}):
    with pytest.raises(TypeError, match=r'must be a posjax\.Dims, but got'):
      posjax.init(Scheme(), key, wrong)
