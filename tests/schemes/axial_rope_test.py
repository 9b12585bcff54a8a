import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.math.angles import assigned_angles
from posjax.schemes import axial_rope, rope
from tests.support import loops
from tests.support.loops import error
from tests.support.paths import load_golden

GOLDEN = load_golden('axial_rope')
attend = jax.jit(posjax.attend, static_argnums=3, static_argnames='causal')


def _heads(*shape):
  return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _turned(x, pos, each, axis, interleaved=False):
  """x [B, T, H, D] turned in float64, pair c by pos[..., axis[c]] each[c]; ids [B, T, n]."""
  x, half = np.asarray(x, np.float64), x.shape[-1] // 2
  out = np.empty_like(x)
  for c in range(half):
    one, other = (2 * c, 2 * c + 1) if interleaved else (c, c + half)
    angle = np.asarray(pos, np.float64)[..., axis[c]] * each[c]
    pair = (x[..., one] + 1j * x[..., other]) * np.exp(1j * angle)[..., None]
    out[..., one], out[..., other] = pair.real, pair.imag
  return out


def _by_axis(head_dim, axes, base):
  """Every axis as RoPE of its share, written out: frequencies and axes of the pairs."""
  share = head_dim // axes
  each = [base ** (-2 * k / share) for _ in range(axes) for k in range(share // 2)]
  return each, [n for n in range(axes) for _ in range(share // 2)]


@pytest.mark.parametrize(
  ('axes', 'head_dim', 'interleaved'), [(2, 8, False), (2, 8, True), (3, 12, False)]
)
def test_each_axis_turns_its_share_of_the_head(axes, head_dim, interleaved):
  q, k, v = _heads(2, 5, 4, head_dim), _heads(2, 7, 2, head_dim), _heads(2, 7, 2, 3)
  draw = np.random.default_rng(1).integers
  q_pos, k_pos = draw(0, 40, (2, 5, axes)), draw(0, 40, (2, 7, axes))
  scheme = axial_rope.scheme(axes, 100.0, interleaved=interleaved)
  out = attend(q, k, v, scheme, {}, q_pos=q_pos, k_pos=k_pos)
  places = _by_axis(head_dim, axes, 100.0)
  placed = [_turned(x, pos, *places, interleaved) for x, pos in ((q, q_pos), (k, k_pos))]
  assert error(out, loops.attention(loops.content(*placed), True, v)[0]) < 1e-5


@pytest.mark.parametrize('name', 'qk')
def test_dealt_frequencies_equal_pixtral(name):
  x, expected = (GOLDEN[n].swapaxes(1, 2) for n in (f'pixtral_{name}', f'pixtral_{name}_out'))
  turn = jax.jit(axial_rope.scheme(interleaved_axes=True).query)
  assert error(turn({}, x, GOLDEN['pixtral_yx'][None].astype(np.int32)), expected) < 1e-6
  # Its halves are other frequencies.
  other = jax.jit(axial_rope.scheme().query)
  assert error(other({}, x, GOLDEN['pixtral_yx'][None].astype(np.int32)), expected) > 0.1


def test_dealt_even_frequencies_go_to_the_first_axis_and_odd_ones_to_the_second():
  each, axis = axial_rope.shares(16, interleaved_axes=True)
  np.testing.assert_allclose(each, [10000 ** (-2 * k / 16) for k in (0, 2, 4, 6, 1, 3, 5, 7)])
  np.testing.assert_array_equal(axis, [0] * 4 + [1] * 4)


def test_dinov3_is_float_ids_of_two_pi_times_the_coordinates():
  # Patch centres of a 3 x 5 grid in [-1, 1]; angle = 2 pi coordinate 100^(-4k/D), y then x.
  y, x = np.meshgrid((np.arange(3) + 0.5) / 3 * 2 - 1, (np.arange(5) + 0.5) / 5 * 2 - 1)
  coordinates = np.stack([y, x], -1).reshape(1, 15, 2)
  heads = _heads(1, 15, 2, 16)
  each = [100 ** (-4 * k / 16) for _ in 'yx' for k in range(4)]
  expected = _turned(heads, 2 * np.pi * coordinates, each, [0] * 4 + [1] * 4)
  turn = jax.jit(axial_rope.scheme(base=100.0).query)
  assert error(turn({}, heads, np.float32(2 * np.pi * coordinates)), expected) < 1e-6


def test_logits_depend_on_the_distance_along_each_axis_only_at_every_position():
  q, k = jnp.asarray(_heads(1, 1, 2, 32)), jnp.asarray(_heads(1, 1, 1, 32))
  scheme = axial_rope.scheme()

  @jax.jit
  def logit(q_pos, k_pos):
    placed = scheme.query({}, q, q_pos[None, None]), scheme.key({}, k, k_pos[None, None])
    return posjax.math.heads.product(*placed)

  ids = lambda *pos: np.array(pos, np.int32)
  for distance in (ids(0, 3), ids(-5, 2), ids(1000, 131072)):
    near = logit(distance, ids(0, 0))
    for far in (ids(131072, 7), ids(10**9, 10**6), ids(2**31 - 10, 2**31 - 1)):
      assert error(logit(far, far - distance), near) < 1e-5


def test_the_order_of_the_axes_and_each_of_them_matters():
  scheme, x = axial_rope.scheme(), _heads(1, 1, 1, 8)
  turn = jax.jit(scheme.query)
  at = lambda *pos: turn({}, x, np.array([[pos]]))
  assert error(at(3, 1), at(1, 3)) > 0.1
  np.testing.assert_array_equal(at(3, 1)[..., [1, 0, 5, 4]], at(3, 9)[..., [1, 0, 5, 4]])
  assert error(at(3, 1)[..., [2, 6]], at(3, 9)[..., [2, 6]]) > 0.1


@pytest.mark.parametrize('axes', [2, 4])
def test_dealt_with_equal_ids_is_rope(axes):
  q, k, v = _heads(1, 5, 2, 16), _heads(2, 5, 2, 16)[1:], _heads(1, 5, 2, 16)
  pos = np.array([0, 1, 5, 900, 70000])
  ids = np.repeat(pos[:, None], axes, 1)
  # The same frequencies in another order: to the logits, no difference. Heads in that order:
  _, axis = axial_rope.shares(16, axes, interleaved_axes=True)
  order = np.argsort([k % axes for k in range(8)], kind='stable')
  order = np.concatenate([order, order + 8])
  assert len(set(axis)) == axes
  out = attend(
    q[..., order],
    k[..., order],
    v,
    axial_rope.scheme(axes, interleaved_axes=True),
    {},
    q_pos=ids,
    k_pos=ids,
  )
  assert error(out, attend(q, k, v, rope.scheme(), {}, q_pos=pos, k_pos=pos)) < 1e-5


def test_a_token_at_the_origin_does_not_turn():
  x = _heads(1, 2, 2, 8)
  turned = jax.jit(axial_rope.scheme().key)({}, x, np.zeros((1, 2, 2), np.int32))
  np.testing.assert_array_equal(turned, x)


def test_angles_are_exact_far_away_and_in_any_assignment():
  pos, each = np.array([[2**31 - 5, 10**8]], np.int32), np.array([1.0, 0.5, 0.25, 0.125])
  found = assigned_angles(jnp.asarray(pos), each, np.array([0, 1, 1, 0]))
  exact = [2**31 - 5, 10**8 / 2, 10**8 / 4, (2**31 - 5) / 8]
  np.testing.assert_allclose(np.cos(found[0]), np.cos(exact), atol=1e-6)
  np.testing.assert_allclose(np.sin(found[0]), np.sin(exact), atol=1e-6)


def test_a_width_that_cannot_be_shared_is_refused():
  x, pos = np.zeros((1, 2, 1, 6), np.float32), np.zeros((1, 2, 2), np.int32)
  with pytest.raises(ValueError, match=r'of 2 axes needs .* a multiple of 4, but got 6'):
    axial_rope.scheme().query({}, jnp.asarray(x), jnp.asarray(pos))


def test_one_id_per_token_is_refused():
  x, pos = jnp.zeros((1, 2, 1, 8)), jnp.arange(2)
  with pytest.raises(ValueError, match=r'q_pos must be \(1, 2, 2\), with or without the batch'):
    posjax.attend(x, x, x, axial_rope.scheme(), {}, q_pos=pos, k_pos=pos)
