"""The sentences of a batch, as taggers and parsers read them."""

import jax.numpy as jnp

from posjax.models.sentences import sentences_of


def test_the_sentences_of_a_batch_have_its_arrays_by_name_and_none_for_the_others():
  batch = {
    'inputs': jnp.array([[3, 4, 0], [5, 0, 0]]),
    'segments': jnp.array([[1, 1, 0], [1, 0, 0]]),
    'bigrams': jnp.array([[7, 8, 0], [9, 0, 0]]),
    'labels': jnp.array([[1, 2, 0], [1, 0, 0]]),
    'row': jnp.array([0, 1]),
  }
  made = sentences_of(batch)
  assert made.words is batch['inputs']
  assert made.bigrams is batch['bigrams']
  assert made.tags is None
  assert made.characters is None
  assert made.lengths.tolist() == [2, 1]
