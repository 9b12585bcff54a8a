"""Models whose reach is measured: a checkpoint with one scheme after the other, and tuned runs."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from posjax.experiment import loading, losses, needles, trained, unreadable
from posjax.experiment import workdir as workdirs
from posjax.experiment.reach_scores import Settings
from posjax.experiment.tasks.checkpoint import task as checkpoint
from posjax.foreign import imports
from posjax.interop import planning, pretrained
from posjax.interop.folder import read_config
from posjax.interop.tokenizer import Tokenizer, tokenizer


class Reader(NamedTuple):
  """A model that is measured.

  Attributes:
    name: of its row.
    sha256: of the files of its weights, its configuration and its tokenizer.
    schemes: of its layers, by the length of the texts.
    load: the model, by the length of the texts.
  """

  name: str
  sha256: str
  schemes: Callable[[int], tuple[str, ...]]
  load: Callable[[int], nnx.Module]


def readers_of(
  folder: str | Path, schemes: Sequence[str], settings: Settings
) -> tuple[list[Reader], Tokenizer]:
  """A checkpoint with each of these schemes, and its tokenizer; nothing is loaded yet.

  Args:
    folder: of the checkpoint.
    schemes: 'own', or lines as `posjax.interop.load` reads them; 'own|none' repeats over layers.
    settings: of the measurement.

  Raises:
    FileNotFoundError: if there is no such folder, or it has no weights or no tokenizer.
    ValueError: if a scheme or the folder cannot be read, the tokenizer is that of another model, or
      the model is an encoder.
  """
  twice = [each for i, each in enumerate(schemes) if each in schemes[:i]]
  if twice:
    raise ValueError(f'Each of the schemes must be given once, but got {twice[0]!r} twice.')
  whole, made = planning.whole_of(read_config(folder)), tokenizer(folder)
  names = pretrained.names_of(whole, folder)

  def reader(line: str) -> Reader:
    given = line if '|' not in line else [each.strip() for each in line.split('|')]
    options = {'dtype': settings.dtype, 'seed': settings.seed}

    def planned(length: int) -> planning.Planned:
      return planning.plan(whole, given, length=length, names=names)

    for length in settings.lengths:
      checkpoint.check_decoder(planned(length))
    made.check(planned(settings.longest).plans[None].vocab)
    used = lambda length: tuple(repr(block.scheme) for block in planned(length).plans[None].blocks)
    load = lambda length: pretrained.load(folder, given, length=length, **options)
    return Reader(line, sha256, used, load)

  sha256 = _hash_of([Path(folder) / name for name in checkpoint.TEXTS] + _weights(Path(folder)))
  return [reader(line) for line in schemes], made


def reader_of_run(workdir: str | Path, allow_imports: bool = False) -> tuple[Reader, Tokenizer]:
  """A model that train.py tuned, with its own scheme, and its tokenizer.

  Args:
    workdir: a work folder of the task `checkpoint`.
    allow_imports: as of `posjax.experiment.load`.

  Raises:
    FileNotFoundError: if there is no run in the folder, or no checkpoint yet.
    ValueError: if the run is of another task.
  """
  folder = Path(workdir)
  with imports(allowed=allow_imports):
    config = trained.read_config(folder)
  stored = workdirs.stored_vocabulary(folder)
  if config.task.name != 'checkpoint' or stored is None:
    raise ValueError(
      f'{folder} must hold a run of the task checkpoint, but its task is {config.task.name}.'
    )
  steps = unreadable.steps_of(folder / workdirs.CHECKPOINTS)
  if not steps:
    raise FileNotFoundError(f'There is no checkpoint yet in {folder}.')
  saved = [folder / workdirs.CHECKPOINTS / str(each) / unreadable.HASHES for each in sorted(steps)]
  files = [folder / workdirs.CONFIG, folder / workdirs.VOCABULARY, *saved]
  count = max(steps)
  name = f'{config.scheme}, tuned {count} step{"s" * (count != 1)}'

  @functools.cache
  def load() -> nnx.Module:
    return loading.load(folder, allow_imports=allow_imports).model

  used: Any = lambda _: (config.scheme,)
  return Reader(name, _hash_of(files), used, lambda _: load()), checkpoint.tokenizer_of(stored)


def compiled(model: Any, rows: int) -> needles.Losses:
  """A model as a function `(inputs, targets) -> (losses, correct)` of texts [N, T], in batches.

  Losses are in nats, and `correct` is 1 where the target is the most likely token. All batches have
  the same shape, so that one program is compiled for each T.

  Args:
    model: `(tokens, pos) -> logits [B, T, V]`.
    rows: of a batch.
  """
  graph, state = nnx.split(model)

  @jax.jit
  def run(state, inputs, targets):
    logits = nnx.merge(graph, state)(inputs, jnp.arange(inputs.shape[1], dtype=jnp.int32))
    found = losses.cross_entropy(logits, targets, jnp.ones(targets.shape))
    return found.loss, found.correct

  def read(inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for first in range(0, len(inputs), rows):
      pair = [each[first : first + rows] for each in (inputs, targets)]
      count = len(pair[0])
      padded = [np.pad(each.astype(np.int32), ((0, rows - count), (0, 0))) for each in pair]
      found.append([np.asarray(each)[:count] for each in run(state, *padded)])
    one, other = (np.concatenate(each) for each in zip(*found, strict=True))
    return one, other

  return read


def _weights(folder: Path) -> list[Path]:
  return sorted(folder.glob('*.safetensors'))


def _hash_of(files: Sequence[Path]) -> str:
  """SHA-256 of the names and contents of these files, of those that there are."""
  digest = hashlib.sha256()
  for path in files:
    if path.is_file():
      with path.open('rb') as file:
        mine = hashlib.file_digest(file, 'sha256').hexdigest()
      digest.update(f'{path.parent.name if path.name == unreadable.HASHES else ""} '.encode())
      digest.update(f'{path.name} {mine} '.encode())
  return digest.hexdigest()
