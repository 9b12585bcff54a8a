"""One of two processes of one run: it trains, is stopped, and goes on to the end.

python -m tests.experiment.support.run_of_two INDEX PORT FOLDER
"""

import json
import sys
from pathlib import Path

import jax
import pytest

from tests.experiment.support import faults
from train import train


def main(index: str, port: str, name: str) -> None:
  jax.distributed.initialize(f'127.0.0.1:{port}', num_processes=2, process_id=int(index))
  folder = Path(name)
  config = faults.line(folder / 'points.txt', **{'mesh.data': 2})
  with pytest.MonkeyPatch.context() as patched:
    faults.at_each_step(patched, faults.after(3))
    stopped = train(config, folder / 'run')
  result = train(config, folder / 'run')
  last = result.history[-1]['step']
  scores = {name: score.values for name, score in result.scores.items()}
  print(json.dumps({'stopped': stopped is None, 'last': last, 'scores': scores}))


if __name__ == '__main__':
  main(*sys.argv[1:])
