"""Raw text from a file or a folder: `file:PATH`, and two well-known files, split as in papers."""

from pathlib import Path

from posjax.experiment.data.corpus import HELD_OUT, TRAIN
from posjax.experiment.data.expression import path_of

Documents = tuple[bytes, ...]

# text8 and enwik8 are 100 million bytes: to train on, held out, and to test.
_MILLIONS = (90, 5, 5)
_MILLION = 10**6
_TEXT8 = frozenset(b' abcdefghijklmnopqrstuvwxyz')
_HELD_OUT_ONE_IN = 20


def read(path: str) -> tuple[Documents, Documents]:
  """Reads raw text to train on and raw text held out.

  A folder holds files whose names say what they are, whatever the ending: `train.txt` and
  `valid.txt`, `wiki.train.tokens` and `wiki.valid.tokens`, `train.bin` and `dev.bin`, several of
  each if need be. Each such file is one document, its bytes unchanged, sorted by file name. Other
  files are not read, nor is a file with `test` in its name: held out means `dev`, `val`, `valid` or
  `validation`, so that tests stay unseen until the end.

  A single file is split by bytes: the last twentieth (5 %, rounded up) is held out, and the cut may
  fall inside a line, but not inside a character of UTF-8.

  Args:
    path: a file, or a folder; `~` is the home folder.

  Returns:
    Documents to train on and documents held out, none empty.

  Raises:
    FileNotFoundError: nothing is at `path`, or the folder lacks one of the two kinds of file.
    ValueError: a file is empty, or a single file has fewer than 2 bytes.
  """
  place = path_of(path)
  if place.is_dir():
    return _documents(place, TRAIN), _documents(place, HELD_OUT)
  if not place.is_file():
    raise FileNotFoundError(f'file:PATH expects a file or a folder, but nothing is at {place}.')
  content = _content(place)
  if len(content) < 2:
    raise ValueError(f'{place} is split in two and needs at least 2 bytes, but holds 1.')
  cut = len(content) - -(-len(content) // _HELD_OUT_ONE_IN)
  border = next((i for i in range(cut, max(cut - 4, 0), -1) if content[i] & 0xC0 != 0x80), cut)
  return (content[:border],), (content[border:],)


def read_text8(path: str) -> tuple[Documents, Documents]:
  """text8, the whole file: 90 million characters to train on, 5 million held out.

  The last 5 million are the test, which stays unread: the split of Dai et al. 2019,
  https://arxiv.org/abs/1901.02860. The file: http://mattmahoney.net/dc/textdata.

  Raises:
    FileNotFoundError: no file is at `path`.
    ValueError: it has another size, or another byte than 'a' to 'z' and the space.
  """
  train, held_out = read_enwik8(path)
  strange = sorted((set(train[0]) | set(held_out[0])) - _TEXT8)
  if strange:
    raise ValueError(f'{path} is not text8: of a to z and the space, but it has {strange[0]:#04x}.')
  return train, held_out


def read_enwik8(path: str) -> tuple[Documents, Documents]:
  """enwik8, the whole file: 90 million bytes to train on, 5 million held out, the test unread.

  Raises:
    FileNotFoundError: no file is at `path`.
    ValueError: it has another size.
  """
  place = path_of(path)
  if not place.is_file():
    raise FileNotFoundError(f'A file of {sum(_MILLIONS)} million bytes is expected at {place}.')
  size, expected = place.stat().st_size, sum(_MILLIONS) * _MILLION
  if size != expected:
    raise ValueError(f'{place} should be the whole file of {expected:,} bytes, but has {size:,}.')
  with place.open('rb') as file:
    train, held_out = (file.read(millions * _MILLION) for millions in _MILLIONS[:2])
  return (train,), (held_out,)


def names(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """The file of each document that `read` reads, or which part of it."""
  place = path_of(path)
  if place.is_dir():
    train, held_out = _names(place, TRAIN), _names(place, HELD_OUT)
    return tuple(f'{place / name}' for name in train), tuple(f'{place / name}' for name in held_out)
  return (str(place),), (f'{place}, its held-out part',)


def _documents(folder: Path, kind: frozenset[str]) -> Documents:
  return tuple(_content(folder / name) for name in _names(folder, kind))


def _names(folder: Path, kind: frozenset[str]) -> list[str]:
  names = sorted(path.name for path in folder.iterdir() if path.is_file())
  chosen = [name for name in names if kind.intersection(name.lower().split('.'))]
  if not chosen:
    raise FileNotFoundError(
      f'The folder {folder} should hold a file named with {_either(kind)} between dots, such as '
      f'{sorted(kind)[0]}.txt, but holds {", ".join(names) or "no file"}.'
    )
  return chosen


def _either(kind: frozenset[str]) -> str:
  return ' or '.join(repr(word) for word in sorted(kind))


def _content(path: Path) -> bytes:
  content = path.read_bytes()
  if not content:
    raise ValueError(f'{path} should hold text, but is empty.')
  return content
