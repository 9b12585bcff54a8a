"""Every scheme decodes: through a cache, each token's output is that of one full causal pass.

For the contract's subjects, so a new file is among them, and at every place: ids drawn once for the
stream (place 0), each piece embedded by itself (place 1), heads appended to the cache by
`posjax.layers.layer.extend` (prepare, places 2 to 4). Key heads are grouped; complex embeddings
keep their complex heads. The reference sees all tokens at once, without cache or padding, densely.

By default for the few schemes that have every pair of traits, and for those with a `prepare`. For
the others it is slow: the contract says of them that tiles of queries have their part of the
answer, and that keys turn one by one, and the cache is the same for all.

No scheme is left out. What cannot come in pieces is the making of ids, and of two kinds only:
drawing them with a key, and centering them. The last tests show it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention.blockwise import engine as blockwise
from posjax.layers import cache as caches
from posjax.layers import layer as layers
from posjax.scheme import declares
from tests.contract import schemes_test as contract
from tests.contract.schemes_test import (
  BATCH,
  DIMS,
  LENGTH,
  TOLERANCE,
  by_hand,
  every_scheme,
  few_schemes_and,
)
from tests.support.loops import error

KEY = jax.random.key(6)  # of place 0
WINDOW = 4
CAPACITIES = {None: LENGTH + 2, WINDOW: WINDOW}  # slots to spare; a ring as short as can be
PROMPTS = (5, 5, *(1,) * (LENGTH - 10))  # more tokens than the ring has slots
ONE_BY_ONE = (1,) * LENGTH
PADDING = np.array([1, 7])  # of each row: less than the first piece, and more


@functools.cache
def stream(name):
  """The contract's inputs, with the ids that place 0 draws for all of them at once."""
  scheme = posjax.get(name)
  given = contract.inputs(scheme)
  return jax.tree.map(np.asarray, given._replace(pos=scheme.ids(given.pos, KEY)))


def padded(given):
  """Rows of different lengths: each has lost its last tokens, which are now noise before it."""
  rolled = lambda leaf: np.stack([np.roll(row, n, 0) for row, n in zip(leaf, PADDING, strict=True)])
  rows, noise = jax.tree.map(rolled, given), given.order < PADDING[:, None]
  x = np.where(noise[..., None], 10 * rows.x, rows.x)
  return rows._replace(x=x, segments=np.where(noise, 0, 1).astype(np.int32))


def full(name):
  """One pass over the whole stream, [B, T, H, D]: without a window, and with it."""
  scheme = posjax.get(name)

  @jax.jit
  def both(params, given):
    one_pass = functools.partial(contract.layer, scheme, params, given, KEY, implementation='dense')
    return [one_pass(window=window) for window in CAPACITIES]

  answers = both(contract.parameters(scheme), contract.inputs(scheme))
  return dict(zip(CAPACITIES, map(np.asarray, answers), strict=True))


def stepper(name, implementation):
  """`(given, caches) -> (outputs, caches)`: some more tokens, for a full cache and a ring."""
  scheme = posjax.get(name)
  params = contract.parameters(scheme)
  sizes = DIMS.width, DIMS.num_heads, scheme, DIMS.head_dim, DIMS.num_kv_heads

  @jax.jit
  def extended(given, held):
    x = scheme.embed(params, given.x, given.tokens, given.pos)
    weights = contract.projections(x.real.dtype)
    heads = layers.Heads(*(jnp.einsum('btm,mhd->bthd', x, w.astype(x.dtype)) for w in weights))
    new = layers.Tokens(x, given.pos, given.segments)
    out = {}
    for window, cache in zip(CAPACITIES, held, strict=True):
      layer = layers.make(*sizes, True, window, None, 0.0, None, implementation, True)
      out[window] = layers.extend(layer, params, lambda *x: heads, new, cache)
    return [one for one, _ in out.values()], [cache for _, cache in out.values()]

  return extended


def decoded(name, given, step, chunks):
  """The whole stream in pieces, by window."""
  scheme = posjax.get(name)
  x = jax.eval_shape(scheme.embed, contract.parameters(scheme), given.x, given.tokens, given.pos)
  kinds = {'dtype': x.dtype, 'pos_dtype': given.pos.dtype}
  held = [caches.empty(scheme, DIMS, BATCH, slots, **kinds) for slots in CAPACITIES.values()]
  found = []
  for stop, count in zip(np.cumsum(chunks), chunks, strict=True):
    outs, held = step(contract.cut(given, stop - count, stop), held)
    found.append(list(map(np.asarray, outs)))
  assert all(cache.length == LENGTH for cache in held)
  whole = [np.concatenate(pieces, axis=1) for pieces in zip(*found, strict=True)]
  return dict(zip(CAPACITIES, whole, strict=True))


def check(name, implementation):
  expected, given, step = full(name), stream(name), stepper(name, implementation)
  assert error(expected[None], expected[WINDOW]) > 1e-3  # the window is felt
  for chunks in (PROMPTS, ONE_BY_ONE):
    for window, found in decoded(name, given, step, chunks).items():
      assert error(found, expected[window]) <= TOLERANCE, (window, chunks)
  for window, found in decoded(name, padded(given), step, PROMPTS).items():
    for row, padding in enumerate(PADDING):
      alone = expected[window][row, : LENGTH - padding]
      assert error(found[row, padding:], alone) <= TOLERANCE, (window, row)
      np.testing.assert_array_equal(found[row, :padding], 0)


@few_schemes_and(lambda scheme: declares(scheme, 'prepare'))
def test_prompts_and_single_tokens_padded_or_not_on_a_ring_or_not_are_one_full_pass(name):
  check(name, 'dense')


@pytest.mark.parametrize('name', ['rope+t5+forgetting', *map(by_hand, ('shaw', 'cope', 'dape'))])
def test_pieces_computed_in_tiles_are_one_full_pass(name, monkeypatch):
  monkeypatch.setattr(blockwise, 'tile_size', lambda t, s, rows, whole, _: (3, s if whole else 3))
  check(name, 'blockwise')


# What cannot come in pieces.


def ids(name, key):
  """Of pieces, one by one, and of the whole stream."""
  scheme = posjax.get(name)
  pos = contract.inputs(scheme).pos
  pieces = [scheme.ids(pos[:, start:stop], key) for start, stop in ((0, 5), (5, LENGTH))]
  return jnp.concatenate(pieces, axis=1), scheme.ids(pos, key)


@every_scheme
def test_ids_without_a_key_may_come_in_pieces(name):
  np.testing.assert_array_equal(*ids(name, None))


@pytest.mark.parametrize('name', ['randomized(max_length=64)', 'cape'])
def test_ids_must_be_drawn_for_a_whole_stream(name):
  """Pieces drawn with one key are parts of no one drawing: draw first, and cut."""
  pieces, whole = ids(name, KEY)
  assert (pieces != whole).any()


def test_ids_must_be_centered_as_a_whole_stream():
  """The middle of a text is not known before its end: center first, and cut."""
  pieces, whole = ids('cape(centered=True)', None)
  assert (pieces != whole).any()
