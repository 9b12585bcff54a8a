"""Attention in tiles on GPUs and TPUs: in unrolled rows, or in a loop of known length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.attention.blockwise import engine, groups, unrolled
from posjax.attention.inputs import Rules, Side, read_window
from tests.attention import blockwise_test
from tests.attention.blockwise_test import Case, same
from tests.support.draws import DRAW
from tests.support.loops import error

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
LINES = [
  't5', 'shaw(max_distance=4)',
  *map(slow, ['none', 'rope', 'transformer_xl+t5', 'fire(threshold=4.0, width=8)', 'cope', 'xpos']),
]  # fmt: skip


@pytest.fixture(params=['unrolled', 'loop'], autouse=True)
def way(request, monkeypatch):
  """Both ways of a device that is no CPU, in small tiles."""
  monkeypatch.setattr(groups, 'most_pairs', lambda: None)
  monkeypatch.setattr(engine, 'launches', lambda: True)
  monkeypatch.setattr(engine, 'tile_size', blockwise_test.sizes(4, 8))
  monkeypatch.setattr(unrolled, '_STEP', 4)
  tall = 8 if request.param == 'unrolled' else None
  monkeypatch.setattr(unrolled, 'height', lambda *sizes: tall)
  return request.param


def known(case: Case) -> Case:
  """The case with ids that are known while it is traced."""
  out, ids = case.out, {'q_pos': jnp.arange(8, 29), 'k_pos': jnp.arange(29)}
  case.out = lambda way, *args, **options: out(way, *args, **{**ids, **options})
  return case


@pytest.mark.parametrize('line', LINES)
def test_values_and_all_gradients_are_the_references(line):
  same(known(Case(line)), causal=True)


@pytest.mark.parametrize('way', ['unrolled'], indirect=True)
def test_ids_that_a_compiled_program_alone_knows_are_the_references():
  same(Case('alibi(learned=True)'), causal=True)


def test_windows_caps_sinks_masks_and_biases_are_the_references():
  case = known(Case('t5(bidirectional=True)'))
  bias = jnp.asarray(DRAW.normal(size=(1, 4, 21, 29)), jnp.float32)
  mask = jnp.asarray(DRAW.random((2, 4, 21, 29)) > 0.4)
  sinks = jnp.array([1.0, -2.0, 0.0, 9.0])
  same(case, window=5, bias=bias, mask=mask, sinks=sinks, logit_cap=3.0)


def test_packed_rows_and_dropout_are_the_references():
  segments = jnp.asarray(np.repeat([[0, 1, 2], [1, 2, 0]], [9, 11, 9], axis=1))
  documents = {'q_segments': segments[:, -21:], 'k_segments': segments}
  case, key = known(Case('t5')), jax.random.key(0)
  same(case, causal=True, **documents)
  same(case, causal=True, dropout_rate=0.5, dropout_key=key)


def test_bfloat16_is_rounded_as_often_as_in_the_kernels():
  narrow = known(Case('t5', dtype=jnp.bfloat16))
  found = narrow.answer('blockwise', causal=True)
  narrow.q, narrow.k, narrow.v = (x.astype(jnp.float32) for x in (narrow.q, narrow.k, narrow.v))
  narrow.compiled.clear()
  for one, exact in zip(found, narrow.answer('dense', causal=True), strict=True):
    assert error(one, exact) <= 3 * 2**-8


def test_the_program_has_no_branch(way):
  """None that is taken when it runs, which a device would have to read back."""
  case = known(Case('t5'))
  number = lambda args: case.out('blockwise', *args, causal=True).sum()
  traced = str(jax.make_jaxpr(jax.grad(number))((case.q, case.k, case.v, case.params)))
  assert ' cond[' not in traced
  assert (' while[' in traced, ' scan[' in traced) == (False, way == 'loop')


@pytest.mark.parametrize('way', ['unrolled'], indirect=True)
def test_a_row_takes_the_keys_that_it_may_see():
  """A window of 6 before, 2 after: row i of 8 queries sees keys 8 i - 6 + 8 .. 8 i + 9 + 8."""
  order = jnp.arange(29, dtype=jnp.int32)[None]
  side = lambda order: Side((), (), (), order, jnp.ones_like(order), ())
  rules = Rules(1.0, False, read_window((6, 2), False), None, 0.0)
  found = unrolled.spans(rules, side(order[:, 8:]), side(order), 8)
  assert found == ((0, 20), (8, 28), (16, 29))
  same(known(Case('none')), window=(6, 2))
