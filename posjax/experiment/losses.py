"""What a decoder's logits are worth."""

import jax
import jax.numpy as jnp
import optax

from posjax.experiment.tasks import Batch, Losses
from posjax.scheme import PRNGKey


def next_token(
  model, batch: Batch, ids_key: PRNGKey | None = None, train_key: PRNGKey | None = None
) -> Losses:
  """Cross-entropy of each target, in nats.

  Args:
    model: `(tokens, pos, segments=, ids_key=, train_key=) -> logits [B, T, V]`; with a `past`,
      `recur` of it.
    batch: `inputs`, `targets`, `positions`, `segments` [B, T]; `weights` too, where not every
      token of a document counts; `past`, where the model goes on from what it remembers.
    ids_key: random key of place 0.
    train_key: random key of dropout; None evaluates.
  """
  tokens = batch['inputs'], batch['positions']
  call = {'segments': batch['segments'], 'ids_key': ids_key, 'train_key': train_key}
  past = batch.get('past')
  if past is None:
    logits = model(*tokens, **call)
  else:
    logits, past = model.recur(*tokens, past, **call)
  loss = optax.softmax_cross_entropy_with_integer_labels(
    logits.astype(jnp.float32), batch['targets']
  )
  weights = batch.get('weights', batch['segments'] != 0).astype(jnp.float32)
  correct = (logits.argmax(-1) == batch['targets']).astype(jnp.float32)
  # Padding's loss may be anything, NaN too: it must not reach a sum.
  return Losses(jnp.where(weights > 0, loss, 0), weights, correct, past)


def mean_loss(losses: Losses) -> jax.Array:
  """Nats per counted token."""
  return (losses.loss * losses.weights).sum() / losses.weights.sum()
