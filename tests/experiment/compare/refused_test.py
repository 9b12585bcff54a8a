"""Grids of which no run can begin."""

import pytest

from posjax.experiment.compare import __main__ as command
from posjax.experiment.compare import pool
from posjax.experiment.compare.pool import Ended
from tests.experiment.compare import made
from tests.experiment.support.small_grid import get_config


def ended(cell, error='', **more):
  return Ended(cell, {'error': error, 'refused': True, 'full': False, **more} if error else {})


def test_a_grid_is_refused_by_its_keys_where_each_run_is():
  command.check_each(made.grid(['none'], 1, [('steps', (20, 60))]))  # one of them could begin
  with pytest.raises(ValueError, match=r'below steps, which are 20, but got 50.*warmup_steps=2\.$'):
    command.check_each(made.grid(['none', 'rope'], 2, [('steps', (20, 30))]))


def test_runs_that_cannot_begin_wait_until_one_has_begun():
  none, rope, *_ = cells = made.grid(['none', 'rope'], 2)
  first, second = ended(none, 'it fails'), ended(rope)
  full = ended(none, 'no room', full=True)  # another command may find room
  seen = []

  def kept(*ends, begun=False):
    """The runs that are kept before each further one ends, and those at the end."""
    seen.clear()

    def source():
      for end in ends:
        yield end
        seen.append(list(found))

    found: list[Ended] = []
    for end in command.in_order(source(), cells, begun):
      found.append(end)  # noqa: PERF402, since `source` reads it meanwhile
    return [*seen, found]

  assert kept(first, second, first)[:3] == [[], [first, second], [first, second, first]]
  assert kept(first, begun=True)[0] == [first]
  assert kept(full)[0] == [full]
  assert kept(first) == [[], [first]]  # at the end, as of a grid that is stopped


def test_where_every_run_is_refused_there_is_one_sentence():
  none, rope, *_ = cells = made.grid(['none', 'rope'], 2)
  for errors, message in (
    (['it fails.', 'it fails.'], r'^it fails\.$'),
    (['it fails.', 'so too'], r'^it fails\. \(1 other runs are refused, too\.\)$'),
  ):
    ends = [ended(none, errors[0]), ended(rope, errors[1])]
    with pytest.raises(ValueError, match=message):
      list(command.in_order(ends, cells, False))


def test_a_worker_tells_a_run_that_cannot_begin_from_one_that_fails(tmp_path, monkeypatch):
  config = get_config()
  config.model.num_heads = 5
  row = pool.attempt(config, tmp_path)
  assert row.pop('error').startswith('num_heads must divide the width 32, but got 5')
  assert row == {'full': False, 'refused': True}

  def fails(*_, **__):
    raise ValueError('in a step')

  monkeypatch.setattr(pool, 'run_cell', fails)
  assert pool.attempt(config, tmp_path) == {
    **{'error': 'in a step', 'full': False, 'refused': False}
  }


def test_runs_that_are_left_out_are_called_finished_or_failed():
  failed, finished = {'error': 'x'}, {'scores': {}}
  assert 'has 2 finished and 1 failed runs with other' in command.left_out(
    [failed, finished, finished]
  )
  assert 'has 1 failed run with other' in command.left_out([failed])
