"""Compiles the fused kernels for a chip that is not here, and prints what each of them uses.

No device is needed, but the wheels of its compiler: libtpu; or jax-cuda12-plugin, jax-cuda12-pjrt
and nvidia-cuda-nvcc-cu12. `pallas_ahead_test` runs it, in a process with `environment`. Targets are
'v5e', 'v5p' and 'v6e' of TPUs, and the GPUs 'hopper' (H100), 'ampere' (A100) and 'ada'; 'mosaic' is
Hopper with the kernels of Mosaic GPU.
"""

import contextlib
import glob
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

FACTS = pathlib.Path(__file__).with_name('h100.txtpb')  # of an H100, as XLA's compiler reads them
# TPUs: the names of a topology, and of the accelerator.
TPUS = {
  'v5e': ('v5e:2x2', 'v5litepod-4'),
  'v5p': ('v5p:2x2x1', 'v5p-8'),
  'v6e': ('v6e:2x2', 'v6e-4'),
}
# Other GPUs: their compute capability and shared memory alone.
OTHERS = {
  'ampere': ('major: 8 minor: 0', 'shared_memory_per_block_optin: 166912'),
  'ada': ('major: 8 minor: 9', 'shared_memory_per_block_optin: 101376'),
}


def facts(target: str) -> str:
  text = FACTS.read_text()
  for old, new in zip(
    (r'major: \d minor: \d', r'shared_memory_per_block_optin: \d+'),
    OTHERS.get(target, ()),
    strict=False,
  ):
    text = re.sub(old, new, text, count=1)
  return text


def wheel(name: str) -> pathlib.Path | None:
  """The folder of an installed package."""
  try:
    spec = importlib.util.find_spec(name)
  except ModuleNotFoundError:
    return None
  places = [] if spec is None else list(spec.submodule_search_locations or [])
  return pathlib.Path(places[0]) if places else None


def missing(target: str) -> list[str]:
  """The packages that are not installed."""
  needs = ['libtpu'] if target in TPUS else ['jax_plugins.xla_cuda12', 'nvidia.cuda_nvcc']
  return [name for name in needs if wheel(name) is None]


def environment(target: str, dump: str) -> dict[str, str]:
  """What the compiler asks of its process."""
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'JAX_ENABLE_COMPILATION_CACHE': 'false'}
  if target in TPUS:
    return env | {
      'TPU_LIBRARY_PATH': str(wheel('libtpu') / 'libtpu.so'),
      'TPU_SKIP_MDS_QUERY': '1',
      'TPU_ACCELERATOR_TYPE': TPUS[target][1],
      'TPU_WORKER_HOSTNAMES': 'localhost',
    }
  nvcc = wheel('nvidia.cuda_nvcc')
  flags = f'--xla_gpu_cuda_data_dir={nvcc} --xla_dump_to={dump}'
  path = f'{nvcc}/bin:{env["PATH"]}'
  return env | {'PATH': path, 'XLA_FLAGS': flags, 'MOSAIC_GPU_DUMP_TO': f'{dump}/mosaic'}


def device(target: str):
  from jax.experimental import topologies

  if target in TPUS:
    name, _ = TPUS[target]
    return topologies.get_topology_desc(platform='tpu', topology_name=name).devices[0]
  options = {'topology_name': '', 'topology': '1x1x1', 'target_config': facts(target)}
  return topologies.get_topology_desc(platform='cuda', **options).devices[0]


def described(kind: str, axis: str, count: int):
  """A mesh of GPUs that are described, and not there."""
  from jax.sharding import AbstractDevice, AbstractMesh, AxisType

  device = AbstractDevice(kind, 132, platform='gpu')
  return AbstractMesh((count,), (axis,), axis_types=(AxisType.Auto,), abstract_device=device)


class Compiler:
  """Compiles a function of arrays that need not exist."""

  def __init__(self, target: str, dump: str):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    self.target, self.dump = target, dump
    self.device = device(target)
    self.sharding = NamedSharding(Mesh(np.array([self.device]), ('one',)), PartitionSpec())
    self.like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding)

  def __call__(self, function, *args) -> dict[str, str]:
    """What each kernel of the compiled function uses."""
    import jax

    shutil.rmtree(self.dump, ignore_errors=True)
    os.makedirs(f'{self.dump}/mosaic')
    platform = 'tpu' if self.target in TPUS else 'cuda'
    with self._described():
      traced = jax.jit(function).trace(*jax.tree.map(self.like, args))
      compiled = traced.lower(lowering_platforms=(platform,)).compile()
    temporary = f'{compiled.memory_analysis().temp_size_in_bytes / 2**20:.1f} MiB'
    if self.target in TPUS:
      used = self._tpu(compiled)
    else:
      used = self._mosaic() if self.target == 'mosaic' else self._cuda()
    return used | {'temporary memory': temporary}

  def kernels(self):
    """The kernels for this target."""
    from posjax.attention.devices import KNOWN
    from posjax.attention.pallas import fused

    names = {'mosaic': 'hopper', **dict.fromkeys(TPUS, 'tpu')}
    device = KNOWN[names.get(self.target, self.target)]
    return fused.target_of(device, mosaic=self.target == 'mosaic')

  def _described(self):
    """Pallas' Triton backend asks for the GPU when it lowers, since jax 0.11."""
    from jax.sharding import use_abstract_mesh

    if self.target in TPUS:
      return contextlib.nullcontext()
    return use_abstract_mesh(described(self.device.device_kind, 'one', 1))

  def _tpu(self, compiled) -> dict[str, str]:
    found = {}
    for line in compiled.as_text().splitlines():
      name = re.search(r'%(\w+)[.\d]* = .*custom_call_target="tpu_custom_call"', line)
      used = re.search(r'"used_scoped_memory_configs":\[\{[^]]*"size":"(\d+)"', line)
      if name and used:
        found[name[1]] = f'{int(used[1]) / 2**20:.1f} MiB of VMEM'
    return found

  def _mosaic(self) -> dict[str, str]:
    """From what Mosaic dumps; its kernels have numbers for names."""
    found = {}
    for path in sorted(pathlib.Path(self.dump, 'mosaic').glob('*.ptxas')):
      shared = re.search(r'scratch_bytes=(\d+)', path.with_suffix('.resources.txt').read_text())[1]
      found[path.stem] = f'{int(shared) / 1024:.0f} KiB of shared memory, {_used(path.read_text())}'
    return found

  def _cuda(self) -> dict[str, str]:
    """From what XLA dumps: that of jax 0.11 has no assembly, so no registers."""
    read = lambda end: [pathlib.Path(p).read_text() for p in glob.glob(f'{self.dump}/*{end}')]
    launched = r' (\w+) grid: .* threads: \[(\d+).* shared_memory: (\d+)'
    found = {
      name: f'{threads} threads, {int(shared) / 1024:.0f} KiB of shared memory'
      for name, threads, shared in re.findall(launched, ''.join(read('thunk_sequence.txt')))
      if name in KERNELS
    }
    for assembly in read('.ptx'):
      name = re.search(r'entry (\w+)\(', assembly)
      if name and name[1] in found:
        found[name[1]] += _assembled(assembly)
    return found


def _assembled(assembly: str) -> str:
  command = ['ptxas', '-v', '-arch=sm_90a', '-', '-o', os.devnull]
  done = subprocess.run(command, input=assembly, capture_output=True, text=True, check=True)
  products = ', '.join(f'{assembly.count(n)} {n}' for n in ('wgmma.mma', 'mma.sync'))
  return f', {_used(done.stderr)}, {products}'


def _used(report: str) -> str:
  """What the assembler says that a kernel uses."""
  registers = re.search(r'Used (\d+) registers', report)[1]
  spilled = re.search(r'(\d+) bytes spill stores', report)[1]
  return f'{registers} registers, {spilled} bytes spilled'


KERNELS = ('forward', 'd_q', 'd_keys', 'd_table')


def problem(
  dtype='bfloat16', width=128, tokens=(2048, 2048), heads=(4, 2), table=True, sinks=False, v_width=0
):
  """Shapes of a problem, its sums of rows, and its cotangent."""
  import jax

  from posjax.attention.pallas.formulas import Problem, Tokens

  like = lambda *shape, dtype='float32': jax.ShapeDtypeStruct(shape, dtype)
  side = lambda n: Tokens(like(1, n, dtype='int32'), like(1, n, dtype='int32'))
  x = Problem(
    like(1, tokens[0], heads[0], width, dtype=dtype),
    like(1, tokens[1], heads[1], width, dtype=dtype),
    like(1, tokens[1], heads[1], v_width or width, dtype=dtype),
    like(1, heads[0], sum(tokens) - 1) if table else None,
    like(heads[0]) if sinks else None,
    *map(side, tokens),
  )
  rows = like(1, heads[0], tokens[0])
  return x, rows, like(1, tokens[0], heads[0], v_width or width, dtype=dtype)


def kernels(compiler: Compiler, plan_of=None, rules=(0.1, True, None, None, 0.0), near=0, **shape):
  """What the four kernels of a problem use."""
  from posjax.attention.inputs import Rules, read_window

  target = compiler.kernels()
  module = target.kernels
  x, rows, d_out = problem(**shape)
  given = Rules(*rules)
  given = given._replace(window=read_window(given.window, given.causal))
  plan = plan_of(given, x) if plan_of else module.plan(given, x, target.device)

  def both(x, rows, d_out):
    return module.forward(plan, x), module.backward(plan, x, rows, rows, d_out, near)

  return compiler(both, x, rows, d_out)


CASES = [
  {'dtype': dtype, 'width': width, 'rules': rules, 'table': table}
  for dtype in ('bfloat16', 'float32')
  for width, rules, table in [
    (64, (0.1, True, None, None, 0.0), True),
    (128, (0.1, True, 1024, 30.0, 0.0), True),
    (256, (0.1, False, None, None, 0.0), False),
  ]
] + [
  {'dtype': 'bfloat16', 'width': 64, 'table': True, 'near': 900},
  {'width': 80, 'v_width': 48, 'tokens': (100, 300), 'sinks': True},
  {'width': 576, 'v_width': 64},
  {'rules': (0.1, False, (256, 128), None, 0.0)},
  {'rules': (0.1, False, (None, 64), 30.0, 0.0), 'dtype': 'float32', 'width': 64},
  {'rules': (0.1, False, (512, None), None, 0.0), 'tokens': (100, 300), 'table': False},
]  # fmt: skip

SCHEMES = [
  'alibi(learned=True)', 't5', 'gaussian', 'kerple', 'sandwich', 'dynamic_bias(width=32)', 'rope',
  'pope', 'tener', 'transformer_xl', 'rope+alibi', 't5+kerple',
  'rope(values=True)', 'yarn(4.0, 64, values=True)+alibi(learned=True)', 'ntk(values=True)+t5',
]  # fmt: skip
WINDOWS = [
  (line, window)
  for line in ('rope(values=True)', 't5', 'rope+alibi')
  for window in ((128, 64), (None, 32), (200, None))
]


def scheme(compiler: Compiler, line: str, window=None):
  """What the kernels of attention with a scheme use, in bfloat16, with all its gradients."""
  import jax
  import jax.numpy as jnp

  import posjax
  from posjax.attention.pallas import fused

  target = compiler.kernels()
  fused.target_of = lambda device, mosaic=False: target
  one, dims = posjax.get(line), posjax.Dims(128, 4, 64, 2)
  params = jax.eval_shape(lambda: posjax.init(one, jax.random.key(0), dims))
  heads = lambda n: jax.ShapeDtypeStruct((1, 1024, n, 64), jnp.bfloat16)
  pos = jax.ShapeDtypeStruct((1024,), jnp.int32)

  def number(args, pos):
    q, k, v, params = args
    options = {'q_pos': pos, 'k_pos': pos, 'implementation': 'pallas'}
    options |= {'causal': True} if window is None else {'window': window}
    return posjax.attend(q, k, v, one, params, **options).astype(jnp.float32).sum()

  return compiler(jax.value_and_grad(number), (heads(4), heads(2), heads(2), params), pos)


def gathers(target: str) -> dict[str, int]:
  """All-gathers of programs for four GPUs, to which the rows of a batch are given.

  What attention chooses under a mesh, the kernels inside `shard_map`, and the kernels alone.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np
  from jax.experimental import topologies
  from jax.sharding import Mesh, NamedSharding, PartitionSpec, use_abstract_mesh

  import posjax
  from posjax.attention import dispatch
  from posjax.attention.devices import KNOWN
  from posjax.attention.pallas import fused

  fused.here = dispatch.here = lambda: KNOWN[target]
  jax.default_backend = lambda: 'gpu'
  options = {'topology_name': '', 'topology': '1x1x4', 'target_config': facts(target)}
  devices = topologies.get_topology_desc(platform='cuda', **options).devices
  rows = PartitionSpec('data')
  abstract = described(devices[0].device_kind, 'data', len(devices))
  sharding = NamedSharding(Mesh(np.array(devices), ('data',), axis_types=abstract.axis_types), rows)
  x = jax.ShapeDtypeStruct((4, 2048, 4, 64), jnp.bfloat16, sharding=sharding)
  scheme, pos = posjax.get('t5'), np.arange(2048)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(256, 4, 64))

  def gradients(implementation):
    def number(q, k, v):
      out = posjax.attend(
        q, k, v, scheme, params, q_pos=pos, k_pos=pos, causal=True, implementation=implementation
      )  # fmt: skip
      return out.astype(jnp.float32).sum()

    return jax.grad(number, argnums=(0, 1, 2))

  apart = jax.shard_map(
    gradients('pallas'), mesh=abstract, in_specs=rows, out_specs=rows, check_vma=False
  )
  programs = {'chosen': gradients(None), 'in shard_map': apart, 'alone': gradients('pallas')}
  found = {}
  with use_abstract_mesh(abstract):
    for name, program in programs.items():
      lowered = jax.jit(program).trace(x, x, x).lower(lowering_platforms=('cuda',))
      found[name] = len(re.findall(r'all-gather(-start)?\(', lowered.compile().as_text()))
  return found


def around(target: str, implementation: str, line: str, tokens: int) -> dict[str, int]:
  """Attention over the context of eight devices, with all gradients: 1 row, 8 heads of 128.

  Its temporary memory on each device, in bytes, and how many collectives there are of each kind.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np
  from jax.experimental import topologies
  from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    use_abstract_mesh,
  )

  import posjax
  from posjax.attention import dispatch
  from posjax.attention.context import chunks
  from posjax.attention.devices import KNOWN
  from posjax.attention.pallas import fused

  platform = 'tpu' if target in TPUS else 'gpu'
  here = lambda: KNOWN['tpu' if target in TPUS else target]
  fused.here = dispatch.here = chunks.here = here
  jax.default_backend = lambda: platform
  if target in TPUS:
    devices = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x4').devices
    abstract = AbstractMesh((8,), ('context',), axis_types=(AxisType.Auto,))
  else:
    options = {'topology_name': '', 'topology': '1x1x8', 'target_config': facts(target)}
    devices = topologies.get_topology_desc(platform='cuda', **options).devices
    abstract = described(devices[0].device_kind, 'context', 8)
  mesh = Mesh(np.array(devices), ('context',), axis_types=abstract.axis_types)
  cut = NamedSharding(mesh, PartitionSpec(None, 'context'))
  x = jax.ShapeDtypeStruct((1, tokens, 8, 128), jnp.bfloat16, sharding=cut)
  scheme, pos = posjax.get(line), np.arange(tokens)
  if implementation == 'ring':
    pos = np.asarray(posjax.positions.zigzag(pos, 8, axis=0))
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(1024, 8, 128))
  params = jax.tree.map(np.asarray, params)

  def number(q, k, v, params):
    out = posjax.attend(
      q, k, v, scheme, params, q_pos=pos, k_pos=pos, causal=True, implementation=implementation
    )  # fmt: skip
    return out.astype(jnp.float32).sum()

  with use_abstract_mesh(abstract):
    traced = jax.jit(jax.grad(number, argnums=(0, 1, 2, 3))).trace(x, x, x, params)
    lowered = traced.lower(lowering_platforms=('tpu' if target in TPUS else 'cuda',))
    compiled = lowered.compile()
  text = compiled.as_text()
  kinds = 'all-gather', 'all-reduce', 'reduce-scatter', 'collective-permute', 'all-to-all'
  found = {kind: len(re.findall(rf' {kind}(?:-start)?\(', text)) for kind in kinds}
  kernels = len(re.findall('custom_call_target="(?:tpu_custom_call|__gpu.*triton)', text))
  return {'memory': compiled.memory_analysis().temp_size_in_bytes, 'kernels': kernels, **found}


def main(target: str, what: str, dump: str, *more: str) -> None:
  if what == 'around':
    print(around(target, *more[:2], int(more[2])))
    return
  if what == 'mesh':
    print(gathers(target))
    return
  compiler = Compiler(target, dump)
  fits = {
    'ampere': lambda case: max(case.get('width', 128), case.get('v_width', 0)) <= 256,
    'mosaic': lambda case: case.get('dtype') != 'float32' and case.get('width', 128) <= 128,
  }
  fits['ada'] = fits['ampere']
  cases = list(filter(fits.get(target), CASES))
  calls = {
    'kernels': [(kernels, (), case) for case in cases],
    'schemes': [(scheme, (line,), {}) for line in SCHEMES]
    + [(scheme, (line,), {'window': window}) for line, window in WINDOWS],
  }
  for call, positional, named in calls[what]:
    used = call(compiler, *positional, **named)
    print(f'{compiler.device.device_kind}: {" ".join(positional)} {named}')
    print(''.join(f'  {kernel}: {text}\n' for kernel, text in sorted(used.items())), flush=True)


if __name__ == '__main__':
  main(*sys.argv[1:])
