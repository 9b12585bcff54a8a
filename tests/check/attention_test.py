"""What a case compares: the reference itself, and implementations that are wrong."""

import pytest

from posjax.attention import IMPLEMENTATIONS
from posjax.check import attention, cases

KINDS = {kind.title: kind for kind in cases.KINDS}


@pytest.fixture
def short(monkeypatch):
  """Fewer tokens, and no program of another test."""
  monkeypatch.setattr(cases, 'TOKENS', 60)
  attention._answer.cache_clear()
  yield
  attention._answer.cache_clear()


@pytest.mark.usefixtures('short')
@pytest.mark.parametrize('dtype', cases.DTYPES)
def test_a_wrong_implementation_is_beyond_the_bound(monkeypatch, dtype):
  sound = IMPLEMENTATIONS['blockwise']
  case = cases.Case(KINDS['a learned bias'], 16, dtype)
  assert attention.compare(case, 'blockwise')['error'] <= case.bound
  wrong = lambda scheme, rules, x: sound(scheme, rules, x) * 1.02
  monkeypatch.setitem(IMPLEMENTATIONS, 'blockwise', wrong)
  attention._answer.cache_clear()
  assert attention.compare(case, 'blockwise')['error'] > case.bound
