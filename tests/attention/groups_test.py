"""Attention some heads at a time: the reference's, however rows and heads are grouped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention.blockwise import engine as blockwise
from posjax.attention.blockwise import groups
from posjax.scheme import Scheme, Tiled, Traits
from tests.attention.blockwise_test import Case, same, sizes
from tests.support.draws import DRAW
from tests.support.loops import error

HEAD = 4 * 8 * 2  # pairs of a tile, for one key head and its two query heads
ROW = 2 * HEAD


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  monkeypatch.setattr(blockwise, 'tile_size', sizes(4, 8))


def numbers(monkeypatch, budget):
  """How many groups there were, each time that heads were grouped."""
  found = []
  monkeypatch.setattr(groups, 'most_pairs', lambda: budget)
  for name in ('run_each', 'run_adding'):  # forward, and backward
    run = getattr(groups, name)
    counted = lambda of, *rest, run=run: found.append(of.total) or run(of, *rest)
    monkeypatch.setattr(groups, name, counted)
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


@pytest.mark.slow
def test_what_rows_and_heads_have_of_their_own_travels_with_them(monkeypatch):
  found = numbers(monkeypatch, HEAD)
  segments = jnp.asarray(np.sort(DRAW.integers(0, 3, (4, 29)), axis=1))
  options = {
    'mask': jnp.asarray(DRAW.random((4, 4, 21, 29)) > 0.3),
    'q_segments': segments[:, -21:],
    'k_segments': segments,
    'bias': jnp.asarray(DRAW.normal(size=(4, 4, 21, 29)), jnp.float32),
    'sinks': jnp.array([1.0, -2.0, 0.0, 2.0]),
    'dropout_rate': 0.3,
    'dropout_key': jax.random.key(5),
    'logit_cap': 3.0,
  }
  same(Case('t5(bidirectional=True)', batch=(4,)), causal=True, **options)
  assert found


@pytest.mark.slow
def test_heads_with_parameters_of_their_own_get_them(monkeypatch):
  found = numbers(monkeypatch, 1)
  same(Case('shaw(max_distance=4, per_head=True)+alibi(learned=True)', batch=(4,)), causal=True)
  assert set(found) == {8}


@pytest.mark.parametrize('options', ['', ', p2c=False', ', c2p=False, p2c_reversed=True'])
def test_so_do_query_heads_and_key_heads_of_prepared_parameters(options, monkeypatch):
  found = numbers(monkeypatch, 1)
  case = Case(f'deberta(max_distance=4{options})', batch=(4,))
  ids = case.pos[None]
  case.params, _ = posjax.prepare(case.scheme, case.params, jnp.zeros((1, 29, 16)), ids)
  same(case, causal=True, q_at=ids[:, -21:], k_at=ids)
  assert set(found) == {8}


def heights():
  """Logits by what each token stands on, with a strength for each head, and how high on average."""

  def init(key, dims):
    return {'strength': jax.random.normal(key, (dims.num_heads,)), 'height': jnp.float32(0.3)}

  def logits(params, logits, q, k, q_at, k_at):
    apart = jnp.tanh(params['height'] * (q_at[:, :, None] - k_at[:, None]))
    return logits + params['strength'][None, :, None, None] * apart[:, None]

  def cut_heads(params, first, count, shared):
    return params | {'strength': jax.lax.dynamic_slice_in_dim(params['strength'], first, count)}

  def prepare(params, x, pos, last, starts):
    return params, x[..., 0]  # a number of each token, which all heads share

  tiled = Tiled(cut_heads=cut_heads)
  return Scheme(init=init, prepare=prepare, logits=logits, traits=Traits(tiled=tiled))


@pytest.mark.parametrize('rows', [1, 4])
def test_what_heads_share_of_a_side_gets_the_gradient_of_all(rows, monkeypatch):
  found = numbers(monkeypatch, HEAD)
  case = Case(batch=(4,))
  case.scheme = heights()
  case.params = posjax.init(case.scheme, jax.random.key(1), posjax.Dims(16, 4, 8, 2))
  ground = jnp.asarray(DRAW.normal(size=(rows, 29)), jnp.float32)

  def slope(way):
    def number(ground, params):
      at = {'q_at': ground[:, -21:], 'k_at': ground}
      return (case.out(way, case.q, case.k, case.v, params, **at) * case.cotangent).sum()

    return jax.jit(jax.grad(number, (0, 1)))(ground, case.params)

  for one, other in zip(*map(jax.tree.leaves, (slope('blockwise'), slope('dense'))), strict=True):
    assert error(one, other) < 1e-5
  assert set(found) == {8}


@pytest.mark.parametrize(
  'line', ['cope', 'cosine+shaw(max_distance=4)', 'shaw+fire(threshold=4.0, width=8)']
)
def test_what_computes_with_all_heads_gets_all(line, monkeypatch):
  found = numbers(monkeypatch, 1)
  same(Case(line), causal=True)
  assert not found


def test_a_scheme_that_mixes_heads_is_never_grouped(monkeypatch):
  """Each head's logits have the mean of all heads added; that of a group would be another mean."""
  found = numbers(monkeypatch, 1)
  case = Case()
  mixing = lambda params, logits, *_: logits + logits.mean(1, keepdims=True)
  tiled = Tiled(cut_heads=lambda params, first, count, shared: params)
  case.scheme = Scheme(logits=mixing, traits=Traits(mixes='H', tiled=tiled))
  same(case, causal=True)
  assert not found
  # A wrong declaration, which is taken at its word.
  case.scheme = case.scheme._replace(traits=case.scheme.traits._replace(mixes=''))
  out = lambda way: case.out(way, case.q, case.k, case.v, {}, causal=True)
  assert error(out('blockwise'), out('dense')) > 1e-2
  assert found


@pytest.mark.slow
def test_the_number_of_cores_changes_gradients_by_rounding_only(monkeypatch):
  """Cotangents are added up group by group, and more cores make larger groups."""
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  monkeypatch.setattr(groups, '_PAIRS', HEAD)
  case = Case('shaw(max_distance=4)+gaussian', batch=(4,))
  slopes, numbers_of_groups, grouped = [], set(), groups.grouped

  def counted(*args):
    found = grouped(*args)
    numbers_of_groups.add(found.total)
    return found

  monkeypatch.setattr(groups, 'grouped', counted)
  for cores in (1, 2, 8):
    monkeypatch.setattr(groups, '_cores', lambda cores=cores: cores)
    number = lambda p: (case.out('blockwise', case.q, case.k, case.v, p) * case.cotangent).sum()
    slopes.append(jax.tree.leaves(jax.jit(jax.grad(number))(case.params)))
  assert numbers_of_groups == {8, 4, 1}
  for one, *others in zip(*slopes, strict=True):
    assert all(error(other, one) < 1e-5 for other in others)


def test_nothing_is_grouped_on_several_devices():
  assert jax.device_count() == 8
  assert groups.most_pairs() is None


def test_one_cpu_holds_what_the_caches_of_its_cores_hold(monkeypatch):
  monkeypatch.setattr(jax, 'device_count', lambda: 1)
  monkeypatch.setattr(groups, '_cores', lambda: 4)
  assert groups.most_pairs() == 4 * 256 * 256
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert groups.most_pairs() is None


def test_parameters_that_tiles_do_not_read_are_not_kept_for_each_group(monkeypatch):
  found = numbers(monkeypatch, 1)
  case = Case('learned(50_000)+alibi', batch=(4,))
  out = lambda params: case.out('blockwise', case.q, case.k, case.v, params, causal=True).sum()
  compiled = jax.jit(jax.grad(out)).lower(case.params).compile()
  table = sum(x.nbytes for x in jax.tree.leaves(case.params))
  assert compiled.memory_analysis().temp_size_in_bytes < 2 * table
  assert set(found) == {8}
