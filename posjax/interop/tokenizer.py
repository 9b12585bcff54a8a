"""Tokenizers of Hugging Face folders: `tokenizer.json`, special tokens and the chat template.

`tokenizer.json` holds a whole tokenizer, which the library `tokenizers` runs. The other files say
which tokens begin, end and fill up a text, and how a conversation is written. Nothing is
downloaded, and no code of a folder runs, but its chat template in a sandbox.
"""

import contextlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from posjax.arguments import Size, read, shown
from posjax.interop import chat
from posjax.interop.folder import hub_hint, read_object

_FILE, _CONFIG, _TEMPLATE = 'tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'
# The files of tokenizers in other forms, which transformers turns into tokenizer.json.
_OTHERS = (
  *('tokenizer.model', 'spiece.model', 'sentencepiece.bpe.model', 'tiktoken.model'),
  *('tekken.json', 'vocab.json', 'merges.txt', 'vocab.txt'),
)
# In the order in which transformers adds them to a tokenizer that lacks them.
_NAMED = tuple(f'{name}_token' for name in ('bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'))
# Spaces that `clean_up_tokenization_spaces` takes out of decoded text.
_SPACES = (
  *((f' {mark}', mark) for mark in '.?!,'),
  (" ' ", "'"),
  *((f' {end}', end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


class Tokenizer:
  """Turns texts into ids and back, as transformers' fast tokenizers do; `tokenizer` makes one.

  Attributes:
    folder: where it was read.
    vocab_size: the largest id, plus 1.
    bos: the id of the token that begins a text, or None.
    eos: the id of the token that ends a text, or None.
    pad_id: the id of the token that fills up a batch, or None.
    stop: ids of the tokens that end what a model says: `generate(..., stop=tokenizer.stop)`.
  """

  def __init__(self, folder: Path, backend: Any, files: '_Files'):
    self.folder, self._backend, self._files = folder, backend, files
    self._clean = files.cleans and type(backend.model).__name__ != 'BPE'
    self._beyond: int | None = None  # ids from here on are unknown to the model that was checked
    self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    self.bos, self.eos = self._id('bos'), self._id('eos')
    self.pad_id = self._id('pad')
    own = () if self.eos is None else (self.eos,)
    self.stop: tuple[int, ...] = files.stop or own

  def encode(self, text: str, *, special: bool = True) -> list[int]:
    """The ids of a text.

    Args:
      text: the text; special tokens that are written in it are found.
      special: whether to add the special tokens that the tokenizer puts around a text.

    Raises:
      TypeError: if the text is no string.
      ValueError: if it is no Unicode text, or has a token that the model of `check` lacks.
    """
    text = read(text, str, 'The text')
    special = read(special, bool, 'special')
    with _library(f'The tokenizer of {self.folder} must encode texts, but'):
      ids = self._backend.encode(text, add_special_tokens=special).ids
    if self._beyond is not None and ids and max(ids) >= self._beyond:
      token = self._backend.id_to_token(max(ids))
      raise ValueError(
        f'The text has the token {token!r} of id {max(ids)}, but the model knows '
        f'{self._beyond:,} tokens.'
      )
    return ids

  def decode(self, ids: Sequence[int] | Array | np.ndarray, *, special: bool = False) -> str:
    """The text of ids, of which -1, as `generate` fills up what it returns, is left out.

    Args:
      ids: the ids of one text; those that the tokenizer does not know are left out, too.
      special: whether to show special tokens.

    Raises:
      TypeError: if the ids are no integers.
      ValueError: if they have several axes, or are out of range.
    """
    special = read(special, bool, 'special')
    ids = [each for each in _ids(ids, 'ids', least=-1) if each >= 0]
    with _library(f'The tokenizer of {self.folder} must decode ids, but'):
      text = self._backend.decode(ids, skip_special_tokens=not special)
    for spaced, close in _SPACES if self._clean else ():
      text = text.replace(spaced, close)
    return text

  def pad(
    self, texts: Sequence[str] | Sequence[Sequence[int]]
  ) -> tuple[Int[Array, 'B T'], Int[Array, ' B']]:
    """A batch of texts, padded on the left, as `generate` takes it.

    Args:
      texts: texts, which are encoded with their special tokens, or lists of ids.

    Returns:
      Ids [B, T], and how many of each row are its text, the last ones. The others are `pad_id`, or
      0 where there is none.

    Raises:
      TypeError: if the texts are no list of texts or of lists of ids.
      ValueError: if there is no text, or one has no token.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence):
      raise TypeError(f'The texts must be a list of texts or of ids, but got {shown(texts)}.')
    rows = [
      self.encode(one) if isinstance(one, str) else _ids(one, f'texts[{number}]')
      for number, one in enumerate(texts)
    ]
    empty = [number for number, row in enumerate(rows) if not row]
    if empty or not rows:
      what = f'texts {empty} have none' if rows else 'there is no text'
      raise ValueError(f'A batch needs texts of at least one token, but {what}.')
    lengths = [len(row) for row in rows]
    tokens = np.full((len(rows), max(lengths)), self.pad_id or 0, np.int32)
    for row, ids in zip(tokens, rows, strict=True):
      row[len(row) - len(ids) :] = ids
    return jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32)

  def chat(
    self,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
  ) -> list[int]:
    """The ids of a conversation, written by the folder's chat template.

    Args:
      messages: what was said, as `[{'role': 'user', 'content': 'Good morning'}]`. An entry that is
        None counts as left out.
      add_generation_prompt: whether to end with what begins an answer.
      **variables: further variables of the template, such as `tools` (descriptions in JSON) or
        `enable_thinking`. A folder's template for tools is taken where there are `tools`.

    Raises:
      TypeError: if the messages are no list of dicts, or hold other things than texts, numbers,
        lists and dicts.
      ValueError: if there is no message or no chat template, or the template fails.
      ImportError: if jinja2 is not installed.
    """
    add_generation_prompt = read(add_generation_prompt, bool, 'add_generation_prompt')
    dicts = isinstance(messages, (list, tuple)) and all(isinstance(m, Mapping) for m in messages)
    if not dicts:
      raise TypeError(f'The messages must be a list of dicts, but got {shown(messages)}.')
    if not messages:
      raise ValueError('A conversation needs at least one message, but got none.')
    given = {
      'messages': [{k: v for k, v in one.items() if v is not None} for one in messages],
      'add_generation_prompt': add_generation_prompt,
      'tools': None,
      'documents': None,
      **self._files.named,
      **variables,
    }
    template = self._template(given['tools'] is not None)
    try:
      text = chat.render(template, given)
    except ValueError as error:
      raise ValueError(f'The chat template of {self.folder} failed: {error}') from error
    return self.encode(text, special=False)

  def check(self, vocab: int) -> None:
    """Refuses a model of too few tokens, to which the tokenizer cannot belong.

    Tokens that were added to a tokenizer later, and that no model of texts says, as those of
    images, may be missing: a text that has one is refused from now on.

    Args:
      vocab: how many tokens the model knows, the rows of its table.

    Raises:
      ValueError: if the tokenizer has more.
    """
    vocab, self._beyond = read(vocab, Size, 'vocab'), None
    inner = max(self._backend.get_vocab(with_added_tokens=False).values(), default=-1)
    used = [each for each in (self.bos, self.eos, self.pad_id, *self.stop) if each is not None]
    used += self.encode('')  # what it puts around each text
    if max((inner, *used)) >= vocab:
      raise ValueError(
        f'The tokenizer has ids up to {self.vocab_size - 1:,}, but the model knows {vocab:,} '
        f'tokens: {self.folder} is the folder of another model.'
      )
    self._beyond = vocab if self.vocab_size > vocab else None

  def _template(self, for_tools: bool) -> str:
    templates = self._files.templates
    wanted = 'tool_use' if for_tools and 'tool_use' in templates else 'default'
    if wanted in templates:
      return templates[wanted]
    found = f'those named {", ".join(sorted(templates))} alone' if templates else 'none'
    raise ValueError(
      f'A conversation needs a chat template, in {_TEMPLATE} or in {_CONFIG}, but {self.folder} '
      f'has {found}.'
    )

  def _id(self, name: str) -> int | None:
    """The id of a special token, by its name in the tokenizer's files or by the model's config."""
    if f'{name}_token' in self._files.silent:
      return None
    token = self._files.named.get(f'{name}_token')
    return self._files.ids.get(name) if token is None else self._backend.token_to_id(token)


def tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
  """The tokenizer of a Hugging Face folder.

  Args:
    folder: a folder with `tokenizer.json`, as `hf download` makes it. What `tokenizer_config.json`,
      `special_tokens_map.json`, `generation_config.json`, `config.json` and the files of the chat
      template say is read where they are there.

  Raises:
    FileNotFoundError: if there is no such folder, or no `tokenizer.json` in it.
    ValueError: if a file cannot be read.
    TypeError: if the folder is no path.
    ImportError: if the library `tokenizers` is not installed.

  Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   byte_level(folder)
    ...   bytewise = tokenizer(folder)
    >>> bytewise.encode('Hi!'), bytewise.decode([72, 105, 33, 256, -1]), bytewise.stop
    ([72, 105, 33], 'Hi!', (256,))
    >>> bytewise.pad(['one', 'three'])[0][0]
    Array([256, 256, 111, 110, 101], dtype=int32)
  """
  try:
    import tokenizers
  except ImportError as error:
    raise ImportError(
      "A tokenizer needs the library tokenizers: pip install 'posjax[checkpoints]'."
    ) from error
  place = _folder(folder)
  expected = f'{place / _FILE} must be what tokenizers {tokenizers.__version__} reads, but'
  with _library(expected):
    backend = tokenizers.Tokenizer.from_str((place / _FILE).read_text('utf-8'))
  config = _object(place / _CONFIG)
  named, extra, silent = _special(place, config)
  if backend.padding and 'pad_token' not in config:
    named.setdefault('pad_token', backend.padding['pad_token'])
  backend.no_padding()
  backend.no_truncation()
  backend.encode_special_tokens = config.get('split_special_tokens') is True
  _add(backend, config, [*named.values(), *extra], tokenizers.AddedToken)
  ids, stop = _model_ids(place)
  cleans = config.get('clean_up_tokenization_spaces') is True
  return Tokenizer(
    place, backend, _Files(named, silent, ids, stop, _templates(place, config), cleans)
  )


def byte_level(
  folder: str | os.PathLike[str], *, special: Sequence[str] = ('<|endoftext|>',)
) -> None:
  """Writes a tokenizer whose ids 0 to 255 are the bytes of UTF-8.

  The folder gets `tokenizer.json` and `tokenizer_config.json`, which `tokenizer` and transformers
  read; those that are there are replaced. Nothing is trained, and every text has ids.

  Args:
    folder: where to write; it is made if there is none.
    special: special tokens, whose ids follow from 256 on. The first one ends a text, and fills up
      batches.

  Raises:
    ValueError: if a special token is empty or there twice.
    TypeError: if the folder is no path, or a special token no text.
  """
  place = Path(_path(folder))
  special = read(special, Sequence[str], 'special')
  if '' in special or len(set(special)) < len(special):
    raise ValueError(f'special must be different tokens, none empty, but got {shown(special)}.')
  added = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False}
  level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True}
  level['use_regex'] = False
  model = {'type': 'BPE', 'vocab': {_letter(byte): byte for byte in range(256)}, 'merges': []}
  contents = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      {'id': 256 + number, 'content': token, **added, 'special': True}
      for number, token in enumerate(special)
    ],
    'normalizer': None,
    'pre_tokenizer': level,
    'post_processor': None,
    'decoder': level,
    'model': model,
  }
  config: dict[str, Any] = {'tokenizer_class': 'PreTrainedTokenizerFast'}
  config['clean_up_tokenization_spaces'] = False
  config |= dict.fromkeys(('eos_token', 'pad_token'), special[0]) if special else {}
  place.mkdir(parents=True, exist_ok=True)
  for name, value in ((_FILE, contents), (_CONFIG, config)):
    (place / name).write_text(json.dumps(value, ensure_ascii=False, indent=2) + '\n', 'utf-8')


class _Files(NamedTuple):
  """The contents of a folder beside `tokenizer.json`.

  Attributes:
    named: the special tokens that have a name, as 'eos_token'.
    silent: names of special tokens that the tokenizer says it has not.
    ids: ids of 'bos', 'eos' and 'pad' by the model's configuration.
    stop: ids of tokens that end what a model says.
    templates: chat templates by their names.
    cleans: whether spaces before punctuation are taken out of decoded text.
  """

  named: dict[str, str]
  silent: set[str]
  ids: dict[str, int]
  stop: tuple[int, ...]
  templates: dict[str, str]
  cleans: bool


@contextlib.contextmanager
def _library(expected: str) -> Generator[None, None, None]:
  """Errors of the library, which has no class for them, as a ValueError."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
    raise
  except BaseException as error:  # where its code in Rust panics, it is no Exception
    raise ValueError(f'{expected}: {" ".join(str(error).split())}') from error


def _letter(byte: int) -> str:
  """The character that stands for a byte in byte-level vocabularies.

  Bytes that are printable characters in Latin-1 stand for themselves, the others follow from 256.
  """
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = sorted(set(range(256)) - set(printable))
  return chr(byte if byte in printable else 256 + others.index(byte))


def _path(folder: Any) -> str:
  if not isinstance(folder, (str, os.PathLike)):
    raise TypeError(f'The folder must be a path, but got {shown(folder)}.')
  return read(os.fsdecode(folder), str, 'The folder')


def _folder(folder: Any) -> Path:
  """The folder, if there is a tokenizer in it."""
  name = _path(folder)
  place = Path(name)
  try:
    found = sorted(path.name for path in place.iterdir())
  except (OSError, ValueError):  # there is none, it is a file, or may not be read
    if place.is_file():
      raise FileNotFoundError(f'A tokenizer is a folder, but {name} is a file.') from None
    raise FileNotFoundError(
      f'A tokenizer needs a folder with {_FILE}, but there is no folder {shown(name)}.'
      f'{hub_hint(name)}'
    ) from None
  if _FILE in found:
    return place
  others = [other for other in _OTHERS if other in found]
  if others:
    raise FileNotFoundError(
      f'{place} has no {_FILE}, but {", ".join(others)}: '
      'AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes it.'
    )
  raise FileNotFoundError(f'A tokenizer needs {_FILE}, but {place} has none.')


def _object(path: Path) -> dict[str, Any]:
  """The object of a JSON file; empty where there is no file."""
  return read_object(path) if path.exists() else {}


def _field(path: Path, values: dict[str, Any], name: str, kind: Any) -> Any:
  """A field of a file; None where it is left out."""
  try:
    return read(values.get(name), kind | None, f'{name} in {path}')
  except TypeError as error:
    raise ValueError(str(error)) from None


def _content(token: Any) -> str | None:
  """The text of a token, which a file holds as a string or in an object; None for all else."""
  text = token.get('content') if isinstance(token, dict) else token
  return text if isinstance(text, str) and text else None


def _special(place: Path, config: dict[str, Any]) -> tuple[dict[str, str], list[str], set[str]]:
  """Special tokens by their names, those without a name, and names that are given to none."""
  said = dict(config)
  if 'added_tokens_decoder' not in config:  # as before transformers 4.34
    said |= _object(place / 'special_tokens_map.json')
  extra = said.get('extra_special_tokens') or said.get('additional_special_tokens') or []
  if isinstance(extra, dict):
    said, extra = {**said, **extra}, []
  names = [*_NAMED, *(name for name in said if name.endswith('_token') and name not in _NAMED)]
  named = {name: _content(said.get(name)) for name in names}
  silent = {name for name in _NAMED if name in said and said[name] is None}
  listed = [_content(token) for token in extra] if isinstance(extra, list) else []
  return (
    {name: token for name, token in named.items() if token is not None},
    [token for token in listed if token is not None],
    silent,
  )


def _add(backend: Any, config: dict[str, Any], special: list[str], make: Any) -> None:
  """Adds the tokens that the configuration names, and that `tokenizer.json` does not add."""
  added = {token.content for token in backend.get_added_tokens_decoder().values()}
  listed = config.get('added_tokens_decoder')
  numbered = {} if not isinstance(listed, dict) else listed
  flags = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')
  ordered = sorted((key for key in numbered if str(key).isdecimal()), key=int)
  for token in [*(numbered[key] for key in ordered), *special]:
    text = _content(token)
    if text is None or text in added:
      continue
    given = token if isinstance(token, dict) else {'special': True}
    backend.add_tokens([make(text, **{k: given[k] is True for k in flags if k in given})])
    added.add(text)


def _model_ids(place: Path) -> tuple[dict[str, int], tuple[int, ...]]:
  """The ids of special tokens by the model's configuration, and those that end what it says."""
  path = place / 'config.json'
  config = _object(path)
  inner = config.get('text_config')
  found = {}
  for values in (inner if isinstance(inner, dict) else {}, config):
    found |= {name: ids for name in ('bos', 'eos', 'pad') if (ids := _some(path, values, name))}
  path = place / 'generation_config.json'
  stop = _some(path, _object(path), 'eos') or found.get('eos', ())
  return {name: ids[0] for name, ids in found.items()}, stop


def _some(path: Path, values: dict[str, Any], name: str) -> tuple[int, ...]:
  """One id or several; negative ones stand for none."""
  value = _field(path, values, f'{name}_token_id', int | list[int])
  ids = [] if value is None else [value] if isinstance(value, int) else value
  return tuple(dict.fromkeys(each for each in ids if each >= 0))


def _templates(place: Path, config: dict[str, Any]) -> dict[str, str]:
  """Chat templates by their names: files before the configuration, as in transformers."""
  files = {
    path.stem: path for path in sorted((place / 'additional_chat_templates').glob('*.jinja'))
  }
  if (place / _TEMPLATE).exists():
    files['default'] = place / _TEMPLATE
  if files:
    return {name: _text(path) for name, path in files.items()}
  path = place / _CONFIG
  if config.get('chat_template') is None:
    path = place / 'chat_template.json'
    config = _object(path)
  value = config.get('chat_template')
  if value is None or isinstance(value, str):
    return {} if value is None else {'default': value}
  try:
    pairs = (
      value.items() if isinstance(value, dict) else [(x['name'], x['template']) for x in value]
    )
    return {read(name, str, ''): read(text, str, '') for name, text in pairs}
  except (TypeError, KeyError, ValueError):
    raise ValueError(
      f'chat_template in {path} must be a template, or a list of names and templates, but got '
      f'{shown(value)}.'
    ) from None


def _text(path: Path) -> str:
  try:
    return path.read_text('utf-8')
  except (OSError, ValueError) as error:
    raise ValueError(f'{path} must be a text file, but cannot be read: {error}.') from None


def _ids(ids: Any, name: str, least: int = 0) -> list[int]:
  """Ids as a list of integers of Python."""
  if isinstance(ids, (np.ndarray, Array)):
    if ids.ndim != 1:
      raise ValueError(f'{name} must be a list of ids, but got {shown(ids)}.')
    ids = np.asarray(ids).tolist()
  ids = read(ids, Sequence[int], name)
  if ids and min(ids) < least:
    raise ValueError(f'{name} must be ids of at least {least}, but got {min(ids)}.')
  return list(ids)
