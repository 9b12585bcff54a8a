"""Models of released sizes have the parameters that transformers gives them, and fit on a mesh."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh

from posjax.interop import reading, saving
from posjax.interop.planning import plan, whole_of
from posjax.models import axes
from posjax.models.pretrained import Making

_LLAMA3 = {
  **{'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0},
  'original_max_position_embeddings': 8192,
}
_YARN = {
  **{'rope_type': 'yarn', 'factor': 32.0, 'beta_fast': 32.0, 'beta_slow': 1.0, 'truncate': False},
  'original_max_position_embeddings': 4096,
}
# The fields of the published configurations that shape a model, and its parameters in all.
RELEASED = {
  'Llama 3.1 8B': (
    8_030_261_248,
    {
      **{'model_type': 'llama', 'hidden_size': 4096, 'intermediate_size': 14336},
      **{'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 8},
      **{'vocab_size': 128256, 'max_position_embeddings': 131072, 'rms_norm_eps': 1e-5},
      **{'rope_theta': 5e5, 'rope_scaling': _LLAMA3, 'tie_word_embeddings': False},
    },
  ),
  'Qwen 3 8B': (
    8_190_735_360,
    {
      **{'model_type': 'qwen3', 'hidden_size': 4096, 'intermediate_size': 12288},
      **{'num_hidden_layers': 36, 'num_attention_heads': 32, 'num_key_value_heads': 8},
      **{'head_dim': 128, 'vocab_size': 151936, 'max_position_embeddings': 40960},
      **{'rope_theta': 1e6, 'use_sliding_window': False, 'tie_word_embeddings': False},
    },
  ),
  'Gemma 3 4B, its text model': (
    3_880_263_168,
    {
      **{'model_type': 'gemma3_text', 'hidden_size': 2560, 'intermediate_size': 10240},
      **{'num_hidden_layers': 34, 'num_attention_heads': 8, 'num_key_value_heads': 4},
      **{'head_dim': 256, 'vocab_size': 262208, 'max_position_embeddings': 131072},
      **{'rope_theta': 1e6, 'rope_local_base_freq': 1e4, 'sliding_window': 1024},
      'rope_scaling': {'rope_type': 'linear', 'factor': 8.0},
    },
  ),
  'gpt-oss 20B': (
    20_914_757_184,
    {
      **{'model_type': 'gpt_oss', 'hidden_size': 2880, 'intermediate_size': 2880},
      **{'num_hidden_layers': 24, 'num_attention_heads': 64, 'num_key_value_heads': 8},
      **{'head_dim': 64, 'vocab_size': 201088, 'num_local_experts': 32, 'num_experts_per_tok': 4},
      **{'rope_theta': 150000, 'rope_scaling': _YARN, 'tie_word_embeddings': False},
    },
  ),
  'Phi-3.5 mini': (
    3_821_079_552,
    {
      **{'model_type': 'phi3', 'hidden_size': 3072, 'intermediate_size': 8192},
      **{'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 32},
      **{'vocab_size': 32064, 'max_position_embeddings': 131072, 'rope_theta': 1e4},
      **{'original_max_position_embeddings': 4096, 'tie_word_embeddings': False},
      'rope_scaling': {'type': 'longrope', 'short_factor': [1.0] * 48, 'long_factor': [2.0] * 48},
    },
  ),
}
MESH = AbstractMesh((1, 4, 2, 1), axes.AXES)


class Shapes:
  """Weights that are shapes alone, and a note of which were asked for."""

  def __init__(self, names):
    self.names, self.taken = names, {}

  def take(self, name, shape):
    self.taken[name] = shape
    return np.broadcast_to(np.zeros((), np.float16), shape)  # without memory of its own


@pytest.mark.slow
@pytest.mark.parametrize('name', RELEASED)
def test_a_released_model_has_the_parameters_of_transformers(name):
  torch = pytest.importorskip('torch', reason='This compares with transformers and torch.')
  transformers = pytest.importorskip('transformers', reason='This compares with transformers.')
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  count, config = RELEASED[name]
  planned = plan(whole_of(config), length=8192)
  model = nnx.eval_shape(
    lambda: planned.make(Making(jnp.bfloat16, jnp.bfloat16), None, nnx.Rngs(0))
  )
  parameters = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
  assert sum(math.prod(each.shape) for each in parameters.values()) == count
  bytes_each = 0
  for path, each in parameters.items():
    names = tuple(each.get_metadata().get('out_sharding') or ())
    spec = axes.spec(str(path), each.shape, names, MESH)
    parts = math.prod(MESH.shape[axis] for axis in spec if axis is not None)
    bytes_each += 2 * math.prod(each.shape) // parts
  print(f'{name}: {bytes_each / 2**30:.2f} GiB in bfloat16 on each of 8 devices')
  asked = Shapes(saving.New(planned, jnp.bfloat16).names)
  reading.leaves_of(planned, asked, asked.names)
  read = CONFIG_MAPPING[config['model_type']].from_dict(json.loads(json.dumps(config)))
  with torch.device('meta'):
    theirs = transformers.AutoModelForCausalLM.from_config(read)
  assert asked.taken == {path: tuple(each.shape) for path, each in theirs.named_parameters()}
