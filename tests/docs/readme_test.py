"""README is true: its code runs, its links lead somewhere; tools/ writes its table and a page."""

import json
import re
import types

import numpy as np
import pytest

import posjax
from posjax import interop
from tools import schemes_page

TEXT = schemes_page.README.read_text(encoding='utf-8')
PAGES = [schemes_page.README, *sorted((schemes_page.ROOT / 'docs').glob('*.md'))]
EXAMPLES = re.findall(r'^```python\n(.*?)^```', TEXT, re.M | re.S)
LLAMA = {
  **{'model_type': 'llama', 'hidden_size': 8, 'num_attention_heads': 2, 'vocab_size': 257},
  **{'num_key_value_heads': 1, 'num_hidden_layers': 1, 'rope_theta': 5e5, 'rms_norm_eps': 1e-6},
  **{'intermediate_size': 16, 'tie_word_embeddings': True},
}


@pytest.fixture(scope='module')
def first():
  """The names that the first example leaves behind; the others go on from them."""
  found = {}
  exec(compile(EXAMPLES[0], 'README.md', 'exec'), found)
  return found


def test_the_first_example_runs_in_about_ten_lines(first):
  assert 8 <= len([line for line in EXAMPLES[0].splitlines() if line]) <= 12
  assert first['out'].shape == (2, 10, 4, 16)
  assert posjax.places(first['scheme']) == ('query', 'key', 'bias')


def test_the_examples_for_a_model_run_after_the_first(first, tmp_path, monkeypatch):
  _, layers, checkpoint = EXAMPLES
  found = {**first}
  exec(compile(layers, 'README.md', 'exec'), found)
  assert found['y'].shape == (2, 10, 64)
  assert found['layer'].layer.scheme == found['scheme']
  (tmp_path / 'tokens').mkdir()
  interop.byte_level(tmp_path / 'tokens')
  interop.save(interop.create(LLAMA), tmp_path / 'FOLDER', tokenizer=tmp_path / 'tokens')
  monkeypatch.chdir(tmp_path)
  exec(compile(checkpoint, 'README.md', 'exec'), found)
  assert found['said'].shape == (1, 100)
  assert found['model'].schemes[0].line.endswith('base=500000.0)')


def test_the_page_of_schemes_and_readmes_table_are_those_of_the_folder():
  shown = schemes_page.PAGE.read_text(encoding='utf-8')
  assert shown == schemes_page.page(), 'Out of date; run: python tools/schemes_page.py'
  assert schemes_page.readme(TEXT) == TEXT, 'Out of date; run: python tools/schemes_page.py'


def test_every_scheme_has_one_entry_with_all_of_its_arguments():
  page = schemes_page.page()
  for name in posjax.names():
    assert page.count(f'\n### `{name}`\n') == 1
    assert page.count(f'(../posjax/schemes/{name}.py)') == 1
  entry = page.partition('### `yarn`')[2].partition('###')[0]
  assert '`original_length`: the length in training' in entry
  assert 'Place 2: `query`, `key` ·' in entry
  assert '`base=10000.0`, `fraction=1.0`' in entry
  assert f'(#{schemes_page.anchor(schemes_page.FAMILY)})' in entry
  assert (
    'Places 2: `query`; 3: `logits` ·' in page.partition('### `deberta`')[2].partition('###')[0]
  )
  family = page.partition(f'## {schemes_page.FAMILY}')[2]
  for shared in ('base', 'factor', 'fraction', 'interleaved', 'values'):
    assert family.count(f'\n- `{shared}`: ') == 1


def test_a_scheme_that_does_not_describe_an_argument_is_refused():
  def scheme(width, height):
    """Something.

    Args:
      width: one of its arguments.
    """

  module = types.SimpleNamespace(__name__='one', scheme=scheme)
  with pytest.raises(ValueError, match=r"one's scheme must describe \['width', 'height'\]"):
    schemes_page.arguments(module)


def test_schemes_named_in_the_text_can_be_read():
  before, _, after = TEXT.partition(schemes_page.START)
  text = before + after.partition(schemes_page.END)[2]
  quoted = re.findall(r"""[`=(]'([a-z0-9_()=.+,| ]+)'""", text)
  # In prose a scheme stands in backticks, with arguments or in a chain; a bare name may need some.
  names = '|'.join(posjax.names())
  quoted += re.findall(rf'`((?:{names})(?:\([^`]*\)|\+)[^`]*)`', text)
  assert len(quoted) >= 5
  for pattern in quoted:
    for expression in pattern.split('|'):
      assert isinstance(posjax.get(expression), posjax.Scheme)


def headings(path):
  """The addresses of a page's headings, as GitHub makes them."""
  lines = re.findall(r'^#+ (.+)$', path.read_text(encoding='utf-8'), re.M)
  return {schemes_page.anchor(line) for line in lines}


def test_releases_agree_on_the_version_the_year_and_the_address():
  files = ('README.md', 'CITATION.cff', 'pyproject.toml')
  readme, citation, project = ((schemes_page.ROOT / f).read_text(encoding='utf-8') for f in files)
  form = r'^%s: ([^#\n]+?)\s*(?:#.*)?$'
  cff = {
    name: re.search(form % name, citation, re.M)[1].strip("'")
    for name in ('version', 'date-released', 'repository-code', 'title', 'license')
  }
  cited = dict(re.findall(r'^  (\w+) = \{+(.*?)\}+,$', TEXT, re.M))
  assert cff['version'] == cited['version'] == posjax.__version__
  assert re.fullmatch(r'\d{4}-\d\d-\d\d', cff['date-released'])
  assert cff['date-released'].startswith(cited['year'])
  assert cff['title'] == cited['title']
  assert f'license = "{cff["license"]}"' in project
  (address,) = re.findall(r'^Repository = "(.*)"', project, re.M)
  assert cff['repository-code'] == cited['url'] == address
  # Until it is known, the address stands once in each file, which says that it is to be filled in.
  for text in (readme, citation, project):
    assert text.count(address) == 1
    marked = re.search(r'to be filled in at release', text) is not None
    assert marked == ('example.invalid' in address)


def test_links_into_the_repository_lead_to_files_and_headings():
  seen = set()
  for page in PAGES:
    for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text(encoding='utf-8')):
      if '://' in target:
        continue
      file, _, heading = target.partition('#')
      path = (page.parent / file) if file else page
      assert path.exists(), f'{page.name} links to {target}'
      if heading:
        assert heading in headings(path), f'{page.name} links to {target}'
      seen.add(file)
  assert {'docs/five_places.svg', 'docs/schemes.md', 'RESULTS.md'} <= seen


def test_it_is_read_once():
  lines = [line for line in TEXT.splitlines() if line]
  assert len(lines) <= 130
  sentences = [s for line in lines for s in re.split(r'(?<=[.:]) ', line) if len(s) > 40]
  assert len(sentences) == len(set(sentences))


def test_the_table_of_results_is_the_mean_of_the_lines_that_lie_in_results():
  lines = (schemes_page.ROOT / 'results' / 'reach.jsonl').read_text(encoding='utf-8').splitlines()
  runs = [json.loads(line) for line in lines]
  table = TEXT.partition('| scheme | 256, trained')[2].partition('\n\n')[0]
  rows = [row.strip('| ').split(' | ') for row in table.splitlines()[2:]]
  assert {row[0].strip('`') for row in rows} == {run['scheme'] for run in runs}
  for scheme, *shown, seeds in rows:
    losses = [run['loss'] for run in runs if run['scheme'] == scheme.strip('`')]
    assert len(losses) == int(seeds)
    for length, number in zip(('256', '512', '1024', '2048'), shown, strict=True):
      found = [loss[length] for loss in losses]
      mean = 'beyond its table' if None in found else f'{np.mean(found):.3f}'
      assert number == mean


def test_the_two_marks_of_the_results_stand_once_each():
  for mark in ('<!-- results: measured numbers and their picture go here -->',
               '<!-- end of results -->'):  # fmt: skip
    assert TEXT.count(mark) == 1


def test_a_file_of_a_scheme_that_lacks_something_is_named_and_no_page_is_written(
  monkeypatch, tmp_path
):
  module = types.ModuleType('posjax.schemes.recency', 'Recent keys weigh more.')
  module.scheme = lambda rate: posjax.get('none')
  module.PAPERS = ()
  monkeypatch.setitem(schemes_page.sys.modules, module.__name__, module)
  monkeypatch.setattr(posjax, 'names', lambda: ('none', 'recency'))
  monkeypatch.setattr(schemes_page, 'PAGE', tmp_path / 'schemes.md')
  with pytest.raises(SystemExit) as ended:
    schemes_page.main()
  said = str(ended.value)
  assert said.startswith(
    'schemes_page.py: error: posjax/schemes/recency.py must have a docstring of '
  )
  for part in ('`SHIFT_INVARIANT`', '`EXAMPLE`, a line that gives rate', '`scheme`; '):
    assert part in said
  assert 'PAPERS' not in said
  assert '\n' not in said
  assert not (tmp_path / 'schemes.md').exists()
