"""Which class a case ends in. The judge of a sentence is mechanical: it knows no case."""

import ast
import functools
import re
import signal
import traceback
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.fuzz.case import Case

ROOT = Path(__file__).resolve().parents[2]
CLASSES = ('clear', 'correct', 'raw', 'wrong', 'hang')
FAULTS = ('raw', 'wrong', 'hang')
WORDS, LETTERS = 5, 1000  # a sentence has at least and at most so many
# Words that no user of posjax should have to read: Python's own, and those of other libraries.
FOREIGN = re.compile(
  r"""
  Traceback | has\ no\ attribute | unsupported\ operand | not\ subscriptable | not\ iterable
  | not\ supported\ between | object\ is\ not | cannot\ be\ interpreted | must\ be\ real\ number
  | argument\ must\ be\ a | could\ not\ convert | could\ not\ broadcast
  | \w\(\)\ (got|takes|missing) | positional\ argument | required\ keyword
  | invalid\ literal | Expecting\ (value|property|','|':') | codec\ can't | unhashable
  | (index|range)\ out\ of | out\ of\ (bounds|range)\ for | truth\ value | a\ valid\ JAX\ type
  | incompatible\ shapes | dot_general | broadcast_in_dim | XLA | jaxlib | \blax\. | Tracer
  | jaxtyping | beartype | absl | ml_collections | orbax | tensorstore | zarr | flax\.errors
  | INVALID_ARGUMENT | RESOURCE_EXHAUSTED | NOT_FOUND | 'NoneType' | <class\ ' | \bat\ 0x[0-9a-f]
  | ShapedArray | PyTree | Too\ (many|few) | unpack | recursion | Exceeds\ the\ limit
  """,
  re.VERBOSE,
)


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
  """The class of a refusal: its type, where it was raised, and its sentence."""
  text = f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'
  if case.valid:
    return Verdict('wrong', f'refused, although it is right: {text}')
  if is_system_error(error):
    return Verdict('clear', text)
  if type(error) not in (ValueError, TypeError) and not isinstance(error, OSError):
    return Verdict('raw', f'{text} ({place(error)})')
  if not raised_by_posjax(error):
    return Verdict('raw', f'{text} (not raised by posjax, but at {place(error)})')
  poor = sentence_fault(str(error), case.shows)
  return Verdict('raw', f'{text} ({poor})') if poor else Verdict('clear', text)


def is_system_error(error: Exception) -> bool:
  """Whether the operating system says what is wrong, with the file's name, as it always does."""
  return isinstance(error, OSError) and bool(error.strerror and error.filename)


def raised_by_posjax(error: Exception) -> bool:
  """Whether a `raise` of the library stands at the end of the traceback."""
  frames = list(_frames(error.__traceback__))
  if not frames:
    return False
  path, number = frames[-1]
  inside = path.is_relative_to(ROOT / 'posjax') or path == ROOT / 'train.py'
  return inside and number in _raising_lines(path)


def place(error: BaseException) -> str:
  """The last line of the library in a traceback: where a check is missing."""
  frames = list(_frames(error.__traceback__))
  own = [frame for frame in frames if frame[0].is_relative_to(ROOT / 'posjax')]
  path, number = (own or frames or [(Path('?'), 0)])[-1]
  return f'{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{number}'


def _frames(trace: TracebackType | None):
  for frame, number in traceback.walk_tb(trace):
    yield Path(frame.f_code.co_filename), number


@functools.cache
def _raising_lines(path: Path) -> set[int]:
  module = ast.parse(path.read_text(encoding='utf-8'))
  raising = [node for node in ast.walk(module) if isinstance(node, ast.Raise)]
  return {number for node in raising for number in range(node.lineno, node.end_lineno + 1)}


def sentence_fault(text: str, shows: tuple[str, ...] = ()) -> str:
  """What is wrong with the sentence of a refusal; '' if nothing is."""
  # A sentence on a file may end with the place that the reader of JSON, or of UTF-8, names.
  bare = re.sub(r"\((Expecting|Extra data|Unterminated|Invalid|'utf-8' codec).*\)\.", '.', text)
  for way in shows:
    bare = bare.replace(way, '') if len(way) > 3 else bare  # the value may be any word
  foreign = FOREIGN.search(bare)
  if foreign:
    return f'poor sentence: {foreign.group()!r} is no word of posjax'
  if '\n' in text.strip():
    return 'poor sentence: it has several lines'
  if len(text.split()) < WORDS:
    return f'poor sentence: it has fewer than {WORDS} words'
  if len(text) > LETTERS:
    return f'poor sentence: it has {len(text)} letters'
  if not text.rstrip().endswith(('.', '.)', '?')):
    return 'poor sentence: it has no full stop'
  if shows and not any(way in text for way in shows):
    return f'poor sentence: it does not show what it got, as one of {shows}'
  return ''
