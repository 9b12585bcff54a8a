"""Layers of transformers' models, loaded into those of posjax, give the same outputs."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from posjax import interop
from posjax.interop.checkpoint import shapes_of
from posjax.interop.families import FAMILIES
from posjax.linen import Attention
from tests.support import hugging_face
from tests.support.hugging_face import CASES, TOKENS
from tests.support.loops import error
from tests.support.paths import load_golden
from tools import interop_table

GOLDEN = load_golden('interop_layers')
STORED = json.loads(str(GOLDEN['layers']))


def outputs(config, weights, layer, pos=None):
  """The answer of a layer of posjax to what a layer of transformers was given."""
  part, index = layer.part, layer.index
  attention = Attention(**interop.layer(config, index, part=part).arguments())
  params = interop.load_attention(config, index, weights, part=part)
  x, x_kv = jnp.asarray(layer.x), jnp.asarray(layer.x_kv)
  axes = attention.scheme.traits.axes
  ids, segments = hugging_face.positions_of(config, index, axes, x.shape[1])
  pos = ids if pos is None else pos
  rest = {'segments': None if segments is None else jnp.asarray(segments)}
  rest |= {'order': jnp.arange(x.shape[1])} if axes > 1 and attention.causal else {}
  rest |= {'x_kv': x_kv, 'kv_pos': jnp.arange(x_kv.shape[1])} if part == 'cross' else {}
  return attention.apply({'params': params}, x, jnp.asarray(pos), **rest)


# Those that run by hand: what they add to the others is read by cheaper tests, too.
BY_HAND = ('qwen3_5', 'mpnet', 'longt5', 'swin', 'wav2vec2', 'mistral4', 'codegen')


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(each, marks=pytest.mark.slow) if each.startswith(BY_HAND) else each
    for each in STORED
  ],
)
def test_a_loaded_layer_is_that_of_transformers(name):
  config, part, index = STORED[name]
  weights = {
    path: hugging_face.numbers(path, shape)
    for path, shape in shapes_of(config, index, part=part, prefix='').items()
  }
  x, x_kv, y = (GOLDEN[f'{name}.{what}'] for what in ('x', 'x_kv', 'y'))
  layer = hugging_face.Recorded(part, index, x, x_kv, y)
  assert error(outputs(config, weights, layer), y) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('kind', CASES)
def test_every_layer_of_a_small_model_is_that_of_transformers(kind):
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  for sizes in CASES[kind]:
    model, config = hugging_face.model_of(kind, sizes)
    weights = model.state_dict()
    layers = hugging_face.recorded(kind, model, config)
    for layer in layers:
      assert error(outputs(config, weights, layer), layer.y) < 1e-5, (layer.part, layer.index)
    found = {(layer.part, layer.index) for layer in layers}
    for part in hugging_face.parts_of(kind):
      for index in range(hugging_face.depth_of(config)):
        if (part, index) not in found:  # a layer that has no attention with a softmax
          with pytest.raises(ValueError, match=r"is '(linear_attention|conv)'"):
            interop.layer(config, index, part=part)


@pytest.mark.slow
@pytest.mark.parametrize(
  'kind',
  [kind for kind in sorted(CASES) if getattr(FAMILIES[kind].rotary, 'in_turn', None) is not None],
)
def test_three_different_ids_of_a_token_turn_it_as_in_transformers(kind):
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  sizes = CASES[kind][0]
  sections = {**sizes['rope_parameters'], 'mrope_section': [2, 1, 1]}
  sizes = {**sizes, 'hidden_size': 32, 'head_dim': 8, 'rope_parameters': sections}
  if 'linear_num_key_heads' in sizes:  # of whose heads a quarter turns
    sizes = {**sizes, 'head_dim': 32}
  model, config = hugging_face.model_of(kind, sizes)
  i = np.arange(12)
  pos = np.stack([i // 2, 3 * i % 7, i * i % 5], -1)
  layers = hugging_face.recorded(kind, model, config, pos=pos)
  for layer in layers:
    y = outputs(config, model.state_dict(), layer, pos)
    assert error(y, layer.y) < 1e-5, layer.index


def test_every_family_that_is_read_has_a_small_model():
  assert set(CASES) == {kind for kind, family in FAMILIES.items() if family.parts}


class Ours:
  """Attention layers of posjax in the place of all of a model's; its state changes by the call."""

  def __init__(self, kind, model, config, capacity=None):
    weights, self.caches, self.layers = model.state_dict(), {}, {}
    self.pos = self.segments = self.encoded = None
    for part in hugging_face.parts_of(kind):
      for i in range(hugging_face.depth_of(config)):
        layer = Attention(**interop.layer(config, i, part=part).arguments())
        self.layers[part, i] = layer, interop.load_attention(config, i, weights, part=part)
        if capacity is not None:
          self.caches[part, i] = layer.init_cache(1, capacity)
    hugging_face.replace_attention(kind, model, config, self)

  def __call__(self, part, index, x, x_kv):
    (layer, params), x = self.layers[part, index], jnp.asarray(x)
    if self.caches:
      given = {'params': params}, x, self.caches[part, index], self.pos
      out, self.caches[part, index] = layer.apply(*given, method='extend')
      return np.asarray(out)
    if part == 'cross':
      pos, kv_pos = jnp.arange(x.shape[1]), jnp.arange(x_kv.shape[1])
      kv = {'x_kv': jnp.asarray(x_kv), 'kv_pos': kv_pos, 'kv_segments': self.segments}
      kv['segments'] = jnp.ones(x.shape[:2], jnp.int32)
      return np.asarray(layer.apply({'params': params}, x, pos, **kv))
    if part == 'decoder' or self.pos is None:
      segments = None if part == 'decoder' else self.segments
      return np.asarray(
        layer.apply({'params': params}, x, jnp.arange(x.shape[1]), segments=segments)
      )
    return np.asarray(layer.apply({'params': params}, x, self.pos, segments=self.segments))


WHOLE = {
  **dict.fromkeys(
    ('llama', 'qwen3', 'gemma3_text', 'gpt_neox', 'gpt_oss', 'bloom', 'falcon', 'deepseek_v3'), True
  ),
  **{'t5': False, 'modernbert': False},
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', WHOLE)
def test_the_logits_of_a_whole_model_stay_with_our_attention(kind):
  """Full, with padding on the left, and, for decoders, token by token with caches."""
  torch = pytest.importorskip('torch', reason='This compares with transformers and torch.')
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  theirs, config = hugging_face.model_of(kind, CASES[kind][0], whole=True)
  mask = (TOKENS > 0).astype(int)
  pos = np.maximum(mask.cumsum(1) - 1, 0)
  given = {'input_ids': torch.tensor(TOKENS), 'attention_mask': torch.tensor(mask)}
  given |= {'decoder_input_ids': torch.tensor(TOKENS[:, 4:])} if kind == 't5' else {}
  given |= {} if kind in ('t5', 'bloom') else {'position_ids': torch.tensor(pos)}
  with torch.no_grad():
    expected = theirs(**given).logits.numpy()
    replaced, _ = hugging_face.model_of(kind, CASES[kind][0], whole=True)
    ours = Ours(kind, replaced, config)
    ours.pos = None if kind == 't5' else jnp.asarray(pos)
    ours.segments = jnp.asarray(mask)
    found = replaced(**given).logits.numpy()
  real = slice(None) if kind == 't5' else mask.astype(bool)
  assert error(found[real], expected[real]) < 1e-4
  if WHOLE[kind]:
    _check_decoding(kind, torch, expected[1:])


def _check_decoding(kind, torch, expected):
  """Five tokens, and then one by one."""
  model, config = hugging_face.model_of(kind, CASES[kind][0], whole=True)
  ours, past, found = Ours(kind, model, config, capacity=12), None, []
  for start, stop in ((0, 5), *((i, i + 1) for i in range(5, 12))):
    ours.pos = jnp.arange(start, stop)
    tokens = torch.tensor(TOKENS[1:, start:stop])
    with torch.no_grad():
      out = model(input_ids=tokens, past_key_values=past, use_cache=True)
    past = out.past_key_values
    found.append(out.logits.numpy())
  assert error(np.concatenate(found, 1), expected) < 1e-4


@pytest.mark.slow
def test_the_table_of_model_types_is_what_is_read():
  transformers = pytest.importorskip('transformers', reason='This reads its configurations.')
  shown = interop_table.TARGET.read_text(encoding='utf-8')
  if f'transformers {transformers.__version__},' not in shown:
    pytest.skip(f'The table is that of another version than {transformers.__version__}.')
  assert shown == interop_table.text(), 'Out of date; run: python -m tools.interop_table'
