"""Translation, tagging, sentence pairs and parsing: their data, and their work folders.

What is refused in `setup` costs little. Where data are accepted, the first batch is looked at, and
the number of rows that were read is held against the file.
"""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import made
from tests.fuzz.areas import configs
from tests.fuzz.areas.files import refused_command, spoilers
from tests.fuzz.case import Case, line, refused
from tests.fuzz.commands import Ended, in_process

SECONDS = 400  # a case may train the run that others share, and beside other work
# Changes that must train to the end, as they are or among values that are seldom given.
RIGHT: Mapping[str, list[Mapping[str, Any]]] = {
  'translation': [
    {},
    {'task.tokens': 'characters', 'task.widths': (16, 32), 'task.joint': True},
    {'scheme': 'rope', 'model.cross_scheme': 'alibi', 'task.beams': 1, 'task.alpha': 0.0},
  ],
  'recurrent': [{}, {'model.cell': 'lstm', 'model.order': 'bahdanau', 'model.similarity': 'none'}],
  'tagging': [
    {},
    {'model.characters': 'cnn', 'model.bigram_width': 8, 'task.longest_word': 1},
    {'model.constrained': True, 'model.word_dropout': 0.99, 'task.notation': 'BIOES'},
  ],
  'tagging_lstm': [{}],
  'pairs': [{}, {'task.ngrams': (2, 3), 'task.ngrams_per_word': 1, 'model.train_words': False}],
  'esim': [{}],
  'one_row': [{}, {'model.encoder': 'cnn', 'scheme': 'none', 'model.kernel_sizes': (2,)}],
  'parsing': [{}, {'task.loss': 'nll', 'task.tags': True, 'task.silence': True}],
  'parsing_joined': [{'model.characters': 'cnn', 'model.word_dropout': 0.9}],
}


def cases() -> list[Case]:
  """All cases of this file."""
  return [*right(), *files(), *folders(), *vectors(), *asked(), *texts()]


def right() -> Iterator[Case]:
  """Configs that must train."""
  for kind, some in RIGHT.items():
    for i, changes in enumerate(some):
      call = functools.partial(configs.train, kind, f'{kind}-right-{i}', **changes)
      yield Case(line(f'train {kind}', **changes), call, configs.trained, True, seconds=SECONDS)


def read(kind: str, name: str, folder: Path | None = None, **changes: Any) -> Any:
  """`setup` on other data: the run, with its first batch; or a fault, if something was written."""
  from posjax.experiment import run

  workdir = made.new(f'tasks-{name}')
  data = {} if folder is None else {'task.data': f'file:{folder}'}
  try:
    prepared = run.setup(configs.config_of(kind, **data, **changes), workdir)
  except Exception:
    if workdir.exists():
      return f'refused, but {workdir.name} holds {sorted(p.name for p in workdir.iterdir())}'
    raise
  return prepared, next(prepared.data)


def is_whole(result: Any) -> str:
  """Whether a batch has a token in each row, and no number that is none."""
  if isinstance(result, str):
    return result
  prepared, batch = result
  finite = all(np.isfinite(each).all() for each in batch.values())
  empty = (np.asarray(batch['tokens']) <= 0).any()
  held_out = list(prepared.task.evaluations[0].batches())
  return '' if finite and not empty and held_out else f'the first batch is {batch}'


FOLDERS = {
  'translation': made.parallel,
  'tagging': made.tags,
  'pairs': made.sentence_pairs,
  'parsing': made.trees,
}


def spoiled(kind: str, name: str, part: str, spoil: Callable[[Path], Any], **changes: Any) -> Any:
  """Reads a copy of a folder in which one file is spoiled."""
  folder = made.copy(FOLDERS[kind](), f'data-{name}')
  spoil(folder / part)
  return read(kind, name, folder, **changes)


def files() -> Iterator[Case]:
  """Each file of the data, spoiled in the ways in which all files are."""
  parts = {
    'translation': ('train.de', 'train.en', 'val.en'),
    'tagging': ('train.tsv', 'dev.tsv'),
    'pairs': ('train.tsv', 'dev.tsv'),
    'parsing': ('train.mrg', 'dev.mrg'),
  }
  for kind, names in parts.items():
    for part in names:
      for how, spoil in spoilers().items():
        call = functools.partial(spoiled, kind, f'{kind}-{part}-{how}', part, spoil)
        yield Case(f'setup {kind}, {part}: {how}', call, is_whole, seconds=90)


def _lines(change: Callable[[list[str]], list[str]], path: Path) -> None:
  """Changes the lines of a file, the last line feed apart."""
  path.write_bytes(('\n'.join(change(path.read_text().split('\n')[:-1])) + '\n').encode())


def _text(text: str, path: Path) -> None:
  path.write_bytes(text.encode())


def _first(text: str) -> Callable[[Path], None]:
  """Puts another text in the place of a file's first line."""
  return functools.partial(_lines, lambda lines: [text, *lines[1:]])


def _tagged(*tags: str) -> Callable[[Path], None]:
  """Puts a sentence with these tags before the others."""
  words = [f'w{i}\t{tag}' for i, tag in enumerate(tags)]
  return functools.partial(_lines, lambda lines: [*words, '', *lines])


def _remove(path: Path) -> None:
  path.unlink()


# Of each: the file, what becomes of it, and what must follow: a refusal, or how many rows there
# are to learn from ('train') or to be judged on ('held_out').
BROKEN: Mapping[str, Mapping[str, tuple[str, Callable[[Path], Any], Mapping[str, int] | None]]] = {
  'translation': {
    'a line less': ('train.en', functools.partial(_lines, lambda lines: lines[:-1]), None),
    'a line more': ('train.en', functools.partial(_lines, lambda lines: [*lines, 'a']), None),
    'a held-out line less': ('val.de', functools.partial(_lines, lambda lines: lines[1:]), None),
    'a side of blank lines': (
      'train.en',
      functools.partial(_lines, lambda lines: [' '] * len(lines)),
      None,
    ),
    'one blank line': ('train.en', _first('\t '), {'train': 47}),
    'a blank held-out line': ('val.en', _first(''), {'held_out': 12}),
    'a blank held-out source': ('val.de', _first(''), {'held_out': 12}),
    'a line separator': ('train.de', _first('cat\u2028sat \x0b \x85 \x0c mat'), {'train': 48}),
    'carriage returns': (
      'train.de',
      functools.partial(_lines, lambda lines: [f'{each}\r' for each in lines]),
      {'train': 48},
    ),
    'a byte order mark': ('train.de', _first('\ufeffcat sat'), {'train': 48}),
    'a line too long': ('train.de', _first('cat ' * 500), {'train': 48}),
    'a long held-out line': ('val.de', _first('cat ' * 40), {'held_out': 12}),
    'all lines too long': (
      'train.de',
      functools.partial(_lines, lambda lines: ['cat ' * 9] * len(lines)),
      None,
    ),
    'two held-out names': (
      'val.de',
      lambda path: [shutil.copy(path, path.with_name(f'dev.{end}')) for end in ('de', 'en')],
      None,
    ),
    'half of the held-out files': ('val.en', _remove, None),
    'a target that is a folder': ('train.en', lambda path: (_remove(path), path.mkdir()), None),
    'marks as words': ('train.de', _first('<s> </s> <pad> <unk>'), {'train': 48}),
  },
  'tagging': {
    'a missing column': ('train.tsv', _first('the'), None),
    'a column more': ('train.tsv', _first('the\tDT\tO'), None),
    'a held-out column more': ('dev.tsv', _first('the\tDT\tO'), None),
    'a tag in small letters': ('train.tsv', _first('the\tb-PET'), None),
    'a tag without a type': ('train.tsv', _first('the\tB-'), None),
    'a tag without a dash': ('train.tsv', _first('the\tBPET'), None),
    'a tag with an underscore': ('train.tsv', _first('the\tB_PET'), None),
    'a letter of no notation': ('train.tsv', _first('the\tX-PET'), None),
    'an empty tag': ('train.tsv', _first('the\t'), None),
    'an empty token': ('train.tsv', _first('\tO'), None),
    'letters of two notations': ('train.tsv', _tagged('B-PET', 'M-PET', 'I-PET', 'E-PET'), None),
    'an illegal transition': ('train.tsv', _tagged('O', 'I-PET', 'O'), {'train': 41}),
    'an entity that does not end': ('train.tsv', _tagged('O', 'B-PET', 'O'), {'train': 41}),
    'an illegal first tag': ('dev.tsv', _tagged('E-PET', 'O'), {'held_out': 10}),
    'a type that is held out alone': ('dev.tsv', _tagged('S-NEW', 'O'), {'held_out': 10}),
    'an empty sentence': (
      'train.tsv',
      functools.partial(_lines, lambda lines: ['cat\tS-PET', '', '', *lines]),
      None,
    ),
    'document marks alone': ('train.tsv', functools.partial(_text, '-DOCSTART- O\n\n' * 3), None),
    'held-out document marks alone': (
      'dev.tsv',
      functools.partial(_text, '-DOCSTART- O\n\n' * 3),
      None,
    ),
    'nothing but O': ('train.tsv', functools.partial(_text, 'a\tO\n\nb\tO\n'), {'train': 2}),
    'blank lines alone': ('train.tsv', functools.partial(_text, '\n'), None),
    'held-out blank lines alone': ('dev.tsv', functools.partial(_text, '\n'), None),
    'a sentence too long': (
      'train.tsv',
      functools.partial(_lines, lambda lines: ['cat\tS-PET'] * 99 + ['', *lines]),
      {'train': 41},
    ),
    'a long held-out sentence': (
      'dev.tsv',
      functools.partial(_lines, lambda lines: ['cat\tS-PET'] * 99 + ['', *lines]),
      {'held_out': 10},
    ),
    'carriage returns': (
      'train.tsv',
      functools.partial(_lines, lambda lines: [f'{each}\r' for each in lines]),
      {'train': 40},
    ),
    'two training files': (
      'train.tsv',
      lambda path: shutil.copy(path, path.with_suffix('.txt')),
      None,
    ),
  },
  'pairs': {
    'a missing column': ('train.tsv', _first('same\tthe cat'), None),
    'a column more': ('train.tsv', _first('same\tthe\tthe\tthe'), None),
    'an empty label': ('train.tsv', _first('\tthe\tthe'), None),
    'a blank premise': ('train.tsv', _first('same\t \tthe'), None),
    'an empty hypothesis': ('train.tsv', _first('same\tthe\t'), None),
    'an empty held-out premise': ('dev.tsv', _first('same\t\tthe'), None),
    'an undecided pair': ('train.tsv', _first('-\tthe\tthe'), {'train': 59}),
    'an undecided pair without words': ('train.tsv', _first('-\t\t'), {'train': 59}),
    'no decided pair': (
      'train.tsv',
      functools.partial(_lines, lambda lines: ['-\ta\tb'] * len(lines)),
      None,
    ),
    'no decided held-out pair': (
      'dev.tsv',
      functools.partial(_lines, lambda lines: ['-\ta\tb'] * len(lines)),
      None,
    ),
    'one label': (
      'train.tsv',
      functools.partial(_lines, lambda lines: ['same\ta\tb'] * len(lines)),
      None,
    ),
    'an unknown label': ('dev.tsv', _first('never\tthe\tthe'), None),
    'a label with other capitals': ('dev.tsv', _first('Same\tthe\tthe'), None),
    'signs for words': ('train.tsv', _first('same\t? !\t$_$'), {'train': 60}),
    'a sentence too long': ('train.tsv', _first(f'same\t{"the " * 9}\tthe'), None),
    'a long held-out sentence': ('dev.tsv', _first(f'same\tthe\t{"the " * 9}'), None),
    'an empty held-out file': ('dev.tsv', functools.partial(_text, ''), None),
    'spaces for tabs': ('train.tsv', _first('same the the'), None),
  },
}


def folders() -> Iterator[Case]:
  """Data that are broken in the ways of each kind."""
  for kind, ways in BROKEN.items():
    for how, (part, spoil, expected) in ways.items():
      call = functools.partial(spoiled, kind, f'{kind}-{how}', part, spoil)
      check = refused if expected is None else functools.partial(counted, expected)
      yield Case(f'setup {kind}, {part}: {how}', call, check, expected is not None, seconds=90)
  long = functools.partial(_first(f'same\t{"the " * 9}\tthe'))
  call = functools.partial(spoiled, 'pairs', 'pairs-cut', 'train.tsv', long, **{'task.cut': True})
  yield Case('setup pairs, task.cut', call, functools.partial(counted, {'train': 60}), True)


def counted(expected: Mapping[str, int], result: Any) -> str:
  """Whether a run says that it read so many rows, and its batches are whole."""
  if isinstance(result, str):
    return result
  facts = result[0].task.facts
  told = facts.get('pairs', facts.get('sentences', '')).split(', ')
  found = dict(zip(('train', 'held_out'), [int(each.split()[0]) for each in told[:2]], strict=True))
  wrong = {part: found[part] for part, count in expected.items() if found[part] != count}
  return f'the rows are {wrong}, not {expected}' if wrong else is_whole(result)


def vectors() -> Iterator[Case]:
  """Files of word vectors, for a tagger and for sentence pairs."""
  contents = {
    'another width': ''.join(f'{word} 1 2 3\n' for word in made.WORDS),
    'one number more': ''.join(f'{word}{" 1" * 17}\n' for word in made.WORDS),
    'a header of another width': f'10 3\n{"cat" + " 1" * 16}\n',
    'a line of another width': f'cat{" 1" * 16}\nmat{" 1" * 15}\n',
    'NaN': f'cat{" nan" * 16}\n',
    'too large numbers': f'cat{" 1e39" * 16}\n',
    'letters': f'cat{" x" * 16}\n',
    'zeros alone': f'cat{" 0" * 16}\n',
    'none of the words': f'zebra{" 1" * 16}\n',
    'empty': '',
    'blank lines': '\n\n',
    'tabs': 'cat' + '\t1' * 16 + '\n',
  }
  for kind in ('tagging', 'pairs'):
    for how, content in contents.items():
      call = functools.partial(with_vectors, kind, how, content.encode())
      yield Case(f'setup {kind}, task.vectors: {how}', call, refused, seconds=90)
    right = f'cat{" 1" * 16}\nzebra{" nan" * 16}\nmat{" 2" * 16}\n'.encode()
    call = functools.partial(with_vectors, kind, 'right', right + b'caf\xe9' + b' 3' * 16)
    yield Case(f'setup {kind}, task.vectors: right', call, has_two, True, seconds=90)


def with_vectors(kind: str, how: str, content: bytes) -> Any:
  """`setup` with a file of vectors."""
  path = made.new(f'vectors-{kind}-{how}.txt')
  path.write_bytes(content)
  return read(kind, f'{kind}-vectors-{how}', **{'task.vectors': str(path)})


def has_two(result: Any) -> str:
  """Whether a run says that two words have a vector."""
  told = result if isinstance(result, str) else result[0].task.facts['vectors']
  return '' if '2 words have one in' in told else f'told: {told}'


QUESTIONS = {
  'translation': 'the cat sat',
  'recurrent': 'the cat sat',
  'tagging': 'the cat sat on a mat',
  'pairs': 'the cat ||| the dog',
  'esim': 'the cat ||| the dog',
}
STORED = {
  'a number': lambda stored: 3,
  'one side': lambda stored: {'source': stored['source']},
  'three sides': lambda stored: {**stored, 'joint': stored['source']},
  'a side of null': lambda stored: {**stored, 'target': None},
  'a side of a list': lambda stored: {**stored, 'target': []},
  'a side of other tokens': lambda stored: {**stored, 'target': {'tokens': 'bytes'}},
  'a side without tokens': lambda stored: {**stored, 'target': {}},
  'a word less': lambda stored: {**stored, 'source': _changed(stored['source'], lambda x: x[:-1])},
  'a word more': lambda stored: {
    **stored,
    'source': _changed(stored['source'], lambda x: [*x, 'zz']),
  },
  'a word twice': lambda stored: {
    **stored,
    'source': _changed(stored['source'], lambda x: [*x[:-1], x[0]]),
  },
  'a word that is null': lambda stored: {
    **stored,
    'source': _changed(stored['source'], lambda x: [*x[:-1], None]),
  },
}


def _changed(side: Mapping[str, Any], change: Callable[[list], list]) -> Mapping[str, Any]:
  """One side of a vocabulary, with another list of words."""
  return {name: change(each) if isinstance(each, list) else each for name, each in side.items()}


def _stored(change: Callable[[Any], Any], path: Path) -> None:
  path.write_text(json.dumps(change(json.loads(path.read_text()))))


def _config(changes: Mapping[str, Any], path: Path) -> None:
  """Changes keys of the config that a run wrote."""
  whole = json.loads(path.read_text())
  for key, value in changes.items():
    section, _, name = key.rpartition('.')
    (whole[section] if section else whole)[name] = value
  path.write_text(json.dumps(whole))


def asked() -> Iterator[Case]:
  """Work folders of these tasks that `ask` reads, broken."""
  for kind, text in QUESTIONS.items():
    call = functools.partial(ask, kind, 'whole', lambda workdir: None, text)
    yield Case(f'ask {kind}', call, functools.partial(same, kind), True, seconds=SECONDS)
  for how, spoil in spoilers().items():
    change = functools.partial(lambda spoil, path: spoil(path / 'vocabulary.json'), spoil)
    yield _asked('translation', f'vocabulary.json: {how}', change)
  for how, change in STORED.items():
    spoil = functools.partial(lambda one, path: _stored(one, path / 'vocabulary.json'), change)
    yield _asked('translation', f'vocabulary.json has {how}', spoil, never=True)
  keys = {
    'translation': [
      {'task.architecture': 'recurrent'}, {'task.joint': True}, {'task.tokens': 'characters'},
      {'model.width': 32}, {'model.num_layers': 2}, {'task.source': 'fr'},
      {'scheme': 'learned(max_length=64)'}, {'task.beams': 0}, {'task.data': 'file:/nowhere'},
    ],
    'recurrent': [{'model.cell': 'lstm'}, {'model.shared': True}, {'model.hidden_width': 8}],
    'tagging': [
      {'model.encoder': 'lstm'}, {'model.characters': 'cnn'}, {'task.min_count': 20},
      {'task.notation': 'BMES'}, {'model.bigram_width': 4}, {'task.data': 'synthetic:direction'},
      {'task.data': 'file:/nowhere'},
    ],
    'pairs': [
      {'task.architecture': 'esim'}, {'task.ngrams': [2]}, {'task.min_count': 60},
      {'task.data': 'synthetic:near_1k'}, {'task.data': 'file:/nowhere'}, {'model.width': 32},
    ],
  }  # fmt: skip
  for kind, some in keys.items():
    for changes in some:
      spoil = functools.partial(lambda one, path: _config(one, path / 'config.json'), changes)
      yield _asked(kind, line('config.json', **changes), spoil, never=True)
  for kind in ('translation', 'tagging', 'pairs'):
    for part in ('checkpoints', 'config.json'):
      remove = functools.partial(lambda name, path: made.remove(path / name), part)
      yield _asked(kind, f'without {part}', remove, never=True)
    for how, change in OTHER_DATA[kind].items():
      yield _asked(kind, f'the data have {how}', functools.partial(_other_data, kind, change))


def _asked(kind: str, how: str, spoil: Callable[[Path], Any], never: bool = False) -> Case:
  call = functools.partial(ask, kind, how, spoil, QUESTIONS[kind])
  check = refused_command if never else functools.partial(same, kind)
  return Case(f'ask {kind}, {how}', call, check, seconds=SECONDS)


def ask(kind: str, how: str, spoil: Callable[[Path], Any], *texts: str) -> Ended:
  """Asks a model, after something has been done to a copy of its work folder."""
  workdir = made.copy(made.run(kind), f'ask-{kind}-{how}'.replace('/', '-')[:80])
  spoil(workdir)
  return in_process('ask', [f'--workdir={workdir}', *texts])


@functools.cache
def answer(kind: str) -> str:
  """What a model says where nothing is changed."""
  return in_process('ask', [f'--workdir={made.run(kind)}', QUESTIONS[kind]]).out


def same(kind: str, end: Ended) -> str:
  """Whether an answer is the one of a folder that is whole."""
  said = bool(end.out.strip())
  return '' if said and end.out == answer(kind) else f'said {end.out!r}, not {answer(kind)!r}'


def _words(change: Mapping[str, str], folder: Path) -> None:
  """Writes other words for some in all files of a folder."""
  for path in folder.iterdir():
    words = path.read_text().split(' ')
    text = ' '.join(words)
    for old, new in change.items():
      text = text.replace(old, new)
    path.write_text(text)


# As many words, types and labels as before, so that the checkpoint fits: only the hash can tell.
OTHER_DATA: Mapping[str, Mapping[str, Callable[[Path], None]]] = {
  'translation': {
    'another word': functools.partial(_words, {'cat': 'cow'}),
    'other languages': lambda folder: [
      path.rename(path.with_suffix('.fr')) for path in folder.iterdir() if path.suffix == '.en'
    ],
  },
  'tagging': {
    'another word': functools.partial(_words, {'cat': 'zebra'}),
    'another type': functools.partial(_words, {'PET': 'WILD'}),
  },
  'pairs': {
    'another word': functools.partial(_words, {'cat': 'zebra'}),
    'another label': functools.partial(_words, {'same': 'alike'}),
  },
}


def _other_data(kind: str, change: Callable[[Path], Any], workdir: Path) -> None:
  """Changes the data of a run after its end."""
  folder = made.copy(FOLDERS[kind](), f'other-{workdir.name}')
  change(folder)
  _config({'task.data': f'file:{folder}'}, workdir / 'config.json')


def texts() -> Iterator[Case]:
  """Questions that have no answer, and strange ones that have."""
  nothing = lambda workdir: None
  wrong = {
    'tagging': [' ', '\t', '\u2003'],
    'pairs': ['a', 'a ||| b ||| c', '||| b', 'a ||| ', ' ||| ', 'a\tb\tc', f'a ||| {"b " * 9}'],
    'esim': ['a', ' ||| b'],
  }
  strange = {
    'translation': ['', ' ', 'zebra', 'the ' * 30, '<s> </s>', '$_$ [/b]', '\u2028', 'é'],
    'recurrent': ['', 'zebra', 'the ' * 30],
    'tagging': ['zebra', 'cat ' * 30, '[cat] [/b] $_$', 'é\u2028a'],
    'pairs': ['zebra ||| yak', '$_$ ||| [/b]', 'a\tb ||| c'],
    'esim': ['zebra ||| yak'],
  }
  for kind, some in wrong.items():
    for i, text in enumerate(some):
      call = functools.partial(ask, kind, f'wrong-{i}', nothing, text)
      yield Case(f'ask {kind} {text[:20]!r}', call, refused_command, seconds=SECONDS)
  for kind, some in strange.items():
    for i, text in enumerate(some):
      call = functools.partial(ask, kind, f'strange-{i}', nothing, text)
      yield Case(f'ask {kind} {text[:20]!r}', call, lambda end: '', True, seconds=SECONDS)
