"""`posjax.experiment.load`: the model of a work folder, and the schemes of its layers."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from configs import (
  algorithmic,
  classification,
  parsing,
  sentence_pairs,
  tagging,
  translation,
  translation_recurrent,
)
from posjax.experiment import checkpoint, evaluation, loading, run
from posjax.experiment import workdir as workdirs
from posjax.models.transformer import Transformer
from tests.experiment.support import runs


def learned_leaves(model):
  """All numbers of schemes in a model, by the names of the attributes that hold them."""
  paths = jax.tree.leaves_with_path(nnx.state(model))
  of_schemes = ('scheme_params', 'model_params', 'shared')
  return [x for path, x in paths if any(name in jax.tree_util.keystr(path) for name in of_schemes)]


def numbers(leaves):
  """Every number once, however the arrays are cut and shared."""
  return np.unique(np.concatenate([np.ravel(leaf) for leaf in leaves] or [np.zeros(0)]))


def moved(model):
  """The model with other numbers in place of each, so that none is as it was made."""
  state = nnx.state(model, nnx.Param)
  drawn = lambda x: x + jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)
  nnx.update(model, jax.tree.map(drawn, state))
  return model


@pytest.mark.slow
def test_layers_come_in_order_each_with_its_own_and_the_shared_parameters_that_it_attends_by():
  pattern = [posjax.get('learned(max_length=9)+t5(shared=False)'), posjax.get('kerple')]
  sizes = {'num_layers': 4, 'width': 8, 'num_heads': 2, 'ff_width': 8}
  model = moved(Transformer(5, pattern, **sizes, rngs=nnx.Rngs(0)))
  layers = loading.layers_of(model)
  assert [layer.name for layer in layers] == [f'stack.{i}.attention' for i in range(4)]
  assert [layer.scheme for layer in layers] == pattern * 2
  held = [model.stack.periods[i].attention.scheme_params for i in (0, 1)]
  table = model.embed.shared[0].held['0']['table'][...]
  for number, layer in enumerate(layers):
    repeat, place = divmod(number, 2)
    if place:
      assert set(layer.params) == set(held[1])
      for name, value in layer.params.items():
        np.testing.assert_array_equal(value, held[1][name][...][repeat])
    else:
      np.testing.assert_array_equal(layer.params[0]['table'], table)
      np.testing.assert_array_equal(layer.params[1]['table'], held[0]['1']['table'][...][repeat])
  # Independent of where parameters lie: the weights of the first layer are those of the model.
  tokens, pos = jnp.array([[1, 4, 2, 0, 3, 3]]), jnp.arange(6)
  seen = model.weigh(tokens, pos)[1].own[0]
  block = model.stack.periods[0]
  first = lambda variable: np.asarray(variable[...][0])
  x = np.asarray(model.embed.table.scaled(tokens) + table[None, :6])
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  x = x * first(block.norms[0].scale) + first(block.norms[0].bias)
  q, k = (
    jnp.asarray(np.einsum('btm,mhd->bthd', x, first(each.kernel)))
    for each in (block.attention.query, block.attention.key)
  )
  options = {'q_pos': pos, 'k_pos': pos, 'causal': True, 'model_places': True}
  found = posjax.weights(q, k, layers[0].scheme, layers[0].params, **options)
  np.testing.assert_allclose(found, seen, atol=1e-5)


def test_a_folder_that_holds_no_run_is_told(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'holds no run of train\.py: there is no config'):
    posjax.experiment.load(tmp_path)
  with pytest.raises(FileNotFoundError, match=r'is no folder'):
    posjax.experiment.load(tmp_path / 'nowhere')
  (tmp_path / 'config.json').write_text('{"a": 1}')
  with pytest.raises(ValueError, match=r'config\.json: '):
    posjax.experiment.load(str(tmp_path))


def sized(module, scheme, **changes):
  config = module.get_config()
  config.scheme = scheme
  if 'width' in config.model:
    small = {'width': 16, 'num_heads': 2, 'hidden_width': 8, 'word_width': 8, 'ff_width': 8}
    small |= {'char_width': 8, 'character_width': 4, 'character_heads': 2, 'num_layers': 2}
    for name, size in small.items():
      if name in config.model:
        config.model[name] = size
  config.update_from_flattened_dict({'batch_size': 4, **changes})
  return config


KINDS = {
  'language': (lambda: runs.small(**{'scheme': 't5|rope'}), 2),
  'algorithmic': (lambda: sized(algorithmic, 'randomized(max_length=99)+alibi(learned=True)'), 2),
  'classes': (lambda: sized(classification, 'complex_order+t5'), 2),
  'classes without attention': (
    lambda: sized(classification, 'learned(max_length=64)', **{'model.encoder': 'cnn'}),
    1,
  ),
  'translation': (
    lambda: sized(
      translation,
      'learned+t5',
      **{'model.cross_scheme': 'alibi(learned=True)', 'task.data': 'synthetic:reversed'},
    ),
    6,
  ),
  'recurrent translation': (lambda: sized(translation_recurrent, 'learned'), 2),
  'tags': (lambda: sized(tagging, 'tener|tener', **{'model.characters': 'transformer'}), 3),
  'trees': (lambda: sized(parsing, 'concatenated'), 2),
  'trees by letters': (
    lambda: sized(
      parsing,
      'factored',
      **{'model.encoder': 'transformer', 'model.characters': 'transformer'},
    ),
    3,
  ),
  'pairs': (lambda: sized(sentence_pairs, 'sinusoidal+gaussian'), 4),
  'pairs by ESIM': (
    lambda: sized(sentence_pairs, 'learned', **{'task.architecture': 'esim'}),
    1,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_of_model_is_loaded_with_all_that_its_schemes_have_learned(kind, tmp_path):
  make, count = KINDS[kind]
  config = make()
  prepared = run.setup(config, tmp_path)
  run.write_header(prepared)
  params = jax.tree.map(lambda x: x + 0.5, prepared.state.params)  # not as the seed makes them
  state = prepared.state._replace(params=params)
  choice = checkpoint.choose(config, evaluation.higher(prepared.task))
  with checkpoint.manager(tmp_path / workdirs.CHECKPOINTS, choice) as checkpoints:
    checkpoint.save(checkpoints, 1, state, prepared.data, None)
    checkpoint.wait(checkpoints)
  model, layers, found, _ = posjax.experiment.load(tmp_path)
  assert found.scheme == config.scheme
  expected = nnx.merge(prepared.graph, params, prepared.state.rest)
  chex.assert_trees_all_equal(nnx.state(model), nnx.state(expected))
  assert len(layers) == count, [layer.name for layer in layers]
  assert len({layer.name for layer in layers}) == count
  held = jax.tree.leaves([layer.params for layer in layers])
  np.testing.assert_array_equal(numbers(held), numbers(learned_leaves(expected)))
  for layer in layers:  # a scheme of a lone member, too, takes them as they are
    trained, fixed = posjax.split(layer.scheme, layer.params)
    merged = posjax.merge(trained, fixed)
    assert jax.tree.structure(merged) == jax.tree.structure(layer.params)


def test_what_is_loaded_shows_the_lines_of_schemes_and_no_addresses_of_functions():
  pattern = [posjax.get('rope+alibi'), posjax.get('learned(max_length=9)')]
  sizes = {'num_layers': 2, 'width': 8, 'num_heads': 2, 'ff_width': 8}
  model = Transformer(5, pattern, **sizes, rngs=nnx.Rngs(0))
  layers = loading.layers_of(model)
  assert repr(layers[0]) == (
    "Layer(name='stack.0.attention', scheme=rope+alibi, "
    "params=({}, {'slopes': ShapedArray(float32[2])}))"
  )
  task: Any = None  # nothing of it is shown
  loaded = loading.Loaded(model, layers, algorithmic.get_config(), task)
  count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
  assert f'model=Transformer with {count:,} parameters' in repr(loaded)
  for layer in layers:
    assert repr(layer) in repr(loaded)
  shown = repr(model)
  assert 'schemes=(rope+alibi, learned(max_length=9)),' in shown
  assert 'layer=Layer(scheme=rope+alibi, ' in shown
  ours = [line for line in shown.splitlines() if ' at 0x' in line]
  assert not [line for line in ours if 'promote_dtype' not in line and '=<' not in line]
