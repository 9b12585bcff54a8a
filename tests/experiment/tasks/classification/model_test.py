"""Classifiers of texts: padding changes nothing, order matters where it should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.experiment.tasks.classification.model import Classifier
from posjax.models import encoders
from posjax.models.layer_sets import is_complex
from posjax.scheme import Dims
from tests.models.text_made import jitted, moved, normal
from tests.support.loops import error

ENCODERS = tuple(name for name in encoders.names() if name != 'partitioned')  # that one is real
INPUTS = ('none', 'learned', 'sinusoidal', 'complex_vanilla', 'complex_order')
SIZES = {
  'width': 8,
  'hidden_width': 6,
  'num_layers': 1,
  'num_heads': 2,
  'kernel_sizes': (2, 4),
  'bidirectional': False,
  'pooling': 'mean',
  'pre_norm': True,
  'activation': 'gelu',
  'dropout_rate': 0.0,
}


def classifier(scheme, **changes):
  schemes = [posjax.get(line) for line in scheme.split('|')]
  return moved(Classifier(11, 3, schemes, rngs=nnx.Rngs(0), **{**SIZES, **changes}))


def padded(rows, width):
  """Rows of words, with other words, positions without a row in any table, in the padding."""
  tokens = np.random.default_rng(3).integers(0, 11, (len(rows), width)).astype(np.int32)
  pos, segments = np.full(tokens.shape, 10_000, np.int32), np.zeros_like(tokens)
  for i, row in enumerate(rows):
    tokens[i, : len(row)], pos[i, : len(row)], segments[i, : len(row)] = row, range(len(row)), 1
  return tuple(map(jnp.asarray, (tokens, pos, segments)))


def values_and_gradients(model, dtype='float32'):
  """`(row, tokens, pos, segments) -> (logits of the row, gradients of the parameters)`."""
  graph, params = nnx.split(model)

  def loss(params, row, tokens, pos, segments):
    logits = nnx.merge(graph, params)(tokens, pos, segments=segments)[row]
    return (logits * normal(3, seed=5)).sum(), logits

  run = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)

  def both(*inputs):
    with jax.enable_x64(dtype == 'float64'):
      gradients, logits = run(jax.tree.map(lambda x: x.astype(dtype), params), *inputs)
    assert {leaf.dtype for leaf in (logits, *jax.tree.leaves(gradients))} == {np.dtype(dtype)}
    return np.asarray(logits), list(map(np.asarray, jax.tree.leaves(gradients)))

  return both


CASES = [(name, scheme, {}) for name in ENCODERS for scheme in INPUTS]
CASES += [('transformer', scheme, {}) for scheme in ('rope', 'sinusoidal|alibi(learned=True)')]
CASES += [
  ('partitioned', scheme, {}) for scheme in ('concatenated', 'concatenated+alibi(learned=True)')
]
CASES += [
  (name, scheme, {'bidirectional': True, 'num_layers': 2, 'pooling': kind})
  for name, kind in (('rnn', 'mean'), ('lstm', 'last'), ('gru', 'max'))
  for scheme in ('sinusoidal', 'complex_order')
]
CASES += [('lstm', 'complex_order', {'pooling': 'last'})]


def costly(case):
  """All cases cost a minute of a processor: two encoders with both kinds of numbers always."""
  encoder, scheme, changes = case
  often = encoder in ('cnn', 'lstm') and scheme in ('sinusoidal', 'complex_order') and not changes
  return pytest.param(*case, marks=() if often else pytest.mark.slow)


@pytest.mark.parametrize(
  ('encoder', 'scheme', 'changes'),
  [costly(case) for case in CASES],
  ids=[f'{e}-{s}-{len(c)}' for e, s, c in CASES],
)
def test_a_text_alone_is_the_text_in_a_padded_batch_with_its_gradients(encoder, scheme, changes):
  if '|' in scheme:
    changes = {**changes, 'num_layers': 2}
  compare(values_and_gradients(classifier(scheme, encoder=encoder, **changes)), 1e-6)


@pytest.mark.slow
def test_so_it_is_in_two_complex_layers_with_norms_after_them():
  """In float64: norms after each part enlarge what is rounded off, here to 1e-6 in float32."""
  changes = {'pooling': 'last', 'pre_norm': False, 'num_layers': 2}
  model = classifier('complex_order', encoder='transformer', **changes)
  alone = compare(values_and_gradients(model, 'float64'), 1e-14)
  tokens, pos, segments = padded(ROWS, 6)
  assert error(jitted(model)(tokens, pos, segments=segments)[1], alone) <= 1e-6


ROWS = [[1, 6, 8, 2, 5], [3, 9, 2], []]  # the second is shorter than one of the kernels


def compare(both, tolerance):
  """Compares the second row alone with itself in the batch, and returns its logits."""
  alone, gradients = both(0, *padded(ROWS[1:2], 3))
  found, same = both(1, *padded(ROWS, 6))
  assert error(found, alone) <= tolerance
  for one, other in zip(same, gradients, strict=True):
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1, abs(other).max()))
  assert all(np.abs(one).max() > 0 for one in gradients)
  return alone


@pytest.mark.parametrize('encoder', ENCODERS)
def test_order_matters_where_it_should(encoder):
  swapped = padded([[3, 9, 2, 5, 7], [3, 2, 9, 5, 7]], 5)
  for scheme, knows in (
    ('none', encoder not in ('fasttext', 'transformer')),
    ('complex_order', True),
  ):
    logits = jitted(classifier(scheme, encoder=encoder))(*swapped[:2], segments=swapped[2])
    difference = abs(logits[0] - logits[1]).max()
    assert difference > 1e-3 if knows else difference < 1e-6


def test_numbers_are_complex_where_the_scheme_makes_them_so():
  dims = Dims(8, 2, 4, 2, vocab=11)
  found = {name: is_complex(posjax.get(name), dims) for name in (*INPUTS, 'rope')}
  assert {name for name, yes in found.items() if yes} == {
    'complex_vanilla',
    'complex_order',
  }
  features = {name: classifier(name, encoder='cnn').readout.in_features for name in INPUTS}
  assert features == {name: 24 if found[name] else 12 for name in INPUTS}


@pytest.mark.parametrize(
  ('scheme', 'changes', 'message'),
  [
    (
      'none',
      {'encoder': 'bert'},
      "Unknown encoder 'bert'. There are: cnn, fasttext, .*transformer",
    ),
    ('none', {'encoder': 'transformr'}, "'transformr'; did you mean 'transformer'"),
    ('none', {'encoder': 'cnn', 'filters': 3}, 'options of encoders are .* but got filters'),
    ('none', {'encoder': 'cnn', 'bidirectional': True}, "bidirectional is for .* is 'cnn'"),
    ('none', {'encoder': 'cnn', 'kernel_sizes': ()}, r'kernel_sizes must be .* got \(\)'),
    ('none', {'encoder': 'lstm', 'pooling': 'sum'}, "pooling must be one of 'mean', .* got 'sum'"),
    ('none', {'encoder': 'lstm', 'pooling': 'men'}, r"but got 'men'; did you mean 'mean'\?"),
    ('none', {'encoder': 'lstm', 'num_layers': 0}, 'num_layers must be at least 1, but got 0'),
    ('none', {'encoder': 'fasttext', 'activation': 'x'}, "name in jax.nn, but got 'x'"),
    ('rope', {'encoder': 'lstm'}, "'lstm' has no attention, and would lose .* in query, key"),
    ('sinusoidal+rope', {'encoder': 'cnn'}, "'cnn' has no attention"),
    ('none|none', {'encoder': 'cnn'}, 'takes one scheme, but got 2 of them'),
    ('none', {'encoder': 'transformer', 'num_heads': 3}, 'divide the width 8, but got 3'),
    ('complex_order|complex_order', {'encoder': 'transformer'}, 'pattern of 2 layers must divide'),
  ],
)
def test_what_does_not_fit_is_an_error(scheme, changes, message, unchecked):
  with pytest.raises(ValueError, match=message):
    classifier(scheme, **changes)


def test_vectors_are_the_embeddings():
  table = normal(11, 8)
  model = Classifier(
    11, 3, posjax.get('none'), vectors=table, rngs=nnx.Rngs(0), **SIZES, encoder='cnn'
  )
  np.testing.assert_array_equal(model.embed.table.embedding[...], table)


def test_dropout_depends_on_its_key_and_is_off_without_one():
  model = jitted(classifier('complex_order', encoder='transformer', dropout_rate=0.5))
  tokens, pos, segments = padded([[3, 9, 2, 5, 7]], 5)
  run = lambda key: np.asarray(model(tokens, pos, segments=segments, train_key=key))
  assert (run(None) == run(None)).all()
  assert (run(jax.random.key(1)) != run(jax.random.key(2))).any()


FOUND = """
from flax import nnx

from posjax.models.encoders import Encoder
from posjax.models.pooling import Encoded, Group


class Repeated(Encoder):
  def __init__(self, layer_set, width, *, times, rngs):
    self.times, self.features = times, times * width

  def __call__(self, embedded, *, train_key=None):
    return Encoded((Group(embedded.x, embedded.real),) * self.times)


encoder = Repeated
"""


def test_an_encoder_is_found_by_its_file_with_options_of_its_own(tmp_path, monkeypatch):
  (tmp_path / 'repeated.py').write_text(FOUND)
  monkeypatch.setattr(encoders, '__path__', [*encoders.__path__, str(tmp_path)])
  model = classifier('sinusoidal', encoder='repeated', times=3)
  assert 'repeated' in encoders.names()
  tokens, pos, segments = padded([[3, 9, 2], [5]], 4)
  logits = model(tokens, pos, segments=segments)
  x = model.embed(tokens, model.embed.ids(pos)).x
  means = jnp.stack([x[0, :3].mean(0), x[1, 0]])
  np.testing.assert_allclose(logits, model.readout(jnp.tile(means, 3)), rtol=1e-5, atol=1e-6)
