"""Whole models of folders answer as those of transformers do, before and after they are saved."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax import interop
from posjax.experiment import sharding
from posjax.interop import checkpoint, settings
from posjax.interop.bodies import BODIES
from posjax.interop.folder import read_folder, write_folder
from posjax.interop.planning import plan, whole_of
from posjax.interop.replacement import completed
from posjax.models.generate import generate
from posjax.models.pretrained import PretrainedEncoderDecoder
from posjax.models.sides import Side
from tests.support import hugging_face
from tests.support.hugging_face import CASES, MASK, POSITIONS, TOKENS, numbers
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('interop_models')
STORED = json.loads(str(GOLDEN['models']))
LLAMA = {
  **{'model_type': 'llama', 'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 2},
  **{'num_attention_heads': 4, 'num_key_value_heads': 2, 'vocab_size': 40, 'rope_theta': 5e5},
  **{'rms_norm_eps': 1e-6, 'max_position_embeddings': 64, 'tie_word_embeddings': True},
}


def folder_of(kind, place):
  """A stored model as a folder, with weights made from their names."""
  config, shapes = STORED[kind]
  weights = {name: numbers(name, tuple(shape)) for name, shape in shapes.items()}
  write_folder(place, config, weights)
  return place


def answers(model, tokens=TOKENS):
  """The logits of a model for the padded batch."""
  tokens, segments, pos = map(jnp.asarray, (tokens, MASK, POSITIONS))
  if isinstance(model, PretrainedEncoderDecoder):
    target = tokens[:, 4:]
    source = Side(tokens, segments, jnp.broadcast_to(jnp.arange(12), tokens.shape))
    return model(source, Side(target, jnp.ones_like(target)))
  return model(tokens, pos, segments=segments)


def real_of(kind):
  """The tokens whose logits count."""
  return slice(None) if kind == 't5' else MASK.astype(bool)


@pytest.mark.parametrize('kind', STORED)
def test_a_folder_answers_as_transformers_does(kind, tmp_path):
  model = interop.load(folder_of(kind, tmp_path))
  found, expected = np.asarray(answers(model)), GOLDEN[f'{kind}.logits']
  assert error(found[MASK.astype(bool)], expected[MASK.astype(bool)]) < 1e-4
  said = generate(model, jnp.asarray(TOKENS[1:]), 32, jax.random.key(0), temperature=0.0)
  np.testing.assert_array_equal(said, GOLDEN[f'{kind}.said'])
  assert model.source.skipped == ()


def cases():
  for kind in BODIES:
    for i, sizes in enumerate(CASES[kind]):
      if not sizes.get('use_bidirectional_attention'):
        yield pytest.param(kind, i, id=f'{kind}{i or ""}')


def their_model(kind, i):
  sizes = CASES[kind][i]
  if kind == 'gpt2':
    sizes = {**sizes, 'scale_attn_by_inverse_layer_idx': i > 0}
  return hugging_face.model_of(kind, sizes, whole=True)[0]


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'i'), [*cases()])
def test_every_family_is_that_of_transformers(kind, i, tmp_path):
  """Padded logits, 32 greedy tokens through caches, gradients, and the same after saving."""
  torch = pytest.importorskip('torch', reason='This compares with transformers and torch.')
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  theirs, real = their_model(kind, i), real_of(kind)
  theirs.save_pretrained(tmp_path / 'theirs')
  model = interop.load(tmp_path / 'theirs')
  if kind == 'modernbert':
    expected, found = (
      hugging_face.logits_of(kind, theirs),
      model(*map(jnp.asarray, (TOKENS, np.arange(12))), segments=jnp.asarray(MASK)),
    )
  else:
    expected, found = hugging_face.logits_of(kind, theirs), answers(model)
  assert error(np.asarray(found)[real], expected[real]) < 1e-4
  if kind not in ('bert', 'modernbert', 't5'):
    said = generate(model, jnp.asarray(TOKENS[1:]), 32, jax.random.key(0), temperature=0.0)
    np.testing.assert_array_equal(said, hugging_face.greedy(theirs, TOKENS[1:], 32))
  check_gradients(torch, kind, theirs, model)
  interop.save(model, tmp_path / 'ours')
  again = type(theirs).from_pretrained(tmp_path / 'ours', attn_implementation='eager').eval()
  if CASES[kind][i].get('alibi'):
    again = type(theirs).from_pretrained(tmp_path / 'ours', attn_implementation='sdpa').eval()
  assert error(hugging_face.logits_of(kind, again)[real], expected[real]) < 1e-4


def check_gradients(torch, kind, theirs, model):
  """Of the loss of the second row, whose tokens are all real: of all weights, by their names."""
  theirs.zero_grad()
  row = torch.tensor(TOKENS[1:])
  if kind == 't5':
    out = theirs(input_ids=row, decoder_input_ids=row).logits
  else:
    out = theirs(input_ids=row).logits
  targets = torch.tensor(np.roll(TOKENS[1:], -1, 1))
  torch.nn.functional.cross_entropy(out[0], targets[0]).backward()

  def loss(model):
    tokens = jnp.asarray(TOKENS[1:])
    if kind == 't5':
      side = Side(tokens, jnp.ones_like(tokens), jnp.arange(12)[None])
      logits = model(side, side)
    else:
      logits = model(tokens, jnp.arange(12))
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits[0]), jnp.asarray(targets)[0, :, None], 1)
    return -picked.mean()

  graph, params, rest = nnx.split(model, nnx.Param, ...)
  grads = jax.grad(lambda params: loss(nnx.merge(graph, params, rest)))(params)
  of_grads = nnx.merge(graph, grads, rest)
  # Gradients are saved as weights are, which gives them the names of the checkpoint.
  written = saved_weights(of_grads)
  named = {name: each.grad for name, each in theirs.named_parameters() if each.grad is not None}
  for name, expected in named.items():
    if name not in written:  # of a tied readout
      continue
    largest = max(float(expected.abs().max()), 1e-3)
    assert np.abs(written[name] - expected.numpy()).max() / largest < 1e-4, name


def saved_weights(model):
  import tempfile

  with tempfile.TemporaryDirectory() as place:
    interop.save(model, f'{place}/saved')
    return {name: np.array(x) for name, x in read_folder(f'{place}/saved').weights.items()}


ROUND = ('llama', 't5')


@pytest.mark.parametrize(
  'kind',
  [
    each if each in ROUND else pytest.param(each, marks=pytest.mark.slow) for each in sorted(BODIES)
  ],
)
def test_what_is_saved_is_loaded_again(kind, tmp_path):
  config = {'model_type': kind, 'rope_theta': 1e4, **CASES[kind][0]}
  config['scale_attn_by_inverse_layer_idx'] = False
  model = interop.create(config, seed=3)
  interop.save(model, tmp_path / 'saved')
  again = interop.load(tmp_path / 'saved')
  one, other = (dict(nnx.to_flat_state(nnx.state(each))) for each in (model, again))
  assert one.keys() == other.keys()
  for path, leaf in one.items():
    np.testing.assert_array_equal(leaf[...], other[path][...], str(path))
  real = real_of(kind)
  np.testing.assert_array_equal(answers(model)[real], answers(again)[real])


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  place = tmp_path_factory.mktemp('llama') / 'saved'
  interop.save(interop.create(LLAMA), place)
  return place


def test_bfloat16_stays_and_float32_is_exact(saved, tmp_path):
  weights = {
    name: np.asarray(x).astype(ml_dtypes.bfloat16) for name, x in read_folder(saved).weights.items()
  }
  write_folder(tmp_path / 'half', LLAMA, weights)
  half = interop.load(tmp_path / 'half')
  assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(half, nnx.Param))} == {'bfloat16'}
  assert half.init_cache(1, 4)[0].k.dtype == jnp.bfloat16
  whole = interop.load(tmp_path / 'half', dtype='float32')
  assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(whole, nnx.Param))} == {'float32'}
  real = MASK.astype(bool)
  assert error(np.asarray(answers(half))[real], np.asarray(answers(whole))[real]) < 0.05


def test_packed_rows_are_apart_and_jit_compiles(saved):
  model = interop.load(saved)
  graph, state = nnx.split(model)
  both = jnp.asarray(TOKENS[1:])
  segments = jnp.asarray([[1] * 5 + [2] * 7])
  pos = jnp.asarray([[*range(5), *range(7)]])
  run = jax.jit(
    lambda state, tokens, pos, segments: nnx.merge(graph, state)(tokens, pos, segments=segments)
  )
  packed = run(state, both, pos, segments)
  alone = model(both[:, 5:], jnp.arange(7))
  assert error(np.asarray(packed[:, 5:]), np.asarray(alone)) < 1e-5


def test_weights_lie_on_a_mesh_as_they_are_read(saved):
  mesh = sharding.make_mesh(fsdp=4, tensor=2)
  model, alone = interop.load(saved, mesh=mesh), interop.load(saved)
  kernel = model.stack.stacks[0].periods[0].attention.query.kernel[...]
  assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 4, 2, 4)}
  with sharding.seen(mesh):
    found = jax.jit(lambda: answers(model))()
  real = MASK.astype(bool)
  assert error(np.asarray(found)[real], np.asarray(answers(alone))[real]) < 1e-5


# Other positions.


def test_a_scheme_takes_the_place_of_the_checkpoints_own_with_its_base(saved):
  model = interop.load(saved, 'yarn(factor=8.0, original_length=64)')
  line = 'yarn(factor=8.0, original_length=64, base=500000.0)'
  assert [repr(each) for each in model.schemes] == [line] * 2
  assert model.source.own == ('rope(base=500000.0)',) * 2
  own = interop.load(saved)
  expected = interop.load(saved, [posjax.get(line), line])
  np.testing.assert_array_equal(answers(model)[1], answers(expected)[1])
  assert error(np.asarray(answers(model))[1], np.asarray(answers(own))[1]) > 1e-4


def test_a_scheme_with_parameters_draws_them(saved):
  model = interop.load(saved, ['fire(threshold=16.0)', 'own'], seed=1)
  assert [repr(each) for each in model.schemes] == ['fire(threshold=16.0)', 'rope(base=500000.0)']
  params = nnx.state(model.stack.stacks[0].periods[0].attention.scheme_params)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
  with pytest.raises(ValueError, match=r'no place for the parameter|must have a name'):
    saved_weights(model)


def test_complex_embeddings_are_refused_and_a_line_with_too_many_arguments(saved):
  with pytest.raises(ValueError, match='must make real embeddings'):
    interop.load(saved, 'complex_order')
  with pytest.raises(ValueError, match='grouped'):
    interop.load(saved, 'grouped(8, 64, 1e4, True, 5, 6)')


def test_attention_weights_are_causal_shares_of_all_layers(saved):
  tokens = jnp.asarray(TOKENS[1:])
  _, weights = interop.load(saved).weigh(tokens, jnp.arange(12))
  assert weights.own.shape == (2, 1, 4, 12, 12)
  np.testing.assert_allclose(weights.own.sum(-1), 1.0, rtol=1e-5)
  assert float(jnp.triu(weights.own, 1).max()) == 0.0


def test_layers_without_positions_stay_so_unless_each_is_named():
  config = {**LLAMA, 'model_type': 'smollm3', 'no_rope_layers': [1, 0]}
  model = interop.create(config, 'alibi')
  assert [repr(each) for each in model.schemes] == ['alibi', 'none']
  model = interop.create(config, ['alibi', 'rope'])
  assert [repr(each) for each in model.schemes] == ['alibi', 'rope(base=500000.0)']


def test_a_line_that_cannot_rotate_as_the_checkpoint_does_is_refused():
  neox = posjax.get('rope(base=1e4, fraction=0.25)')
  assert completed('yarn(4.0, 64)', neox) == 'yarn(4.0, 64, fraction=0.25)'
  assert completed('rope(fraction=1.0)', neox) == 'rope(fraction=1.0)'
  assert completed('alibi+t5(num_buckets=8)', neox) == 'alibi+t5(num_buckets=8)'
  with pytest.raises(ValueError, match=r"with fraction=0\.25, which the scheme 'grouped' has no"):
    completed('grouped(group=8, window=64)', neox)


@pytest.mark.parametrize(
  ('line', 'named'),
  [
    ('rope(base=1e6)', {'rope_type': 'default', 'rope_theta': 1e6}),
    ('rope(factor=4.0)', {'rope_type': 'linear', 'factor': 4.0, 'rope_theta': 5e5}),
    ('yarn(factor=8.0, original_length=64)', {'rope_type': 'yarn', 'factor': 8.0}),
    ('dynamic_ntk(length=256, original_length=64)', {'rope_type': 'dynamic'}),
    ('llama3(original_length=64)', {'rope_type': 'llama3'}),
  ],
)
def test_a_scheme_that_has_a_name_there_is_saved_by_it(saved, tmp_path, line, named):
  model = interop.load(saved, line)
  interop.save(model, tmp_path / 'saved')
  config = json.loads((tmp_path / 'saved' / 'config.json').read_text())
  assert named.items() <= config['rope_parameters'].items()
  again = interop.load(tmp_path / 'saved', length=256)
  assert again.schemes == model.schemes


def test_a_scheme_without_a_name_there_is_not_saved(saved, tmp_path):
  with pytest.raises(ValueError, match=r'type llama, but got alibi'):
    interop.save(interop.load(saved, 'alibi'), tmp_path / 'saved')
  assert not (tmp_path / 'saved').exists()
  with pytest.raises(ValueError, match=r'takes a model of posjax.interop.load, but got int'):
    interop.save(3, tmp_path / 'saved')


# Folders that are not right.


def changed(saved, place, config=(), without=(), **weights):
  """The folder with other fields and weights."""
  held = {name: np.array(x) for name, x in read_folder(saved).weights.items()}
  for name in without:
    del held[name]
  write_folder(place, {**read_folder(saved).config, **dict(config)}, held | weights)
  return place


def test_a_config_with_one_changed_size_is_refused_by_the_weight(saved, tmp_path):
  place = changed(saved, tmp_path / 'a', {'intermediate_size': 32})
  with pytest.raises(ValueError, match=r'up_proj.weight must have shape \(32, 16\), but got'):
    interop.load(place)
  place = changed(saved, tmp_path / 'b', {'num_hidden_layers': 1})
  with pytest.raises(ValueError, match=r'has no weights model.layers.1.*of another model'):
    interop.load(place)
  place = changed(saved, tmp_path / 'c', {'num_hidden_layers': 3})
  with pytest.raises(ValueError, match=r'layers.2.self_attn'):
    interop.load(place)


def test_a_tied_readout_is_read_once_and_one_of_its_own_stays_apart(saved, tmp_path):
  table = np.array(read_folder(saved).weights['model.embed_tokens.weight'])
  copy = interop.load(changed(saved, tmp_path / 'a', **{'lm_head.weight': table}))
  assert copy.plan.readout.tied
  assert copy.source.skipped == ()
  np.testing.assert_array_equal(answers(copy)[1], answers(interop.load(saved))[1])
  apart = interop.load(changed(saved, tmp_path / 'b', **{'lm_head.weight': 2 * table}))
  assert not apart.plan.readout.tied
  assert error(np.asarray(answers(apart))[1], 2 * np.asarray(answers(copy))[1]) < 1e-6


def test_a_scaled_readout_of_its_own_is_not_saved_as_another(tmp_path):
  """T5 scales what a tied readout reads, and its configuration says so by the tie alone."""
  model = interop.create({'model_type': 't5', **CASES['t5'][0]})
  interop.save(model, tmp_path / 'tied')
  own = {'lm_head.weight': numbers('lm_head', (40, 24))}
  apart = interop.load(changed(tmp_path / 'tied', tmp_path / 'apart', **own))
  with pytest.raises(ValueError, match=r'must not scale the input of a readout of its own'):
    interop.save(apart, tmp_path / 'saved')


def test_a_missing_readout_a_wrong_dtype_and_a_foreign_weight_are_refused(saved, tmp_path):
  place = changed(saved, tmp_path / 'a', {'tie_word_embeddings': False})
  with pytest.raises(ValueError, match=r'must have lm_head.weight, since its tie_word_embeddings'):
    interop.load(place)
  integers = {'model.norm.weight': np.ones(16, np.int32)}
  with pytest.raises(ValueError, match=r'model.norm.weight must be of float16.*got int32'):
    interop.load(changed(saved, tmp_path / 'b', **integers))
  foreign = {'model.layers.0.self_attn.extra.weight': np.ones(16, np.float32)}
  with pytest.raises(ValueError, match=r'but got also .*extra'):
    interop.load(changed(saved, tmp_path / 'c', **foreign))
  with pytest.raises(ValueError, match=r'must have model.norm.weight'):
    interop.load(changed(saved, tmp_path / 'd', without=['model.norm.weight']))
  with pytest.raises(ValueError, match=r"dtype must be one of .*got 'int8'"):
    interop.load(saved, dtype='int8')


@pytest.mark.parametrize(
  ('fields', 'words'),
  [
    ({'model_type': 'mamba'}, "Whole models are read of .*got 'mamba'"),
    ({'quantization_config': {'quant_method': 'gptq'}}, 'must not be quantized'),
    ({'hidden_act': 'xielu'}, "hidden_act must be one of .*got 'xielu'"),
    ({'rope_scaling': {'rope_type': 'new'}}, "rope type must be one of .*got 'new'"),
    ({'vocab_size': None}, 'needs vocab_size'),
  ],
)
def test_what_a_config_asks_for_and_is_not_read_is_refused_by_name(fields, words):
  with pytest.raises(ValueError, match=words):
    plan(whole_of({**LLAMA, **fields}))


def test_a_field_that_nothing_reads_must_have_its_default(monkeypatch):
  tables = {**settings._defaults(), 'unread': {'llama': {'new_field': 1}}}
  monkeypatch.setattr(settings, '_defaults', lambda: tables)
  whole_of({**LLAMA, 'new_field': 1, 'unknown_to_transformers': 2})
  with pytest.raises(ValueError, match='new_field must be 1, because other values'):
    whole_of({**LLAMA, 'new_field': 3})


def test_queries_keys_and_values_by_key_heads_go_into_one_and_apart_again():
  query, key, value = (
    numbers(name, (6, heads, 5)) for name, heads in zip('qkv', (4, 2, 2), strict=True)
  )
  one = checkpoint.grouped(query, key, value)
  assert one.shape == (40, 6)
  by_key_head = one.reshape(2, 4, 5, 6)  # two queries, a key and a value of each
  np.testing.assert_array_equal(by_key_head[1, 0], query[:, 2].T)
  np.testing.assert_array_equal(by_key_head[1, 2], key[:, 1].T)
  np.testing.assert_array_equal(by_key_head[0, 3], value[:, 0].T)


def test_the_text_model_of_a_folder_with_images_is_read(saved, tmp_path):
  weights = {
    f'language_model.{name}': np.array(x) for name, x in read_folder(saved).weights.items()
  }
  weights['vision_tower.encoder.layers.0.weight'] = np.ones(3, np.float32)
  write_folder(tmp_path / 'both', {'model_type': 'gemma3', 'text_config': LLAMA}, weights)
  model = interop.load(tmp_path / 'both')
  assert model.source.skipped == ('vision_tower.encoder',)
  np.testing.assert_array_equal(answers(model)[1], answers(interop.load(saved))[1])
  interop.save(model, tmp_path / 'text')
  assert interop.load(tmp_path / 'text').schemes == model.schemes


def test_experts_in_mxfp4_are_unpacked(tmp_path):
  """Weights that MXFP4 holds exactly give the same model, packed or not."""
  config = {
    **STORED['gpt_oss'][0],
    'hidden_size': 32,
    'intermediate_size': 32,
    'num_hidden_layers': 2,
  }
  model = interop.create(config, dtype='bfloat16')
  interop.save(model, tmp_path / 'plain')
  weights = {name: np.array(x) for name, x in read_folder(tmp_path / 'plain').weights.items()}
  levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
  random = np.random.default_rng(0)
  packed = dict(weights)
  for name in [each for each in weights if each.endswith(('gate_up_proj', 'down_proj'))]:
    experts, columns, rows = weights[name].shape
    codes = random.integers(0, 16, (experts, rows, columns // 32, 32), np.uint8)
    scales = random.integers(118, 124, (experts, rows, columns // 32), np.uint8)
    exact = levels[codes] * 2.0 ** (scales.astype(int) - 127)[..., None]
    plain = exact.reshape(experts, rows, columns).swapaxes(1, 2)
    weights[name] = plain.astype(ml_dtypes.bfloat16)
    del packed[name]
    packed[f'{name}_blocks'] = codes[..., ::2] | codes[..., 1::2] << 4
    packed[f'{name}_scales'] = scales
  write_folder(tmp_path / 'exact', config, weights)
  quantized = {**config, 'quantization_config': {'quant_method': 'mxfp4'}}
  write_folder(tmp_path / 'packed', quantized, packed)
  one, other = (interop.load(tmp_path / name, dtype='float32') for name in ('exact', 'packed'))
  np.testing.assert_array_equal(answers(one)[1], answers(other)[1])
