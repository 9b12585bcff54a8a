"""The page: its tables, sentences and pictures, and its script in a browser, where there is one."""

import base64
import re
import shutil
import subprocess

import pytest

from posjax.experiment.colours import colour
from posjax.experiment.compare import page
from posjax.experiment.compare.origin import Origin
from posjax.experiment.compare.summary import summarize
from tests.experiment.compare.made import RULES, grid, result

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')


def written(folder, qualities, seeds=2, change=lambda cell, line: line, made=None):
  """The text of the page of a grid whose runs have these qualities, by scheme."""
  cells = grid(list(qualities), seeds)
  lines = {
    cell.id: change(cell, result(qualities[cell.scheme]))
    if qualities[cell.scheme]
    else {'error': 'it <b>failed</b>'}
    for cell in cells
  }
  page.write(folder / 'report.html', summarize(cells, lines, next(iter(qualities)), RULES), made)
  return (folder / 'report.html').read_text()


def test_the_page_holds_the_numbers_and_nothing_from_elsewhere(tmp_path):
  mine = "rope(base=5e5)+mine('</script>')"
  text = written(tmp_path, {'none': [100, 50, 40], mine: [100, 70, 60], 'alibi': None})
  assert not re.search(r'(src|href)="(?!data:)|@import|url\(|fetch\(|import\(', text)
  assert '<td>+20.0 [' in text.replace(' class=""', '')
  assert text.count('mine(&#x27;&lt;/script&gt;&#x27;)</td>') == 3  # tables
  assert 'it &lt;b&gt;failed' in text
  assert text.count('</script>') == 1
  assert [f'>{heading}</th>' in text for heading in ('8', '16', '32', 'verdict', 'tokens/s')]
  assert f'<i style="background: {colour("none")}"></i>none' in text


def test_the_page_embeds_the_pictures_that_lie_beside_it(tmp_path):
  text = written(tmp_path, {'none': [100, 50], 'rope': [100, 60]})
  embedded = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
  names = 'quality_by_length', 'loss_by_step', 'quality_by_seed', 'quality_by_cost'
  files = [(tmp_path / f'{name}.svg').read_bytes() for name in names]
  assert [base64.b64decode(each) for each in embedded] == files
  assert f'stroke: {colour("rope")}' in files[0].decode()  # as on the page


def test_costs_without_a_range_are_told_and_not_drawn(tmp_path):
  def change(cell, line):
    speed = 900.0 if cell.scheme == 'rope' else 1200.0
    more = 2 * (cell.scheme == 'rope')
    return {**line, 'parameters': 1000 + more, 'tokens_per_second': speed}

  text = written(tmp_path, {'none': [100, 50], 'rope': [100, 60]}, change=change)
  told = re.findall('have the same to within 1 %: ([^<]*)', text)
  assert told == ['1,001 parameters.', '5 memory of a step, MB.']
  drawn = (tmp_path / 'quality_by_cost.svg').read_text()
  assert '<!-- tokens per second -->' in drawn
  assert '<!-- parameters -->' not in drawn


def test_where_nothing_was_learned_the_page_says_what_to_do(tmp_path):
  made = Origin('it', '', {'steps': 350})
  text = written(tmp_path, {'none': [95, 20], 'rope': [40, 20]}, made=made)
  assert 'No run of rope has learned what it was trained on (at least 90 %' in text
  wanted = '--config.steps=700 (it was 350)', '--config.compare.learned'
  for part in (*wanted, '--config.optimizer.learning_rate'):
    assert part in text
  assert '>40.0*<' not in text.partition('By length')[0]  # trained: a mean of all
  assert '>20.0*<' in text
  assert 'has learned what it was' not in written(tmp_path, {'none': [100, 50]})
  nothing = written(tmp_path, {'none': [10, 5], 'rope': [10, 5]})
  assert 'No run of any scheme has learned' in nothing


@pytest.mark.slow
def test_small_plots_begin_where_curves_would_cover_one_another(tmp_path):
  schemes = ['none', 'rope', 'alibi', 't5', 'shaw', 'fire', 'kerple', 'sinusoidal']
  for some in (schemes[:7], schemes):
    written(tmp_path, {name: [100, 50] for name in some}, 1)
    drawn = (tmp_path / 'quality_by_length.svg').read_text()
    assert drawn.count('id="axes_') == (1 if some != schemes else 8)


SORT = """<script>
document.querySelectorAll('th')[3].click();
document.body.append(Object.assign(document.createElement('b'), {id: 'seen', textContent:
  [...document.querySelectorAll('tbody')[0].rows].map(row => row.cells[0].textContent).join(' ')}));
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium')
def test_a_click_on_a_heading_sorts_by_its_numbers(tmp_path):
  qualities = {'none': [100, 50], 'rope': [100, 70], 'alibi': [100, 9], 't5': None}
  text = written(tmp_path, qualities)
  (tmp_path / 'report.html').write_text(text.replace('</body>', SORT))
  command = [CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--dump-dom']
  command += [f'--user-data-dir={tmp_path / "user"}', (tmp_path / 'report.html').as_uri()]
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  assert re.search('id="seen">([^<]*)<', done.stdout)[1] == 'rope none alibi t5'
