"""What padding holds reaches nothing: NaN and inf in it change no number and no gradient."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention.blockwise import engine
from posjax.attention.dispatch import computed
from posjax.attention.inputs import Given, read_call
from posjax.attention.pallas import fused
from posjax.scheme import declares
from tests.attention.small import Small
from tests.support.draws import DRAW

DIMS = posjax.Dims(width=16, num_heads=4, head_dim=8, num_kv_heads=2, vocab=11)
LENGTH, HEADS, KV_HEADS, WIDTH = 7, DIMS.num_heads, DIMS.num_kv_heads, DIMS.head_dim
LINES = [
  getattr(importlib.import_module(f'posjax.schemes.{name}'), 'EXAMPLE', name)
  for name in posjax.names()
]
REAL = np.array([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 0]], bool)
SEEN = REAL[:, None, :, None] & REAL[:, None, None]
SAID = {
  'segments': {'q_segments': jnp.asarray(REAL, jnp.int32), 'k_segments': jnp.asarray(REAL, int)},
  'mask': {'mask': jnp.asarray(np.broadcast_to(SEEN, (2, HEADS, LENGTH, LENGTH)))},
}
OTHERS = ['rope+alibi', *(line for line in LINES if line != 'alibi')]


class Case:
  """Attention of a scheme, and a way to fill what padding holds with any number."""

  def __init__(self, line):
    self.scheme = posjax.get(line)
    self.params = posjax.init(self.scheme, jax.random.key(0), DIMS)
    axes = self.scheme.traits.axes
    index = jnp.arange(LENGTH, dtype=jnp.int32)
    self.pos = index if axes < 2 else jnp.stack([index // 4, *[index % 4] * (axes - 1)], -1)
    normal = lambda *shape: jnp.asarray(DRAW.normal(size=(2, LENGTH, *shape)), jnp.float32)
    self.x, self.d_out = normal(DIMS.width), normal(HEADS, WIDTH)
    self.heads = normal(HEADS, WIDTH), normal(KV_HEADS, WIDTH), normal(KV_HEADS, WIDTH)

  def answer(self, number, **options):
    """The output, and the gradients of q, k, v and the parameters."""
    fill = lambda x: jnp.where(REAL.reshape(*REAL.shape, *(1,) * (x.ndim - 2)), x, number)
    d_out, heads = fill(self.d_out), jax.tree.map(fill, self.heads)
    sides = {}

    def run(heads, params):
      if declares(self.scheme, 'prepare'):
        pos = jnp.broadcast_to(self.pos, (2, *self.pos.shape))
        params, at = posjax.prepare(self.scheme, params, self.x, pos)
        spoilt = lambda x: fill(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        at = jax.tree.map(spoilt, at)
        sides.update(q_at=at, k_at=at)
      order = jnp.arange(LENGTH)
      return posjax.attend(
        *heads, self.scheme, params, q_pos=self.pos, k_pos=self.pos, q_order=order, k_order=order,
        causal=True, model_places=True, **sides, **options,
      )  # fmt: skip

    out, back = jax.vjp(run, heads, self.params)
    return [out, *jax.tree.leaves(back(d_out))]


def unchanged(case, number, **options):
  """No number differs from where padding holds zeros, and padding's own are exactly 0."""
  answer = functools.partial(case.answer, **options)
  if options['implementation'] != 'pallas':  # a compiled program knows no ids
    answer = jax.jit(answer)
  expected, found = answer(0.0), answer(number)
  for one, other in zip(found, expected, strict=True):
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(one, other)
  for x in found[:4]:
    assert (np.asarray(x)[~REAL] == 0).all()


@pytest.fixture
def small_tiles(monkeypatch):
  monkeypatch.setattr(engine, 'tile_size', lambda q, k, rows, whole, _: (4, k if whole else 4))


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize('said', SAID)
@pytest.mark.parametrize('line', ['alibi', *map(slow, OTHERS)])
def test_nan_in_padding_reaches_nothing(line, said):
  unchanged(Case(line), jnp.nan, implementation='dense', **SAID[said])


@pytest.mark.parametrize('said', ['segments', slow('mask')])
@pytest.mark.parametrize('line', ['alibi', *map(slow, OTHERS)])
def test_nan_in_padding_reaches_nothing_in_tiles(line, said, small_tiles):
  unchanged(Case(line), jnp.inf, implementation='blockwise', **SAID[said])


@pytest.mark.slow
@pytest.mark.parametrize('target', ['tpu', 'gpu'])
@pytest.mark.parametrize('line', ['rope', 'alibi'])
def test_nan_in_padding_reaches_nothing_in_kernels(line, target, monkeypatch):
  target_of = lambda device, mosaic=False: fused.Target(Small(target), interpret=True)
  monkeypatch.setattr(fused, 'target_of', target_of)
  unchanged(Case(line), jnp.nan, implementation='pallas', **SAID['segments'])


def test_what_causality_alone_hides_counts():
  case = Case('none')
  q, k, v = case.heads
  v = v.at[:, -1].set(jnp.nan)
  out = posjax.attend(
    q, k, v, case.scheme, {}, q_pos=case.pos, k_pos=case.pos, causal=True, implementation='dense'
  )
  assert np.isnan(out).any()


def test_zeros_of_a_cache_are_taken_as_they_are():
  case = Case('none')

  def out(number, zero_padding):
    q, k, v = case.heads
    k, v = (jnp.where(REAL[..., None, None], x, number) for x in (k, v))
    plain = dict.fromkeys(('scale', 'window', 'logit_cap')) | {'dropout_rate': 0.0}
    call = read_call(
      case.scheme, {}, (q, k, v),
      Given(case.pos, segments=SAID['segments']['q_segments']),
      Given(case.pos, segments=SAID['segments']['k_segments']),
      zero_padding=zero_padding, causal=False, broadcast_dropout=False, **plain,
    )  # fmt: skip
    return computed(call, 'dense')

  np.testing.assert_array_equal(out(0.0, True), out(jnp.nan, False))
  assert np.isnan(out(jnp.nan, True)).any()
