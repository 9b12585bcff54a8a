"""Schemes and small inputs, which the cases of the library share so that programs are reused."""

import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.scheme import declares
from tests.fuzz.case import normal

DIMS = posjax.Dims(width=16, num_heads=4, head_dim=8, num_kv_heads=2, vocab=11)
QUERIES, KEYS = 5, 6
CHAINS = ('rope+alibi', 'sinusoidal+shaw', 'randomized(max_length=64)+t5', 'deberta+t5')


@functools.cache
def module(name: str) -> Any:
  return importlib.import_module(f'posjax.schemes.{name}')


@functools.cache
def lines() -> tuple[str, ...]:
  """A line for each scheme that there is, and some chains."""
  return (*(getattr(module(name), 'EXAMPLE', name) for name in posjax.names()), *CHAINS)


class Subject(NamedTuple):
  """A scheme with parameters, and the arrays of one attention in which it takes part.

  Attributes:
    raw: the parameters as from `init`.
    params: those that `attend` takes, as from `prepare`.
    q_side: `pos`, `at` and `order` of the queries.
    k_side: the same of the keys; the queries are their last tokens.
  """

  line: str
  scheme: posjax.Scheme
  raw: Any
  params: Any
  q_side: dict[str, Any]
  k_side: dict[str, Any]

  def sides(self) -> dict[str, Any]:
    """The arguments of `attend` that hold ids; `at` only where the scheme prepares it."""
    both = {f'q_{name}': value for name, value in self.q_side.items()}
    both |= {f'k_{name}': value for name, value in self.k_side.items()}
    return {name: value for name, value in both.items() if value is not None}


@functools.cache
def subject(line: str, rows: int = 2) -> Subject:
  """The scheme of a line, with parameters moved off their first values, which are often zeros."""
  scheme = posjax.get(line)
  params = posjax.init(scheme, jax.random.key(0), DIMS)
  trained, fixed = posjax.split(scheme, params)
  draw = np.random.default_rng(1).uniform
  trained = jax.tree.map(lambda x: jnp.asarray(x + draw(0.1, 0.4, x.shape), x.dtype), trained)
  raw = params = posjax.merge(trained, fixed)
  order = jnp.arange(KEYS, dtype=jnp.int32)
  pos = (
    order
    if scheme.traits.axes < 2
    else jnp.stack([order // 3, *[order % 3] * (scheme.traits.axes - 1)], -1)
  )
  at = None
  if declares(scheme, 'prepare'):
    ids = jnp.broadcast_to(pos, (rows, *pos.shape))
    params, at = posjax.prepare(scheme, params, jnp.asarray(normal(rows, KEYS, DIMS.width)), ids)
  last = lambda x: x[:, -QUERIES:]
  q_side = {'pos': pos[-QUERIES:], 'at': None if at is None else jax.tree.map(last, at)}
  k_side = {'pos': pos, 'at': at}
  if declares(scheme, 'ids') or scheme.traits.axes > 1:
    q_side['order'], k_side['order'] = order[-QUERIES:], order
  return Subject(line, scheme, raw, params, q_side, k_side)


@functools.cache
def heads(rows: int = 2, kv_heads: int = 2, dtype: str = 'float32') -> tuple[Any, Any, Any]:
  """q, k and v."""
  q = normal(rows, QUERIES, DIMS.num_heads, DIMS.head_dim)
  k, v = normal(2, rows, KEYS, kv_heads, DIMS.head_dim, seed=1)
  return tuple(jnp.asarray(x, dtype) for x in (q, k, v))
