"""Whole models of checkpoints: from a folder to a model, and back.

The weights of a folder are memory-mapped, and the tree of a model holds views of them until they
are put on the devices, each of which reads its part alone. Nothing is computed with weights, so
that the same views, of empty arrays, take the weights of a model when it is saved.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posjax.arguments import Size, read, shown
from posjax.expression import get
from posjax.interop import bodies
from posjax.interop.bodies import Around, Body
from posjax.interop.checkpoint import attention_of
from posjax.interop.families import scheme_of
from posjax.interop.family import Options
from posjax.interop.fields import Fields
from posjax.interop.folder import read_folder
from posjax.interop.mxfp4 import unpacked_mxfp4
from posjax.interop.replacement import Given, replaced
from posjax.interop.settings import (
  Settings,
  check_read,
  layer,
  layers_in,
  part_of,
  with_defaults,
)
from posjax.models import pretrained as models
from posjax.scheme import Scheme, declares, places

Path_ = tuple[Any, ...]  # of a parameter in a model
Tree = dict[Path_, np.ndarray]
_FLOATS = 'float16', 'bfloat16', 'float32'


class Whole(NamedTuple):
  """A configuration, as a whole model needs it.

  Attributes:
    config: the contents of `config.json`, or of its `text_config`.
    fields: the same, with the defaults of transformers.
    inside: the name under which the text model is in a model of several parts; '' for others.
  """

  config: Mapping[str, Any]
  fields: Fields
  inside: str = ''

  @property
  def parts(self) -> tuple[str | None, ...]:
    """The parts of the model: encoder and decoder, or one without a name."""
    return ('encoder', 'decoder') if self.kind == 't5' else (None,)

  @property
  def kind(self) -> str:
    """The model type."""
    return self.fields.get('model_type', str) or ''

  def body(self, part: str | None) -> Body:
    """The part around its attention."""
    return bodies.BODIES[self.kind](self.fields, part)

  def depth(self, part: str | None) -> int:
    """The number of layers of a part."""
    return self.fields.needed('the number of its layers', lambda _: layers_in(self.fields, part))


class Planned(NamedTuple):
  """A model without weights.

  Attributes:
    whole: its configuration.
    plans: of its parts.
    own: the family's own scheme of each layer of each part.
  """

  whole: Whole
  plans: dict[str | None, models.Plan]
  own: dict[str | None, list[Scheme]]

  def make(self, making: models.Making, source: models.Source | None, rngs: Any) -> Any:
    """The model with random weights."""
    if None in self.plans:
      return models.Pretrained(self.plans[None], making, source=source, rngs=rngs)
    encoder, decoder = self.plans['encoder'], self.plans['decoder']
    return models.PretrainedEncoderDecoder(encoder, decoder, making, source=source, rngs=rngs)


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
  planned = plan(whole_of(found.config), scheme, length=length, names=list(found.weights))
  leaves, skipped = _read(planned, found.weights)
  table = leaves[_TABLES[len(planned.plans)]]
  making = models.Making(
    dtype_of(checked or str(table.dtype)), dropout_rate, implementation, remat, remat_policy
  )
  source = source_of(planned, found.config, length)._replace(skipped=skipped)
  make = lambda: planned.make(making, source, models.rngs(seed))
  return models.assemble(make, leaves, making.dtype, mesh, _may_be_new(planned))


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
  making = models.Making(dtype_of(read(dtype, str, 'dtype')))
  return planned.make(making, source_of(planned, config, length), models.rngs(seed))


def source_of(planned: Planned, config: Mapping[str, Any], length: int | None) -> models.Source:
  """The origin of a model, as it keeps it."""
  own = tuple(repr(each) for schemes in planned.own.values() for each in schemes)
  return models.Source(json.dumps(config), own, length)


def weights_of(
  planned: Planned, folder: str | Path
) -> tuple[dict[Path_, Any], Callable[[Path_], bool]]:
  """The weights of a folder by the paths of the parameters of a model, and which may be drawn."""
  return _read(planned, read_folder(folder).weights)[0], _may_be_new(planned)


def _read(
  planned: Planned, weights: Mapping[str, np.ndarray]
) -> tuple[dict[Path_, Any], tuple[str, ...]]:
  """The weights by their paths, and the beginnings of names that were left out."""
  files = _Files(weights)
  leaves = leaves_of(planned, files, files.names)
  return leaves, files.skipped(planned)


def whole_of(config: Mapping[str, Any]) -> Whole:
  """The configuration of a whole model.

  Raises:
    ValueError: if whole models of its type are not read, or it asks for something that is not.
  """
  inside = ''
  if isinstance(config.get('text_config'), Mapping):
    quantized = config.get('quantization_config')
    config = {'quantization_config': quantized, **config['text_config']}
    inside = 'text_config'
  fields = with_defaults(Fields(config))
  kind = fields.get('model_type', str) or ''
  if kind not in bodies.BODIES:
    raise ValueError(
      f'Whole models are read of the model types {", ".join(sorted(bodies.BODIES))}, but got '
      f'{kind!r}; posjax.interop.layer reads the attention of more.'
    )
  quantized = fields.section('quantization_config').values
  if quantized and not (kind == 'gpt_oss' and quantized.get('quant_method') == 'mxfp4'):
    raise ValueError(
      'The weights must not be quantized, unless in MXFP4 as those of gpt-oss, but the '
      f"configuration's quantization_config has {shown(dict(quantized))}."
    )
  check_read(fields)
  whole = Whole(config, fields, inside)
  for part in whole.parts:
    for name, values in whole.body(part).supported:
      if fields.values.get(name) not in values:
        raise fields.refuse(name, f'{values[0]!r}, because other values are not supported')
  return whole


def plan(
  whole: Whole, scheme: Given = None, *, length: int | None = None, names: Sequence[str] = ()
) -> Planned:
  """The plan of a model, from its configuration.

  Args:
    whole: the configuration.
    scheme: see `load`.
    length: see `load`.
    names: those of the folder's weights, which say whether there is a readout; without any, the
      configuration does.
  """
  length = read(length, Size | None, 'length')
  own = {part: own_schemes(whole, part, length) for part in whole.parts}
  layers = [each for schemes in own.values() for each in schemes]
  used = iter(replaced(scheme, layers, [not places(each) for each in layers]))
  plans = {}
  for part, schemes in own.items():
    plans[part] = _plan(whole, part, [next(used) for _ in schemes], length, names)
  return Planned(whole, plans, own)


def planned_of(whole: Whole, plans: dict[str | None, models.Plan], length: int | None) -> Planned:
  """As `plan`, of a model that has its plans already."""
  return Planned(whole, plans, {part: own_schemes(whole, part, length) for part in plans})


def own_schemes(whole: Whole, part: str | None, length: int | None) -> list[Scheme]:
  """The scheme of each layer, with what it adds to the embeddings; equal ones are one object."""
  options = Options(length=length, bidirectional=part == 'encoder')
  indices = range(whole.depth(part))
  found = [scheme_of(whole.fields, options._replace(layer=index)) for index in indices]
  return [each if each.line is None else get(each.line) for each in found]


def _plan(
  whole: Whole,
  part: str | None,
  schemes: Sequence[Scheme],
  length: int | None,
  names: Sequence[str],
) -> models.Plan:
  fields, body = whole.fields, whole.body(part)
  kind = fields.get('model_type', str)

  def block(index: int, scheme: Scheme) -> models.BlockPlan:
    settings = layer(whole.config, index, part=part, length=length)
    if settings.chunk is not None:
      raise ValueError(f'Layers of {kind} that see chunks are not read as whole models.')
    around, cross = body.layer(index), None
    if part == 'decoder':
      cross = _items(layer(whole.config, index, part='cross'))
    inner = around.inner
    experts = None if inner.experts is None else models.Experts(*inner.experts)
    return models.BlockPlan(
      _items(settings._replace(scheme=scheme)),
      models.FeedForwardPlan(inner.width, inner.activation, inner.gated, inner.use_bias, experts),
      body.norm,
      _where(around.attention_norms),
      _where(around.inner_norms, shared=around.parallel),
      cross,
      around.parallel,
    )

  blocks = tuple(block(index, scheme) for index, scheme in enumerate(schemes))
  types = fields.size('type_vocab_size') if body.types else None
  embedding = models.EmbeddingPlan(
    body.scale, body.norm if body.embedding_norm else None, types or 0
  )
  width = dict(blocks[0].attention)['width']
  return models.Plan(
    fields.needed('vocab_size', fields.size),
    width,
    blocks,
    embedding,
    body.norm if body.final_norm else None,
    _readout(body, part, names),
  )


def _readout(body: Body, part: str | None, names: Sequence[str]) -> models.ReadoutPlan | None:
  if part == 'encoder':
    return None
  if not body.needs_head and names and f'{body.transform}.weight' not in names:
    return None
  tied = body.tied
  if names:
    there = f'{body.head}.weight' in names
    if not there and not tied and not body.transform:
      raise ValueError(
        f'The checkpoint must have {body.head}.weight, since its tie_word_embeddings is false, but '
        'has none of that name.'
      )
    tied = not there
  return models.ReadoutPlan(
    tied,
    body.head_scale,
    body.cap,
    bool(body.head_bias),
    body.transform_activation if body.transform else None,
    body.norm if body.transform_norm else None,
    body.transform_bias,
  )


def _items(settings: Settings) -> tuple[tuple[str, Any], ...]:
  return tuple(settings.arguments().items())


def _where(norms: bodies.Places, *, shared: bool = False) -> models.Where:
  if not norms:
    return 'shared' if shared else 'none'
  return 'around' if len(norms) == 2 else next(iter(norms))  # type: ignore


_TABLES = {1: ('embed', 'table', 'embedding'), 2: ('decoder', 'embed', 'table', 'embedding')}


def dtype_of(name: str) -> Any:
  """The dtype of a name.

  Raises:
    ValueError: if models do not have it.
  """
  if name not in _FLOATS:
    raise ValueError(f'dtype must be one of {", ".join(_FLOATS)}, but got {name!r}.')
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
      scheme = models.runs(blocks)[rest[2]][0][rest[4]].scheme
    else:
      return False
    return scheme not in kept

  return may


class _Files:
  """The weights of a folder, with a note of which were read."""

  def __init__(self, weights: Mapping[str, np.ndarray]):
    self._weights, self._read = weights, set()
    self.names = list(weights)

  def take(self, name: str, shape: tuple[int, ...] | None) -> Any:
    """A weight, of a shape that is known or not."""
    if name not in self._weights:
      packed = [f'{name}_blocks', f'{name}_scales']
      if packed[0] not in self._weights or shape is None:
        raise ValueError(f'The checkpoint must have {name}, but has none of that name.')
      self._read.update(packed)
      return _unpacked(*(self._weights[each] for each in packed), name, shape)
    self._read.add(name)
    array = self._weights[name]
    if str(array.dtype) not in _FLOATS:
      raise ValueError(f'The weight {name} must be of {", ".join(_FLOATS)}, but got {array.dtype}.')
    if shape is not None and array.shape != shape:
      raise ValueError(f'The weight {name} must have shape {shape}, but got {array.shape}.')
    return array

  def skipped(self, planned: Planned) -> tuple[str, ...]:
    """The beginnings of the names that were not read.

    Raises:
      ValueError: if one of them is not known to be needless.
    """
    whole = planned.whole
    rest = [name for name in self.names if name not in self._read]
    unknown, known = [], set()
    for name in rest:
      if any(_is_ignored(name, whole.body(part)) for part in whole.parts):
        continue
      if not whole.inside or self._of_text(name, whole):
        unknown.append(name)
      else:
        known.add(name.split('.')[0] if name.count('.') < 2 else '.'.join(name.split('.')[:2]))
    if unknown:
      shown_names = ', '.join(unknown[:5]) + (', ..' if len(unknown) > 5 else '')
      raise ValueError(
        f'The model of type {whole.kind} has no weights {shown_names}, which the folder holds: the '
        'configuration is that of another model.'
      )
    return tuple(sorted(known))

  def _of_text(self, name: str, whole: Whole) -> bool:
    prefix = _prefix(whole.body(None), self.names)
    return bool(prefix) and name.startswith(prefix)


def _is_ignored(name: str, body: Body) -> bool:
  """Whether it is a buffer, or belongs to what is not part of the model."""
  if name.endswith(('rotary_emb.inv_freq', '.attn.bias', '.masked_bias', '.attention.bias')):
    return True
  return any(name.startswith(p + each) for p in body.prefixes for each in body.ignored)


def _unpacked(
  blocks: np.ndarray, scales: np.ndarray, name: str, shape: tuple[int, ...]
) -> models.Lazy:
  """A weight of experts in MXFP4, which is unpacked when it is read."""
  got = (blocks.shape[0], blocks.shape[2] * 32, blocks.shape[1]) if blocks.ndim == 4 else ()
  if got != shape:
    raise ValueError(f'The weight {name}_blocks must unpack to {shape}, but got {got}.')
  unpack = lambda: np.swapaxes(unpacked_mxfp4(blocks, scales, dtype=jnp.bfloat16), 1, 2)
  return models.Lazy(shape, jnp.dtype('bfloat16'), unpack)


def _prefix(body: Body, names: Sequence[str]) -> str:
  """The beginning of the names of a model.

  Raises:
    ValueError: if the folder has no table of embeddings.
  """
  there = set(names)
  for prefix in body.prefixes:
    if f'{prefix}{body.embedding}.weight' in there:
      return prefix
  wanted = f'{body.prefixes[0]}{body.embedding}.weight'
  raise ValueError(f'The checkpoint must have {wanted}, but has {shown(list(names)[:4])}.')


def leaves_of(planned: Planned, weights: Any, names: Sequence[str]) -> dict[Path_, Any]:
  """The weights of a model by their paths: views of the arrays of `weights`."""
  leaves: dict[Path_, Any] = {}
  for part, made in planned.plans.items():
    body = planned.whole.body(part)
    prefix = _prefix(body, names)
    root = () if part is None else (part,)
    own = planned.own[part]
    trees = [_layer_tree(planned, part, index, weights, names, prefix) for index in range(len(own))]
    schemes = list(dict.fromkeys(block.scheme for block in made.blocks))
    for tree, block, scheme in zip(trees, made.blocks, own, strict=True):
      shared = [path for path in tree if path[0] == 'model_params']
      for path in shared:
        array = tree.pop(path)
        if block.scheme is scheme:
          leaves[(*root, 'embed', 'shared', schemes.index(scheme), 'held', *path[1:])] = array
      if block.scheme is not scheme:
        for path in [each for each in tree if each[1] == 'scheme_params']:
          del tree[path]
    start = 0
    for stack, (pattern, count) in enumerate(models.runs(made.blocks)):
      for place in range(len(pattern)):
        at = (*root, 'stack', 'stacks', stack, 'periods', place)
        stacked = trees[start + place : start + count : len(pattern)]
        for path in stacked[0]:
          leaves[(*at, *path)] = [tree[path] for tree in stacked]
      start += count
    leaves |= {
      (*root, *path): array
      for path, array in _outside(planned, part, weights, prefix, schemes).items()
    }
  if len(planned.plans) == 2:
    table = leaves.pop(('encoder', 'embed', 'table', 'embedding'))
    leaves['decoder', 'embed', 'table', 'embedding'] = table
  return leaves


def _layer_tree(
  planned: Planned,
  part: str | None,
  index: int,
  weights: Any,
  names: Sequence[str],
  prefix: str,
) -> Tree:
  """The weights of one layer."""
  whole, body = planned.whole, planned.whole.body(part)
  around, width = body.layer(index), planned.plans[part].width
  tree: Tree = {}
  norms = [around.attention_norms, around.inner_norms]
  for what, own in (('attention', part), *([('cross', 'cross')] if part == 'decoder' else [])):
    settings = layer(whole.config, index, part=own, length=1)
    found = part_of(whole.config, index, own)
    held = attention_of(found, settings, _inside(names, prefix, around), weights.take, prefix)
    for path, array in _flat(held).items():
      tree[path if path[0] == 'model_params' else (what, *path)] = array
  if part == 'decoder':
    norms.insert(1, around.cross_norms)
  at = f'{prefix}{around.block}.'
  for i, each in enumerate(norms):
    for place, name in each.items():
      for path, array in _norm(weights, f'{at}{name}', body, width).items():
        tree['norms', i, place, *path] = array
  inner = around.inner
  maps = _experts if inner.experts else _feed_forward
  return tree | {('feed_forward', *path): x for path, x in maps(weights, at, inner, width).items()}


def _inside(names: Sequence[str], prefix: str, around: Around) -> list[str]:
  """The names of a layer, and those of the first one, where T5 has the table of all layers."""
  first = around.block.rpartition('.')[0]
  return [
    name for name in names if name.startswith((f'{prefix}{around.block}.', f'{prefix}{first}.0.'))
  ]


def _flat(tree: Mapping[str, Any], path: Path_ = ()) -> Tree:
  found: Tree = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      found |= _flat(value, (*path, name))
    else:
      found[(*path, name)] = value
  return found


def _norm(weights: Any, name: str, body: Body, width: int) -> Tree:
  tree: Tree = {('scale',): weights.take(f'{name}.weight', (width,))}
  if body.norm.use_bias:
    tree['bias',] = weights.take(f'{name}.bias', (width,))
  return tree


def _feed_forward(weights: Any, at: str, inner: bodies.Inner, width: int) -> Tree:
  """The maps of a feed-forward layer; one of both is cut into two views."""
  fused = inner.gated and not inner.gate
  rows = {'up': (1 + fused) * inner.width, 'gate': inner.width, 'down': width}
  columns = {'up': width, 'gate': width, 'down': inner.width}
  tree: Tree = {}
  for name in ('up', 'gate', 'down'):
    theirs = getattr(inner, name)
    if not theirs:
      continue
    shape = rows[name], columns[name]
    weight = weights.take(f'{at}{theirs}.weight', shape[::-1] if inner.transposed else shape)
    held = {'kernel': weight if inner.transposed else weight.T}
    if inner.use_bias:
      held['bias'] = weights.take(f'{at}{theirs}.bias', (rows[name],))
    for kind, array in held.items():
      if name == 'up' and fused:
        halves = array[..., : inner.width], array[..., inner.width :]
        tree |= {(each, kind): half for each, half in zip(inner.order, halves, strict=True)}
      else:
        tree[name, kind] = array
  return tree


def _experts(weights: Any, at: str, inner: bodies.Inner, width: int) -> Tree:
  """The maps of experts, whose gates and ups take turns, and of the router."""
  count = inner.experts[0]  # type: ignore
  shapes = {'up': (count, width, 2 * inner.width), 'down': (count, inner.width, width)}
  both = weights.take(f'{at}{inner.up}', shapes['up'])
  bias = weights.take(f'{at}{inner.up}_bias', (count, 2 * inner.width))
  router = weights.take(f'{at}{inner.router}.weight', (count, width))
  return {
    ('gate',): _every_second(both, 0),
    ('up',): _every_second(both, 1),
    ('down',): weights.take(f'{at}{inner.down}', shapes['down']),
    ('gate_bias',): bias[..., ::2],
    ('up_bias',): bias[..., 1::2],
    ('down_bias',): weights.take(f'{at}{inner.down}_bias', (count, width)),
    ('router', 'kernel'): router.T,
    ('router', 'bias'): weights.take(f'{at}{inner.router}.bias', (count,)),
  }


def _every_second(array: Any, first: int) -> Any:
  if not isinstance(array, models.Lazy):
    return array[..., first::2]
  shape = (*array.shape[:-1], array.shape[-1] // 2)
  return models.Lazy(shape, array.dtype, lambda: array.read()[..., first::2])


def _outside(
  planned: Planned, part: str | None, weights: Any, prefix: str, schemes: Sequence[Scheme]
) -> Tree:
  """The weights outside of the layers."""
  whole, body, made = planned.whole, planned.whole.body(part), planned.plans[part]
  width, readout = made.width, made.readout
  tree: Tree = {
    ('embed', 'table', 'embedding'): weights.take(
      f'{prefix}{body.embedding}.weight', (made.vocab, width)
    )
  }
  if body.types:
    shape = made.embedding.types, width
    tree['embed', 'types', 'embedding'] = weights.take(f'{prefix}{body.types}.weight', shape)

  def norm(path, name):
    found = _norm(weights, name, body, width)
    tree.update({(*path, *rest): array for rest, array in found.items()})

  if body.embedding_norm:
    norm(('embed', 'norm'), f'{prefix}{body.embedding_norm}')
  if body.final_norm:
    norm(('stack', 'norm'), f'{prefix}{body.final_norm}')
  embedded = part_of(whole.config, 0, part).family.embedded
  own = planned.own[part][0]
  if embedded is not None and any(declares(each, 'embed') for each in own.parts or (own,)):
    name = f'{prefix}{embedded.name}'
    shape = embedded.rows(whole.fields) + embedded.unused(whole.fields), width
    table = weights.take(name, shape)[embedded.unused(whole.fields) :]
    if own in schemes:
      tree['embed', 'shared', schemes.index(own), 'held', 'table'] = table
  if readout is None:
    return tree
  if not readout.tied:
    tree['readout', 'kernel'] = weights.take(f'{body.head}.weight', (made.vocab, width)).T
  if readout.transform is not None:
    tree['transform', 'kernel'] = weights.take(f'{body.transform}.weight', (width, width)).T
    if readout.transform_bias:
      tree['transform', 'bias'] = weights.take(f'{body.transform}.bias', (width,))
    norm(('transform_norm',), body.transform_norm)
  if body.head_bias:
    tree['logits_bias',] = weights.take(body.head_bias, (made.vocab,))
  return tree
