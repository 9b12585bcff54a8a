"""Losses that are means over tokens or rows, and what an evaluation asks of the same model."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from posjax.experiment.task import Batch
from posjax.scheme import PRNGKey


class Losses(NamedTuple):
  """The losses of a batch before any mean. Where a row has one answer, T is 1.

  Attributes:
    loss: nats per token.
    weights: 1 where a token counts, 0 where it does not.
    correct: 1 where the most likely token is the right one.
  """

  loss: Float[Array, 'B T']
  weights: Float[Array, 'B T']
  correct: Float[Array, 'B T']

  def mean(self) -> jax.Array:
    """Nats per token that counts."""
    return (self.loss * self.weights).sum() / self.weights.sum()


def cross_entropy(
  logits: Float[Array, 'B T V'],
  targets: Int[Array, 'B T'],
  weights: Array,
  smoothing: float = 0.0,
) -> Losses:
  """Losses of logits, where every token that counts has one right answer.

  Args:
    logits: of any float type; the losses are computed in float32.
    targets: the right answers.
    weights: [B, T], 1 or True where a token counts.
    smoothing: the share of the target distribution that all V tokens have alike, in [0, 1); the
      right answer has the rest (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7).
  """
  logits = logits.astype(jnp.float32)
  loss = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  if smoothing:
    uniform = jax.nn.logsumexp(logits, axis=-1) - logits.mean(-1)
    loss = (1 - smoothing) * loss + smoothing * uniform
  weights = weights.astype(jnp.float32)
  correct = (logits.argmax(-1) == targets).astype(jnp.float32)
  # The loss of padding may be anything, NaN included, and must not reach a sum.
  return Losses(jnp.where(weights > 0, loss, 0), weights, correct)


def token_weights(batch: Batch) -> jax.Array:
  """1, or True, for each target that counts, [B, T]."""
  return batch.get('weights', batch['segments'] != 0)


def count_tokens(batch: Batch) -> jax.Array:
  """How many targets count, as `Task.weight`."""
  return token_weights(batch).sum()


def count_rows(batch: Batch) -> int:
  """How many rows there are, as `Task.weight`."""
  return len(next(iter(batch.values())))


def next_token(
  model,
  batch: Batch,
  state: Any = None,
  ids_key: PRNGKey | None = None,
  train_key: PRNGKey | None = None,
) -> tuple[Losses, Any]:
  """Cross-entropy of each target, in nats, and what the model remembers after the batch.

  Args:
    model: `(tokens, pos, segments=, ids_key=, train_key=) -> logits [B, T, V]`; its method `recur`
      is called where there is something to remember.
    batch: `inputs`, `targets`, `positions`, `segments` [B, T]; `weights` too, where not every
      token of a document counts.
    state: what the model remembers of the batches before; None where it remembers nothing.
    ids_key: random key of place 0.
    train_key: random key of dropout; None evaluates.
  """
  tokens = batch['inputs'], batch['positions']
  call = {'segments': batch['segments'], 'ids_key': ids_key, 'train_key': train_key}
  if state is None:
    logits = model(*tokens, **call)
  else:
    logits, state = model.recur(*tokens, state, **call)
  return cross_entropy(logits, batch['targets'], token_weights(batch)), state


def mean_next_token(
  model, batch: Batch, state: Any, ids_key: PRNGKey | None, train_key: PRNGKey | None
) -> tuple[jax.Array, Any]:
  """The mean of `next_token`, as `Task.loss`."""
  losses, state = next_token(model, batch, state, ids_key, train_key)
  return losses.mean(), state


def predict_next_token(
  model, batch: Batch, state: Any, key: PRNGKey
) -> tuple[dict[str, jax.Array], Any]:
  """The arrays of `next_token`, with the targets, as `Evaluation.predict`."""
  losses, state = next_token(model, batch, state, key)
  return {**losses._asdict(), 'targets': batch['targets']}, state
