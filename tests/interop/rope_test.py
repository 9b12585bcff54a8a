import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax import interop
from tests.support.loops import error
from tests.support.paths import load_golden
from tests.support.rotations import golden, reading

SEARCHED = {'short_factor': [1, 1.5], 'long_factor': [2, 4.5]}
PHI = {'model_type': 'phi3', 'max_position_embeddings': 64, 'original_max_position_embeddings': 16}
GEMMA = {'model_type': 'gemma3_text', 'rope_scaling': {'rope_type': 'linear', 'factor': 8}}
NEW_GEMMA = {
  'full_attention': {'rope_type': 'proportional', 'rope_theta': 1e6, 'partial_rotary_factor': 0.25},
  'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000},
}
DEEPSEEK = {
  **{'type': 'yarn', 'factor': 40, 'beta_fast': 32, 'beta_slow': 1},
  'original_max_position_embeddings': 4096,
}
LLAMA3 = {'rope_type': 'llama3', 'factor': 32, 'low_freq_factor': 1, 'high_freq_factor': 4}


@golden('default', 'linear', 'dynamic', 'yarn', 'longrope', 'llama3')
def test_frequencies_and_attention_factors_are_hugging_faces(config, frequencies, factor):
  length = config['seq_len'] or 1
  scheme = interop.from_hf({'model_type': 'llama', **config}, length=length)
  found, grown = reading(scheme.query, config['head_dim'], frequencies)
  np.testing.assert_allclose(found, frequencies, rtol=5e-6)
  np.testing.assert_allclose(grown, factor, rtol=1e-6)


def _llama(told, **more):
  return {'model_type': 'llama', 'max_position_embeddings': 64, 'rope_scaling': told, **more}


def _heads(model_type, **more):
  return {'model_type': model_type, 'hidden_size': 16, 'num_attention_heads': 2, **more}


@pytest.mark.parametrize(
  ('config', 'arguments', 'line'),
  [
    (_llama(None), {}, 'rope'),
    (_llama({'type': 'linear', 'factor': 4}), {}, 'rope(factor=4.0)'),
    (_llama({'rope_type': 'default'}, rope_theta=500), {}, 'rope(base=500.0)'),
    ({'model_type': 'llama', 'rope_parameters': {'rope_theta': 500}}, {}, 'rope(base=500.0)'),
    (
      _llama({'type': 'dynamic', 'factor': 2}),
      {'length': 200},
      'dynamic_ntk(length=200, original_length=64, factor=2.0)',
    ),
    (
      _llama({**LLAMA3, 'original_max_position_embeddings': 8192}, rope_theta=5e5),
      {},
      'llama3(factor=32.0)',
    ),
    (_llama(LLAMA3), {}, 'llama3(factor=32.0, original_length=64, base=10000.0)'),
    # The extension is the ratio of the lengths where it is not told.
    (
      _llama({'rope_type': 'yarn', 'original_max_position_embeddings': 16, 'factor': None}),
      {},
      'yarn(factor=4.0, original_length=16)',
    ),
    (
      _llama({'rope_type': 'yarn', 'factor': 8, 'beta_fast': 16, 'attention_factor': 0.9}),
      {},
      'yarn(factor=8.0, original_length=64, beta_fast=16.0, attention_factor=0.9)',
    ),
    # One of DeepSeek's numbers alone is not read.
    (
      _llama({'type': 'yarn', 'factor': 8, 'mscale': 0.7}),
      {},
      'yarn(factor=8.0, original_length=64)',
    ),
    (
      {
        'model_type': 'deepseek_v3',
        'rope_scaling': {**DEEPSEEK, 'mscale': 1, 'mscale_all_dim': 0.5},
      },
      {},
      'yarn(40.0, 4096, mscale=1.0, mscale_all_dim=0.5, interleaved=True)',
    ),
    (
      {'model_type': 'deepseek_v3', 'rope_scaling': DEEPSEEK, 'rope_interleave': False},
      {},
      'yarn(factor=40.0, original_length=4096)',
    ),
    (
      {
        **{'model_type': 'gpt_oss', 'rope_theta': 150000, 'head_dim': 64},
        'rope_scaling': {**DEEPSEEK, 'factor': 32, 'truncate': False},
      },
      {},
      'yarn(factor=32.0, original_length=4096, base=150000.0, truncate=False)',
    ),
    (
      {**PHI, 'rope_scaling': {'type': 'su', **SEARCHED}},
      {'length': 16},
      'longrope(16, 16, (1.0, 1.5), (2.0, 4.5), extension=4.0)',
    ),
    (
      {**PHI, 'rope_scaling': {'type': 'longrope', **SEARCHED, 'factor': 9}},
      {'length': 17},
      'longrope(17, 16, (1.0, 1.5), (2.0, 4.5), extension=9.0)',
    ),
    (
      {
        **PHI,
        'rope_scaling': {'type': 'longrope', **SEARCHED, 'short_mscale': 2, 'long_mscale': 3},
      },
      {'length': 17},
      'longrope(17, 16, (1.0, 1.5), (2.0, 4.5), attention_factor=3.0)',
    ),
    (
      {
        **PHI,
        'rope_scaling': {'type': 'longrope', **SEARCHED, 'short_mscale': 2, 'long_mscale': 3},
      },
      {'length': 3},
      'longrope(3, 16, (1.0, 1.5), (2.0, 4.5), attention_factor=2.0)',
    ),
    (
      {'model_type': 'gemma4_text', 'rope_parameters': NEW_GEMMA},
      {'layer_type': 'full_attention'},
      'partial(share=0.25, base=1e6)',
    ),
    (
      {'model_type': 'gemma4_text', 'rope_parameters': NEW_GEMMA},
      {'layer_type': 'sliding_attention'},
      'rope',
    ),
    (GEMMA, {'layer_type': 'full_attention'}, 'rope(base=1e6, factor=8.0)'),
    (GEMMA, {'layer_type': 'sliding_attention'}, 'rope'),
    (
      {'model_type': 'modernbert', 'global_rope_theta': 160000, 'local_rope_theta': 10000},
      {'layer_type': 'full_attention'},
      'rope(base=160000.0)',
    ),
    # Layouts, and parts of a head.
    (_heads('gptj', rotary_dim=4), {}, 'rope(fraction=0.5, interleaved=True)'),
    (_heads('gptj', rotary_dim=None), {}, 'rope(interleaved=True)'),
    (
      {'model_type': 'codegen', 'n_embd': 256, 'n_head': 2, 'rotary_dim': 64},
      {},
      'rope(fraction=0.5, interleaved=True)',
    ),
    (_heads('gpt_neox', rotary_emb_base=500), {}, 'rope(base=500.0, fraction=0.25)'),
    (_heads('gpt_neox', rotary_pct=1.0), {}, 'rope'),
    (_heads('gpt_neox', rotary_emb_base=500, rope_theta=500), {}, 'rope(base=500, fraction=0.25)'),
    (
      _heads('nomic_bert', rope_theta=500, rotary_emb_fraction=0.5, rotary_emb_interleaved=True),
      {},
      'rope(base=500.0, fraction=0.5, interleaved=True)',
    ),
    (
      _heads('nomic_bert', rotary_emb_base=500, rotary_scaling_factor=2, n_positions=8192),
      {'length': 8192},
      'dynamic_ntk(8192, 2048, factor=2.0, base=500.0)',
    ),
    (_heads('stablelm'), {}, 'rope(fraction=0.25)'),
    (_heads('glm'), {}, 'rope(fraction=0.5, interleaved=True)'),
    (_heads('phi', partial_rotary_factor=0.4, head_dim=10), {}, 'rope(fraction=0.4)'),
    (
      _heads('glm4', rope_parameters={'rope_theta': 500, 'partial_rotary_factor': 1.0}),
      {},
      'rope(base=500.0, interleaved=True)',
    ),
    ({'model_type': 'cohere', 'rope_theta': 10000}, {}, 'rope(interleaved=True)'),
    ({'model_type': 'cohere2'}, {'layer_type': 'full_attention'}, 'none'),
    (
      {'model_type': 'cohere2', 'rope_theta': 50000},
      {'layer_type': 'sliding_attention'},
      'rope(base=50000.0, interleaved=True)',
    ),
    ({'model_type': 'new', 'rope_theta': 500}, {'interleaved': False}, 'rope(base=500.0)'),
    ({'model_type': 'falcon', 'alibi': False}, {}, 'rope'),
  ],
)
def test_a_configuration_is_this_line(config, arguments, line):
  head_dim = {'codegen': 128, 'phi': 10, 'phi3': 4}.get(config['model_type'], 8)
  made = interop.from_hf(config, **arguments)
  assert posjax.places(made) == posjax.places(posjax.get(line))
  expected = _expected(line, head_dim)
  for found, other in zip(_placed(made, head_dim), expected, strict=True):
    np.testing.assert_array_equal(found, other)


QWEN = {'model_type': 'qwen2_vl', 'rope_theta': 10000.0}


def test_qwens_rotation_is_hugging_faces():
  golden = load_golden('mrope')
  sections = golden['mrope_section'].tolist()
  made = interop.from_hf(QWEN | {'rope_scaling': {'type': 'mrope', 'mrope_section': sections}})
  pos = jnp.asarray(np.moveaxis(golden['position_ids_thw'], 0, -1), jnp.int32)
  out = made.query({}, jnp.asarray(golden['q'].swapaxes(1, 2)), pos)
  assert error(out, golden['q_out'].swapaxes(1, 2)) < 1e-6


@pytest.mark.parametrize('interleaved', [False, True])
def test_sections_are_read_from_the_old_form_and_the_new(interleaved):
  told = {'mrope_section': [2, 1, 1], 'rope_type': 'default', 'mrope_interleaved': interleaved}
  kind = 'qwen3_vl_text' if interleaved else 'qwen2_5_vl_text'
  new = {'model_type': kind, 'rope_parameters': {**told, 'rope_theta': 5e6}}
  old = {'model_type': kind, 'rope_scaling': told, 'rope_theta': 5e6}
  expected = posjax.get(f'mrope((2, 1, 1), base=5e6, interleaved_sections={interleaved})')
  x, pos = (
    jax.random.normal(jax.random.key(0), (1, 3, 1, 8)),
    jnp.array([[[0, 5, 9], [1, 2, 3], [7, 7, 7]]]),
  )
  for config in (new, old):
    made = interop.from_hf(config)
    np.testing.assert_array_equal(made.query({}, x, pos), expected.query({}, x, pos))
    assert made.traits.axes == 3


def test_scaled_sections_are_those_of_yarn():
  """Of text, whose three ids are equal, M-RoPE over YaRN is YaRN."""
  told = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}
  text = interop.from_hf(_llama(told, rope_theta=1e4))
  sections = {'mrope_section': [2, 1, 1], 'mrope_interleaved': True}
  config = {'model_type': 'qwen3_vl_text', 'rope_theta': 1e4, 'rope_scaling': told | sections}
  x, pos = jax.random.normal(jax.random.key(0), (1, 4, 1, 8)), jnp.array([[0, 3, 50, 9]])
  found = interop.from_hf(config).query({}, x, jnp.stack([pos] * 3, -1))
  assert error(found, text.query({}, x, pos)) < 1e-6


@pytest.mark.parametrize(
  ('kind', 'interleaved_axes'), [('qwen2_5_vl_vision', False), ('pixtral', True)]
)
def test_the_rope_of_a_vision_tower_is_axial(kind, interleaved_axes):
  config = {'model_type': kind, 'rope_parameters': {'rope_type': 'axial', 'rope_theta': 1e4}}
  made = interop.from_hf(config)
  assert made.traits.axes == 2
  x = np.random.default_rng(0).normal(size=(1, 3, 1, 8)).astype(np.float32)
  ids = np.array([[[0, 0], [1, 2], [5, 3]]], np.int32)
  # Frequencies and axes as transformers lays them out.
  frequencies = 1e4 ** -np.array([0, 0.5, 0.25, 0.75] if interleaved_axes else [0, 0.5, 0, 0.5])
  angle = ids[..., [0, 0, 1, 1]] * frequencies
  cos, sin = (np.tile(f(angle), 2)[:, :, None] for f in (np.cos, np.sin))
  expected = x * cos + np.concatenate([-x[..., 4:], x[..., :4]], -1) * sin
  assert error(made.query({}, jnp.asarray(x), jnp.asarray(ids)), expected) < 1e-6


@pytest.mark.parametrize(
  ('config', 'layer', 'line'),
  [
    ({'model_type': 'smollm3', 'rope_theta': 500.0}, 2, 'rope(base=500.0)'),
    ({'model_type': 'smollm3', 'rope_theta': 500.0}, 3, 'none'),
    ({'model_type': 'smollm3', 'rope_theta': 500.0, 'no_rope_layers': [0, 1]}, 0, 'none'),
    ({'model_type': 'exaone4', 'rope_theta': 500.0, 'sliding_window': 9}, 3, 'none'),
    ({'model_type': 'exaone4', 'rope_theta': 500.0, 'sliding_window': None}, 3, 'rope(base=500.0)'),
    ({'model_type': 'llama4_text', 'rope_theta': 500.0}, 0, 'rope(base=500.0, interleaved=True)'),
    (
      {'model_type': 'llama4_text', 'rope_theta': 5e5, 'floor_scale': 9, 'attn_scale': 0.2},
      3,
      'floor_log(9, 0.2)',
    ),
    ({'model_type': 'llama4_text', 'attn_temperature_tuning': False}, 3, 'none'),
    (
      {
        'model_type': 'ministral3',
        'rope_parameters': {
          **{'rope_type': 'default', 'rope_theta': 500.0, 'llama_4_scaling_beta': 0.1},
          'original_max_position_embeddings': 16,
        },
      },
      0,
      'rope(base=500.0)+floor_log(16, 0.1, offset=0)',
    ),
    (
      {
        'model_type': 'gemma3_text',
        'rope_parameters': {'full_attention': {'rope_theta': 7e5}, 'sliding_attention': None},
      },
      0,
      'rope',
    ),
  ],
)
def test_a_layer_is_this_line(config, layer, line):
  made = interop.from_hf(config, layer=layer)
  assert posjax.places(made) == posjax.places(posjax.get(line))
  found, expected = (_placed_alone(scheme) for scheme in (made, posjax.get(line)))
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_array_equal(one, other)


def _placed_alone(scheme):
  x, pos = jax.random.normal(jax.random.key(0), (1, 5, 1, 8)), jnp.array([[0, 1, 8, 15, 23]])
  params = ({}, {}) if scheme.parts else {}
  return scheme.query(params, x, pos), scheme.key(params, x, pos)


def _placed(scheme, head_dim):
  """Random queries and keys after place 2."""
  x, pos = jax.random.normal(jax.random.key(0), (1, 5, 1, head_dim)), jnp.array([[0, 1, 2, 5, 23]])
  return jax.jit(lambda x: (scheme.query({}, x, pos), scheme.key({}, x, pos)))(x)


@functools.cache
def _expected(line, head_dim):
  return _placed(posjax.get(line), head_dim)


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    ({}, 'The positions of the model_type None'),
    ({'model_type': 'deberta-v9'}, "The positions of the model_type 'deberta-v9'"),
    (_llama({'type': 'xpos'}), "rope type must be one of .*'yarn'.*, but got 'xpos'"),
    (
      _llama({'type': 'llama3', 'mrope_section': [1, 3]}),
      'M-RoPE must have one of the rope types',
    ),
    (_llama({'type': 'yarn', 'factor': 2, 'twist': 1}), r"'yarn' has no parameter twist"),
    (_llama({'type': 'dynamic', 'factor': 2}), 'Dynamic NTK depends on the length of the text'),
    (_llama({'type': 'longrope', **SEARCHED}), 'LongRoPE depends on the length of the text'),
    (_llama({'type': 'linear'}), 'The configuration needs rope_scaling.factor, but got'),
    (
      {'model_type': 'llama', 'rope_scaling': {'type': 'yarn', 'factor': 2}},
      'The configuration needs max_position_embeddings',
    ),
    ({'model_type': 'gpt_oss'}, "needs rope_theta, because the default of 'gpt_oss' is not known"),
    ({'model_type': 'glm'}, 'A part of each head is rotated, but the configuration has no width'),
    (GEMMA, r"one of \['full_attention', 'sliding_attention'\], but got None"),
    ({'model_type': 'cohere2'}, "Only the 'sliding_attention' layers of cohere2 rotate"),
    # In transformers, every fourth layer of these has no RoPE unless no_rope_layers says otherwise.
    (
      {'model_type': 'smollm3', 'rope_theta': 2e6, 'no_rope_layers': [1, 1, 1, 0]},
      'Some layers of smollm3 do not rotate .* give layer, the index of one, but got None',
    ),
    ({'model_type': 'smollm3', 'rope_theta': 2e6}, 'Some layers of smollm3 do not rotate'),
    (
      {'model_type': 'llama4_text', 'rope_theta': 5e5, 'no_rope_layers': []},
      'Some layers of llama4_text do not rotate',
    ),
    (
      {'model_type': 'exaone4', 'rope_theta': 1e6},
      "Only the 'sliding_attention' layers of exaone4",
    ),
    ({'model_type': 'esm'}, "position_embedding_type of ESM must be 'rotary', but got None"),
    ({'model_type': 'pixtral', 'rope_theta': 1e4}, "rope type of pixtral must be 'axial'"),
    # Versions of transformers differ about this default.
    ({'model_type': 'cohere'}, "needs rope_theta, because the default of 'cohere' is not known"),
    (
      {'model_type': 'persimmon'},
      "needs rope_theta, because the default of 'persimmon' is not known",
    ),
    (QWEN, 'qwen2_vl needs rope_parameters.mrope_section, but got'),
    (
      QWEN | {'rope_scaling': {'mrope_section': [2, 1, 1], 'mrope_interleaved': True}},
      'mrope_interleaved must be False for qwen2_vl, but got True',
    ),
    (
      QWEN
      | {'model_type': 'qwen3_vl_text'}
      | {'rope_scaling': {'mrope_section': [2, 1, 1], 'mrope_interleaved': False}},
      'mrope_interleaved must be True for qwen3_vl_text, but got False',
    ),
    # The extension is not 1 because nobody told it.
    (
      _llama({'type': 'yarn'}),
      'needs rope_scaling.factor or original_max_position_embeddings, but',
    ),
    (
      {**PHI, 'original_max_position_embeddings': 16, 'rope_scaling': {**DEEPSEEK}},
      'must have one original_max_position_embeddings, but got 4096 and 16',
    ),
    (
      {**_llama({'type': 'linear', 'factor': 2}), 'rope_parameters': {'rope_theta': 500.0}},
      'rope_parameters or rope_scaling, but got both, and they differ',
    ),
    (_heads('phi', head_dim=10), 'an even number of the dimensions of each head, but got 5 of 10'),
    (_heads('gptj', rotary_dim=64), 'an even number of the dimensions .*, but got 64 of 8'),
    # What transformers ignores, and what nothing here reads.
    (_heads('gpt_neox', rope_theta=9, rotary_emb_base=5), 'rope_theta must be 5.0.*but got 9'),
    (_heads('gpt_neox', partial_rotary_factor=1.0), 'partial_rotary_factor must be 0.25'),
    (_heads('nomic_bert', rope_theta=9, rotary_emb_base=5), 'rotary_emb_base must be its rope_th'),
    (_heads('nomic_bert', rope_theta=9, rotary_emb_scale_base=512), 'rotary_emb_scale_base must'),
  ],
)
def test_what_is_not_known_is_refused_by_name(config, message):
  with pytest.raises(ValueError, match=message):
    interop.from_hf(config)


COHERE_MOE = {'model_type': 'cohere2_moe', 'rope_theta': 1e6}


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    (
      COHERE_MOE,
      "layers of 'cohere2_moe' do not rotate queries and keys, .* is not known here",
    ),
    ({**COHERE_MOE, 'model_type': 'mistral_large4_text'}, 'or scale them by their position'),
    (
      {'layer_types': ['sliding_attention', 'full_attention']},
      "'new' may differ, .* leave layer_typ",
    ),
    ({'sliding_window_pattern': 4}, 'leave sliding_window_pattern out if all of them rotate'),
    ({'sliding_window_pattern': 'LLLG'}, 'leave sliding_window_pattern out'),
    ({'no_rope_layer_interval': 4}, 'leave no_rope_layer_interval out'),
    ({'attn_temperature_tuning': True}, 'leave attn_temperature_tuning out'),
    ({'alibi': True}, 'leave alibi out'),
    ({'position_embedding_type': 'nope'}, 'leave position_embedding_type out'),
    (
      {'rope_scaling': {'type': 'yarn', 'factor': 2, 'llama_4_scaling_beta': 0.1}},
      'has no parameter',
    ),
  ],
)
def test_the_layout_of_an_unknown_type_does_not_hide_layers_without_rope(config, message):
  config = {'model_type': 'new', 'rope_theta': 500.0, 'max_position_embeddings': 64, **config}
  for interleaved in (False, True):
    with pytest.raises(ValueError, match=message):
      interop.from_hf(config, interleaved=interleaved)


def test_the_layout_of_an_unknown_type_is_not_told_by_its_configuration_alone():
  with pytest.raises(ValueError, match="The positions of the model_type 'new'"):
    interop.from_hf({'model_type': 'new', 'rope_theta': 500.0, 'rope_interleave': True})


@pytest.mark.parametrize('kind', ['smollm3', 'llama4_text', 'new'])
def test_layers_that_all_turn_alike_are_one_scheme(kind):
  config = {'model_type': kind, 'rope_theta': 500.0, 'no_rope_layers': [1, 1]}
  if kind == 'new':
    config |= {
      'layer_types': ['full_attention'] * 2,
      'alibi': False,
      'sliding_window_pattern': None,
    }
    config['position_embedding_type'] = 'rope'
  made = interop.from_hf(config, interleaved=False)
  for found, other in zip(_placed(made, 8), _expected('rope(base=500.0)', 8), strict=True):
    np.testing.assert_array_equal(found, other)


def test_a_layer_type_without_parameters_is_refused():
  config = {'model_type': 'gemma4_text', 'rope_parameters': {**NEW_GEMMA, 'full_attention': None}}
  with pytest.raises(ValueError, match=r'rope_parameters\.full_attention must be a dict, because'):
    interop.from_hf(config, layer_type='full_attention')


def test_longropes_original_length_is_not_guessed_from_the_longest():
  config = _llama({'type': 'longrope', **SEARCHED, 'factor': 4}, model_type='phi3')
  with pytest.raises(ValueError, match='needs original_max_position_embeddings, but got'):
    interop.from_hf(config, length=17)
