"""How far back trained models gain: from their work folders, token by token."""

import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import default
from posjax.experiment import evaluation, sharding, trained
from posjax.experiment.run import make_task
from posjax.experiment.tasks.language_modelling import recl
from tests.experiment.support import judged
from train import train

LENGTHS = (4, 8, 16)
SETTINGS = {
  'steps': 3,
  'batch_size': 8,
  'eval_every': 3,
  'checkpoint_every': 3,
  'model.num_layers': 1,
  'model.width': 16,
  'model.num_heads': 2,
  'optimizer.warmup_steps': 1,
  'task.length': 8,
  'task.memory': 8,
  'task.eval_lengths': LENGTHS,
  'task.eval_factors': (1,),
  'task.eval_tokens': 160,
  'task.prompt': 'a',
  'task.sample_length': 2,
}


def run(workdir, data, **changes):
  config = default.get_config()
  with config.unlocked():
    config.update_from_flattened_dict({**SETTINGS, 'task.data': data, **changes})
  train(config, workdir)
  return str(workdir)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Random letters, and the folder of a model of them."""
  folder = tmp_path_factory.mktemp('recl')
  letters = np.random.default_rng(0).integers(97, 122, 1200, dtype=np.uint8)
  (folder / 'train.txt').write_bytes(bytes(letters[:400]))
  (folder / 'valid.txt').write_bytes(bytes(letters[400:]))
  run(folder / 'rope', f'file:{folder}', scheme='rope')
  return folder


@pytest.fixture(scope='module')
def two(folder):
  """The same with the folder of a second model."""
  run(folder / 'transformer_xl', f'file:{folder}', scheme='transformer_xl')
  return folder


@pytest.mark.slow
def test_token_losses_are_those_whose_mean_is_the_score(folder):
  config = trained.read_config(folder / 'rope')
  task, mesh = make_task(config, folder / 'rope'), sharding.make_mesh()
  graph, state = trained.restore(folder / 'rope', config, task)
  text = np.frombuffer((folder / 'valid.txt').read_bytes(), np.uint8)
  by_length, tokens = recl.losses(folder / 'rope', ())
  assert tuple(by_length) == LENGTHS
  for length, losses in by_length.items():
    each = judged.of_length(task, length)
    score = evaluation.evaluate(each, graph, state, mesh, jax.random.key(0))
    assert len(losses) == len(tokens) == score.counted == 128
    np.testing.assert_allclose(losses.mean() * judged.unit(task), score.values['loss'], rtol=1e-6)
    assert bytes(tokens[:8].astype(np.uint8)) in bytes(text)


@pytest.mark.slow
def test_the_command_shows_a_line_for_each_model(two):
  command = [
    sys.executable,
    '-m',
    'posjax.experiment.tasks.language_modelling.recl',
    'rope',
    'transformer_xl',
  ]
  command += ['--lengths=2,8']
  done = subprocess.run(command, cwd=two, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  lines = [line for line in done.stdout.splitlines() if 'rope' in line or 'transformer_xl' in line]
  assert len(lines) == 2
  for line in lines:
    found = [int(word) for word in line.split() if word.isdigit()]
    assert len(found) == len(recl.SHARES)
    assert set(found) <= {2, 8}


@pytest.mark.slow
def test_lengths_are_those_of_the_first_config_where_none_are_asked_for(two):
  found = recl.lengths_of([str(two / 'rope'), str(two / 'transformer_xl')])
  assert list(found) == [0.1, 0.5, 1.0]
  assert {length for each in found.values() for length in each.values()} <= set(LENGTHS)


@pytest.mark.slow
def test_what_does_not_compare_is_refused(folder, tmp_path):
  rope = str(folder / 'rope')
  with pytest.raises(ValueError, match='Two or more different folders are compared'):
    recl.lengths_of([rope, rope])
  with pytest.raises(FileNotFoundError, match='no run'):
    recl.lengths_of([rope, str(tmp_path)])
  for name, key, value, message in (
    ('forgets', 'memory', 0, r'task\.memory must be set'),
    ('fewer', 'eval_tokens', 64, 'not judged by the same tokens'),
  ):
    shutil.copytree(rope, tmp_path / name)
    config = json.loads((tmp_path / name / 'config.json').read_text())
    config['task'] |= {key: value} | ({'eval_lengths': ()} if name == 'forgets' else {})
    (tmp_path / name / 'config.json').write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
      recl.lengths_of([rope, str(tmp_path / name)])


@pytest.mark.slow
def test_lengths_that_are_no_numbers_are_refused(folder, capsys, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['recl', 'rope', 'xl', '--lengths=8,long'])
  with pytest.raises(SystemExit):
    recl.main()
  assert "whole numbers with commas between, but got '8,long'" in capsys.readouterr().err
