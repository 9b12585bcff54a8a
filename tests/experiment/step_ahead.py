"""Compiles whole training steps for eight chips that are not here, and prints what each needs.

  python -m tests.experiment.step_ahead v5e DUMP data,fsdp,tensor,context tokens [width layers]

A decoder in bfloat16 on bytes, whose activations are computed again in the backward pass. The
environment and the packages are those of `tests.attention.ahead`; targets are 'v5e' and 'hopper'.
"""

import math
import re
import sys
from pathlib import Path

from tests.attention import ahead

KINDS = 'all-gather', 'all-reduce', 'reduce-scatter', 'collective-permute', 'all-to-all'
BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's32': 4, 'u32': 4, 'f32': 4}


def collectives(text: str) -> dict[str, tuple[int, int]]:
  """How many there are of each kind in a program, and the bytes of their results on a device.

  Those in a loop count once. Of a pair of start and done, what is done counts.
  """
  found = {kind: [0, 0] for kind in KINDS}
  for line in text.splitlines():
    name = re.search(rf'= (.*?) ({"|".join(KINDS)})(-start|-done)?\(', line)
    if name and name[3] != '-done':
      shapes = re.findall(r'(\w+)\[([\d,]*)\]', name[1])
      sizes = [
        BYTES.get(dtype, 4) * math.prod(map(int, filter(None, dims.split(','))))
        for dtype, dims in shapes
      ]
      # A start returns what it sends and what it gets.
      count, size = found[name[2]]
      found[name[2]] = [count + 1, size + (max(sizes, default=0) if name[3] else sum(sizes))]
  return {kind: (count, size) for kind, (count, size) in found.items() if count}


def settings(mesh: tuple[int, ...], tokens: int, width: int, layers: int):
  """The config of the run."""
  from configs import default

  config = default.get_config()
  data, fsdp, _, context = mesh
  config.batch_size = data * fsdp
  config.task.length, config.task.eval_factors, config.task.eval_tokens = tokens, (1,), tokens
  config.model.width, config.model.num_layers, config.model.num_heads = width, layers, width // 128
  config.model.dtype, config.model.remat, config.model.unroll = 'bfloat16', True, 1
  config.scheme = 't5'
  if context > 1:
    config.attention.implementation = 'ring'
  return config


def lowered(config, mesh):
  """The program of a training step on arrays that need not exist."""
  import jax
  import numpy as np

  from posjax.experiment import optimizer, sharding, training
  from posjax.experiment.run import make_task
  from posjax.models.axes import ROWS, TOKENS

  task = make_task(config, Path('unused'))
  transform = optimizer.make(config.steps, **config.optimizer)
  graph, shapes, _ = training.planned(task, transform)
  options = {'zigzag': mesh.shape[TOKENS]} if mesh.shape[TOKENS] > 1 else {}
  step = training.make_step(task, graph, transform, 0, mesh, **options)
  placed = lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
  state = jax.tree.map(placed, shapes, sharding.of_state(shapes, mesh))
  cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(ROWS, TOKENS))
  size = config.batch_size, config.task.length
  names = 'inputs', 'targets', 'segments', 'positions'
  batch = {name: jax.ShapeDtypeStruct(size, np.int32, sharding=cut) for name in names}
  platform = {'tpu': 'tpu', 'gpu': 'cuda'}[mesh.devices.flat[0].platform]
  traced = step.func.trace(state, batch, 0, **step.keywords)
  return traced.lower(lowering_platforms=(platform,)), shapes


def main(target: str, dump: str, sizes: str, tokens: str, width='1024', layers='4') -> None:
  import jax
  import numpy as np
  from jax.experimental import topologies
  from jax.sharding import AxisType, Mesh

  from posjax.attention import dispatch
  from posjax.attention.context import chunks
  from posjax.attention.devices import KNOWN
  from posjax.attention.pallas import fused
  from posjax.models.axes import AXES

  on_tpu = target in ahead.TPUS
  here = lambda: KNOWN['tpu' if on_tpu else target]
  fused.here = dispatch.here = chunks.here = here
  jax.default_backend = lambda: 'tpu' if on_tpu else 'gpu'
  if on_tpu:
    devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x4').devices
  else:
    options = {'topology_name': '', 'topology': '1x1x8', 'target_config': ahead.facts(target)}
    devices = topologies.get_topology_desc(platform='cuda', **options).devices
  shape = tuple(map(int, sizes.split(',')))
  mesh = Mesh(np.array(devices).reshape(shape), AXES, axis_types=(AxisType.Auto,) * 4)
  program, state = lowered(settings(shape, int(tokens), int(width), int(layers)), mesh)
  compiled = program.compile()
  memory = compiled.memory_analysis()
  text = compiled.as_text()
  print(
    {
      'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
      'temporary': memory.temp_size_in_bytes,
      'arguments': memory.argument_size_in_bytes,
      'kernels': len(re.findall('custom_call_target="(?:tpu_custom_call|__gpu.*triton)', text)),
      'collectives': collectives(text),
    }
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
