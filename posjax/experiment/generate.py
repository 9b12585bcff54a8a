"""Sampling from a decoder through its KV cache: a prompt at once, then token by token."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from posjax.scheme import PRNGKey


def generate(
  model: nnx.Module,
  prompt: Int[Array, 'B T'],
  length: int,
  key: PRNGKey,
  *,
  temperature: float = 1.0,
) -> Int[Array, 'B length']:
  """Continues each prompt.

  Ids are drawn once for prompt and continuation together, so that a scheme which randomises them
  numbers one stream.

  Args:
    model: a causal `Transformer`.
    prompt: tokens, at least one per row.
    length: how many tokens to say.
    key: random key, of place 0 and of the samples.
    temperature: divides the logits; 0 takes the most likely token.

  Returns:
    The tokens said.

  Raises:
    ValueError: if the prompt is empty, or the length or temperature is out of range.
  """
  if prompt.shape[1] < 1 or length < 1 or temperature < 0:
    raise ValueError(
      f'Generating needs a prompt, a length of at least 1 and a temperature of at least 0, but '
      f'got {prompt.shape[1]} tokens, {length} and {temperature}.'
    )
  graph, state = nnx.split(model)
  return _generate(graph, state, prompt, length, key, temperature)


@functools.partial(jax.jit, static_argnames=('graph', 'length', 'temperature'))
def _generate(graph, state, prompt, length, key, temperature):
  model = nnx.merge(graph, state)
  batch, start = prompt.shape
  ids_key, sample_key = jax.random.split(key)
  pos = jnp.broadcast_to(jnp.arange(start + length, dtype=jnp.int32), (batch, start + length))
  ids = model.ids(pos, ids_key)
  caches = model.init_cache(batch, start + length)
  logits, caches = model.extend(prompt, [one[:, :start] for one in ids], caches)
  first = _sample(logits[:, -1], jax.random.fold_in(sample_key, 0), temperature)

  def step(carry, i):
    token, caches = carry
    now = [jax.lax.dynamic_slice_in_dim(one, start + i - 1, 1, axis=1) for one in ids]
    logits, caches = model.extend(token[:, None], now, caches)
    token = _sample(logits[:, -1], jax.random.fold_in(sample_key, i), temperature)
    return (token, caches), token

  _, rest = jax.lax.scan(step, (first, caches), jnp.arange(1, length))
  return jnp.concatenate([first[:, None], rest.T], axis=1)


def _sample(logits, key, temperature):
  if temperature == 0:
    return logits.argmax(-1).astype(jnp.int32)
  return jax.random.categorical(key, logits / temperature).astype(jnp.int32)
