r"""How far a checkpoint reads, with its own positions and with others, without training.

  python -m posjax.experiment.reach --checkpoint=FOLDER --data=file:TEXT \
    --schemes='own,yarn(factor=8.0, original_length=256)' --lengths=256,512,1024,2048

FOLDER is that of a Hugging Face checkpoint of a decoder, with its tokenizer; each scheme takes the
place of its positions, as `posjax.interop.load` has it. With `--runs=WORKDIR,WORKDIR`, models that
train.py tuned with the task `checkpoint` stand beside it. For each of them and each length:

- *Loss*: nats per token of held-out text, and bits per byte of it, which compare between
  tokenizers. The same tokens are scored at every length, each with at most so many before it.
- *Retrieval*: a number in a text is asked for at its end (`posjax.experiment.needles`).

Intervals of 95 % are over the documents of the text, by a jackknife that leaves out one at a time
(`statistics.ratio_interval`). Where all that is scored is of one document, the windows of the
longest length take their place. Differences to the first scheme are over the same documents, or
windows.

The work folder gets `results.jsonl`, a line for each scheme and length as soon as it is measured,
and the picture `reach.png`. The same command again goes on, and measures nothing twice.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import logging
from jax.errors import JaxRuntimeError

from posjax.experiment import plain, reach_report
from posjax.experiment import workdir as workdirs
from posjax.experiment.ask import OneLine
from posjax.experiment.compare.cell import versions
from posjax.experiment.compare.grid import split
from posjax.experiment.compare.origin import commit
from posjax.experiment.reach_models import Reader, compiled, reader_of_run, readers_of
from posjax.experiment.reach_scores import Line, Scored, Settings, measure, scored, summarized
from posjax.experiment.record import append
from posjax.interop.tokenizer import Tokenizer

RESULTS, PICTURE = 'results.jsonl', 'reach.png'


def reach(
  data: str,
  settings: Settings,
  *,
  workdir: str | Path,
  checkpoint: str | Path | None = None,
  schemes: Sequence[str] = ('own',),
  runs: Sequence[str | Path] = (),
  allow_imports: bool = False,
  say: Callable[[str], None] = lambda _: None,
) -> list[Line]:
  """Measures what is not measured yet, and draws the picture.

  Args:
    data: the text, as of the task `language_modelling`.
    settings: of the measurement.
    workdir: the folder of the results.
    checkpoint: the folder of a checkpoint; None for runs alone.
    schemes: for the checkpoint, the first of which others are compared with.
    runs: work folders of the task `checkpoint`.
    allow_imports: as of `posjax.experiment.load`.
    say: is told of each line that is measured.

  Returns:
    The lines of `results.jsonl`, by name and by length.

  Raises:
    FileNotFoundError: if a folder or the text is missing.
    ValueError: if a number, a scheme, a folder or the text cannot be used, or the work folder holds
      lines of other data, weights or settings.
  """
  settings.check()
  folder = Path(workdir)
  readers, tokenizers = [], []
  if checkpoint is not None:
    readers, made = readers_of(checkpoint, schemes, settings)
    tokenizers = [(str(checkpoint), made)]
  for run in runs:
    reader, made = reader_of_run(run, allow_imports)
    if reader.name in [each.name for each in readers]:
      reader = reader._replace(name=f'{reader.name} ({run})')
    readers.append(reader)
    tokenizers.append((str(run), made))
  if not readers:
    raise ValueError('There must be a checkpoint or runs to measure, but got neither.')
  text = scored(data, tokenizers[0][1], settings)
  origin: Line = {'data': text.name, 'sha256': text.sha256, 'scored': text.fingerprint()}
  origin |= settings.asked()
  _check_tokenizers(tokenizers, data, settings, text)
  with workdirs.held(folder) as check:
    known = read_lines(folder / RESULTS)
    _check_known(folder, known, readers, origin, settings)
    first = readers[0].name
    for reader in readers:
      _measure_all(reader, first, text, settings, folder, known, origin, check, say)
    lines = [
      summarized(known[reader.name, length], known[first, length])
      for reader in readers
      for length in settings.lengths
    ]
    reach_report.draw(folder / PICTURE, lines)
  return lines


def _measure_all(
  reader: Reader,
  first: str,
  text: Scored,
  settings: Settings,
  folder: Path,
  known: dict[tuple[str, int], Line],
  origin: Line,
  check: Callable[[], None],
  say: Callable[[str], None],
) -> None:
  """Measures a model at each length that has no line yet."""
  model, schemes = None, None
  for length in settings.lengths:
    if (reader.name, length) in known:
      continue
    begun = time.monotonic()
    if model is None or schemes != reader.schemes(length):
      model = None  # before the next one takes its place in memory
      model, schemes = reader.load(length), reader.schemes(length)
    read = compiled(model, max(1, settings.batch_tokens // length))
    line: Line = {**origin, 'name': reader.name, **measure(read, text, length, settings)}
    line |= {
      'weights': reader.sha256,
      'schemes': list(dict.fromkeys(schemes or ())),
      'seconds': time.monotonic() - begun,
      'device': jax.devices()[0].device_kind,
      'commit': commit(),
      'versions': versions(),
    }
    line = summarized(line, known.get((first, length), line))
    check()
    append(folder / RESULTS, line)
    known[reader.name, length] = line
    say(f'{reader.name}, {length} tokens: {reach_report.stated(line["nats"])} nats per token')


def read_lines(path: Path) -> dict[tuple[str, int], Line]:
  """The lines of a work folder by name and length; a last one that was cut short is left out.

  Raises:
    ValueError: if a line is none of this command.
  """
  found = {}
  content = path.read_bytes().split(b'\n')[:-1] if path.exists() else []
  for number, each in enumerate(content, start=1):
    line: Any = None
    with contextlib.suppress(ValueError, RecursionError):
      line = json.loads(each)
    names = ('name', 'length', 'losses', 'counts', 'positions', 'sha256', 'scored', 'weights')
    if not isinstance(line, dict) or not all(name in line for name in names):
      raise ValueError(
        f'{path}, line {number}, should be a measurement of reach as JSON, but is '
        f'{each[:40].decode(errors="replace")!r}: mend the line, or take it out.'
      )
    found[line['name'], line['length']] = line
  return found


def _check_known(
  folder: Path,
  known: dict[tuple[str, int], Line],
  readers: Sequence[Reader],
  origin: Line,
  settings: Settings,
) -> None:
  """Refuses a folder with lines that do not compare with those to come."""
  weights = {reader.name: reader.sha256 for reader in readers}
  for (name, _), line in known.items():
    other = [key for key, value in settings.asked().items() if line.get(key) != value]
    if line['sha256'] != origin['sha256']:
      what = f'data with the sha256 {line["sha256"]}, but they now have {origin["sha256"]}'
    elif other:
      what = f'another {", ".join(other)}'
    elif line['scored'] != origin['scored']:
      what = 'other tokens, as another tokenizer makes them'
    elif line['weights'] != weights.get(name, line['weights']):
      what = f'other weights of {name}'
    else:
      continue
    raise ValueError(f'{folder} holds measurements of {what}; give another --workdir.')


def _check_tokenizers(
  tokenizers: Sequence[tuple[str, Tokenizer]], data: str, settings: Settings, text: Scored
) -> None:
  """Refuses models that do not read the same tokens."""
  for name, made in tokenizers[1:]:
    if scored(data, made, settings).fingerprint() != text.fingerprint():
      raise ValueError(
        f'All models must read the same tokens, but the tokenizer of {name} makes others of '
        f'{text.name} than that of {tokenizers[0][0]}.'
      )


def _lengths(text: str) -> tuple[int, ...]:
  try:
    return tuple(sorted(int(each) for each in split(text)))
  except ValueError:
    raise ValueError(f'--lengths must read like 256,512,1024, but got {text!r}.') from None


def main(arguments: Sequence[str] | None = None) -> None:
  """The command line."""
  usual = Settings(())
  parser = OneLine('reach', description='How far a checkpoint reads, without training.')
  parser.add_argument('--checkpoint', metavar='FOLDER', help='of a Hugging Face checkpoint')
  parser.add_argument('--data', default='python_docs', help='the text, as file:PATH')
  parser.add_argument(
    '--schemes', default='own', help="'own' and lines; the first is what others are compared with"
  )
  parser.add_argument('--runs', metavar='WORKDIRS', help='tuned models: work folders of train.py')
  parser.add_argument('--lengths', required=True, help='as 256,512,1024: each divides the longest')
  parser.add_argument('--tokens', type=int, default=usual.tokens, help='held-out tokens to score')
  parser.add_argument('--depths', type=int, default=usual.depths, help='of numbers in texts')
  parser.add_argument('--trials', type=int, default=usual.trials, help='texts for each depth')
  parser.add_argument('--no-retrieval', action='store_true', help='as --trials=0')
  parser.add_argument('--seed', type=int, default=usual.seed, help='of the texts')
  parser.add_argument('--dtype', help='float32, bfloat16 or float16; by default the folder says it')
  parser.add_argument(
    *('--batch_tokens', '--batch-tokens'),
    **{'type': int, 'default': usual.batch_tokens, 'help': 'tokens of a forward pass, at most'},
  )
  parser.add_argument('--workdir', default='runs/reach', help='folder of the results')
  parser.add_argument(
    '--allow-imports', action='store_true', help='imports the modules that the folders name'
  )
  given = parser.parse_args(arguments)
  logging.set_verbosity(logging.ERROR)  # orbax says at length that it only reads
  try:
    numbers = (given.depths, 0 if given.no_retrieval else given.trials, given.seed, given.dtype)
    settings = Settings(_lengths(given.lengths), given.tokens, *numbers, given.batch_tokens)
    lines = reach(
      given.data,
      settings,
      workdir=given.workdir,
      checkpoint=given.checkpoint,
      schemes=split(given.schemes),
      runs=split(given.runs) if given.runs else (),
      allow_imports=given.allow_imports,
      say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    reach_report.print_table(lines)
    print(f'{Path(given.workdir) / PICTURE} has the picture, {RESULTS} the numbers.')
  except KeyboardInterrupt:
    print('interrupted: what was measured stays, and the same command goes on.', file=sys.stderr)
    sys.exit(130)
  except (ValueError, TypeError, OSError, ImportError, MemoryError, JaxRuntimeError) as error:
    sys.exit(f'reach: error: {plain.sentence(error)}')


if __name__ == '__main__':
  main()
