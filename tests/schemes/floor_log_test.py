import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import floor_log
from tests.support.loops import attention, causal, content, error
from tests.support.rotations import heads, turned

attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def factors(pos, floor, scale, offset):
  """The formula of the models' code, in integers and Python's float64."""
  count = np.vectorize(lambda p: 1 + scale * math.log(1 + (int(p) + offset) // floor))
  return count(np.asarray(pos))


@pytest.mark.parametrize(
  ('floor', 'scale', 'offset'), [(8192, 0.1, 1), (16384, 0.3, 0), (3, 2.0, 3)]
)
def test_temperatures_are_the_formulas_at_every_id(floor, scale, offset):
  steps = np.array([1, 2, 1000, 2**30 // floor]) * floor
  near = [steps - offset - 1, steps - offset, steps - 1, steps]
  pos = np.r_[0, 1, 5, np.concatenate(near), 2**31 - 2, 2**31 - 1].clip(0).astype(np.int32)
  found = floor_log.temperature(jnp.asarray(pos), floor, scale, offset)
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, factors(pos, floor, scale, offset), rtol=3e-7)
  real = floor_log.temperature(jnp.asarray(pos[:5], jnp.float32), floor, scale, offset)
  np.testing.assert_allclose(real, found[:5], rtol=3e-7)


def test_llama_4_and_ministral_3_differ_in_where_the_first_step_is():
  llama_4 = floor_log.temperature(jnp.array([8190, 8191]), 8192)
  ministral_3 = floor_log.temperature(jnp.array([16383, 16384]), 16384, offset=0)
  for first in (llama_4, ministral_3):
    np.testing.assert_allclose(first, [1, 1.0693147], rtol=1e-7)


def test_attention_is_that_of_queries_times_the_temperature_after_rope():
  """The order of transformers' Ministral 3."""
  q, k, v, q_pos, k_pos = heads(8)
  line = 'rope(base=500.0)+floor_log(floor=300, scale=0.7, offset=0)'
  ids = {'q_pos': jnp.asarray(q_pos), 'k_pos': jnp.asarray(k_pos)}
  found = attend(*map(jnp.asarray, (q, k, v)), posjax.get(line), ({}, {}), causal=True, **ids)
  frequencies = [500.0 ** (-i / 4) for i in range(4)]
  q, k = turned(q, q_pos, frequencies), turned(k, k_pos, frequencies)
  q = q * factors(q_pos, 300, 0.7, 0)[..., None, None]
  assert factors(q_pos, 300, 0.7, 0).max() > 1.5
  assert error(found, attention(content(q, k), causal(q_pos, k_pos), v)[0]) < 1e-5


def test_nothing_changes_below_the_floor_nor_at_ids_below_zero():
  query = floor_log.scheme(floor=8192).query
  x = jax.random.normal(jax.random.key(0), (1, 5, 2, 4))
  for dtype in (jnp.int32, jnp.float32):
    pos = jnp.array([[-(2**20), -8192, -1, 0, 8190]], dtype)
    np.testing.assert_array_equal(query({}, x, pos), x)
  assert error(query({}, x, pos + 1), x) > 0.01


def test_bfloat16_queries_are_multiplied_in_float32():
  x = jnp.full((1, 1, 1, 3), 1.7, jnp.bfloat16)
  found = floor_log.scheme(floor=2).query({}, x, jnp.array([[2**20]]))
  exact = np.float64(x) * factors([[2**20]], 2, 0.1, 1)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found, jnp.asarray(exact, jnp.bfloat16))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'floor': 4, 'offset': 5}, r"Floor-log's offset must be in \[0, 4\], its floor, but got 5"),
  ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    floor_log.scheme(**arguments)


@pytest.mark.slow
def test_temperatures_are_those_of_ministral_3_in_transformers():
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  import torch
  from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

  pos = np.r_[0:9, 16383, 16384, 32767, 32768, 10**6, 2**24 - 1].astype(np.int32)
  for scale, floor in ((0.1, 16384), (0.7, 3)):
    theirs = get_llama_4_attn_scale(torch.tensor(pos)[None], scale, floor)
    found = floor_log.temperature(jnp.asarray(pos), floor, scale, offset=0)
    np.testing.assert_allclose(found, theirs.numpy()[0, 0, :, 0], rtol=3e-7)


@pytest.mark.slow
def test_queries_are_those_of_llama_4_in_transformers():
  """What its attention layer without RoPE hands to the softmax, for the same projections."""
  pytest.importorskip('transformers', reason='This compares with transformers and torch.')
  import torch
  from transformers import Llama4TextConfig
  from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
  from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

  handed = []

  def seeing(module, query, key, value, *args, **kwargs):
    handed.append((query, key))
    return value.repeat_interleave(2, dim=1).transpose(1, 2), None

  ALL_ATTENTION_FUNCTIONS.register('seeing', seeing)
  config = Llama4TextConfig(
    **{'hidden_size': 16, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 4},
    **{'num_hidden_layers': 1, 'no_rope_layers': [0], 'floor_scale': 7, 'attn_scale': 0.3},
    attn_implementation='seeing',
  )
  torch.manual_seed(0)
  layer, x = Llama4TextAttention(config, 0), torch.randn(2, 40, 16)
  with torch.no_grad():
    layer(x, position_embeddings=None, attention_mask=None)
    (query, key), before = handed[0], layer.q_proj(x).view(2, 40, 4, 4)
  scheme = floor_log.scheme(floor=7, scale=0.3)
  pos = jnp.broadcast_to(jnp.arange(40), (2, 40))
  found = scheme.query({}, jnp.asarray(before.numpy()), pos)
  assert error(found, query.transpose(1, 2).numpy()) < 1e-6
  assert error(found, before.numpy()) > 0.1
  np.testing.assert_array_equal(key.transpose(1, 2), layer.k_proj(x).view(2, 40, 2, 4).detach())
