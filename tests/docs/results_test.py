"""RESULTS.md: its links lead somewhere, and its verdicts say what their intervals say."""

import math
import re

import pytest

from posjax.experiment.compare.statistics import Interval, verdict
from tests.support.paths import ROOT

# Spaces that do not break hold the intervals of the table of claims together.
TEXT = (ROOT / 'RESULTS.md').read_text(encoding='utf-8').replace('&nbsp;', ' ')
NUMBER = r'[-+]?\d+(?:\.\d+)?'
WORD = r'better|worse|unresolved|equal within [\d.]*\d'
DIFFERENCE = re.compile(rf'[-+][\d.]+ \[({NUMBER}), ({NUMBER})\](?: \([^)]*\))?, ({WORD})')
LOSSES = re.compile('bits', re.IGNORECASE)  # fewer are better
VERDICTS = (
  'reproduced', 'unresolved', 'contradicted', 'unlearned', 'measured', 'not run', 'running'
)  # fmt: skip
COUNTS = ('no', 'one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten',
          'eleven', 'twelve', 'thirteen', 'fourteen')  # fmt: skip


def sections(text):
  """The text below each heading, by heading."""
  parts = re.split(r'^#+ (.*)$', text, flags=re.MULTILINE)
  return dict(zip(parts[1::2], parts[2::2], strict=True))


def anchor(heading):
  """The name that GitHub gives to a heading."""
  return re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')


def wrong_words(heading, text):
  """Differences of a section with a word that their interval does not bear out."""
  higher = not LOSSES.search(heading + text)
  found = DIFFERENCE.finditer(text)
  words = ((each[0], each[3], Interval(0, float(each[1]), float(each[2]), 3)) for each in found)
  return [
    shown
    for shown, word, interval in words
    if not word.startswith('equal') and word != verdict(interval, higher)  # see intervals_test
  ]


def claims():
  """The rows of the table of claims, each as its cells."""
  lines = [line for line in sections(TEXT)['Claims'].splitlines() if line.startswith('| ')]
  return [re.split(r' *\| *', line.strip('| ')) for line in lines[2:]]


def test_every_link_leads_to_a_file_or_a_heading():
  anchors = [anchor(heading) for heading in sections(TEXT)]
  assert len(anchors) == len(set(anchors))
  links = re.findall(r'\]\(([^)]*)\)', TEXT)
  assert len(links) > 100
  for link in links:
    file, _, heading = link.partition('#')
    assert (ROOT / file).is_file() if file else heading in anchors, link


def test_every_word_of_a_difference_is_the_verdict_of_its_interval():
  wrong = {heading: wrong_words(heading, text) for heading, text in sections(TEXT).items()}
  assert {heading: found for heading, found in wrong.items() if found} == {}
  assert len(DIFFERENCE.findall(TEXT)) > 70


@pytest.mark.parametrize(
  ('heading', 'text', 'wrong'),
  [
    ('Accuracy', '+2.00 [+1.00, +3.00], better', False),
    ('Accuracy', '+2.00 [+1.00, +3.00], worse', True),
    ('Accuracy', '+2.00 [-1.00, +5.00] (+1.1), better', True),
    ('Bits', '+2.00 [+1.00, +3.00], worse', False),
  ],
)
def test_a_wrong_word_would_be_found(heading, text, wrong):
  assert bool(wrong_words(heading, text)) == wrong


def test_every_claim_has_a_verdict_and_the_intervals_of_the_table_are_counted():
  for row in claims():
    assert len(row) == 5, row
    assert row[3].startswith(VERDICTS), row
  intervals = re.findall(rf'\[({NUMBER}), ({NUMBER})\]', ' '.join(row[2] for row in claims()))
  said = re.search(r'The (\d+) intervals .* so that ([\d.]+) of them', sections(TEXT)['Claims'])
  assert len(intervals) == int(said[1])
  assert math.isclose(0.05 * len(intervals), float(said[2]))


def failed(row):
  """Whether a claim failed: it is contradicted, or its intervals leave out the paper's size."""
  size = re.search(rf"the paper's ({NUMBER}) is excluded", row[3])
  intervals = re.findall(rf'\[({NUMBER}), ({NUMBER})\]', row[2])
  if size:
    assert row[3].startswith('unresolved')
    assert intervals
    assert not any(float(low) <= float(size[1]) <= float(high) for low, high in intervals)
  return bool(size) or row[3].startswith('contradicted')


def test_the_claims_in_bold_are_those_that_failed_and_are_counted():
  rows = claims()
  for row in rows:
    assert row[0].startswith('**') == failed(row), row
  contradicted = sum(row[3].startswith('contradicted') for row in rows)
  excluded = sum(map(failed, rows)) - contradicted
  said = re.search(
    r'What failed\?\*\* (\w+) claims .*? (\w+) are contradicted .*? Of (\w+) the difference is ',
    sections(TEXT)['Short answers'],
  )
  counts = [COUNTS.index(word.lower()) for word in said.groups()]
  assert counts == [contradicted + excluded, contradicted, excluded]


def test_a_size_of_the_paper_outside_of_its_interval_is_said_to_be_excluded():
  for row in claims():
    intervals = re.findall(rf'\[({NUMBER}), ({NUMBER})\]', row[2])
    size = re.fullmatch(rf'(?:.*: )?({NUMBER})', row[1])
    if size and len(intervals) == 1 and not row[3].startswith('contradicted'):
      ((low, high),) = intervals
      assert failed(row) != (float(low) <= float(size[1]) <= float(high)), row


def test_every_data_set_of_a_command_has_a_row_on_the_page_of_data():
  page = (ROOT / 'docs' / 'data.md').read_text(encoding='utf-8')
  named = set(re.findall(r'\.\./shared/data/((?:sentconv/)?\w+)', TEXT)) - {'sentconv'}
  assert {'text8', 'multi30k', 'sentconv/trec', 'resume_ner'} <= named
  for folder in named:
    assert f'\n| `{folder}` |' in page, folder
  sections_of = re.split(r'^## ', page, flags=re.M)[2:]
  assert len(sections_of) >= 7
  for section in sections_of:
    files = re.findall(r'^[0-9a-f]{64}  (\S+)$', section, re.M)
    assert files == re.findall(r'`(\S+)` [\d,]+(?=[,.])', section.partition('Bytes: ')[2])
    assert len(files) >= 2


def test_no_line_of_code_is_wider_than_its_page():
  """In a window of 838 pixels GitHub shows 90 letters of code; a longer line would scroll."""
  for page in [*sorted(ROOT.glob('*.md')), *sorted((ROOT / 'docs').glob('*.md'))]:
    for block in re.findall(r'^```.*?\n(.*?)^```', page.read_text(encoding='utf-8'), re.M | re.S):
      assert max(map(len, block.splitlines())) <= 90, page.name
