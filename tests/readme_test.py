"""The README is true: its code runs, its table is that of the folder, its links lead to files."""

import re

import posjax
from tools import readme

TEXT = readme.README.read_text(encoding='utf-8')
EXAMPLES = re.findall(r'^```python\n(.*?)^```', TEXT, re.M | re.S)


def test_the_example_runs_in_about_twenty_lines():
  (example,) = EXAMPLES
  assert 18 <= len([line for line in example.splitlines() if line]) <= 26
  found = {}
  exec(compile(example, 'README.md', 'exec'), found)
  assert found['out'].shape == (2, 10, 4, 16)
  assert found['y'].shape == (2, 10, 64)
  assert posjax.places(found['layer'].layer.scheme) == ('query', 'key', 'bias')


def test_the_tables_of_schemes_are_the_folder():
  shown = TEXT.partition(readme.START)[2].partition(readme.END)[0].strip()
  assert shown == readme.tables(), 'The README is out of date; run: python tools/readme.py'


def test_every_scheme_has_a_line_in_one_table():
  for name in posjax.names():
    assert readme.tables().count(f'(posjax/schemes/{name}.py)') == 1


def test_schemes_named_in_the_text_can_be_read():
  before, _, after = TEXT.partition(readme.START)
  text = before + after.partition(readme.END)[2]
  quoted = re.findall(r"""[`=(]'([a-z0-9_()=.+,| ]+)'""", text)
  assert len(quoted) >= 5
  for pattern in quoted:
    for expression in pattern.split('|'):
      assert isinstance(posjax.get(expression), posjax.Scheme)


def test_links_into_the_repository_lead_to_files():
  targets = re.findall(r'\]\(([^)]+)\)', TEXT)
  local = {target.partition('#')[0] for target in targets if '://' not in target}
  assert 'docs/five_places.svg' in local
  assert not {target for target in local if not (readme.README.parent / target).exists()}


def test_the_two_marks_of_the_results_stand_once_each():
  for mark in ('<!-- results: measured numbers and their picture go here -->',
               '<!-- end of results -->'):  # fmt: skip
    assert TEXT.count(mark) == 1
