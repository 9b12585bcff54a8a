"""`posjax.interop.from_hf`: configurations that it knows, with one key wrong, null or missing."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax import interop
from posjax.scheme import declares
from tests.fuzz.areas.subjects import KEYS
from tests.fuzz.case import Case, line, normal, refused

NAN, INF = float('nan'), float('inf')
SIZES = {'hidden_size': 64, 'num_attention_heads': 8, 'max_position_embeddings': 64}
ROPE = {**SIZES, 'rope_theta': 10000.0, 'head_dim': 8}
LONG = {'short_factor': [1.0, 1.1, 1.2, 1.5], 'long_factor': [1.0, 1.5, 3.0, 4.0]}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}
LLAMA3 = {
  'rope_type': 'llama3',
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 32,
}
# Configurations as transformers writes them, at a small size; the second entry are arguments.
KNOWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
  'llama': ({'model_type': 'llama', **ROPE, 'rope_scaling': None}, {}),
  'llama3': ({'model_type': 'llama', **ROPE, 'rope_scaling': LLAMA3}, {}),
  'linear': (
    {'model_type': 'llama', **ROPE, 'rope_scaling': {'type': 'linear', 'factor': 2.0}},
    {},
  ),
  'dynamic': (
    {'model_type': 'llama', **ROPE, 'rope_scaling': {'rope_type': 'dynamic', 'factor': 2.0}},
    {'length': 128},
  ),
  'yarn': ({'model_type': 'qwen2', **ROPE, 'rope_scaling': YARN}, {}),
  'yarn of rope_parameters': (
    {'model_type': 'qwen3', **SIZES, 'head_dim': 8, 'rope_parameters': {'rope_theta': 1e4, **YARN}},
    {},
  ),
  'longrope': (
    {
      'model_type': 'phi3',
      **ROPE,
      'original_max_position_embeddings': 16,
      'rope_scaling': {'type': 'longrope', **LONG},
    },
    {'length': 64},
  ),
  'gptj': ({'model_type': 'gptj', 'n_embd': 64, 'n_head': 8, 'rotary_dim': 4}, {}),
  'gpt_neox': ({'model_type': 'gpt_neox', **SIZES, 'rotary_pct': 0.25, 'rotary_emb_base': 1e4}, {}),
  'glm': ({'model_type': 'glm', **ROPE, 'partial_rotary_factor': 0.5}, {}),
  'gemma3': (
    {'model_type': 'gemma3_text', **ROPE, 'rope_local_base_freq': 1e4, 'rope_scaling': None},
    {'layer_type': 'full_attention'},
  ),
  'cohere2': ({'model_type': 'cohere2', **ROPE}, {'layer_type': 'sliding_attention'}),
  'smollm3': ({'model_type': 'smollm3', **ROPE, 'no_rope_layers': [1, 1, 1, 1]}, {}),
  'mrope': (
    {
      'model_type': 'qwen2_vl',
      **ROPE,
      'rope_scaling': {'type': 'mrope', 'mrope_section': [1, 2, 1]},
    },
    {},
  ),
  'bloom': ({'model_type': 'bloom', 'hidden_size': 64, 'n_head': 8}, {}),
  'mpt': ({'model_type': 'mpt', 'd_model': 64, 'n_heads': 8, 'attn_config': {'alibi': True}}, {}),
  'falcon': ({'model_type': 'falcon', **SIZES, 'alibi': True}, {}),
  't5': (
    {
      'model_type': 't5',
      'd_model': 64,
      'num_heads': 8,
      'relative_attention_num_buckets': 32,
      'relative_attention_max_distance': 128,
    },
    {'bidirectional': True},
  ),
  'bert': ({'model_type': 'bert', **SIZES, 'position_embedding_type': 'absolute'}, {}),
  'bert relative': ({'model_type': 'bert', **SIZES, 'position_embedding_type': 'relative_key'}, {}),
  'roberta': ({'model_type': 'roberta', **SIZES, 'pad_token_id': 1}, {}),
  'deberta': (
    {
      'model_type': 'deberta-v2',
      **SIZES,
      'relative_attention': True,
      'max_relative_positions': -1,
      'position_buckets': 8,
      'pos_att_type': ['c2p', 'p2c'],
      'position_biased_input': False,
    },
    {},
  ),
  'gpt2': ({'model_type': 'gpt2', 'n_positions': 64, 'n_embd': 64, 'n_head': 8}, {}),
  'opt': ({'model_type': 'opt', **SIZES}, {}),
  'gpt_oss': ({'model_type': 'gpt_oss', **ROPE, 'rope_scaling': {**YARN, 'truncate': False}}, {}),
}
VALUES = [None, 'x', '', 0, -1, 1.5, NAN, INF, True, False, [], [1, 2], {}, {'a': 1}, 10**400]


class Watched(dict):
  """A configuration that notes which of its keys are read."""

  def __init__(self, content: dict[str, Any], seen: set[str]):
    super().__init__(content)
    self.seen = seen

  def __getitem__(self, key):
    self.seen.add(key)
    return super().__getitem__(key)

  def get(self, key, default=None):
    self.seen.add(key)
    return super().get(key, default)

  def __contains__(self, key):
    self.seen.add(key)
    return super().__contains__(key)


def cases() -> list[Case]:
  """All cases of this file."""
  return [*whole(), *spoiled(), *arguments(), *guesses(), *weights()]


def whole() -> Iterator[Case]:
  """What is known must be accepted, and gives a scheme that attends."""
  for name, (config, given) in KNOWN.items():
    call = functools.partial(interop.from_hf, config, **given)
    yield Case(f'from_hf({name})', call, attends, valid=True)
  for value in (None, 3, 'llama', [], {}, [('model_type', 'llama')], {'model_type': None}, b'{}'):
    yield Case(line('from_hf', value), functools.partial(interop.from_hf, value), refused)
  for kind in (None, 3, '', 'no_such_model', [], {}, 1.5, True, ['llama'], 'LLAMA'):
    config = {**KNOWN['llama'][0], 'model_type': kind}
    yield Case(f'from_hf(model_type={kind!r})', functools.partial(interop.from_hf, config), refused)


def spoiled() -> Iterator[Case]:
  """Each key, also of the dicts inside, with each wrong value, and without it."""
  for name, (config, given) in KNOWN.items():
    for path in paths(config):
      for value in VALUES:
        wrong = replaced(config, path, value)
        title = f'from_hf({name}, {".".join(path)}={value!r})'[:120]
        check = functools.partial(judged, config, path, value, given)
        yield Case(title, functools.partial(interop.from_hf, wrong, **given), check)
      missing = functools.partial(interop.from_hf, replaced(config, path), **given)
      yield Case(f'from_hf({name}, no {".".join(path)})', missing, attends)


def paths(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
  for key, value in config.items():
    if key != 'model_type':
      yield (key,)
    if isinstance(value, dict):
      yield from ((key, inner) for inner in value)


def replaced(config: dict[str, Any], path: tuple[str, ...], *value: Any) -> dict[str, Any]:
  """A copy with another value at a path, or none."""
  key, *rest = path
  if rest:
    return {**config, key: replaced(config[key], tuple(rest), *value)}
  without = {name: old for name, old in config.items() if name != key}
  return {**without, key: value[0]} if value else without


def judged(config: Any, path: Any, value: Any, given: Any, scheme: posjax.Scheme) -> str:
  """An accepted configuration: what is read has the type and the range of the right value."""
  if not is_read(config, path, given):
    return ''
  right = config
  for key in path:
    right = right[key]
  if path[-1] == 'pos_att_type' and value == '':
    return ''  # a text of terms, 'c2p|p2c', that names none
  if value is not None and not alike(right, value):
    return f'accepted {value!r} where there should be such a value as {right!r}'
  return attends(scheme)


def is_read(config: dict[str, Any], path: tuple[str, ...], given: dict[str, Any]) -> bool:
  """Whether the right configuration is read at this key."""
  seen: set[str] = set()
  watched = {k: Watched(v, seen) if isinstance(v, dict) else v for k, v in config.items()}
  interop.from_hf(Watched(watched, seen), **given)
  return path[-1] in seen


def alike(right: Any, value: Any) -> bool:
  """Whether a value has a type, and a range, that could be meant."""
  if right is None:
    return isinstance(value, dict)
  if isinstance(right, bool) or isinstance(value, bool):
    return isinstance(right, bool) and isinstance(value, bool)
  if isinstance(right, (int, float)):
    whole = isinstance(value, int) or isinstance(right, float)
    return isinstance(value, (int, float)) and whole and math.isfinite(min(value, 1e300))
  return isinstance(value, type(right))


def attends(scheme: posjax.Scheme) -> str:
  """Whether a scheme gives finite numbers, in one attention of eight heads."""
  if not isinstance(scheme, posjax.Scheme):
    return f'the result is a {type(scheme).__name__}'
  dims = posjax.Dims(64, 8, 8)
  shapes = jax.eval_shape(lambda: posjax.init(scheme, jax.random.key(0), dims))
  if sum(leaf.size for leaf in jax.tree.leaves(shapes)) > 2**22:
    return ''
  params = posjax.init(scheme, jax.random.key(0), dims)
  pos = jnp.arange(KEYS)
  pos = pos if scheme.traits.axes < 2 else jnp.stack([pos] * scheme.traits.axes, -1)
  x, at = jnp.asarray(normal(1, KEYS, 64)), None
  if declares(scheme, 'prepare'):
    params, at = posjax.prepare(scheme, params, x, pos[None])
  q = x.reshape(1, KEYS, 8, 8)
  out = posjax.attend(q, q, q, scheme, params, q_pos=pos, k_pos=pos, q_at=at, k_at=at)
  return '' if jnp.isfinite(out).all() else 'the output is not finite'


def arguments() -> Iterator[Case]:
  """The other arguments of `from_hf`."""
  wrong = {
    'length': ('dynamic', ['x', 1.5, NAN, -1, 0, None, [64], {}]),
    'layer_type': ('gemma3', [3, 'no_such', [], {}, None, True, '']),
    'bidirectional': ('t5', ['no', 2, 'False', [], NAN, None]),
    'interleaved': ('llama', ['no', 2, 'False', [], NAN]),
  }
  for argument, (name, values) in wrong.items():
    for value in values:
      config, given = KNOWN[name]
      call = functools.partial(interop.from_hf, config, **{**given, argument: value})
      yield Case(line(f'from_hf({name})', **{argument: value}), call, refused)


def guesses() -> Iterator[Case]:
  """What would have to be guessed must be refused."""
  nope = {key: value for key, value in KNOWN['smollm3'][0].items() if key != 'no_rope_layers'}
  configs = {
    'smollm3 without no_rope_layers': nope,
    'llama4_text without no_rope_layers': {**nope, 'model_type': 'llama4_text'},
    'llama4_text with attn_temperature_tuning': {
      **KNOWN['smollm3'][0],
      'model_type': 'llama4_text',
      'no_rope_layers': [1, 1, 1, 0],  # those without RoPE scale queries by position
      'attn_temperature_tuning': True,
      'floor_scale': 8192,
      'attn_scale': 0.1,
    },
    'yarn without factor': {
      'model_type': 'llama',
      **ROPE,
      'rope_scaling': {'rope_type': 'yarn'},  # with the original length it would follow
    },
    'an unknown model with layer_types': {
      'model_type': 'exaone4',
      **ROPE,
      'layer_types': ['sliding_attention', 'full_attention'],
      'sliding_window_pattern': 'LLLG',
    },
    'a model of several parts': {'model_type': 'gemma3', 'text_config': KNOWN['llama'][0]},
    'text_config null': {**KNOWN['llama'][0], 'text_config': None},
  }
  for title, config in configs.items():
    given = {'interleaved': False} if 'unknown' in title else {}
    check = attends if 'null' in title else refused
    yield Case(f'from_hf({title})', functools.partial(interop.from_hf, config, **given), check)


def weights() -> Iterator[Case]:
  """`kernel`, `weight` and `relative_keys`, whose arrays come from checkpoints."""
  square = normal(64, 64)
  for value in (None, 'x', 3, square[0], square[:7], square[None], square.tolist(), {}):
    is_bias = getattr(value, 'ndim', 0) == 1  # of all heads, side by side
    check = (lambda out: '') if is_bias or isinstance(value, list) else refused
    yield Case(line('interop.kernel', value, 8), functools.partial(interop.kernel, value, 8), check)
    if value is not None and not hasattr(value, 'shape'):
      yield Case(line('interop.weight', value), functools.partial(interop.weight, value), check)
  for heads in (None, 0, -8, 7, 1.5, '8', NAN, [8]):
    call = functools.partial(interop.kernel, square, heads)
    yield Case(line('interop.kernel', square, heads), call, refused)
  config = KNOWN['bert relative'][0]
  for table in (None, 'x', 3, square[0], square[:, :0], {}):
    call = functools.partial(interop.relative_keys, table, config)
    yield Case(line('interop.relative_keys', table), call, refused)
  for wrong in (None, {}, 'x', {**config, 'max_position_embeddings': 'x'}):
    call = functools.partial(interop.relative_keys, normal(127, 8), wrong)
    yield Case(line('interop.relative_keys', 'table', wrong), call, refused)
  for heads in (1, 2, 4, 8):
    back = lambda heads=heads: interop.weight(interop.kernel(square, heads))
    same = lambda out: '' if np.array_equal(out, square) else 'the weights differ'
    yield Case(f'weight(kernel(.., {heads}))', back, same, valid=True)
