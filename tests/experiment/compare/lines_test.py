"""Lines of earlier versions, read as those of today: real ones, of results/."""

import copy
import json

import pytest

from posjax.experiment.compare import results
from posjax.experiment.compare.lines import current, headline, judged, label
from posjax.experiment.compare.summary import Rules, summarize_lines
from tests.support.paths import ROOT

FOLDER = ROOT / 'results'
GRIDS = sorted(path.parent.name for path in FOLDER.glob('*/results.jsonl'))


def committed(grid):
  """The lines of a grid as they stand in the file."""
  return [json.loads(text) for text in (FOLDER / grid / 'results.jsonl').read_text().splitlines()]


# A line of an earlier version says whether answers had to be exact; a line of today may have a
# metric of that name among its scores, which is something else.
OLD = [grid for grid in GRIDS if any('exact' in line for line in committed(grid))]


def old(grid, number):
  """A line as it stands in the file, and as it is read."""
  line = committed(grid)[number]
  return copy.deepcopy(line), current(line)


@pytest.mark.parametrize('grid', GRIDS)
def test_every_committed_line_is_read(grid):
  assert len(results.read(FOLDER / grid)) == len(committed(grid)) > 0


@pytest.mark.parametrize('grid', OLD)
def test_every_number_of_an_old_line_is_in_the_new_one(grid):
  for before in committed(grid)[::7]:
    after = current(copy.deepcopy(before))
    assert list(after['scores']) == list(after['evaluations'])
    for score in before['scores']:
      texts = score.get('training_accuracy') is not None
      now = after['scores']['held out' if texts else f'length {score["length"]}']
      assert (now['loss'], now['accuracy']) == (score['loss'], score['accuracy'])
      assert now.get('token_accuracy', score['token_accuracy']) == score['token_accuracy']
      assert (now['counted'], now['why']) == (score['answers'], score['why'])
    assert after['untrained'].get('loss') == before['untrained']
    kept = before.keys() - {'exact', 'untrained', 'scores'}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_an_old_line_of_answers_has_the_share_of_right_ones_for_its_headline():
  _, line = old('far_decoder', 0)
  name, metric = headline(line)
  assert (name, metric['unit'], metric['best']) == ('accuracy', '% of answers right', 1.0)
  roles = [each['role'] for each in line['evaluations'].values()]
  assert roles == ['trained', 'unseen', 'unseen', 'unseen', 'unseen']
  assert [label(line, each) for each in judged(line)] == ['8', '10', '12', '14', '16']


def test_an_old_line_of_text_has_its_loss_for_its_headline():
  _, line = old('text8_memory', 0)
  assert headline(line)[0] == 'loss'
  assert headline(line)[1] == {
    'unit': 'bits per character', 'higher': False, 'best': None, 'scale': 1.0
  }  # fmt: skip
  assert line['untrained']['loss'] > 7


def test_the_training_texts_of_an_old_line_are_an_evaluation_of_their_own():
  before, line = old('complex_order', 0)
  assert line['evaluations']['training texts']['role'] == 'training rows'
  share = before['scores'][0]['training_accuracy']
  assert line['scores']['training texts']['accuracy'] == share
  assert judged(line) == ['held out']


def test_a_line_of_today_stays_as_it_is():
  _, line = old('far_encoder', 3)
  assert current(line) is line
  assert current({'id': 'a', 'error': 'x'}) == {'id': 'a', 'error': 'x'}


@pytest.mark.parametrize(
  ('grid', 'quality', 'baseline', 'scheme', 'data', 'unseen', 'difference', 'verdict'),
  [
    # As in RESULTS.md and in the outputs of notebooks/05_how_far.ipynb, before the lines changed.
    ('far_decoder', 'answers', 'rope', 'kerple', 'copy', (20.2, 11.2, 29.3), 20.2, 'better'),
    ('far_decoder', 'answers', 'rope', 'sinusoidal', 'sort', (2.34, 1.12, 3.57), -12.2, 'worse'),
    ('far_encoder', 'tokens', 'rope', 'alibi', 'bucket_sort', (54.1, 50.7, 57.4), -2.56,
     'unresolved'),
  ],
)  # fmt: skip
def test_a_table_of_old_lines_is_what_it_was(
  grid, quality, baseline, scheme, data, unseen, difference, verdict
):
  rules = Rules(quality, learned_accuracy=0.9, learned_share=0.5)
  found = summarize_lines(results.read(FOLDER / grid), baseline, rules)
  (row,) = [
    row
    for row in found.rows
    if row.scheme == scheme and row.axes['task.data'] == f'synthetic:{data}'
  ]
  assert row.unseen[:3] == pytest.approx(unseen, abs=0.05)
  assert row.difference.mean == pytest.approx(difference, abs=0.05)
  assert row.verdict == verdict
