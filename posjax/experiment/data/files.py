"""Raw text from a file or a folder: `file:PATH`."""

from pathlib import Path

_HELD_OUT_ONE_IN = 20
TRAIN = frozenset({'train'})
HELD_OUT = frozenset({'dev', 'val', 'valid', 'validation'})


def read(path: str) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
  """Reads raw text to train on and raw text held out.

  A folder holds files whose names say what they are, whatever the ending: `train.txt` and
  `valid.txt`, `wiki.train.tokens` and `wiki.valid.tokens`, `train.bin` and `dev.bin`, several of
  each if need be. Each such file is one document, its bytes unchanged, sorted by file name. Other
  files are not read, nor is a file with `test` in its name: held out means `dev`, `val`, `valid` or
  `validation`, so that tests stay unseen until the end.

  A single file is split by bytes: the last twentieth (5 %, rounded up) is held out, and the cut may
  fall inside a line.

  Args:
    path: a file, or a folder; `~` is the home folder.

  Returns:
    Documents to train on and documents held out, none empty.

  Raises:
    FileNotFoundError: nothing is at `path`, or the folder lacks one of the two kinds of file.
    ValueError: a file is empty, or a single file has fewer than 2 bytes.
  """
  place = Path(path).expanduser()
  if place.is_dir():
    return _documents(place, TRAIN), _documents(place, HELD_OUT)
  if not place.is_file():
    raise FileNotFoundError(f'file:PATH expects a file or a folder, but nothing is at {place}.')
  content = _content(place)
  if len(content) < 2:
    raise ValueError(f'{place} is split in two and needs at least 2 bytes, but holds 1.')
  cut = len(content) - -(-len(content) // _HELD_OUT_ONE_IN)
  return (content[:cut],), (content[cut:],)


def _documents(folder: Path, kind: frozenset[str]) -> tuple[bytes, ...]:
  names = sorted(path.name for path in folder.iterdir() if path.is_file())
  chosen = [name for name in names if kind.intersection(name.lower().split('.'))]
  if not chosen:
    raise FileNotFoundError(
      f'The folder {folder} should hold a file named with {_either(kind)} between dots, such as '
      f'{sorted(kind)[0]}.txt, but holds {", ".join(names) or "no file"}.'
    )
  return tuple(_content(folder / name) for name in chosen)


def _either(kind: frozenset[str]) -> str:
  return ' or '.join(repr(word) for word in sorted(kind))


def _content(path: Path) -> bytes:
  content = path.read_bytes()
  if not content:
    raise ValueError(f'{path} should hold text, but is empty.')
  return content
