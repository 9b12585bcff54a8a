"""A field of a configuration that is of another type is refused by its name, wherever it stands."""

import jax.numpy as jnp
import pytest

from posjax import interop

SIZES = {'hidden_size': 32, 'num_attention_heads': 4}
LONGEST = {'max_position_embeddings': 64}
ORIGINAL = {'original_max_position_embeddings': 16}
LISTS = {'short_factor': [1.0, 2.0], 'long_factor': [2.0, 3.0]}
TURNS = {'low_freq_factor': 1.0, 'high_freq_factor': 4.0}


def rope(rope_type, /, **told):
  return {
    'model_type': 'llama',
    'rope_theta': 1e4,
    'rope_scaling': {'rope_type': rope_type, **told},
  }


# One of each way to read a configuration, with all the fields that it reads, and only these.
READ = [
  {'model_type': 't5', 'relative_attention_num_buckets': 32, 'relative_attention_max_distance': 99},
  {'model_type': 'falcon', 'alibi': True},
  {'model_type': 'mpt', 'attn_config': {'alibi': True, 'alibi_bias_max': 8}},
  {'model_type': 'roberta', 'max_position_embeddings': 24, 'pad_token_id': 1},
  {'model_type': 'bert', 'max_position_embeddings': 9, 'position_embedding_type': 'relative_key'},
  {'model_type': 'gpt2', 'n_positions': 24},
  {
    **{'model_type': 'wav2vec2-bert', 'position_embeddings_type': 'relative_key'},
    **{'left_max_position_embeddings': 5, 'right_max_position_embeddings': 3},
  },
  {
    **{'model_type': 'deberta-v2', 'relative_attention': True, 'position_buckets': 4},
    **{'norm_rel_ebd': 'layer_norm', 'pos_att_type': ['c2p'], 'max_position_embeddings': 9},
    **{'max_relative_positions': 9, 'position_biased_input': True},
  },
  rope('linear', factor=2.0),
  rope('dynamic', factor=2.0) | LONGEST,
  rope(
    'yarn', factor=4.0, beta_fast=32, beta_slow=1, attention_factor=1.0, truncate=True, **ORIGINAL
  ),
  rope('yarn', mscale=1.0, mscale_all_dim=0.5, **ORIGINAL) | LONGEST,
  rope('longrope', **LISTS, short_mscale=1.0, long_mscale=2.0, factor=4.0, **ORIGINAL),
  rope('llama3', **TURNS, factor=8.0) | LONGEST,
  rope('proportional', partial_rotary_factor=0.25, factor=2.0),
  {'model_type': 'qwen2_vl', **rope('mrope', mrope_section=[2, 1, 1], mrope_interleaved=False)},
  {
    'model_type': 'gemma4_text',
    'rope_parameters': {'full_attention': {'rope_type': 'default', 'rope_theta': 1e4}},
  },
  {'model_type': 'modernbert', 'global_rope_theta': 16e4, 'local_rope_theta': 1e4},
  {'model_type': 'smollm3', 'rope_theta': 2e6, 'no_rope_layers': [1, 1]},
  {'model_type': 'gpt_neox', **SIZES, 'rotary_pct': 0.25, 'rotary_emb_base': 10000},
  {'model_type': 'gptj', 'head_dim': 8, 'rotary_dim': 4},
  {
    **{'model_type': 'nomic_bert', 'n_embd': 32, 'n_head': 4, 'rotary_emb_base': 1000},
    **{'rotary_emb_fraction': 0.5, 'rotary_emb_interleaved': False, 'rotary_emb_scale_base': None},
    **{'rotary_scaling_factor': 2, 'max_trained_positions': 16},
  },
]
DICTS = {'rope_scaling', 'rope_parameters', 'full_attention', 'attn_config'}
WRONG = [[[1]], float('nan'), float('-inf'), b'x', 1j, {'a': {'b': 1}}, object(), 2**400, -1.5]


def fields(values, path=()):
  """The path of every field, nested ones too."""
  for name, value in values.items():
    yield (*path, name)
    if isinstance(value, dict):
      yield from fields(value, (*path, name))


def changed(values, path, value):
  """The same with another value of one field."""
  name, *rest = path
  return {**values, name: changed(values[name], rest, value) if rest else value}


def read(config):
  return interop.from_hf(config, layer_type='full_attention', length=17)


@pytest.mark.parametrize('config', READ, ids=lambda config: config['model_type'])
def test_a_field_of_another_type_is_refused_by_its_name(config):
  read(config)
  for path in fields(config):
    for value in WRONG:
      if value == {'a': {'b': 1}} and path[-1] in DICTS:
        continue  # a dict is the right type; what is in it is for the tests of each type
      with pytest.raises(ValueError, match=rf'{path[-1]}.*but got|but got.*{path[-1]}'):
        read(changed(config, path, value))


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (rope('linear', factor=0), 'rope_scaling.factor must be a positive number, but got 0'),
    (rope('linear', factor='2'), "rope_scaling.factor must be a finite number, but got '2'"),
    (rope('linear', factor=True), 'rope_scaling.factor must be a finite number, but got True'),
    (
      {**rope('linear', factor=2), 'rope_theta': -1},
      'rope_theta must be a positive number, but got',
    ),
    (
      {**rope('default'), 'rope_scaling': [1]},
      r'rope_scaling must be a dict or null, but got \[1\]',
    ),
    (
      rope('longrope', **ORIGINAL, **LISTS | {'long_factor': [1.0, None]}, factor=2),
      r'factor\[1\] m',
    ),
    ({'model_type': 'gpt2', 'n_positions': 24.0}, 'n_positions must be an integer, but got 24.0'),
    (
      {'model_type': 'gpt2', 'n_positions': 0},
      'n_positions must be an integer of at least 1 .* got 0',
    ),
    ({'model_type': 'roberta', 'max_position_embeddings': 2}, '2 rows of padding, but got 2 rows'),
    ({'model_type': 't5', 'relative_attention_num_buckets': None}, 'integer, but got None'),
    ({'model_type': ['llama']}, r"model_type must be a string, but got \['llama'\]"),
  ],
)
def test_a_value_that_is_out_of_range_is_refused_by_its_name(config, message):
  with pytest.raises(ValueError, match=message):
    read(config)


@pytest.mark.parametrize('config', [None, 'config.json', [], 3])
def test_a_configuration_is_a_dict(config, unchecked):
  with pytest.raises(TypeError, match=r'must be a dict, the contents of config\.json, but got'):
    interop.from_hf(config)


@pytest.mark.parametrize('name', ['layer_type', 'length', 'bidirectional', 'interleaved'])
def test_an_argument_of_another_type_is_refused_by_its_name(name, unchecked):
  for value in (1.5, [], {}, b'x', float('nan')):
    with pytest.raises(TypeError, match=f'^{name} must be .*, but got'):
      interop.from_hf(rope('default'), **{name: value})
  with pytest.raises(ValueError, match=r'^length must be an integer of at least 1.*, but got 0'):
    interop.from_hf(rope('dynamic', factor=2.0) | LONGEST, length=0)


@pytest.mark.parametrize(
  ('make', 'error', 'message'),
  [
    (
      lambda: interop.kernel(jnp.zeros((6, 2)), 2.0),
      TypeError,
      'heads must be an integer, but got 2.0',
    ),
    (lambda: interop.kernel(jnp.zeros((6, 2)), 0), ValueError, 'at least 1 .* but got 0'),
    (lambda: interop.kernel([[1.0]], 1), TypeError, 'must be an array, but got'),
    (lambda: interop.kernel(jnp.zeros(()), 1), ValueError, r'1 axes, but got shape \(\)'),
    (lambda: interop.weight(jnp.zeros(3)), ValueError, r'2 axes, but got shape \(3,\)'),
    (
      lambda: interop.relative_keys(jnp.zeros((4, 2)), {'model_type': 'bert'}),
      *(ValueError, r'must have 1023 rows, .* but got shape \(4, 2\)'),
    ),
    (
      lambda: interop.relative_keys(jnp.zeros((4, 2)), {'model_type': 'llama'}),
      *(ValueError, "those of BERT and of wav2vec2-bert, but got 'llama'"),
    ),
  ],
)
def test_weights_of_another_form_are_refused(make, error, message, unchecked):
  with pytest.raises(error, match=message):
    make()
