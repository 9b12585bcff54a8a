"""What a layer of a checkpoint does, and how its weights are refused where they do not fit."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
import posjax.linen
import posjax.nnx
from posjax import interop
from posjax.interop.checkpoint import shapes_of
from tests.support.hugging_face import numbers

LLAMA = {
  **{'model_type': 'llama', 'hidden_size': 12, 'num_attention_heads': 3, 'head_dim': 4},
  **{'num_key_value_heads': 1, 'num_hidden_layers': 2, 'rope_theta': 1e4},
}
LONG = {'rope_theta': 1e4, 'hidden_size': 32, 'num_attention_heads': 4}


def weights_of(config, index, **options):
  return {name: numbers(name, shape) for name, shape in shapes_of(config, index, **options).items()}


WEIGHTS = weights_of(LLAMA, 0)
QUERY = 'model.layers.0.self_attn.q_proj.weight'


@pytest.mark.parametrize(
  ('config', 'windows'),
  [
    ({'model_type': 'mistral', **LONG, 'sliding_window': 9}, [9, 9]),
    ({'model_type': 'mistral', **LONG, 'sliding_window': None}, [None]),
    ({'model_type': 'gemma2', **LONG, 'sliding_window': 9}, [9, None, 9]),
    ({'model_type': 'gemma3_text', 'sliding_window': 9}, [9] * 5 + [None, 9]),
    # Half of local_attention on both sides of a token, and the token itself.
    ({'model_type': 'modernbert', 'local_attention': 8, **LONG}, [None, 5, 5, None]),
    ({'model_type': 'gpt_oss', **LONG, 'sliding_window': 9}, [9, None]),
    ({'model_type': 'qwen2', **LONG, 'sliding_window': 9, 'max_window_layers': 1}, [None, None]),
    (
      {
        **{'model_type': 'qwen2', **LONG, 'sliding_window': 9, 'max_window_layers': 1},
        'use_sliding_window': True,
      },
      [None, 9],
    ),
    (
      {
        **{'model_type': 'qwen2', **LONG, 'sliding_window': 9},
        'layer_types': ['sliding_attention', 'full_attention'],
      },
      [9, None],
    ),
  ],
)
def test_each_layer_has_its_window(config, windows):
  assert [interop.layer(config, i).window for i in range(len(windows))] == windows


def test_a_layer_knows_what_goes_with_its_scheme():
  gemma = interop.layer({'model_type': 'gemma2', 'rope_theta': 1e4, 'query_pre_attn_scalar': 16}, 0)
  assert (gemma.scale, gemma.logit_cap, gemma.causal) == (0.25, 50.0, True)
  qwen = interop.layer({'model_type': 'qwen2', **LONG}, 0)
  assert (qwen.use_bias, qwen.out_bias, qwen.scale) == (True, False, None)
  llama4 = {'model_type': 'llama4_text', 'rope_theta': 5e5, 'attention_chunk_size': 64}
  chunked, whole = (interop.layer(llama4, i) for i in (0, 3))
  assert (chunked.chunk, whole.chunk) == (64, None)
  assert chunked.qk_norm is not None
  assert whole.qk_norm is None
  assert 'chunk' not in chunked.arguments()
  t5 = {'model_type': 't5', 'd_model': 12, 'd_kv': 4, 'num_heads': 2}
  encoder, cross = (interop.layer(t5, 0, part=part) for part in ('encoder', 'cross'))
  assert (encoder.scale, encoder.causal, cross.scheme) == (1.0, False, posjax.Scheme())


def test_positions_of_embeddings_are_no_layers_business():
  config = {'model_type': 'gpt2', 'n_embd': 12, 'n_head': 3}
  assert posjax.places(interop.from_hf({**config, 'n_positions': 9})) == ('embed',)
  assert interop.layer(config, 0).scheme == posjax.Scheme()


def test_both_layers_of_flax_take_the_weights():
  options, pos = interop.layer(LLAMA, 0).arguments(), jnp.arange(5)
  x = jnp.asarray(numbers('x', (1, 5, 12)))
  loaded = interop.load_attention(LLAMA, 0, WEIGHTS)
  expected = posjax.linen.Attention(**options).apply({'params': loaded}, x, pos)
  layer = posjax.nnx.Attention(**options, rngs=nnx.Rngs(0))
  nnx.update(layer, loaded)
  np.testing.assert_array_equal(layer(x, pos), expected)


class Lazy:
  """As `safetensors.safe_open` returns it."""

  def __init__(self, weights):
    self.weights, self.read = weights, []

  def keys(self):
    return list(self.weights)

  def get_tensor(self, name):
    self.read.append(name)
    return self.weights[name]


def test_only_the_weights_of_the_layer_are_read():
  lazy = Lazy({**WEIGHTS, **weights_of(LLAMA, 1), 'model.norm.weight': np.ones(12, np.float32)})
  loaded = interop.load_attention(LLAMA, 1, lazy)
  assert sorted(lazy.read) == sorted(shapes_of(LLAMA, 1))
  kernel = lazy.weights['model.layers.1.self_attn.q_proj.weight']
  np.testing.assert_array_equal(loaded['query']['kernel'].reshape(12, 12), kernel.T)


def test_names_may_be_those_of_the_attention_alone():
  own = {name.removeprefix('model.layers.0.self_attn.'): x for name, x in WEIGHTS.items()}
  own['rotary_emb.inv_freq'] = np.ones(2, np.float32)  # a buffer of older versions
  found = interop.load_attention(LLAMA, 0, own)['key']['kernel']
  np.testing.assert_array_equal(found, interop.load_attention(LLAMA, 0, WEIGHTS)['key']['kernel'])


def test_of_several_stacks_of_layers_one_is_named():
  both = WEIGHTS | weights_of(LLAMA, 0, prefix='vision.')
  with pytest.raises(ValueError, match=r"several prefixes: give one of \['model.', 'vision.'\]"):
    interop.load_attention(LLAMA, 0, both)
  found = interop.load_attention(LLAMA, 0, both, prefix='vision.')['query']['kernel']
  expected = both['vision.layers.0.self_attn.q_proj.weight'].T.reshape(12, 3, 4)
  np.testing.assert_array_equal(found, expected)


def without(name):
  return {other: x for other, x in WEIGHTS.items() if other != name}


@pytest.mark.parametrize(
  ('weights', 'kind', 'message'),
  [
    (without(QUERY), ValueError, f'must have {QUERY}, but has none of that name'),
    (
      {**WEIGHTS, QUERY.replace('weight', 'bias'): np.ones(12, np.float32)},
      *(ValueError, r'but got also model.layers.0.self_attn.q_proj.bias'),
    ),
    (
      {**WEIGHTS, QUERY: np.ones((8, 12), np.float32)},
      *(ValueError, rf'{QUERY} must have shape \(12, 12\), but got \(8, 12\)'),
    ),
    (
      {**WEIGHTS, QUERY: np.ones((12, 12), np.int8)},
      *(TypeError, f'{QUERY} must be an array of floats, but got int8'),
    ),
    (
      {**WEIGHTS, QUERY: np.ones((12, 12))},
      *(TypeError, f'{QUERY} is float64, which JAX would round to float32: convert'),
    ),
    ({**WEIGHTS, QUERY: [1.0]}, TypeError, rf'{QUERY} must be an array, but got \[1.0\]'),
    ({'lm_head.weight': np.ones(3)}, ValueError, 'no weights whose names contain layers.0.self_at'),
    ([1], TypeError, r'Weights must be a mapping of names to arrays, but got \[1\]'),
    ({**WEIGHTS, 3: 1.0}, TypeError, 'The names of weights must be strings, but got 3'),
  ],
)
def test_a_weight_that_does_not_fit_is_named(weights, kind, message):
  with pytest.raises(kind, match=message):
    interop.load_attention(LLAMA, 0, weights)


def test_codegens_projection_has_four_parts_of_queries_values_and_keys():
  config = {'model_type': 'codegen', 'n_embd': 48, 'n_head': 8, 'n_layer': 1, 'rotary_dim': 2}
  weights = weights_of(config, 0)
  loaded, (fused,) = (
    interop.load_attention(config, 0, weights),
    (x for name, x in weights.items() if 'qkv_proj' in name),
  )
  for head in range(8):
    for i, name in enumerate(('query', 'value', 'key')):
      first = 36 * (head // 2) + 12 * i + 6 * (head % 2)
      rows = fused[first : first + 6]
      np.testing.assert_array_equal(loaded[name]['kernel'][:, head], rows.T)


def test_the_codes_of_a_conformer_have_sines_and_cosines_in_turn():
  config = {'model_type': 'wav2vec2-conformer', 'hidden_size': 12, 'num_attention_heads': 2}
  weights = weights_of(config, 0)
  held = interop.load_attention(config, 0, weights)['scheme_params']
  rows = weights['model.encoder.layers.0.self_attn.linear_pos.weight'].reshape(2, 6, 12)
  np.testing.assert_array_equal(held['w_r'][:6], np.moveaxis(rows[..., 0::2], -1, 0))
  np.testing.assert_array_equal(held['w_r'][6:], np.moveaxis(rows[..., 1::2], -1, 0))
  u = weights['model.encoder.layers.0.self_attn.pos_bias_u']
  np.testing.assert_array_equal(held['u'], u)


@pytest.mark.parametrize(
  ('config', 'options', 'message'),
  [
    ({'model_type': 'no_such'}, {}, r"in docs/checkpoints.md .* known, but got 'no_such'\.$"),
    ({'model_type': 'lama'}, {}, r"but got 'lama'; did you mean one of \['llama'"),
    (LLAMA, {'index': 2}, 'one of the 2 layers, but got 2'),
    (LLAMA, {'part': 'encoder'}, r"part must be one of \[None\] for llama, but got 'encoder'"),
    ({'model_type': 't5'}, {}, r"one of \['encoder', 'decoder', 'cross'\] for t5, but got None"),
    ({**LLAMA, 'model_type': 'olmo', 'clip_qkv': 8.0}, {}, 'clip_qkv must be None, because other'),
    ({'model_type': 'mpt', 'attn_config': {'clip_qkv': 8.0}}, {}, 'attn_config.clip_qkv must be'),
    ({'model_type': 'nomic_bert', 'n_embd': 8, 'n_head': 3}, {}, 'divide .* but got 3 and 8'),
    ({**LLAMA, 'text_config': {}}, {}, "its layers are in config.'text_config'."),
    ({**LLAMA, 'attention_bias': 'yes'}, {}, "attention_bias must be True or False, but got 'yes'"),
    (
      {'model_type': 'gemma2', 'rope_theta': 1e4, 'layer_types': ['full_attention']},
      *({'index': 1}, 'layer_types has 1 entries, but got layer 1'),
    ),
  ],
)
def test_a_layer_that_is_not_known_is_refused(config, options, message):
  with pytest.raises(ValueError, match=message):
    interop.layer(config, **{'index': 0, **options})
