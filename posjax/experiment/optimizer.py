"""AdamW with warmup, cosine decay and clipping; decay for matrices only."""

import jax
import optax


def make(
  steps: int,
  *,
  learning_rate: float,
  warmup_steps: int,
  final_fraction: float,
  b1: float,
  b2: float,
  weight_decay: float,
  clip_norm: float,
) -> optax.GradientTransformation:
  """The optimizer of all experiments.

  Args:
    steps: how many there will be.
    learning_rate: at the end of the warmup.
    warmup_steps: linear, from 0; fewer than `steps`.
    final_fraction: of the learning rate, at the last step.
    b1: decay of the gradients' mean.
    b2: decay of their squares' mean.
    weight_decay: per step and learning rate; norms, biases and slopes are spared.
    clip_norm: largest global gradient norm.

  Raises:
    ValueError: if the warmup does not end before the last step.
  """
  if not 0 <= warmup_steps < steps:
    raise ValueError(f'warmup_steps must be in [0, {steps}), but got {warmup_steps}.')
  schedule = optax.warmup_cosine_decay_schedule(
    0.0, learning_rate, warmup_steps, steps, final_fraction * learning_rate
  )
  return optax.chain(
    optax.clip_by_global_norm(clip_norm),
    optax.adamw(schedule, b1, b2, weight_decay=weight_decay, mask=_matrices),
  )


def _matrices(params):
  """True for kernels and embeddings: those that a layer norm after them makes scale-free."""
  names = ('kernel', 'embedding')
  return jax.tree_util.tree_map_with_path(
    lambda path, _: any(name in jax.tree_util.keystr(path) for name in names), params
  )
