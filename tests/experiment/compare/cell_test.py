"""One cell: the run of train.py, and what is measured of it."""

import json

import numpy as np
import pytest

from posjax.experiment import sharding, training
from posjax.experiment.compare import results
from posjax.experiment.compare.cell import (
  CURVE,
  _curve,
  _read,
  programs_folder,
  run_cell,
  steps_done,
)
from posjax.experiment.run import setup
from tests.experiment.support import runs, small_grid

MACHINE = ('tokens_per_second', 'seconds')


def tiny(data):
  """Language modelling in seconds, on a text."""
  smaller = {
    'steps': 6,
    'batch_size': 4,
    'task.data': data,
    'task.length': 16,
    'task.eval_tokens': 256,
    'task.sample_length': 2,
    'model.num_layers': 1,
    'model.width': 16,
    'model.num_heads': 2,
  }
  return runs.small(**smaller)


def test_a_cell_says_what_its_run_says_and_the_same_when_it_is_run_again(tmp_path):
  letters = np.random.default_rng(0).choice(list('abcdefghijklmnopqrstuvwxyz '), 60_000)
  (tmp_path / 'letters.txt').write_text(''.join(letters))
  config = tiny(f'file:{tmp_path / "letters.txt"}')
  row = run_cell(config, tmp_path)
  written = json.loads((tmp_path / 'results.json').read_text())['scores']
  assert row['scores'] == written
  assert list(written) == ['length 16', 'length 64']
  assert {score['counted'] for score in written.values()} == {256}
  lengths = {name: each['length'] for name, each in row['evaluations'].items()}
  assert lengths == {'length 16': 16, 'length 64': 64}
  for score in written.values():
    assert len(score['left_out']['loss']) == len(score['left_out']['accuracy']) > 1
  assert [step for step, _ in row['curve']] == [1, 2, 3, 4, 5, 6]
  # Embedding; attention with biases or without; two layers of 4 x width; three norms.
  kernels = 256 * 16 + 4 * 16 * 16 + 2 * 16 * 64
  assert kernels < row['parameters'] < 1.1 * kernels
  # Parameters and both moments, float32, are in memory in any case.
  assert row['step_bytes'] > 3 * 4 * row['parameters']
  assert steps_done(tmp_path) == 6
  again = run_cell(config, tmp_path)
  assert {k: v for k, v in again.items() if k not in MACHINE} == {
    k: v for k, v in row.items() if k not in MACHINE
  }
  # A run that would get other examples is refused before it begins.
  other = {**results.hashes(row), results.EXAMPLES: 'x' * 64}
  message = f'spelled examples {row["read"]["examples"]}, not {"x" * 64}'
  with pytest.raises(ValueError, match=message):
    run_cell(config, tmp_path / 'other', data=other)
  assert not (tmp_path / 'other').exists()


@pytest.mark.slow
def test_what_was_read_is_the_same_for_all_schemes_and_another_for_another_seed(tmp_path):
  text = ''.join(np.random.default_rng(0).choice(list('abcdefghij '), 60_000))
  (tmp_path / 'letters.txt').write_text(text)
  config = tiny(f'file:{tmp_path / "letters.txt"}')

  def read(**changes):
    one = config.copy_and_resolve_references()
    one.update(changes)
    return _read(setup(one, tmp_path / repr(changes)).task)

  first = read()
  assert read(scheme='rope') == read(scheme='sinusoidal') == first
  assert read(seed=1)['examples'] != first['examples']
  (tmp_path / 'letters.txt').write_text(text[1:])
  assert read(scheme='alibi')['examples'] != first['examples']


@pytest.mark.slow
def test_seeds_share_their_program_and_not_their_numbers(tmp_path):
  texts, values = [], []
  for seed in (0, 1):
    config = small_grid.get_config()
    config.seed = seed
    made = setup(config, tmp_path)
    batch = sharding.put_batch(next(made.data), made.mesh)
    texts.append(made.step.func.lower(made.state, batch, 1, **made.step.keywords).as_text())
    values.append(np.asarray(made.state.params['embed']['table']['embedding'][...]))
  assert texts[0] == texts[1]
  assert abs(values[0] - values[1]).max() > 0.01
  assert training.step_bytes(made.step, made.state, batch) > 0


def test_a_long_curve_is_thinned_to_means_of_neighbours():
  history = [{'step': i, 'loss': float(i)} for i in range(1, 1001)] + [{'step': 9, 'loss': None}]
  points = _curve(history, 'loss')
  assert len(points) == CURVE
  assert points[0] == (5, 3.0)
  assert points[-1] == (1000, 998.0)


def test_compiled_programs_lie_in_the_cache_folder_of_the_user(monkeypatch, tmp_path):
  for named, expected in ((tmp_path / 'cache', tmp_path / 'cache'), ('here', tmp_path / '.cache')):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('XDG_CACHE_HOME', str(named))
    assert programs_folder() == expected / 'posjax' / 'programs'
