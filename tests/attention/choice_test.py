"""Which implementation a call takes on which device, and why; nothing here is computed."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import posjax
from posjax.attention import chosen, devices
from posjax.attention.pallas import fused
from tests.attention.small import Small
from tests.support.paths import ROOT

HEADS, LENGTH = 8, 4096
POS = np.arange(LENGTH)
# (a) schemes that act on queries, keys and values; (b) a bias by distance; (c) the rest
KINDS = {
  'a': ['none', 'rope', 'yarn(factor=4.0, original_length=64)'],
  'b': ['alibi', 't5', 'kerple'],
  'c': ['shaw', 'cope'],
}
TAKEN = {  # docs/conventions.md has the same table
  'cpu': {'a': 'blockwise', 'b': 'blockwise', 'c': 'blockwise'},
  'tpu': {'a': 'blockwise', 'b': 'blockwise', 'c': 'blockwise'},
  'amd': {'a': 'blockwise', 'b': 'blockwise', 'c': 'blockwise'},
  'ampere': {'a': 'cudnn', 'b': 'pallas', 'c': 'blockwise'},
  'ada': {'a': 'cudnn', 'b': 'pallas', 'c': 'blockwise'},
  'hopper': {'a': 'cudnn', 'b': 'pallas', 'c': 'blockwise'},
  'blackwell': {'a': 'cudnn', 'b': 'blockwise', 'c': 'blockwise'},
}


def ask(line, device, *, width=64, value_width=None, dtype=jnp.bfloat16, length=LENGTH, **options):
  """The choice for causal attention of a scheme, with NumPy's ids, which are known."""
  scheme = posjax.get(line)
  dims = posjax.Dims(HEADS * width, HEADS, width)
  params = jax.eval_shape(lambda: posjax.init(scheme, jax.random.key(0), dims))
  heads = lambda width: jax.ShapeDtypeStruct((2, length, HEADS, width), dtype)
  ids = {'q_pos': np.arange(length), 'k_pos': np.arange(length)}
  options = {'causal': True, **ids, **options}
  arrays = heads(width), heads(width), heads(value_width or width)
  return chosen(*arrays, scheme, params, device=device, **options)


@pytest.mark.parametrize('device', TAKEN)
def test_each_kind_of_scheme_takes_the_fastest_that_computes_it(device):
  for kind, lines in KINDS.items():
    for line in lines:
      assert ask(line, device).implementation == TAKEN[device][kind], line


def test_the_page_of_conventions_has_the_table():
  page = (ROOT / 'docs' / 'conventions.md').read_text()
  for device, taken in TAKEN.items():
    assert f'| {device} | `{taken["a"]}` | `{taken["b"]}` | `{taken["c"]}` |' in page


FEW = [('cpu', 181, 182), ('hopper', 1024, 1025), ('tpu', 512, 513)]


@pytest.mark.parametrize(('device', 'most', 'more'), FEW)
def test_few_pairs_are_dense(device, most, more):
  assert ask('rope', device, length=most).implementation == 'dense'
  assert ask('rope', device, length=more).implementation != 'dense'


def test_decoding_is_dense():
  q, k = (jax.ShapeDtypeStruct((2, n, HEADS, 64), jnp.bfloat16) for n in (16, 100_000))
  ids = {'q_pos': POS[:16], 'k_pos': np.arange(100_000)}
  assert chosen(q, k, k, 'rope', {}, device='hopper', **ids).implementation == 'dense'


@pytest.mark.parametrize(
  ('line', 'device', 'options', 'taken', 'why'),
  [
    ('rope', 'hopper', {'width': 256}, 'cudnn', ''),
    ('rope', 'hopper', {'width': 100, 'value_width': 60}, 'cudnn', ''),
    ('rope', 'ampere', {'width': 256}, 'pallas', 'up to 128 on this GPU'),
    ('rope', 'ada', {'width': 320}, 'blockwise', 'older than Hopper'),
    ('rope', 'hopper', {'dtype': jnp.float32}, 'pallas', 'bfloat16 and float16 only'),
    ('rope', 'hopper', {'logit_cap': 50.0}, 'pallas', 'no logit cap'),
    ('rope', 'hopper', {'sinks': np.ones(HEADS, np.float32)}, 'pallas', 'the call has sinks'),
    ('rope', 'hopper', {'causal': False, 'window': 9}, 'pallas', 'tokens after a query'),
    ('t5', 'hopper', {'q_pos': POS[::-1].copy()}, 'blockwise', 'do not count up by one'),
    ('rope', 'hopper', {'mask': np.ones((LENGTH, LENGTH), bool)}, 'blockwise', 'a mask'),
    (
      'rope',
      'hopper',
      {'q_segments': np.repeat([1, 2], LENGTH // 2), 'k_segments': np.repeat([1, 2], LENGTH // 2)},
      'pallas',
      'one document',
    ),
  ],
)
def test_other_calls_take_what_computes_them(line, device, options, taken, why):
  found = ask(line, device, **options)
  assert found.implementation == taken
  assert why in found.why


def test_in_a_compiled_program_known_ids_are_known_and_others_are_tested_when_it_runs():
  """Ids of NumPy and of jnp.arange outside are constants; those that are handed in are not."""
  found = []

  def trace(pos):
    reversed_ids = {'q_pos': POS[::-1].copy(), 'k_pos': POS}
    found.append(ask('t5', 'hopper', **reversed_ids).implementation)
    found.append(ask('t5', 'hopper', q_pos=pos, k_pos=pos).implementation)
    found.append(ask('rope', 'hopper', q_pos=pos, k_pos=pos).implementation)
    return pos

  jax.make_jaxpr(trace)(jnp.asarray(POS))
  assert found == ['blockwise', 'pallas', 'cudnn']


def test_a_program_with_known_ids_has_no_second_way(monkeypatch):
  """No `cond` is compiled where the ids are constants, and one is where they are arguments."""
  monkeypatch.setattr(
    fused, 'target_of', lambda device, mosaic=False: fused.Target(Small('gpu'), True)
  )
  scheme = posjax.get('alibi')
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(128, 2, 64))
  x = jax.ShapeDtypeStruct((1, 256, 2, 64), jnp.bfloat16)
  run = lambda x, pos: posjax.attend(
    x, x, x, scheme, params, q_pos=pos, k_pos=pos, causal=True, implementation='pallas'
  )
  known = jax.make_jaxpr(functools.partial(run, pos=jnp.arange(256)))(x)
  unknown = jax.make_jaxpr(run)(x, jnp.arange(256))
  assert ' cond[' not in str(known)
  assert ' cond[' in str(unknown)


def test_an_environment_variable_names_the_default(monkeypatch):
  monkeypatch.setenv('POSJAX_IMPLEMENTATION', 'dense')
  assert ask('rope', 'hopper') == ('dense', 'POSJAX_IMPLEMENTATION is dense')
  assert ask('rope', 'hopper', implementation='pallas').implementation == 'pallas'
  monkeypatch.setenv('POSJAX_IMPLEMENTATION', 'fast')
  with pytest.raises(ValueError, match=r'POSJAX_IMPLEMENTATION must be one of .*, but got .fast'):
    ask('rope', 'cpu')


@pytest.mark.usefixtures('eight_devices')
def test_where_devices_compute_their_own_rows_the_choice_is_that_of_one_device():
  """Rows of all devices together have more numbers than a kernel counts."""
  params = posjax.init(posjax.get('t5'), jax.random.key(0), posjax.Dims(1024, 8, 128))
  x = jax.ShapeDtypeStruct((512, 8192, 8, 128), jnp.bfloat16)
  pos = jnp.arange(8192)
  options = {'q_pos': pos, 'k_pos': pos, 'causal': True, 'device': 'hopper'}
  assert '2^31 numbers or more' in chosen(x, x, x, 't5', params, **options).why
  with jax.set_mesh(jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))):
    assert chosen(x, x, x, 't5', params, **options).implementation == 'pallas'


@pytest.mark.usefixtures('eight_devices')
def test_under_a_mesh_that_xla_cuts_no_kernel_is_taken():
  mesh = jax.make_mesh((4, 2), ('data', 'tensor'), axis_types=(jax.sharding.AxisType.Auto,) * 2)
  with jax.set_mesh(mesh):
    found = ask('rope', 'hopper')
    assert found.implementation == 'blockwise'
    assert 'mesh axes data, tensor' in found.why
    inside = []
    body = lambda x: (inside.append(ask('rope', 'hopper').implementation), x)[1]
    spec = PartitionSpec('data')
    jax.eval_shape(jax.shard_map(body, in_specs=spec, out_specs=spec), jnp.zeros(8))
  assert inside == ['cudnn']


@pytest.mark.parametrize(
  ('backend', 'kind', 'capability', 'found'),
  [
    ('tpu', 'TPU v5 lite', None, 'tpu'),
    ('gpu', 'NVIDIA H100', '9.0', 'hopper'),
    ('gpu', 'NVIDIA A100', '8.0', 'ampere'),
    ('gpu', 'AMD Instinct MI300X', 'gfx942', 'amd'),
    ('cpu', 'cpu', None, 'cpu'),
  ],
)
def test_the_device_of_this_process_is_told_by_jax(backend, kind, capability, found, monkeypatch):
  device = types.SimpleNamespace(device_kind=kind, compute_capability=capability)
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  monkeypatch.setattr(jax, 'devices', lambda: [device])
  assert devices.here() == devices.KNOWN[found]


@pytest.mark.parametrize(
  ('device', 'module'), [('tpu', 'tpu'), ('hopper', 'gpu'), ('ada', 'gpu'), ('blackwell', None)]
)
def test_each_device_has_its_kernels(device, module):
  target = fused.target_of(devices.KNOWN[device])
  assert (target and target.kernels.__name__) == (module and f'posjax.attention.pallas.{module}')


def test_an_unknown_device_is_refused():
  with pytest.raises(ValueError, match="Unknown device 'hooper'; did you mean 'hopper'"):
    ask('rope', 'hooper')
