"""Place 4: values that a scheme changes before they are summed, and sums that it changes after."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention import places
from posjax.attention.blockwise import engine as blockwise
from posjax.layers import layer as layers
from posjax.scheme import Scheme, Values
from tests.support import loops
from tests.support.toy_schemes import REACH, TOYS

POS = np.array([[0, 1, 4, 5, 6, 9, 12], [3, 3, 5, 6, 7, 8, 9]], np.int32)
WIDTH = 5  # of the values, unlike that of the keys


def widened(params, v, at):
  """Twice as wide: by the id of the key, and as it came."""
  return jnp.concatenate([v * at[..., None, None].astype(v.dtype), v], axis=-1)


def narrowed(params, total, at):
  """By the id of the query, the two halves as one."""
  near, plain = jnp.split(total, 2, axis=-1)
  return near - at[..., None, None].astype(total.dtype) * plain


# Together sum_j w_ij (p_j - p_i) v_j.
APART = Scheme(values=Values(value=widened, output=narrowed))
TABLES = TOYS['two_tables']._replace(init=lambda key, dims: parameters()[1])
BESIDE = posjax.chain(APART, TABLES)


@pytest.fixture(scope='module')
def heads():
  draw = np.random.default_rng(0).normal
  shapes = [(2, 7, 4, 6), (2, 7, 2, 6), (2, 7, 2, WIDTH)]
  return [draw(size=shape).astype(np.float32) for shape in shapes]


def parameters():
  """As of `two_tables`, with a table for values of this width."""
  draw = np.random.default_rng(1).normal
  tables = {'keys': draw(size=(2 * REACH + 1, 6)), 'values': draw(size=(2 * REACH + 1, WIDTH))}
  return {}, jax.tree.map(lambda table: jnp.asarray(table, jnp.float32), tables)


def attended(scheme, params, q, k, v, **options):
  """Causal attention."""
  q, k, v, pos = map(jnp.asarray, (q, k, v, POS))
  ids = {'q_pos': pos, 'k_pos': pos[:, : k.shape[1]]}
  return posjax.attend(q, k, v, scheme, params, causal=True, **ids, **options)


def reference(q, k, v, params):
  """What `BESIDE` is, by loops: the moved values, and after them the rows of the table."""
  tables = jax.tree.map(np.float64, params[1])
  apart = np.clip(POS[:, :, None] - POS[:, None], -REACH, REACH) + REACH
  scores = np.einsum('bthd,btsd->bhts', np.float64(q), tables['keys'][apart]) / np.sqrt(6)
  logits = loops.content(q, k) + scores
  _, weights = loops.attention(logits, loops.causal(POS, POS), v)
  out = np.einsum('bhts,btse->bthe', weights, tables['values'][apart])
  v = np.repeat(np.float64(v), 2, axis=2)
  for b, t, s in np.ndindex(2, 7, 7):
    out[b, t] += weights[b, :, t, s, None] * (POS[b, s] - POS[b, t]) * v[b, s]
  return out


def test_output_acts_on_the_sum_and_values_are_added_after_it(heads, monkeypatch):
  """In tiles, too, with all gradients."""
  monkeypatch.setattr(blockwise, 'tile_size', lambda *sizes: (3, 4))
  weights = jnp.cos(jnp.arange(2 * 7 * 4 * WIDTH, dtype=jnp.float32)).reshape(2, 7, 4, WIDTH)

  @functools.partial(jax.jit, static_argnums=0)
  def found(implementation, *operands):
    out, back = jax.vjp(lambda *x: attended(BESIDE, *x, implementation=implementation), *operands)
    return out, back(weights)

  dense, expected = found('dense', parameters(), *heads)
  assert loops.error(dense, reference(*heads, parameters())) < 2e-6
  tiles, grads = found('blockwise', parameters(), *heads)
  assert loops.error(tiles, dense) < 2e-6
  for one, other in zip(*map(jax.tree.leaves, (grads, expected)), strict=True):
    assert abs(one - other).max() <= 1e-5 * abs(other).max()


def test_weights_are_returned_beside_turned_values(heads):
  run = jax.jit(lambda *heads: attended(APART, {}, *heads, return_weights=True))
  out, weights = run(*heads)
  _, expected = loops.attention(loops.content(*heads[:2]), loops.causal(POS, POS), heads[2])
  assert loops.error(weights, expected) < 2e-6
  assert out.shape == (2, 7, 4, WIDTH)


def test_padding_gives_zeros_and_its_values_reach_nothing(heads):
  segments = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]], np.int32)
  q, k, v = heads
  noise = np.where(segments[..., None, None] == 0, np.nan, v)
  given = dict.fromkeys(('q_segments', 'k_segments'), jnp.asarray(segments))
  found = attended(APART, {}, q, k, noise, **given)
  np.testing.assert_array_equal(found, attended(APART, {}, q, k, v, **given))
  np.testing.assert_array_equal(np.asarray(found)[segments == 0], 0)


def test_the_width_of_the_result_is_what_value_and_output_leave_also_where_nothing_is_summed(heads):
  wide = APART._replace(values=Values(value=widened))
  q, k, v = heads
  assert attended(wide, {}, *heads).shape == (2, 7, 4, 2 * WIDTH)
  assert attended(wide, {}, q, k[:, :0], v[:, :0]).shape == (2, 7, 4, 2 * WIDTH)


def test_equal_calls_hand_equal_schemes_to_the_tiles():
  """Else an eager call would be compiled anew each time."""
  assert blockwise.in_tiles(BESIDE, 10) is blockwise.in_tiles(BESIDE, 10)
  assert [places.transforms_values(posjax.get(line)) for line in ('shaw', 'rope(values=True)')] == [
    False, True,
  ]  # fmt: skip


def test_a_layer_refuses_a_scheme_that_leaves_its_values_wider():
  wide = APART._replace(values=Values(value=widened))
  made = layers.make(12, 2, wide, None, None, False, None, None, 0.0, None, None)
  x = jnp.ones((1, 3, 2, 6))
  tokens = layers.Tokens(jnp.ones((1, 3, 12)), jnp.arange(3))
  with pytest.raises(ValueError, match='values as wide as they came, 6, but got 12'):
    layers.attention(made, {}, layers.Heads(x, x, x), tokens)
