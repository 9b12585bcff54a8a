"""The numbers of a model's reach: the tokens that all models are judged on, and their losses."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment import needles
from posjax.experiment.compare import statistics
from posjax.experiment.tasks.checkpoint import task as checkpoint
from posjax.experiment.tasks.language_modelling import data as texts
from posjax.experiment.tasks.language_modelling.corpus import (
  Corpus,
  held_out_documents,
  held_out_windows,
  spelled,
)
from posjax.interop import pretrained
from posjax.interop.tokenizer import Tokenizer
from posjax.keys import Count, Seed, Whole, check_value

BINS = 64  # of positions

Line = dict[str, Any]


class Settings(NamedTuple):
  """The numbers of a measurement.

  Attributes:
    lengths: in tokens; each divides the longest.
    tokens: held-out tokens to score; all that fill windows of the longest length, if there are
      fewer.
    depths: of the sentence with the number, evenly spaced from 0 to 1.
    trials: texts for each depth; 0 asks for no numbers.
    seed: of these texts, and of the parameters of new schemes.
    dtype: of the checkpoint's weights and computation; by default that of the folder.
    batch_tokens: tokens of a forward pass, at most, but for one row.
  """

  lengths: tuple[int, ...]
  tokens: int = 32_768
  depths: int = 5
  trials: int = 4
  seed: int = 0
  dtype: str | None = None
  batch_tokens: int = 2048

  def check(self) -> None:
    """Raises ValueError if a number is out of its range."""
    kinds = {'tokens': Count, 'depths': Count, 'trials': Whole, 'batch_tokens': Count, 'seed': Seed}
    for name, kind in kinds.items():
      check_value(name, kind, getattr(self, name))
    if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 2:
      raise ValueError(f'lengths must rise from 2 or more, but got {_list(self.lengths)}.')
    wrong = [each for each in self.lengths if self.longest % each]
    if wrong:
      raise ValueError(
        f'Each of the lengths must divide the longest, {self.longest}, but got {wrong[0]}.'
      )
    if self.tokens < self.longest:
      raise ValueError(
        f'tokens must be at least the longest length, {self.longest}, but got {self.tokens}.'
      )
    if self.dtype is not None:
      pretrained.dtype_of(self.dtype)

  @property
  def longest(self) -> int:
    """The longest length."""
    return self.lengths[-1]

  def asked(self) -> dict[str, Any]:
    """The settings that all lines of a folder share."""
    names = ('tokens', 'depths', 'trials', 'seed', 'dtype')
    return {**{name: getattr(self, name) for name in names}, 'longest': self.longest}


class Scored(NamedTuple):
  """The held-out tokens that every model is judged on.

  Attributes:
    name: the expression that named the text.
    sha256: of the text.
    tokenizer: of the tokens.
    inputs: [windows, longest].
    targets: the token after each.
    part: the number of the part of each target, from 0 on.
    parts: what a part is, 'documents' or 'windows'.
    sizes: of each part, the bytes of the text that its targets spell. Where a window ends amid a
      character, its halves count as a mark of three bytes each.
    stream: all held-out tokens.
  """

  name: str
  sha256: str
  tokenizer: Tokenizer
  inputs: np.ndarray
  targets: np.ndarray
  part: np.ndarray
  parts: str
  sizes: np.ndarray
  stream: np.ndarray

  def fingerprint(self) -> str:
    """SHA-256 of the tokens."""
    return hashlib.sha256(np.ascontiguousarray(self.targets, np.int32).tobytes()).hexdigest()


def scored(data: str, made: Tokenizer, settings: Settings) -> Scored:
  """Reads a text, and cuts what is held out of it into windows of the longest length.

  Raises:
    ValueError: if the text is too short, or cannot be spelled.
    FileNotFoundError: if there is no such text.
  """
  text, words = texts.read(data), checkpoint.vocabulary_of(made, {})
  corpus = Corpus(text, words, (), spelled(text, words, True))
  sizes = settings.longest, settings.tokens
  windows = held_out_windows(corpus, *sizes)
  join = lambda name: np.concatenate([window[name] for window in windows])
  inputs, targets = join('inputs'), join('targets')
  documents, parts = held_out_documents(corpus, *sizes), 'documents'
  if documents.min() == documents.max():
    rows = np.arange(len(targets), dtype=documents.dtype)[:, None]
    documents, parts = np.broadcast_to(rows, targets.shape), 'windows'
  _, part = np.unique(documents, return_inverse=True)
  part = part.reshape(targets.shape)
  spelt = np.zeros(part.max() + 1, np.int64)
  for row, numbers in zip(targets, part, strict=True):
    for number in np.unique(numbers):
      spelt[number] += len(made.decode(row[numbers == number]).encode())
  # A part whose tokens spell nothing would have no bits per byte.
  spelt = np.maximum(spelt, 1)
  stream = np.concatenate(corpus.held_out)
  return Scored(text.name, text.sha256, made, inputs, targets, part, parts, spelt, stream)


def measure(read: needles.Losses, text: Scored, length: int, settings: Settings) -> Line:
  """Losses and retrieval of one model at one length, as JSON holds them.

  Args:
    read: as of `reach_models.compiled`.
    text: to score.
    length: tokens of context, at most.
    settings: of the measurement.

  Returns:
    `losses`, the sums of the nats of each part's targets; `counts` and `bytes`, how many targets
    each part has, and the bytes that they spell; `positions`, the mean nats in up to 64 bins of
    positions; `parts`, what a part is; and `retrieval`, where it is asked for. Numbers that are
    none are None.
  """
  loss, _ = read(text.inputs.reshape(-1, length), text.targets.reshape(-1, length))
  loss = loss.astype(np.float64)
  bins = np.array_split(loss.mean(0), min(BINS, length))
  sums = np.bincount(text.part.ravel(), loss.ravel())
  line: Line = {
    'length': length,
    'losses': _finite(sums),
    'counts': np.bincount(text.part.ravel()).tolist(),
    'bytes': text.sizes.tolist(),
    'positions': _finite(np.array([each.mean() for each in bins])),
    'parts': text.parts,
  }
  if settings.trials:
    asked = {name: getattr(settings, name) for name in ('depths', 'trials', 'seed')}
    given = {'length': length, **asked}
    line['retrieval'] = needles.retrieval(read, text.tokenizer, text.stream, **given)
  return line


def summarized(line: Line, first: Line) -> Line:
  """A line with the numbers of the table.

  Args:
    line: as of `measure`.
    first: that of the first scheme, at the same length.

  Returns:
    The line, with `nats` per token, `bits_per_byte`, and the `difference` to the first scheme in
    nats per token, paired by parts: each with `mean`, `low` and `high`, whose ends are None where
    there is one part alone. The difference has a `verdict` and the name of the first scheme, `to`.
    They are None where a loss is no number, and the difference is for the first scheme itself.

  Raises:
    ValueError: if the lines are of other tokens.
  """
  if line['counts'] != first['counts']:
    raise ValueError('Two lines of results must be of the same tokens, but are not.')
  mine, others, counts = _losses(line), _losses(first), line['counts']
  found: Line = {'nats': None, 'bits_per_byte': None, 'difference': None}
  if mine is not None:
    found['nats'] = _plain(statistics.ratio_interval(mine, counts))
    found['bits_per_byte'] = _plain(statistics.ratio_interval(mine / math.log(2), line['bytes']))
  if mine is not None and others is not None and line['name'] != first['name']:
    apart = statistics.ratio_interval(mine - others, counts)
    word = statistics.verdict(apart, higher_is_better=False)
    found['difference'] = {'to': first['name'], **_plain(apart), 'verdict': word}
  return {**line, **found}


def _losses(line: Line) -> np.ndarray | None:
  """The losses of the parts; None where one is no number."""
  losses = None if line['losses'] is None else np.asarray(line['losses'], np.float64)
  return losses if losses is not None and np.isfinite(losses).all() else None


def _finite(array: np.ndarray) -> list[float] | None:
  return array.tolist() if np.isfinite(array).all() else None


def _plain(found: statistics.Interval) -> dict[str, float | None]:
  known = not math.isnan(found.low)
  return {
    'mean': found.mean,
    'low': found.low if known else None,
    'high': found.high if known else None,
  }


def _list(values: Sequence[int]) -> str:
  return ', '.join(map(str, values)) or 'none'
