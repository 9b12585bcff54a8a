"""Tags of entities in four notations, and the entities that they mean.

A tag is `O`, outside of entities, or a letter, a dash and a type, as `B-LOC`:

- IOB2: B begins an entity, I goes on with it.
- IOB1: I begins an entity and goes on with it; B begins one right behind another one of
  the same type, and only there.
- BIOES: B begins an entity, I goes on, E ends it; S is an entity of one token.
- BMES: the same with M in place of I.

One rule reads all of them, legal or not (`spans`): that of conlleval, the script by which the
shared tasks of CoNLL were scored, with the letters E and S as the Python package seqeval has them
in its default mode. Each notation has exactly one way to write given entities (`tags_of`). So a
sequence is legal where it is what `tags_of` writes for what `spans` reads, and an illegal one is
repaired by writing it so.

References: Tjong Kim Sang and Buchholz 2000, https://aclanthology.org/W00-0726 (conlleval); Ramshaw
and Marcus 1995, https://aclanthology.org/W95-0107 (IOB1); Nakayama 2018,
https://github.com/chakki-works/seqeval.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

OUTSIDE = 'O'
# The letters of a notation. The order decides where several notations fit equally well.
NOTATIONS: Mapping[str, frozenset[str]] = MappingProxyType(
  {
    'IOB2': frozenset('BI'),
    'IOB1': frozenset('BI'),
    'BIOES': frozenset('BIES'),
    'BMES': frozenset('BMES'),
  }
)
_FORM = re.compile(r'[BIESM]-\S+')


class Span(NamedTuple):
  """An entity: its type, and its first and last token, both of them inside."""

  type: str
  first: int
  last: int


def check_tag(tag: str, where: str) -> None:
  """Refuses a tag that has no form of any notation.

  Args:
    tag: `O`, or one of the letters B, I, E, S and M, a dash and a type without white space.
    where: its place, for the error.

  Raises:
    ValueError: it is neither.
  """
  if tag != OUTSIDE and _FORM.fullmatch(tag) is None:
    raise ValueError(
      f'{where} should have a tag that is O, or one of the letters B, I, E, S and M with a dash '
      f'and a type, as B-LOC, but has {tag[:80]!r}.'
    )


def tag_names(types: Iterable[str]) -> tuple[str, ...]:
  """All BIOES tags of these types: `O`, then those of each type.

  Example:
    >>> tag_names(['LOC'])
    ('O', 'B-LOC', 'I-LOC', 'E-LOC', 'S-LOC')
  """
  return (OUTSIDE, *(f'{letter}-{type}' for type in types for letter in 'BIES'))


def spans(tags: Sequence[str]) -> list[Span]:
  """The entities that conlleval reads from tags of any notation, legal or not, in their order.

  An entity begins at B and at S, and at any other letter behind `O`, E, S, another type
  or nothing. It goes on up to the next token that is `O` or begins an entity, or up to E or S.

  Args:
    tags: each of the form that `check_tag` says.

  Example:
    >>> spans(['I-LOC', 'I-LOC', 'O', 'E-PER'])
    [Span(type='LOC', first=0, last=1), Span(type='PER', first=3, last=3)]
  """
  found: list[Span] = []
  before, type_before = OUTSIDE, ''
  for place, tag in enumerate(tags):
    letter, _, type = tag.partition('-')
    if tag != OUTSIDE:
      if letter in 'BS' or before in 'OES' or type != type_before:
        found.append(Span(type, place, place))
      else:
        found[-1] = found[-1]._replace(last=place)
    before, type_before = letter, type
  return found


def tags_of(entities: Iterable[Span], length: int, notation: str = 'BIOES') -> tuple[str, ...]:
  """The tags of a sentence in a notation.

  Args:
    entities: in their order, apart from one another.
    length: tokens of the sentence.
    notation: one of `NOTATIONS`.

  Example:
    >>> tags_of([Span('LOC', 0, 0), Span('LOC', 1, 2)], 4, 'IOB1')
    ('I-LOC', 'B-LOC', 'I-LOC', 'O')
  """
  tags, before = [OUTSIDE] * length, Span('', -1, -1)
  for entity in entities:
    count = entity.last - entity.first + 1
    if notation in ('BIOES', 'BMES'):
      letters = 'S' if count == 1 else 'B' + notation[1] * (count - 2) + 'E'
    else:
      touches = (entity.type, entity.first) == (before.type, before.last + 1)
      letters = ('B' if notation == 'IOB2' or touches else 'I') + 'I' * (count - 1)
    tags[entity.first : entity.last + 1] = [f'{letter}-{entity.type}' for letter in letters]
    before = entity
  return tuple(tags)


def is_legal(tags: Sequence[str], notation: str) -> bool:
  """Whether these tags are what the notation writes for the entities that they mean."""
  return tuple(tags) == tags_of(spans(tags), len(tags), notation)


def notation_of(sentences: Sequence[Sequence[str]]) -> str | None:
  """The notation of the tags of a whole data set.

  It is the one that has all letters that occur and in which the fewest sentences are illegal; where
  several are equal, the first of IOB2, IOB1, BIOES and BMES. So tags that are only `O` and I are
  IOB1, where all of them are legal; `O` alone is IOB2, and entities of one token (S) are BIOES.
  The notation that is found changes nothing about the entities, which `spans` reads: it decides
  which sentences count as illegal.

  Args:
    sentences: tags, each of the form that `check_tag` says.

  Returns:
    Its name; None where no notation has all letters, as B, I and M.
  """
  letters = {tag[0] for tags in sentences for tag in tags} - {OUTSIDE}
  fitting = [name for name, known in NOTATIONS.items() if letters <= known]
  illegal = lambda name: sum(not is_legal(tags, name) for tags in sentences)
  return min(fitting, key=illegal, default=None)
