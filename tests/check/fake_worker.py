"""A process that answers as `posjax.check.worker` does, at once and without JAX.

python tests/check/fake_worker.py FAULTS IMPLEMENTATION

FAULTS, in JSON, says for a scheme what 'blockwise' does: 'wrong', 'killed', 'hangs', 'exits',
'raises', 'tiles', or 'slow' in the second part.
"""

import json
import os
import signal
import sys
import time

FACTS = {
  'versions': {'posjax': '0'},
  'system': 'Linux',
  'platform': 'cpu',
  'platform_version': 'cpu',
  'devices': ['cpu'],
  'capability': None,
  'processors': 4,  # enough for two processes of each implementation
  'implementations': {'dense': '', 'blockwise': '', 'cudnn': 'there is no GPU'},
}


def answer(question, fault, asked):
  if fault == 'killed':
    os.kill(os.getpid(), signal.SIGKILL)
  if fault == 'hangs':
    time.sleep(600)
  if fault == 'exits':
    print('A library has the last word.', file=sys.stderr)
    os._exit(3)
  if fault == 'tiles':
    return {'tiles': 'it cannot', 'chosen': 'dense'}
  if fault == 'raises':
    return {'failed': 'ValueError: no'}
  if question == 'facts':
    return FACTS
  if question == 'compare':
    return {'error': 0.5 if fault == 'wrong' else 1e-7, 'of': 'the keys'}
  if question == 'build':
    enough = asked['length'] <= 1024
    rest = {'seconds': 0.001} if enough else {'needs': 2**40, 'free': 2**30}
    return {'chosen': 'dense', 'temporary': 2**20, **rest}
  return {'seconds': 0.002 if fault == 'slow' else 0.001}


def main(faults, implementation):
  faults, scheme = json.loads(faults), ''
  print(json.dumps({'ready': True}), flush=True)
  for line in sys.stdin:
    asked = json.loads(line)
    scheme = asked.get('scheme') or (asked['kind'][1] if 'kind' in asked else scheme)
    fault = faults.get(scheme) if implementation == 'blockwise' else None
    print(json.dumps(answer(asked['question'], fault, asked)), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
