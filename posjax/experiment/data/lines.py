"""The lines of a UTF-8 file, each with its place as errors say it."""

from collections.abc import Iterator
from pathlib import Path


def lines(path: Path, content: bytes) -> Iterator[tuple[str, str]]:
  """Cuts a file at its line feeds, and nowhere else.

  A byte order mark at the beginning, a carriage return at the end of a line and a line feed at the
  end of the file are not text.

  Args:
    path: for the places.
    content: of the file.

  Yields:
    A place, such as 'all.tsv, line 2', and the line.

  Raises:
    ValueError: a line is not UTF-8.
  """
  found = content.removeprefix(b'\xef\xbb\xbf').split(b'\n')
  if not found[-1]:
    found.pop()
  for number, line in enumerate(found, start=1):
    where = f'{path}, line {number}'
    try:
      yield where, line.decode().rstrip('\r')
    except UnicodeDecodeError as error:
      raise ValueError(
        f'{where} should be UTF-8, but {error.reason} at byte {error.start}.'
      ) from None
