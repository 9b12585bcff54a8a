"""Every kind of data reads its expression with one function, and words its error alike."""

import pytest

from posjax.experiment.data.expression import parse
from posjax.experiment.tasks.algorithmic import data as questions
from posjax.experiment.tasks.algorithmic.framing import DECODER
from posjax.experiment.tasks.classification import data as labelled
from posjax.experiment.tasks.language_modelling import data as text

FORMS = ('docs', 'file:PATH', 'tfds:NAME', 'synthetic:order', 'synthetic:copy')


@pytest.mark.parametrize(
  ('expression', 'expected'),
  [
    ('docs', ('docs', '')),
    ('file:a/b.txt', ('file', 'a/b.txt')),
    ('file:a:b', ('file', 'a:b')),  # cut at the first colon alone
    ('file:PATH', ('file', 'PATH')),  # which may well be the name of a file
    ('tfds:glue/sst2#sentence', ('tfds', 'glue/sst2#sentence')),
    ('synthetic:order', ('synthetic', 'order')),
  ],
)
def test_an_expression_is_cut_into_its_kind_and_its_argument(expression, expected):
  assert parse('data', expression, FORMS) == expected


@pytest.mark.parametrize(
  ('expression', 'hint'),
  [
    ('doc', "; did you mean 'docs'?"),
    ('docs:', "; did you mean 'docs'?"),
    ('docs:x', "; did you mean 'docs'?"),
    ('file:', "; did you mean 'file:PATH'?"),
    ('file', "; did you mean 'file:PATH'?"),
    ('flie:order', "; did you mean 'file:PATH'?"),
    ('synthetic:ordr', "; did you mean 'synthetic:order'?"),
    ('syntetic:copy', "; did you mean 'synthetic:copy'?"),
    ('synthetic:', '.'),
    ('synthetic:zzzzzzzzzzzzzzzzzzzzzzzzzz', '.'),
    ('', '.'),
    (':', '.'),
  ],
)
def test_the_error_says_what_was_given_what_was_meant_and_what_there_is(expression, hint):
  with pytest.raises(ValueError) as error:  # noqa: PT011 -- the whole sentence is compared
    parse('data', expression, FORMS)
  assert str(error.value) == f"Unknown data '{expression}'{hint} There are: {', '.join(FORMS)}."


SIZES = {'seed': 0, 'shortest': None, 'longest': 4, 'eval_factors': (1,), 'eval_lengths': ()}


@pytest.mark.parametrize(
  ('what', 'read', 'forms'),
  [
    ('text', text.read, text.FORMS),
    ('labelled texts', labelled.read, labelled.FORMS),
    ('questions', lambda line: questions.read(line, DECODER, **SIZES), questions.FORMS),
  ],
)
def test_every_kind_words_its_error_alike(what, read, forms):
  with pytest.raises(ValueError) as error:  # noqa: PT011 -- the whole sentence is compared
    read('file:')
  hint = "; did you mean 'file:PATH'?"
  assert str(error.value) == f"Unknown {what} 'file:'{hint} There are: {', '.join(forms)}."


def test_a_home_folder_that_there_is_not_is_refused_in_one_sentence():
  with pytest.raises(ValueError, match=r"must name a user with a home folder, but got '~nobody_"):
    text.read('file:~nobody_of_this_name/x')
