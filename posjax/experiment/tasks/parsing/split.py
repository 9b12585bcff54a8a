"""From a text to the words of a treebank: signs and contractions by themselves, as in GUM.

The words of English treebanks are not those between spaces: a full stop at the end is a word, the
n't of don't, the 's of it's, and in GUM the hyphen of well-known, though not that of non-profit.
"""

import re

from posjax.experiment.tasks.parsing.tree import escaped

_ADDRESS = re.compile(r'\w+://\S*\w/?|www\.\S*\w/?|[\w.+-]+@[\w-]+\.[\w.-]*\w')
_OPENING = re.compile(r'\.\.\.|--|``|[\'"“”‘’«(\[{<$€£#=+*&@—–-]')
_CLOSING = re.compile(r'(?:\.{2,}|--|\'\'|[\'"“”‘’»,;:?!)\]}>%…°—–-])$')
_CONTRACTED = re.compile(r"(?i)(?:n['’]t|['’](?:s|re|ve|ll|d|m))$")
_INNER = re.compile(r'(--|[—–]|(?<=[^\W\d])/(?=[^\W\d]))')
_HYPHEN = re.compile(r'(?<=\w)(-)(?=\w)')
_NUMBERS = re.compile(r'[\d.,:-]+')
_LETTERS = re.compile(r'(?:\w\.)+\w\.')  # as U.S. and e.g., which keep the full stop at the end
_BRACKET = re.compile(r'-[LR][RSC]B-')  # as treebanks spell brackets
_WHOLE = {'cannot': (3,), 'gonna': (3,), 'wanna': (3,), 'gotta': (3,)}
# The hyphen behind these belongs to the word.
_PREFIXES = frozenset(
  ['anti', 'co', 'counter', 'cross', 'e', 'ex', 'inter', 'mid', 'mini', 'non', 'pan', 'post', 'pre']
  + ['pro', 're', 'semi', 'sub', 'un']
)


def split(text: str) -> list[str]:
  """The words of one sentence; text that is split already stays so, hyphens apart.

  Args:
    text: a sentence; a full stop within it belongs to the word before it.

  Returns:
    Words, with round brackets as treebanks spell them; none if the text has no more than spaces.

  Example:
    >>> split("They don't see (well-known) non-profits, e.g. Mr. Lee's.")[:10]
    ['They', 'do', "n't", 'see', '-LRB-', 'well', '-', 'known', '-RRB-', 'non-profits']
  """
  words = [word for piece in text.split() for word in _split(piece)]
  # The full stop of the sentence may have quotes and brackets behind it.
  last = next((at for at in reversed(range(len(words))) if re.search(r'\w', words[at])), None)
  if last is not None and words[last].endswith('.') and not _LETTERS.fullmatch(words[last]):
    words[last : last + 1] = [*_split(words[last][:-1]), '.']
  return [escaped(word) for word in words]


def _split(piece: str) -> list[str]:
  """The words of what is between two spaces, a full stop at its end left alone."""
  before: list[str] = []
  after: list[str] = []
  while piece and not _is_word(piece):
    if opening := _OPENING.match(piece):
      before.append(opening[0])
      piece = piece[opening.end() :]
    elif closing := _CLOSING.search(piece):
      after.insert(0, closing[0])
      piece = piece[: closing.start()]
    elif piece.endswith('.') and (closing := _CLOSING.search(piece[:-1])):
      after[:0] = [closing[0], '.']
      piece = piece[: closing.start()]
    else:
      break
  inner = [piece] if not piece or _is_word(piece) else _within(piece)
  return [*before, *filter(None, inner), *after]


def _is_word(piece: str) -> bool:
  """Whether it is a word as it is, whatever signs it has."""
  return bool(
    _ADDRESS.fullmatch(piece)
    or _BRACKET.fullmatch(piece)
    or _CONTRACTED.fullmatch(piece)
    or len(piece) == 1
  )


def _within(piece: str) -> list[str]:
  """The words of a piece without signs around it."""
  parts = [part for part in _INNER.split(piece) if part]
  if len(parts) > 1:
    return [word for part in parts for word in ([part] if len(part) < 2 else _within(part))]
  if contracted := _CONTRACTED.search(piece):
    return [*_within(piece[: contracted.start()]), contracted[0]]
  if piece.lower() in _WHOLE:
    (at,) = _WHOLE[piece.lower()]
    return [piece[:at], piece[at:]]
  if _NUMBERS.fullmatch(piece) or piece.partition('-')[0].lower() in _PREFIXES:
    return [piece]
  return _HYPHEN.split(piece)
