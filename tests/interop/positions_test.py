"""Positions that a model adds to its embeddings: sinusoids, and tables from the checkpoint."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import posjax
import posjax.linen
from posjax import interop
from posjax.interop.families import FAMILIES
from posjax.schemes import rope
from tests.support import hugging_face
from tests.support.hugging_face import CASES, numbers
from tests.support.loops import error

WIDTH, POS = 24, jnp.arange(9)


def added(scheme, params, width=WIDTH):
  """What a scheme adds to embeddings."""
  x = jnp.zeros((1, len(POS), width))
  return scheme.embed(params, x, None, POS[None])[0]


def fairseq(start):
  """Sines, then cosines, in float64; the last frequency is 1/10000."""
  half = WIDTH // 2
  angles = np.multiply.outer(np.asarray(POS) + start, 10000.0 ** (-np.arange(half) / (half - 1)))
  return np.concatenate([np.sin(angles), np.cos(angles)], -1)


@pytest.mark.parametrize(
  ('config', 'start'),
  [
    ({'model_type': 'm2m_100', 'pad_token_id': 4}, 5),
    ({'model_type': 'xglm', 'pad_token_id': 4}, 2),  # whatever the padding is
    ({'model_type': 'whisper', 'max_target_positions': 7}, 0),
  ],
)
def test_fairseqs_sinusoids_are_their_formula(config, start):
  scheme = interop.from_hf(config, bidirectional=config['model_type'] == 'whisper')
  assert error(added(scheme, {}), fairseq(start)) < 1e-6
  part = {'whisper': 'encoder', 'm2m_100': 'decoder'}.get(config['model_type'])
  assert interop.load_positions(config, {}, part=part) == {}


def test_marians_sinusoids_are_their_formula():
  angles = np.multiply.outer(np.asarray(POS), 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH))
  expected = np.concatenate([np.sin(angles), np.cos(angles)], -1)
  assert error(added(interop.from_hf({'model_type': 'marian'}), {}), expected) < 1e-6


TABLES = [
  ({'model_type': 'opt', 'max_position_embeddings': 9}, None, 'model.decoder.embed_positions', 11),
  ({'model_type': 'whisper', 'max_target_positions': 9}, 'decoder', 'decoder.embed_positions', 9),
  (
    {'model_type': 'roberta', 'max_position_embeddings': 12, 'pad_token_id': 2},
    *(None, 'roberta.embeddings.position_embeddings', 12),
  ),
  ({'model_type': 'mbart', 'max_position_embeddings': 9}, 'encoder', 'encoder.embed_positions', 11),
  ({'model_type': 'gpt2', 'n_positions': 9}, None, 'transformer.wpe', 9),
]


@pytest.mark.parametrize(('config', 'part', 'name', 'rows'), TABLES)
def test_a_learned_table_has_the_rows_of_its_tokens(config, part, name, rows):
  weights = {f'{name}.weight': numbers(name, (rows, 4)), 'lm_head.weight': np.ones(3)}
  params = interop.load_positions(config, weights, part=part)
  scheme = interop.from_hf(config)
  np.testing.assert_array_equal(added(scheme, params, 4), weights[f'{name}.weight'][rows - 9 :])


def test_the_patches_of_an_image_come_after_its_class():
  config = {'model_type': 'vit', 'image_size': [4, 8], 'patch_size': 2}
  weights = {'vit.embeddings.position_embeddings': numbers('patches', (1, 9, 4))}
  table = added(interop.from_hf(config), interop.load_positions(config, weights), 4)
  np.testing.assert_array_equal(table, weights['vit.embeddings.position_embeddings'][0])


OPT = {'opt.decoder.embed_positions.weight': np.ones((9, 4), np.float32)}


@pytest.mark.parametrize(
  ('config', 'weights', 'options', 'message'),
  [
    (
      TABLES[0][0],
      OPT,
      {},
      r'must have 11 rows, as the .* says, but got shape \(9, 4\)',
    ),
    (
      TABLES[0][0],
      {},
      {},
      r'must have decoder\.embed_positions\.weight, but has none',
    ),
    (TABLES[0][0], OPT, {'prefix': 'a.'}, r'must have a\.decoder\.embed_positions\.weight, but'),
    (
      *(TABLES[0][0], {**OPT, 'decoder.embed_positions.weight': np.ones(3)}),
      *({}, 'after several prefixes: give prefix, for '),
    ),
    (
      TABLES[3][0],
      OPT,
      {},
      r"one of \['encoder', 'decoder'\] for mbart, but got None",
    ),
    (
      TABLES[4][0],
      OPT,
      {'part': 'cross'},
      r"one of \[None\] for gpt2, but got 'cross'",
    ),
    ({'model_type': 'llama'}, OPT, {}, "'llama' have no positions"),
  ],
)
def test_a_table_that_does_not_fit_is_refused(config, weights, options, message):
  with pytest.raises(ValueError, match=message):
    interop.load_positions(config, weights, **options)


@pytest.mark.parametrize(
  ('config', 'options', 'message'),
  [
    (
      *({'model_type': 'qwen3_next', 'rope_theta': 1e6}, {'index': 2}),
      "layers of qwen3_next, .* but layer 2 is 'linear_attention'",
    ),
    (
      *({'model_type': 'longt5', 'encoder_attention_type': 'transient-global'},),
      *(
        {'index': 0, 'part': 'encoder'},
        'encoder_attention_type must be local, because other values',
      ),
    ),
    (
      *({'model_type': 'wav2vec2-conformer', 'position_embeddings_type': 'rotary'}, {'index': 0}),
      "must be 'relative', because the others, .*, but got 'rotary'",
    ),
    (
      *({'model_type': 'mpnet', 'relative_attention_num_buckets': 16}, {'index': 0}),
      'relative_attention_num_buckets must be 32, which is all that MPNet uses, but got 16',
    ),
    ({'model_type': 'xlnet', 'bi_data': True}, {'index': 0}, 'bi_data must be None, because'),
    (
      {'model_type': 'mvp', 'use_prompt': True},
      {'index': 0, 'part': 'cross'},
      'use_prompt must be',
    ),
    ({'model_type': 'iquestcoder', 'clip_qkv': 8}, {'index': 0}, 'clip_qkv must be None, because'),
    ({'model_type': 'lfm2', 'full_attn_idxs': [2]}, {'index': 1}, "but layer 1 is 'conv'"),
    ({'model_type': 'lfm2_moe'}, {'index': 1}, 'needs layer_types, a list .* but got None'),
    ({'model_type': 'swin', 'depths': [1, 2]}, {'index': 3}, 'one of the 3 layers, but got 3'),
    (
      *({'model_type': 'swin', 'depths': [1], 'num_heads': [5]}, {'index': 0}),
      'num_heads must be a divisor of the width of each stage, 96 in 0',
    ),
    (
      *({'model_type': 'swinv2', 'window_size': 1}, {'index': 0}),
      'must have at least 2 x 2 tokens, but got 1',
    ),
    (
      *({'model_type': 'codegen', 'n_head': 6, 'n_embd': 48, 'rotary_dim': 2}, {'index': 0}),
      'heads must be a multiple of 4, because one projection holds',
    ),
  ],
)
def test_what_cannot_be_read_of_a_family_is_refused(config, options, message):
  with pytest.raises(ValueError, match=message):
    interop.layer(config, **options)


@pytest.mark.parametrize('kind', ['ernie', 'markuplm', 'clip_text_model'])
def test_relative_keys_are_refused_where_they_are_not_known(kind):
  config = {'model_type': kind, 'position_embedding_type': 'relative_key'}
  message = "position_embedding_type must be '?absolute'?.* but got 'relative_key'"
  if FAMILIES[kind].embedded is not None:
    with pytest.raises(ValueError, match=message):
      interop.from_hf(config)
  if kind != 'clip_text_model':
    with pytest.raises(ValueError, match=message):
      interop.layer(config, 0)


def test_heads_of_latent_attention_need_not_divide_the_width():
  config = {'model_type': 'glm4_moe_lite', 'rope_theta': 1e4, 'qk_rope_head_dim': 64}
  found = interop.layer(config, 0)
  assert (found.width, found.num_heads, found.head_dim, found.value_dim) == (2048, 20, 256, 256)


def test_the_sinusoids_of_trocr_are_refused():
  config = {'model_type': 'trocr', 'max_position_embeddings': 9}
  assert interop.from_hf(config).embed is not None
  with pytest.raises(ValueError, match='use_learned_position_embeddings must be true, because'):
    interop.from_hf({**config, 'use_learned_position_embeddings': False})


def test_swin_v2_has_the_windows_of_its_training():
  config = {
    **{'model_type': 'swinv2', 'image_size': 32, 'patch_size': 4, 'embed_dim': 8},
    **{'depths': [1, 1], 'num_heads': [2, 2], 'window_size': 8},
  }
  with pytest.raises(ValueError, match=r'trained with the windows \[8, 4\]: give layer'):
    interop.from_hf(config)
  told = {**config, 'pretrained_window_sizes': [6, 6]}
  distance = jnp.array([[1, 3]])
  for layer, (trained, size) in enumerate(((config, 8), (config, 4))):
    found = interop.from_hf(trained, layer=layer).parts[1]
    expected = posjax.get(f'swin_continuous({size}, {size}, 2)')
    params = {'kernel': jnp.ones((2, 2)), 'offset': jnp.zeros(2), 'out_kernel': jnp.ones((2, 1))}
    np.testing.assert_array_equal(found.bias(params, distance), expected.bias(params, distance))
  assert posjax.places(interop.from_hf(told)) == ('logits', 'bias')


def test_roformers_values_turn_and_nothing_turns_back():
  config = {'model_type': 'roformer', 'rotary_value': True}
  scheme, expected = interop.from_hf(config), rope.scheme(interleaved=True, values=True)
  v, pos = jnp.asarray(numbers('v', (1, 3, 2, 4))), jnp.arange(3)[None]
  np.testing.assert_array_equal(scheme.values.value({}, v, pos), expected.values.value({}, v, pos))
  np.testing.assert_array_equal(scheme.values.output({}, v, pos), v)


def test_hunyuans_alpha_raises_the_base_as_ntk_does():
  scaling = {'type': 'dynamic', 'alpha': 50.0, 'factor': 1.0, 'beta_fast': 32, 'mscale': 1.0}
  config = {'model_type': 'hunyuan_v1_dense', 'rope_theta': 1e4, 'rms_norm_eps': 1e-5}
  turning = interop.from_hf({**config, 'rope_scaling': scaling}).parts[0]
  x, pos = jnp.asarray(numbers('x', (1, 3, 1, 8))), jnp.arange(3)[None]
  expected = posjax.get('ntk(50.0)')
  np.testing.assert_array_equal(turning.query({}, x, pos), expected.query({}, x, pos))
  with pytest.raises(ValueError, match=r"rope type 'dynamic' has no parameter alpha and beta_fast"):
    interop.from_hf({**config, 'model_type': 'llama', 'rope_scaling': scaling | {'mscale': None}})


# The module that holds the table of a model, and its row of the first token.
THEIRS = {
  **dict.fromkeys(('marian', 'pegasus'), (lambda m: m.encoder.embed_positions.weight, 0)),
  **dict.fromkeys(
    ('m2m_100', 'nllb-moe', 'speech_to_text'), (lambda m: m.encoder.embed_positions.weights, 2)
  ),
  'fsmt': (lambda m: m.encoder.embed_positions.get_embedding(16, WIDTH, 1), 2),
  'trocr': (lambda m: m.model.decoder.embed_positions.weight, 2),
  'xglm': (lambda m: m.embed_positions.weights, 2),
  'whisper': (lambda m: m.encoder.embed_positions.weight, 0),
  'vit': (lambda m: m.embeddings.position_embeddings[0], 0),
  **dict.fromkeys(
    ('bart', 'mbart', 'plbart', 'mvp'), (lambda m: m.encoder.embed_positions.weight, 2)
  ),
  'blenderbot': (lambda m: m.encoder.embed_positions.weight, 0),
  'opt': (lambda m: m.decoder.embed_positions.weight, 2),
  'biogpt': (lambda m: m.embed_positions.weight, 2),
  'distilbert': (lambda m: m.embeddings.position_embeddings.weight, 0),
  'mpnet': (lambda m: m.embeddings.position_embeddings.weight, 2),
  'gpt_neo': (lambda m: m.wpe.weight, 0),
  'openai-gpt': (lambda m: m.positions_embed.weight, 0),
}


@pytest.mark.slow
def test_what_is_added_to_embeddings_is_what_transformers_adds():
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  for kind, (table, start) in THEIRS.items():
    longer = {'distilbert': {'max_position_embeddings': 64}}.get(kind, {})
    model, config = hugging_face.model_of(kind, {**CASES[kind][0], **longer})
    part = 'encoder' if None not in hugging_face.parts_of(kind) else None
    scheme = interop.from_hf(config, bidirectional=True)
    scheme = scheme.parts[0] if scheme.parts else scheme
    params = interop.load_positions(config, model.state_dict(), part=part)
    theirs = table(model).detach().numpy()[start : start + len(POS)]
    assert error(added(scheme, params, theirs.shape[1]), theirs) < 1e-6, kind


@pytest.mark.slow
def test_the_rows_that_a_model_takes_for_its_tokens_are_those_of_our_table():
  torch = pytest.importorskip('torch', reason='This compares with transformers and torch.')
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  tokens = 3 + torch.arange(len(POS))[None]
  for kind in (*hugging_face.BERTS, *hugging_face.CLIPS):
    embedded = FAMILIES[kind].embedded
    if embedded is None:
      continue
    model, config = hugging_face.model_of(kind, CASES[kind][0])
    name, seen = embedded.name.removesuffix('.weight'), []
    (module,) = (m for path, m in model.named_modules() if f'.{path}'.endswith(f'.{name}'))
    module.register_forward_hook(lambda module, given, out, seen=seen: seen.append(out))
    with torch.no_grad():
      model(tokens)
    (theirs,) = (each.numpy().reshape(len(POS), -1) for each in seen)
    params = interop.load_positions(config, model.state_dict())
    ours = added(interop.from_hf(config), params, theirs.shape[1])
    np.testing.assert_array_equal(ours, theirs, err_msg=kind)


class Counted:
  """A file of safetensors that notes which weights are read."""

  def __init__(self, opened):
    self.opened, self.read = opened, []

  def keys(self):
    return self.opened.keys()

  def get_tensor(self, name):
    self.read.append(name)
    return self.opened.get_tensor(name)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['llama', 'qwen3', 'bloom'])
def test_the_three_lines_of_the_readme_read_a_checkpoint_on_disk(kind, tmp_path):
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  safetensors = pytest.importorskip('safetensors', reason='This reads its files.')
  model, full = hugging_face.model_of(kind, CASES[kind][0], whole=True)
  model.save_pretrained(tmp_path)
  layers = hugging_face.recorded(kind, model, full)
  config = json.loads((tmp_path / 'config.json').read_text(encoding='utf-8'))
  for framework in ('numpy', 'pt'):
    with safetensors.safe_open(tmp_path / 'model.safetensors', framework) as opened:
      for layer in layers:
        weights, x = Counted(opened), jnp.asarray(layer.x)
        attention = posjax.linen.Attention(**interop.layer(config, layer.index).arguments())
        params = interop.load_attention(config, layer.index, weights)
        y = attention.apply({'params': params}, x, jnp.arange(x.shape[1]))
        assert error(y, layer.y) < 1e-6
        inside = names_of_layer(weights.keys(), layer.index)
        assert sorted(weights.read) == sorted(inside)


def names_of_layer(names, index):
  """The names of a layer's attention."""
  return [name for name in names if f'.{index}.self_att' in name]
