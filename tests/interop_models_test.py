"""Layers of transformers' models, loaded into those of posjax, give the same outputs."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from posjax import interop
from posjax.interop.checkpoint import shapes_of
from posjax.interop.families import FAMILIES
from posjax.linen import Attention
from tests import hugging_face
from tests.hugging_face import CASES
from tests.loops import error

GOLDEN = np.load(Path(__file__).parent / 'golden' / 'interop_layers.npz')
STORED = json.loads(str(GOLDEN['layers']))


def outputs(config, weights, layer):
  """The answer of a layer of posjax to what a layer of transformers was given."""
  part, index = layer.part, layer.index
  attention = Attention(**interop.layer(config, index, part=part).arguments())
  params = interop.load_attention(config, index, weights, part=part)
  x, x_kv = jnp.asarray(layer.x), jnp.asarray(layer.x_kv)
  other = {'x_kv': x_kv, 'kv_pos': jnp.arange(x_kv.shape[1])} if part == 'cross' else {}
  return attention.apply({'params': params}, x, jnp.arange(x.shape[1]), **other)


@pytest.mark.parametrize('name', STORED)
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
    for layer in hugging_face.recorded(kind, model, config):
      assert error(outputs(config, weights, layer), layer.y) < 1e-5, (layer.part, layer.index)


def test_every_family_that_is_read_has_a_small_model():
  assert set(CASES) == set(FAMILIES)
