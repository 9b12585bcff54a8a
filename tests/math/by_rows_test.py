"""Tiles whose pairs all have the same row of a table are found, and computed as any others are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math import offsets
from posjax.scheme import Tiled
from tests.support.loops import error

QUERIES, KEYS = 64, 80
LAST = 7


def row_of(q_pos, k_pos):
  return jnp.clip(q_pos[:, :, None] - k_pos[:, None] + 3, 0, LAST)


def one(row, table):
  return jnp.full((2, QUERIES, KEYS), row) + table[row]


def many(rows, table):
  return rows + table[rows]


# Where each row of the batch begins, behind the first key; where all pairs have one row of a table.
BEGINNINGS = {'far': (90, 300), 'ahead': (-70, -70), 'near': (0, 85), 'far and ahead': (90, -70)}
ALIKE = {'far': LAST, 'ahead': 0}


def sides_of(where):
  begin = jnp.array(BEGINNINGS[where])[:, None]
  return begin + jnp.arange(QUERIES)[None], jnp.tile(jnp.arange(KEYS), (2, 1))


@pytest.mark.parametrize('where', BEGINNINGS)
def test_one_row_for_all_pairs_is_found_from_the_ends_of_the_ids(where):
  sides = sides_of(where)
  table = jnp.asarray(np.random.default_rng(0).normal(size=LAST + 1), jnp.float32)
  rows = np.asarray(row_of(*sides))
  assert (set(rows.ravel()) == {ALIKE.get(where)}) == (where in ALIKE)
  of = lambda table: offsets.by_rows(row_of, *sides, one, many, table)
  out, back = jax.vjp(of, table)
  np.testing.assert_allclose(out, many(rows, np.asarray(table)), rtol=1e-6)
  weight = np.random.default_rng(1).normal(size=rows.shape).astype(np.float32)
  expected = [weight[rows == row].sum() for row in range(LAST + 1)]
  np.testing.assert_allclose(back(jnp.asarray(weight))[0], expected, atol=1e-3)
  _, forward = jax.jvp(of, (table,), (jnp.arange(LAST + 1.0),))
  np.testing.assert_allclose(forward, rows)


@pytest.mark.parametrize('where', BEGINNINGS)
def test_one_row_is_taken_exactly_where_all_have_one_row(where):
  sides = sides_of(where)
  ways = lambda row: jnp.array(True), lambda rows: jnp.array(False)
  assert offsets.by_rows(row_of, *sides, *ways) == (where in ALIKE)
  falling = lambda q_pos, k_pos: -row_of(q_pos, k_pos)
  assert offsets.by_rows(falling, *sides, *ways) == (where in ALIKE)


def test_batches_of_ids_are_each_their_own():
  q_pos = jnp.stack([sides_of(where)[0] for where in BEGINNINGS])
  k_pos, table = sides_of('far')[1], jnp.arange(LAST + 1.0)
  of = lambda q_pos: offsets.by_rows(row_of, q_pos, k_pos, one, many, table)
  for found, pos in zip(jax.vmap(of)(q_pos), q_pos, strict=True):
    np.testing.assert_array_equal(found, 2 * row_of(pos, k_pos))


@pytest.mark.parametrize(
  'line',
  [
    'shaw(2)',
    'shaw(2, per_head=True)',
    'deberta(2)',
    'deberta(2, p2c_reversed=True, c2p=False)',
    'deberta(2, p2c_reversed=True)',
    'deberta(16, buckets=4)',
  ],
)
def test_tables_give_in_tiles_what_they_give_pair_by_pair(line, key):
  scheme, dims = posjax.get(line), posjax.Dims(16, 4, 4, 2)
  normal = lambda i, *shape: jax.random.normal(jax.random.fold_in(key, i), shape)
  params = jax.tree.map(lambda x: normal(0, *x.shape), posjax.init(scheme, key, dims))
  q, k = normal(1, 2, 48, 4, 4), normal(2, 2, 48, 2, 4)
  weights, by_pair = normal(3, 2, 2, 4, 48, 48)

  def number(form, sides, params, q, k, weights):
    ready, _ = scheme.prepare(params, None, None, None, None)
    logits = form.logits(ready, jnp.zeros_like(by_pair), q, k, *sides)
    values = form.add(ready, weights, *sides) * q if form.add else jnp.zeros(())
    return (logits * by_pair).sum() + values.sum(), (logits, values)

  plain = Tiled(logits=scheme.logits, add=scheme.values.add)
  slope = jax.grad(number, (2, 3, 4, 5), has_aux=True)
  both = jax.jit(
    lambda sides: [
      slope(form, sides, params, q, k, weights) for form in (scheme.traits.tiled, plain)
    ]
  )
  keys = np.tile(np.arange(48), (2, 1))
  for begin in (-90, 40, 90):
    queries = np.array([[begin], [begin + 2]]) + np.arange(48)
    for one, other in zip(*map(jax.tree.leaves, both((queries, keys))), strict=True):
      assert error(one, other) < 1e-5
