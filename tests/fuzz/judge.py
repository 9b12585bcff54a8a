"""Which class a case ends in."""

import signal
import traceback
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.fuzz.case import Case
from tests.support.paths import ROOT

CLASSES = ('refused', 'correct', 'raw', 'wrong', 'hang')
FAULTS = ('raw', 'wrong', 'hang')


class Verdict(NamedTuple):
  """The class of a case, and why."""

  kind: str
  detail: str = ''


class HangError(BaseException):
  """A case took longer than its limit. No library catches it as one of its own errors."""


def judge(case: Case) -> Verdict:
  """Makes the call of a case, and judges what came of it."""
  from tests.fuzz import commands  # which needs the judge of sentences

  signal.signal(signal.SIGALRM, _interrupt)
  signal.setitimer(signal.ITIMER_REAL, case.seconds)
  try:
    result = case.call()
    if hasattr(result, 'code'):  # a command
      return commands.judge(result, case)
    fault = case.check(result)
    return Verdict('wrong', fault) if fault else Verdict('correct')
  except HangError:
    return Verdict('hang', f'not over after {case.seconds} seconds')
  except Exception as error:
    return refusal(error, case)
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)


def _interrupt(number, frame):
  raise HangError


def refusal(error: Exception, case: Case) -> Verdict:
  """The class of a refusal: what is right may not be refused."""
  text = f'{type(error).__name__}: {" ".join(str(error).split())[:300]} ({place(error)})'
  if case.valid:
    return Verdict('wrong', f'refused, although it is right: {text}')
  return Verdict('refused', text)


def place(error: BaseException) -> str:
  """The last line of the library in a traceback: where a check is missing."""
  frames = list(_frames(error.__traceback__))
  own = [frame for frame in frames if frame[0].is_relative_to(ROOT / 'posjax')]
  path, number = (own or frames or [(Path('?'), 0)])[-1]
  return f'{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{number}'


def _frames(trace: TracebackType | None):
  for frame, number in traceback.walk_tb(trace):
    yield Path(frame.f_code.co_filename), number
