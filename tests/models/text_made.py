"""Models with parameters off their initial values, and numbers, for tests of encoders of texts."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def moved(model):
  """The model, its parameters moved off 0 and 1."""
  draw = np.random.default_rng(2).normal
  step = lambda leaf: leaf + 0.1 * jnp.asarray(draw(size=leaf.shape), leaf.dtype)
  nnx.update(model, jax.tree.map(step, nnx.state(model, nnx.Param)))
  return model


def jitted(model):
  """The model as a compiled function, its arrays being arguments."""
  graph, state = nnx.split(model)
  run = jax.jit(lambda state, *args, **named: nnx.merge(graph, state)(*args, **named))
  return lambda *args, **named: run(state, *map(jnp.asarray, args), **named)


def normal(*shape, seed=0, field='real'):
  """Normal numbers, the same in every test."""
  real, imag = np.random.default_rng(seed).normal(size=(2, *shape))
  return real.astype(np.float32) if field == 'real' else (real + 1j * imag).astype(np.complex64)
