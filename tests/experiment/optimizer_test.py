"""Optimizers against steps by hand, schedules against their formulas in float64."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import default
from posjax.experiment import optimizer
from posjax.experiment.settings import check

STEPS = 40


def settings(**changes):
  """The default config's optimizer, changed."""
  config = default.get_config().optimizer
  config.update(changes)
  return dict(config)


def plain(**changes):
  """SGD at a rate of 1, without anything else: an update is minus what became of the gradient."""
  base = {'name': 'sgd', 'schedule': 'constant', 'learning_rate': 1.0, 'warmup_steps': 0}
  return settings(**{**base, 'weight_decay': 0.0, 'clip_norm': None, **changes})


def formula(name, n, rate, warmup, final):
  """The rate of the update after n others, in float64."""
  if name == 'vaswani':
    return rate * min((n + 1) / warmup, math.sqrt(warmup / (n + 1)))
  if n < warmup:
    return rate * n / warmup
  way = (n - warmup) / (STEPS - warmup)
  left = {'cosine': (1 + math.cos(math.pi * way)) / 2, 'linear': 1 - way, 'constant': 1.0}[name]
  return rate * (final + (1 - final) * left)


CASES = [
  (name, warmup, final)
  for name in optimizer.SCHEDULES
  for warmup, final in [(0, 0.1), (1, 0.0), (7, 0.3), (39, 1.0)]
  if warmup or name != 'vaswani'  # which is refused without a warmup, see below
]


@pytest.mark.parametrize(('name', 'warmup', 'final'), CASES)
def test_each_schedule_is_its_formula_at_every_update(name, warmup, final):
  numbers = {'learning_rate': 3e-3, 'warmup_steps': warmup, 'final_fraction': final}
  schedule = optimizer.make_schedule(name, STEPS, **numbers)
  rates = [schedule(jnp.int32(n)) for n in range(STEPS)]
  expected = [formula(name, n, 3e-3, warmup, final) for n in range(STEPS)]
  np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=3e-3 * 1e-7)


def test_vaswanis_rate_is_equation_3_where_the_peak_is_that_of_the_paper():
  width, warmup = 512, 4000
  peak = 1 / math.sqrt(width * warmup)
  numbers = {'learning_rate': peak, 'warmup_steps': warmup, 'final_fraction': 0.1}
  schedule = optimizer.make_schedule('vaswani', 100_000, **numbers)
  for step in (1, 2, 3999, 4000, 4001, 8000, 99_999):  # the paper counts from 1
    expected = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    np.testing.assert_allclose(schedule(step - 1), expected, rtol=1e-6)


def tree(seed):
  keys = jax.random.split(jax.random.key(seed), 3)
  shapes = {'kernel': (3, 4), 'bias': (8,), 'embedding': (5, 2)}
  return {
    name: jax.random.normal(key, shape)
    for key, (name, shape) in zip(keys, shapes.items(), strict=True)
  }


def run(transform, gradients, params):
  """Parameters after each step, and the last state."""
  state, found = transform.init(params), []
  for gradient in gradients:
    updates, state = transform.update(gradient, state, params)
    params = optax.apply_updates(params, updates)
    found.append(params)
  return found, state


def test_the_default_is_the_adamw_of_earlier_versions_bit_for_bit_and_in_its_state():
  """Written as it was before there was a choice: old checkpoints hold its state."""
  schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 5, STEPS, 0.1 * 3e-3)
  decayed = {'kernel': True, 'bias': False, 'embedding': True}
  earlier = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(schedule, 0.9, 0.99, weight_decay=0.1, mask=decayed),
  )
  now = optimizer.make(STEPS, **settings(warmup_steps=5))
  gradients = [jax.tree.map(lambda leaf: 3 * leaf, tree(i)) for i in range(1, 9)]
  expected, there = run(earlier, gradients, tree(0))
  found, here = run(now, gradients, tree(0))
  chex.assert_trees_all_equal(found, expected)
  chex.assert_trees_all_equal(here, there)
  assert jax.tree.structure(here) == jax.tree.structure(there)


@pytest.mark.parametrize('momentum', [None, 0.9])
def test_sgd_makes_the_steps_of_its_formula(momentum):
  """m = momentum m + g; p = p - rate (m + decay p), without decay for the bias; in float64."""
  changes = {'momentum': momentum, 'schedule': 'linear', 'learning_rate': 0.2, 'warmup_steps': 2}
  config = plain(**changes, weight_decay=0.05, final_fraction=0.5)
  gradients = [tree(i) for i in range(1, 7)]
  found, _ = run(optimizer.make(STEPS, **config), gradients, tree(0))
  params = {name: np.float64(leaf) for name, leaf in tree(0).items()}
  sums = dict.fromkeys(params, 0.0)
  for n, (gradient, after) in enumerate(zip(gradients, found, strict=True)):
    rate = formula('linear', n, 0.2, 2, 0.5)
    for name, value in params.items():
      sums[name] = (momentum or 0.0) * sums[name] + np.float64(gradient[name])
      decay = 0.0 if name == 'bias' else 0.05
      params[name] = value - rate * (sums[name] + decay * value)
      np.testing.assert_allclose(after[name], params[name], rtol=1e-5, atol=1e-6)


def clipped(gradient, **changes):
  """What SGD at a rate of 1 makes of a gradient."""
  transform = optimizer.make(STEPS, **plain(**changes))
  params = jax.tree.map(jnp.zeros_like, gradient)
  updates, _ = transform.update(gradient, transform.init(params), params)
  return jax.tree.map(np.negative, updates)


def test_clipping_by_value_cuts_each_number():
  gradient = tree(1)
  found = clipped(gradient, clip_value=0.3)
  for name, leaf in gradient.items():
    np.testing.assert_array_equal(found[name], np.clip(leaf, np.float32(-0.3), np.float32(0.3)))
    assert 0 < (abs(leaf) > 0.3).mean() < 1  # some were cut, and some were not


def norm(gradient):
  return math.sqrt(sum(np.square(np.float64(leaf)).sum() for leaf in gradient.values()))


def test_clipping_by_norm_scales_all_numbers_alike_and_only_where_the_norm_is_larger():
  gradient = tree(1)
  for limit in (0.5, 2 * norm(gradient)):
    found, scale = clipped(gradient, clip_norm=limit), min(1.0, limit / norm(gradient))
    for name, leaf in gradient.items():
      np.testing.assert_allclose(found[name], scale * np.float64(leaf), rtol=1e-6)


def test_with_both_limits_numbers_are_cut_first():
  gradient = tree(1)
  cut = {name: np.clip(np.float64(leaf), -0.3, 0.3) for name, leaf in gradient.items()}
  found = clipped(gradient, clip_value=0.3, clip_norm=0.1)
  for name in gradient:
    np.testing.assert_allclose(found[name], 0.1 / norm(cut) * cut[name], rtol=1e-5)


@pytest.mark.parametrize('limit', [None, math.inf])
def test_without_limits_a_gradient_stays_as_it_is(limit):
  gradient = jax.tree.map(lambda leaf: 1e6 * leaf, tree(1))
  chex.assert_trees_all_equal(clipped(gradient, clip_norm=limit), gradient)


FINITE = r'must be a finite number of at least 0, but got'
SHARE = r'must be a finite number of at least 0 and below 1'
WRONG = [
  ({'name': 'adam'}, r"name must be one of 'adamw', 'sgd', but got 'adam'; did you mean 'adamw'\?"),
  ({'schedule': 'cosin'}, r"schedule must be .* but got 'cosin'; did you mean 'cosine'\?"),
  ({'learning_rate': -1e-3}, rf'optimizer\.learning_rate {FINITE} -0\.001'),
  ({'learning_rate': math.nan}, f'learning_rate {FINITE} nan'),
  ({'learning_rate': math.inf}, f'learning_rate {FINITE} inf'),
  ({'final_fraction': -0.1}, rf'final_fraction {FINITE} -0\.1'),
  ({'weight_decay': math.nan}, f'weight_decay {FINITE} nan'),
  ({'weight_decay': -1.0}, rf'weight_decay {FINITE} -1\.0'),
  ({'b1': 1.0}, rf'optimizer\.b1 {SHARE}, but got 1\.0'),
  ({'b1': 2}, f'optimizer.b1 {SHARE}, but got 2'),
  ({'b2': -0.1}, rf'b2 {SHARE}, but got -0\.1'),
  ({'b2': math.nan}, f'b2 {SHARE}, but got nan'),
  ({'momentum': 0.9}, r'momentum is for sgd; adamw has b1 and b2, but got 0\.9'),
  ({'name': 'sgd', 'momentum': 1.0}, rf'momentum {SHARE}, but got 1\.0'),
  ({'clip_norm': 0.0}, r'clip_norm must be a finite number above 0, or inf, but got 0\.0'),
  ({'clip_value': -1.0}, r'clip_value must be a finite number above 0, or inf, but got -1\.0'),
  ({'clip_value': math.nan}, r'clip_value must be a finite number above 0, or inf, but got nan'),
  (
    {'warmup_steps': 40},
    r'warmup_steps must be below steps, which are 40, but got 40: .*warmup_steps=4\.$',
  ),
  ({'warmup_steps': -1}, r'warmup_steps must be an integer of at least 0 .* but got -1'),
  (
    {'schedule': 'vaswani', 'warmup_steps': 0},
    r"'vaswani' needs warmup_steps of at least 1.*got 0",
  ),
]


@pytest.mark.parametrize(('changes', 'message'), WRONG)
def test_what_is_out_of_range_is_refused_in_one_sentence(changes, message):
  config = default.get_config()
  config.update(steps=STEPS, optimizer=settings(**{'warmup_steps': 5, **changes}))

  def make():
    check(config)
    optimizer.make(STEPS, **config.optimizer)

  with pytest.raises(ValueError, match=message):
    make()
