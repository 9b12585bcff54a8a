"""The process of one line of a table: builds it, then runs it once per line of its input.

python -m benchmarks.worker PEER SPEC FIELDS [CORES]

`interleave.py` starts it. PEER is a file in benchmarks/peers, SPEC a class of spec.py and FIELDS
its arguments in JSON; CORES limits the processors. It answers in JSON lines: `ready`, or why not
(`failed`; `unable`, and whether no case of the peer could be: `absent`). Then for each line that it
reads: the seconds of one run, CPU and wall, and the most memory held so far, above the level of the
inputs. At the end of its input it exits.
"""

import importlib
import json
import os
import sys
import time
import traceback


def main(peer: str, kind: str, fields: str, cores: str = '') -> None:
  """Serves until the input ends."""
  answers = _own_output()
  if cores:
    limit_cores(int(cores))

  def say(**answer):
    print(json.dumps(answer), file=answers, flush=True)

  from benchmarks.spec import SPECS, Absent, Unable  # what imports NumPy sees the limit

  try:
    built, floor, building = prepare(peer, SPECS[kind](**json.loads(fields)))
  except Unable as error:
    return say(unable=str(error), absent=isinstance(error, Absent))
  except ModuleNotFoundError as error:
    missing = (error.name or '').partition('.')[0]
    if missing in ('benchmarks', 'posjax', ''):
      raise
    return say(unable=f"{missing} is not installed: pip install 'posjax[peers]'", absent=True)
  except Exception as error:
    traceback.print_exc()
    return say(failed=f'{type(error).__name__}: {error}'.splitlines()[0])
  facts = {'temporary': built.temporary, 'parameters': built.parameters, 'building': building}
  say(ready=True, **facts)
  for _ in sys.stdin:
    say(**run_once(built, floor))


def prepare(peer: str, spec):
  """The case after one run, the level of memory before it, and what building took above that."""
  from benchmarks import memory

  module = importlib.import_module(f'benchmarks.peers.{peer}')
  inputs = module.inputs(spec)
  floor = memory.level()
  built = module.build(spec, inputs)
  built.run()
  building = memory.peak() - floor
  memory.trim()
  memory.level()  # from here on, what runs take
  return built, floor, building


def run_once(built, floor: int) -> dict:
  """Seconds of one run, and the most bytes held by any so far."""
  from benchmarks import memory

  cpu, wall = time.process_time(), time.perf_counter()
  built.run()
  cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
  peak = built.device_peak()
  return {'cpu': cpu, 'wall': wall, 'peak': max(memory.peak() - floor, 0) if peak is None else peak}


def limit_cores(count: int) -> None:
  """Keeps this process on its first `count` processors.

  Raises:
    ValueError: if it has fewer.
  """
  mine = sorted(os.sched_getaffinity(0))
  if not 1 <= count <= len(mine):
    raise ValueError(f'There are {len(mine)} processors, but {count} were asked for.')
  os.sched_setaffinity(0, mine[:count])


def _own_output():
  """The standard output, for answers alone: what libraries print goes to the error output."""
  answers = os.fdopen(os.dup(1), 'w')
  os.dup2(2, 1)
  return answers


if __name__ == '__main__':
  main(*sys.argv[1:])
