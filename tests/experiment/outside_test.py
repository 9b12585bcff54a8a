"""A scheme of a package outside the repository, in the real commands, each in its own process."""

import json
import os
import subprocess
import sys

import pytest

import posjax
from tests.experiment.support.runs import ROOT

MODULE = """
import jax
import jax.numpy as jnp
import posjax


def scheme(width=4) -> posjax.Scheme:
  return posjax.Scheme(
    init=lambda key, dims: {'rate': jnp.full(dims.num_heads, 1.0 / width)},
    bias=lambda params, distance: -jnp.multiply.outer(params['rate'], jnp.log1p(abs(distance))),
  )
"""
LINE = 'my_package.my_module:scheme(width=8)'


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  place = tmp_path_factory.mktemp('outside')
  (place / 'my_package').mkdir()
  (place / 'my_package' / '__init__.py').touch()
  (place / 'my_package' / 'my_module.py').write_text(MODULE)
  return place


def command(place, *arguments, known=True, within=ROOT):
  """A command in the repository, or in another folder, that finds the package, or does not."""
  path = {'PYTHONPATH': os.pathsep.join([str(ROOT), *([str(place)] if known else [])])}
  return subprocess.run(
    [sys.executable, *map(str, arguments)],
    cwd=within,
    env={**os.environ, **path, 'XLA_FLAGS': ''},
    stdin=subprocess.DEVNULL,
    text=True,
    capture_output=True,
    timeout=600,
  )


def small(scheme, **changes):
  flags = {
    'steps': 4, 'batch_size': 4, 'log_every': 1, 'eval_every': 2, 'checkpoint_every': 2,
    'task.length': 16, 'task.eval_tokens': 64, 'task.eval_factors': (1,), 'task.sample_length': 4,
    'model.num_layers': 2, 'model.width': 16, 'model.num_heads': 2, 'optimizer.warmup_steps': 1,
  }  # fmt: skip
  scheme = {'scheme': scheme} if scheme else {}
  return [f'--config.{name}={value}' for name, value in {**flags, **scheme, **changes}.items()]


@pytest.mark.slow
def test_train_resume_and_ask_know_a_scheme_of_another_package(place):
  scheme, run = f'{LINE}+rope|rope', place / 'run'
  begun = command(place, 'train.py', f'--workdir={run}', *small(scheme))
  assert begun.returncode == 0, begun.stderr
  assert json.loads((run / 'config.json').read_text())['scheme'] == scheme
  results = (run / 'results.json').read_text()
  for folder in (run / 'checkpoints').glob('4*'):
    for file in sorted(folder.rglob('*'), reverse=True):
      file.unlink() if not file.is_dir() else file.rmdir()
    folder.rmdir()
  again = command(place, 'train.py', f'--workdir={run}', *small(scheme))
  assert again.returncode == 0, again.stderr
  assert 'resuming after step 2' in again.stdout
  assert (run / 'results.json').read_text() == results
  ask = ['-m', 'posjax.experiment.ask', f'--workdir={run}', '--allow-imports', '--length=3']
  said = command(place, *ask, 'the old')
  assert said.returncode == 0, said.stderr
  assert said.stdout.startswith('the old')
  sys.path.insert(0, str(place))
  try:
    layers = posjax.experiment.load(run, allow_imports=True).layers
  finally:
    sys.path.remove(str(place))
  assert [repr(layer.scheme) for layer in layers] == [f'{LINE}+rope', 'rope']
  for arguments in (
    ['train.py', f'--workdir={run}', *small(scheme)],
    [*ask, 'the old'],
  ):
    unknown = command(place, *arguments, known=False)
    assert unknown.returncode == 1
    assert "must name a module that Python finds, but there is no 'my_package'" in unknown.stderr
    assert unknown.stderr.count('\n') == 1


@pytest.mark.slow
def test_compare_has_a_scheme_of_another_package_beside_the_others(place):
  folder = place / 'grid'
  arguments = [f'--workdir={folder}', '--config=configs/default.py', f'--schemes={LINE},none']
  arguments += ['--seeds=1', *small('')]
  done = command(place, '-m', 'posjax.experiment.compare', *arguments)
  assert done.returncode == 0, done.stderr + done.stdout
  rows = [json.loads(line) for line in (folder / 'results.jsonl').read_text().splitlines()]
  assert {row['scheme'] for row in rows} == {LINE, 'none'}
  assert not any('error' in row for row in rows), rows
  mine = next(row['id'] for row in rows if row['scheme'] == LINE)
  assert mine.startswith('my_package.my_module_scheme_width=8-seed=0-'), mine
  assert any(path.name == mine for path in folder.rglob('*'))
  assert LINE in (folder / 'report.html').read_text()
  refused = command(place, '-m', 'posjax.experiment.compare', *arguments, known=False)
  assert refused.returncode == 1
  assert "there is no 'my_package'" in refused.stderr


@pytest.mark.slow
def test_the_commands_find_a_package_of_the_folder_in_which_they_are_started(place):
  """As the sentence of a missing package says: without PYTHONPATH, and train.py by its path."""
  (place / 'configs').mkdir()  # of the user's project: it must not hide those of the repository
  (place / 'configs' / '__init__.py').touch()
  call = lambda *arguments: command(place, *arguments, known=False, within=place)
  config = f'--config={ROOT / "configs" / "tiny_shakespeare.py"}'
  train = ROOT / 'train.py', config, '--config.task.data=python_docs'
  begun = call(*train, '--workdir=here', *small(LINE))
  assert begun.returncode == 0, begun.stderr
  ask = ['-m', 'posjax.experiment.ask', '--workdir=here', '--allow-imports', '--length=3']
  said = call(*ask, 'the old')
  assert said.returncode == 0, said.stderr
  grid = ['--workdir=beside', f'--config={ROOT / "configs" / "default.py"}', f'--schemes={LINE}']
  done = call('-m', 'posjax.experiment.compare', *grid, '--seeds=1', '--processes=2', *small(''))
  assert done.returncode == 0, done.stderr + done.stdout
