"""The words of a text, against what treebanks have."""

import pytest

from posjax.experiment.tasks.parsing.split import split

CASES = {
  "They don't see it, he's sure.": "They do n't see it , he 's sure .",
  'A well-known non-profit (of old)!': 'A well - known non-profit -LRB- of old -RRB- !',
  '"We won’t go," she said.': '" We wo n’t go , " she said .',
  'It costs $3.50 -- or 20% of $1,000.': 'It costs $ 3.50 -- or 20 % of $ 1,000 .',
  "Mr. Lee lives in the U.S., e.g. in Lee's.": "Mr. Lee lives in the U.S. , e.g. in Lee 's .",
  'I cannot, he said (really.)': 'I can not , he said -LRB- really . -RRB-',
  'See http://a.org/x-y, or me@b.com?': 'See http://a.org/x-y , or me@b.com ?',
  'Cats and/or dogs, 1999-2000...': 'Cats and / or dogs , 1999-2000 ...',
}


@pytest.mark.parametrize('text', CASES)
def test_words_are_those_of_a_treebank_and_stay_so(text):
  assert split(text) == CASES[text].split()
  assert split(CASES[text]) == CASES[text].split()


def test_signs_alone_are_words_and_spaces_are_none():
  assert split('  ') == []
  assert split('.') == ['.']
  assert split("' '") == ["'", "'"]
  assert split('( [ -LRB-') == ['-LRB-', '[', '-LRB-']
