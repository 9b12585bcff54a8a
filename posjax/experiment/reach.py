"""How far a checkpoint reads, with its own positions and with others, without training.

  python -m posjax.experiment.reach --checkpoint=FOLDER --data=file:TEXT \
    --schemes='own,yarn(factor=8.0, original_length=4096),grouped(group=8, window=1024)' \
    --lengths=4096,8192,16384,32768

The same held-out tokens are scored at every length, each with at most that many tokens of context.
Intervals are over documents: a jackknife that leaves out one document at a time, of the ratio of
all losses to all tokens, with Student's quantiles; differences to the first row are paired by
document. Numbers that stand somewhere in a text are asked for at its end (`needles`). `--runs` adds
models that train.py has tuned with configs/checkpoint.py. What is measured is in
`WORKDIR/results.jsonl`, a line for each row and length; the same command again measures what is not
there, and draws `reach.png`.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.errors import JaxRuntimeError
from rich.table import Table

import posjax.experiment
from posjax.experiment import needles, plain, reach_plots
from posjax.experiment.ask import OneLine
from posjax.experiment.compare.cell import versions
from posjax.experiment.compare.grid import split
from posjax.experiment.compare.origin import commit
from posjax.experiment.compare.statistics import Interval, ratio_interval, verdict
from posjax.experiment.data.vocabulary import Vocabulary
from posjax.experiment.tasks.checkpoint.task import tokenizer_of, vocabulary_of
from posjax.experiment.tasks.language_modelling import data as texts
from posjax.experiment.tasks.language_modelling.corpus import (
  Corpus,
  held_out_documents,
  held_out_windows,
  spelled,
)
from posjax.experiment.tasks.language_modelling.task import cut
from posjax.interop.pretrained import load
from posjax.interop.tokenizer import Tokenizer, tokenizer

BINS = 64  # of positions


class Row(NamedTuple):
  """A model to be measured.

  Attributes:
    name: as tables have it.
    make: `(length) -> model`, for texts of this length.
  """

  name: str
  make: Callable[[int], Any]


class Measured(NamedTuple):
  """The losses of a model at one length, by document.

  Attributes:
    losses: nats of all targets of each document.
    tokens: how many targets each document has.
    positions: mean nats in bins of positions, up to `BINS`.
  """

  losses: np.ndarray
  tokens: np.ndarray
  positions: np.ndarray


def read_by(model: Any, batch_tokens: int) -> needles.Losses:
  """The losses [N, T] of targets, and whether each is the most likely token, in bounded memory."""
  graph, state = nnx.split(model)

  @jax.jit
  def score(state, inputs, targets):
    logits = nnx.merge(graph, state)(inputs, jnp.arange(inputs.shape[1], dtype=jnp.int32))
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - picked, logits.argmax(-1) == targets

  def read(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = max(1, batch_tokens // inputs.shape[1])
    found = []
    for start in range(0, len(inputs), rows):
      part = [np.asarray(x[start : start + rows], np.int32) for x in (inputs, targets)]
      short = rows - len(part[0]) if len(inputs) > rows else 0  # so that nothing compiles anew
      padded = [np.pad(x, ((0, short), (0, 0))) for x in part]
      found.append([np.asarray(x)[: len(part[0])] for x in score(state, *padded)])
    loss, correct = (np.concatenate(each) for each in zip(*found, strict=True))
    return loss, correct

  return read


def measure(
  read: needles.Losses, windows: Sequence[Any], documents: np.ndarray, length: int
) -> Measured:
  """The losses of held-out tokens, each with at most `length` tokens of context.

  Args:
    read: of `read_by`.
    windows: of the longest length, as `held_out_windows` cuts them.
    documents: of each target, as `held_out_documents` numbers them.
    length: T, a divisor of the longest.
  """
  (whole,) = cut(windows, length, sum(window['inputs'].size for window in windows))
  loss, _ = read(whole['inputs'], whole['targets'])
  loss = loss.astype(np.float64)
  numbers = documents.reshape(loss.shape)
  sums = np.bincount(numbers.ravel(), loss.ravel())
  counts = np.bincount(numbers.ravel())
  bins = np.array_split(loss.mean(0), min(BINS, length))
  return Measured(sums[counts > 0], counts[counts > 0], np.array([each.mean() for each in bins]))


def interval_of(measured: Measured) -> Interval:
  """Nats per token, with its interval over documents."""
  return ratio_interval(measured.losses, measured.tokens)


def difference(one: Measured, first: Measured) -> Interval:
  """Nats per token more than the first model has, paired by document."""
  return ratio_interval(one.losses - first.losses, one.tokens)


def bits_per_byte(words: Vocabulary, windows: Sequence[Any]) -> float:
  """The factor from nats per token to bits per byte of the text that the targets spell."""
  targets = np.concatenate([window['targets'].ravel() for window in windows])
  spelled_bytes = len(words.decode(targets.tolist()).encode())
  return len(targets) / math.log(2) / spelled_bytes


class Settings(NamedTuple):
  """The arguments of the command; see `main`."""

  checkpoint: str | None
  runs: list[str]
  data: str
  schemes: str
  lengths: list[int]
  tokens: int
  depths: int
  trials: int
  seed: int
  dtype: str | None
  batch_tokens: int
  workdir: Path


def rows_of(given: Settings) -> tuple[list[Row], Tokenizer]:
  """The models, and the tokenizer that they share.

  Raises:
    ValueError: if there is none, or their tokens differ.
  """
  rows: list[Row] = []
  made = None
  if given.checkpoint is not None:
    made = tokenizer(given.checkpoint)
    for line in split(given.schemes):
      pattern: Any = line.split('|') if '|' in line else line

      def model(length, pattern=pattern):
        found = load(given.checkpoint or '', pattern, dtype=given.dtype, length=length)
        if not getattr(found, 'is_causal', False):
          raise ValueError(f'{given.checkpoint} must be a causal decoder, but is none.')
        return found

      rows.append(Row(line, model))
  for folder in given.runs:
    loaded = posjax.experiment.load(folder)
    if loaded.config.task.name != 'checkpoint':
      raise ValueError(f'{folder} must be a run of the task checkpoint.')
    own = tokenizer_of(loaded.task.vocabulary or {})
    if made is not None and own.encode('') + own.encode('a b') != made.encode('') + made.encode(
      'a b'
    ):
      raise ValueError(f'{folder} has other tokens than the models before it.')
    made = made or own
    name = f'{loaded.config.scheme}, tuned {loaded.config.steps} steps'
    rows.append(Row(name, lambda length, model=loaded.model: model))
  if made is None:
    raise ValueError('There is no model: give --checkpoint or --runs.')
  names = [row.name for row in rows]
  if len(set(names)) < len(names):
    raise ValueError(f'The rows must differ, but got {", ".join(names)}.')
  return rows, made


def check_lengths(lengths: Sequence[int]) -> None:
  """Raises ValueError if they do not rise, or one does not divide the longest."""
  rising = sorted({*lengths}) == [*lengths]
  if not lengths or min(lengths) < 2 or not rising or any(max(lengths) % n for n in lengths):
    raise ValueError(f'--lengths must rise and divide the last one, but got {list(lengths)}.')


def reach(given: Settings) -> list[dict[str, Any]]:
  """Measures what is not measured yet, and returns all lines, in the order of rows and lengths."""
  check_lengths(given.lengths)
  rows, made = rows_of(given)
  words = vocabulary_of(made, {})
  text = texts.read(given.data)
  corpus = Corpus(text, words, (), spelled(text, words, True))
  longest = given.lengths[-1]
  windows = held_out_windows(corpus, longest, given.tokens)
  documents = held_out_documents(corpus, longest, given.tokens)
  factor = bits_per_byte(words, windows)
  haystack = np.concatenate(corpus.held_out)
  origin = {
    **{'data': text.name, 'sha256': text.sha256, 'tokens': given.tokens, 'seed': given.seed},
    **{'checkpoint': given.checkpoint, 'depths': given.depths, 'trials': given.trials},
    **{'dtype': given.dtype, 'longest': longest},
  }
  path = given.workdir / 'results.jsonl'
  known = _known(path, origin)
  for row in rows:
    for length in given.lengths:
      if (row.name, length) in known:
        continue
      model = row.make(length)
      made.check(model.plan.vocab)
      read = read_by(model, given.batch_tokens)
      found = measure(read, windows, documents, length)
      line = {
        **origin,
        **{'name': row.name, 'length': length, 'bits_per_byte_factor': factor},
        'losses': found.losses.tolist(),
        'counts': found.tokens.tolist(),
        'positions': found.positions.tolist(),
        **{'commit': commit(), 'versions': versions()},
      }
      if given.trials:
        sizes = {'length': length, 'depths': given.depths, 'trials': given.trials}
        line['retrieval'] = needles.retrieval(read, made, haystack, **sizes, seed=given.seed)
      known[row.name, length] = line
      given.workdir.mkdir(parents=True, exist_ok=True)
      with path.open('a', encoding='utf-8') as file:
        file.write(json.dumps(line) + '\n')
      mean = interval_of(found)
      print(f'{row.name}, {length:,}: {mean.mean:.3f} nats per token', file=sys.stderr, flush=True)
  return [known[row.name, length] for row in rows for length in given.lengths]


def _known(path: Path, origin: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
  """The lines of the work folder by name and length.

  Raises:
    ValueError: if they are of other data, or of another checkpoint.
  """
  if not path.is_file():
    return {}
  lines = [json.loads(each) for each in path.read_text('utf-8').splitlines() if each.strip()]
  for line in lines:
    for name, value in origin.items():
      if line.get(name) != value:
        raise ValueError(
          f'{path} has lines with {name} {line.get(name)!r}, but this command has {value!r}: give '
          'another --workdir.'
        )
  return {(line['name'], line['length']): line for line in lines}


def measured_of(line: dict[str, Any]) -> Measured:
  """The losses of a line of results.jsonl."""
  return Measured(*(np.asarray(line[name]) for name in ('losses', 'counts', 'positions')))


def table(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
  """The rows of the table: name, length, losses, the difference to the first row, retrieval."""
  first = {line['length']: measured_of(line) for line in reversed(lines)}
  start = lines[0]['name']
  first |= {line['length']: measured_of(line) for line in lines if line['name'] == start}
  for line in lines:
    found, factor = measured_of(line), line['bits_per_byte_factor']
    mean, less = interval_of(found), difference(found, first[line['length']])
    own = line['name'] == start
    yield (
      line['name'],
      f'{line["length"]:,}',
      f'{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]',
      f'{factor * mean.mean:.3f}',
      '' if own else f'{less.mean:+.3f} [{less.low:+.3f}, {less.high:+.3f}]',
      '' if own else verdict(less, higher_is_better=False),
      *(_share(line, name) for name in needles.WORDINGS),
    )


def _share(line: dict[str, Any], name: str) -> str:
  """The share of right answers, and their loss in nats, over all depths; '' without any."""
  found = line.get('retrieval', {}).get(name)
  shares = [each for each in (found or {}).get('share', ()) if each is not None]
  if not shares:
    return ''
  nats = [each for each in found['nats'] if each is not None]
  return f'{np.mean(shares):.2f} ({np.mean(nats):.2f})'


HEADS = (
  *('positions', 'length', 'nats per token [95 %]', 'bits per byte', 'minus the first', 'verdict'),
  *('passkey (nats)', 'needle (nats)'),
)


def show(lines: Sequence[dict[str, Any]]) -> None:
  """Prints the table: drawn in a terminal, with tabs elsewhere."""
  console = plain.console()
  rows = list(table(lines))
  if not console.is_terminal:
    print('\t'.join(HEADS))
    for row in rows:
      print('\t'.join(row))
    return
  drawn = Table(*HEADS)
  for row in rows:
    drawn.add_row(*row)
  console.print(drawn)


def _whole_numbers(text: str) -> list[int]:
  return [int(each.replace('_', '')) for each in text.split(',')]


def main(arguments: Sequence[str] | None = None) -> None:
  """The command line."""
  parser = OneLine('reach', description='Measures how far a checkpoint reads.')
  add: Any = parser.add_argument
  add('--checkpoint', metavar='FOLDER', help='with config.json, safetensors, tokenizer.json')
  add('--runs', default='', help='with commas: work folders of configs/checkpoint.py')
  add('--data', default='python_docs', help="held-out text: 'file:PATH', 'python_docs', ..")
  add('--schemes', default='own', help="with commas: 'own', or lines that take its place")
  add('--lengths', type=_whole_numbers, required=True, help='tokens of context, with commas')
  add('--tokens', type=int, default=32_768, help='held-out tokens to score')
  add('--depths', type=int, default=5, help='places of a number that is asked for')
  add('--trials', type=int, default=4, help='texts for each depth; 0 asks for none')
  add('--seed', type=int, default=0, help='of the texts with numbers')
  add('--dtype', help="'float32', 'bfloat16'; by default that of the folder")
  add('--batch_tokens', type=int, default=8192, help='tokens of one pass')
  add('--workdir', type=Path, default=Path('runs/reach'), help='of results and picture')
  values = vars(parser.parse_args(arguments))
  values['runs'] = [each for each in values['runs'].split(',') if each]
  given = Settings(**values)
  logging.set_verbosity(logging.ERROR)
  try:
    lines = reach(given)
    show(lines)
    reach_plots.draw(given.workdir / 'reach.png', lines)
    print(f'{given.workdir / "reach.png"}')
  except KeyboardInterrupt:
    sys.exit(130)
  except (ValueError, TypeError, OSError, ImportError, MemoryError, JaxRuntimeError) as error:
    sys.exit(f'reach: error: {plain.sentence(error)}')


if __name__ == '__main__':
  main()
