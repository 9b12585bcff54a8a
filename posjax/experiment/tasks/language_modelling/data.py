"""Raw text for language models, named in one line: `data.read('python_docs')`.

Here belongs what only raw documents need: the readers of each form, vocabularies, and the ways to
cut documents into training rows, evaluation windows and streams.
"""

from collections.abc import Sequence
from typing import NamedTuple

from posjax.experiment.data.corpus import CUT, fingerprint
from posjax.experiment.data.expression import parse, to_tune
from posjax.experiment.tasks.language_modelling import files, python_docs, tfds

FORMS = ('python_docs', 'file:PATH', 'tfds:NAME', 'text8:PATH', 'enwik8:PATH')


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


def read(expression: str) -> Text:
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
    >>> from posjax.experiment.tasks.language_modelling import data
    >>> docs = data.read('python_docs')
    >>> len(docs.train) > len(docs.held_out) > 0
    True
  """
  rest, tune = to_tune(expression)
  kind, argument = parse('text', rest, FORMS)
  if kind == 'python_docs':
    train, held_out = python_docs.read()
  elif kind == 'tfds':
    train, held_out = tfds.read(argument)
  else:
    readers = {'file': files.read, 'text8': files.read_text8, 'enwik8': files.read_enwik8}
    train, held_out = readers[kind](argument)
  names = files.names(argument) if kind in ('file', 'text8', 'enwik8') else ((), ())
  if tune:
    (train, held_out), names = last_tenth(train), ((), ())
  return Text(expression, train, held_out, fingerprint(train, held_out), names)


def last_tenth(documents: Sequence[bytes]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
  """The documents without their last tenth, and that tenth; one of them may be cut in two."""
  left = sum(map(len, documents)) * (CUT - 1) // CUT
  first, last = [], []
  for document in documents:
    end = min(left, len(document))
    while 0 < end < len(document) and document[end] & 0xC0 == 0x80:
      end -= 1  # a character of UTF-8 stays whole
    first.append(document[:end])
    last.append(document[end:])
    left -= len(document[:end]) if end == len(document) else left
  return tuple(filter(None, first)), tuple(filter(None, last))
