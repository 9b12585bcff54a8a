"""Sentences with a tag for each token: `file:PATH`, `tfds:NAME` or `synthetic:direction`.

`files`, `tfds` and `direction` read the three forms; `tags` has the notations of tags and the
entities that they mean; `facts` says what was read.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from posjax.arguments import check_known
from posjax.experiment.data import corpus
from posjax.experiment.data.expression import parse, to_tune
from posjax.experiment.tasks.tagging import direction, files, tfds
from posjax.experiment.tasks.tagging.files import Raw
from posjax.experiment.tasks.tagging.tags import (
  NOTATIONS,
  OUTSIDE,
  is_legal,
  notation_of,
  spans,
  tags_of,
)

FORMS = ('file:PATH', 'tfds:NAME', 'synthetic:direction')


class Sentence(NamedTuple):
  """Tokens [T], one or more; their tags [T], always BIOES; and the place of the first token."""

  tokens: tuple[str, ...]
  tags: tuple[str, ...]
  where: str


class Columns(NamedTuple):
  """Sentences to learn from, and sentences to be judged on.

  Attributes:
    name: the expression that named them.
    train: one or more.
    held_out: one or more.
    types: of the entities of all sentences, sorted; a type may occur in held-out sentences alone.
    notation: that of the tags as they were read, a name of `tags.NOTATIONS`.
    repaired: the places of the sentences whose tags were illegal in that notation. They have the
      entities that conlleval reads from such tags.
    documents: how many `-DOCSTART-` lines were skipped.
    cut: how the held-out sentences were chosen, in words.
    sha256: 64 hexadecimal digits of all tokens and tags in their order.
  """

  name: str
  train: tuple[Sentence, ...]
  held_out: tuple[Sentence, ...]
  types: tuple[str, ...]
  notation: str
  repaired: tuple[str, ...]
  documents: int
  cut: str
  sha256: str


def read(expression: str, *, notation: str | None = None) -> Columns:
  """Reads the sentences that one line names, whole, into memory.

  Where nothing is held out, one training sentence in ten is, chosen by a hash of its words
  (`corpus.fold_of`), so that equal sentences stay on one side.

  Args:
    expression: `file:PATH`, a file with a token and its tag in each line, or a folder with a
      training file and perhaps a held-out one, see `files`; `tfds:NAME`, see
      `tfds`; or `synthetic:direction`, see `direction`.
    notation: that of the tags: 'IOB1', 'IOB2', 'BIOES' or 'BMES'. None tells it from all tags, as
      `tags.notation_of` says.

  Returns:
    A `Columns`, the same for the same files.

  Raises:
    ValueError: the expression or the notation is none of those that there are; a column is missing;
      a tag has no form, or not that of the notation; a sentence is empty; a line is not UTF-8; or
      no sentence is left to learn from or to be judged on, or none has an entity.
    FileNotFoundError: there are no such files, or the data set was not prepared.

  Example:
    >>> sentence = read('synthetic:direction').train[2]
    >>> sentence.tokens[0], dict(zip(sentence.tokens, sentence.tags))['Name6']
    ('here', 'S-NAME')
  """
  rest, tune = to_tune(expression)
  kind, argument = parse('tagged sentences', rest, FORMS)
  if notation is not None:
    check_known('notation', notation, NOTATIONS)
  documents = 0
  if kind == 'file':
    train, held_out, documents = files.read(argument)
  else:
    train, held_out = tfds.read(argument) if kind == 'tfds' else direction.sentences()
  found = _notation(expression, [*train, *held_out], notation)
  words_of = lambda raw: ' '.join(token for token, _, _ in raw)
  what = 'training sentences, by a hash of the words'
  train, held_out, cut = corpus.hold_out(train, held_out, words_of, what, tune)
  corpus.check_parts(expression, 'sentence', train, held_out)
  learned, judged = (tuple(map(_sentence, part)) for part in (train, held_out))
  types = {span.type for each in (*learned, *judged) for span in spans(each.tags)}
  if not types:
    raise ValueError(f'{expression} should have entities, but all of its tags are O.')
  repaired = tuple(
    raw[0][-1] for raw in [*train, *held_out] if not is_legal([tag for _, tag, _ in raw], found)
  )
  digest = corpus.fingerprint(*(map(_line, part) for part in (learned, judged)))
  ordered = tuple(sorted(types))
  return Columns(expression, learned, judged, ordered, found, repaired, documents, cut, digest)


def _sentence(raw: Raw) -> Sentence:
  tokens, tags, places = zip(*raw, strict=True)
  return Sentence(tokens, tags_of(spans(tags), len(tags)), places[0])


def _notation(expression: str, sentences: Sequence[Raw], given: str | None) -> str:
  """The notation of these tags. Raises ValueError where no notation has all of their letters."""
  first = {tag[0]: (tag, where) for raw in reversed(sentences) for _, tag, where in reversed(raw)}
  first.pop(OUTSIDE, None)
  if given is None:
    found = notation_of([[tag for _, tag, _ in raw] for raw in sentences])
    if found is None:
      tags = ', '.join(f'{tag} ({where})' for tag, where in first.values())
      raise ValueError(
        f'{expression} should have tags of one notation ({", ".join(NOTATIONS)}), but none of them '
        f'has all of {tags}.'
      )
    return found
  for letter, (tag, where) in first.items():
    if letter not in NOTATIONS[given]:
      raise ValueError(
        f'{where} should have a tag of {given}, with one of the letters '
        f'{", ".join(sorted(NOTATIONS[given]))}, but has {tag!r}.'
      )
  return given


def _line(sentence: Sentence) -> bytes:
  """Tokens and tags of a sentence, so that no character can move from one to another."""
  return json.dumps([sentence.tokens, sentence.tags], ensure_ascii=False).encode()
