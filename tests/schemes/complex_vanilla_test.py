import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes.complex_vanilla import scheme
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('complex_vanilla')
DIMS = posjax.Dims(width=6, num_heads=2, head_dim=3, vocab=7)
attend = jax.jit(functools.partial(posjax.attend, model_places=True), static_argnums=3)


def float32(name):
  return jnp.asarray(GOLDEN[name], jnp.float32)


def test_each_number_of_a_word_has_a_phase_of_its_own_as_in_the_papers_baseline():
  tokens = jnp.asarray(GOLDEN['paper_tokens'])
  params = {'phase': float32('paper_omega')}
  found = scheme().embed(params, float32('paper_amp')[tokens], tokens, jnp.arange(6))
  assert error(found, GOLDEN['paper_emb_vanilla']) <= 1e-6


def test_it_equals_the_authors_classifier():
  words = jnp.asarray(GOLDEN['tf_words'])
  params = {'phase': float32('tf_vanilla_phase_or_freq_table')}
  found = scheme().embed(params, float32('tf_amp')[words], words, jnp.arange(7))
  expected = GOLDEN['tf_vanilla_emb_real'] + 1j * GOLDEN['tf_vanilla_emb_imag']
  assert error(found, expected) <= 1e-6


def test_it_knows_no_positions(key):
  """The order of the tokens only permutes what each gets; ids do nothing."""
  params = scheme().init_model(key, DIMS)
  x, tokens, ids = jax.random.normal(key, (1, 5, 6)), jnp.array([[3, 1, 4, 1, 5]]), jnp.arange(5)
  order = jnp.array([4, 2, 0, 1, 3])

  def out(x, tokens, ids):
    heads = scheme().embed(params, x, tokens, ids).reshape(1, 5, 2, 3)
    return attend(heads, heads, heads, scheme(), params, q_pos=ids, k_pos=ids)

  whole = out(x, tokens, ids)
  np.testing.assert_array_equal(out(x, tokens, 7 * ids + 3), whole)
  assert error(out(x[:, order], tokens[:, order], ids), whole[:, order]) <= 1e-6


@pytest.mark.parametrize('conjugate', [True, False])
def test_attention_takes_the_modulus_of_the_complex_product(key, conjugate):
  real, imag = np.random.default_rng(0).normal(size=(2, 3, 2, 4, 2, 3)).astype(np.float32)
  q, k, v = real + 1j * imag
  ids, how = jnp.arange(4), scheme(conjugate=conjugate)
  out = attend(q, k, v, how, how.init_model(key, DIMS), q_pos=ids, k_pos=ids)
  scores = abs(loops.content(q, k if conjugate else k.conj()))
  expected, _ = loops.attention(scores, np.ones((1, 1, 4, 4), bool), v)
  assert error(out, expected) <= 1e-5


def test_initial_phases_are_uniform_on_the_circle(key):
  initial = np.asarray(scheme().init_model(key, DIMS._replace(vocab=2000))['phase'])
  assert initial.shape == (2000, 6)
  assert initial.dtype == np.float32
  assert abs(initial).max() <= np.float32(np.pi)
  np.testing.assert_allclose(np.histogram(initial, 4, (-np.pi, np.pi))[0], 3000, rtol=0.06)


def test_no_layer_has_parameters(key):
  assert scheme().init(key, DIMS) == {}


def test_errors_say_what_is_wrong(key):
  x, ids = jnp.ones((1, 3, 6)), jnp.arange(3)
  with pytest.raises(ValueError, match='needs the tokens, but got None'):
    scheme().embed(scheme().init_model(key, DIMS), x, None, ids)
  unknown = scheme().init_model(key, DIMS._replace(vocab=0))
  with pytest.raises(ValueError, match=r'needs Dims\(vocab=...\), but got 0 words'):
    scheme().embed(unknown, x, jnp.zeros((1, 3), jnp.int32), ids)
