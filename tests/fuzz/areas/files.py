"""What lies in a work folder, and data: emptied, cut, null, of the wrong type, encoding or kind."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import made
from tests.fuzz.case import Case
from tests.fuzz.commands import Ended, in_process

CONTENTS: dict[str, bytes] = {
  'empty': b'',
  'null': b'null\n',
  'a number': b'3\n',
  'a text': b'"x"\n',
  'a list': b'[]\n',
  'an object': b'{}\n',
  'a list of lists': b'[[1, 2], [3]]\n',
  'no JSON': b'{"a": \n',
  'NaN': b'{"step": NaN, "id": NaN, "loss": Infinity}\n',
  'binary': bytes(range(256)),
  'another encoding': '{"é": "ü"}\n'.encode('utf-16'),
  'a zero byte': b'\x00\n',
  'latin-1': 'caf\u00e9\tna\u00efve\n'.encode('latin-1'),
}


def spoilers() -> dict[str, Callable[[Path], None]]:
  """Ways to spoil a file."""
  ways = {name: functools.partial(_write, content) for name, content in CONTENTS.items()}
  return {
    **ways,
    'cut in half': lambda path: os.truncate(path, path.stat().st_size // 2),
    'cut by one': lambda path: os.truncate(path, path.stat().st_size - 1),
    'deleted': lambda path: path.unlink(),
    'a folder': _folder,
    'a link to itself': _loop,
    'a link to nothing': _dangling,
    'a bit flipped': _flip,
    'twice': lambda path: path.write_bytes(path.read_bytes() * 2),
    'a line of null in the middle': functools.partial(_line, b'null'),
    'a line of letters in the middle': functools.partial(_line, b'garbage'),
    'an empty line in the middle': functools.partial(_line, b''),
  }


def _write(content: bytes, path: Path) -> None:
  path.write_bytes(content)


def _folder(path: Path) -> None:
  path.unlink()
  path.mkdir()


def _loop(path: Path) -> None:
  path.unlink()
  path.symlink_to(path)


def _dangling(path: Path) -> None:
  path.unlink()
  path.symlink_to(path.with_name('nothing-at-all'))


def _flip(path: Path) -> None:
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(content)


def _line(line: bytes, path: Path) -> None:
  lines = path.read_bytes().split(b'\n')
  path.write_bytes(b'\n'.join([*lines[: len(lines) // 2], line, *lines[len(lines) // 2 :]]))


def cases() -> list[Case]:
  """All cases of this file."""
  return [*runs(), *asked(), *compared(), *data(), *folders()]


def runs() -> Iterator[Case]:
  """Files of a run that was stopped, which the same command then goes on with."""
  for kind, names in {
    'bytes': ('config.json', 'metrics.jsonl'),
    'words': ('vocabulary.json',),
  }.items():
    for name in names:
      for how, spoil in spoilers().items():
        call = functools.partial(resumed, kind, name, how, spoil)
        check = functools.partial(as_uninterrupted, kind)
        yield Case(f'train.py resumes, {name}: {how}', call, check, seconds=120)
  for name in ('results.json', 'report.png', 'metrics.jsonl'):
    for how in ('empty', 'binary', 'a folder', 'a link to itself', 'deleted', 'null'):
      call = functools.partial(ended_again, name, how, spoilers()[how])
      check = functools.partial(as_uninterrupted, 'bytes')
      yield Case(f'train.py again after its end, {name}: {how}', call, check, seconds=120)


def resumed(kind: str, name: str, how: str, spoil: Callable[[Path], None]) -> Ended:
  """Spoils a file of a stopped run, and gives its command again."""
  workdir = made.copy(made.stopped(kind), f'resume-{name}-{how}')
  spoil(workdir / name)
  end = in_process('train.py', made.flags(kind, workdir))
  return end._replace(out=f'{workdir}\n{end.out}')


def ended_again(name: str, how: str, spoil: Callable[[Path], None]) -> Ended:
  """Spoils a file of a run that is over, and gives its command again."""
  workdir = made.copy(made.run('bytes'), f'again-{name}-{how}')
  spoil(workdir / name)
  end = in_process('train.py', made.flags('bytes', workdir))
  return end._replace(out=f'{workdir}\n{end.out}')


def as_uninterrupted(kind: str, end: Ended) -> str:
  """Whether a run that was accepted has the losses and the results of one left alone.

  Losses that were taken away may be missing where the run says so.
  """
  place, _, said = end.out.partition('\n')
  workdir, whole = Path(place), made.run(kind)
  try:
    found, right = made.losses(workdir), made.losses(whole)
  except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
    return f'metrics.jsonl cannot be read afterwards: {error}'
  told = 'the losses in between are lost' in said
  if found != (right if not told else {step: right.get(step) for step in found}):
    return f'the losses are {found}, not {right}'
  here, there = (json.loads((folder / 'results.json').read_text()) for folder in (workdir, whole))
  return '' if here == there else 'results.json is another'


def asked() -> Iterator[Case]:
  """Files of a run that `ask` reads."""
  for kind, name in (('bytes', 'config.json'), ('words', 'vocabulary.json')):
    for how, spoil in spoilers().items():
      call = functools.partial(answered, kind, name, how, spoil)
      yield Case(f'ask, {name}: {how}', call, functools.partial(same_answer, kind), seconds=120)
  foreign = {
    'a vocabulary of another run': {'tokens': ['x', 'y']},
    'a vocabulary with one word more': None,
  }
  for how, content in foreign.items():
    spoil = functools.partial(_foreign, content)
    call = functools.partial(answered, 'words', 'vocabulary.json', how, spoil)
    yield Case(f'ask, vocabulary.json: {how}', call, refused_command, seconds=120)


def _foreign(content: Any, path: Path) -> None:
  there = json.loads(path.read_text())
  if content is None:
    first = next(iter(key for key, value in there.items() if isinstance(value, list)), None)
    content = {**there, first: [*there[first], 'zzz']} if first else {**there, 'zzz': 1}
  path.write_text(json.dumps(content))


def answered(kind: str, name: str, how: str, spoil: Callable[[Path], None]) -> Ended:
  """Spoils a file of a run that is over, and asks its model."""
  workdir = made.copy(made.run(kind), f'ask-{name}-{how}')
  spoil(workdir / name)
  return in_process('ask', [f'--workdir={workdir}', 'the cat'])


@functools.cache
def answer(kind: str) -> str:
  """What the model says where nothing is spoiled."""
  return in_process('ask', [f'--workdir={made.run(kind)}', 'the cat']).out


def same_answer(kind: str, end: Ended) -> str:
  """Whether an answer is the one that is given where nothing is spoiled."""
  return '' if end.out == answer(kind) else f'answered {end.out!r}, not {answer(kind)!r}'


def refused_command(end: Ended) -> str:
  """The check of a command that must not be accepted."""
  return 'accepted, but it must be refused'


def compared() -> Iterator[Case]:
  """Files of a comparison that is over, which the same command then shows again."""
  for how, spoil in spoilers().items():
    call = functools.partial(shown_again, how, spoil)
    yield Case(f'compare again, results.jsonl: {how}', call, page_is_there, seconds=240)
  for field in ('scores', 'evaluations', 'metrics', 'facts', 'seed', 'scheme', 'id', 'curve'):
    for value in (None, 3, 'x', [], {}):
      spoil = functools.partial(_field, field, value)
      call = functools.partial(shown_again, f'{field}={value!r}', spoil)
      title = f'compare again, results.jsonl: {field} is {value!r}'
      yield Case(title, call, page_is_there, seconds=240)


def _field(field: str, value: Any, path: Path) -> None:
  first, *others = path.read_text().splitlines()
  row = {**json.loads(first), field: value}
  path.write_text('\n'.join([json.dumps(row), *others]) + '\n')


def shown_again(how: str, spoil: Callable[[Path], None]) -> Ended:
  """Spoils the results of a comparison, and gives its command again."""
  workdir = made.copy(made.comparison(), f'compare-{how}'[:60])
  spoil(workdir / 'results.jsonl')
  return in_process('compare', made.compare_flags(workdir))._replace(out=str(workdir))


def page_is_there(end: Ended) -> str:
  """Whether the comparison has a report, and each of its cells a result."""
  workdir = Path(end.out)
  rows = [json.loads(line) for line in (workdir / 'results.jsonl').read_text().split('\n')[:-1]]
  schemes = {str(row['scheme']) for row in rows if 'scores' in row}
  whole = len(schemes) == 2
  page = (workdir / 'report.html').exists()
  return '' if page and whole else f'results of {schemes}, page: {page}'


def data() -> Iterator[Case]:
  """Data of each kind, spoiled before the run begins."""
  files = {'bytes': made.text, 'words': made.text, 'questions': made.pairs, 'labels': made.labels}
  for kind, right in files.items():
    for how, spoil in spoilers().items():
      call = functools.partial(trained_on, kind, right, how, spoil)
      yield Case(f'train.py, data of {kind}: {how}', call, has_losses, seconds=120)
  for how, spoil in spoilers().items():
    call = functools.partial(trained_on, 'labels', made.vectors, how, spoil, 'task.vectors')
    yield Case(f'train.py, task.vectors: {how}', call, has_losses, seconds=120)
  for how in ('cut in half', 'twice', 'a bit flipped', 'deleted', 'empty'):
    call = functools.partial(changed_data, how, spoilers()[how])
    yield Case(f'train.py resumes, its data: {how}', call, refused_command, seconds=120)


def trained_on(
  kind: str, right: Callable[[], Path], how: str, spoil: Any, key: str = 'task.data'
) -> Ended:
  """Trains on a spoiled copy of a file."""
  path = made.new(f'data-{kind}-{key}-{how}{right().suffix}')
  path.write_bytes(right().read_bytes())
  spoil(path)
  workdir = made.new(f'on-{kind}-{key}-{how}')
  value = f'file:{path}' if key == 'task.data' else path
  flags = made.flags(kind, workdir, f'--config.{key}={value}')
  return in_process('train.py', flags)._replace(out=str(workdir))


def has_losses(end: Ended) -> str:
  """Whether a run has four finite losses."""
  found = made.losses(Path(end.out))
  return '' if len(found) == 4 and None not in found.values() else f'the losses are {found}'


def changed_data(how: str, spoil: Callable[[Path], None]) -> Ended:
  """Resumes a run whose data has changed since."""
  path = made.new(f'changed-{how}.txt')
  path.write_bytes(made.text().read_bytes())
  workdir = made.new(f'changed-{how}')
  flags = made.flags('bytes', workdir, f'--config.task.data=file:{path}')
  in_process('train.py', flags)
  made.stop(workdir)
  spoil(path)
  return in_process('train.py', flags)


def folders() -> Iterator[Case]:
  """Work folders that are none, or whose parts have the wrong kind."""
  kinds: dict[str, Callable[[Path], Any]] = {
    'a file': lambda path: path.write_text('x'),
    'an empty file': lambda path: path.touch(),
    'a link to itself': lambda path: path.symlink_to(path),
    'a link to nothing': lambda path: path.symlink_to(path / 'nothing'),
    'nothing': lambda path: None,
    'an empty folder': lambda path: path.mkdir(),
    'a folder of other things': lambda path: (path.mkdir(), (path / 'x').touch()),
    'a name of 300 letters': lambda path: None,
    'under a file': lambda path: path.write_text('x'),
    '/dev/null': lambda path: None,
    '/dev/null/run': lambda path: None,
    'a name with $_$ and [/b]': lambda path: None,
  }
  for command in ('train.py', 'ask', 'compare'):
    for how, make in kinds.items():
      call = functools.partial(worked_in, command, how, make)
      check = has_losses if command == 'train.py' else (lambda end: '')
      yield Case(f'{command}, --workdir is {how}', call, check, seconds=240)
  for part in ('checkpoints', 'tensorboard', 'config.json', 'metrics.jsonl', 'results.json'):
    for how in ('a file', 'a link to itself', 'a link to nothing', 'an empty folder'):
      call = functools.partial(with_part, part, how, kinds[how])
      yield Case(f'train.py, {part} is {how}', call, has_losses, seconds=240)


def worked_in(command: str, how: str, make: Callable[[Path], Any]) -> Ended:
  """A command in a strange work folder."""
  path = made.new(f'folder-{command}-{how}'.replace('/', '-'))
  make(path)
  strange = {
    'a name of 300 letters': path.with_name('x' * 300),
    'under a file': path / 'run',
    '/dev/null': Path('/dev/null'),
    '/dev/null/run': Path('/dev/null/run'),
    'a name with $_$ and [/b]': path.with_name(f'{command} $_$ and [b] x['),
  }
  workdir = strange.get(how, path)
  if command == 'ask':
    return in_process('ask', [f'--workdir={workdir}', 'the'])
  flags = made.flags if command == 'train.py' else lambda kind, path: made.compare_flags(path)
  return in_process(command, flags('bytes', workdir))._replace(out=str(workdir))


def with_part(part: str, how: str, make: Callable[[Path], Any]) -> Ended:
  """train.py in a new work folder in which a part is already there, of another kind."""
  workdir = made.new(f'part-{part}-{how}')
  workdir.mkdir()
  make(workdir / part)
  return in_process('train.py', made.flags('bytes', workdir))._replace(out=str(workdir))
