"""The page in a real browser, where there is one."""

import re
import shutil
import subprocess

import pytest

from posjax.experiment.compare import page
from posjax.experiment.compare.summary import summarize
from tests.experiment.compare.made import RULES, grid, result

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking']
FLAGS += ['--disable-component-update', '--disable-sync', '--enable-logging=stderr']
FLAGS += ['--virtual-time-budget=2000', '--window-size=500,900', '--dump-dom']
ACT = """<script>
const press = i => document.querySelectorAll('#quality th button')[i].click();
press(1);
const svg = document.querySelector('svg'), dot = svg.querySelector('g circle');
const box = dot.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.x + 2, clientY: box.y + 2}));
const whole = document.documentElement, wide = whole.scrollWidth - whole.clientWidth;
document.body.append(Object.assign(document.createElement('b'), {id: 'wide', textContent: wide}));
</script></body>"""


def summary():
  cells = grid(['none', 'rope', 'alibi', 't5'], 3)
  unseen = {'none': (50, 40), 'rope': (70, 60), 'alibi': (20, 10)}
  ended = {
    cell.id: result([100, *(value + cell.seed for value in unseen[cell.scheme])])
    if cell.scheme in unseen
    else {'error': 'it <b>failed</b>'}
    for cell in cells
  }  # fmt: skip
  return summarize(cells, ended, 'none', RULES)


def browse(path, user):
  """The page after its scripts have run, and what the browser logged."""
  command = [CHROMIUM, *FLAGS, f'--user-data-dir={user}', path.as_uri()]
  done = subprocess.run(command, capture_output=True, text=True, timeout=120)
  return done.stdout, [line for line in done.stderr.splitlines() if 'CONSOLE' in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium')
def test_a_browser_shows_sorts_and_hovers_without_an_error(tmp_path):
  path = tmp_path / 'report.html'
  page.write(path, summary())
  path.write_text(path.read_text().replace('</body>', ACT))
  text, errors = browse(path, tmp_path / 'user')
  assert errors == []
  quality = text[text.index('id="quality"') : text.index('id="captions"')]
  firsts = re.findall(r'<tr><td[^>]*>([^<]*)', quality)
  assert firsts == ['rope', 'none', 'alibi', 't5']  # by unseen quality, and what has none last
  assert 'aria-sort="descending"' in quality
  assert 'it &lt;b&gt;failed' in quality
  assert len(re.findall(r'<figure>', text)) == 5
  shown = re.search(r'<div id="tip"([^>]*)>([^<]*)', text)
  assert 'hidden' not in shown[1]
  assert re.match(r'(none|rope|alibi)\nlength 8: 100', shown[2])
  assert re.search(r'id="wide">(-?\d+)<', text)[1] == '0'  # nothing sticks out on a phone


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium')
def test_an_error_of_the_page_would_be_seen(tmp_path):
  (tmp_path / 'wrong.html').write_text('<script>missing();</script>')
  assert browse(tmp_path / 'wrong.html', tmp_path / 'user')[1]
