"""Runs of earlier versions go on, and their cells keep their names, whatever keys are added."""

import json

import pytest

from configs import algorithmic, default
from posjax.experiment import trained
from posjax.experiment.compare.grid import Cell, cells
from posjax.experiment.config_keys import ADDED, completed, reduced
from posjax.experiment.workdir import check_config
from tests.support.paths import ROOT


def at(config, key):
  for part in key.split('.'):
    config = config[part]
  return config


def test_the_default_config_does_what_was_done_before_there_were_these_keys():
  """Otherwise a run of the same command would be another run."""
  config = default.get_config()
  assert {key: at(config, key) for key in ADDED} == dict(ADDED)


def far_decoder(**changes) -> list[Cell]:
  """The grid of RESULTS.md, "How far each encoding reaches", as its command makes it."""
  config = algorithmic.get_config()
  flags = {
    'task.longest': 8,
    'task.eval_factors': (),
    'task.eval_lengths': (8, 10, 12, 14, 16),
    'model.width': 64,
    'steps': 1200,
    'eval_every': 1200,
    'checkpoint_every': 1200,
  }
  config.update_from_flattened_dict({**flags, **changes})
  with config.unlocked():
    del config['compare']  # as the command does: it is of the report
  schemes = (
    *('none', 't5', 'rope', 'alibi', 'sinusoidal', 'transformer_xl', 'kerple'),
    *('fire(threshold=16.0)', 'shaw', 'randomized(max_length=64)+rope'),
  )
  return cells(config, schemes, [('task.data', ('synthetic:copy', 'synthetic:sort'))], 5)


def test_the_cells_of_a_published_grid_keep_their_names():
  lines = (ROOT / 'results' / 'far_decoder' / 'results.jsonl').read_text().splitlines()
  assert {json.loads(line)['id'] for line in lines} == {cell.id for cell in far_decoder()}


@pytest.mark.parametrize(
  'changes', [{'optimizer.name': 'sgd'}, {'checkpoint.keep': 3}, {'optimizer.clip_value': 1.0}]
)
def test_a_key_that_does_something_new_makes_another_cell(changes):
  there = {cell.id for cell in far_decoder()}
  assert not there & {cell.id for cell in far_decoder(**changes)}


def earlier(config) -> str:
  """The config.json of a version without these keys."""
  text = json.loads(config.to_json_best_effort())
  for key in ADDED:
    section, _, name = key.partition('.')
    text.get(section, {}).pop(name)
  del text['checkpoint']
  return json.dumps(text)


def test_a_work_folder_of_an_earlier_version_goes_on_with_the_same_config_alone(tmp_path):
  config = default.get_config()
  (tmp_path / 'config.json').write_text(earlier(config))
  check_config(json.loads(config.to_json_best_effort()), tmp_path)
  config.optimizer.name = 'sgd'
  config.checkpoint.keep = 5
  with pytest.raises(ValueError, match='holds a run with another checkpoint, optimizer; give'):
    check_config(json.loads(config.to_json_best_effort()), tmp_path)


def test_a_config_of_an_earlier_version_is_read_with_all_keys_of_today(tmp_path):
  config = default.get_config()
  (tmp_path / 'config.json').write_text(earlier(config))
  assert trained.read_config(tmp_path).to_dict() == config.to_dict()


def test_a_reduced_config_is_that_of_the_earlier_version_and_completes_to_itself():
  config = default.get_config()
  config.checkpoint.use = 'best'
  config.optimizer.b1 = 0.8
  whole = json.loads(config.to_json_best_effort())
  short = reduced(whole)
  assert short['checkpoint'] == {'use': 'best'}
  assert set(short['optimizer']) == set(whole['optimizer']) - {
    *('name', 'schedule', 'momentum', 'clip_value')
  }
  assert completed(short) == whole
