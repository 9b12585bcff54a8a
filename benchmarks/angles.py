"""What rounded angles cost RoPE far from position 0: posjax's exact ones beside two that are not.

  python -m benchmarks.angles
  python -m benchmarks.angles --workdir=runs/default-rope

RoPE's logits depend on the distance alone, so that moving all tokens by as many positions should
change nothing. The first table has the largest error of logits, beside the formula in float64, of
256 tokens that begin at a position; logits have a standard deviation of 1. The second has the
held-out loss of a trained model whose tokens are moved there. Angles are `pos * frequency`:

  exact     as posjax computes them, at every int32 position
  float32   a product in float32
  bfloat16  a product in bfloat16, of rounded factors, as in models that compute all in bfloat16
"""

import argparse
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.experiment import loading
from posjax.experiment.run import make_task
from posjax.math import rotation

STARTS = (0, 1_000, 4_000, 16_000, 32_000)
TOKENS, WIDTH = 256, 64


def product(dtype: Any) -> Callable[[Any, Any], jax.Array]:
  """Angles as a product in a dtype, which `rotation.rotate` takes in float32."""

  def angles(pos, frequencies):
    pos, frequencies = jnp.asarray(pos).astype(dtype), jnp.asarray(frequencies).astype(dtype)
    return jnp.einsum('...,d->...d', pos, frequencies).astype(jnp.float32)

  return angles


WAYS = {'exact': None, 'float32': product(jnp.float32), 'bfloat16': product(jnp.bfloat16)}


def computed(way: str) -> contextlib.AbstractContextManager[Any]:
  """While it lasts, RoPE's angles are computed in that way."""
  angles = WAYS[way]
  return (
    contextlib.nullcontext() if angles is None else mock.patch.object(rotation, 'angles', angles)
  )


def logit_errors(start: int) -> dict[str, float]:
  """The largest error of the logits of `TOKENS` tokens from a position on, for each way."""
  draw = np.random.default_rng(0)
  q, k = (draw.normal(size=(1, TOKENS, 1, WIDTH)).astype(np.float32) for _ in range(2))
  pos = start + np.arange(TOKENS)
  angle = pos[:, None] * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
  turn = np.exp(1j * angle)[None, :, None]
  complex_ = lambda x: x[..., : WIDTH // 2].astype(np.float64) + 1j * x[..., WIDTH // 2 :]
  expected = np.einsum('bthd,bshd->ts', complex_(q) * turn, (complex_(k) * turn).conj()).real
  found = {}
  for way in WAYS:
    scheme, ids = posjax.get('rope'), jnp.asarray(pos)[None]
    with computed(way):
      turned = scheme.query({}, jnp.asarray(q), ids), scheme.key({}, jnp.asarray(k), ids)
    logits = np.einsum('bthd,bshd->ts', *(np.asarray(x, np.float64) for x in turned))
    found[way] = float(abs(logits - expected).max() / WIDTH**0.5)
  return found


def held_out_losses(workdir: Path, starts: Sequence[int]) -> dict[str, list[float]]:
  """The mean held-out loss of a trained model, in nats per token, for each way and start."""
  loaded = loading.load(workdir)
  task = make_task(loaded.config, workdir)
  batches = list(task.evaluations[0].batches())

  def mean(way, start):
    # A function of its own for each way, so that JAX compiles each anew.
    with computed(way):
      loss = jax.jit(lambda batch: task.loss(loaded.model, batch, None, jax.random.key(0), None)[0])
      moved = [{**batch, 'positions': batch['positions'] + start} for batch in batches]
      return float(np.mean([loss(batch) for batch in moved]))

  return {way: [mean(way, start) for start in starts] for way in WAYS}


def main(argv: Sequence[str] | None = None) -> None:
  """Prints both tables."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workdir', type=Path, help='a run of train.py with RoPE')
  workdir = parser.parse_args(argv).workdir
  print('largest error of logits\n' + 'start'.ljust(8) + ''.join(f'{way:>12}' for way in WAYS))
  for start in STARTS:
    errors = logit_errors(start)
    print(f'{start:<8}' + ''.join(f'{errors[way]:12.2g}' for way in WAYS))
  if workdir is None:
    return
  losses = held_out_losses(workdir, STARTS)
  print('\nheld-out loss, nats per token\n' + 'start'.ljust(8) + ''.join(f'{w:>12}' for w in WAYS))
  for number, start in enumerate(STARTS):
    print(f'{start:<8}' + ''.join(f'{losses[way][number]:12.5f}' for way in WAYS))


if __name__ == '__main__':
  main()
