"""The lines of results/: they are read, and make the tables of RESULTS.md."""

import json

import pytest

from configs import algorithmic
from posjax.experiment.compare import results
from posjax.experiment.compare.grid import cells
from posjax.experiment.compare.summary import Rules, summarize_lines
from tests.support.paths import ROOT

FOLDER = ROOT / 'results'
GRIDS = sorted(path.parent.name for path in FOLDER.glob('*/results.jsonl'))


def committed(grid):
  """The lines of a grid as they stand in the file."""
  return [json.loads(text) for text in (FOLDER / grid / 'results.jsonl').read_text().splitlines()]


@pytest.mark.parametrize('grid', GRIDS)
def test_every_committed_line_is_read(grid):
  assert len(results.read(FOLDER / grid)) == len(committed(grid)) > 0


def far_decoder(**changes):
  """The cells of RESULTS.md, "How far each encoding reaches", as its command makes them."""
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


def test_the_command_of_a_published_grid_finds_its_lines():
  assert {line['id'] for line in committed('far_decoder')} == {cell.id for cell in far_decoder()}


def test_a_changed_key_makes_another_cell():
  there = {cell.id for cell in far_decoder()}
  assert not there & {cell.id for cell in far_decoder(**{'optimizer.name': 'sgd'})}


@pytest.mark.parametrize(
  ('grid', 'quality', 'baseline', 'scheme', 'data', 'unseen', 'difference', 'verdict'),
  [
    # As in RESULTS.md and in the outputs of notebooks/05_how_far.ipynb.
    ('far_decoder', 'accuracy', 'rope', 'kerple', 'copy', (20.2, 11.2, 29.3), 20.2, 'better'),
    ('far_decoder', 'accuracy', 'rope', 'sinusoidal', 'sort', (2.34, 1.12, 3.57), -12.2, 'worse'),
    ('far_encoder', 'token_accuracy', 'rope', 'alibi', 'bucket_sort', (54.1, 50.7, 57.4), -2.56,
     'unresolved'),
  ],
)  # fmt: skip
def test_a_published_table_is_what_it_was(
  grid, quality, baseline, scheme, data, unseen, difference, verdict
):
  rules = Rules(quality, learned_by='', learned=0.9, margin=0.5)
  found = summarize_lines(results.read(FOLDER / grid), baseline, rules)
  (row,) = [
    row
    for row in found.rows
    if row.scheme == scheme and row.axes['task.data'] == f'synthetic:{data}'
  ]
  assert row.unseen[:3] == pytest.approx(unseen, abs=0.05)
  assert row.difference.mean == pytest.approx(difference, abs=0.05)
  assert row.verdict == verdict
