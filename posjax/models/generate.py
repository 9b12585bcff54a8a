"""Sampling from a decoder through its KV cache: prompts at once, then token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int

from posjax.scheme import Ids, PRNGKey


def generate(
  model: nnx.Module,
  prompt: Int[Array, 'B T'],
  length: int,
  key: PRNGKey,
  *,
  prompt_lengths: Int[Array, ' B'] | None = None,
  temperature: float = 1.0,
) -> Int[Array, 'B length']:
  """Continues each prompt.

  Ids are drawn once for prompt and continuation together, so that a scheme which randomises them
  numbers one stream. Everything random in a row comes from `jax.random.fold_in(key, row)`: what a
  row says depends on neither the other rows nor its padding.

  Args:
    model: a causal `Transformer`.
    prompt: tokens; shorter prompts are padded on the left.
    length: how many tokens to generate.
    key: random key, of place 0 and of the samples.
    prompt_lengths: how many tokens of each row are its prompt, the last ones, 1 .. T; by default
      all of them.
    temperature: divides the logits; 0 takes the most likely token.

  Returns:
    The generated tokens; -1 from where on a scheme has no answer: beyond its table, logits are NaN.

  Raises:
    ValueError: if a prompt is empty or, outside jit, longer than its row, or the length or the
      temperature is out of range.

  Example:
    >>> import posjax
    >>> from posjax.models.transformer import Transformer
    >>> sizes = {'num_layers': 1, 'width': 8, 'num_heads': 2}
    >>> model = Transformer(9, posjax.get('rope'), **sizes, rngs=nnx.Rngs(0))
    >>> prompts = jnp.array([[1, 2, 3], [0, 0, 4]])  # the second is [4]
    >>> generate(model, prompts, 5, jax.random.key(0), prompt_lengths=jnp.array([3, 1])).shape
    (2, 5)
  """
  batch, width = prompt.shape
  if width < 1 or length < 1 or temperature < 0:
    raise ValueError(
      f'Generating needs a prompt, a length of at least 1 and a temperature of at least 0, but '
      f'got {width} tokens, {length} and {temperature}.'
    )
  if prompt_lengths is None:
    prompt_lengths = jnp.full(batch, width, jnp.int32)
  _check_lengths(prompt_lengths, batch, width)
  graph, state = nnx.split(model)
  return _generate(graph, state, prompt, width - prompt_lengths, length, key, temperature)


def _check_lengths(lengths, batch: int, width: int) -> None:
  if lengths.shape != (batch,):
    raise ValueError(f'prompt_lengths must be one per row, {(batch,)}, but got {lengths.shape}.')
  if isinstance(lengths, jax.core.Tracer):
    return
  wrong = [int(n) for n in np.asarray(lengths) if not 1 <= n <= width]
  if wrong:
    raise ValueError(f'prompt_lengths must be in 1 .. {width}, the row, but got {wrong}.')


@functools.partial(jax.jit, static_argnames=('graph', 'length', 'temperature'))
def _generate(graph, state, prompt, padding, length, key, temperature):
  model = nnx.merge(graph, state)
  batch, start = prompt.shape
  row_keys = jax.vmap(lambda row: jax.random.split(jax.random.fold_in(key, row)))(jnp.arange(batch))
  ids = _ids(model, row_keys[:, 0], padding, start + length)
  sample = functools.partial(_sample, row_keys[:, 1], temperature)
  segments = (jnp.arange(start)[None] >= padding[:, None]).astype(jnp.int32)
  caches = model.init_cache(batch, start + length)
  now = [one[:, :start] for one in ids]
  logits, caches = model.extend(prompt, now, caches, segments=segments)
  first = sample(logits[:, -1], 0)

  def step(carry, i):
    token, caches = carry
    now = [jax.lax.dynamic_slice_in_dim(one, start + i - 1, 1, axis=1) for one in ids]
    logits, caches = model.extend(token[:, None], now, caches)
    token = jnp.where(token < 0, -1, sample(logits[:, -1], i))
    return (token, caches), token

  _, rest = jax.lax.scan(step, (first, caches), jnp.arange(1, length))
  return jnp.concatenate([first[:, None], rest.T], axis=1)


def _ids(model, keys, padding, total: int) -> list[Ids]:
  """Ids of each row, drawn as for a row without padding, then moved to the right."""

  def row(key, padding):
    index = jnp.arange(total, dtype=jnp.int32)
    pos = jnp.where(index < total - padding, index, 0)  # the rest becomes the padding
    return [jnp.roll(one, padding, axis=0) for one in model.ids(pos, key)]

  return jax.vmap(row)(keys, padding)


def _sample(keys, temperature, logits, i):
  """Token `i` of each row; -1 where there is none."""
  if temperature == 0:
    tokens = logits.argmax(-1)
  else:
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
    tokens = jax.vmap(jax.random.categorical)(keys, logits / temperature)
  return jnp.where(jnp.isnan(logits).any(-1), -1, tokens).astype(jnp.int32)
