"""When the fused kernels compute, when the block-wise way does, and what is said of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax import attention
from posjax.attention.blockwise import engine as blockwise
from posjax.attention.pallas import fused
from tests.attention.small import HEADS, WIDTH, Case, Small
from tests.support.draws import DRAW
from tests.support.loops import error


@pytest.fixture(autouse=True)
def target(monkeypatch):
  """One of the two: which is no matter here."""
  found = fused.Target(Small('gpu'), interpret=True)
  monkeypatch.setattr(fused, 'target_of', lambda device, mosaic=False: found)


@pytest.mark.slow
@pytest.mark.parametrize(
  'line', [pytest.param('t5', marks=pytest.mark.slow), 'transformer_xl+alibi(learned=True)']
)
def test_in_a_compiled_program_any_ids_are_the_references(line):
  """The kernel where they count up, the block-wise way where they do not: one program."""
  case = Case(line)

  @functools.partial(jax.jit, static_argnums=0)
  def answer(implementation, pos):
    order = {'q_order': case.pos[-21:], 'k_order': case.pos}
    side = {'q_pos': pos[-21:], 'k_pos': pos, 'causal': True, **order}
    return case.answer(implementation, **side)

  for pos in (case.pos + 3, jnp.asarray(DRAW.permutation(29))):
    for one, other in zip(answer('pallas', pos), answer('dense', pos), strict=True):
      assert error(one, other) <= 1e-5


@pytest.mark.parametrize('shuffled', [False, True])
def test_the_program_takes_the_kernel_exactly_where_ids_count_up(shuffled, monkeypatch):
  """Poisoned, the block-wise way shows where it was taken."""
  case = Case('t5')
  poison = lambda *args: jnp.full((2, 21, HEADS, WIDTH), jnp.nan)
  monkeypatch.setattr(blockwise, 'attend', poison)
  pos = jnp.asarray(DRAW.permutation(29)) if shuffled else case.pos + 5
  args = case.q, case.k, case.v, case.params
  run = lambda pos: case.out('pallas', *args, q_pos=pos[-21:], k_pos=pos)
  assert jnp.isnan(jax.jit(run)(pos)).all() == shuffled
  assert jnp.isnan(run(pos)).all() == shuffled


asked = functools.partial(attention.chosen, implementation='pallas')

REFUSED = [
  ('shaw(max_distance=4)', {}, 'the scheme has logits'),
  ('t5', {'mask': jnp.ones((21, 29), bool)}, 'there is a mask'),
  ('t5', {'bias': jnp.ones((21, 29))}, 'the call has a bias'),
  ('t5', {'dropout_rate': 0.5, 'dropout_key': jax.random.key(0)}, 'there is dropout'),
  ('t5', {'k_pos': jnp.arange(29)[::-1]}, 'the bias is of ids that do not count up by one'),
  ('alibi', {'k_pos': 1.5 * jnp.arange(29)}, 'the bias is of ids that are not single integers'),
]


@pytest.mark.parametrize(('line', 'options', 'why'), REFUSED)
def test_what_the_kernels_cannot_compute_is_computed_block_wise(line, options, why, monkeypatch):
  case = Case(line)
  options = {'q_pos': case.pos[-21:], 'k_pos': case.pos, **options}
  args = case.q, case.k, case.v
  assert asked(*args, case.scheme, case.params, **options) == ('blockwise', why)
  monkeypatch.setattr(blockwise, 'attend', lambda *args: jnp.full((2, 21, HEADS, WIDTH), 7.0))
  out = case.out('pallas', *args, case.params, **options)
  np.testing.assert_array_equal(out, 7)


def test_other_dtypes_and_too_wide_heads_are_refused():
  case = Case('none')
  ask = lambda x: asked(x, x, x, case.scheme, {}, q_pos=case.pos, k_pos=case.pos)
  x = jnp.ones((1, 29, 1, 2))
  assert ask(x.astype(jnp.float16)).why == 'the heads are neither float32 nor bfloat16'
  assert ask(jnp.ones((1, 29, 1, 516))).why == 'a head is wider than 2048 bytes'
  assert ask(x).implementation == 'pallas'
