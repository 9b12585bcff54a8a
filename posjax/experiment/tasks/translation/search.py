"""Greedy and beam search: the most likely target sentences of a `SequenceToSequence`.

A hypothesis is a target sentence in the making. Its log-probability is the sum of those of its
tokens, the end mark included, and its score is the log-probability divided by the length penalty
of Wu et al. 2016, https://arxiv.org/abs/1609.08144, eq. 14: ((5 + |Y|) / 6)^alpha. Probabilities
are the model's own over its whole vocabulary; padding (0) and the start mark are never generated.

At each step, the beam search extends the N live hypotheses of a row by every token. Of all that
come out, an ended one is a finished hypothesis if it is among the N likeliest, and the N likeliest
that have not ended live on. With one beam and alpha 0 this is greedy search. A row is searched
until no live hypothesis can beat those that are asked for, or until it reaches its own limit of
tokens. Where none has finished by then, the best live one is the answer, and is marked so.

What a row answers does not depend on its neighbours. A row whose logits become NaN before it is
done has no answer: a scheme whose table ends gives NaN beyond it.

B rows, N beams, C capacity, V vocabulary.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from posjax.models.sides import SequenceToSequence, Side
from posjax.scheme import PRNGKey

PADDING = 0


class Found(NamedTuple):
  """The answers of a search: one for each row, or N for each row, best first.

  Attributes:
    tokens: the generated tokens, the end mark included, and 0 after it.
    lengths: how many tokens are generated; 0 where there is no answer.
    scores: the log-probabilities divided by the length penalty; NaN where there is no answer, and
      -inf where there are fewer than N hypotheses.
    log_probs: of all tokens together, not divided.
    finished: whether the end mark was generated.
  """

  tokens: Int[Array, 'B *N C']
  lengths: Int[Array, 'B *N']
  scores: Float[Array, 'B *N']
  log_probs: Float[Array, 'B *N']
  finished: Bool[Array, 'B *N']


def length_penalty(
  lengths: Int[Array, '*shape'], alpha: float | Float[Array, '']
) -> Float[Array, '*shape']:
  """((5 + |Y|) / 6)^alpha.

  Example:
    >>> length_penalty(jnp.array([1, 7]), 1.0)
    Array([1., 2.], dtype=float32)
  """
  return ((5 + lengths) / 6) ** alpha


def greedy(
  model: SequenceToSequence,
  source: Side,
  *,
  start: int,
  end: int,
  max_lengths: Int[Array, ' B'],
  capacity: int,
  key: PRNGKey | None = None,
) -> Found:
  """Says the likeliest token at each step; scores are log-probabilities.

  Args:
    model: an `nnx.Module` with the calls of `SequenceToSequence`.
    source: the sentences to read.
    start: the start mark.
    end: the end mark.
    max_lengths: the most tokens that each row may have, the end mark included, 1 .. capacity.
    capacity: C, the width of the answer's rows.
    key: random key of place 0, as in `begin`.

  Raises:
    ValueError: if the marks are not two tokens other than 0, the capacity is below 1, or, outside
      jit, a limit is not in 1 .. capacity.
  """
  limits = _checked(source, start, end, max_lengths, capacity)
  graph, state = nnx.split(model)
  return _greedy(graph, state, source, limits, key, _Marks(start, end), capacity)


def beam_search(
  model: SequenceToSequence,
  source: Side,
  *,
  start: int,
  end: int,
  max_lengths: Int[Array, ' B'],
  capacity: int,
  beams: int,
  alpha: float,
  key: PRNGKey | None = None,
) -> Found:
  """The best hypothesis of each row.

  Args:
    model: as in `greedy`, as are source, start, end, max_lengths, capacity and key.
    beams: N, the hypotheses of each row that live at a time.
    alpha: the strength of the length penalty; 0 compares log-probabilities, and larger ones favour
      longer sentences.

  Raises:
    ValueError: as in `greedy`, or if there is no beam, or alpha is negative or not finite.
  """
  found = _search(
    model, source, start, end, max_lengths, capacity, beams, alpha, key, wanted=1
  )  # fmt: skip
  return jax.tree.map(lambda x: x[:, 0], found)


def n_best(
  model: SequenceToSequence,
  source: Side,
  *,
  start: int,
  end: int,
  max_lengths: Int[Array, ' B'],
  capacity: int,
  beams: int,
  alpha: float,
  key: PRNGKey | None = None,
) -> Found:
  """The N best hypotheses of each row, best first: arrays [B, N, ...].

  Finished ones come first. A row is searched until no live hypothesis can beat the worst of N
  finished ones, which takes longer than `beam_search`. Where there are fewer hypotheses than
  beams, the rest have no tokens, and score -inf.

  Args:
    model: as in `beam_search`, as are all other arguments.

  Raises:
    ValueError: as in `beam_search`.
  """
  return _search(
    model, source, start, end, max_lengths, capacity, beams, alpha, key, wanted=beams
  )  # fmt: skip


class _Marks(NamedTuple):
  start: int
  end: int


class _Hypotheses(NamedTuple):
  """Some hypotheses of each row; a log-probability of -inf says that there is none."""

  tokens: Int[Array, 'B N C']
  lengths: Int[Array, 'B N']
  log_probs: Float[Array, 'B N']


class _Rows(NamedTuple):
  """All that is known of each row at a step of the beam search.

  Attributes:
    live: the hypotheses that have not ended, likeliest first.
    ended: those that have, best first.
    done: whether the row is searched no further.
    lost: whether its logits were NaN.
  """

  live: _Hypotheses
  ended: _Hypotheses
  done: Bool[Array, ' B']
  lost: Bool[Array, ' B']


def _search(
  model, source, start, end, max_lengths, capacity, beams, alpha, key, *, wanted
) -> Found:  # fmt: skip
  limits = _checked(source, start, end, max_lengths, capacity)
  if isinstance(beams, bool) or not isinstance(beams, int) or beams < 1:
    raise ValueError(f'beams must be a whole number of at least 1, but got {beams!r}.')
  if not (isinstance(alpha, int | float) and 0 <= alpha < math.inf):
    raise ValueError(f'alpha must be a finite number of at least 0, but got {alpha!r}.')
  graph, state = nnx.split(model)
  marks = _Marks(start, end)
  return _beam_search(
    graph, state, source, limits, float(alpha), key, marks, capacity, beams, wanted
  )  # fmt: skip


def _checked(source: Side, start: int, end: int, limits: Any, capacity: int) -> Any:
  """The limits as an array of int32, after the checks that all searches share."""
  if min(start, end) <= PADDING or start == end:
    raise ValueError(
      f'The start and the end mark must be two tokens above 0, the padding, but got {start} and '
      f'{end}.'
    )
  if capacity < 1:
    raise ValueError(f'The capacity must be at least 1 token, but got {capacity}.')
  rows = source.tokens.shape[:1]
  if limits.shape != rows:
    raise ValueError(f'max_lengths must be one per row, {rows}, but got {limits.shape}.')
  if not isinstance(limits, jax.core.Tracer) and getattr(limits, 'is_fully_addressable', True):
    wrong = [int(n) for n in np.asarray(limits) if not 1 <= n <= capacity]
    if wrong:
      raise ValueError(f'max_lengths must be in 1 .. {capacity}, the capacity, but got {wrong}.')
  return jnp.asarray(limits, jnp.int32)


@functools.partial(jax.jit, static_argnames=('graph', 'marks', 'capacity'))
def _greedy(graph, state, source, limits, key, marks, capacity):
  model = nnx.merge(graph, state)
  batch = source.tokens.shape[0]
  rows = jnp.arange(batch)
  none = jnp.zeros((batch,), jnp.int32)
  begun = model.begin(source, capacity, key)
  no_answer = (limits < 1) | (limits > capacity)  # of limits that were traced

  def step(carry):
    i, begun, tokens, total, lengths, finished, done = carry
    last = jnp.where(i == 0, marks.start, tokens[:, i - 1])
    logits, begun = model.step(last, begun)
    gains = _log_probs(logits, marks)
    generated = gains.argmax(-1).astype(jnp.int32)
    total = jnp.where(done, total, total + gains[rows, generated])
    tokens = tokens.at[:, i].set(jnp.where(done, PADDING, generated))
    lengths = jnp.where(done, lengths, i + 1)
    finished = jnp.where(done, finished, generated == marks.end)
    done = done | finished | jnp.isnan(total) | (i + 1 >= limits)
    return i + 1, begun, tokens, total, lengths, finished, done

  first = (
    jnp.int32(0),
    begun,
    jnp.zeros((batch, capacity), jnp.int32),
    jnp.where(no_answer, jnp.nan, jnp.zeros((batch,), jnp.float32)),
    none,
    none > 0,
    no_answer,
  )
  going = lambda carry: (carry[0] < capacity) & ~carry[-1].all()
  _, _, tokens, total, lengths, finished, _ = jax.lax.while_loop(going, step, first)
  return _found(_Hypotheses(tokens, lengths, total), total, finished, jnp.isnan(total))


@functools.partial(jax.jit, static_argnames=('graph', 'marks', 'capacity', 'beams'))
def _beam_search(graph, state, source, limits, alpha, key, marks, capacity, beams, wanted):
  model = nnx.merge(graph, state)
  batch = source.tokens.shape[0]
  copies = jnp.repeat(jnp.arange(batch), beams)
  begun = model.select(model.begin(source, capacity, key), copies)
  scores = lambda each: each.log_probs / length_penalty(each.lengths, alpha)

  def step(carry):
    i, begun, rows = carry
    last = jnp.where(i == 0, marks.start, rows.live.tokens[:, :, i - 1])
    logits, begun = model.step(last.reshape(-1), begun)
    gains = _log_probs(logits, marks).reshape(batch, beams, -1)
    exist = rows.live.log_probs > -jnp.inf
    lost = (jnp.isnan(gains).any(-1) & exist).any(-1)
    extended, parents = _extended(rows.live, gains, i, 2 * beams)
    live, ended, parents = _divided(extended, parents, i, marks, beams)
    ended = _best(_joined(rows.ended, ended), scores, beams)[0]
    bound = live.log_probs[:, 0] / length_penalty(limits, alpha)
    settled = scores(ended)[:, wanted - 1] >= bound
    after = _Rows(live, ended, lost | settled | (i + 1 >= limits), lost)
    after = jax.tree.map(functools.partial(_where_row, rows.done), rows, after)
    flat = jnp.arange(batch)[:, None] * beams + parents
    return i + 1, model.select(begun, flat.reshape(-1)), after

  # At first there is one live hypothesis, in which nothing is generated.
  live, ended = _none(batch, beams, capacity), _none(batch, beams, capacity)
  live = live._replace(log_probs=live.log_probs.at[:, 0].set(0.0))
  no_answer = (limits < 1) | (limits > capacity)  # of limits that were traced
  first = (jnp.int32(0), begun, _Rows(live, ended, no_answer, no_answer))
  going = lambda carry: (carry[0] < capacity) & ~carry[2].done.all()
  _, _, rows = jax.lax.while_loop(going, step, first)
  every = _joined(rows.ended, rows.live)
  finished = jnp.broadcast_to(jnp.arange(2 * beams) < beams, (batch, 2 * beams))
  finished = finished & (every.log_probs > -jnp.inf)
  order = jnp.lexsort((-scores(every), ~finished))[:, :beams]
  best, finished = _taken(every, order), jnp.take_along_axis(finished, order, 1)
  return _found(best, scores(best), finished, rows.lost)


def _log_probs(logits: Float[Array, 'B V'], marks: _Marks) -> Float[Array, 'B V']:
  """The model's log-probabilities, and -inf for what is never generated."""
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  return log_probs.at[:, jnp.array([PADDING, marks.start])].set(-jnp.inf)


def _none(batch: int, beams: int, capacity: int) -> _Hypotheses:
  lengths = jnp.zeros((batch, beams), jnp.int32)
  tokens = jnp.zeros((batch, beams, capacity), jnp.int32)
  return _Hypotheses(tokens, lengths, jnp.full((batch, beams), -jnp.inf, jnp.float32))


def _extended(
  live: _Hypotheses, gains: Float[Array, 'B N V'], i: Int[Array, ''], count: int
) -> tuple[_Hypotheses, Int[Array, 'B count']]:
  """The `count` likeliest extensions by one token, and the beams that they come from."""
  batch, beams, vocab = gains.shape
  totals = live.log_probs[:, :, None] + gains
  totals = jnp.where(live.log_probs[:, :, None] == -jnp.inf, -jnp.inf, totals)
  log_probs, index = jax.lax.top_k(totals.reshape(batch, beams * vocab), count)
  parents, generated = index // vocab, (index % vocab).astype(jnp.int32)
  tokens = jnp.take_along_axis(live.tokens, parents[:, :, None], 1).at[:, :, i].set(generated)
  return _Hypotheses(tokens, jnp.broadcast_to(i + 1, generated.shape), log_probs), parents


def _divided(
  extended: _Hypotheses, parents: Int[Array, 'B M'], i: Int[Array, ''], marks: _Marks, beams: int
) -> tuple[_Hypotheses, _Hypotheses, Int[Array, 'B N']]:
  """The N likeliest that live on, those of the N likeliest that have ended, and the beams."""
  ends = extended.tokens[:, :, i] == marks.end
  among = (jnp.arange(ends.shape[1]) < beams)[None]
  ended = jnp.where(ends & among, extended.log_probs, -jnp.inf)
  living = extended._replace(log_probs=jnp.where(ends, -jnp.inf, extended.log_probs))
  live, order = _best(living, lambda each: each.log_probs, beams)
  return live, extended._replace(log_probs=ended), jnp.take_along_axis(parents, order, 1)


def _best(hypotheses: _Hypotheses, scores, count: int) -> tuple[_Hypotheses, Int[Array, 'B N']]:
  """The best by their scores, the first of equals first; and where they stood."""
  order = jax.lax.top_k(scores(hypotheses), count)[1]
  return _taken(hypotheses, order), order


def _joined(one: _Hypotheses, other: _Hypotheses) -> _Hypotheses:
  return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), one, other)


def _taken(hypotheses: _Hypotheses, order: Int[Array, 'B N']) -> _Hypotheses:
  take = lambda x: jnp.take_along_axis(x, order[..., None] if x.ndim == 3 else order, 1)
  return jax.tree.map(take, hypotheses)


def _where_row(condition: Bool[Array, ' B'], yes: Array, no: Array) -> Array:
  return jnp.where(condition.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)


def _found(
  generated: _Hypotheses, scores: Array, finished: Bool[Array, 'B *N'], lost: Bool[Array, ' B']
) -> Found:
  """The answers, emptied where there are none."""
  lost = jnp.broadcast_to(lost.reshape(-1, *(1,) * (scores.ndim - 1)), scores.shape)
  empty = lost | (generated.log_probs == -jnp.inf)
  return Found(
    jnp.where(empty[..., None], PADDING, generated.tokens),
    jnp.where(empty, 0, generated.lengths),
    jnp.where(lost, jnp.nan, scores),
    jnp.where(lost, jnp.nan, generated.log_probs),
    finished & ~empty,
  )
