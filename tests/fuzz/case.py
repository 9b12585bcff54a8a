"""A case is one call, and what its result must be if it is accepted."""

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import hypothesis
import numpy as np
from hypothesis import strategies as st

SEED = 16


class Case(NamedTuple):
  """One call.

  Attributes:
    title: the call as a reader may type it.
    call: makes it.
    check: of the result, where the call is accepted: what is wrong with it, '' if nothing is.
    valid: whether it must be accepted; otherwise it may also be refused.
    seconds: after which the case counts as one that hangs.
  """

  title: str
  call: Callable[[], Any]
  check: Callable[[Any], str] = lambda result: ''
  valid: bool = False
  seconds: float = 60


def refused(result: Any) -> str:
  """The check of a call that must not be accepted."""
  shown = repr(result).replace('\n', ' ')
  return f'accepted, but it must be refused; the result is {shown[:100]}'


def short(value: Any) -> str:
  """A value in a title: an array by its dtype and shape."""
  if hasattr(value, 'shape') and getattr(value, 'ndim', 0):
    return f'{value.dtype}{list(value.shape)}'
  text = re.sub(r' at 0x\w+', '', repr(value).replace('\n', ' '))
  return text if len(text) <= 60 else text[:57] + '...'


def line(name: str, *values: Any, **named: Any) -> str:
  """A call as a line."""
  told = [short(value) for value in values] + [f'{k}={short(v)}' for k, v in named.items()]
  return f'{name}({", ".join(told)})'


def draw(strategy: st.SearchStrategy, count: int) -> list[Any]:
  """`count` different values of a strategy, the same at each run."""
  found: dict[str, Any] = {}

  @hypothesis.seed(SEED)
  @hypothesis.settings(
    max_examples=4 * count,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @hypothesis.given(strategy)
  def collect(value):
    if len(found) < count:
      found.setdefault(repr(value), value)

  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # a seed beside no database is what is wanted
    collect()
  return list(found.values())


def normal(*shape: int, seed: int = SEED) -> np.ndarray:
  """Random numbers, float32."""
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def numbered(groups: Iterable[Iterable[Case]]) -> list[Case]:
  """The cases of several generators, as one list."""
  return [case for group in groups for case in group]
