"""The tokens of parallel text: three marks, then those of a `data.text.vocabulary`.

In every vocabulary 0 is padding, 1 the start of a sentence and 2 its end; the tokens of the text
follow from 3 on. Both sides share one vocabulary (joint), or each has its own. It is learned from
training text alone, and no text is ever refused: what no piece spells is spelled in bytes, and a
character or a word that training has not is `<unk>`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment.data import vocabulary as text
from posjax.experiment.tasks.translation.data import Pair

PADDING, START, END = 0, 1, 2
MARKS = ('<pad>', '<s>', '</s>')

Ids = Sequence[int] | np.ndarray


class Language(NamedTuple):
  """The tokens of one side.

  Attributes:
    unit: what one token is: 'byte', 'character', 'word' or 'piece'.
    size: V, the number of ids, with those of the marks.
    encode: `(sentence) -> ids [N]`, int32, without marks; an empty sentence has none.
    decode: `(ids) -> sentence`, up to the first end mark, other marks skipped; always one line.
      Pieces, characters and bytes give back the sentence that was encoded; words give it with
      single spaces.
    names: `(ids) -> names`, one for each token, marks included, for pictures.
    unknown: the id of `<unk>`; None where nothing is unknown.
  """

  unit: str
  size: int
  encode: Callable[[str], np.ndarray]
  decode: Callable[[Ids], str]
  names: Callable[[Ids], list[str]]
  unknown: int | None


class Coded(NamedTuple):
  """Ids of a sentence and of its translation, int32 [N] each, without marks."""

  source: np.ndarray
  target: np.ndarray

  def length(self) -> int:
    """Tokens of the longer side, its end mark included: the width of a row that holds both."""
    return max(len(self.source), len(self.target)) + 1


class Vocabulary(NamedTuple):
  """The tokens of both sides.

  Attributes:
    source: of the sentences.
    target: of their translations; the same object where the vocabulary is joint.
    joint: whether both sides share one.
    stored: all of it as JSON, for `restore`.
  """

  source: Language
  target: Language
  joint: bool
  stored: Mapping[str, Any]

  def encode(self, pairs: Iterable[Pair]) -> tuple[Coded, ...]:
    """The ids of pairs, each sentence encoded once."""
    return tuple(
      Coded(self.source.encode(pair.source), self.target.encode(pair.target)) for pair in pairs
    )


def learn(
  tokens: str, train: Sequence[Pair], *, joint: bool, vocab_size: int | None = None
) -> Vocabulary:
  """The vocabulary of the pairs that are trained on.

  Args:
    tokens: 'sentencepiece', 'words', 'characters' or 'bytes', as in `data.text.vocabulary.learn`.
      A sentence gets a space before its first word for sentencepiece, so that a word is spelled by
      the same pieces wherever it is; `decode` takes the space away again.
    train: the pairs; what is held out must not be among them.
    joint: whether both sides share one vocabulary, learned from the sentences of both.
    vocab_size: tokens of the shared vocabulary, or else of that of each side; the three marks come
      on top. None for bytes; words and characters are then all that there are, and `<unk>`.

  Raises:
    ValueError: there are no such tokens, or the text does not have so many.
    ImportError: sentencepiece is not installed.
  """
  sides = {
    'source': [pair.source for pair in train],
    'target': [pair.target for pair in train],
  }
  if joint:
    sides = {'joint': sides['source'] + sides['target']}
  return restore({side: _learn(tokens, each, vocab_size, side) for side, each in sides.items()})


def restore(stored: Mapping[str, Any]) -> Vocabulary:
  """The vocabulary that was stored.

  Args:
    stored: of a `Vocabulary`.

  Raises:
    ValueError: if it is none.
    ImportError: sentencepiece is not installed.
  """
  sides = set(stored) if isinstance(stored, Mapping) else set()
  if sides not in ({'joint'}, {'source', 'target'}):
    raise ValueError(
      'A stored vocabulary of parallel text must hold joint, or source and target, but holds '
      f'{", ".join(sorted(map(str, sides))) or "nothing"}.'
    )
  joint = 'joint' in stored
  source = _language(stored['joint' if joint else 'source'])
  target = source if joint else _language(stored['target'])
  return Vocabulary(source, target, joint, stored)


def learn_or_restore(
  tokens: str,
  train: Sequence[Pair],
  stored: Mapping[str, Any] | None,
  *,
  joint: bool,
  vocab_size: int | None = None,
) -> Vocabulary:
  """The vocabulary of a run: a new one, or the one that the run stored when it began.

  Args:
    tokens: as of `learn`.
    train: as of `learn`.
    stored: of a `Vocabulary`; None learns one.
    joint: as of `learn`.
    vocab_size: as of `learn`.

  Raises:
    ValueError: as of `learn` and `restore`; or the stored vocabulary is one of other tokens.
  """
  if stored is None:
    return learn(tokens, train, joint=joint, vocab_size=vocab_size)
  made = restore(stored)
  kind = lambda tokens, joint: f'{tokens} for {"both sides" if joint else "each side"}'
  found = {side['tokens'] for side in stored.values()}
  if (found, made.joint) != ({tokens}, joint):
    raise ValueError(
      f'The stored vocabulary should be one of {kind(tokens, joint)}, as the config says, but is '
      f'one of {kind(" and ".join(sorted(found)), made.joint)}.'
    )
  return made


def _learn(tokens: str, sentences: Sequence[str], size: int | None, side: str) -> Mapping[str, Any]:
  """The tokens of one side, as they are stored."""
  try:
    learned = text.learn(tokens, [_spaced(tokens, each) for each in sentences], size, unknown=True)
  except ValueError as error:
    raise ValueError(f'The {side} vocabulary cannot be learned: {error}') from error
  return learned.stored


def _language(stored: Any) -> Language:
  """One side that was stored."""
  if not isinstance(stored, Mapping):
    raise ValueError(f'A stored vocabulary must be a dictionary, but is {type(stored).__name__}.')
  made, shift = text.restore(stored), len(MARKS)
  tokens = stored['tokens']
  # A sentence is one line, so that the word for an end of a line stands for itself.
  end_of_line = f' {text.END_OF_LINE} ' if tokens == 'words' else ' '

  def encode(sentence: str) -> np.ndarray:
    return made.encode(_spaced(tokens, sentence)).astype(np.int32) + shift

  def decode(ids: Ids) -> str:
    generated = [int(i) for i in ids]
    generated = generated[: generated.index(END)] if END in generated else generated
    line = made.decode([i - shift for i in generated if i >= shift]).replace('\n', end_of_line)
    if tokens == 'words':
      return ' '.join(line.split())
    return line.removeprefix(' ') if tokens == 'sentencepiece' else line

  def names(ids: Ids) -> list[str]:
    return [MARKS[i] if i < shift else made.decode([i - shift]) for i in map(int, ids)]

  unknown = None if made.cut is None else made.cut + shift
  return Language(made.unit, made.size + shift, encode, decode, names, unknown)


def _spaced(tokens: str, sentence: str) -> str:
  """The text of which tokens are made: before pieces, a space is put in front of the first word.

  An empty sentence has no word, and so no token.
  """
  return f' {sentence}' if tokens == 'sentencepiece' and sentence else sentence
