"""Layers of checkpoints loaded with `interop.from_hf` alone, and in three lines.

Each function is what a careful user writes for one family: it returns a layer and its weights. The
table in docs/checkpoints.md counts their lines, and a test holds their results against one another.
"""

import jax.numpy as jnp

from posjax import interop
from posjax.layers.projections import Latent, Norm
from posjax.linen import Attention
from posjax.schemes import yarn


def in_three_lines(config, index, weights, part=None):
  attention = Attention(**interop.layer(config, index, part=part).arguments())
  params = interop.load_attention(config, index, weights, part=part)
  return attention, params


def llama3(config, index, weights):
  width, heads = config['hidden_size'], config['num_attention_heads']
  counts = {'query': heads, 'key': config['num_key_value_heads']}
  counts['value'] = counts['key']
  block = f'model.layers.{index}.self_attn'
  params = {}
  for (name, count), letter in zip(counts.items(), 'qkv', strict=True):
    kernel = interop.kernel(jnp.asarray(weights[f'{block}.{letter}_proj.weight']), count)
    params[name] = {'kernel': kernel}
  out = jnp.asarray(weights[f'{block}.o_proj.weight'])
  params['out'] = {'kernel': out.T.reshape(heads, -1, width)}
  attention = Attention(
    width,
    heads,
    interop.from_hf(config),
    head_dim=config.get('head_dim', width // heads),
    num_kv_heads=counts['key'],
    causal=True,
  )
  return attention, params


def qwen3(config, index, weights):
  width, heads = config['hidden_size'], config['num_attention_heads']
  counts = {'query': heads, 'key': config['num_key_value_heads']}
  counts['value'] = counts['key']
  block = f'model.layers.{index}.self_attn'
  params = {}
  for (name, count), letter in zip(counts.items(), 'qkv', strict=True):
    kernel = interop.kernel(jnp.asarray(weights[f'{block}.{letter}_proj.weight']), count)
    params[name] = {'kernel': kernel}
  for name, letter in (('query', 'q'), ('key', 'k')):
    params[f'{name}_norm'] = {'scale': jnp.asarray(weights[f'{block}.{letter}_norm.weight'])}
  out = jnp.asarray(weights[f'{block}.o_proj.weight'])
  params['out'] = {'kernel': out.T.reshape(heads, -1, width)}
  slides = config['use_sliding_window'] and index >= config['max_window_layers']
  attention = Attention(
    width,
    heads,
    interop.from_hf(config),
    head_dim=config['head_dim'],
    num_kv_heads=counts['key'],
    qk_norm=Norm('rms', config['rms_norm_eps']),
    window=config['sliding_window'] if slides else None,
    causal=True,
  )
  return attention, params


def gemma3(config, index, weights):
  width, heads = config['hidden_size'], config['num_attention_heads']
  counts = {'query': heads, 'key': config['num_key_value_heads']}
  counts['value'] = counts['key']
  block = f'model.layers.{index}.self_attn'
  params = {}
  for (name, count), letter in zip(counts.items(), 'qkv', strict=True):
    kernel = interop.kernel(jnp.asarray(weights[f'{block}.{letter}_proj.weight']), count)
    params[name] = {'kernel': kernel}
  for name, letter in (('query', 'q'), ('key', 'k')):
    params[f'{name}_norm'] = {'scale': jnp.asarray(weights[f'{block}.{letter}_norm.weight'])}
  out = jnp.asarray(weights[f'{block}.o_proj.weight'])
  params['out'] = {'kernel': out.T.reshape(heads, -1, width)}
  slides = bool((index + 1) % config['sliding_window_pattern'])
  attention = Attention(
    width,
    heads,
    interop.from_hf(config, layer=index),
    head_dim=config['head_dim'],
    num_kv_heads=counts['key'],
    qk_norm=Norm('rms', config['rms_norm_eps'], offset=1.0),  # Gemma's weights are added to 1
    window=config['sliding_window'] if slides else None,
    scale=config['query_pre_attn_scalar'] ** -0.5,
    causal=True,
  )
  return attention, params


def gpt_neox(config, index, weights):
  width, heads = config['hidden_size'], config['num_attention_heads']
  head_dim = width // heads
  block = f'gpt_neox.layers.{index}.attention'
  params = {'query': {}, 'key': {}, 'value': {}, 'out': {}}
  for theirs, ours in (('weight', 'kernel'), ('bias', 'bias')):
    fused = jnp.asarray(weights[f'{block}.query_key_value.{theirs}'])
    by_head = fused.reshape(heads, 3, head_dim, *fused.shape[1:])
    for i, name in enumerate(('query', 'key', 'value')):
      rows = by_head[:, i].reshape(width, *fused.shape[1:])
      params[name][ours] = interop.kernel(rows, heads)
  out = jnp.asarray(weights[f'{block}.dense.weight'])
  params['out']['kernel'] = out.T.reshape(heads, head_dim, width)
  params['out']['bias'] = jnp.asarray(weights[f'{block}.dense.bias'])
  attention = Attention(
    width,
    heads,
    interop.from_hf(config),
    use_bias=True,
    causal=True,
  )
  return attention, params


def t5(config, index, weights):
  width, heads, head_dim = config['d_model'], config['num_heads'], config['d_kv']
  block = f'encoder.block.{index}.layer.0.SelfAttention'
  params = {}
  for name, letter in (('query', 'q'), ('key', 'k'), ('value', 'v')):
    kernel = interop.kernel(jnp.asarray(weights[f'{block}.{letter}.weight']), heads)
    params[name] = {'kernel': kernel}
  out = jnp.asarray(weights[f'{block}.o.weight'])
  params['out'] = {'kernel': out.T.reshape(heads, head_dim, width)}
  # The first layer has the table of all layers.
  first = 'encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
  params['model_params'] = {'table': jnp.asarray(weights[first])}
  attention = Attention(
    width,
    heads,
    interop.from_hf(config, bidirectional=True),
    head_dim=head_dim,
    scale=1.0,
  )
  return attention, params


def deepseek_v3(config, index, weights):
  width, heads, rank = (
    config[name] for name in ('hidden_size', 'num_attention_heads', 'kv_lora_rank')
  )
  plain, turning, value_dim = (
    config[name] for name in ('qk_nope_head_dim', 'qk_rope_head_dim', 'v_head_dim')
  )
  block = f'model.layers.{index}.self_attn'
  read = lambda name: jnp.asarray(weights[f'{block}.{name}.weight'])
  by_head = lambda rows: jnp.moveaxis(rows.reshape(heads, -1, rows.shape[1]), 2, 0)
  # The turning part of a head comes last there, and first here.
  query, both, down = (
    by_head(read('q_b_proj')),
    by_head(read('kv_b_proj')),
    read('kv_a_proj_with_mqa'),
  )
  params = {
    'query_down': {'kernel': read('q_a_proj').T},
    'query_down_norm': {'scale': read('q_a_layernorm')},
    'query': {'kernel': jnp.concatenate([query[..., plain:], query[..., :plain]], -1)},
    'kv_down': {'kernel': down[:rank].T},
    'kv_down_norm': {'scale': read('kv_a_layernorm')},
    'shared_key': {'kernel': down[rank:].T},
    'key': {'kernel': both[..., :plain]},
    'value': {'kernel': both[..., plain:]},
    'out': {'kernel': read('o_proj').T.reshape(heads, value_dim, width)},
  }
  head_dim, scaling = plain + turning, config['rope_scaling']
  # The scheme of whole heads, of which a part turns.
  rest = {name: value for name, value in config.items() if name != 'qk_rope_head_dim'}
  scheme = interop.from_hf({**rest, 'head_dim': head_dim, 'rotary_dim': turning})
  grown = yarn.magnitude(scaling['factor'], scaling['mscale_all_dim'])
  attention = Attention(
    width,
    heads,
    scheme,
    head_dim=head_dim,
    value_dim=value_dim,
    latent=Latent(rank, turning, config['q_lora_rank']),
    scale=head_dim**-0.5 * grown**2,
    causal=True,
  )
  return attention, params


def gpt_oss(config, index, weights):
  width, heads = config['hidden_size'], config['num_attention_heads']
  counts = {'query': heads, 'key': config['num_key_value_heads']}
  counts['value'] = counts['key']
  block = f'model.layers.{index}.self_attn'
  params = {}
  for (name, count), letter in zip(counts.items(), 'qkv', strict=True):
    params[name] = {
      ours: interop.kernel(jnp.asarray(weights[f'{block}.{letter}_proj.{theirs}']), count)
      for theirs, ours in (('weight', 'kernel'), ('bias', 'bias'))
    }
  out = jnp.asarray(weights[f'{block}.o_proj.weight'])
  params['out'] = {'kernel': out.T.reshape(heads, -1, width)}
  params['out']['bias'] = jnp.asarray(weights[f'{block}.o_proj.bias'])
  params['sinks'] = jnp.asarray(weights[f'{block}.sinks'])
  attention = Attention(
    width,
    heads,
    interop.from_hf(config),
    head_dim=config['head_dim'],
    num_kv_heads=counts['key'],
    window=None if index % 2 else config['sliding_window'],
    sinks=True,
    use_bias=True,
    causal=True,
  )
  return attention, params


_SIZES = {
  **{'hidden_size': 24, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 8},
  **{'rope_theta': 1e4, 'rms_norm_eps': 1e-6, 'sliding_window': 5, 'max_position_embeddings': 64},
}
_YARN = {
  **{'type': 'yarn', 'factor': 8.0, 'original_max_position_embeddings': 16, 'beta_fast': 32.0},
  'beta_slow': 1.0,
}
# For each function: the model that it reads, a configuration, and the part.
MODELS = {
  llama3: (
    'Llama 3',
    {
      **{'model_type': 'llama', **_SIZES},
      'rope_scaling': {
        **{'rope_type': 'llama3', 'factor': 8.0, 'original_max_position_embeddings': 16},
        **{'low_freq_factor': 1.0, 'high_freq_factor': 4.0},
      },
    },
    None,
  ),
  qwen3: (
    'Qwen3',
    {'model_type': 'qwen3', **_SIZES, 'use_sliding_window': True, 'max_window_layers': 1},
    None,
  ),
  gemma3: (
    'Gemma 3',
    {
      **{'model_type': 'gemma3_text', **_SIZES, 'sliding_window_pattern': 2},
      'query_pre_attn_scalar': 20,
    },
    None,
  ),
  gpt_neox: (
    'GPT-NeoX',
    {'model_type': 'gpt_neox', 'hidden_size': 32, 'num_attention_heads': 4, 'rotary_pct': 0.5},
    None,
  ),
  t5: ('T5', {'model_type': 't5', 'd_model': 24, 'd_kv': 6, 'num_heads': 4}, 'encoder'),
  deepseek_v3: (
    'DeepSeek V3',
    {
      **{'model_type': 'deepseek_v3', **_SIZES, 'num_key_value_heads': 4, 'q_lora_rank': 10},
      **{'kv_lora_rank': 12, 'qk_rope_head_dim': 4, 'qk_nope_head_dim': 6, 'v_head_dim': 8},
      'rope_scaling': {**_YARN, 'mscale': 1.0, 'mscale_all_dim': 0.7},
    },
    None,
  ),
  gpt_oss: ('gpt-oss', {'model_type': 'gpt_oss', **_SIZES, 'rope_scaling': _YARN}, None),
}
