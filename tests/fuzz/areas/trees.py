"""Parameters of another form, shape or scheme, for `attend`.

Shapes say which cases there are; parameters are made when a case runs.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.scheme import declares
from tests.fuzz.areas.attention import attend
from tests.fuzz.areas.subjects import DIMS, lines, subject
from tests.fuzz.case import Case, refused

OTHER = DIMS._replace(width=24, vocab=13)  # sizes that `attend` cannot know
Change = Callable[[Any], Any]


def cases() -> list[Case]:
  """All cases of this file."""
  return [case for name in lines() for case in [*spoiled(name), *foreign(name)]]


@functools.cache
def prepared(name: str, dims: posjax.Dims) -> Any:
  """The shapes of what `attend` takes, for a model of these sizes."""
  scheme = posjax.get(name)

  def make():
    params = posjax.init(scheme, jax.random.key(0), dims)
    if not declares(scheme, 'prepare'):
      return params
    pos = jnp.zeros((1, 2, scheme.traits.axes) if scheme.traits.axes > 1 else (1, 2), jnp.int32)
    return posjax.prepare(scheme, params, jnp.zeros((1, 2, dims.width)), pos)[0]

  return jax.eval_shape(make)


def spoiled(name: str) -> Iterator[Case]:
  """Each array missing, renamed, or of another shape; and one more."""
  here, other = prepared(name, DIMS), jax.tree.leaves(prepared(name, OTHER))
  for i, (path, leaf) in enumerate(jax.tree.leaves_with_path(here)):
    known = [n == m for n, m in zip(leaf.shape, other[i].shape, strict=True)]
    for how, change in mutations(leaf, known):
      yield case(name, f'{jax.tree_util.keystr(path)} {how}', of_leaf(i, change))
  members = here if isinstance(here, tuple) else (here,)
  for i, member in enumerate(members):
    for key in member:
      yield case(name, f'{key} of {i} missing', of_member(i, functools.partial(without, key)))
      yield case(name, f'{key} of {i} renamed', of_member(i, functools.partial(renamed, key)))
    if member:
      yield case(name, f'one more in {i}', of_member(i, lambda tree: {**tree, 'more': np.ones(3)}))


def mutations(leaf: Any, known: list[bool]) -> Iterator[tuple[str, Change]]:
  """Wrong forms of one array; axes that are not `known` may have any size."""
  yield 'as a list', lambda x: np.asarray(x).tolist()
  yield 'as None', lambda x: None
  yield 'as a line', lambda x: 'x'
  yield 'with one axis more', lambda x: x[None]
  if leaf.ndim:
    yield 'with one axis less', lambda x: x[0]
  for axis in (axis for axis, fixed in enumerate(known) if fixed):
    yield f'twice along axis {axis}', lambda x, axis=axis: jnp.concatenate([x, x], axis)
    size = leaf.shape[axis]
    for count in sorted({1, size - 1} - {0, size}):
      cut = lambda x, axis=axis, count=count: jax.lax.slice_in_dim(x, 0, count, axis=axis)
      yield f'{count} of {size} along axis {axis}', cut


def of_leaf(i: int, change: Change) -> Change:
  """Changes one leaf of a tree."""

  def changed(params):
    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [*leaves[:i], change(leaves[i]), *leaves[i + 1 :]])

  return changed


def of_member(i: int, change: Change) -> Change:
  """Changes the dict of one member of a chain, or the only one."""

  def changed(params):
    if isinstance(params, tuple):
      return (*params[:i], change(params[i]), *params[i + 1 :])
    return change(params)

  return changed


def without(key: str, tree: dict[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in tree.items() if name != key}


def renamed(key: str, tree: dict[str, Any]) -> dict[str, Any]:
  return {**without(key, tree), f'{key}_': tree[key]}


def case(name: str, how: str, change: Change) -> Case:
  """`attend` with changed parameters, which must be refused."""

  def call():
    one = subject(name)
    return attend(one, params=change(one.params))

  return Case(f'attend({name!r}, params: {how})', call, refused)


def foreign(name: str) -> Iterator[Case]:
  """The parameters of another scheme, and of fewer or more heads; some in jit."""
  here = prepared(name, DIMS)
  for other in ('alibi', 't5', 'kerple', 'rope+alibi', 'none'):
    if form(prepared(other, DIMS)) != form(here):
      yield case(name, f'of {other!r}', lambda params, other=other: subject(other).params)
  if declares(posjax.get(name), 'prepare'):
    return
  for changes in ({'num_heads': 1, 'num_kv_heads': 1}, {'num_heads': 8}, {'head_dim': 16}):
    dims = DIMS._replace(**changes)
    try:
      there = prepared(name, dims)
    except ValueError:  # the scheme has no heads of this width
      continue
    if form(there) != form(here):
      make = lambda params, dims=dims: posjax.init(posjax.get(name), jax.random.key(0), dims)
      yield case(name, f'of a model with {changes}', make)
      title = f'jit(attend)({name!r}, params: of a model with {changes})'
      yield Case(title, functools.partial(in_jit, name, dims), refused)


def in_jit(name: str, dims: posjax.Dims) -> Any:
  """`attend` in jit, with the parameters of a model of other sizes."""
  one = subject(name)
  params = posjax.init(one.scheme, jax.random.key(0), dims)
  return jax.jit(lambda params: attend(one, params=params))(params)


def form(tree: Any) -> Any:
  return jax.tree.structure(tree), [tuple(leaf.shape) for leaf in jax.tree.leaves(tree)]
