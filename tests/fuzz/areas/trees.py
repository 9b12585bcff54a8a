"""Parameters of another form, shape or scheme, for `attend` and for layers."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.scheme import declares
from tests.fuzz.areas.attention import attend
from tests.fuzz.areas.subjects import DIMS, Subject, lines, subject
from tests.fuzz.case import Case, refused

OTHER = DIMS._replace(width=24, vocab=13)


def cases() -> list[Case]:
  """All cases of this file."""
  return [case for name in lines() for case in [*of_one(subject(name)), *foreign(subject(name))]]


def prepared_shapes(one: Subject, dims: posjax.Dims) -> Any:
  """The shapes of what `attend` takes, for a model of these sizes."""

  def make():
    params = posjax.init(one.scheme, jax.random.key(0), dims)
    if not declares(one.scheme, 'prepare'):
      return params
    pos = jnp.zeros((1, 2, one.scheme.axes) if one.scheme.axes > 1 else (1, 2), jnp.int32)
    return one.scheme.prepare(params, jnp.zeros((1, 2, dims.width)), pos, None)[0]

  return jax.eval_shape(make)


def of_one(one: Subject) -> Iterator[Case]:
  """Each leaf missing, renamed, of another shape or dtype."""
  leaves, tree = jax.tree.flatten(one.params)
  paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(one.params)]
  other = jax.tree.leaves(prepared_shapes(one, OTHER))
  for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
    fixed = [n == m for n, m in zip(leaf.shape, other[i].shape, strict=True)]
    for how, wrong in mutations(leaf, fixed):
      changed = jax.tree.unflatten(tree, [*leaves[:i], wrong, *leaves[i + 1 :]])
      yield spoiled(one, f'{path} {how}', changed)
  members = one.params if isinstance(one.params, tuple) else (one.params,)
  for i, member in enumerate(members):
    for key in member:
      rest = {name: value for name, value in member.items() if name != key}
      for how, changed in (('missing', rest), ('renamed', {**rest, f'{key}_': member[key]})):
        whole = (*members[:i], changed, *members[i + 1 :])
        yield spoiled(one, f'{key} {how}', whole if isinstance(one.params, tuple) else whole[0])
    if leaves:
      whole = (*members[:i], {**member, 'more': jnp.ones(3)}, *members[i + 1 :])
      yield spoiled(one, 'more', whole if isinstance(one.params, tuple) else whole[0])


def mutations(leaf: Any, fixed: list[bool]) -> Iterator[tuple[str, Any]]:
  """Wrong forms of one array; axes that are not `fixed` may have any size."""
  yield 'as a list', np.asarray(leaf).tolist()
  yield 'as None', None
  yield 'as a line', 'x'
  yield 'with one axis more', leaf[None]
  if leaf.ndim:
    yield 'with one axis less', leaf[0]
  for axis, known in enumerate(fixed):
    size = leaf.shape[axis]
    if known:
      yield f'twice along axis {axis}', jnp.concatenate([leaf, leaf], axis)
    if known and size > 1:
      yield f'of size 1 along axis {axis}', jax.lax.slice_in_dim(leaf, 0, 1, axis=axis)
      yield f'cut along axis {axis}', jax.lax.slice_in_dim(leaf, 0, size - 1, axis=axis)


def spoiled(one: Subject, how: str, params: Any) -> Case:
  """`attend` with wrong parameters; some of them in jit."""
  call = functools.partial(attend, one, params=params)
  return Case(f'attend({one.line!r}, params: {how})', call, refused)


def foreign(one: Subject) -> Iterator[Case]:
  """The parameters of another scheme, and of fewer or more heads."""
  here = jax.tree.structure(one.params), shapes(one.params)
  for name in ('alibi', 't5', 'kerple', 'rope+alibi', 'none'):
    there = subject(name).params
    if (jax.tree.structure(there), shapes(there)) != here:
      yield spoiled(one, f'of {name!r}', there)
  for changes in ({'num_heads': 1, 'num_kv_heads': 1}, {'num_heads': 8}, {'head_dim': 16}):
    try:
      params = posjax.init(one.scheme, jax.random.key(0), DIMS._replace(**changes))
    except ValueError:
      continue
    if declares(one.scheme, 'prepare') or shapes(params) == shapes(one.params):
      continue
    yield spoiled(one, f'of a model with {changes}', params)
    compiled = jax.jit(functools.partial(attend, one))
    title = f'jit(attend)({one.line!r}, params: of a model with {changes})'
    yield Case(title, functools.partial(lambda f, p: f(params=p), compiled, params), refused)


def shapes(tree: Any) -> list[tuple[int, ...]]:
  return [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]
