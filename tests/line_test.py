"""A scheme is shown as the line that makes it, and the line is no part of what it is."""

import ast
import copy
import importlib
import inspect
import math
import typing

import jax
import jax.numpy as jnp
import pytest

import posjax
from posjax import line
from posjax.arguments import checked
from posjax.scheme import Scheme, Traits
from posjax.schemes import alibi, dape, rope

# Arguments that come in pairs, or lists of a length.
OTHER = {
  ('complex_order', 'per_word'): {'per_word': False},
  ('deberta', 'buckets'): {'buckets': 32, 'max_distance': 64},
  ('fourier', 'groups'): {'groups': 2, 'axes': 2},
  ('mrope', 'scaled'): {'scaled': (1.0, 0.5, 0.25, 0.125)},
}


@checked
def pair(length: int = 9) -> Scheme:
  """A scheme of two, by one name."""
  return posjax.chain(posjax.get(f'randomized({length})'), posjax.get('rope'))


def module(name):
  return importlib.import_module(f'posjax.schemes.{name}')


def other_values(kind, default):
  """Values of the type of an argument beside its default; the constructor may refuse some."""
  if isinstance(default, bool):
    return [not default]
  if isinstance(default, int):
    return [default + 1, 2 * default, 3]
  if isinstance(default, float):
    return [1.5 * default, default / 2, 0.25, 2.0]
  if isinstance(default, str):
    return ['t5(num_buckets=8)', 'power', 'log', *typing.get_args(kind)]
  if isinstance(default, tuple):
    return [default + default]
  return [4, -0.5, 0.5, True]  # in place of None


def non_default_calls(name):
  """Arguments of calls that differ from the defaults, one argument in each."""
  constructor = module(name).scheme
  example = ast.parse(getattr(module(name), 'EXAMPLE', name), mode='eval').body
  named = example.keywords if isinstance(example, ast.Call) else []
  needed = {each.arg: ast.literal_eval(each.value) for each in named}
  kinds = typing.get_type_hints(inspect.unwrap(constructor))
  for argument, parameter in inspect.signature(constructor).parameters.items():
    if argument in needed:
      continue
    tried = [{argument: value} for value in other_values(kinds[argument], parameter.default)]
    for own in [OTHER[name, argument]] if (name, argument) in OTHER else tried:
      given = {**needed, **own}
      try:
        constructor(**given)
      except (ValueError, TypeError):
        continue
      if own[argument] != parameter.default:
        yield given
        break
    else:
      pytest.fail(f'{name} takes no other {argument} than its default: name one in OTHER.')
  if needed:
    yield needed


@pytest.mark.parametrize('name', posjax.names())
def test_the_repr_of_every_scheme_says_its_arguments_and_reads_back_to_it(name, unchecked):
  constructor = module(name).scheme
  defaults = {n: p.default for n, p in inspect.signature(constructor).parameters.items()}
  calls = [*non_default_calls(name), *([] if hasattr(module(name), 'EXAMPLE') else [{}])]
  for given in calls:
    made = constructor(**given)
    tree = ast.parse(repr(made), mode='eval').body  # by Python, not by posjax
    shown = {k.arg: ast.literal_eval(k.value) for k in getattr(tree, 'keywords', [])}
    assert (tree.func if shown else tree).id == name
    assert shown == {n: value for n, value in given.items() if value != defaults[n]}
    again = posjax.get(repr(made))
    assert repr(again) == repr(made)
    assert posjax.get(repr(again)) == again
    assert posjax.places(again) == posjax.places(made)


def test_equal_calls_are_one_scheme_however_they_are_written():
  one = posjax.get('rope(base=5e5)+alibi')
  assert repr(one) == 'rope(base=500000.0)+alibi'
  for written in ('rope(5e5)+alibi()', ' rope( base=500000 ) + alibi', repr(one)):
    assert posjax.get(written) is one
  assert posjax.get('rope(1e4)') is posjax.get('rope')
  assert posjax.get('rope(fraction=0.5, base=2)') is posjax.get('rope(base=2.0, fraction=0.5)')


def test_a_chain_shows_its_members_as_they_were_chained():
  mine = Scheme(bias=lambda params, distance: distance)
  two = posjax.chain(pair(), posjax.get('none'), alibi.scheme())
  assert len(two.parts) == 3
  assert repr(two) == f'{__name__}:pair+alibi'
  assert posjax.get(repr(two)).parts[1] is posjax.get('rope')
  assert repr(posjax.get(f'{__name__}:pair(7)').parts[0]) == 'randomized(max_length=7)'
  assert repr(posjax.chain(rope.scheme(), mine)) == 'rope+Scheme(bias=...)'
  assert posjax.chain(rope.scheme(), mine).line is None
  assert repr(posjax.get('none+none')) == 'none'


def test_a_scheme_by_hand_shows_the_fields_that_it_fills():
  by_hand = Scheme(
    init=lambda key, dims: {}, query=lambda params, x, at: x, traits=Traits(fixed=('a',))
  )
  assert repr(by_hand) == "Scheme(init=..., query=..., traits=Traits(fixed=('a',)))"
  assert repr(Scheme()) == 'Scheme()'
  changed = posjax.get('rope')._replace(traits=Traits(axes=2))
  assert (repr(changed), changed.line) == (
    'Scheme(query=..., key=..., traits=Traits(axes=2))',
    None,
  )


def test_the_line_is_no_part_of_equality_hash_pytree_or_of_what_jit_compiles():
  scheme, traced = rope.scheme(base=2.0), []
  other = scheme.with_line('another')
  assert repr(other) == 'another'
  assert other == scheme == Scheme(*scheme) == tuple(scheme)
  assert hash(other) == hash(scheme) == hash(tuple(scheme))
  assert len({scheme, other}) == 1
  assert scheme != rope.scheme(base=2.0)  # two calls make functions of their own
  leaves, structure = jax.tree.flatten(scheme)
  assert (leaves, structure) == jax.tree.flatten(other)
  assert jax.tree.unflatten(structure, leaves) == scheme
  assert scheme._fields == Scheme._fields
  assert len(scheme) == 11
  count = jax.jit(lambda x, scheme: (traced.append(scheme), x)[1], static_argnums=1)
  for each in (scheme, other, scheme, Scheme(*scheme)):
    count(jnp.ones(1), each)
  assert len(traced) == 1


def test_a_scheme_cannot_be_changed_and_copies_of_it_are_shown_alike():
  scheme = posjax.get('rope')
  for name in ('axes', 'line', 'new'):
    with pytest.raises(AttributeError):
      setattr(scheme, name, 3)
  assert copy.copy(scheme) == scheme
  assert repr(copy.copy(scheme)) == repr(copy.deepcopy(scheme)) == 'rope'


def test_a_scheme_as_an_argument_is_written_as_its_line():
  made = dape.scheme(posjax.get('t5(num_buckets=8)'), width=9)
  assert repr(made) == "dape(inner='t5(num_buckets=8)', width=9)"
  assert repr(dape.scheme(alibi.scheme())) == repr(dape.scheme()) == 'dape'
  assert dape.scheme(Scheme(bias=lambda params, distance: distance)).line is None


def test_a_constructor_that_no_line_reaches_makes_a_scheme_without_one():
  @checked
  def scheme(width: int = 3) -> Scheme:
    return Scheme(traits=Traits(axes=width))

  assert scheme().line is None


@pytest.mark.parametrize(
  'value',
  [
    (1,), (), [], [1, (2.5, None)], {'a': {'b': [True]}}, "it's \"x\"\n", 'ä', b'\xff', -1, 1e-300,
    math.inf, -math.inf, 5e5,
  ],
)  # fmt: skip
def test_a_literal_reads_back_and_is_printable_ascii(value):
  code = line.literal(value)
  assert code.isascii()
  assert code.isprintable()
  assert ast.literal_eval(code) == value
  assert type(ast.literal_eval(code)) is type(value)


def test_what_has_no_literal_has_none():
  for value in (math.nan, object(), print, [print], {'a': print}, (1, {print: 1}), jnp.ones(2)):
    assert line.literal(value) is None
    assert line.call('rope', (value,), {}) is None
    assert line.call('rope', (), {'base': value}) is None
