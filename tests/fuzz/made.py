"""Small runs, comparisons and data files, made once in a scratch folder, for cases to spoil."""

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path

from tests.fuzz.commands import Ended, in_process

WORDS = ('the', 'cat', 'sat', 'on', 'a', 'mat', 'and', 'saw', 'dog', 'run')


@functools.cache
def scratch() -> Path:
  """The folder of all that a fuzzing makes; workers of one fuzzing share it."""
  given = os.environ.get('FUZZ_SCRATCH')
  return Path(given) if given else Path(tempfile.mkdtemp(prefix='fuzz-'))


def new(name: str) -> Path:
  """A path in the scratch folder at which nothing is."""
  path = scratch() / 'cases' / name
  path.parent.mkdir(parents=True, exist_ok=True)
  remove(path)
  return path


def remove(path: Path) -> None:
  """Takes away whatever a case left, though it took permissions away."""
  if path.is_symlink() or path.is_file():
    path.unlink()
  elif path.exists():
    for folder, _, _ in os.walk(path):
      os.chmod(folder, 0o755)
    shutil.rmtree(path)


@functools.cache
def text() -> Path:
  """A file of words."""
  return _lines(
    'text.txt', [' '.join(WORDS[(i * j + j) % 10] for j in range(8)) for i in range(120)]
  )


@functools.cache
def pairs() -> Path:
  """A file of questions and answers."""
  lines = [f'{WORDS[i % 10]} {WORDS[i // 10 % 10]}\t{WORDS[i % 7]}' for i in range(100)]
  twice = [f'{WORDS[i % 10]} {WORDS[i // 10]}\t{WORDS[i % 7]} {WORDS[i % 5]}' for i in range(99)]
  lines += twice + [f'on {WORDS[i // 10]} {WORDS[i % 10]}\ta mat a mat' for i in range(40)]
  return _lines('pairs.tsv', lines)


@functools.cache
def labels() -> Path:
  """A file of labels and texts."""
  lines = [f'{"ab"[i % 2]}\t{WORDS[i % 10]} {WORDS[i // 10]} {WORDS[i % 3]}' for i in range(100)]
  return _lines('labels.tsv', lines)


@functools.cache
def parallel() -> Path:
  """A folder with sentences in two languages: the other one has them backwards."""
  sentences = [[WORDS[(i * j + j) % 10] for j in range(1, 3 + i % 4)] for i in range(60)]
  for part, some in (('train', sentences[:48]), ('val', sentences[48:])):
    _lines(f'parallel/{part}.de', [' '.join(words) for words in some])
    _lines(f'parallel/{part}.en', [' '.join(reversed(words)) for words in some])
  return scratch() / 'parallel'


@functools.cache
def tags() -> Path:
  """A folder with tagged sentences, of entities of one, two and three words."""
  kinds = (
    'the/O cat/S-PET sat/O on/B-THING a/I-THING mat/E-THING',
    'the/O dog/S-PET run/O',
    'a/B-THING mat/E-THING and/O the/O dog/S-PET',
  )
  for part, count in (('train', 40), ('dev', 9)):
    some = [kinds[i % 3].replace('/', '\t').replace(' ', '\n') for i in range(count)]
    _lines(f'tags/{part}.tsv', ['\n\n'.join(some)])
  return scratch() / 'tags'


@functools.cache
def sentence_pairs() -> Path:
  """A folder with pairs of sentences: the label says whether they begin with the same word."""
  both = [(WORDS[i % 10], WORDS[i * 7 % 10 if i % 2 else i % 10]) for i in range(72)]
  lines = [
    f'{"same" if one == other else "other"}\t{one} {WORDS[i % 7]} {WORDS[i % 3]}\t{other} run'
    for i, (one, other) in enumerate(both)
  ]
  _lines('sentence_pairs/train.tsv', lines[:60])
  _lines('sentence_pairs/dev.tsv', lines[60:])
  return scratch() / 'sentence_pairs'


@functools.cache
def trees() -> Path:
  """A folder with trees in brackets: a subject, a verb, and sometimes an object."""
  noun = lambda i: f'(NP (DT the) (NN {WORDS[(1, 5, 8)[i % 3]]}))'
  verb = lambda i: f'(VBD {WORDS[(2, 7)[i % 2]]})'
  lines = [
    f'(S {noun(i)} (VP {verb(i)} {noun(i // 3)}))' if i % 4 else f'(S {noun(i)} (VP {verb(i)}))'
    for i in range(60)
  ]
  _lines('trees/train.mrg', lines[:48])
  _lines('trees/dev.mrg', lines[48:])
  return scratch() / 'trees'


def _lines(name: str, lines: list[str]) -> Path:
  """The file of that name; it is written where another process has not done so."""
  path = scratch() / name
  if not path.exists():
    _write(path, '\n'.join(lines) + '\n')
  return path


@functools.cache
def vectors() -> Path:
  """A file of word vectors of the model's width."""
  path = scratch() / 'vectors.txt'
  lines = [
    f'{word} {" ".join(str((i + j) / 10) for j in range(16))}' for i, word in enumerate(WORDS)
  ]
  if not path.exists():
    _write(path, '\n'.join(lines) + '\n')
  return path


def _write(path: Path, content: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_suffix('.partial')
  partial.write_text(content)
  os.replace(partial, path)


DATA = {
  'questions': pairs,
  'labels': labels,
  'translation': parallel,
  'recurrent': parallel,
  'tagging': tags,
  'tagging_lstm': tags,
  'pairs': sentence_pairs,
  'esim': sentence_pairs,
  'one_row': sentence_pairs,
  'parsing': trees,
  'parsing_joined': trees,
}


def data(kind: str) -> str:
  """The data of a kind of small config."""
  return f'file:{DATA.get(kind, text)()}'


def flags(kind: str, workdir: Path, *more: str) -> list[str]:
  """The flags of train.py for a kind of small config."""
  config = Path(__file__).with_name('small.py')
  own = [f'--config={config}:{kind}', f'--workdir={workdir}', f'--config.task.data={data(kind)}']
  return [*own, *more]


@functools.cache
def run(kind: str, *more: str) -> Path:
  """The work folder of a run that is over."""
  name = '-'.join([kind, *more]).replace('/', '_').replace('.', '_')
  path = scratch() / 'runs' / name
  if not (path / 'results.json').exists():
    remove(path)
    _right(in_process('train.py', flags(kind, path, *more)))
  return path


@functools.cache
def stopped(kind: str) -> Path:
  """The work folder of a run of four steps of which two are made: as one that was killed."""
  path = scratch() / 'runs' / f'{kind}-stopped'
  if not path.exists():
    partial = path.with_name(path.name + '-partial')
    remove(partial)
    shutil.copytree(run(kind), partial)
    stop(partial)
    os.replace(partial, path)
  return path


def stop(workdir: Path, step: str = '4') -> None:
  """Takes from a run that is over what it wrote after its last checkpoint but one."""
  shutil.rmtree(workdir / 'checkpoints' / step)
  for name in ('results.json', 'report.png'):
    (workdir / name).unlink()


@functools.cache
def comparison() -> Path:
  """The work folder of a comparison that is over: two schemes, one seed."""
  path = scratch() / 'runs' / 'compare'
  if not (path / 'report.html').exists():
    remove(path)
    _right(in_process('compare', compare_flags(path)))
  return path


def compare_flags(workdir: Path, *more: str) -> list[str]:
  """The flags of compare for the small comparison."""
  return [*flags('bytes', workdir), '--schemes=none,rope', '--seeds=1', *more]


def copy(source: Path, name: str) -> Path:
  """A copy of a work folder, to be spoiled."""
  path = new(name)
  shutil.copytree(source, path, symlinks=True)
  return path


def losses(workdir: Path) -> dict[int, float]:
  """The losses that a run wrote, by step."""
  rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  return {row['step']: row['loss'] for row in rows if 'loss' in row}


def _right(end: Ended) -> None:
  if end.code:
    raise RuntimeError(f'{end.name} failed on what is right: {end.error}')
