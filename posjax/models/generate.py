"""Sampling from a decoder through its KV cache: prompts at once, then token by token."""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from posjax.arguments import Fraction, Whole, read
from posjax.scheme import Ids, PRNGKey

# How a token is taken: the most likely one, one of all, or one of the nucleus.
_Way = Literal['greedy', 'all', 'nucleus']


def generate(
  model: nnx.Module,
  prompt: Int[Array, 'B T'],
  length: int,
  key: PRNGKey,
  *,
  prompt_lengths: Int[Array, ' B'] | None = None,
  temperature: float = 1.0,
  top_p: float = 1.0,
  stop: Sequence[int] = (),
) -> Int[Array, 'B length']:
  """Continues each prompt.

  Ids are drawn once for prompt and continuation together, so that a scheme which randomises them
  numbers one stream. Everything random in a row comes from `jax.random.fold_in(key, row)`: what a
  row says depends on neither the other rows nor its padding. Another temperature above 0, another
  `top_p` below 1 and as many other tokens of `stop` compile nothing anew.

  Args:
    model: a causal `Transformer`.
    prompt: tokens; shorter prompts are padded on the left.
    length: how many tokens to generate.
    key: random key, of place 0 and of the samples.
    prompt_lengths: how many tokens of each row are its prompt, the last ones, 1 .. T; by default
      all of them.
    temperature: divides the logits; 0 takes the most likely token.
    top_p: samples from the most likely tokens alone, the fewest whose probability, after the
      temperature, is at least this (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751); 1 is
      all of them.
    stop: tokens that end a row, as `stop` of a tokenizer of `posjax.interop`. Generating ends when
      all rows have ended.

  Returns:
    The generated tokens. A token of `stop` is the last one of its row, and -1 follows. It is -1,
    too, from where on a scheme has no answer: beyond its table, logits are NaN.

  Raises:
    ValueError: if a prompt is empty or, outside jit, longer than its row, or the length, the
      temperature, `top_p` or a token of `stop` is out of range.
    TypeError: if `top_p` is no number, or `stop` no sequence of integers.

  Example:
    >>> import posjax
    >>> from posjax.models.transformer import Transformer
    >>> sizes = {'num_layers': 1, 'width': 8, 'num_heads': 2}
    >>> model = Transformer(9, posjax.get('rope'), **sizes, rngs=nnx.Rngs(0))
    >>> prompts = jnp.array([[1, 2, 3], [0, 0, 4]])  # the second is [4]
    >>> lengths = jnp.array([3, 1])
    >>> said = generate(model, prompts, 5, jax.random.key(0), prompt_lengths=lengths, stop=[7])
    >>> said.shape
    (2, 5)
  """
  batch, width = prompt.shape
  if width < 1 or length < 1 or not temperature >= 0:
    raise ValueError(
      f'Generating needs a prompt, a length of at least 1 and a temperature of at least 0, but '
      f'got {width} tokens, {length} and {temperature}.'
    )
  if prompt_lengths is None:
    prompt_lengths = jnp.full(batch, width, jnp.int32)
  _check_lengths(prompt_lengths, batch, width)
  top_p = read(top_p, Fraction, 'top_p')
  ends = jnp.asarray(read(stop, Sequence[Whole], 'stop'), jnp.int32)
  way = 'greedy' if temperature == 0 else 'nucleus' if top_p < 1 else 'all'
  graph, state = nnx.split(model)
  chosen = (key, ends, float(temperature), top_p)
  return _generate(graph, state, prompt, width - prompt_lengths, length, way, *chosen)


def nucleus(logits: Float[Array, '*B V'], p: float | Float[Array, '']) -> Float[Array, '*B V']:
  """Logits whose tokens outside of the nucleus are -inf.

  The nucleus are the most likely tokens, the fewest whose probability is at least `p` (Holtzman et
  al. 2020, equation 2); of equally likely ones, those of smaller ids come first. The most
  likely one is always in it, and with p = 1 all are, however sums are rounded.

  Args:
    logits: of each token.
    p: in (0, 1].

  Example:
    >>> nucleus(jnp.log(jnp.array([0.25, 0.5, 0.125, 0.125])), 0.7)
    Array([-1.3862944, -0.6931472,       -inf,       -inf], dtype=float32)
  """
  order = jnp.argsort(logits, axis=-1, descending=True, stable=True)
  ranked = jax.nn.softmax(jnp.take_along_axis(logits, order, -1).astype(jnp.float32), -1)
  before = jnp.cumsum(ranked, -1)[..., :-1]  # the probability of all that are more likely
  first = jnp.ones_like(order[..., :1], bool)
  inside = jnp.concatenate([first, before < p], -1) | (p >= 1)
  inside = jnp.put_along_axis(jnp.zeros_like(inside), order, inside, -1, inplace=False)
  return jnp.where(inside, logits, -jnp.inf)


def _check_lengths(lengths, batch: int, width: int) -> None:
  if lengths.shape != (batch,):
    raise ValueError(f'prompt_lengths must be one per row, {(batch,)}, but got {lengths.shape}.')
  if isinstance(lengths, jax.core.Tracer):
    return
  wrong = [int(n) for n in np.asarray(lengths) if not 1 <= n <= width]
  if wrong:
    raise ValueError(f'prompt_lengths must be in 1 .. {width}, the row, but got {wrong}.')


class _Said(NamedTuple):
  """How far the rows have come.

  Attributes:
    count: how many tokens each row has, those after its end included.
    tokens: the tokens so far, and -1.
    last: the newest token of each row.
    ended: which rows say nothing more.
    caches: of the model, before `last`.
  """

  count: Int[Array, '']
  tokens: Int[Array, 'B length']
  last: Int[Array, ' B']
  ended: Bool[Array, ' B']
  caches: Any


@functools.partial(jax.jit, static_argnames=('graph', 'length', 'way'))
def _generate(graph, state, prompt, padding, length, way, key, ends, temperature, top_p):
  model = nnx.merge(graph, state)
  batch, start = prompt.shape
  row_keys = jax.vmap(lambda row: jax.random.split(jax.random.fold_in(key, row)))(jnp.arange(batch))
  ids = _ids(model, row_keys[:, 0], padding, start + length)
  segments = (jnp.arange(start)[None] >= padding[:, None]).astype(jnp.int32)

  def say(said: _Said, logits, caches) -> _Said:
    found = _sample(row_keys[:, 1], way, temperature, top_p, logits[:, -1], said.count)
    token = jnp.where(said.ended, -1, found)
    tokens = jax.lax.dynamic_update_slice_in_dim(said.tokens, token[:, None], said.count, axis=1)
    ended = (token < 0) | (token[:, None] == ends[None]).any(-1)
    return _Said(said.count + 1, tokens, token, ended, caches)

  def step(said: _Said) -> _Said:
    now = [jax.lax.dynamic_slice_in_dim(one, start + said.count - 1, 1, axis=1) for one in ids]
    last = jnp.maximum(said.last, 0)  # a row that has ended goes on with any token
    logits, caches = model.extend(last[:, None], now, said.caches)
    return say(said, logits, caches)

  nothing = jnp.full((batch, length), -1, jnp.int32)
  none = _Said(jnp.int32(0), nothing, nothing[:, 0], jnp.zeros(batch, bool), None)
  now = [one[:, :start] for one in ids]
  empty = model.init_cache(batch, start + length)
  said = say(none, *model.extend(prompt, now, empty, segments=segments))
  goes_on = lambda said: (said.count < length) & ~said.ended.all()
  return jax.lax.while_loop(goes_on, step, said).tokens


def _ids(model, keys, padding, total: int) -> list[Ids]:
  """Ids of each row, drawn as for a row without padding, then moved to the right."""

  def row(key, padding):
    index = jnp.arange(total, dtype=jnp.int32)
    pos = jnp.where(index < total - padding, index, 0)  # the rest becomes the padding
    return [jnp.roll(one, padding, axis=0) for one in model.ids(pos, key)]

  return jax.vmap(row)(keys, padding)


def _sample(keys, way: _Way, temperature, top_p, logits, i):
  """Token `i` of each row; -1 where there is none."""
  if way == 'greedy':
    tokens = logits.argmax(-1)
  else:
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
    scaled = logits / temperature
    scaled = nucleus(scaled, top_p) if way == 'nucleus' else scaled
    tokens = jax.vmap(jax.random.categorical)(keys, scaled)
  return jnp.where(jnp.isnan(logits).any(-1), -1, tokens).astype(jnp.int32)
