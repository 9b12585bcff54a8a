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
  """How many collectives of each kind a device takes part in, and the bytes of their results.

  Args:
    text: a compiled program. One in a loop counts as often as the loop turns, and of the branches
      of a condition all count; a loop of unknown length counts as one turn. Of a pair of start and
      done, the start counts.
  """
  bodies, entry, name = {}, '', ''
  for line in text.splitlines():
    head = re.match(r'(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?{$', line)
    if head:
      name, bodies[head[2]] = head[2], []
      entry = name if head[1] else entry
    elif name:
      bodies[name].append(line)
  found = {kind: [0, 0] for kind in KINDS}

  def visit(body: str, times: int) -> None:
    for line in bodies[body]:
      one = re.search(rf'= (.*?) ({"|".join(KINDS)})(-start|-done)?\(', line)
      if one and one[3] != '-done':
        # A start names what it sends first, as a tuple or an array, and numbers of its own last.
        results = one[1].partition('), ')[2] or one[1]
        sizes = [
          BYTES.get(dtype, 4) * math.prod(int(n) for n in dims.split(',') if n)
          for dtype, dims in re.findall(r'(\w+)\[([\d,]*)\]', results)
        ]
        size = max(sizes) if one[3] and results == one[1] and one[2] != 'all-reduce' else sum(sizes)
        count, so_far = found[one[2]]
        found[one[2]] = [count + times, so_far + times * size]
      turns = re.search(r'"known_trip_count":{"n":"(\d+)"}', line)
      for inner in re.findall(
        r'(?:calls|body|true_computation|false_computation)=%?([\w.\-]+)', line
      ):
        visit(inner, times * int(turns[1] if turns else 1))
      for branches in re.findall(r'branch_computations={([^}]*)}', line):
        for inner in branches.split(','):
          visit(inner.strip().lstrip('%'), times)

  visit(entry, 1)
  return {kind: tuple(each) for kind, each in found.items() if each[0]}


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

  shape = tuple(map(int, sizes.split(',')))
  count = math.prod(shape)
  on_tpu = target in ahead.TPUS
  here = lambda: KNOWN['tpu' if on_tpu else target]
  fused.here = dispatch.here = chunks.here = here
  jax.default_backend = lambda: 'tpu' if on_tpu else 'gpu'
  if on_tpu:
    name = {8: 'v5e:2x4', 64: 'v5e:8x8', 256: 'v5e:16x16'}[count]
    devices = topologies.get_topology_desc(platform='tpu', topology_name=name).devices
  else:
    hosts = f'1x{max(count // 8, 1)}x8'
    options = {'topology_name': '', 'topology': hosts, 'target_config': ahead.facts(target)}
    devices = topologies.get_topology_desc(platform='cuda', **options).devices
  mesh = Mesh(np.array(devices).reshape(shape), AXES, axis_types=(AxisType.Auto,) * 4)
  program, state = lowered(settings(shape, int(tokens), int(width), int(layers)), mesh)
  compiled = program.compile()
  memory = compiled.memory_analysis()
  text = compiled.as_text()
  print(
    {
      'devices': count,
      'parameters': sum(leaf.size for leaf in jax.tree.leaves(state.params)),
      'temporary': memory.temp_size_in_bytes,
      'arguments': memory.argument_size_in_bytes,
      'kernels': len(re.findall('custom_call_target="(?:tpu_custom_call|__gpu.*triton)', text)),
      'collectives': collectives(text),
    }
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
