"""Text for experiments, named in one line: `get_text('python_docs')`."""

import difflib
import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from posjax.experiment.data import files, python_docs, tfds

_FORMS = ('python_docs', 'file:PATH', 'tfds:NAME', 'text8:PATH', 'enwik8:PATH')


class Text(NamedTuple):
  """Documents to learn from, and documents to be judged on.

  Attributes:
    name: the expression that named this text.
    train: documents as raw bytes, none empty.
    held_out: documents as raw bytes, none empty, never trained on.
    sha256: 64 hexadecimal digits of all documents in their order (`fingerprint`): two runs saw the
      same text if and only if they report the same digits.
    files: the file of each document to learn from, and of each held out, where they are files.
  """

  name: str
  train: tuple[bytes, ...]
  held_out: tuple[bytes, ...]
  sha256: str
  files: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

  def place(self, held_out: bool, index: int) -> str:
    """Where a document comes from, for a message."""
    files = self.files[held_out]
    kind = 'held out' if held_out else 'to learn from'
    return files[index] if files else f'{self.name}, document {index + 1} {kind}'


def get_text(expression: str) -> Text:
  """Reads the text that one line names, whole, into memory.

  Args:
    expression: `python_docs` (what every Python installation carries), `file:PATH` (a file or a
      folder of raw text), `text8:PATH`, `enwik8:PATH` (the whole file of that name, split as in
      papers) or `tfds:NAME`, `tfds:NAME#FEATURE` (TensorFlow Datasets, prepared as array_record).

  Returns:
    A `Text`, the same for the same files.

  Raises:
    ValueError: the expression has none of these forms, or what it names holds no usable text.
    FileNotFoundError: there is nothing at the path, or the data set was not prepared.

  Example:
    >>> from posjax.experiment.data import get_text
    >>> text = get_text('python_docs')
    >>> len(text.train) > len(text.held_out) > 0
    True
  """
  kind, colon, argument = expression.partition(':')
  names = ((), ())
  if expression == 'python_docs':
    train, held_out = python_docs.read()
  elif kind == 'file' and argument:
    train, held_out = files.read(argument)
    names = files.names(argument)
  elif kind in ('text8', 'enwik8') and argument:
    train, held_out = (files.read_text8 if kind == 'text8' else files.read_enwik8)(argument)
    names = files.names(argument)
  elif kind == 'tfds' and argument:
    train, held_out = tfds.read(argument)
  else:
    raise ValueError(_unknown(expression, kind, colon))
  return Text(expression, train, held_out, fingerprint(train, held_out), names)


def fingerprint(train: Iterable[bytes], held_out: Iterable[bytes]) -> str:
  """SHA-256 of two lists of documents, their order and their borders included.

  Args:
    train: documents.
    held_out: documents.

  Returns:
    64 hexadecimal digits.
  """
  digest = hashlib.sha256()
  for name, documents in ((b'train', train), (b'held_out', held_out)):
    digest.update(name)
    for document in documents:
      # The length goes first, so that moving a border between two documents is seen.
      digest.update(len(document).to_bytes(8, 'little') + document)
  return digest.hexdigest()


def _unknown(expression: str, kind: str, colon: str) -> str:
  by_kind = {form.partition(':')[0] + colon: form for form in _FORMS}
  close = difflib.get_close_matches(kind + colon, by_kind, n=1)
  hint = f' did you mean {by_kind[close[0]]!r}?' if close else ''
  return f'Unknown text {expression!r};{hint} There are: {", ".join(_FORMS)}.'
