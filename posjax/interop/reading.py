"""The weights of a folder as those of a model: views by the paths of the model's parameters.

Nothing is computed with weights, so that the same views, of empty arrays, take the weights of a
model when it is saved.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from posjax.arguments import shown
from posjax.interop import bodies
from posjax.interop.bodies import Around, Body
from posjax.interop.checkpoint import attention_of
from posjax.interop.mxfp4 import unpacked_mxfp4
from posjax.interop.planning import Planned, Whole
from posjax.interop.settings import layer, part_of
from posjax.models.filling import Lazy
from posjax.models.plans import runs
from posjax.scheme import Scheme, declares

Path_ = tuple[Any, ...]  # of a parameter in a model
Tree = dict[Path_, Any]
FLOATS = 'float16', 'bfloat16', 'float32'


class Files:
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
      blocks, scales = (self._weights[each] for each in packed)
      return _unpacked(blocks, scales, name, shape)
    self._read.add(name)
    array = self._weights[name]
    if str(array.dtype) not in FLOATS:
      raise ValueError(f'The weight {name} must be of {", ".join(FLOATS)}, but got {array.dtype}.')
    if shape is not None and array.shape != shape:
      raise ValueError(f'The weight {name} must have shape {shape}, but got {array.shape}.')
    return array

  def without_copies(self, whole: Whole) -> list[str]:
    """The names without that of a readout that is a copy of the table, where both are tied."""
    body = whole.body(whole.parts[-1])
    head, table = f'{body.head}.weight', f'{_prefix(body, self.names)}{body.embedding}.weight'
    if not body.tied or head not in self.names:
      return self.names
    if not np.array_equal(self._weights[head], self._weights[table]):
      return self.names
    self._read.add(head)
    return [name for name in self.names if name != head]

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


def _unpacked(blocks: np.ndarray, scales: np.ndarray, name: str, shape: tuple[int, ...]) -> Lazy:
  """A weight of experts in MXFP4, which is unpacked when it is read."""
  got = (blocks.shape[0], blocks.shape[2] * 32, blocks.shape[1]) if blocks.ndim == 4 else ()
  if got != shape:
    raise ValueError(f'The weight {name}_blocks must unpack to {shape}, but got {got}.')
  unpack = lambda: np.swapaxes(unpacked_mxfp4(blocks, scales, dtype=jnp.bfloat16), 1, 2)
  return Lazy(shape, jnp.dtype('bfloat16'), unpack)


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
    for stack, (pattern, count) in enumerate(runs(made.blocks)):
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
  if len(planned.plans) == 2:  # one table, which a model has at the first of its paths
    del leaves['encoder', 'embed', 'table', 'embedding']
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
  if not isinstance(array, Lazy):
    return array[..., first::2]
  shape = (*array.shape[:-1], array.shape[-1] // 2)
  return Lazy(shape, array.dtype, lambda: array.read()[..., first::2])


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
