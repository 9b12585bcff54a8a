"""Records what a checkout computes, so that another checkout can be compared with it bit for bit.

  python tools/same_numbers.py record before.npz      # in one checkout
  python tools/same_numbers.py record after.npz       # in the other
  python tools/same_numbers.py compare before.npz after.npz

For changes of the code that should not change a number: of every scheme the output of a layer, and
its gradients by the input and by all parameters, in both implementations that run everywhere; and
the losses of short runs of every task. Ten minutes on two cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
CHAINS = ['rope+alibi', 'rope(values=True)+shaw', 'tener+t5', 'transformer_xl+kerple']
COMMON = [
  *('steps=12', 'optimizer.warmup_steps=1', 'batch_size=8'),
  *('log_every=1', 'eval_every=6', 'checkpoint_every=6'),
]
SMALL = [*COMMON, 'model.num_layers=2', 'model.width=32', 'model.num_heads=2']
RUNS = {
  'default': [*SMALL, 'task.length=64', 'task.eval_tokens=512', 'task.sample_length=8'],
  'memory': [*SMALL, 'scheme=transformer_xl', 'task.sample_length=8'],
  'algorithmic': [*SMALL, 'scheme=rope'],
  'chomsky': [*SMALL, 'scheme=t5'],
  'classification': [*COMMON, 'scheme=sinusoidal'],
  'tagging': [*COMMON, 'scheme=tener'],
  'parsing': [*COMMON, 'scheme=rope'],
  'sentence_pairs': [*COMMON],
  'translation': [*SMALL, 'scheme=shaw'],
  'translation_recurrent': [*COMMON],
}


def layers() -> dict[str, np.ndarray]:
  """Outputs and gradients of one layer, by the scheme, the implementation and the array."""
  import importlib

  import jax
  import jax.numpy as jnp
  from flax import nnx

  import posjax
  import posjax.nnx

  file = lambda name: importlib.import_module(f'posjax.schemes.{name}')
  lines = [getattr(file(name), 'EXAMPLE', name) for name in posjax.names()] + CHAINS
  draw = np.random.default_rng(0).normal
  x, weights = (jnp.asarray(draw(size=(2, 150, 32)), jnp.float32) for _ in range(2))
  found = {}
  for line in lines:
    scheme = posjax.get(line)
    pos = np.arange(150, dtype=np.int32)
    axes = scheme.traits.axes
    if axes > 1:
      pos = np.stack([pos // 4, pos % 4, *[pos] * axes][:axes], axis=-1)
    for implementation in ('dense', 'blockwise'):
      layer = posjax.nnx.Attention(
        32, 4, scheme, num_kv_heads=2, causal=True, implementation=implementation,
        model_places=True, rngs=nnx.Rngs(0),
      )  # fmt: skip
      graph, params, rest = nnx.split(layer, nnx.Param, ...)

      def loss(params, x, graph=graph, rest=rest, pos=pos):
        out = nnx.merge(graph, params, rest)(x, pos, order=np.arange(150, dtype=np.int32))
        return (out * weights).sum(), out

      (_, out), (d_params, d_x) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x)
      name = f'{line} {implementation}'
      found |= {f'{name} out': out, f'{name} d_x': d_x}
      for i, leaf in enumerate(jax.tree.leaves(d_params)):
        found[f'{name} d_params {i}'] = leaf
  return {name: np.asarray(array) for name, array in found.items()}


def run(name: str) -> dict[str, np.ndarray]:
  """The losses and scores of a short run of a config."""
  with tempfile.TemporaryDirectory() as folder:
    keys = [f'--config.{key}' for key in RUNS[name]]
    command = [sys.executable, 'train.py', f'--config=configs/{name}.py', f'--workdir={folder}/run']
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    done = subprocess.run([*command, *keys], cwd=ROOT, env=environment, capture_output=True)
    if done.returncode:
      raise SystemExit(f'{name} ended with {done.returncode}: {done.stderr.decode()[-2000:]}')
    rows = [json.loads(x) for x in Path(folder, 'run', 'metrics.jsonl').read_text().splitlines()]
  found = {}
  for row in rows:
    for key, value in row.items():
      if key not in ('step', 'tokens_per_second'):
        found[f'{name} step {row["step"]} {key}'] = np.float64(np.nan if value is None else value)
  return found


def compare(before: Path, after: Path) -> None:
  """Prints which numbers differ, and by how much, relative to the largest of their array."""
  one, other = np.load(before), np.load(after)
  lost, new = sorted(set(one) - set(other)), sorted(set(other) - set(one))
  differ = []
  for name in sorted(set(one) & set(other)):
    a, b = one[name], other[name]
    if a.shape != b.shape:
      differ.append((np.inf, name))
    elif not np.array_equal(a, b, equal_nan=True):
      differ.append((float(np.abs(a - b).max() / (np.abs(a).max() or 1)), name))
  print(f'{len(set(one) & set(other)) - len(differ)} arrays are equal bit for bit')
  for error, name in sorted(differ, reverse=True):
    print(f'{error:.1e}  {name}')
  for what, names in (('missing', lost), ('new', new)):
    for name in names:
      print(f'{what}  {name}')


def main() -> None:
  """Records, or compares."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('action', choices=['record', 'compare'])
  parser.add_argument('files', nargs='+', type=Path)
  given = parser.parse_args()
  if given.action == 'compare':
    compare(*given.files)
    return
  found = layers()
  for name in RUNS:
    print(name, flush=True)
    found |= run(name)
  np.savez_compressed(given.files[0], **found)


if __name__ == '__main__':
  main()
