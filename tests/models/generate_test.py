"""Generation through the cache: each row says what full passes over it alone say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.models.generate import generate, nucleus
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


# The nucleus.


def fewest(logits, p):
  """The fewest most likely tokens of probability at least p, by counting up in float64."""
  shares = np.exp(np.float64(logits) - np.float64(logits).max())
  shares /= shares.sum()
  inside, total = set(), 0.0
  for token in sorted(range(len(logits)), key=lambda token: (-shares[token], token)):
    if total >= p:
      break
    inside.add(token)
    total += shares[token]
  return inside


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_the_nucleus_are_the_fewest_tokens_that_reach_p(dtype):
  logits = jnp.asarray(3 * np.random.default_rng(3).normal(size=(8, 5, 11)), dtype)
  for p in (1e-6, 0.1, 0.5, 0.9, 0.999):
    found = nucleus(logits, p)
    assert found.dtype == dtype
    for row, every in zip(np.asarray(found).reshape(-1, 11), logits.reshape(-1, 11), strict=True):
      inside = np.flatnonzero(row > -np.inf)
      assert set(inside) == fewest(np.asarray(every, np.float64), p)
      np.testing.assert_array_equal(row[inside], every[inside])


@pytest.mark.parametrize(
  ('p', 'inside'),
  [(0.25, [2]), (0.5, [1, 2]), (0.51, [1, 2, 3]), (0.75, [1, 2, 3]), (1.0, range(5))],
)
def test_of_equally_likely_tokens_the_first_are_in_the_nucleus(p, inside):
  logits = jnp.log2(jnp.array([0.125, 0.25, 0.25, 0.25, 0.125])) * jnp.log(2.0)
  logits = logits.at[2].add(1e-6)  # a little more likely
  np.testing.assert_array_equal(jnp.flatnonzero(nucleus(logits, p) > -jnp.inf), list(inside))


def test_a_nucleus_of_1_is_everything_however_small():
  logits = jnp.array([[80.0, 0.0, -80.0, -jnp.inf, jnp.nan], [1.0, 1.0, 1.0, 1.0, -300.0]])
  np.testing.assert_array_equal(nucleus(logits, 1.0), logits)
  np.testing.assert_array_equal(jax.jit(nucleus)(logits, 1.0), logits)


def test_samples_of_the_nucleus_follow_the_model():
  model = transformer('none')
  prompt = jnp.zeros((4000, 1), jnp.int32)
  logits = np.asarray(model(prompt[:1], jnp.arange(1))[0, 0], np.float64) / 0.8
  inside = fewest(logits, 0.7)
  assert 2 < len(inside) < V - 2
  expected = np.where(np.isin(np.arange(V), list(inside)), np.exp(logits), 0)
  found = generate(model, prompt, 1, KEY, temperature=0.8, top_p=0.7)[:, 0]
  counts = np.bincount(found, minlength=V) / 4000
  assert not counts[expected == 0].any()
  np.testing.assert_allclose(counts, expected / expected.sum(), atol=0.03)


def test_the_smallest_nucleus_is_the_most_likely_token():
  model = transformer('learned')
  only = generate(model, prompts(), LENGTH, KEY, top_p=1e-6)
  np.testing.assert_array_equal(only, generate(model, prompts(), LENGTH, KEY, temperature=0.0))


# The end of a row, in a model that counts.


class Counting(nnx.Module):
  """After token t comes t + 1, or NaN from `last` on; `count` is called at each step."""

  def __init__(self, last=V, count=lambda token: None):
    self.last, self.count = last, count

  def ids(self, pos, key):
    del key
    return (pos,)

  def init_cache(self, batch, capacity):
    del capacity
    return jnp.zeros(batch)

  def extend(self, tokens, ids, caches, *, segments=None):
    del ids, segments
    jax.debug.callback(self.count, tokens[0, 0])
    logits = 50.0 * jax.nn.one_hot(tokens + 1, V)
    return jnp.where(tokens[..., None] < self.last, logits, jnp.nan), caches


def counted(prompt, length, last=V, **given):
  """What the model says, and how often it was called."""
  steps = []
  model = Counting(last, lambda token: steps.append(token))
  found = generate(model, jnp.asarray(prompt)[:, None], length, KEY, **given)
  jax.effects_barrier()
  return found.tolist(), len(steps)


def test_each_row_ends_with_its_own_token():
  found, steps = counted([0, 3, 4], 5, stop=(5, 2))
  assert found == [[1, 2, -1, -1, -1], [4, 5, -1, -1, -1], [5, -1, -1, -1, -1]]
  assert steps == 2  # the loop is done when the last row is


def test_without_tokens_that_stop_every_step_is_made():
  assert counted([0, 3], 5) == ([[1, 2, 3, 4, 5], [4, 5, 6, 7, 8]], 5)
  assert counted([0, 3], 5, stop=(11,)) == ([[1, 2, 3, 4, 5], [4, 5, 6, 7, 8]], 5)
  assert counted([0, 3], 5, stop=(8,)) == ([[1, 2, 3, 4, 5], [4, 5, 6, 7, 8]], 5)
  assert counted([0], 1, stop=(1,)) == ([[1]], 1)


def test_a_row_without_an_answer_ends_too():
  assert counted([0, 2], 6, last=3, stop=(2,)) == ([[1, 2, -1, -1, -1, -1], [3] + 5 * [-1]], 2)
  assert counted([0, 2], 6, last=3) == ([[1, 2, 3, -1, -1, -1], [3] + 5 * [-1]], 4)


def test_rows_that_stop_say_what_they_say_without_it():
  model = transformer('learned')
  whole = np.asarray(said(model))
  stop = [int(whole[0, 3]), int(whole[1, 1]), 12345]
  lengths = jnp.asarray(LENGTHS)
  found = generate(model, prompts(), LENGTH, KEY, prompt_lengths=lengths, stop=stop)
  for row, all_of_it in zip(np.asarray(found), whole, strict=True):
    ends = np.flatnonzero(np.isin(all_of_it, stop))
    count = ends[0] + 1 if len(ends) else LENGTH
    np.testing.assert_array_equal(row, np.where(np.arange(LENGTH) < count, all_of_it, -1))
  assert (found < 0).any()


def test_other_temperatures_nuclei_and_ends_compile_nothing_anew():
  """Models are keys of what is compiled: what the model is asked is traced once."""
  traced = []

  class Traced(Counting):
    def extend(self, *args, **kwargs):
      traced.append(1)
      return super().extend(*args, **kwargs)

  model, prompt = Traced(), jnp.zeros((1, 1), jnp.int32)
  for given in ({'temperature': 0.5}, {'top_p': 0.5, 'stop': [1, 2]}):
    generate(model, prompt, 3, KEY, **given)
    count = len(traced)
    changed = {name: [3, 4] if name == 'stop' else 0.7 for name in given}
    generate(model, prompt, 3, KEY, **changed)
    assert len(traced) == count


@pytest.mark.parametrize(
  ('given', 'message'),
  [
    ({'top_p': 0.0}, 'top_p must be a finite number above 0 and of at most 1, but got 0'),
    ({'top_p': 1.5}, 'top_p must be a finite number above 0 and of at most 1, but got 1.5'),
    ({'top_p': float('nan')}, 'top_p must be '),
    ({'top_p': 'x'}, "top_p must be .*, but got 'x'"),
    ({'stop': [-1]}, r'stop\[0\] must be .*, but got -1'),
    ({'stop': 3}, 'stop must be a list of integers.*, but got 3'),
    ({'temperature': float('nan')}, 'a temperature of at least 0, but got 6 tokens, 1 and nan'),
  ],
)
def test_a_nucleus_or_an_end_that_is_none_is_refused(given, message, unchecked):
  with pytest.raises((ValueError, TypeError), match=message):
    generate(transformer('none'), prompts(), 1, KEY, **given)
