"""A scheme that mixes neighbouring tokens stays within a document, in packed rows and in caches."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.layers import layer as layers
from posjax.layers.tokens import Heads, Tokens
from tests.support.loops import error
from tests.support.toy_schemes import TOYS

LENGTH, WIDTH, HEADS = 9, 8, 2
SEGMENTS = np.array([[1, 1, 1, 1, 2, 3, 3, 3, 3], [0, 0, 4, 4, 4, 4, 5, 5, 0]], np.int32)
POS = posjax.positions.from_segments(jnp.asarray(SEGMENTS))
DRAW = np.random.default_rng(0).normal
X = jnp.asarray(DRAW(size=(2, LENGTH, WIDTH)), jnp.float32)
KERNELS = jnp.asarray(DRAW(size=(3, WIDTH, HEADS, WIDTH // HEADS)), jnp.float32)
SCHEME = posjax.chain(posjax.get('rope'), TOYS['convolved'], TOYS['forgetful'])
PARAMS = posjax.init(SCHEME, jax.random.key(0), posjax.Dims(WIDTH, HEADS, WIDTH // HEADS))


def made(window=None):
  return layers.make(WIDTH, HEADS, SCHEME, None, None, True, window, None, 0.0, None, 'dense')


def project(x, x_kv):
  return Heads(*jnp.einsum('btm,nmhd->nbthd', x, KERNELS))


@functools.partial(jax.jit, static_argnums=0)
def packed_rows(window, x, pos, segments):
  """One pass over the rows, [B, T, H, D]."""
  order = jnp.arange(x.shape[1], dtype=jnp.int32)
  return layers.call(made(window), PARAMS, project, Tokens(x, pos, segments, order))


def packed(window=None):
  return packed_rows(window, X, POS, jnp.asarray(SEGMENTS))


def test_starts_are_the_first_tokens_of_documents_and_never_those_of_padding_after_nothing():
  seen = []
  spy = posjax.Scheme(prepare=lambda params, x, pos, last, starts: (params, seen.append(starts)))
  prepare = functools.partial(posjax.prepare, spy, {}, X[:1, :4], POS[:1, :4])
  row = jnp.array([[7, 7, 0, 2]])
  last = jnp.ones((1, 1))
  prepare()
  prepare(segments=row)
  prepare(last)
  prepare(last, segments=row, last_segment=jnp.array([7]))
  prepare(last, segments=row, last_segment=jnp.array([3]))
  prepare(0 * last, segments=0 * row, last_segment=jnp.array([0]))
  expected = ['1000', '1011', '0000', '0011', '1011', '0000']
  assert [''.join(str(int(one)) for one in starts[0]) for starts in seen] == expected


@functools.cache
def alone():
  """Each document in a row of its own, from its first token on, with the noise of others after it.

  [(row, first token, its output)].
  """
  documents = [(0, 0, 4), (0, 4, 5), (0, 5, 9), (1, 2, 6), (1, 6, 8)]
  x = jnp.stack([jnp.roll(X[row], -first, axis=0)[:4] for row, first, _ in documents])
  lengths = jnp.array([last - first for _, first, last in documents])
  segments = (jnp.arange(4)[None] < lengths[:, None]).astype(jnp.int32)
  out = packed_rows(None, x, jnp.arange(4), segments)
  each = zip(documents, out, strict=True)
  return [(row, first, one[: last - first]) for (row, first, last), one in each]


def test_packed_documents_are_each_alone():
  out = packed()
  for row, first, expected in alone():
    found = out[row, first : first + len(expected)]
    assert error(found, expected) <= 2e-6, (row, first)


@pytest.mark.parametrize('window', [None, 3])
def test_pieces_through_a_cache_are_one_pass(window):
  """Some pieces end within a document, others with it; in a ring, too."""
  layer = made(window)
  cache = layers.init_cache(layer, 2, None if window else LENGTH, jnp.float32, jnp.int32, None)
  extend = jax.jit(lambda new, cache: layers.extend(layer, PARAMS, project, new, cache))
  found = []
  for piece in np.split(np.arange(LENGTH), 3):
    tokens = Tokens(*(leaf[:, piece] for leaf in (X, POS, jnp.asarray(SEGMENTS))))
    out, cache = extend(tokens, cache)
    found.append(out)
  assert error(jnp.concatenate(found, axis=1), packed(window)) <= 2e-6


def test_a_chain_shows_its_members_where_documents_start():
  documents = {'segments': jnp.asarray(SEGMENTS)}
  params, at = posjax.prepare(SCHEME, PARAMS, X, POS, **documents)
  _, expected = posjax.prepare(TOYS['convolved'], params[1], X, POS, **documents)
  chex.assert_trees_all_equal(at[1], expected)


@pytest.mark.parametrize(
  ('wrong', 'error', 'message'),
  [
    ({'segments': jnp.ones(3, jnp.int32)}, ValueError, r'segments must be \(2, 9\), .* got \(3,\)'),
    ({'segments': jnp.ones((2, 9))}, TypeError, 'segments must be integers, but got float32'),
    ({'last_segment': jnp.array([1])}, ValueError, r'last_segment must be \(2,\), .* got \(1,\)'),
  ],
)
def test_documents_of_another_form_are_refused(wrong, error, message):
  """By every scheme, whether it asks for them or not."""
  with pytest.raises(error, match=message):
    posjax.prepare(posjax.Scheme(), {}, X, POS, **wrong)


def test_attend_says_how_to_prepare_a_side():
  q, pos = jnp.ones((1, 3, HEADS, 4)), jnp.arange(3)
  with pytest.raises(ValueError, match=r'at = posjax.prepare\(scheme, params, x, pos'):
    posjax.attend(q, q, q, TOYS['convolved'], PARAMS[1], q_pos=pos, k_pos=pos)
