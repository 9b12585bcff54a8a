"""Runs the Mosaic kernels, interpreted with race detection, and prints the errors of each case.

`mosaic_test` starts it in a process of its own: JAX interprets each warpgroup of a program in a
thread of XLA's, of which there must be more than this machine may have cores (`ENVIRONMENT`).
"""

import json
import os

ENVIRONMENT = {'NPROC': '16', 'JAX_PLATFORMS': 'cpu'}
LENGTH, HEADS, KV_HEADS = 256, 2, 1

SCHEMES = [
  'none', 'rope', 'pope(uniform=True)', 'tener', 'transformer_xl', 'rope(values=True)',
  'alibi(learned=True)', 't5', 'gaussian', 'kerple', 'sandwich(width=8)', 'dynamic_bias(width=4)',
  'rope+alibi(learned=True)', 't5+kerple', 'ntk(values=True)+t5',
]  # fmt: skip
OTHERS = {
  'both directions': {'line': 't5(bidirectional=True)', 'causal': False},
  'width 128': {'line': 'none', 'width': 128},
  'width 128 with a bias': {'line': 't5', 'width': 128},
  'packed rows': {'line': 't5', 'segments': [(1, 100), (2, 120), (0, 36)]},
  'a window': {'line': 't5(bidirectional=True)', 'causal': False, 'window': (40, 20)},
  'a causal window, a cap and sinks': {
    'line': 'alibi(learned=True)', 'window': 50, 'logit_cap': 5.0, 'sinks': [1.0, -2.0],
  },
  'other lengths and widths': {'line': 't5', 'queries': 200, 'keys': 300, 'width': 40, 'v': 72},
}  # fmt: skip
CASES = {line: {'line': line} for line in SCHEMES} | OTHERS


def errors(line, queries=LENGTH, keys=LENGTH, width=64, v=None, segments=None, **options):
  """Of the output and of each gradient, relative to its largest number.

  Two lists: of the kernels, and of `dense` with the same heads in bfloat16. The reference is
  `dense` in float32.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  import posjax

  scheme, draw = posjax.get(line), np.random.default_rng(0)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(64, HEADS, width, KV_HEADS))
  params = jax.tree.map(lambda x: x + 0.1 * draw.normal(size=x.shape).astype(x.dtype), params)
  normal = lambda *shape: jnp.asarray(draw.normal(size=(1, *shape)), jnp.bfloat16)
  heads = [normal(queries, HEADS, width)]
  heads += [normal(keys, KV_HEADS, one) for one in (width, v or width)]
  d_out = normal(queries, HEADS, v or width)
  options = {'causal': True, **options}
  options |= {'q_pos': jnp.arange(queries) + keys - queries, 'k_pos': jnp.arange(keys)}
  if segments:
    documents = jnp.asarray(np.repeat(*zip(*segments, strict=True)))
    options |= {'q_segments': documents, 'k_segments': documents}
  if 'sinks' in options:
    options['sinks'] = jnp.asarray(options['sinks'])

  def answer(implementation, dtype):
    def run(q, k, v, params):
      return posjax.attend(
        q, k, v, scheme, params, implementation=implementation, **options
      )  # fmt: skip

    out, back = jax.vjp(run, *(x.astype(dtype) for x in heads), params)
    found = [out, *jax.tree.leaves(back(d_out.astype(out.dtype)))]
    return [np.asarray(x, np.float32) for x in found]

  exact = answer('dense', jnp.float32)
  relative = lambda one, other: float(abs(one - other).max() / max(abs(other).max(), 1e-30))
  return [
    [relative(*both) for both in zip(answer(way, jnp.bfloat16), exact, strict=True)]
    for way in ('pallas', 'dense')
  ]


def main():
  from jax.experimental.pallas import mosaic_gpu as plgpu

  from posjax.attention.blockwise import engine
  from posjax.attention.pallas import fused, mosaic

  def refused(*args):
    raise AssertionError('It was computed in tiles.')

  engine.attend = refused
  interpret = plgpu.InterpretGPUParams(detect_races=True)
  target = fused.Target(mosaic, interpret)
  fused.target_of = lambda device, mosaic=False: target

  for name, case in CASES.items():
    print(json.dumps({'case': name, 'errors': errors(**case)}), flush=True)
  # A race is planted: both warpgroups of a program have the same memory for their rows.
  own = mosaic.kernels.Scratch.own
  mosaic.kernels.Scratch.own = lambda self: own(self)._replace(
    tiles=[ref.at[0] for ref in self.tiles]
  )
  print(json.dumps({'case': 'a race', 'errors': errors('none', 128, 128)}), flush=True)


if __name__ == '__main__':
  os.environ.update(ENVIRONMENT)
  main()
