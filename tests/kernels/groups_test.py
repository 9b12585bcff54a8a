"""Attention some heads at a time: the reference's, however rows and heads are grouped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.kernels import blockwise, groups
from tests.kernels.blockwise_test import DRAW, Case, same, sizes

HEAD = 4 * 8 * 2  # pairs of a tile, for one key head and its two query heads
ROW = 2 * HEAD


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  monkeypatch.setattr(blockwise, 'tile_size', sizes(4, 8))


def numbers(monkeypatch, budget):
  """How many groups there were, each time that heads were grouped."""
  found, each = [], groups.each
  monkeypatch.setattr(groups, 'budget', lambda: budget)
  monkeypatch.setattr(groups, 'each', lambda of, run: found.append(of.number) or each(of, run))
  return found


@pytest.mark.parametrize(
  ('line', 'budget', 'number'),
  [('gaussian', 1, 8), ('transformer_xl+t5', ROW, 4), ('gaussian', 3 * ROW, 2)],
)
def test_any_groups_give_the_references_values_and_gradients(line, budget, number, monkeypatch):
  found = numbers(monkeypatch, budget)
  same(Case(line, batch=(4,)), causal=True)
  assert found  # forward and backward, with and without a table
  assert set(found) == {number}


def test_what_rows_and_heads_have_of_their_own_travels_with_them(monkeypatch):
  found = numbers(monkeypatch, HEAD)
  segments = jnp.asarray(np.sort(DRAW.integers(0, 3, (4, 29)), axis=1))
  options = {
    'mask': jnp.asarray(DRAW.random((4, 4, 21, 29)) > 0.3),
    'q_segments': segments[:, -21:],
    'k_segments': segments,
    'sinks': jnp.array([1.0, -2.0, 0.0, 2.0]),
    'dropout_rate': 0.3,
    'dropout_key': jax.random.key(5),
    'logit_cap': 3.0,
  }
  same(Case('t5(bidirectional=True)', batch=(4,)), causal=True, **options)
  assert found


@pytest.mark.parametrize('line', ['shaw(max_distance=4)', 'cope'])
def test_what_computes_with_all_heads_gets_all(line, monkeypatch):
  found = numbers(monkeypatch, 1)
  same(Case(line), causal=True)
  assert not found


def test_nothing_is_grouped_on_several_devices():
  assert jax.device_count() == 8
  assert groups.budget() is None


def test_one_cpu_holds_what_the_caches_of_its_cores_hold(monkeypatch):
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  monkeypatch.setattr(groups, '_cores', lambda: 4)
  assert groups.budget() == 4 * 256 * 256
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert groups.budget() is None
