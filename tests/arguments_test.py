"""Arguments are read exactly, or refused by one sentence: one by one, and of every scheme."""

import ast
import importlib
import inspect
import re
from collections.abc import Sequence
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.arguments import Range, Share, checked, read

NAN, INF = float('nan'), float('inf')
ENDLESS = Annotated[float, Range(above=0, most=INF)]
# Python's and NumPy's own words, which no sentence of this library has.
RAW = re.compile(r'not supported|object (is|has)|unexpected|convert|truth value|has no len|operand')


@pytest.mark.parametrize(
  ('value', 'kind', 'expected'),
  [
    (True, bool, True),
    (np.bool_(False), bool, False),
    (3, int, 3),
    (np.uint8(3), int, 3),
    (-(2**31), int, -(2**31)),
    (2**32 - 1, Annotated[int, Range(0, 2**32 - 1)], 2**32 - 1),
    (3, float, 3.0),
    (np.float32(0.1), float, float(np.float32(0.1))),
    (np.int64(-2), float, -2.0),
    (-0.0, float, -0.0),
    ('x', str, 'x'),
    (None, int | None, None),
    (4, int | None, 4),
    ([1, np.int32(2)], Sequence[float], (1.0, 2.0)),
    (np.array([1, 2]), tuple[int, ...] | list[int], (1, 2)),
    ((), list[int], ()),
    (jnp.float32(0.5), Share, 0.5),
    (INF, ENDLESS, INF),
    (np.array(2), int, 2),
    ('b', Literal['a', 'b'], 'b'),
  ],
)
def test_what_a_type_holds_exactly_is_read_as_pythons_own(value, kind, expected):
  found = read(value, kind, 'it')
  assert found == expected
  assert type(found) is type(expected)
  if isinstance(expected, tuple):
    assert [type(entry) for entry in found] == [type(entry) for entry in expected]


@pytest.mark.parametrize(
  ('value', 'kind', 'error', 'words'),
  [
    ('False', bool, TypeError, "True or False, but got 'False'"),
    (1, bool, TypeError, 'True or False, but got 1'),
    (None, bool, TypeError, 'True or False, but got None'),
    (3.0, int, TypeError, 'an integer, but got 3.0'),
    (True, int, TypeError, 'an integer, but got True'),
    (np.float32(3), int, TypeError, 'an integer, but got '),
    (2**31, int, ValueError, 'an integer of 32 bits, but got 2147483648'),
    (
      -1,
      Annotated[int, Range(0, 2**32 - 1)],
      ValueError,
      'an integer from 0 to 4,294,967,295, but',
    ),
    ('3', float, TypeError, "a finite number, but got '3'"),
    (True, float, TypeError, 'a finite number, but got True'),
    (1j, float, TypeError, 'a finite number, but got 1j'),
    (jnp.ones(2), float, TypeError, 'a finite number, but got '),
    (NAN, float, ValueError, 'a finite number, but got nan'),
    (10**400, float, ValueError, 'a finite number, but got an integer of 401 digits'),
    (2**53 + 1, float, ValueError, 'a number that float64 holds exactly, but got 9007199254740993'),
    (1e300, float, ValueError, 'a number in the range of float32, but got '),
    (1e-300, float, ValueError, 'a number in the range of float32, but got 1e-300'),
    (3, str, TypeError, 'a string, but got 3'),
    ('\udcff', str, ValueError, r"Unicode text, but got '\\udcff'"),
    (0, ENDLESS, ValueError, 'a finite number above 0, or inf, but got 0'),
    (10**400, ENDLESS, ValueError, 'a finite number above 0, or inf, but got an integer of 401'),
    (1, Share, ValueError, 'a finite number of at least 0 and below 1, but got 1'),
    (NAN, Share | None, ValueError, 'a finite number of .* below 1, but got nan'),
    ('abd', Literal['abc', 'd'], ValueError, r"one of 'abc', 'd', .*; did you mean 'abc'\?"),
    (3, Literal['a', 'b'], TypeError, "one of 'a', 'b', but got 3"),
    (jnp.array([1]), int, TypeError, r'an integer, but got an array int32\[1\]'),
    ('x', int | None, TypeError, "an integer or None, but got 'x'"),
    (2**40, int | None, ValueError, 'an integer of 32 bits, but got 1099511627776'),
    ('12', list[int], TypeError, "a list of integers, but got '12'"),
    (np.ones((1, 1)), list[float], TypeError, 'a list of finite numbers'),
  ],
)
def test_what_a_type_does_not_hold_is_refused_by_one_sentence(value, kind, error, words):
  with pytest.raises(error, match=f'^it must be {words}'):
    read(value, kind, 'it')


def test_a_wrong_entry_of_a_list_is_named():
  with pytest.raises(TypeError, match=r"^it\[1\] must be a finite number, but got 'x'\.$"):
    read([1.0, 'x'], list[float], 'it')


def test_a_constructor_with_an_annotation_that_is_not_read_is_refused_at_once():
  with pytest.raises(TypeError, match='read by simple annotations, but got'):
    checked(lambda_with(dict[str, int] | None))


def lambda_with(annotation):
  def constructor(argument=None):
    return argument

  constructor.__annotations__['argument'] = annotation
  return constructor


# Every scheme.


def constructor_and_values(name):
  """A scheme's constructor, and for each argument a good value: its default, or its example's."""
  module = importlib.import_module(f'posjax.schemes.{name}')
  parameters = inspect.signature(module.scheme).parameters
  call = ast.parse(getattr(module, 'EXAMPLE', f'{name}()'), mode='eval').body
  values = {key: p.default for key, p in parameters.items()}
  values |= dict(zip(parameters, map(ast.literal_eval, call.args), strict=False))
  return module.scheme, values | {k.arg: ast.literal_eval(k.value) for k in call.keywords}


def wrong_for(value):
  """Values that cannot take the place of a good one, by its type."""
  never = [NAN, INF, -INF, 1j, b'x', {}, object(), 2**400, np.ones((2, 2))]
  if isinstance(value, bool):
    return [*never, 'False', 'True', '', None, 0, 1, 1.0, [], ()]
  if isinstance(value, int):
    return [*never, 'x', '3', None, True, 1.5, float(value), np.float32(value), [], [value], 2**31]
  if isinstance(value, float):
    return [*never, 'x', '3', None, True, [], [value], jnp.ones(2), 1e300]
  if isinstance(value, (tuple, list)):
    return [*never, 'x', None, True, 3, [None], ['x'], [[]], [NAN]]
  return [*never, True, [], [1]]  # None, where a number may be, or a string


@pytest.mark.parametrize('name', posjax.names())
def test_no_scheme_takes_an_argument_of_another_type(name):
  make, values = constructor_and_values(name)
  make(**values)
  for argument, value in values.items():
    for wrong in wrong_for(value):
      if wrong is None and (name, argument) == ('gaussian', 'b'):
        continue  # the constant 0
      with pytest.raises((TypeError, ValueError)) as refusal:
        make(**{**values, argument: wrong})
      sentence = str(refusal.value)
      assert re.search(rf"^{name}'s? {argument}(\[0\])? must be .*, but got .*\.$", sentence)
      assert not RAW.search(sentence.partition('but got')[0])
  with pytest.raises(TypeError, match=f"^The scheme '{name}' has no argument 'nonsense'"):
    make(**values, nonsense=1)
  with pytest.raises(TypeError, match=rf"^The scheme '{name}' has \d+ arguments, but got 99\. It"):
    make(*range(99))
