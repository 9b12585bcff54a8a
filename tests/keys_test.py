"""Values against annotations, and the sentences about those that do not fit."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest

from posjax.keys import (
  Keys,
  OneOf,
  Range,
  Section,
  check_section,
  check_value,
  keys_of,
)

Percent = Annotated[float, Range(0, 100)]
Below = Annotated[float, Range(0)]
Window = Annotated[int, Range(1)] | Sequence[Annotated[int, Range(1)] | None] | None

FITS = [
  (int, 3),
  (float, 3),
  (bool, False),
  (str, 'ä'),
  (str | None, None),
  (Sequence[int], (1, 2)),
  (Sequence[int], [1, 2]),
  (Sequence[int], ()),
  (Window, (1, None)),
  (Window, 1),
  (Percent, 100),
  (Literal['a', 'b'], 'b'),
  (Annotated[str, OneOf(lambda: ['x', 'y'])], 'x'),
  (Mapping[str, Any], {'a': 1}),
  (Any, object()),
]
REFUSED = [
  (int, True, TypeError, 'k must be an integer, but got True.'),
  (int, 2.0, TypeError, 'k must be an integer, but got 2.0.'),
  (int, np.int64(2), TypeError, 'k must be an integer of Python, but got np.int64(2).'),
  (float, math.nan, ValueError, 'k must be a finite number, but got nan.'),
  (float, math.inf, ValueError, 'k must be a finite number, but got inf.'),
  (float, True, TypeError, 'k must be a finite number, but got True.'),
  (float, '1', TypeError, "k must be a finite number, but got '1'."),
  (bool, 1, TypeError, 'k must be True or False, but got 1.'),
  (str, b'a', TypeError, "k must be a string, but got b'a'."),
  (str, '\udcff', ValueError, "k must be Unicode text, but got '\\udcff'."),
  (Below, math.inf, ValueError, 'k must be a finite number of at least 0, but got inf.'),
  (Percent, math.nan, ValueError, 'k must be a finite number from 0 to 100, but got nan.'),
  (
    Percent | None,
    101,
    ValueError,
    'k must be a finite number from 0 to 100, but got 101.',
  ),
  (Percent, 10**90, ValueError, 'k must be .*, but got an integer of 91 digits.'),
  (Sequence[int], (np.int64(2),), TypeError, 'k must be a list of integers of Python, but .*'),
  (Sequence[int], 'abc', TypeError, "k must be a list of integers, but got 'abc'."),
  (Sequence[int], (1, 'a'), TypeError, "k[1] must be an integer, but got 'a'."),
  (Window, (0,), ValueError, 'k[0] must be an integer of at least 1, but got 0.'),
  (Literal['abc', 'd'], 'abd', ValueError, "k must be one of 'abc', 'd', .*; did you mean 'abc'?"),
  (Literal['a', 'b'], 3, TypeError, "k must be one of 'a', 'b', but got 3."),
  (Annotated[str, OneOf(lambda: ['x', 'y'])], 'z', ValueError, "k must be one of 'x', 'y', .*"),
  (Mapping[str, Any], 3, TypeError, 'k must be a section of keys, but got 3.'),
  (str, 3 * ['a' * 99], TypeError, r'k must be a string, but got .*aaaaa...'),
]


@pytest.mark.parametrize(('hint', 'value'), FITS)
def test_a_value_of_the_type_and_in_the_range_passes(hint, value):
  check_value('k', hint, value)


@pytest.mark.parametrize(('hint', 'value', 'error', 'message'), REFUSED)
def test_a_value_that_does_not_fit_is_told_in_one_sentence(hint, value, error, message):
  with pytest.raises(error) as caught:
    check_value('k', hint, value)
  parts = message.split('.*')
  found = str(caught.value)
  assert found.startswith(parts[0])
  assert found.endswith(parts[-1])
  assert all(part in found for part in parts)


def model(*, width: Annotated[int, Range(1)], name: str = 'a'): ...


def task(
  schemes, model: Annotated[Mapping[str, Any], Section(lambda: keys_of(model))], *, length: int
): ...


def test_the_keys_of_a_section_are_the_arguments_of_its_reader():
  keys = keys_of(task, without=['schemes'])
  check_section('', {'length': 3, 'model': {'width': 2}}, keys)
  for given, message in (
    ({'length': 3, 'model': {'width': 0}}, 'model.width must be an integer of at least 1'),
    ({'length': 3, 'model': {}}, "must have the key 'model.width', but it is missing"),
    (
      {'length': 3, 'model': {'width': 2, 'nam': 'b'}},
      "no key 'model.nam'; did you mean 'model.name'",
    ),
    ({'model': {'width': 2}}, "must have the key 'length'"),
    ({'length': 3, 'model': {'width': 2}, 7: 1}, 'must be a section of keys'),
  ):
    with pytest.raises((ValueError, TypeError), match=message):
      check_section('', given, keys)


def test_a_reader_that_takes_any_argument_has_no_unknown_keys_and_classes_are_readers():
  class Model:
    def __init__(self, width: int, **others): ...

  class Record(NamedTuple):
    width: int
    name: str = 'a'

  assert keys_of(Model).further
  check_section('m', {'width': 1, 'anything': 2}, keys_of(Model))
  with pytest.raises(TypeError, match=r'm\.width must be an integer'):
    check_section('m', {'width': '1', 'anything': 2}, keys_of(Model))
  with pytest.raises(TypeError, match=r'm\.name must be a string, but got 2'):
    check_section('m', {'width': 1, 'name': 2}, keys_of(Record))
  assert isinstance(keys_of(Record), Keys)
