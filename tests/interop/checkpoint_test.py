import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax import interop
from posjax.schemes import alibi, rope
from tests.support.loops import attention, content, error
from tests.support.paths import GOLDEN

FOLDER = GOLDEN
GOLDEN = np.load(FOLDER / 'interop.npz')


@pytest.mark.parametrize(
  ('config', 'arguments', 'line'),
  [
    ({'model_type': 'bloom'}, {}, 'alibi'),
    ({'model_type': 'mpt', 'attn_config': {'alibi': True, 'alibi_bias_max': 8}}, {}, 'alibi'),
    ({'model_type': 't5'}, {}, 't5'),
    (
      {'model_type': 'mt5', 'relative_attention_num_buckets': 8},
      {'bidirectional': True},
      't5(num_buckets=8, bidirectional=True)',
    ),
    ({'model_type': 'umt5', 'relative_attention_max_distance': 50}, {}, 't5(32, 50, shared=False)'),
    ({'model_type': 'gpt2', 'n_positions': 24}, {}, 'learned(max_length=24)'),
    ({'model_type': 'bert', 'max_position_embeddings': 24}, {}, 'learned(max_length=24)'),
    # Tables that begin with rows of padding.
    (
      {'model_type': 'roberta', 'max_position_embeddings': 26, 'pad_token_id': 1},
      {},
      'learned(max_length=24)',
    ),
    ({'model_type': 'opt', 'max_position_embeddings': 24}, {}, 'learned(max_length=24)'),
    (
      {
        **{'model_type': 'bert', 'max_position_embeddings': 8},
        'position_embedding_type': 'relative_key',
      },
      {},
      'shaw(max_distance=7, values=False)',
    ),
    (
      {'model_type': 'wav2vec2-bert', 'left_max_position_embeddings': 5},
      {},
      'shaw(max_distance=8, values=False)',
    ),
    # As of microsoft/deberta-v3-base and microsoft/deberta-base, but smaller.
    (
      {
        **{'model_type': 'deberta-v2', 'relative_attention': True, 'position_buckets': 4},
        **{'norm_rel_ebd': 'layer_norm', 'share_att_key': True, 'pos_att_type': 'p2c|c2p'},
        **{'max_position_embeddings': 9, 'max_relative_positions': -1},
        'position_biased_input': False,
      },
      {},
      'deberta(max_distance=9, buckets=4, normalized=True)',
    ),
    (
      {
        **{'model_type': 'deberta', 'relative_attention': True, 'pos_att_type': ['c2p']},
        **{'max_position_embeddings': 24, 'max_relative_positions': 9},
      },
      {},
      'learned(max_length=24)+deberta(max_distance=9, p2c=False)',
    ),
    ({'model_type': 'deberta', 'max_position_embeddings': 24}, {}, 'learned(max_length=24)'),
    (
      {'model_type': 'deberta-v2', 'relative_attention': True, 'position_biased_input': False},
      {},
      'none',
    ),
  ],
)
def test_a_configuration_is_this_line(config, arguments, line):
  made, expected = interop.from_hf(config, **arguments), posjax.get(line)
  assert posjax.places(made) == posjax.places(expected)
  answers = [_attended(scheme) for scheme in (made, expected)]
  np.testing.assert_array_equal(*answers)


def _attended(scheme):
  """Attention of random tokens, with the scheme's first parameters."""
  params = posjax.init(scheme, jax.random.key(1), posjax.Dims(8, 2, 4))
  x, pos = jax.random.normal(jax.random.key(0), (1, 5, 8)), jnp.array([[0, 1, 2, 5, 23]])
  heads = scheme.embed(params, x, None, pos).reshape(1, 5, 2, 4)
  params, at = posjax.prepare(scheme, params, x, pos)
  side = {'q_pos': pos, 'k_pos': pos, 'q_at': at, 'k_at': at}
  return posjax.attend(heads, heads, heads, scheme, params, model_places=True, **side)


def test_falcons_biases_are_scaled_as_its_logits(key):
  q, k, v = jax.random.normal(key, (3, 1, 5, 6, 16))
  scheme, pos = interop.from_hf({'model_type': 'falcon', 'alibi': True}), jnp.arange(5)[None]
  params = posjax.init(scheme, key, posjax.Dims(96, 6, 16))
  assert scheme.traits.fixed == ('slopes',)
  out = posjax.attend(q, k, v, scheme, params, q_pos=pos, k_pos=pos, causal=True)
  logits = content(*map(np.asarray, (q, k)), scale=1)
  logits += alibi.slopes(6)[:, None, None] * np.arange(5)  # theirs goes by the key alone
  expected, _ = attention(logits / 4, np.tri(5, dtype=bool), np.asarray(v))
  assert error(out, expected) < 1e-5


def test_relative_keys_with_the_checkpoints_weights_are_hugging_faces():
  config = {
    **{'model_type': 'wav2vec2-bert', 'position_embeddings_type': 'relative_key'},
    **{'left_max_position_embeddings': 5, 'right_max_position_embeddings': 3},
  }
  x, pos = jnp.asarray(GOLDEN['x']), jnp.arange(12)

  def project(name):
    weight, bias = (jnp.asarray(GOLDEN[f'linear_{name}.{part}']) for part in ('weight', 'bias'))
    heads = jnp.einsum('btm,mhd->bthd', x, interop.kernel(weight, 2))
    return heads + interop.kernel(bias, 2)[None, None]

  table = jnp.asarray(GOLDEN['distance_embedding.weight'])
  params = {'keys': interop.relative_keys(table, config)}
  q, k, v = map(project, 'qkv')
  out = posjax.attend(q, k, v, interop.from_hf(config), params, q_pos=pos, k_pos=pos)
  out = (
    out.reshape(2, 12, 16) @ GOLDEN['linear_out.weight'].T + GOLDEN['linear_out.bias'][None, None]
  )
  assert error(out, GOLDEN['out']) < 1e-5


def test_berts_relative_keys_go_by_the_distance_back(key):
  config = {
    **{'model_type': 'bert', 'max_position_embeddings': 6},
    'position_embedding_type': 'relative_key',
  }
  q, k, v = jax.random.normal(key, (3, 1, 6, 2, 4))
  table, pos = jax.random.normal(key, (11, 4)), jnp.arange(6)
  params = {'keys': interop.relative_keys(table, config)}
  out = posjax.attend(q, k, v, interop.from_hf(config), params, q_pos=pos, k_pos=pos)
  q, k, v, table = (np.asarray(each, np.float64) for each in (q, k, v, table))
  logits = content(q, k)
  for h, t, s in np.ndindex(2, 6, 6):
    logits[0, h, t, s] += q[0, t, h] @ table[t - s + 5] / 2
  assert error(out, attention(logits, np.array(True), v)[0]) < 1e-5


@pytest.mark.parametrize('shape', [(12, 5), (12,)])
def test_kernels_and_weights_undo_each_other(shape):
  theirs = jnp.arange(float(np.prod(shape))).reshape(shape)
  ours = interop.kernel(theirs, 3)
  assert ours.shape == (*shape[1:], 3, 4)
  np.testing.assert_array_equal(interop.weight(ours), theirs)
  # Head 1, number 2, is row 1 * 4 + 2.
  np.testing.assert_array_equal(ours[..., 1, 2], theirs[6])


def test_either_layouts_weights_become_the_others():
  arrays = np.load(FOLDER / 'rope.npz')
  heads, length, width = arrays['q'].shape[1:]
  pos = jnp.asarray(arrays['position_ids'][:1], jnp.int32)
  # A projection of one-hot tokens into their queries, as torch holds it.
  weight = jnp.asarray(arrays['q'][0].swapaxes(1, 2).reshape(heads * width, length))
  split = interop.kernel(weight, heads)
  pairs = rope.to_interleaved(split)
  np.testing.assert_array_equal(interop.weight(rope.to_split(pairs)), weight)
  llama, gptj = (
    interop.from_hf({'model_type': kind, 'rope_theta': 10000, **more})
    for kind, more in (('llama', {}), ('gptj', {'rotary_dim': None}))
  )
  expected = arrays['q_half'][:1].swapaxes(1, 2)
  assert error(llama.query({}, split[None], pos), expected) < 1e-6
  assert error(rope.to_split(gptj.query({}, pairs[None], pos)), expected) < 1e-6
  # Weights of an interleaved model as they are, in its own layout.
  expected = arrays['q_interleaved'][:1].swapaxes(1, 2)
  assert error(gptj.query({}, split[None], pos), expected) < 1e-6


@pytest.mark.parametrize(
  ('config', 'message'),
  [
    ({'model_type': 'llava', 'text_config': {}}, r"its positions are in config\['text_config'\]"),
    (
      {'model_type': 'bert', 'position_embedding_type': 'relative_key_query'},
      "position_embedding_type of bert is not supported, but got 'relative_key_query'",
    ),
    (
      {'model_type': 'wav2vec2-bert', 'position_embeddings_type': 'rotary'},
      "position_embeddings_type of wav2vec2-bert is not supported, but got 'rotary'",
    ),
    ({'model_type': 'gpt2'}, 'A learned table needs n_positions or max_position_embeddings'),
    (
      {'model_type': 'mpt', 'attn_config': {'alibi': False}},
      "MPT's attn_config must have ALiBi with alibi_bias_max 8, but got {'alibi': False}",
    ),
    (
      {
        **{'model_type': 'deberta-v2', 'relative_attention': True, 'pos_att_type': 'p2p'},
        'position_biased_input': False,
      },
      "pos_att_type may hold c2p and p2c, but got {'p2p'}",
    ),
  ],
)
def test_what_is_not_known_is_refused_by_name(config, message):
  with pytest.raises(ValueError, match=message):
    interop.from_hf(config)


def test_heads_that_do_not_divide_the_rows_are_refused():
  with pytest.raises(ValueError, match='5 heads must divide the rows, but got 12'):
    interop.kernel(jnp.zeros((12, 3)), 5)
