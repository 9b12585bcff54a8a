"""Where a comparison comes from, as its page tells it."""

from posjax.experiment.compare.origin import Origin, origin, provenance, short
from posjax.experiment.compare.summary import summarize
from tests.experiment.compare.made import RULES, grid, result

AXIS = [('model.num_layers', (2, 4))]


def summary(change=lambda cell, line: line, axes=()):
  cells = grid(['none', 'rope'], 2, axes=axes)
  lines = {cell.id: change(cell, result([100, 50])) for cell in cells}
  return cells, summarize(cells, lines, 'none', RULES)


def test_the_origin_of_a_grid_is_its_command_and_what_its_runs_share():
  cells, _ = summary(axes=AXIS)
  found = origin(['--schemes=none,rope', '--axes=model.num_layers=2,4'], cells)
  assert found.command.startswith('python -m posjax.experiment.compare --schemes=none,rope')
  assert found.config['steps'] == 350
  assert found.config['model.width'] == 192
  assert not {'scheme', 'seed', 'model.num_layers'} & set(found.config)
  quoted = origin(["--schemes=t5(a='b')"], cells).command
  assert quoted.endswith(""" '--schemes=t5(a='"'"'b'"'"')'""")


def test_the_page_tells_command_commit_steps_seeds_sizes_versions_and_data():
  def change(cell, line):
    facts = {'data': 'made up', 'sha256': 'abc'}
    return {**line, 'facts': facts, 'commit': '123abc', 'parameters': 1000 + cell.seed}

  _, found = summary(change)
  config = {'steps': 1500, 'batch_size': 16, 'model.width': 8, 'task.data': 'x'}
  facts = dict(provenance(found, Origin('python it', '456def', config)))
  assert facts == {
    'command': 'python it',
    'commit': '123abc (this page: 456def)',
    'schemes': '2',
    'seeds': '0, 1',
    'steps': '1,500',
    'sizes': '1,000 to 1,001 parameters, batch_size=16, model.width=8',
    'data': 'made up',
    'sha256': 'abc',
    'versions': 'posjax 0; jax 0',
    'device': 'cpu',
    'other keys': 'task.data=x',
  }
  assert short(found, Origin('python it', '123abc', config)) == (
    '2 schemes, 4 finished runs, seeds 0, 1; 1,500 steps; data made up; commit 123abc.'
  )


def test_what_differs_between_runs_is_told_and_what_nobody_knows_is_said_to_be_unknown():
  def change(cell, line):
    layers = cell.axes['model.num_layers']
    versions = {'posjax': '0', 'jax': f'0.{cell.seed}'}
    return {**line, 'facts': {'data': 'x', 'sha256': f'hash {layers}'}, 'versions': versions}

  _, found = summary(change, AXIS)
  facts = dict(provenance(found))
  assert 'command' not in facts
  assert facts['commit'] == 'not recorded'
  assert facts['sha256'] == 'hash 2 (num_layers=2); hash 4 (num_layers=4)'
  assert facts['versions'] == 'posjax 0; jax 0.0, 0.1'
  assert facts['steps'] == '20 (where the curves end)'
  assert facts['data'] == 'x'
