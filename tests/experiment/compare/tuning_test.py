"""The search before a comparison, with results that no run made, and once by the command."""

import json
import re

import pytest

from configs import classification, default
from posjax.experiment.compare import tuning
from posjax.experiment.compare.grid import cells
from tests.experiment.compare.compare_test import finish, start
from tests.experiment.compare.made import LOSS, RULES, result

RATES = ('optimizer.learning_rate', (1e-3, 2e-3, 4e-3))
FILES = ('task.data', ('file:a', 'file:b'))


def searched(quality, axes=(), tune=(RATES,), rules=RULES, config=None):
  """The choice for `none` and `rope` where a run has this quality, or error."""
  config = config or classification.get_config()
  search = tuning.search_cells(config, ['none', 'rope'], axes, tune)
  lines = {}
  for cell in search:
    value = quality(cell)
    lines[cell.id] = {'error': value} if isinstance(value, str) else result([value], rules is RULES)
  return search, tuning.choose(search, lines, tune, rules)


def test_each_scheme_and_axis_value_gets_the_best_of_its_own_values():
  best = {('none', 'a'): 2e-3, ('none', 'b'): 4e-3, ('rope', 'a'): 1e-3, ('rope', 'b'): 2e-3}
  rate = lambda cell: cell.axes['optimizer.learning_rate']
  near = lambda cell: best[cell.scheme, cell.axes['task.data'][-1]] == rate(cell)
  search, tried = searched(lambda cell: 70 if near(cell) else 50, axes=[FILES])
  assert {cell.config.task.data for cell in search} == {'tune:file:a', 'tune:file:b'}
  assert {cell.seed for cell in search} == {10_000}
  assert len(tried) == 12
  config = classification.get_config()
  grid = cells(config, ['none', 'rope'], [FILES], 2, tuning.chosen(tried))
  found = {
    (cell.scheme, cell.axes['task.data'][-1], cell.config.optimizer.learning_rate) for cell in grid
  }
  assert found == {(*key, value) for key, value in best.items()}
  assert {tuple(cell.axes) for cell in grid} == {('task.data',)}  # so that schemes are paired
  assert not {cell.id for cell in grid} & {cell.id for cell in search}
  ends = {(x.scheme, x.axes['task.data']) for x in tried if 'at the end of what was' in x.note}
  assert ends == {('none', 'file:b'), ('rope', 'file:a')}


def test_the_least_loss_is_the_best_and_a_failed_run_has_none():
  def loss(cell):
    rate = cell.axes['optimizer.learning_rate']
    return 'It diverged.' if rate == 4e-3 else 3.0 - 100 * rate

  config = default.get_config()
  _, tried = searched(loss, rules=LOSS, config=config)
  assert [x.values['optimizer.learning_rate'] for x in tried if x.chosen] == [2e-3, 2e-3]
  assert [x.note for x in tried if x.quality is None] == ['It diverged.', 'It diverged.']
  with pytest.raises(ValueError, match='No run of --tune with rope has a result: It diverged'):
    searched(lambda cell: 2.0 if cell.scheme == 'none' else 'It diverged.', rules=LOSS)
  with pytest.raises(ValueError, match='No run of --tune has a result: It diverged'):
    searched(lambda cell: 'It diverged.', rules=LOSS)


def test_data_that_are_a_part_to_tune_on_already_are_refused():
  config = classification.get_config()
  config.task.data = 'tune:file:a'
  with pytest.raises(ValueError, match="needs data without 'tune:', which it adds itself"):
    searched(lambda cell: 50, config=config)


def test_a_search_that_the_rest_of_the_command_contradicts_is_one_sentence(tmp_path):
  grid = '--schemes=none', '--config=configs/classification.py'
  tune = '--tune=optimizer.learning_rate=1e-3,2e-3'
  said = finish(start(tmp_path, *grid, tune, '--hosts=2'), 1)
  assert re.search(r'compare: error: --tune is for one host', said)


@pytest.mark.slow
def test_the_command_searches_once_and_says_what_it_tried(tmp_path):
  """About a minute."""
  small = {'steps': 40, 'eval_every': 40, 'checkpoint_every': 40, 'optimizer.warmup_steps': 2}
  command = (
    '--config=configs/classification.py', '--schemes=none,learned', '--seeds=1',
    '--tune=optimizer.learning_rate=1e-3,3e-3',
    *(f'--config.{key}={value}' for key, value in small.items()),
  )  # fmt: skip
  said = finish(start(tmp_path, *command))
  title = 'Tuned on a part of the training data, by one run each (seed 10000)'
  assert title in ' '.join(said.split())
  assert said.count('chosen') == 3  # a heading, and one value of each scheme
  again = finish(start(tmp_path, *command))
  assert '4 of 4 runs had finished before' in again
  assert '2 of 2 runs had finished before' in again
  rows = [json.loads(line) for line in (tmp_path / 'results.jsonl').read_text().splitlines()]
  assert [row['seed'] for row in rows] == [10_000] * 4 + [0] * 2
  assert 'Tuned on a part' in (tmp_path / 'report.html').read_text()
