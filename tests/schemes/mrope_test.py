import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.schemes import axial_rope, mrope, rope, yarn
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('mrope')
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _heads(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _turned(x, pos, axis, base):
  """x [B, T, H, D] in float64, the first 2 len(axis) numbers turned; ids [B, T, n]."""
  out, half = np.array(x, np.float64), len(axis)
  for c in range(half):
    angle = np.asarray(pos, np.float64)[..., axis[c]] * base ** (-c / half)
    pair = (out[..., c] + 1j * out[..., c + half]) * np.exp(1j * angle)[..., None]
    out[..., c], out[..., c + half] = pair.real, pair.imag
  return out


@pytest.mark.parametrize(
  ('sections', 'interleaved', 'axis'),
  [
    ((1, 2, 1), False, [0, 1, 1, 2]),
    ([2, 1, 1], True, [0, 1, 2, 0]),
    ((2, 2), True, [0, 1, 0, 1]),
  ],
)
def test_each_frequency_turns_by_the_id_of_its_section(sections, interleaved, axis):
  q, k, v = _heads(2, 5, 4, 8), _heads(2, 7, 2, 8), _heads(2, 7, 2, 3)
  draw = np.random.default_rng(1).integers
  q_pos, k_pos = draw(0, 40, (2, 5, len(sections))), draw(0, 40, (2, 7, len(sections)))
  scheme = mrope.scheme(sections, 500.0, interleaved)
  assert scheme.traits.axes == len(sections)
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos)
  placed = [_turned(x, pos, axis, 500.0) for x, pos in ((q, q_pos), (k, k_pos))]
  assert error(out, loops.attention(loops.content(*placed), True, v)[0]) < 1e-5


@pytest.mark.parametrize('name', 'qk')
def test_it_equals_qwen2_vl(name):
  x, expected = (GOLDEN[n].swapaxes(1, 2) for n in (name, f'{name}_out'))
  ids = np.moveaxis(GOLDEN['position_ids_thw'], 0, -1).astype(np.int32)
  turn = jax.jit(mrope.scheme([int(n) for n in GOLDEN['mrope_section']]).query)
  assert error(turn({}, x, ids), expected) < 1e-6
  np.testing.assert_array_equal(mrope.axis((4, 6, 6)), GOLDEN['axis_of_frequency'])


def test_interleaved_sections_are_those_of_qwen3_vl():
  # Height takes 1, 4, .. 58, width 2, 5, .. 59, and time what is left of 64.
  found = mrope.axis((24, 20, 20), interleaved_sections=True)
  np.testing.assert_array_equal(np.flatnonzero(found == 1), range(1, 60, 3))
  np.testing.assert_array_equal(np.flatnonzero(found == 2), range(2, 60, 3))
  np.testing.assert_array_equal(np.bincount(found), [24, 20, 20])


@pytest.mark.parametrize('interleaved', [False, True])
def test_text_is_rope(interleaved):
  q, k, v = _heads(1, 5, 2, 16), _heads(2, 5, 2, 16)[1:], _heads(1, 5, 2, 16)
  pos = np.array([0, 1, 5, 900, 70000])
  ids = np.repeat(pos[:, None], 3, 1)
  scheme = mrope.scheme((4, 2, 2), 1e6, interleaved)
  out = attend(q, k, v, scheme, {}, q_pos=ids, k_pos=ids)
  assert error(out, attend(q, k, v, rope.scheme(base=1e6), {}, q_pos=pos, k_pos=pos)) < 1e-5


def test_sections_of_less_than_the_head_are_partial_rotation():
  x, pos = _heads(1, 4, 2, 16), np.array([[0, 1, 5, 900]])
  ids = np.repeat(pos[..., None], 3, -1)
  out = jax.jit(mrope.scheme((1, 2, 1)).key)({}, x, ids)
  np.testing.assert_array_equal(out[..., 8:], x[..., 8:])
  assert error(out, jax.jit(rope.scheme(fraction=0.5).key)({}, x, pos)) < 1e-6


def test_logits_depend_on_the_distance_along_each_axis_only_at_every_position():
  q, k = jnp.asarray(_heads(1, 1, 2, 32)), jnp.asarray(_heads(1, 1, 1, 32))
  scheme = mrope.scheme((6, 5, 5), interleaved_sections=True)

  @jax.jit
  def logit(q_pos, k_pos):
    placed = scheme.query({}, q, q_pos[None, None]), scheme.key({}, k, k_pos[None, None])
    return posjax.math.heads.product(*placed)

  ids = lambda *pos: np.array(pos, np.int32)
  for distance in (ids(0, 3, 1), ids(-5, 2, 0), ids(1000, 131072, -9)):
    near = logit(distance, ids(0, 0, 0))
    for far in (ids(131072, 7, 0), ids(10**9, 10**6, 5), np.full(3, 2**31 - 10, np.int32)):
      assert error(logit(far, far - distance), near) < 1e-5


def test_two_ids_with_the_frequencies_dealt_are_pixtrals_in_another_order():
  ids = np.array([[[3, 70], [1, 9]]])
  x = _heads(1, 2, 1, 8)
  ours = jax.jit(mrope.scheme((2, 2), 1e4, True).query)({}, x, ids)
  order = np.array([0, 2, 1, 3, 4, 6, 5, 7])
  theirs = jax.jit(axial_rope.scheme(interleaved_axes=True).query)({}, x[..., order], ids)
  assert error(ours[..., order], theirs) < 1e-6


def test_float_ids_are_taken_as_given():
  x, ids = _heads(1, 2, 1, 8), np.array([[[3.25, 70.5], [1e6 + 0.5, 9.0]]], np.float32)
  out = jax.jit(mrope.scheme((2, 2)).query)({}, x, ids)
  assert error(out, _turned(x, ids, [0, 0, 1, 1], 1e4)) < 1e-6


@pytest.mark.parametrize('sections', [(4,), (), (2, 0, 2), (2, -1)])
def test_sections_that_are_none_are_refused(sections):
  with pytest.raises(ValueError, match='two or more sections, each positive, but got'):
    mrope.scheme(sections)


def test_interleaved_sections_end_at_the_last_frequency():
  """As in transformers, whose slices end there: GenLIP has (8, 12, 12) over 32 pairs."""
  taken_by = mrope.axis((8, 12, 12), interleaved_sections=True)
  assert [list(taken_by).count(a) for a in range(3)] == [11, 11, 10]
  np.testing.assert_array_equal(taken_by, np.arange(32) % 3)


def test_scaled_frequencies_take_the_place_of_ropes(key):
  x = jax.random.normal(key, (1, 5, 1, 8))
  pos = jnp.arange(5, dtype=jnp.int32)[None]
  scaled = yarn.frequencies(8, 4.0, 16)
  made = mrope.scheme((2, 2), scaled=scaled.tolist(), attention_factor=1.5)
  found = made.query({}, x, jnp.stack([pos, pos], -1))
  expected = yarn.scheme(4.0, 16, attention_factor=1.5).query({}, x, pos)
  assert error(found, expected) < 1e-6
  with pytest.raises(ValueError, match='a frequency for each of 4 pairs, but got 3'):
    mrope.scheme((2, 2), scaled=[1.0, 0.5, 0.1])


def test_heads_that_are_too_narrow_are_refused():
  x, ids = jnp.zeros((1, 2, 1, 6)), jnp.zeros((1, 2, 2), jnp.int32)
  with pytest.raises(
    ValueError, match='rotate 8 dimensions of each head, but got heads of width 6'
  ):
    mrope.scheme((2, 2)).query({}, x, ids)
