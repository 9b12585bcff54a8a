"""Whole models of checkpoints: from a folder to a model.

The weights of a folder are memory-mapped, and the tree of a model holds views of them until they
are put on the devices, each of which reads its part alone.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from posjax.arguments import read
from posjax.interop.folder import read_folder
from posjax.interop.planning import Planned, Whole, plan, whole_of
from posjax.interop.reading import FLOATS, Files, Path_, leaves_of
from posjax.interop.replacement import Given
from posjax.models import filling
from posjax.models import pretrained as models
from posjax.models.plans import Source, runs

_TABLES = {1: ('embed', 'table', 'embedding'), 2: ('decoder', 'embed', 'table', 'embedding')}


def load(
  folder: str | Path,
  scheme: Given = None,
  *,
  dtype: str | None = None,
  length: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
  implementation: str | None = None,
  dropout_rate: float = 0.0,
  remat: bool = False,
  remat_policy: Any = None,
  seed: int = 0,
) -> Any:
  """The model in the folder of a Hugging Face checkpoint: its configuration and its weights.

  A decoder and an encoder are `posjax.models.pretrained.Pretrained`, T5 is a
  `PretrainedEncoderDecoder`: `model(tokens, pos)` gives logits [B, T, V]. Of a folder with images
  and text, this is the model of the text; `model.source.skipped` says what was left out. No code of
  the folder is run, and nothing is downloaded.

  Args:
    folder: with `config.json`, and `model.safetensors` or its shards.
    scheme: what takes the place of the positions that the model was trained with: a line, for all
      layers that have positions, or one for each layer; 'own' stands for that of the checkpoint. A
      line that leaves out `base`, `fraction` or `interleaved` gets what the checkpoint was trained
      with. Parameters of a new scheme are drawn.
    dtype: 'float32', 'bfloat16' or 'float16', of the weights and of the computation; by default
      that of the folder's table of embeddings. Norms, positions, the softmax and logits are
      computed in float32.
    length: the length of the longest text, in tokens, for dynamic NTK and LongRoPE, which depend on
      it.
    mesh: of devices, with the axes 'data', 'fsdp', 'tensor' and 'context' as training has them.
      Weights are cut along 'fsdp' and 'tensor' while they are read, so that a model may be larger
      than the memory of one device.
    implementation: of attention, as in `posjax.attend`.
    dropout_rate: of attention weights and of what each part of a layer adds, where the model is
      called with a `train_key`; what the configuration says of dropout is not read.
    remat: recompute activations in the backward pass.
    remat_policy: which of them are kept nevertheless, a name in `jax.checkpoint_policies`.
    seed: of what is drawn.

  Returns:
    The model. Its `schemes` has the scheme of each layer, and `source.own` what the checkpoint was
    trained with.

  Raises:
    FileNotFoundError: if there is no such folder, or a file of it is missing.
    ValueError: if a file is damaged, the configuration has something that is not supported, a
      weight is missing, unexpected or of another shape, or a scheme cannot be read.
    ImportError: if the libraries of the extra `checkpoints` are not installed.
  """
  found = read_folder(folder)
  checked = read(dtype, str | None, 'dtype')
  whole, files = whole_of(found.config), Files(found.weights)
  planned = plan(whole, scheme, length=length, names=files.without_copies(whole))
  leaves = leaves_of(planned, files, files.names)
  skipped = files.skipped(planned)
  used = dtype_of(checked or str(leaves[_TABLES[len(planned.plans)]].dtype))
  making = models.Making(used, used, dropout_rate, implementation, remat, remat_policy)
  source = source_of(planned, found.config, length)._replace(skipped=skipped)
  make = lambda: planned.make(making, source, models.rngs(seed))
  return filling.assemble(make, leaves, used, mesh, _may_be_new(planned))


def create(
  config: Mapping[str, Any],
  scheme: Given = None,
  *,
  dtype: str = 'float32',
  length: int | None = None,
  seed: int = 0,
) -> Any:
  """A new model with random weights, as `load` would make it of a folder with this configuration.

  Args:
    config: the contents of a `config.json`.
    scheme: see `load`.
    dtype: of the weights and of the computation.
    length: see `load`.
    seed: of the weights.

  Raises:
    ValueError: as `load`.

  Example:
    >>> config = {'model_type': 'gpt2', 'n_embd': 8, 'n_head': 2, 'n_layer': 1, 'vocab_size': 9}
    >>> create({**config, 'n_positions': 4})(jnp.array([[1, 2]]), jnp.arange(2)).shape
    (1, 2, 9)
  """
  planned = plan(whole_of(config), scheme, length=length)
  used = dtype_of(read(dtype, str, 'dtype'))
  making = models.Making(used, used)
  return planned.make(making, source_of(planned, config, length), models.rngs(seed))


def source_of(planned: Planned, config: Mapping[str, Any], length: int | None) -> Source:
  """The origin of a model, as it keeps it."""
  own = tuple(repr(each) for schemes in planned.own.values() for each in schemes)
  return Source(json.dumps(config), own, length)


def weights_of(
  planned: Planned, folder: str | Path
) -> tuple[dict[Path_, Any], Callable[[Path_], bool]]:
  """The weights of a folder by the paths of the parameters of a model, and which may be drawn."""
  files = Files(read_folder(folder).weights)
  files.without_copies(planned.whole)
  leaves = leaves_of(planned, files, files.names)
  files.skipped(planned)
  return leaves, _may_be_new(planned)


def names_of(whole: Whole, folder: str | Path) -> list[str]:
  """The names of the weights of a folder, as `plan` takes them."""
  return Files(read_folder(folder).weights).without_copies(whole)


def dtype_of(name: str) -> Any:
  """The dtype of a name.

  Raises:
    ValueError: if models do not have it.
  """
  if name not in FLOATS:
    raise ValueError(f'dtype must be one of {", ".join(FLOATS)}, but got {name!r}.')
  return jnp.dtype(name)


def _may_be_new(planned: Planned) -> Callable[[Path_], bool]:
  """Whether a parameter may be drawn: those of schemes that took the place of the model's own."""
  kept = {
    scheme
    for part, schemes in planned.own.items()
    for scheme, block in zip(schemes, planned.plans[part].blocks, strict=True)
    if scheme is block.scheme
  }

  def may(path: Path_) -> bool:
    part = path[0] if path[0] in planned.plans else None
    rest = path if part is None else path[1:]
    blocks = planned.plans[part].blocks
    if rest[:2] == ('embed', 'shared'):
      scheme = list(dict.fromkeys(block.scheme for block in blocks))[rest[2]]
    elif 'scheme_params' in rest:
      scheme = runs(blocks)[rest[2]][0][rest[4]].scheme
    else:
      return False
    return scheme not in kept

  return may
