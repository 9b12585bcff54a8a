"""Vocabularies of bytes, characters, words, or pieces that sentencepiece learned."""

import base64
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

UNKNOWN = '<unk>'
END_OF_LINE = '<eos>'
_SPACE = '\u2581'  # as sentencepiece writes a space; a text may have it too
_LONGEST = 4000  # characters that sentencepiece gets at once
_LEARNED_FROM = 10_000_000  # characters that sentencepiece learns from, at most


class Vocabulary(NamedTuple):
  """Text to token ids, and back.

  Attributes:
    unit: what one token is: 'byte', 'character', 'word' or 'piece'.
    size: V, the number of ids.
    encode: `(text) -> ids [N]` of the smallest unsigned type that holds V; bytes are read as UTF-8
      but by a vocabulary of bytes. Raises ValueError, with the line, for what has no id.
    decode: `(ids) -> text`; bytes that are not UTF-8 are shown as a mark.
    separator: what is between two documents that are joined to one stream.
    ending: what each document ends with.
    cut: the id of `<unk>` where it is for types that were left out, or that the text has not;
      None elsewhere, so that what ids spell is the text (of words, but for its white space).
    stored: all of it as JSON, for `restore`.
  """

  unit: str
  size: int
  encode: Callable[[str | bytes], np.ndarray]
  decode: Callable[[Iterable[int]], str]
  separator: str
  ending: str
  cut: int | None
  stored: Mapping[str, Any]


def learn(
  tokens: str,
  documents: Sequence[str],
  vocab_size: int | None = None,
  unknown: bool = False,
) -> Vocabulary:
  """The vocabulary of a text that is trained on.

  Args:
    tokens: 'bytes', all 256; 'characters', those of the text; 'words', what white space parts,
      with `<eos>` for each end of a line; 'sentencepiece', `vocab_size` pieces, learned from the
      lines (of up to 10 million characters, evenly spread), with bytes for what they do not spell.
    documents: the text.
    vocab_size: V. For characters and words: the most frequent ones, `<unk>` included, which all
      others become; by default all, and there is an `<unk>` only if a word of the text is.
    unknown: whether characters and words have an `<unk>` in any case, which other texts need.

  Raises:
    ValueError: there are no such tokens, or V is out of their range.
    ImportError: sentencepiece is not installed.
  """
  if tokens == 'bytes' and vocab_size is not None:
    raise ValueError(f'There are 256 bytes: vocab_size must be None, but got {vocab_size}.')
  cut = unknown or vocab_size is not None
  makers = {
    'bytes': lambda: {},
    'characters': lambda: {'types': _characters(documents, vocab_size, cut), 'cut': cut},
    'words': lambda: {'types': _words(documents, vocab_size, cut), 'cut': cut},
    'sentencepiece': lambda: {'model': _pieces(documents, vocab_size)},
  }
  if tokens not in makers:
    raise ValueError(f'tokens must be one of {", ".join(makers)}, but got {tokens!r}.')
  return restore({'tokens': tokens, **makers[tokens]()})


def restore(stored: Mapping[str, Any]) -> Vocabulary:
  """The vocabulary that was stored.

  Args:
    stored: of a `Vocabulary`.

  Raises:
    ValueError: if it is none.
    ImportError: sentencepiece is not installed.
  """
  makers = {
    'bytes': _of_bytes,
    'characters': _of_characters,
    'words': _of_words,
    'sentencepiece': _of_pieces,
  }
  tokens = stored.get('tokens')
  if not isinstance(tokens, str) or tokens not in makers:
    raise ValueError(
      f'A stored vocabulary must name its tokens, one of {", ".join(makers)}, but has {tokens!r}.'
    )
  if tokens in ('characters', 'words'):
    _check_types(stored, tokens)
  return makers[tokens](stored)


def _check_types(stored: Mapping[str, Any], tokens: str) -> None:
  """Raises ValueError if a stored vocabulary is not a list of different words or characters."""
  types = stored.get('types')
  if not isinstance(types, list) or not all(isinstance(each, str) and each for each in types):
    wrong = 'no list of texts'
  elif not types or len(set(types)) < len(types):
    wrong = 'one of them twice' if types else 'none'
  elif tokens == 'words' and END_OF_LINE not in types:
    wrong = f'no {END_OF_LINE}'
  elif tokens == 'characters' and any(len(each) > 1 for each in set(types) - {UNKNOWN}):
    wrong = 'longer texts among them'
  elif not isinstance(stored.get('cut'), bool) or (stored['cut'] and UNKNOWN not in types):
    wrong = f'"cut" {stored.get("cut")!r} next to them'
  else:
    return
  raise ValueError(
    f'A stored vocabulary must have different {tokens} as its types, but has {wrong}.'
  )


def to_text(content: str | bytes) -> str:
  """Text of UTF-8.

  Raises:
    ValueError: if it is not UTF-8; the message begins with the line.
  """
  if isinstance(content, str):
    return content
  try:
    return content.decode()
  except UnicodeDecodeError as error:
    line = content.count(b'\n', 0, error.start) + 1
    raise ValueError(
      f"line {line} is not UTF-8 (byte 0x{content[error.start]:02x}): read it with tokens='bytes'."
    ) from error


def _of_bytes(stored) -> Vocabulary:
  def encode(text: str | bytes) -> np.ndarray:
    return np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)

  def decode(ids) -> str:
    return np.asarray(ids, np.uint8).tobytes().decode('utf-8', errors='replace')

  return Vocabulary('byte', 256, encode, decode, '\n\n', '', None, stored)


def _of_characters(stored) -> Vocabulary:
  types = stored['types']
  ids = {character: i for i, character in enumerate(types)}
  table = np.full(0x110000, ids.get(UNKNOWN, -1), np.int32)
  for character, i in ids.items():
    if character != UNKNOWN:
      table[ord(character)] = i

  def encode(content: str | bytes) -> np.ndarray:
    text = to_text(content)
    found = table[np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)]
    if found.size and found.min() < 0:
      place = int(found.argmin())
      raise _no_id('character', text[place], text.count('\n', 0, place) + 1)
    return found.astype(_smallest(len(types)))

  def decode(ids) -> str:
    return ''.join(types[i] for i in ids)

  separator = next((gap for gap in ('\n\n', ' ') if set(gap) <= set(types)), '')
  return Vocabulary('character', len(types), encode, decode, separator, '', _cut(stored), stored)


def _of_words(stored) -> Vocabulary:
  types = stored['types']
  ids = {word: i for i, word in enumerate(types)}
  end, unknown = ids[END_OF_LINE], ids.get(UNKNOWN)

  def each(text: str):
    for number, line in enumerate(text.split('\n')):
      if number:
        yield end
      for word in line.split():
        i = ids.get(word, unknown)
        if i is None:
          raise _no_id('word', word, number + 1)
        yield i

  def encode(content: str | bytes) -> np.ndarray:
    return np.fromiter(each(to_text(content)), _smallest(len(types)))

  def decode(ids) -> str:
    words = ' '.join('\n' if i == end else types[i] for i in ids)
    return re.sub(' ?\n ?', '\n', words)

  return Vocabulary('word', len(types), encode, decode, '', '\n', _cut(stored), stored)


def _of_pieces(stored) -> Vocabulary:
  library = _sentencepiece()
  try:
    model = library.SentencePieceProcessor(model_proto=base64.b64decode(stored['model']))
  except (KeyError, TypeError, ValueError, RuntimeError) as error:
    raise ValueError(
      'A stored vocabulary of pieces must have the model of sentencepiece in base64, but has none '
      'that it reads.'
    ) from error
  size = model.get_piece_size()
  spelled = [_spelled(model, i) for i in range(size)]
  space = [model.piece_to_id(f'<0x{byte:02X}>') for byte in _SPACE.encode()]

  def encode(content: str | bytes) -> np.ndarray:
    parts = _parts(to_text(content))
    pairs = zip(parts, model.encode(parts), strict=True)
    ids = (space if part == _SPACE else pieces for part, pieces in pairs)
    return np.fromiter(itertools.chain.from_iterable(ids), _smallest(size))

  def decode(ids) -> str:
    return b''.join(spelled[i] for i in ids).decode('utf-8', errors='replace')

  return Vocabulary('piece', size, encode, decode, '\n\n', '', None, stored)


def _spelled(model, i: int) -> bytes:
  """The bytes that a piece stands for."""
  piece = model.id_to_piece(i)
  if model.is_byte(i):
    return bytes([int(piece[1:-1], 16)])
  return b'' if model.is_unknown(i) else piece.replace(_SPACE, ' ').encode()


def _characters(documents: Sequence[str], vocab_size: int | None, cut: bool) -> list[str]:
  counts = Counter()
  for document in documents:
    counts.update(document)
  return sorted(_chosen(counts, (UNKNOWN,) if cut else (), vocab_size, 'characters'))


def _words(documents: Sequence[str], vocab_size: int | None, cut: bool) -> list[str]:
  counts = Counter()
  for document in documents:
    for line in document.split('\n'):
      counts.update(line.split())
  marks = (END_OF_LINE, UNKNOWN) if cut else (END_OF_LINE,)
  return _chosen(counts, marks, vocab_size, 'words')


def _chosen(counts: Counter, marks: Sequence[str], size: int | None, what: str) -> list[str]:
  """The names of the tokens: first the marks, then the types, the most frequent first.

  With a size, only as many of them are kept.
  """
  types = sorted(counts.keys() - set(marks), key=lambda each: (-counts[each], each))
  if size is None:
    return [*marks, *types]
  if not len(marks) < size < len(marks) + len(types):
    raise ValueError(
      f'vocab_size must be above {len(marks)} and below {len(marks) + len(types)}, which are all '
      f'{what} of the text, or None, but got {size}.'
    )
  return [*marks, *types[: size - len(marks)]]


def _pieces(documents: Sequence[str], vocab_size: int | None) -> str:
  """A model of sentencepiece that changes nothing in the text, in base64."""
  if vocab_size is None or vocab_size < 1:
    raise ValueError(f'sentencepiece learns vocab_size pieces, 1 or more, but got {vocab_size}.')
  library, model = _sentencepiece(), io.BytesIO()
  lines = [part for each in documents for part in _parts(each) if part not in ('\n', _SPACE)]
  if not lines:
    raise ValueError('sentencepiece has nothing to learn from: the text is empty lines.')
  every = -(-sum(map(len, lines)) // _LEARNED_FROM)
  try:
    library.SentencePieceTrainer.train(
      sentence_iterator=iter(lines[::every]),
      model_writer=model,
      vocab_size=vocab_size,
      byte_fallback=True,
      character_coverage=0.9995,
      user_defined_symbols=['\n'],
      bos_id=-1,
      eos_id=-1,
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      add_dummy_prefix=False,
      allow_whitespace_only_pieces=True,
      max_sentence_length=4 * _LONGEST,
      num_threads=1,
      minloglevel=3,
    )
  except RuntimeError as error:
    reason = str(error).rpartition('] ')[2].partition(' or decrease')[0].strip()
    raise ValueError(f'sentencepiece cannot learn {vocab_size} pieces here: {reason}') from error
  return base64.b64encode(model.getvalue()).decode()


def _parts(text: str) -> list[str]:
  """The text in parts: ends of lines, U+2581, and what is between, cut before a space if long."""
  plain = rf'[^\n{_SPACE}]{{1,{_LONGEST}}}'
  return re.findall(rf'\n|{_SPACE}|{plain}(?=[ \n{_SPACE}]|\Z)|{plain}', text)


def _sentencepiece() -> Any:
  try:
    import sentencepiece
  except ModuleNotFoundError as error:
    raise ImportError("tokens='sentencepiece' needs it: pip install 'posjax[train]'.") from error
  return sentencepiece


def _no_id(what: str, which: str, line: int) -> ValueError:
  return ValueError(
    f'line {line} has the {what} {which!r}, which the training text has not: give a vocab_size, so '
    f"that rare ones become {UNKNOWN}, or use tokens='bytes'."
  )


def _cut(stored: Mapping[str, Any]) -> int | None:
  return stored['types'].index(UNKNOWN) if stored['cut'] else None


def _smallest(size: int) -> np.dtype:
  return np.min_scalar_type(size - 1)
