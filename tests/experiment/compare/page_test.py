"""The page: its content, and how it looks in a real browser, where there is one."""

import json
import re
import shutil
import subprocess

import pytest

from posjax.experiment.colours import colour
from posjax.experiment.compare import page, plots
from posjax.experiment.compare.origin import Origin
from posjax.experiment.compare.summary import summarize
from tests.experiment.compare.made import RULES, grid, result

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking']
FLAGS += ['--disable-component-update', '--disable-sync', '--enable-logging=stderr']
FLAGS += ['--virtual-time-budget=2000', '--dump-dom']
ACT = """<script>
const press = i => document.querySelectorAll('#quality th button')[i].click();
press(3);
const plots = [...document.querySelectorAll('figure')];
const svg = plots.find(each => each.textContent.startsWith('By length')).querySelector('svg');
const dot = svg.querySelector('g circle:not(.seed)');
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


def with_axes():
  cells = grid(['none', 'rope'], 3, axes=[('model.num_layers', (2, 4))])
  qualities = {2: [100, 50, 40], 4: [100, 90, 80]}
  ended = {cell.id: result(qualities[cell.axes['model.num_layers']]) for cell in cells}
  return summarize(cells, ended, 'none', RULES)


def content(qualities, seeds=3, change=lambda cell, line: line, rules=RULES):
  """The content of the page of a grid whose runs have these qualities, by scheme."""
  cells = grid(list(qualities), seeds)
  lines = {cell.id: change(cell, result(qualities[cell.scheme])) for cell in cells}
  return page.content(summarize(cells, lines, next(iter(qualities)), rules))


def test_every_seed_is_on_the_page_with_its_own_numbers():
  runs = page.content(summary())['rows'][1]['runs']
  assert [(run['seed'], run['unseen']) for run in runs] == [(0, 65), (1, 66), (2, 67)]
  assert [run['byLength'][16] for run in runs] == [70, 71, 72]


def test_percentages_stay_within_0_and_100_on_axes_and_in_intervals():
  cells = grid(['none', 'rope'], 2)
  unseen = iter([99.0, 90.0, 1.0, 6.0])
  lines = {cell.id: result([100, next(unseen)]) for cell in cells}
  found = page.content(summarize(cells, lines, 'none', RULES))
  assert [row['unseen'][1:] for row in found['rows']] == [[0, 100], [0, 100]]
  assert [row['byLength'][16][1:] for row in found['rows']] == [[0, 100], [0, 100]]
  # Differences of shares are no shares.
  assert found['rows'][1]['difference'][1] < -10
  assert found['panels'][0]['unseen'] == found['panels'][0]['byLength'] == (0, 100)
  assert 'cut where such numbers end' in found['captions'][0]


def test_costs_without_a_range_are_told_and_not_drawn():
  def change(cell, line):
    return {**line, 'parameters': 1000 + 2 * (cell.scheme == 'rope'), 'tokens_per_second': (
      900.0 if cell.scheme == 'rope' else 1200.0
    )}  # fmt: skip

  (panel,) = content({'none': [100, 50], 'rope': [100, 60]}, change=change)['panels']
  assert [cost['key'] for cost in panel['costs']] == ['tokens_per_second']
  assert panel['alike'] == [
    'Unseen, by parameters: not drawn, as all have 1,001 parameters, to within 1 %.',
    'Unseen, by memory of a step: not drawn, as all have 5 MB, to within 1 %.',
  ]


def test_where_nothing_was_learned_curves_are_grey_and_the_page_says_what_to_do():
  cells = grid(['none', 'rope'], 2)
  lines = {cell.id: result([95 if cell.scheme == 'none' else 40, 20]) for cell in cells}
  found = summarize(cells, lines, 'none', RULES)
  shown = page.content(found, Origin('it', '', {'steps': 350}))
  assert [row['grey'] for row in shown['rows']] == [False, True]
  assert shown['rows'][1]['byLength'] == {8: [40, None, None], 16: [20, None, None]}
  advice = shown['panels'][0]['advice']
  assert advice.startswith('No run of rope has learned what it was trained on (at least 90 %')
  wanted = '--config.steps=700 (it was 350)', '--config.compare.learned_accuracy'
  for part in ('nearest mean of a scheme is 40', *wanted, '--config.optimizer.learning_rate'):
    assert part in advice
  assert content({'none': [100, 50]})['panels'][0]['advice'] == ''
  nothing = content({'none': [10, 5], 'rope': [10, 5]})
  assert nothing['panels'][0]['advice'].startswith('No run of any scheme has learned')


def test_small_plots_begin_where_curves_would_cover_one_another():
  schemes = ['none', 'rope', 'alibi', 't5', 'shaw', 'fire', 'kerple', 'sinusoidal']
  many = [content({name: [100, 50] for name in some}, 1) for some in (schemes[:7], schemes)]
  assert [each['panels'][0]['many'] for each in many] == [False, True]


def test_a_scheme_has_one_colour_on_the_page_and_in_the_pictures_of_any_grid():
  pair, three = (
    {row['scheme']: row['colour'] for row in content({n: [100, 50] for n in names}, 1)['rows']}
    for names in (['none', 'rope'], ['alibi', 'rope', 'none'])
  )
  assert pair.items() <= three.items()
  assert plots._styles(summary())['rope']['color'] == three['rope'] == colour('rope')
  assert len(set(three.values())) == 3


def browse(path, user, width=500):
  """The page after its scripts have run, and what the browser logged."""
  command = [
    CHROMIUM,
    *FLAGS,
    f'--window-size={width},900',
    f'--user-data-dir={user}',
    path.as_uri(),
  ]
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
  firsts = re.findall(r'<tr><td[^>]*><svg.*?</svg>([^<]*)', quality)
  assert firsts == ['rope', 'none', 'alibi', 't5']  # by unseen quality, and what has none last
  assert 'aria-sort="descending"' in quality
  assert re.findall('<button type="button">([^<]*)<', quality) == [
    *('scheme', 'learned', 'trained', 'unseen', 'minus none', 'verdict', 'note')  # as printed
  ]
  assert '>+20.0<small>[' in quality
  assert 'it &lt;b&gt;failed' in quality
  assert len(re.findall(r'<figure class', text)) == 3  # their costs are alike
  assert text.count('class="seed"') >= 9
  shown = re.search(r'<div id="tip"([^>]*)>([^<]*)', text)
  assert 'hidden' not in shown[1]
  assert re.match(r'(none|rope|alibi)\nlength 8: 100', shown[2])
  assert re.search(r'id="wide">(-?\d+)<', text)[1] == '0'  # nothing sticks out on a phone


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium')
def test_an_error_of_the_page_would_be_seen(tmp_path):
  (tmp_path / 'wrong.html').write_text('<script>missing();</script>')
  assert browse(tmp_path / 'wrong.html', tmp_path / 'user')[1]


MEASURE = """<script>{
const every = which => [...document.querySelectorAll(which)];
const style = (each, name) => parseFloat(getComputedStyle(each)[name]);
const hidden = which => Math.max(...every(which).map(each => each.scrollWidth - each.clientWidth));
const letters = every('svg text').map(each => {
  const svg = each.ownerSVGElement, drawn = svg.getBoundingClientRect().width;
  return style(each, 'fontSize') * drawn / svg.viewBox.baseVal.width;
});
letters.push(...every('td small').map(each => style(each, 'fontSize')));
const seen = {
  boxes: hidden('.scroll'), names: hidden('.small b'), letters: Math.min(...letters),
  lines: Math.min(...every('td').map(each => style(each, 'borderTopWidth'))),
  top: document.querySelector('#quality').getBoundingClientRect().top,
  folded: !document.querySelector('details').open,
  groups: every('#quality td.group').length,
  dots: every('figure text.name').filter(each => each.textContent === 'rope').length,
};
document.querySelector('details').open = true;
const words = every('#made span').filter(each => each.textContent.startsWith('--'));
seen.words = words.length === 3 && words.every(each => each.getBoundingClientRect().height < 30);
document.body.append(Object.assign(document.createElement('b'), {id: 'seen',
  textContent: JSON.stringify(seen)}));
}</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium')
def test_ten_schemes_with_two_axis_values_fit_a_narrow_page_in_letters_that_can_be_read(tmp_path):
  schemes = ['none', 'rope', 'alibi', 't5', 'shaw', 'fire(threshold=16.0)', 'kerple', 'sinusoidal']
  schemes += ['transformer_xl', 'randomized(max_length=64)+rope']
  cells = grid(schemes, 3, axes=[('task.data', ('synthetic:copy', 'synthetic:sort'))])
  lines = {
    cell.id: {**result([100, 90 - cell.seed, 80, 70, 60]), 'tokens_per_second': 1e3 * (7 + i)}
    for i, cell in enumerate(cells)
  }
  words = ['python', f'--schemes={",".join(schemes)}', '--config.task.length=16', '--seeds=3']
  path = tmp_path / 'report.html'
  page.write(path, summarize(cells, lines, 'rope', RULES), Origin(' '.join(words), 'abc', {}))
  path.write_text(path.read_text().replace('</body>', MEASURE))
  text, errors = browse(path, tmp_path / 'user', 838)
  assert errors == []
  seen = json.loads(re.search('id="seen">([^<]*)<', text)[1])
  assert seen.pop('boxes') == 0  # no table scrolls sideways
  assert seen.pop('letters') >= 12  # pixels
  assert seen.pop('names') == 0  # no title of a small plot is cut
  assert seen.pop('top') < 200  # quality comes first
  assert seen == {'lines': 1, 'folded': True, 'groups': 2, 'dots': 2, 'words': True}


CHOOSE = """<script>
const list = document.getElementById('panel'), key = () => document.getElementById('key').innerText;
const seen = [list.options.length, key()];
document.querySelector('#key input').click();
list.value = 'num_layers=4';
list.dispatchEvent(new Event('change'));
seen.push(key(), document.querySelectorAll('#key input:checked').length);
seen.push(document.querySelector('#choice').hidden, document.querySelectorAll('figure').length);
document.body.append(Object.assign(document.createElement('b'), {id: 'seen',
  textContent: seen.join(' ').replace(/\\s+/g, ' ')}));
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason='no Chromium')
def test_the_values_of_an_axis_are_drawn_one_at_a_time(tmp_path):
  path = tmp_path / 'report.html'
  page.write(path, with_axes())
  path.write_text(path.read_text().replace('</body>', CHOOSE))
  text, errors = browse(path, tmp_path / 'user')
  assert errors == []
  assert re.search('id="seen">([^<]*)<', text)[1] == '2 none rope none rope 2 false 3'
