"""Logits at the lower end of float32, and of -inf, with all gradients, against formulas in float64.

The biases of the rows: everyday ones; -2e30 alone; -2e30 beside -3e30 and -inf; -inf alone; one
-inf; -3.4e38, the least number that there is, alone and beside everyday ones.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention.blockwise import engine
from posjax.attention.pallas import fused
from posjax.scheme import Scheme
from tests.attention.small import Small
from tests.support import loops
from tests.support.loops import error

HEADS, KV_HEADS, KEYS, WIDTH = 2, 1, 5, 4
LEAST = float(np.finfo(np.float32).min)
NOT = -np.inf
ROWS = np.array(
  [
    [0.5, -1.0, 2.0, 0.0, 1.0],
    [-2e30, -2e30, -2e30, -2e30, -2e30],
    [-3e30, NOT, -2e30, -2e30, NOT],
    [NOT, NOT, NOT, NOT, NOT],
    [0.5, -1.0, NOT, 0.0, 1.0],
    [LEAST, LEAST, NOT, LEAST, NOT],
    [LEAST, 0.0, 1.0, NOT, -2e30],
  ],
  np.float32,
)
BIASES = np.stack([ROWS, ROWS[::-1]])
DRAW = np.random.default_rng(0)
Q, K, V, D_OUT = (
  DRAW.normal(size=(2, *shape)).astype(np.float32)
  for shape in ((7, HEADS, WIDTH), (5, KV_HEADS, WIDTH), (5, KV_HEADS, WIDTH), (7, HEADS, WIDTH))
)
SINKS = np.array([-1.0, NOT], np.float32)


def by_pair(params, logits, q, k, q_at, k_at):
  added = params['bias'][:, q_at[:, :, None], k_at[:, None]]
  return logits + added.swapaxes(0, 1)


def biased(biases, **places):
  """A scheme whose one parameter has the form of these biases."""
  return Scheme(init=lambda key, dims: {'bias': jnp.asarray(biases)}, **places)


def answer(implementation, scheme, biases, sinks=None, **options):
  """The output, and the gradients of q, k, v, the biases and the sinks."""
  pos = {'q_pos': jnp.arange(Q.shape[1]), 'k_pos': jnp.arange(K.shape[1])}

  def number(q, k, v, bias, sinks):
    out = posjax.attend(
      q, k, v, scheme, {'bias': bias}, **pos, sinks=sinks, implementation=implementation, **options
    )
    return (out * D_OUT).sum(), out

  args = [jnp.asarray(x) for x in (Q, K, V, biases)]
  args.append(None if sinks is None else jnp.asarray(sinks))
  grads, out = jax.grad(number, argnums=range(5 if args[-1] is not None else 4), has_aux=True)(
    *args
  )
  return [out, *grads]


def formula(biases, seen=True, cap=None, sinks=None):
  """The same, by the derivative of the softmax; the biases' for each pair, [B, H, T, S]."""
  logits = loops.content(Q, K).astype(np.float32) + biases
  seen = seen & (logits != NOT)
  wide = np.where(seen, logits, 0).astype(np.float64)
  shares = None if sinks is None else [None if sink == NOT else sink for sink in sinks]
  out, weights = np.zeros(D_OUT.shape), np.zeros(logits.shape)
  for h in range(HEADS):
    own = None if shares is None or shares[h] is None else [shares[h]]
    part = [x[:, h : h + 1] for x in (wide, np.broadcast_to(seen, logits.shape))]
    out[:, :, h : h + 1], weights[:, h : h + 1] = loops.attention(*part, V, own, cap)
  d_out, repeated = D_OUT.astype(np.float64), V.repeat(HEADS, 2).astype(np.float64)
  d_weights = np.einsum('bthe,bshe->bhts', d_out, repeated)
  d_logits = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
  if sinks is not None:
    d_sinks = -((1 - weights.sum(-1)) * (weights * d_weights).sum(-1)).sum((0, 2))
  if cap is not None:
    d_logits *= 1 - np.tanh(wide / cap) ** 2
  found = [
    out,
    np.einsum('bhts,bskd->bthd', d_logits, K.astype(np.float64)) * WIDTH**-0.5,
    np.einsum('bhts,bthd->bsd', d_logits, Q.astype(np.float64))[:, :, None] * WIDTH**-0.5,
    np.einsum('bhts,bthe->bse', weights, d_out)[:, :, None],
    d_logits,
  ]
  return found if sinks is None else [*found, d_sinks]


def same(found, expected):
  for one, other in zip(found, expected, strict=True):
    assert np.isfinite(one).all()
    assert error(one, other) <= 1e-5


def pairs(found):
  """The formula's results, the biases' summed over the rows of the batch."""
  return [x.sum(0) if x.ndim == 4 and x.shape[1:] == BIASES.shape else x for x in found]


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
OPTIONS = {'sinks': {'sinks': SINKS}, 'cap': {'logit_cap': 3.0}}


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize('implementation', ['dense', slow('blockwise')])
def test_low_logits_keep_their_order_and_those_of_minus_infinity_have_no_weight(
  implementation, options, monkeypatch
):
  monkeypatch.setattr(engine, 'tile_size', lambda *sizes: (2, 4))
  found = answer(implementation, biased(BIASES, logits=by_pair), BIASES, **options)
  sinks, cap = options.get('sinks'), options.get('logit_cap')
  same(found, pairs(formula(BIASES, cap=cap, sinks=sinks)))


# By distance: the query at 0 sees nothing, and the next ones -2e30 alone; then -3e30 beside it.
BY_DISTANCE = np.array(
  [[NOT, -2e30, -2e30, -3e30, NOT, 0.5, LEAST], [0.5, NOT, NOT, -2e30, 1.0, LEAST, 2.0]], np.float32
)


def by_distance(params, distance):
  return jnp.take(params['bias'], jnp.maximum(distance, 0), axis=1, mode='clip')


def of_distances(found):
  """The cotangents of the biases, summed over the pairs of a distance."""
  back = np.maximum(np.arange(7)[:, None] - np.arange(5), 0)
  sums = np.zeros(BY_DISTANCE.shape)
  for t, s in np.ndindex(back.shape):
    sums[:, back[t, s]] += found[4][:, :, t, s].sum(0)
  return [*found[:4], sums]


@pytest.mark.slow
@pytest.mark.parametrize('cap', [None, slow(3.0)])
@pytest.mark.parametrize('way', ['blockwise', slow('tpu'), slow('gpu')])
def test_a_bias_by_distance_of_minus_infinity_hides_a_pair_in_tiles_and_kernels(
  way, cap, monkeypatch
):
  monkeypatch.setattr(engine, 'tile_size', lambda *sizes: (4, 4))
  if way != 'blockwise':
    target_of = lambda device, mosaic=False: fused.Target(Small(way), interpret=True)
    monkeypatch.setattr(fused, 'target_of', target_of)
  implementation = way if way == 'blockwise' else 'pallas'
  scheme = biased(BY_DISTANCE, bias=by_distance)
  found = answer(implementation, scheme, BY_DISTANCE, causal=True, logit_cap=cap)
  back = np.arange(7)[:, None] - np.arange(5)
  biases = BY_DISTANCE[:, np.maximum(back, 0)]
  same(found, of_distances(formula(biases, seen=back >= 0, cap=cap)))
