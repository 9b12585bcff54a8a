"""The text that every Python installation carries: its language reference and standard library.

About 8 MB of English and code that need no download, so the first command of a new user runs.
It differs between Python versions: compare runs by the SHA-256 that `text.read` reports.
"""

import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

# Tables rather than text (encodings), the same text again (pydoc_data is read as topics), what
# distributions leave out (idlelib, lib2to3, tkinter, turtledemo), and tests.
_LEFT_OUT_MODULES = frozenset(
  {'encodings', 'idlelib', 'lib2to3', 'pydoc_data', 'test', 'tkinter', 'turtledemo'}
)
_LEFT_OUT_FOLDERS = frozenset({'__pycache__', 'site-packages', 'test', 'tests'})
_HELD_OUT_ONE_IN = 20
# The first number with which, on Python 3.11, 3.12 and 3.13 alike, 4.5 to 6 % of all bytes and 4 to
# 12 % of the topics' are held out, and no group is more than 30 % of what is held out.
_SALT = 213
_SHARED_PARAGRAPH = 80  # characters: shorter ones ('See also:') recur everywhere


def read() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
  """The topics of `help()` and the sources of the standard library, one document each.

  Whole groups are held out, about one in 20 (5 % of the bytes), chosen by a hash of the group's
  name: a module with all its files and its `_py` twin (`datetime`, `_pydatetime`), or the topics
  that share a paragraph (`compound` repeats `if`, `for` and `while` word for word). So what is held
  out has no near-copy in what is trained on, licence headers aside. Empty files are no documents.

  Returns:
    Documents to train on and documents held out, each sorted by name: the same on each call.

  Raises:
    FileNotFoundError: this installation carries no sources (an embedded or zipped one).
  """
  train, held_out = [], []
  for group, documents in _groups():
    (held_out if is_held_out(group) else train).extend(documents)
  return tuple(train), tuple(held_out)


def is_held_out(group: str) -> bool:
  """Whether a group of documents is held out: a fixed choice that depends on its name alone.

  Args:
    group: a name such as `module:json` or `topics:typesseq`.

  Returns:
    True for about one name in 20.
  """
  digest = hashlib.sha256(f'{_SALT}:{group}'.encode()).digest()
  return int.from_bytes(digest[:8], 'big') % _HELD_OUT_ONE_IN == 0


def topic_groups(topics: Mapping[str, str]) -> list[list[str]]:
  """Joins topics that share a paragraph of 80 characters or more, also through a third one.

  Args:
    topics: text by name.

  Returns:
    Sorted lists of names, each name in exactly one.
  """
  group_of = {name: [name] for name in topics}
  first_with = {}
  for name in sorted(topics):
    for paragraph in _paragraphs(topics[name]):
      ours, theirs = group_of[name], group_of[first_with.setdefault(paragraph, name)]
      if ours is not theirs:
        theirs.extend(ours)
        group_of.update(dict.fromkeys(ours, theirs))
  distinct = {id(group): group for group in group_of.values()}.values()
  return sorted(sorted(group) for group in distinct)


def _paragraphs(text: str) -> list[str]:
  plain = (' '.join(paragraph.split()) for paragraph in text.split('\n\n'))
  return [paragraph for paragraph in plain if len(paragraph) >= _SHARED_PARAGRAPH]


def _groups() -> list[tuple[str, list[bytes]]]:
  topics = importlib.import_module('pydoc_data.topics').topics
  groups = [
    ('topics:' + names[0], [topics[name].encode() for name in names])
    for names in topic_groups(topics)
  ]
  library = Path(sysconfig.get_path('stdlib'))
  sources = [
    (f'module:{_twin(name)}', _sources(library, name))
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT_MODULES)
  ]
  if not any(documents for _, documents in sources):
    raise FileNotFoundError(
      f'python_docs reads the sources of the standard library, but {library} holds none: '
      'use file:PATH or another Python installation.'
    )
  return groups + sources


def _twin(module: str) -> str:
  """The name under which a module and its pure Python double are held out together."""
  return module.removeprefix('_py').lstrip('_')


def _sources(library: Path, module: str) -> list[bytes]:
  paths = [library / f'{module}.py', *(library / module).rglob('*.py')]
  kept = [path for path in sorted(paths) if path.is_file() and _is_kept(path, library)]
  return [document for document in (path.read_bytes() for path in kept) if document]


def _is_kept(path: Path, library: Path) -> bool:
  folders = path.relative_to(library).parts[:-1]
  return not _LEFT_OUT_FOLDERS.intersection(folders)
