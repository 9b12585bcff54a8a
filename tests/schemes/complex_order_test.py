import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.complex_embeddings import modulus
from posjax.math.heads import product
from posjax.schemes import complex_vanilla
from posjax.schemes.complex_order import scheme
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('complex_order')
DIMS = posjax.Dims(width=6, num_heads=2, head_dim=3, vocab=7)
ANY = {'frequency': jnp.ones((7, 6))}  # attention does not read it
in_model = functools.partial(posjax.attend, model_places=True)  # the tests call `embed`
attend = jax.jit(in_model, static_argnums=3, static_argnames='causal')
embed = jax.jit(lambda scheme, *args: scheme.embed(*args), static_argnums=0)


def both(name):
  return GOLDEN[f'{name}_real'] + 1j * GOLDEN[f'{name}_imag']


def float32(*names):
  return (jnp.asarray(GOLDEN[name], jnp.float32) for name in names)


def complex_normal(*shape, seed=0):
  real, imag = np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32)
  return real + 1j * imag


# The embedding.


def test_it_is_eq_5_of_the_paper_at_any_ids():
  draw = np.random.default_rng(0)
  r, w, t = draw.normal(size=(3, 7, 5)).astype(np.float32)
  tokens, pos = draw.integers(0, 7, (2, 4)), draw.integers(-9, 999, (2, 4))
  expected = np.zeros((2, 4, 5), complex)
  for b, i, d in np.ndindex(expected.shape):
    j, p = tokens[b, i], int(pos[b, i]) + 3
    expected[b, i, d] = r[j, d] * np.exp(1j * (float(w[j, d]) * p + float(t[j, d])))
  params = {'frequency': jnp.asarray(w), 'phase': jnp.asarray(t)}
  how = scheme(phases=True, origin=3)
  found = embed(how, params, jnp.asarray(r[tokens]), jnp.asarray(tokens), jnp.asarray(pos))
  assert error(found, expected) <= 1e-6


@pytest.mark.parametrize(
  ('name', 'arguments', 'used'),
  [
    ('paper_emb', {'phases': True}, np.s_[:]),
    ('paper_emb_theta0', {}, np.s_[:]),
    ('paper_emb_wordshare', {'per_word': False}, np.s_[:1]),
    ('paper_emb_dimshare', {'per_dimension': False}, np.s_[:, :1]),
  ],
)
def test_it_equals_appendix_c_in_float64_with_each_way_of_sharing(name, arguments, used):
  amplitude, frequency, initial = float32('paper_amp', 'paper_omega', 'paper_theta')
  tokens = jnp.asarray(GOLDEN['paper_tokens'])
  params = {'frequency': frequency[used], 'phase': initial}
  found = embed(scheme(**arguments), params, amplitude[tokens], tokens, jnp.arange(6))
  assert error(found, GOLDEN[name]) <= 1e-6


def test_it_equals_the_authors_classifier_that_counts_from_1_and_padding_as_0():
  amplitude, frequency = float32('tf_amp', 'tf_order_phase_or_freq_table')
  words, ids = jnp.asarray(GOLDEN['tf_words']), jnp.asarray(GOLDEN['tf_positions'] - 1)
  found = embed(scheme(), {'frequency': frequency}, amplitude[words], words, ids)
  assert error(found, both('tf_order_emb')) <= 1e-6


def test_it_equals_the_authors_transformer_that_counts_from_the_end():
  amplitude, frequency = float32('tcmodel_order_amp_table', 'tcmodel_order_freq_table')
  tokens = jnp.asarray(GOLDEN['tcmodel_order_tokens_time_major'].T)
  ids = jnp.arange(tokens.shape[1])[::-1]
  found = embed(scheme(origin=0), {'frequency': frequency}, amplitude[tokens], tokens, ids)
  assert error(found, both('tcmodel_order_emb')) <= 1e-6


@pytest.mark.parametrize(('name', 'per_dimension'), [('lmschema0', True), ('lmschema1', False)])
def test_it_equals_the_authors_language_model(name, per_dimension):
  amplitude, frequency = float32(f'{name}_amp_table_unscaled', f'{name}_freq')
  tokens = jnp.asarray(GOLDEN[f'{name}_tokens_time_major'].T)
  how, x = scheme(per_dimension=per_dimension), amplitude[tokens] * 8**0.5
  found = embed(how, {'frequency': frequency}, x, tokens, jnp.arange(tokens.shape[1]))
  assert error(found, both(f'{name}_emb').swapaxes(0, 1)) <= 1e-6


# The attention.


@pytest.mark.parametrize('conjugate', [True, False])
@pytest.mark.parametrize(('queries', 'keys', 'heads', 'kv_heads'), [(5, 5, 3, 3), (2, 7, 4, 2)])
def test_attention_takes_the_modulus_of_eq_14(queries, keys, heads, kv_heads, conjugate):
  q = complex_normal(2, queries, heads, 5)
  k, v = complex_normal(2, 2, keys, kv_heads, 5, seed=1)
  pos = jnp.arange(keys)
  out = attend(
    q, k, v, scheme(conjugate=conjugate), ANY, q_pos=pos[-queries:], k_pos=pos, causal=True
  )
  z = loops.content(q, k if conjugate else k.conj(), scale=1.0)
  scores = np.sqrt((z.real**2 + z.imag**2) / 5)
  expected, _ = loops.attention(
    scores, loops.causal(np.asarray(pos)[None, -queries:], np.asarray(pos)[None]), v
  )
  assert error(out, expected) <= 1e-5


@pytest.mark.parametrize(('conjugate', 'name'), [(True, 'hermitian'), (False, 'noconj')])
def test_weights_are_the_softmax_of_the_papers_score(conjugate, name):
  w = [jnp.asarray(GOLDEN[f'score_W{n}'], jnp.complex64) for n in 'qk']
  q, k = (jnp.asarray(GOLDEN['paper_emb'], jnp.complex64) @ w for w in w)
  v = jnp.tile(jnp.eye(6), (2, 1, 1))[:, :, None]
  ids, how = jnp.arange(6), scheme(conjugate=conjugate)
  weights = attend(q[:, :, None], k[:, :, None], v, how, ANY, q_pos=ids, k_pos=ids)[:, :, 0]
  score = GOLDEN[f'score_{name}_abs_over_sqrtn']
  expected = np.exp(score - score.max(-1, keepdims=True))
  assert error(weights, expected / expected.sum(-1, keepdims=True)) <= 1e-5


def test_it_equals_the_authors_attention_with_its_gradients():
  names = ['q', 'k', 'v', 'o']
  weights = {n: tuple(float32(f'tcattn0_W{n}', f'tcattn0_b{n}')) for n in names}
  parts = tuple(float32('tcattn0_x_real', 'tcattn0_x_imag'))
  real, imag = float32('tcattn0_cot_real', 'tcattn0_cot_imag')
  mask = jnp.asarray(GOLDEN['tcattn0_mask_true_keep'])[:, None]
  pos = jnp.arange(5)

  def layer(parts, weights):
    def project(parts, w, b):  # the same weights and bias for both parts
      return [x @ w.T + b[None, None] for x in parts]

    heads = (jax.lax.complex(*project(parts, *weights[n])).reshape(2, 5, 2, 4) for n in 'qkv')
    how = scheme(conjugate=False)
    out = in_model(*heads, how, ANY, q_pos=pos, k_pos=pos, mask=mask).reshape(2, 5, 8)
    return project((out.real, out.imag), *weights['o'])

  out = jax.jit(layer)(parts, weights)
  assert error(jax.lax.complex(*out), both('tcattn0_out')) <= 1e-5
  loss = lambda *inputs: sum(
    (o * c).sum() for o, c in zip(layer(*inputs), (real, imag), strict=True)
  )
  x_grads, grads = jax.jit(jax.grad(loss, argnums=(0, 1)))(parts, weights)
  assert error(jax.lax.complex(*x_grads), both('tcattn0_grad_x')) <= 1e-5
  for n in names:
    assert error(grads[n][0], GOLDEN[f'tcattn0_gradW{n}']) <= 1e-5


def test_logits_that_are_zero_have_finite_gradients():
  q = jnp.zeros((1, 3, 1, 2), jnp.complex64)
  loss = lambda q: jnp.abs(attend(q, q, q + 1, scheme(), ANY, q_pos=ids, k_pos=ids)).sum()
  ids = jnp.arange(3)
  assert jnp.isfinite(jax.grad(loss)(q)).all()
  logits = jnp.zeros((1, 1, 3, 3), jnp.complex64).at[0, 0, 1, 2].set(3 - 4j)
  grad = jax.grad(lambda z: modulus({}, z, q, q, None, None).sum())(logits)
  expected = np.zeros((1, 1, 3, 3), complex)
  expected[0, 0, 1, 2] = 0.6 + 0.8j  # JAX's gradient of a real function is the conjugate
  np.testing.assert_allclose(grad, expected, atol=1e-6)


def test_scores_of_equal_words_depend_on_the_distance_only_where_they_share_frequencies(key):
  r = jax.random.normal(key, (7, 6))
  tokens = jnp.array([[3, 1, 4, 1, 5]])

  def scores(how, shift):
    params = how.init_model(key, DIMS)
    params = {n: p + 0.1 * jax.random.uniform(key, p.shape) for n, p in params.items()}
    q = embed(how, params, r[tokens], tokens, jnp.arange(5) + shift)[:, :, None]
    return abs(np.asarray(product(q, q)))

  shared = scheme(per_word=False)
  assert error(scores(shared, 1000), scores(shared, 0)) <= 1e-5
  assert error(scores(scheme(), 1000), scores(scheme(), 0)) > 1e-2


def test_frequencies_of_zero_are_complex_vanilla_and_without_phases_real_attention(key):
  how = scheme(phases=True)
  params = how.init_model(key, DIMS)
  params['frequency'] = jnp.zeros_like(params['frequency'])
  x, tokens, ids = jax.random.normal(key, (1, 4, 6)), jnp.array([[0, 6, 2, 2]]), jnp.arange(4)
  vanilla = embed(complex_vanilla.scheme(), {'phase': params['phase']}, x, tokens, ids)
  np.testing.assert_array_equal(embed(how, params, x, tokens, ids), vanilla)
  real = embed(scheme(), params, x, tokens, ids)
  np.testing.assert_array_equal(real, x)
  heads = real.reshape(1, 4, 2, 3)
  out = attend(heads, heads, heads, scheme(), ANY, q_pos=ids, k_pos=ids)
  wide = np.asarray(x, np.float64).reshape(1, 4, 2, 3)
  expected, _ = loops.attention(abs(loops.content(wide, wide)), np.ones((1, 1, 4, 4), bool), wide)
  assert error(out, expected.astype(complex)) <= 1e-5


# Parameters and arguments.


def test_words_and_dimensions_share_as_many_numbers_as_section_3_1_counts(key):
  size = lambda **how: sum(x.size for x in jax.tree.leaves(scheme(**how).init_model(key, DIMS)))
  assert size() == 7 * 6
  assert size(phases=True) == 2 * 7 * 6
  assert size(per_word=False) == 6
  assert size(per_dimension=False) == 7
  assert size(per_word=False, per_dimension=False) == 1


def test_initial_frequencies_of_words_lie_in_the_range_of_the_sinusoid(key):
  how, dims = scheme(base=100.0, per_dimension=False, phases=True), DIMS._replace(vocab=5000)
  params = how.init_model(key, dims)
  logs = np.log(np.asarray(params['frequency'])) / np.log(100)
  assert -1 <= logs.min() < -0.99
  assert -0.01 < logs.max() <= 0
  assert abs(logs.mean() + 0.5) < 0.02
  assert abs(params['phase']).max() <= np.float32(np.pi)
  assert abs(np.exp(1j * np.asarray(params['phase'])).mean()) < 0.05


def test_a_word_beyond_the_vocabulary_is_nan(key):
  params = scheme().init_model(key, DIMS)
  found = embed(scheme(), params, jnp.ones((1, 3, 6)), jnp.array([[6, 7, -1]]), jnp.arange(3))
  np.testing.assert_array_equal(jnp.isnan(found).all(-1), [[0, 1, 1]])


def test_bfloat16_embeddings_become_complex64(key):
  x, tokens, ids = jnp.ones((1, 3, 6)), jnp.array([[1, 2, 3]]), jnp.arange(3) + 131_000
  params = scheme().init_model(key, DIMS)
  found = embed(scheme(), params, x.astype(jnp.bfloat16), tokens, ids)
  assert found.dtype == jnp.complex64
  np.testing.assert_array_equal(found, embed(scheme(), params, x, tokens, ids))


def test_errors_say_what_is_wrong(key, unchecked):
  params, x, ids = scheme().init_model(key, DIMS), jnp.ones((1, 3, 6)), jnp.arange(3)
  with pytest.raises(ValueError, match='needs the tokens, but got None'):
    scheme().embed(params, x, None, ids)
  unknown = scheme().init_model(key, DIMS._replace(vocab=0))
  with pytest.raises(ValueError, match=r'needs Dims\(vocab=...\), but got 0 words'):
    scheme().embed(unknown, x, jnp.zeros((1, 3), jnp.int32), ids)
  with pytest.raises(TypeError, match='integers, float32 or float64, but got bfloat16'):
    scheme(per_word=False).embed(params, x, None, ids.astype(jnp.bfloat16))
