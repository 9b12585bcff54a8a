"""The folder of a Hugging Face checkpoint: `config.json` and safetensors files, read and written.

Weights are memory-mapped: reading a folder reads the headers of its files, and an array is read
from disk where it is used. Nothing is downloaded, no pickle is opened, and no code of the folder is
run: what an `auto_map` in `config.json` names stays unused.

The library `safetensors` checks each file (`pip install 'posjax[checkpoints]'`). As it copies the
arrays that it gives to NumPy, they are made here, from the offsets in the header: a file begins
with the length of its header as 8 bytes, little-endian; the header is a JSON object of names to
`dtype`, `shape` and `data_offsets`; and the offsets count from the header's end.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.arguments import Range, read, shown

_CONFIG = 'config.json'
_WHOLE = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_INSTALL = "pip install 'posjax[checkpoints]'"
_METADATA = '__metadata__'  # the one key of a header that is no weight
_DTYPES = {
  'F64': np.dtype('float64'),
  'F32': np.dtype('float32'),
  'F16': np.dtype('float16'),
  'BF16': jnp.dtype('bfloat16'),
  'F8_E4M3': jnp.dtype('float8_e4m3fn'),
  'F8_E5M2': jnp.dtype('float8_e5m2'),
  'F8_E8M0': jnp.dtype('float8_e8m0fnu'),
  'C64': np.dtype('complex64'),
  'I64': np.dtype('int64'),
  'I32': np.dtype('int32'),
  'I16': np.dtype('int16'),
  'I8': np.dtype('int8'),
  'U64': np.dtype('uint64'),
  'U32': np.dtype('uint32'),
  'U16': np.dtype('uint16'),
  'U8': np.dtype('uint8'),
  'BOOL': np.dtype('bool'),
}
_PICKLES = ('pytorch_model*.bin', '*.pt', '*.pth', '*.ckpt', '*.pkl')
_FOREIGN = ('tf_model*.h5', 'flax_model*.msgpack', '*.gguf')
_HUB = re.compile(r'([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*')  # 'owner/name', or a name alone


class Folder(NamedTuple):
  """A checkpoint on disk.

  Attributes:
    path: the folder.
    config: the contents of its `config.json`.
    weights: the arrays by name. They are read-only views of the memory-mapped files, which must
      stay as they are while the arrays are in use. Each look-up makes a new view; nothing is read
      from disk before numbers are used.
    files: the safetensors files that hold the weights.
  """

  path: Path
  config: dict[str, Any]
  weights: Mapping[str, np.ndarray]
  files: tuple[Path, ...]


def is_checkpoint(folder: str | Path) -> bool:
  """Whether it is a folder with weights of safetensors."""
  return any(Path(folder).glob('*.safetensors'))


def read_config(folder: str | Path) -> dict[str, Any]:
  """The contents of the `config.json` of a folder, which may have no weights.

  Raises:
    FileNotFoundError: if there is no such folder or file.
    ValueError: if the file holds no JSON object.
  """
  path = Path(folder)
  _check_folder(path)
  return read_object(path / _CONFIG)


def read_folder(folder: str | Path) -> Folder:
  """A Hugging Face checkpoint on disk, with its weights memory-mapped.

  The weights are those of `model.safetensors`. Where there is no such file, they are those that
  `model.safetensors.index.json` names, each from the shard that it names.

  Args:
    folder: the folder, such as `hf download NAME --local-dir FOLDER` or transformers'
      `save_pretrained` writes it.

  Raises:
    FileNotFoundError: if the folder, its `config.json`, its weights or one of its shards is
      missing.
    ValueError: if the path is no folder, a file is broken, weights are in another format than
      safetensors, or the index names a weight that its shard lacks or a file outside the folder.
    ImportError: if `safetensors` is not installed.

  Example:
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   weights = {'lm_head.weight': np.ones((2, 3), jnp.bfloat16)}
    ...   write_folder(folder, {'model_type': 'llama'}, weights)
    ...   checkpoint = read_folder(folder)
    ...   weight = checkpoint.weights['lm_head.weight']
    ...   checkpoint.config, list(checkpoint.weights), weight.shape, weight.dtype
    ({'model_type': 'llama'}, ['lm_head.weight'], (2, 3), dtype(bfloat16))
  """
  path = Path(read(folder, str | Path, 'folder'))
  _check_library()
  _check_folder(path)
  config = read_object(path / _CONFIG)
  if os.path.isfile(path / _WHOLE):
    files, weights = (path / _WHOLE,), _entries(path / _WHOLE)
  elif os.path.isfile(path / _INDEX):
    files, weights = _entries_by_index(path)
  else:
    raise _without_weights(path)
  if not weights:
    raise ValueError(f'{files[0] if files else path / _INDEX} holds no weights.')
  return Folder(path, config, _Views(weights), files)


def write_folder(
  folder: str | Path,
  config: Mapping[str, Any],
  weights: Mapping[str, np.ndarray | jax.Array],
  *,
  shard_bytes: int = 5 * 10**9,
) -> None:
  """Writes a Hugging Face checkpoint: `config.json` and safetensors, whole or in shards.

  Files are written into a temporary folder inside of `folder` and then moved to their names,
  `config.json` last: what an interrupted call leaves is no checkpoint. Arrays that are not
  contiguous are copied, one shard at a time.

  Args:
    folder: the folder, which is made where it is missing. It may hold other files, but no
      checkpoint.
    config: the contents of `config.json`; the keys keep their order.
    weights: the arrays by name, of NumPy or JAX.
    shard_bytes: the most bytes of one file. Where the weights have more, they are written as
      `model-00001-of-0000N.safetensors` in the order given, with an index. A weight that is larger
      by itself gets a file of its own.

  Raises:
    ValueError: if there are no weights, a name is not allowed, the configuration is not
      representable as JSON, the path is no folder or holds a checkpoint already, or `safetensors`
      cannot write.
    TypeError: if an argument is not of its type, or safetensors have no such dtype.
    ImportError: if `safetensors` is not installed.

  Example:
    >>> weights = {'a': np.zeros((2, 3), np.float32), 'b': np.ones(4, np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   write_folder(folder, {'model_type': 'llama'}, weights, shard_bytes=30)
    ...   for each in sorted(Path(folder).iterdir()):
    ...     print(each.name)
    config.json
    model-00001-of-00002.safetensors
    model-00002-of-00002.safetensors
    model.safetensors.index.json
  """
  path = Path(read(folder, str | Path, 'folder'))
  shard_bytes = read(shard_bytes, Annotated[int, Range(1)], 'shard_bytes')
  _check_library()
  from safetensors import SafetensorError
  from safetensors.numpy import save_file

  text = _text_of(config)
  sizes = _checked_sizes(weights)
  _check_vacant(path)
  shards = _shards(sizes, shard_bytes)
  count = len(shards)
  files = [f'model-{i + 1:05}-of-{count:05}.safetensors' for i in range(count)]
  files = files if count > 1 else [_WHOLE]
  path.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix='.partial-', dir=path) as partial:
    written = list(files)
    for file, names in zip(files, shards, strict=True):
      arrays = {name: _contiguous(weights[name]) for name in names}
      try:
        save_file(arrays, Path(partial, file), metadata={'format': 'pt'})
      except SafetensorError as error:  # an old version lacks a dtype, or the disk is full
        raise ValueError(f'safetensors cannot write {path / file}: {_one_line(error)}.') from error
    if count > 1:
      where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
      index = {'metadata': {'total_size': sum(sizes.values())}, 'weight_map': where}
      Path(partial, _INDEX).write_text(json.dumps(index, indent=2) + '\n', encoding='utf-8')
      written.append(_INDEX)
    Path(partial, _CONFIG).write_text(text, encoding='utf-8')
    for file in (*written, _CONFIG):
      os.replace(Path(partial, file), path / file)


# The parts of reading.


class _Entry(NamedTuple):
  """Where an array is: its file, its dtype and shape, and the byte at which it begins."""

  file: np.memmap
  dtype: np.dtype
  shape: tuple[int, ...]
  start: int


class _Views(Mapping[str, np.ndarray]):
  """Arrays by name, as views of memory-mapped files."""

  def __init__(self, entries: dict[str, _Entry]):
    self._entries = entries

  def __getitem__(self, name: str) -> np.ndarray:
    file, dtype, shape, start = self._entries[name]
    return np.ndarray(shape, dtype, buffer=file, offset=start)

  def __contains__(self, name: object) -> bool:
    return name in self._entries

  def __iter__(self) -> Iterator[str]:
    return iter(self._entries)

  def __len__(self) -> int:
    return len(self._entries)

  def __repr__(self) -> str:
    return f'<{len(self):,} weights>'


def _check_library() -> None:
  try:
    import safetensors  # noqa: F401
  except ImportError as error:
    raise ImportError(f'Checkpoints need the library safetensors: {_INSTALL}') from error


def _check_folder(path: Path) -> None:
  if os.path.isdir(path):
    if not os.path.isfile(path / _CONFIG):
      raise FileNotFoundError(f'The folder {path} of a checkpoint should hold a {_CONFIG}.')
    return
  if os.path.exists(path):
    raise ValueError(f'Expected the folder of a checkpoint, but {path} is a file.')
  raise FileNotFoundError(f'The folder {path} does not exist.{hub_hint(path.as_posix())}')


def hub_hint(name: str) -> str:
  """How a model of this name gets onto the disk; '' where it cannot be the name of one."""
  if not _HUB.fullmatch(name):
    return ''
  return (
    ' posjax downloads nothing: if this is the name of a model on the Hugging Face hub, run '
    f'`hf download {name} --local-dir FOLDER` and read FOLDER.'
  )


def read_object(path: Path, what: str = 'an object') -> dict[str, Any]:
  """The object that a file holds as JSON; `what` is what it should be.

  Raises:
    ValueError: if it holds something else, or cannot be read.
  """
  try:
    value = json.loads(path.read_bytes())
  except RecursionError:
    found = 'brackets within brackets'
  except ValueError as error:
    found = f'no JSON ({error})'
  else:
    if isinstance(value, dict):
      return value
    found = shown(value)
  raise ValueError(f'{path} should hold {what} as JSON, but holds {found}.')


def _entries(path: Path) -> dict[str, _Entry]:
  """The arrays of a safetensors file, which the library has checked."""
  from safetensors import SafetensorError, safe_open

  try:
    with safe_open(path, 'numpy'):
      pass
  except SafetensorError as error:
    raise ValueError(f'{path} is no complete safetensors file: {_reason(path, error)}.') from error
  with open(path, 'rb') as opened:
    length = int.from_bytes(opened.read(8), 'little')
    header = json.loads(opened.read(length))
  header.pop(_METADATA, None)
  file, entries = np.memmap(path, mode='r'), {}
  for name, entry in header.items():
    if entry['dtype'] not in _DTYPES:
      raise ValueError(
        f'{path} should hold weights of the dtypes {", ".join(_DTYPES)}, but {shown(name)} has '
        f'{entry["dtype"]}.'
      )
    start = 8 + length + entry['data_offsets'][0]
    entries[name] = _Entry(file, _DTYPES[entry['dtype']], tuple(entry['shape']), start)
  return entries


def _reason(path: Path, error: Exception) -> str:
  """Why a file is no safetensors file."""
  with open(path, 'rb') as opened:
    if opened.read(20) == b'version https://git-':
      return 'it is the pointer that Git LFS leaves where the file itself was not fetched'
  return _one_line(error)


def _one_line(error: Exception) -> str:
  return ' '.join(str(error).split()).rstrip('.')


def _entries_by_index(path: Path) -> tuple[tuple[Path, ...], dict[str, _Entry]]:
  """The shards that the index of a folder names, and the arrays that it names, from them."""
  index = path / _INDEX
  where = read_object(index).get('weight_map')
  if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
    raise ValueError(f'{index} should have a weight_map of names to files, but has {shown(where)}.')
  files = sorted(set(where.values()))
  for file in files:
    bare = file == PurePosixPath(file).name == PureWindowsPath(file).name
    if not bare or not file.endswith('.safetensors'):
      raise ValueError(
        f'{index} should name safetensors files in its own folder, but names {shown(file)}.'
      )
  missing = [file for file in files if not os.path.isfile(path / file)]
  if missing:
    raise FileNotFoundError(
      f'The folder {path} lacks {len(missing)} of the {len(files)} files that its index names, '
      f'first {shown(missing[0])}.'
    )
  shards = {file: _entries(path / file) for file in files}
  for name, file in where.items():
    if name not in shards[file]:
      raise ValueError(f'{index} says that {shown(name)} is in {file}, which has no such weight.')
  return tuple(path / file for file in files), {
    name: shards[file][name] for name, file in where.items()
  }


def _without_weights(path: Path) -> Exception:
  """The error for a folder with neither `model.safetensors` nor an index."""
  expected = f'{path} should hold {_WHOLE} or {_INDEX}'
  advice = 'read the model with transformers, and write it again by its save_pretrained'
  found = lambda patterns: sorted({p.name for each in patterns for p in path.glob(each)})
  if others := found(['*.safetensors']):
    return FileNotFoundError(f'{expected}, but of safetensors it has only {_listed(others)}.')
  if pickles := found(_PICKLES):
    return ValueError(
      f'{expected}, but has its weights as pickles ({_listed(pickles)}). posjax never opens these, '
      f'since that can run code: {advice}.'
    )
  if foreign := found(_FOREIGN):
    return ValueError(
      f'{expected}, but has its weights as {_listed(foreign)}, which posjax does not read: '
      f'{advice}.'
    )
  return FileNotFoundError(f'{expected}, but has no weights.')


def _listed(names: list[str]) -> str:
  return ', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else '')


# The parts of writing.


def _text_of(config: Mapping[str, Any]) -> str:
  """A configuration as the text of `config.json`."""
  if not isinstance(config, Mapping):
    raise TypeError(f'config must be a mapping, but got {shown(config)}.')
  try:
    return json.dumps(dict(config), indent=2) + '\n'
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(f'config must hold what JSON can represent, but: {error}.') from error


def _checked_sizes(weights: Mapping[str, np.ndarray | jax.Array]) -> dict[str, int]:
  """The bytes of each array, all of which can be written."""
  if not isinstance(weights, Mapping):
    raise TypeError(f'weights must be a mapping of names to arrays, but got {shown(weights)}.')
  if not weights:
    raise ValueError('weights must hold at least one array, but are empty.')
  sizes = {}
  for name in weights:
    if not isinstance(name, str):
      raise TypeError(f'The names of weights must be strings, but got {shown(name)}.')
    if name == _METADATA:
      raise ValueError(
        f'A weight cannot have the name {name!r}, under which a file holds other data.'
      )
    array = weights[name]
    if not isinstance(array, (np.ndarray, jax.Array)):
      raise TypeError(f'The weight {shown(name)} must be an array, but is {shown(array)}.')
    if _native(array) not in _DTYPES.values():
      raise TypeError(
        f'The weight {shown(name)} must have a dtype of safetensors ({", ".join(_DTYPES)}), but '
        f'has {array.dtype}.'
      )
    sizes[name] = array.size * array.dtype.itemsize
  return sizes


def _native(array: np.ndarray | jax.Array) -> Any:
  """The dtype of an array, in native byte order."""
  dtype = array.dtype
  return dtype.newbyteorder('=') if isinstance(dtype, np.dtype) else dtype


def _check_vacant(path: Path) -> None:
  """Refuses a path that is no folder, or a folder that holds a checkpoint or a part of one."""
  if os.path.exists(path) and not os.path.isdir(path):
    raise ValueError(f'Expected a folder to write a checkpoint into, but {path} is a file.')
  found = sorted(p.name for each in (_CONFIG, _INDEX, '*.safetensors') for p in path.glob(each))
  if found:
    raise ValueError(
      f'A checkpoint is written into a folder without one, but {path} holds {_listed(found)}.'
    )


def _shards(sizes: dict[str, int], shard_bytes: int) -> list[list[str]]:
  """The names of the weights of each file."""
  shards, filled = [[]], 0
  for name, size in sizes.items():
    if shards[-1] and filled + size > shard_bytes:
      shards.append([])
      filled = 0
    shards[-1].append(name)
    filled += size
  return shards


def _contiguous(array: np.ndarray | jax.Array) -> np.ndarray:
  """The array in C order and the machine's byte order: the library writes memory as it lies."""
  return np.asarray(array, _native(array), order='C')
