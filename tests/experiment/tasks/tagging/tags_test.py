"""Notations of tags: which sequences are legal, there and back, and what illegal ones mean."""

import itertools

import pytest

from posjax.experiment.tasks.tagging import tags as notations
from posjax.experiment.tasks.tagging.tags import Span, is_legal, notation_of, spans, tags_of


def sequences(letters, longest=4):
  """All tags of two types, up to a length."""
  names = ['O', *(f'{letter}-{type}' for letter in letters for type in 'XY')]
  for length in range(longest + 1):
    yield from itertools.product(names, repeat=length)


def fits(notation, before, tag, after):
  """Whether a tag may stand between two neighbours, by its letter's meaning; '' is the border."""
  same = lambda other, letters: other[:1] in [*letters] and other[1:] == tag[1:]
  if tag == 'O':
    return True
  if notation == 'IOB2':
    return tag[0] == 'B' or same(before, 'BI')
  if notation == 'IOB1':
    return tag[0] == 'I' or same(before, 'BI')
  middle = notation[1]
  ends_before = not before or before[0] in 'OES'
  begins_after = not after or after[0] in 'OBS'
  return {
    'B': ends_before and same(after, middle + 'E'),
    middle: same(before, 'B' + middle) and same(after, middle + 'E'),
    'E': same(before, 'B' + middle) and begins_after,
    'S': ends_before and begins_after,
  }[tag[0]]


def entities(notation, tags):
  """The entities of legal tags, by hand: each place alone says whether one begins there."""
  found, place = [], 0
  while place < len(tags):
    tag, last = tags[place], place
    if tag != 'O':
      if notation in ('IOB1', 'IOB2'):
        while tags[last + 1 : last + 2] == (f'I{tag[1:]}',):
          last += 1
      else:
        while tags[last][0] not in 'ES':
          last += 1
      found.append((tag[2:], place, last))
    place = last + 1
  return found


@pytest.mark.parametrize('notation', notations.NOTATIONS)
def test_legal_sequences_are_the_same_there_and_back_and_no_others_are_legal(notation):
  known = notations.NOTATIONS[notation]
  counted = 0
  for tags in sequences(sorted(known)):
    bordered = ('', *tags, '')
    legal = all(fits(notation, *bordered[at : at + 3]) for at in range(len(tags)))
    assert is_legal(tags, notation) == legal, tags
    if legal:
      assert spans(tags) == entities(notation, tags)
      for other in notations.NOTATIONS:
        there = tags_of(spans(tags), len(tags), other)
        assert is_legal(there, other)
        assert tags_of(spans(there), len(tags), notation) == tags
      counted += 1
  assert counted == 1 + 3 + 11 + 41 + 153  # as many in every notation


def test_illegal_tags_are_read_as_conlleval_and_seqeval_read_them():
  # A new entity begins, or the one before ends, between two tags of one type: the rows of the
  # tables of conlleval's startOfChunk and endOfChunk, with seqeval's for S.
  begins = {*('BB', 'IB', 'OB', 'OI', 'EE', 'EI', 'OE', 'EB', 'SB', 'SE', 'SI')}
  begins |= {'BS', 'IS', 'OS', 'ES', 'SS'}
  ends = {*('BB', 'BO', 'IB', 'IO', 'EE', 'EI', 'EO', 'EB', 'ES', 'BS', 'IS')}
  ends |= {'SB', 'SI', 'SE', 'SS', 'SO'}
  for tags in sequences('BIES'):
    found, first = [], None
    for at, (before, tag) in enumerate(itertools.pairwise(('O', *tags, 'O'))):
      pair, other_type = before[0] + tag[0], before[2:] != tag[2:]
      if before != 'O' and (pair in ends or other_type):
        found.append((before[2:], first, at - 1))
      if tag != 'O' and (pair in begins or other_type):
        first = at
    assert spans(tags) == found, tags


@pytest.mark.parametrize(
  ('tags', 'expected'),
  [
    ('I-X I-X', [('X', 0, 1)]),
    ('O I-X B-X I-X', [('X', 1, 1), ('X', 2, 3)]),
    ('B-X I-Y I-Y', [('X', 0, 0), ('Y', 1, 2)]),
    ('E-X E-X O', [('X', 0, 0), ('X', 1, 1)]),
    ('B-X O E-X', [('X', 0, 0), ('X', 2, 2)]),
    ('S-X I-X', [('X', 0, 0), ('X', 1, 1)]),
    ('B-X M-X M-X', [('X', 0, 2)]),
    ('B-a-b I-a-b I-a', [('a-b', 0, 1), ('a', 2, 2)]),
  ],
)
def test_illegal_tags_by_hand(tags, expected):
  assert spans(tags.split()) == [Span(*each) for each in expected]


@pytest.mark.parametrize(
  ('sentences', 'expected'),
  [
    (['O O'], 'IOB2'),
    (['O I-X', 'I-Y O'], 'IOB1'),
    (['I-X B-X'], 'IOB1'),
    (['B-X I-X', 'B-X O'], 'IOB2'),
    (['B-X I-X', 'B-Y', 'I-X'], 'IOB2'),
    (['I-X', 'I-X', 'B-X'], 'IOB1'),
    (['B-X', 'I-X'], 'IOB2'),  # one illegal sentence in both
    (['B-X E-X'], 'BIOES'),
    (['S-X'], 'BIOES'),
    (['B-X I-X', 'S-X'], 'BIOES'),
    (['B-X M-X E-X'], 'BMES'),
    (['M-X'], 'BMES'),
    (['B-X M-X', 'I-X'], None),
  ],
)
def test_the_notation_has_all_letters_and_the_fewest_illegal_sentences(sentences, expected):
  assert notation_of([sentence.split() for sentence in sentences]) == expected
