"""Generation through the cache: each row says what full passes over it alone say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models.generate import generate
from posjax.models.transformer import Transformer
from tests.support.loops import error

V, WIDTH, LENGTH = 13, 6, 6  # a prompt's row, and what is said
LENGTHS = np.array([2, 6, 1])  # tokens of each prompt
MODEL = {'num_layers': 2, 'width': 16, 'num_heads': 4, 'num_kv_heads': 2, 'tied': False}
KEY = jax.random.key(0)


def transformer(*lines, **changes):
  """A decoder that says many words; the schemes' parameters are far from their initial values."""
  model = Transformer(
    V, [posjax.get(line) for line in lines], **{**MODEL, **changes}, rngs=nnx.Rngs(1)
  )
  draw = np.random.default_rng(0).normal

  def moved(path, leaf):
    names = {entry.key for entry in path if hasattr(entry, 'key')}
    if names & {'scheme_params', 'shared'}:
      return leaf + draw(size=leaf.shape)
    return 2 * leaf if 'kernel' in names else leaf

  state = nnx.state(model, nnx.Param)
  nnx.update(model, jax.tree.map_with_path(moved, state))
  return model


@functools.cache
def prompts():
  """[B, WIDTH] tokens, what stands before each prompt being noise."""
  return jnp.asarray(np.random.default_rng(2).integers(0, V, (len(LENGTHS), WIDTH)), jnp.int32)


def row_keys(row):
  """Of place 0, and of the samples."""
  return jax.random.split(jax.random.fold_in(KEY, row))


def alone(model, ids=lambda pos, key: pos, temperature=1.0):
  """What each row says by a full pass, without padding or cache, for each token; and its logits.

  Tokens after the newest are zeros, which a causal model does not see.
  """
  graph, state = nnx.split(model)
  full = jax.jit(lambda tokens, pos: nnx.merge(graph, state)(tokens, pos)[0])
  words, logits = [], []
  for row, count in enumerate(LENGTHS):
    ids_key, sample_key = row_keys(row)
    drawn = ids(jnp.arange(count + LENGTH), ids_key)
    pos = jnp.zeros((1, WIDTH + LENGTH), drawn.dtype).at[0, : count + LENGTH].set(drawn)
    tokens = np.zeros(WIDTH + LENGTH, np.int32)
    tokens[:count] = prompts()[row, WIDTH - count :]
    for i in range(LENGTH):
      logits.append(full(jnp.asarray(tokens)[None], pos)[count + i - 1])
      key = jax.random.fold_in(sample_key, i)
      scaled = logits[-1] / temperature if temperature else logits[-1]
      tokens[count + i] = jax.random.categorical(key, scaled) if temperature else scaled.argmax()
    words.append(tokens[count : count + LENGTH])
  return np.array(words), np.array(logits).reshape(len(LENGTHS), LENGTH, V)


def through_the_cache(model, words):
  """The logits of which each of `words` was taken: prompts together, then one by one."""
  graph, state = nnx.split(model)
  extend = jax.jit(lambda *args: nnx.merge(graph, state).extend(*args[:3], segments=args[3]))
  padding = WIDTH - LENGTHS[:, None]
  pos = jnp.asarray(np.maximum(np.arange(WIDTH + LENGTH) - padding, 0), jnp.int32)
  segments = jnp.asarray(np.arange(WIDTH + LENGTH) >= padding, jnp.int32)
  tokens = jnp.concatenate([prompts(), jnp.asarray(words)], axis=1)
  caches, found = model.init_cache(len(LENGTHS), WIDTH + LENGTH), []
  ids = model.ids(pos)
  for start, stop in ((0, WIDTH), *((i, i + 1) for i in range(WIDTH, WIDTH + LENGTH - 1))):
    now = [one[:, start:stop] for one in ids]
    logits, caches = extend(tokens[:, start:stop], now, caches, segments[:, start:stop])
    found.append(logits[:, -1])
  return jnp.stack(found, axis=1)


def said(model, temperature=1.0):
  lengths = jnp.asarray(LENGTHS)
  return generate(model, prompts(), LENGTH, KEY, prompt_lengths=lengths, temperature=temperature)


LINES = ('rope', 'learned', 'sinusoidal', 'alibi', 't5', 'cope', 'forgetting')
OFTEN = ('learned',)  # rope is here with a window, and t5 in a pattern
CASES = [
  *(pytest.param(line, {}, marks=() if line in OFTEN else pytest.mark.slow) for line in LINES),
  ('rope', {'window': 3}),
  pytest.param('cope', {'window': 3}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(('line', 'changes'), CASES, ids=str)
def test_padded_prompts_say_what_each_says_alone(line, changes):
  model = transformer(line, **changes)
  expected, _ = alone(model)
  assert len(np.unique(expected)) > 4  # not one thing, whatever the model reads
  np.testing.assert_array_equal(said(model), expected)


@pytest.mark.slow
def test_the_most_likely_tokens_of_padded_prompts_are_those_of_each_row_alone():
  model = transformer('learned+rope', 't5', window=(3, None))
  expected, _ = alone(model, temperature=0.0)
  np.testing.assert_array_equal(said(model, temperature=0.0), expected)
  assert (expected != alone(model)[0]).any()


@pytest.mark.slow
@pytest.mark.parametrize('window', [None, 3])
def test_logits_of_padded_prompts_are_those_of_each_row_alone(window):
  model = transformer('learned+rope+forgetting', 'cope+t5', window=window)
  expected, logits = alone(model)
  assert error(through_the_cache(model, expected), logits) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
  ('ids', 'line'),
  [
    ('randomized(max_length=64)', 'sinusoidal'),
    pytest.param('shifted', 'sinusoidal', marks=pytest.mark.slow),
    pytest.param('cape', 'rope', marks=pytest.mark.slow),
  ],
)
def test_random_ids_of_padded_prompts_are_those_of_each_row_alone(ids, line):
  """Against the same model without place 0, given the ids that each row draws."""
  both = f'{ids}+{line}'
  expected, _ = alone(transformer(line), ids=posjax.get(both).ids)
  np.testing.assert_array_equal(said(transformer(both)), expected)
  assert (expected != alone(transformer(line))[0]).any()


def test_a_row_does_not_depend_on_its_neighbours():
  model = transformer('randomized(max_length=64)+rope')
  changed = prompts().at[0].add(1) % V
  some = generate(model, changed[:2], LENGTH, KEY, prompt_lengths=jnp.array([5, LENGTHS[1]]))
  np.testing.assert_array_equal(some[1], said(model)[1])
  assert (some[0] != said(model)[0]).any()


def test_without_lengths_every_prompt_fills_its_row():
  model = transformer('rope+alibi')
  whole = jnp.full(len(LENGTHS), WIDTH)
  found = generate(model, prompts(), LENGTH, KEY, prompt_lengths=whole)
  np.testing.assert_array_equal(generate(model, prompts(), LENGTH, KEY), found)


def test_samples_follow_the_model_and_the_key():
  model = transformer('none')
  prompt = jnp.zeros((2000, 1), jnp.int32)
  first = generate(model, prompt, 1, KEY)[:, 0]
  expected = jax.nn.softmax(model(prompt[:1], jnp.arange(1))[0, 0])
  np.testing.assert_allclose(np.bincount(first, minlength=V) / 2000, expected, atol=0.05)
  np.testing.assert_array_equal(first, generate(model, prompt, 1, KEY)[:, 0])
  assert (first != generate(model, prompt, 1, jax.random.key(1))[:, 0]).any()


@pytest.mark.parametrize(
  ('prompt', 'length', 'temperature'), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0)]
)
def test_generation_without_a_prompt_or_a_length_is_refused(prompt, length, temperature, unchecked):
  tokens = jnp.zeros((1, prompt), jnp.int32)
  with pytest.raises(ValueError, match='needs a prompt, a length of at least 1'):
    generate(transformer('none'), tokens, length, KEY, temperature=temperature)


@pytest.mark.parametrize(
  ('lengths', 'message'),
  [
    ([1, 0, 7], r'must be in 1 .. 6, the row, but got \[0, 7\]'),
    ([1, 2], r'must be one per row, \(3,\), but got \(2,\)'),
  ],
)
def test_lengths_that_do_not_fit_the_prompts_are_refused(lengths, message, unchecked):
  with pytest.raises(ValueError, match=message):
    generate(transformer('none'), prompts(), 1, KEY, prompt_lengths=jnp.array(lengths))
