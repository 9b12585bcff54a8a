"""Values that a scheme turns, in caches: turned once, when their tokens come."""

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.layers import cache as caches
from posjax.layers import layer as layers
from posjax.layers.tokens import Heads, Tokens
from posjax.scheme import Values
from tests.support.loops import error

LENGTH, WIDTH, HEADS = 6, 8, 2
SCHEME = posjax.get('rope(values=True)')
DRAW = np.random.default_rng(0).normal
X = jnp.asarray(DRAW(size=(1, LENGTH, WIDTH)), jnp.float32)
POS = jnp.arange(3, 3 + LENGTH, dtype=jnp.int32)
KERNELS = jnp.asarray(DRAW(size=(3, WIDTH, HEADS, WIDTH // HEADS)), jnp.float32)


def query(x):
  return jnp.einsum('btm,mhd->bthd', x, KERNELS[0])


def key(x):
  return jnp.einsum('btm,mhd->bthd', x, KERNELS[1])


def value(x):
  return jnp.einsum('btm,mhd->bthd', x, KERNELS[2])


def made():
  return layers.make(WIDTH, HEADS, SCHEME, None, None, True, None, None, 0.0, None, 'dense')


def project(x, x_kv):
  return Heads(query(x), key(x_kv), value(x_kv))


@jax.jit
def full():
  return layers.call(made(), {}, project, Tokens(X, POS))


def test_a_cache_holds_turned_values_and_decodes_as_one_pass():
  cache, found = layers.init_cache(made(), 1, LENGTH, jnp.float32, jnp.int32, None), []
  step = jax.jit(lambda new, cache: layers.extend(made(), {}, project, new, cache))
  for start, stop in ((0, 2), (2, 4), (4, 6)):
    out, cache = step(Tokens(X[:, start:stop], POS[start:stop]), cache)
    found.append(out)
  assert error(jnp.concatenate(found, axis=1), full()) < 1e-6
  assert error(cache.v, SCHEME.values.value({}, value(X), POS[None])) < 1e-6
  assert error(cache.v, value(X)) > 0.1


def test_a_memory_holds_turned_values_and_is_read_as_it_would_be_seen():
  memory = layers.memorize(made(), {}, lambda x: (key(x), value(x)), Tokens(X, POS))
  np.testing.assert_array_equal(memory.v, SCHEME.values.value({}, value(X), POS[None]))
  assert error(layers.read_memory(made(), {}, query, Tokens(X, POS), memory), full()) < 1e-6


def test_a_cache_has_room_for_values_that_the_scheme_widens():
  twice = posjax.Scheme(values=Values(value=lambda params, v, at: jnp.concatenate([v, v], -1)))
  cache = caches.empty(twice, posjax.Dims(WIDTH, HEADS, 4), batch=2, capacity=3)
  assert cache.v.shape == (2, 3, HEADS, 8)
  assert cache.k.shape == (2, 3, HEADS, 4)
  assert cache.at is None
