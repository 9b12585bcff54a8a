"""The complex Transformer-XL: attention as printed, exact memory, phases that begin anew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.layers.tokens import Tokens
from posjax.models.blocks import FeedForward
from posjax.models.complex_layers import Attention
from posjax.models.layer_sets import COMPLEX, is_complex
from posjax.models.recurrent import RecurrentTransformer
from posjax.scheme import Dims

V, T = 11, 12
TOKENS = jax.random.randint(jax.random.key(5), (2, T), 0, V)
ORDER, VANILLA = 'transformer_xl+complex_order', 'transformer_xl+complex_vanilla'


class OneText(RecurrentTransformer):
  """Phases that go on through a stream, so that segments are as one pass."""

  def _ids_to_embed(self, ids):
    return ids


def model(line, kind=RecurrentTransformer, **changes):
  arguments = {'num_layers': 2, 'width': 8, 'num_heads': 2, 'rngs': nnx.Rngs(0), **changes}
  return kind(V, posjax.get(line), **arguments)


def in_segments(made, length, size):
  graph, state = nnx.split(made)
  recur = jax.jit(lambda *args: nnx.merge(graph, state).recur(*args))
  past, said = made.init_past(2, size), []
  for at in range(0, T, length):
    logits, past = recur(TOKENS[:, at : at + length], at + jnp.arange(length), past)
    said.append(logits)
  return jnp.concatenate(said, axis=1), past


@pytest.mark.slow
@pytest.mark.parametrize(
  ('line', 'kind', 'window', 'segment', 'memory'),
  [
    (VANILLA, RecurrentTransformer, 5, 3, 4),  # it has no phases of positions
    (ORDER, OneText, 5, 4, 7),
    (ORDER, OneText, None, 6, 30),
  ],
)
def test_segments_with_memory_say_what_one_pass_says(line, kind, window, segment, memory):
  made = model(line, kind, window=window)
  said, past = in_segments(made, segment, memory)
  whole = nnx.jit(lambda m: m(TOKENS, jnp.arange(T)))(made)
  assert said.dtype == jnp.float32
  assert past.inputs[0].dtype == jnp.complex64
  assert abs(past.inputs[0].imag).max() > 0.1
  np.testing.assert_allclose(said, whole, atol=2e-5)


def test_phases_count_from_the_start_of_each_segment_and_what_is_remembered_keeps_its_own():
  made = model(ORDER)
  _, past = in_segments(made, 4, T)
  same = TOKENS.at[:, 4:8].set(TOKENS[:, :4])
  first, recur = made.init_past(2, T), jax.jit(lambda *args: made.recur(*args))
  for at in (0, 4):
    _, first = recur(same[:, at : at + 4], at + jnp.arange(4), first)
  embedded = first.inputs[0][0, :, -8:]  # of the first layer, tokens 0 .. 7
  np.testing.assert_allclose(embedded[:, :4], embedded[:, 4:], atol=1e-6)
  np.testing.assert_array_equal(past.pos[0], range(T))  # distances go on


def test_attention_is_that_of_the_paper_on_the_four_terms():
  """|(q + u) . conj(k) + (q + v) . W_R R| / sqrt(D), pair by pair in complex128."""
  scheme, dims = posjax.get(ORDER), Dims(6, 2, 3, 2, vocab=V)
  options = {'causal': True, 'model_places': True, 'rngs': nnx.Rngs(1)}
  layer = Attention(6, 2, scheme, model_params=False, **options)
  parts = jax.random.normal(jax.random.key(1), (2, 1, 5, 6))
  z = jax.lax.complex(*parts)
  shared = scheme.init_model(jax.random.key(2), dims)
  of = {name: 50 * shared[0][name] for name in 'uv'}  # as large as the rest
  shared = ({**shared[0], **of}, *shared[1:])
  layer.scheme_params['0']['w_r'][...] *= 50
  past = Tokens(z[:, :2], jnp.arange(2))
  call = jax.jit(lambda x, past: layer(x, jnp.arange(2, 5), past=past, model_params=shared))
  out = call(z[:, 2:], past)

  kernel = lambda name: sum(
    unit * np.asarray(getattr(getattr(layer, name), part).kernel[...], np.float64)
    for unit, part in ((1, 'real'), (1j, 'imag'))
  )
  of = {name: np.asarray(array, np.float64) for name, array in of.items()}
  w_r = np.asarray(layer.scheme_params['0']['w_r'][...], np.float64)
  x = np.asarray(z[0], np.complex128)
  q, k, v = (np.einsum('tm,mhd->thd', x, kernel(name)) for name in ('query', 'key', 'value'))
  mixed = np.zeros((3, 2, 3), np.complex128)
  for t in range(2, 5):
    for head in range(2):
      scores = []
      for s in range(t + 1):
        angle = (t - s) / 10_000.0 ** (np.arange(0, 6, 2) / 6)
        code = np.concatenate([np.sin(angle), np.cos(angle)]) @ w_r[:, head]
        term = (q[t, head] + of['u'][head]) @ k[s, head].conj() + (
          q[t, head] + of['v'][head]
        ) @ code
        scores.append(abs(term) / 3**0.5)
      weights = np.exp(scores)
      mixed[t - 2, head] = weights @ v[: t + 1, head] / weights.sum()
  expected = np.einsum('thd,hdm->tm', mixed, kernel('out'))
  np.testing.assert_allclose(out[0], expected, rtol=2e-5, atol=1e-5)


def test_token_by_token_through_the_cache_equals_one_pass():
  made = model(ORDER)
  graph, state = nnx.split(made)
  extend = jax.jit(lambda *args: nnx.merge(graph, state).extend(*args))
  ids, caches, said = made.ids(jnp.broadcast_to(jnp.arange(T), (2, T))), made.init_cache(2, T), []
  for start, stop in ((0, 6), *((i, i + 1) for i in range(6, T))):
    logits, caches = extend(TOKENS[:, start:stop], [ids[0][:, start:stop]], caches)
    said.append(logits)
  whole = nnx.jit(lambda m: m(TOKENS, jnp.arange(T)))(made)
  np.testing.assert_allclose(jnp.concatenate(said, axis=1), whole, atol=2e-5)


def test_frequencies_and_both_parts_of_every_projection_learn():
  graph, params, rest = nnx.split(model(ORDER), nnx.Param, ...)

  @jax.jit
  def gradient(params):
    made = lambda p: nnx.merge(graph, p, rest)
    loss = lambda p: (made(p).recur(TOKENS, jnp.arange(T), made(p).init_past(2, 3))[0] ** 2).mean()
    return jax.grad(loss)(params)

  for path, leaf in jax.tree.leaves_with_path(gradient(params)):
    assert np.isfinite(leaf).all(), path
    assert abs(leaf).max() > 0, path


def test_complex_schemes_are_known_by_what_they_embed():
  dims = Dims(8, 2, 4, 2, vocab=V)
  found = [
    is_complex(posjax.get(line), dims) for line in (ORDER, VANILLA, 'complex_order', 'sinusoidal')
  ]
  assert found == [True, True, True, False]


def test_what_complex_layers_cannot_do_is_said():
  with pytest.raises(ValueError, match="must be 'LayerNorm', but got 'RMSNorm'"):
    model(ORDER, norm='RMSNorm')
  with pytest.raises(ValueError, match='no gate, but got gated=True'):
    FeedForward(4, 8, 'relu', True, layer_set=COMPLEX, rngs=nnx.Rngs(0))


def test_layers_and_memory_are_real_where_embeddings_are():
  made = model('transformer_xl')
  past = made.init_past(2, 3)
  assert past.inputs[0].dtype == jnp.float32
  assert made.encode(TOKENS, jnp.arange(T)).dtype == jnp.float32
