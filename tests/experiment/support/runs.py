"""Runs for tests: a small config, train.py in a process of its own, and the losses it wrote."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from ml_collections import ConfigDict

from configs import default
from tests.support.paths import ROOT


def small(**changes) -> ConfigDict:
  """The default, at a size for tests; '.' in a key descends."""
  config = default.get_config()
  settings = {
    'steps': 12,
    'batch_size': 8,
    'log_every': 1,
    'eval_every': 6,
    'checkpoint_every': 5,
    'task.length': 32,
    'task.eval_tokens': 1024,
    'task.eval_factors': (1, 4),
    'task.sample_length': 8,
    'model.num_layers': 2,
    'model.width': 32,
    'model.num_heads': 4,
    'optimizer.warmup_steps': 2,
  }
  config.update_from_flattened_dict({**settings, **changes})
  return config


def losses(workdir: Path) -> dict[int, float]:
  rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return {row['step']: row['loss'] for row in rows if 'loss' in row}


def start(workdir: Path, cache: Path, *flags: str, **options) -> subprocess.Popen:
  """A real second process; processes with one cache compile each program once."""
  compiled = {
    'JAX_ENABLE_COMPILATION_CACHE': 'true',
    'JAX_COMPILATION_CACHE_DIR': str(cache),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
  }
  flags = flags or ('--config=tests/experiment/support/small_config.py',)
  return subprocess.Popen(
    [sys.executable, 'train.py', f'--workdir={workdir}', *flags],
    cwd=ROOT,
    env={**os.environ, **compiled, 'XLA_FLAGS': ''},
    text=True,
    **{'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, **options},
  )


def finish(process: subprocess.Popen, code: int = 0) -> str:
  """What it printed; it must have ended with this code, by default well."""
  out, error = process.communicate(timeout=300)
  assert process.returncode == code, error
  return out


def killed_run_resumes(folder: Path, steps: int, *flags: str) -> None:
  """A real kill -9 at a step that is no checkpoint: what follows is as of a run left alone.

  Args:
    folder: an empty one.
    steps: of the run, with a checkpoint after the tenth.
    flags: of train.py.
  """
  whole, killed, cache = folder / 'whole', folder / 'killed', folder / 'cache'
  finish(start(whole, cache, *flags))
  process = start(killed, cache, *flags, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  deadline = time.monotonic() + 240
  while not (killed / 'checkpoints' / '10').exists() and time.monotonic() < deadline:
    time.sleep(0.01)
  process.kill()
  process.wait()
  assert len(losses(killed)) < steps, 'the run was over before it could be killed'
  assert 'resuming after step' in finish(start(killed, cache, *flags))
  assert losses(killed) == losses(whole)  # json keeps every bit of a float
  both = [json.loads((run / 'results.json').read_text()) for run in (whole, killed)]
  assert both[0] == both[1]
