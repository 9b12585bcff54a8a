"""A linear-chain CRF: scores of sequences of tags, their log-partition, and the best sequence.

The score of tags y_1 .. y_n of a sentence is

  start[y_1] + sum_t emissions[t, y_t] + sum_t between[y_t, y_t+1] + end[y_n],

and its probability is exp(score - log_partition), where the log-partition is the logarithm of the
sum over all C^n sequences. All functions are pure, work under jit and in any float type, and read
nothing behind the end of a sentence: what stands there, NaN included, changes neither a result nor
a gradient. A sentence without tokens has one sequence, the empty one, of score and log-partition 0.

The log-partition goes through the sentence token by token (`lax.scan`). The other way, products of
matrices in pairs (`parallel=True`, `lax.associative_scan`), takes fewer steps one after the other,
but C times the work and the memory: with 16 sentences of 1,024 tokens and 17 tags, it takes 40
times as long on a CPU, gradient included, and 870 MB instead of 2.

TENER's code (fastNLP) has this CRF. There, illegal transitions are forbidden in decoding and not in
the log-partition; here, `constrain` forbids them wherever its result is used.

Reference: Lafferty, McCallum and Pereira 2001, https://repository.upenn.edu/cis_papers/159; Yan,
Deng, Li and Qiu 2019, https://arxiv.org/abs/1911.04474 (TENER).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array | np.ndarray

# Stands for -inf inside: of infinities the gradient would be NaN where no sequence is legal. Sums
# of it over a hundred million tokens are finite in float32.
_NEVER = -1e30


class Transitions(NamedTuple):
  """Numbers of a CRF that depend on no token; or, of booleans, which of them are legal.

  Attributes:
    between: [C, C], from the tag of the row to the tag of the column.
    start: [C], of the first tag.
    end: [C], of the last tag.
  """

  between: Array
  start: Array
  end: Array


def legal(names: Sequence[str]) -> Transitions:
  """Which BIOES tags may follow one another, begin a sentence and end it, as booleans.

  Args:
    names: of the tags, as 'O', 'B-LOC', 'I-LOC', 'E-LOC', 'S-LOC'; their numbers are their places.

  Raises:
    ValueError: a name is no BIOES tag.
  """
  for name in names:
    if name != 'O' and name[:2] not in ('B-', 'I-', 'E-', 'S-'):
      raise ValueError(f'Names of tags must be O or begin with B-, I-, E- or S-, but got {name!r}.')
  is_open = np.array([name[0] in 'BI' for name in names], bool)  # its entity goes on
  goes_on = np.array([name[0] in 'IE' for name in names], bool)  # its entity has begun
  types = np.array([name[2:] for name in names])
  same = types[:, None] == types[None]
  between = np.where(is_open[:, None], goes_on[None] & same, ~goes_on[None])
  return Transitions(between, ~goes_on, ~is_open)


def constrain(transitions: Transitions, allowed: Transitions) -> Transitions:
  """The same numbers, and -inf where something is not allowed.

  Args:
    transitions: of a CRF.
    allowed: booleans, as of `legal`.
  """
  return Transitions(
    *(jnp.where(can, number, -jnp.inf) for can, number in zip(allowed, transitions, strict=True))
  )


def nll(emissions: Array, transitions: Transitions, tags: Array, lengths: Array) -> jax.Array:
  """Negative log-likelihood of tags in nats, [B]; inf where they are illegal.

  Args:
    emissions: [B, T, C].
    transitions: of the CRF, constrained or not.
    tags: integers [B, T]; behind the end of a sentence anything may be.
    lengths: integers [B], from 0 to T.
  """
  _check(emissions, transitions, lengths, tags)
  # What is added to all tags of a token changes no probability. Without it, both numbers are small,
  # and their difference is exact to more digits.
  emissions, _ = _lowered(emissions, lengths)
  partition = log_partition(emissions, transitions, lengths)
  given = score(emissions, transitions, tags, lengths)
  legal = given > -jnp.inf  # otherwise the partition, too, may be -inf
  return jnp.where(legal, partition - jnp.where(legal, given, 0), jnp.inf)


def score(emissions: Array, transitions: Transitions, tags: Array, lengths: Array) -> jax.Array:
  """The score of given tags, [B].

  Args:
    emissions: as of `nll`.
    transitions: as of `nll`.
    tags: as of `nll`.
    lengths: as of `nll`.
  """
  _check(emissions, transitions, lengths, tags)
  if not emissions.shape[1]:
    return jnp.zeros(len(emissions), emissions.dtype)
  between, start, end = map(jnp.asarray, transitions)
  there = _there(emissions, lengths)
  tags = jnp.where(there, tags, 0)
  score = jnp.take_along_axis(jnp.asarray(emissions), tags[:, :, None], 2)[:, :, 0]
  score = jnp.where(there, score, 0).sum(1)
  score += jnp.where(there[:, 1:], between[tags[:, :-1], tags[:, 1:]], 0).sum(1)
  last = jnp.take_along_axis(tags, jnp.maximum(lengths - 1, 0)[:, None], 1)[:, 0]
  return jnp.where(lengths > 0, score + start[tags[:, 0]] + end[last], 0)


def log_partition(
  emissions: Array,
  transitions: Transitions,
  lengths: Array,
  *,
  parallel: bool = False,
) -> jax.Array:
  """The logarithm of the sum of exp(score) over all sequences of tags, [B].

  Its gradient by the emissions is the probability of each tag at each token. Where transitions of
  -inf leave no sequence, it is -inf, with a gradient of 0.

  Args:
    emissions: as of `nll`.
    transitions: as of `nll`.
    lengths: as of `nll`.
    parallel: whether matrices are multiplied in pairs instead of one token after the other; it
      needs memory for some B T C^3 numbers.
  """
  _check(emissions, transitions, lengths)
  if not emissions.shape[1]:
    return jnp.zeros(len(emissions), emissions.dtype)
  there = _there(emissions, lengths)
  emissions, lowered = _lowered(emissions, lengths)
  between, start, end = (jnp.maximum(number, _NEVER) for number in transitions)
  way = _in_pairs if parallel else _one_by_one
  sums, taken = way(start[None] + emissions[:, 0], emissions[:, 1:], between, there[:, 1:])
  found = jax.nn.logsumexp(sums + end[None], axis=1) + taken
  found = jnp.where(found > _NEVER / 2, found, -jnp.inf)
  return jnp.where(lengths > 0, found + lowered, 0)


def viterbi(
  emissions: Array, transitions: Transitions, lengths: Array
) -> tuple[jax.Array, jax.Array]:
  """The best sequence of tags of each sentence, and its score.

  Of two equally good ones it is the one whose last different tag has the smaller number.

  Args:
    emissions: as of `nll`.
    transitions: as of `nll`; `constrain` them, and no tags are illegal.
    lengths: as of `nll`.

  Returns:
    Tags, int32 [B, T], -1 behind the end of a sentence; and scores [B].
  """
  _check(emissions, transitions, lengths)
  rows, width, tags = emissions.shape
  if not width:
    return jnp.zeros((rows, 0), jnp.int32), jnp.zeros(rows, emissions.dtype)
  there = _there(emissions, lengths)
  emissions, lowered = _lowered(emissions, lengths)
  between, start, end = map(jnp.asarray, transitions)
  same = jnp.broadcast_to(jnp.arange(tags, dtype=jnp.int32), (rows, tags))

  def forward(best, token):
    emission, is_there = token
    through = best[:, :, None] + between[None]
    pointer = jnp.where(is_there[:, None], through.argmax(1).astype(jnp.int32), same)
    further = jnp.where(is_there[:, None], through.max(1) + emission, best)
    largest = further.max(1)
    taken = jnp.where(jnp.isfinite(largest), largest, 0)
    return further - taken[:, None], (pointer, taken)

  tokens = (jnp.moveaxis(emissions[:, 1:], 1, 0), there[:, 1:].T)
  best, (pointers, taken) = jax.lax.scan(forward, start[None] + emissions[:, 0], tokens)
  best += end[None]
  last = best.argmax(1).astype(jnp.int32)

  def backward(tag, pointer):
    before = jnp.take_along_axis(pointer, tag[:, None], 1)[:, 0]
    return before, before

  _, before = jax.lax.scan(backward, last, pointers, reverse=True)
  found = jnp.concatenate([before, last[None]]).T
  scores = best.max(1) + taken.sum(0) + lowered
  return jnp.where(there, found, -1), jnp.where(lengths > 0, scores, 0)


def _lowered(emissions: Array, lengths: Array) -> tuple[jax.Array, jax.Array]:
  """Emissions whose largest one is 0 at every token, and what was taken from a sentence, [B].

  Behind the end of a sentence all are 0. A sum of thousands of numbers keeps few digits in float32,
  so sums are kept small: what is common to all tags is added up apart from them.
  """
  emissions = jnp.where(_there(emissions, lengths)[:, :, None], emissions, 0)
  largest = jax.lax.stop_gradient(emissions.max(2))
  return emissions - largest[:, :, None], largest.sum(1)


def _one_by_one(
  first: jax.Array, emissions: jax.Array, between: jax.Array, there: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Log-sums [B, C] over all sequences that end in each tag, token by token.

  The C x C sums of a token are computed anew for its gradient, so that what is stored grows by
  B x C numbers with each token.

  Args:
    first: [B, C], of the first token.
    emissions: [B, T - 1, C], of the others.
    between: [C, C].
    there: whether each of the others is in its sentence, [B, T - 1].

  Returns:
    The sums, and what was taken from all sums of a sentence, [B].
  """

  @jax.checkpoint
  def step(sums, token):
    emission, is_there = token
    further = jax.nn.logsumexp(sums[:, :, None] + between[None], axis=1) + emission
    further = jnp.where(is_there[:, None], further, sums)
    taken = jax.lax.stop_gradient(further.max(1))
    return further - taken[:, None], taken

  sums, taken = jax.lax.scan(step, first, (jnp.moveaxis(emissions, 1, 0), there.T))
  return sums, taken.sum(0)


def _in_pairs(
  first: jax.Array, emissions: jax.Array, between: jax.Array, there: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The same by products of one matrix for each token, in which sums are log-sums."""
  if not emissions.shape[1]:
    return first, jnp.zeros(len(first), first.dtype)
  nothing = jnp.where(jnp.eye(len(between), dtype=bool), 0.0, _NEVER).astype(first.dtype)
  matrices = jnp.where(
    there[:, :, None, None], between[None, None] + emissions[:, :, None, :], nothing[None, None]
  )

  @jax.checkpoint
  def product(one, other):
    return jax.nn.logsumexp(one[..., :, :, None] + other[..., None, :, :], axis=-2)

  whole = jax.lax.associative_scan(product, matrices, axis=1)[:, -1]
  return jax.nn.logsumexp(first[:, :, None] + whole, axis=1), jnp.zeros(len(first), first.dtype)


def _there(emissions: Array, lengths: Array) -> jax.Array:
  """Which tokens are in their sentence, [B, T]."""
  return jnp.arange(emissions.shape[1])[None] < lengths[:, None]


def _check(
  emissions: Array,
  transitions: Transitions,
  lengths: Array,
  tags: Array | None = None,
) -> None:
  """Refuses shapes that do not fit one another."""
  if emissions.ndim != 3:
    raise ValueError(f'emissions must be [B, T, C], but got {list(emissions.shape)}.')
  rows, width, count = emissions.shape
  expected: dict[str, tuple[Array, tuple[int, ...]]] = {'lengths': (lengths, (rows,))}
  if tags is not None:
    expected['tags'] = (tags, (rows, width))
  for name, shape in zip(Transitions._fields, ((count, count), (count,), (count,)), strict=True):
    expected[f'transitions.{name}'] = (getattr(transitions, name), shape)
  for name, (array, shape) in expected.items():
    if array.shape != shape:
      raise ValueError(
        f'{name} must be {list(shape)} for emissions {list(emissions.shape)}, but got '
        f'{list(array.shape)}.'
      )
