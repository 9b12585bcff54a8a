"""Questions to learn from and questions to be judged on: `synthetic:NAME` or `file:PATH`.

Here belongs what only questions with answers need: the algorithms that make them, files of them,
and the frames that put a question and its answer into a row of tokens.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment.data.corpus import fingerprint
from posjax.experiment.data.expression import parse
from posjax.experiment.tasks.algorithmic import files as pairs_of
from posjax.experiment.tasks.algorithmic import synthetic
from posjax.experiment.tasks.algorithmic.framing import DECODER, ENCODER, MARKS, Form, Row

FORMS = (*(f'synthetic:{name}' for name in synthetic.names()), 'file:PATH')

_HELD_OUT = 1_000_003  # added to the seed: evaluation draws other questions than training
_SAMPLE = 8  # questions of a length that the hash of generated ones holds
_LONGEST = 2**20  # what is longer takes hours to make, and no model of the experiments reads it
_WIDTHS = 64  # rows of many lengths are padded to few widths, so that few programs are compiled


class Questions(NamedTuple):
  """The questions of an algorithmic task.

  Attributes:
    facts: what to report about it.
    vocabulary: the name of each token.
    train: `(batch_size, shard_index, shard_count) -> grain.IterDataset` of batches.
    lengths: what is judged: the longest training length, then unseen ones.
    judged: `(length, rows, count) ->` the same batches every time: `count` questions or a few more,
      or as many as there are; a last row of zeros counts for nothing.
  """

  facts: Mapping[str, str]
  vocabulary: tuple[str, ...]
  train: Callable[[int, int, int], Any]
  lengths: tuple[int, ...]
  judged: Callable[[int, int, int], Iterable[Row]]


def read(
  expression: str,
  form: Form,
  *,
  seed: int,
  shortest: int | None,
  longest: int,
  eval_factors: Sequence[int],
  eval_lengths: Sequence[int],
) -> Questions:
  """The questions that one line names.

  Args:
    expression: 'synthetic:NAME', a name of `questions.catalogue`; or 'file:PATH', questions and
      answers as in `questions.pairs`, where a length is that of the answer.
    form: how questions are framed: `framing.DECODER` or `framing.ENCODER`.
    seed: of generated questions.
    shortest: the shortest training length; None: the shortest there is.
    longest: the longest training length.
    eval_factors: lengths to judge, in longest training lengths, 1 first; or none.
    eval_lengths: lengths to judge, rising from the longest training length; or none.

  Raises:
    ValueError: if a number is out of range, the algorithm is unknown, a line of a file is none, or
      the expression has none of these forms.
    FileNotFoundError: if there is no file.
  """
  kind, name = parse('questions', expression, FORMS)
  sizes = {
    'seed': seed,
    'shortest': shortest,
    'longest': longest,
    'eval_factors': eval_factors,
    'eval_lengths': eval_lengths,
  }
  if kind == 'synthetic':
    return generated(name, form, **sizes)
  if form is ENCODER:
    raise ValueError(
      'Answers of a file vary in length, which empty places would tell: it needs a causal model.'
    )
  return from_file(name, **sizes)


def lengths_to_judge(
  longest: int, factors: Sequence[int], lengths: Sequence[int]
) -> tuple[int, ...]:
  """The longest training length, and what lies beyond it.

  Args:
    longest: N.
    factors: lengths in longest training lengths, 1 first; or none.
    lengths: lengths, rising from N; or none.

  Raises:
    ValueError: if both or neither are given, or they do not begin with N, or lengths do not rise
      or go beyond 2^20.
  """
  if bool(factors) == bool(lengths):
    raise ValueError(
      'Either eval_factors or eval_lengths must be given, and the other be (), but got '
      f'{tuple(factors)} and {tuple(lengths)}.'
    )
  if factors and (factors[0] != 1 or min(factors) < 1):
    raise ValueError(f'eval_factors must begin with 1, the longest length, but got {factors}.')
  if lengths and (lengths[0] != longest or any(np.diff(lengths) < 1)):
    raise ValueError(
      f'eval_lengths must rise from {longest}, the longest training length, but got '
      f'{tuple(lengths)}.'
    )
  judged = tuple(lengths) or tuple(factor * longest for factor in factors)
  if max(judged) > _LONGEST:
    raise ValueError(
      f'Lengths to learn and to judge must be at most {_LONGEST:,}, but got {max(judged):,}.'
    )
  return judged


def generated(
  name: str,
  form: Form,
  *,
  seed: int,
  shortest: int | None,
  longest: int,
  eval_factors: Sequence[int],
  eval_lengths: Sequence[int],
) -> Questions:
  """Questions of an algorithm, framed; arguments as in the task `algorithmic`.

  Raises:
    ValueError: if a number is out of range, or the algorithm is unknown.
  """
  least = synthetic.get(name).shortest
  shortest = least if shortest is None else shortest
  if shortest < least:
    raise ValueError(f'{name} begins at length {least}, but shortest is {shortest}.')
  if longest < shortest:
    raise ValueError(
      f'Lengths must be {least} <= shortest <= longest, but got {shortest}, {longest}.'
    )
  lengths = lengths_to_judge(longest, eval_factors, eval_lengths)
  synthetic.get(name).generate(np.random.default_rng(0), max(lengths))  # or says what is too long

  def train(batch_size, shard_index, shard_count):
    return synthetic.examples(
      name,
      lengths=range(shortest, longest + 1),
      batch_size=batch_size,
      seed=seed,
      width=synthetic.required_width(name, longest, form),
      form=form,
      shard_index=shard_index,
      shard_count=shard_count,
    )

  def judged(length, rows, count):
    width = synthetic.required_width(name, length, form)
    if eval_lengths:
      width += -width % _WIDTHS
    sizes = {'batch_size': rows, 'seed': seed + _HELD_OUT, 'width': width, 'form': form}
    stream = iter(synthetic.examples(name, lengths=(length,), **sizes))
    return [next(stream) for _ in range(-(-count // rows))]

  facts = {
    'training lengths': f'{shortest} to {longest}',
    'sha256': generated_hash(name, shortest, longest, lengths),
  }
  return Questions(facts, synthetic.vocabulary(name), train, lengths, judged)


def generated_hash(name: str, shortest: int, longest: int, lengths: Sequence[int]) -> str:
  """A hash of what is generated: the arguments, the version, and some questions of seed 0.

  The questions tell an algorithm that was changed though its version was forgotten, and a NumPy
  that draws other numbers.
  """
  questions = [
    synthetic.get(name).generate(np.random.default_rng((0, number)), length)
    for number in range(_SAMPLE)
    for length in (shortest, longest)
  ]
  arguments = [name, synthetic.VERSION, shortest, longest, list(lengths)]
  return fingerprint(
    [json.dumps(arguments).encode()],
    [repr([[int(word) for word in part] for part in pair]).encode() for pair in questions],
  )


def from_file(
  path: str,
  *,
  seed: int,
  shortest: int | None,
  longest: int,
  eval_factors: Sequence[int],
  eval_lengths: Sequence[int],
) -> Questions:
  """Questions of a file, framed for a decoder; a length is that of an answer.

  Learned from are the answers of `shortest` (1 if None) to `longest` words, those held out aside,
  which are judged together under the length `longest`. Judged beyond are the lengths that are
  asked for, or, where neither factors nor lengths are, all that the file has.

  Raises:
    ValueError: if a length that is asked for is not in the file, or nothing is left to learn from.
    FileNotFoundError: if there is no file.
  """
  shortest = 1 if shortest is None else shortest
  if shortest < 1:
    raise ValueError(
      f'task.shortest must be at least 1 word for answers of a file, but got {shortest}.'
    )
  data = pairs_of.read(path)
  there = data.lengths()
  if not eval_factors and not eval_lengths:
    eval_lengths = (longest, *(length for length in there if length > longest))
  lengths = lengths_to_judge(longest, eval_factors, eval_lengths)
  seen = [pair for pair in data.pairs if shortest <= len(pair.answer) <= longest]
  learned = [pair for pair in seen if not pair.held_out]
  by_length = {length: [p for p in data.pairs if len(p.answer) == length] for length in lengths}
  by_length[longest] = [pair for pair in seen if pair.held_out]
  missing = [length for length in lengths if not by_length[length]]
  if missing or not learned:
    what = f'of length {missing[0]}' if missing else f'of lengths {shortest} to {longest}'
    raise ValueError(f'{path} has no answers {what}; it has {there[0]} to {there[-1]}.')

  def framed(pair, width):
    row = DECODER.row(pair.prompt, pair.answer, len(pair.answer) + 1, width)
    return {**row, 'lengths': np.array(len(pair.answer), np.int32)}

  def width(length):
    return DECODER.width(data.most_prompt(), length, True)

  def train(batch_size, shard_index, shard_count):
    one = lambda rng: framed(learned[rng.integers(len(learned))], width(longest))
    return synthetic.batched(one, batch_size, seed, shard_index, shard_count)

  def judged(length, rows, count):
    mixed = sorted(by_length[length], key=lambda pair: zlib.crc32(repr(pair).encode()))
    chosen = [framed(pair, width(length)) for pair in mixed[:count]]
    blank = {name: np.zeros_like(array) for name, array in chosen[0].items()}
    chosen += [blank] * (-len(chosen) % rows)
    batches = [chosen[i : i + rows] for i in range(0, len(chosen), rows)]
    return [{name: np.stack([row[name] for row in b]) for name in blank} for b in batches]

  facts = {
    'training lengths': f'{shortest} to {longest}',
    'questions': f'{len(learned):,} to learn from',
    'sha256': data.sha256,
  }
  return Questions(facts, MARKS + data.alphabet, train, lengths, judged)
