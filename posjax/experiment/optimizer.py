"""Optimizers, learning rate schedules and gradient clipping, chosen by `config.optimizer`."""

import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import optax

from posjax.arguments import Range, check_known
from posjax.keys import Rate, Share, Whole

SCHEDULES = ('constant', 'cosine', 'linear', 'vaswani')

Limit = Annotated[float, Range(above=0, most=math.inf)]  # inf limits nothing


def make(
  steps: int,
  *,
  name: Literal['adamw', 'sgd'],
  schedule: Literal['constant', 'cosine', 'linear', 'vaswani'],
  learning_rate: Rate,
  warmup_steps: Whole,
  final_fraction: Rate,
  b1: Share,
  b2: Share,
  momentum: Share | None,
  weight_decay: Rate,
  clip_norm: Limit | None,
  clip_value: Limit | None,
) -> optax.GradientTransformation:
  """The optimizer of a run: gradients are clipped, then turned into updates.

  Weight decay is decoupled from the gradients (Loshchilov and Hutter 2019,
  https://arxiv.org/abs/1711.05101), for both optimizers: a step takes learning_rate * weight_decay
  of a parameter away from it.

  Args:
    steps: how many updates the run makes.
    name: 'adamw', or 'sgd': stochastic gradient descent, with or without momentum.
    schedule: a name that `make_schedule` knows.
    learning_rate: the rate at the end of the warmup.
    warmup_steps: steps in which the rate grows linearly; fewer than `steps`.
    final_fraction: the share of the learning rate that 'cosine' and 'linear' end with; the other
      schedules do not read it.
    b1: how much of AdamW's running mean of gradients a step keeps; `sgd` does not read it.
    b2: how much of AdamW's running mean of squared gradients a step keeps; `sgd` does not read it.
    momentum: how much of its running sum of gradients `sgd` keeps at a step: m = momentum * m + g.
      None: no sum, m = g. It must be None for 'adamw'.
    weight_decay: of kernels and embeddings; norms, biases and the schemes' parameters have none.
    clip_norm: larger global gradient norms are scaled down to this one. None: no limit.
    clip_value: every number of a gradient is cut to [-clip_value, clip_value]. None: no limit.
      Where both are given, numbers are cut first.

  Raises:
    ValueError: if a name is unknown or a number is out of range.

  Example:
    >>> settings = dict(learning_rate=0.1, warmup_steps=0, final_fraction=1.0, weight_decay=0.0)
    >>> plain = dict(b1=0.9, b2=0.99, clip_norm=None, clip_value=None, schedule='constant')
    >>> optimizer = make(10, name='sgd', momentum=0.9, **settings, **plain)
    >>> updates, _ = optimizer.update(
    ...   {'w': jnp.ones(1)}, optimizer.init({'w': jnp.ones(1)}), {'w': jnp.ones(1)}
    ... )
    >>> print(updates['w'])
    [-0.1]
  """
  if name == 'adamw' and momentum is not None:
    raise ValueError(f'optimizer.momentum is for sgd; adamw has b1 and b2, but got {momentum}.')
  rates = make_schedule(
    schedule,
    steps,
    learning_rate=learning_rate,
    warmup_steps=warmup_steps,
    final_fraction=final_fraction,
  )
  # Checkpoints hold a state for each member of the chain, so its members are those that are used.
  members = [] if clip_value is None else [optax.clip(clip_value)]
  members += [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
  if name == 'adamw':
    members.append(optax.adamw(rates, b1, b2, weight_decay=weight_decay, mask=_decayed))
  else:
    members += [] if momentum is None else [optax.trace(momentum)]
    members.append(optax.add_decayed_weights(weight_decay, _decayed))
    members.append(optax.scale_by_learning_rate(rates))
  return optax.chain(*members)


def make_schedule(
  name: str, steps: int, *, learning_rate: Rate, warmup_steps: Whole, final_fraction: Rate
) -> optax.Schedule:
  """The learning rate of each update: a function of how many updates have been made before it.

  With R the learning rate, W the warmup steps, S the steps, f the final fraction and n = 0, 1, ..
  the updates before this one:

  * 'cosine': R n / W while n < W; then R (f + (1 - f) (1 + cos(pi (n - W) / (S - W))) / 2).
  * 'linear': R n / W while n < W; then R (1 + (f - 1) (n - W) / (S - W)).
  * 'constant': R n / W while n < W; then R.
  * 'vaswani': R min((n + 1) / W, sqrt(W / (n + 1))): the warmup, then the inverse square root. This
    is eq. 3 of Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, which counts updates from 1,
    with the peak R at update W in place of its 1 / sqrt(width * W). W must be at least 1.

  Args:
    name: one of these four.
    steps: S.
    learning_rate: R, which is the highest rate unless f is above 1.
    warmup_steps: W, in [0, S).
    final_fraction: f.

  Raises:
    ValueError: if the name is unknown or a number is out of range.
  """
  check_known('optimizer.schedule', name, SCHEDULES)
  if warmup_steps >= steps:
    fewer = max(steps // 10, min(steps - 1, 1))
    raise ValueError(
      f'optimizer.warmup_steps must be below steps, which are {steps}, but got {warmup_steps}: '
      f'set it, too, as with --config.optimizer.warmup_steps={fewer}.'
    )
  final = final_fraction * learning_rate
  if name == 'cosine':
    return optax.warmup_cosine_decay_schedule(0.0, learning_rate, warmup_steps, steps, final)
  if name == 'vaswani':
    return _vaswani(learning_rate, warmup_steps)
  after = {
    'linear': optax.linear_schedule(learning_rate, final, steps - warmup_steps),
    'constant': optax.constant_schedule(learning_rate),
  }
  warmup = optax.linear_schedule(0.0, learning_rate, warmup_steps)
  return optax.join_schedules([warmup, after[name]], [warmup_steps])


def _vaswani(peak: float, warmup_steps: int) -> optax.Schedule:
  if warmup_steps < 1:
    raise ValueError(
      "The schedule 'vaswani' needs warmup_steps of at least 1, since its rate falls from there on "
      f'with their square root, but got {warmup_steps}.'
    )

  def rate(count):
    update = jnp.asarray(count, jnp.float32) + 1
    return peak * jnp.minimum(update / warmup_steps, jnp.sqrt(warmup_steps / update))

  return rate


def _decayed(params):
  """True for kernels and embeddings: those that a layer norm after them makes scale-free."""
  names = ('kernel', 'embedding')
  return jax.tree_util.tree_map_with_path(
    lambda path, _: any(name in jax.tree_util.keystr(path) for name in names), params
  )
