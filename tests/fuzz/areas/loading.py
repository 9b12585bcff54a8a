"""`interop.layer` and `interop.load_attention`: wrong keys of configurations, spoiled weights."""

import functools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from posjax import interop
from posjax.interop.checkpoint import shapes_of
from tests.fuzz.areas.interop import INF, NAN, VALUES, alike, paths, replaced
from tests.fuzz.case import Case, line, normal, refused

T = 5
SIZES = {'hidden_size': 16, 'num_attention_heads': 4, 'num_hidden_layers': 2}
GROUPED = {**SIZES, 'num_key_value_heads': 2, 'head_dim': 4, 'rope_theta': 10000.0}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}
LATENT = {
  **{**SIZES, 'num_key_value_heads': 4, 'q_lora_rank': 8, 'kv_lora_rank': 6, 'v_head_dim': 6},
  **{'qk_nope_head_dim': 4, 'qk_rope_head_dim': 2, 'rope_theta': 10000.0},
}
# One of each layout of weights, and of each kind of what goes with a scheme; and the layer's part.
KNOWN: dict[str, tuple[dict[str, Any], str | None]] = {
  'llama': ({'model_type': 'llama', **GROUPED, 'attention_bias': True}, None),
  'qwen3': ({'model_type': 'qwen3', **GROUPED, 'rms_norm_eps': 1e-6}, None),
  'gemma2': (
    {
      **{'model_type': 'gemma2', **GROUPED, 'query_pre_attn_scalar': 8.0},
      **{'attn_logit_softcapping': 50.0, 'sliding_window': 3},
    },
    None,
  ),
  'gpt2': ({'model_type': 'gpt2', 'n_embd': 16, 'n_head': 4, 'n_layer': 2}, None),
  'gpt_neox': ({'model_type': 'gpt_neox', **SIZES, 'rotary_pct': 0.5}, None),
  'bloom': ({'model_type': 'bloom', 'hidden_size': 16, 'n_head': 4, 'n_layer': 2}, None),
  'gpt_oss': (
    {'model_type': 'gpt_oss', **GROUPED, 'sliding_window': 4, 'rope_scaling': YARN},
    None,
  ),
  'deepseek_v3': ({'model_type': 'deepseek_v3', **LATENT}, None),
  't5': (
    {
      **{'model_type': 't5', 'd_model': 16, 'num_heads': 4, 'd_kv': 4, 'num_layers': 2},
      **{'relative_attention_num_buckets': 8, 'relative_attention_max_distance': 10},
    },
    'encoder',
  ),
}


def cases() -> list[Case]:
  """All cases of this file."""
  return [*whole(), *arguments(), *spoiled(), *weights(), *mappings()]


@functools.cache
def shapes(name: str) -> dict[str, tuple[int, ...]]:
  """The weights of the layer, by their names in a checkpoint."""
  config, part = KNOWN[name]
  return shapes_of(config, 0, part=part)


def checkpoint(name: str) -> dict[str, Any]:
  """Random weights of the layer."""
  return {each: normal(*shape, seed=i) for i, (each, shape) in enumerate(shapes(name).items())}


def load(name: str, given: Any, **changes: Any) -> Any:
  config, part = KNOWN[name]
  return interop.load_attention(
    **{'config': config, 'index': 0, 'part': part} | changes, weights=given
  )


def attends(name: str, loaded: Any) -> str:
  """Whether the loaded weights are those of a layer of linen, which then gives finite numbers."""
  from posjax.linen import Attention

  config, part = KNOWN[name]
  layer = Attention(**interop.layer(config, 0, part=part).arguments())
  x, pos = jnp.asarray(normal(1, T, 16)), jnp.arange(T)
  out = layer.apply({'params': loaded}, x, pos)
  if out.shape != x.shape:
    return f'the output has shape {out.shape}'
  return '' if jnp.isfinite(out).all() else 'the output is not finite'


def whole() -> Iterator[Case]:
  """What is known must be accepted, and attends."""
  for name in KNOWN:
    call = lambda name=name: load(name, checkpoint(name))
    yield Case(f'load_attention({name})', call, functools.partial(attends, name), valid=True)


def arguments() -> Iterator[Case]:
  """Other configurations, indices, parts, lengths and prefixes, of both functions."""
  wrong: dict[str, list[Any]] = {
    'config': [None, 3, 'llama', [], {}, {'model_type': None}, {'model_type': 'no_such'}],
    'index': [-1, 2, 1.5, '0', None, [0], NAN, True, 2**70],
    'part': ['no_such', 3, [], True, '', 'decoder'],
  }
  both = {'layer': {'length': ['x', 1.5, -1, 0, [8], NAN, True]}}
  both['load_attention'] = {'prefix': [3, [], True, 'no_such.', b'model.']}
  for function, more in both.items():
    for argument, values in {**wrong, **more}.items():
      for value in values:
        call = functools.partial(_with, function, {argument: value})
        yield Case(line(f'{function}(llama)', **{argument: value}), call, refused)


def _with(function: str, changes: dict[str, Any]) -> Any:
  if function == 'load_attention':
    return load('llama', checkpoint('llama'), **changes)
  return interop.layer(**{'config': KNOWN['llama'][0], 'index': 0} | changes)


def spoiled() -> Iterator[Case]:
  """Each key of a configuration, also of the dicts inside, with each wrong value."""
  for name, (config, part) in KNOWN.items():
    for path in paths(config):
      for value in VALUES:
        wrong = replaced(config, path, value)
        title = f'layer({name}, {".".join(path)}={value!r})'[:120]
        call = functools.partial(interop.layer, wrong, 0, part=part)
        yield Case(title, call, functools.partial(judged, name, path, value))
      missing = functools.partial(interop.layer, replaced(config, path), 0, part=part)
      yield Case(f'layer({name}, no {".".join(path)})', missing)


def judged(name: str, path: tuple[str, ...], value: Any, told: Any) -> str:
  """An accepted configuration: a value of another kind may change nothing of what is said."""
  config, part = KNOWN[name]
  right = config
  for key in path:
    right = right[key]
  before = interop.layer(config, 0, part=part)
  same = told._replace(scheme=None) == before._replace(scheme=None)
  if value is None or same or alike(right, value):
    return ''
  return f'accepted {value!r} where there should be such a value as {right!r}'


def weights() -> Iterator[Case]:
  """Each weight of each layout, missing, misshapen or of another kind; and an unknown one."""
  for name in KNOWN:
    for each in shapes(name):
      yield Case(
        f'load_attention({name}, no {each})', functools.partial(_changed, name, each), refused
      )
      for how, value in wrong_arrays(shapes(name)[each]).items():
        call = functools.partial(_changed, name, each, value)
        yield Case(f'load_attention({name}, {each}: {how})', call, refused)
      for kind in ('float16', 'bfloat16'):
        call = functools.partial(_changed, name, each, jnp.ones(shapes(name)[each], kind))
        yield Case(
          f'load_attention({name}, {each}: {kind})',
          call,
          functools.partial(holds_dtype, kind),
          valid=True,
        )
      for number in (NAN, INF):
        array = np.full(shapes(name)[each], number, np.float32)
        call = functools.partial(_changed, name, each, array)
        title = f'load_attention({name}, {each}: {number})'
        yield Case(title, call, is_told, valid=True)
    block = next(iter(shapes(name))).rsplit('.', 2)[0]
    for extra in (f'{block}.no_such.weight', f'{block}.no_such', f'{block}.q_norm.no_such'):
      call = functools.partial(_changed, name, extra, np.ones(3, np.float32))
      yield Case(f'load_attention({name}, also {extra})', call, refused)


def wrong_arrays(shape: tuple[int, ...]) -> dict[str, Any]:
  """What is no weight of the shape."""
  return {
    'a row more': np.ones((shape[0] + 1, *shape[1:]), np.float32),
    'an axis more': np.ones((*shape, 1), np.float32),
    'empty': np.ones((0, *shape[1:]), np.float32),
    'a number': np.float32(1),
    'int32': np.ones(shape, np.int32),
    'bool': np.ones(shape, bool),
    'complex64': np.ones(shape, np.complex64),
    'float64': np.ones(shape, np.float64),
    'objects': np.full(shape, None),
    'a list': np.ones(shape).tolist(),
    'None': None,
    'a string': 'x',
  }


def _changed(name: str, each: str, *value: Any) -> Any:
  """Loads with another weight of that name, or without it."""
  given = {**checkpoint(name), each: value[0] if value else None}
  if not value:
    del given[each]
  return load(name, given)


def _leaves(tree: Any) -> list[Any]:
  return [
    leaf for each in tree.values() for leaf in (_leaves(each) if isinstance(each, dict) else [each])
  ]


def holds_dtype(kind: str, loaded: Any) -> str:
  """Whether an array of that dtype is there as it was."""
  found = {str(leaf.dtype) for leaf in _leaves(loaded)}
  return '' if kind in found else f'the dtypes are {sorted(found)}'


def is_told(loaded: Any) -> str:
  """Numbers that are not finite are those of the file, and stay: no output hides them."""
  finite = all(bool(jnp.isfinite(leaf).all()) for leaf in _leaves(loaded))
  return 'numbers that are not finite have gone' if finite else ''


def mappings() -> Iterator[Case]:
  """What should hold the weights."""
  for value in (None, 3, 'x', [], np.ones(3), set(), {}, {3: np.ones(3)}, {'a': np.ones(3)}):
    call = functools.partial(load, 'llama', value)
    yield Case(line('load_attention', 'llama', value), call, refused)
  twice = lambda: load('llama', {**checkpoint('llama'), **_prefixed('other.')})
  yield Case('load_attention(llama, weights of two stacks)', twice, refused)
  chosen = lambda: load('llama', {**checkpoint('llama'), **_prefixed('other.')}, prefix='other.')
  yield Case(
    'load_attention(llama, one of two stacks)', chosen, functools.partial(attends, 'llama'), True
  )


def _prefixed(prefix: str) -> dict[str, Any]:
  return {prefix + name.removeprefix('model.'): x for name, x in checkpoint('llama').items()}
