"""RESULTS.md: its links lead somewhere, and its verdicts say what their intervals say."""

import math
import re
from pathlib import Path

import pytest

from posjax.experiment.compare.statistics import Interval, verdict

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / 'RESULTS.md').read_text(encoding='utf-8')
NUMBER = r'[-+]?\d+(?:\.\d+)?'
WORD = 'better|worse|unresolved|above|below'  # the last two were the words of earlier versions
DIFFERENCE = re.compile(rf'[-+][\d.]+ \[({NUMBER}), ({NUMBER})\](?: \([^)]*\))?, ({WORD})')
LOSSES = re.compile('bits', re.IGNORECASE)  # fewer are better
VERDICTS = 'reproduced', 'unresolved', 'contradicted', 'not run', 'running'


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
  return [shown for shown, word, interval in words if word != verdict(interval, higher)]


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
    assert link[1:] in anchors if link.startswith('#') else (ROOT / link).is_file(), link


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
    ('Bits', '+2.00 [+1.00, +3.00], above', True),
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
