"""A scheme's parameters as a layer holds them: in plain dicts, so that every tool can name them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posjax.scheme import Dims, Params, Scheme, check_params, declares, merge, split


def named(params: Params) -> dict[str, Any]:
  """A scheme's parameters as plain dicts; the members of a chain are named '0', '1', ...

  Members without parameters are left out, and `unnamed` puts them back.
  """
  if not isinstance(params, tuple):
    return params
  return {str(i): part for i, part in enumerate(params) if jax.tree.leaves(part)}


def unnamed(scheme: Scheme, tree: dict[str, Any]) -> Params:
  """The inverse of `named`."""
  if not scheme.parts:
    return dict(tree)
  return tuple(dict(tree.get(str(i), {})) for i in range(len(scheme.parts)))


def split_named(scheme: Scheme, params: Params) -> tuple[dict[str, Any], dict[str, Any]]:
  """The trained parameters and the constants, as `posjax.split`, in plain dicts."""
  trained, fixed = split(scheme, params)
  return named(trained), named(fixed)


def union(trained: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
  """The inverse of `split_named`."""
  both = {name: trained.get(name, fixed.get(name)) for name in (*trained, *fixed)}
  members = set(trained) & set(fixed)  # of a chain: a parameter is in one of the two only
  return both | {name: trained[name] | fixed[name] for name in members}


def constants(scheme: Scheme, field: str, dims: Dims) -> dict[str, Any] | None:
  """The constants as from `split_named`, where they do not depend on the random key; else None.

  Args:
    scheme: any scheme.
    field: 'init' or 'init_model', which makes them.
    dims: the sizes of the layer.
  """
  each = [_constants(part, field, dims) for part in scheme.parts or (scheme,)]
  if any(one is None for one in each):
    return None
  each = jax.tree.map(jnp.asarray, each)
  return named(tuple(each)) if scheme.parts else each[0]


@functools.lru_cache(maxsize=256)
def _constants(scheme: Scheme, field: str, dims: Dims) -> dict[str, Any] | None:
  """The constants of one scheme, as NumPy arrays: made from two keys, and compared."""

  @jax.jit  # computes the constants alone, however many parameters there are to draw
  def fixed(key):
    return split(scheme, getattr(scheme, field)(key, dims))[1]

  if not jax.eval_shape(fixed, jax.random.key(0)):
    return {}
  with jax.ensure_compile_time_eval():  # the caller may be traced
    one, other = (jax.tree.map(np.asarray, fixed(jax.random.key(seed))) for seed in (0, 1))
  same = all(np.array_equal(one[name], other[name]) for name in one)
  return one if same else None


def axes(scheme: Scheme, field: str, dims: Dims) -> dict[str, Any]:
  """The axes of each parameter, in the form of `named`: a letter for each, M, H or D, or '.'.

  An axis is M, H or D where its length changes with that size of the layer alone. What a scheme's
  sizes do not allow to change has no letter.

  Args:
    scheme: any scheme.
    field: 'init' or 'init_model', which makes the parameters.
    dims: the sizes of the layer.

  Example:
    >>> import posjax
    >>> axes(posjax.get('t5'), 'init_model', Dims(width=8, num_heads=2, head_dim=4))
    {'table': '.H'}
  """
  each = tuple(_axes(part, field, dims) for part in scheme.parts or (scheme,))
  return {str(i): part for i, part in enumerate(each)} if scheme.parts else each[0]


def _axes(scheme: Scheme, field: str, dims: Dims) -> dict[str, str]:
  make, key = getattr(scheme, field), jax.random.key(0)
  shapes = lambda dims: jax.tree.map(jnp.shape, jax.eval_shape(lambda key: make(key, dims), key))
  kv_heads = dims.num_kv_heads or dims.num_heads
  larger = {  # twice as large, because many schemes want even sizes
    'M': {'width': 2 * dims.width},
    'H': {'num_heads': 2 * dims.num_heads, 'num_kv_heads': 2 * kv_heads},
    'D': {'head_dim': 2 * dims.head_dim},
  }
  before, after = shapes(dims), {}
  for letter, sizes in larger.items():
    try:
      after[letter] = shapes(dims._replace(**sizes))
    except ValueError:  # the scheme was made for this size, or there is no size twice as large
      after[letter] = before

  def letter(name, i):
    changed = [letter for letter, shape in after.items() if shape[name][i] != before[name][i]]
    return changed[0] if len(changed) == 1 else '.'

  return {name: ''.join(letter(name, i) for i in range(len(before[name]))) for name in before}


def names(sharding: Any, letters: str) -> tuple[Any, ...]:
  """For each axis of an array, the mesh axis over which it is split; None where it is not split."""
  by_letter: dict[str, Any] = dict(zip('MHD', sharding, strict=True))
  return tuple(by_letter.get(letter) for letter in letters)


def part(tree: Any, like: Any) -> Any:
  """The entries of nested dicts that other ones have.

  Example:
    >>> part({'0': {'a': 1, 'b': 2}, '1': {}}, {'0': {'a': None}})
    {'0': {'a': 1}}
  """
  if not isinstance(like, dict):
    return tree
  return {name: part(tree[name], below) for name, below in like.items()}


def shares(scheme: Scheme) -> bool:
  """Whether the scheme has parameters that all layers of a model share."""
  return any(declares(part, 'init_model') for part in scheme.parts or (scheme,))


def merged(scheme: Scheme, own: Params, held: Params | None, given: Params | None) -> Params:
  """All parameters of a layer: its own, and those that all layers share.

  Args:
    scheme: any scheme.
    own: the layer's own parameters.
    held: shared parameters that the layer holds; None if it holds none.
    given: shared parameters that a call gives; they are taken before those that are held.

  Raises:
    TypeError: if what is given is neither a dict nor, for a chain, a tuple of dicts.
    ValueError: if the scheme has shared parameters, but there are none.
  """
  if given is not None:
    check_params(scheme, given, 'model_params', 'scheme.init_model(key, dims)')
  shared = held if given is None else given
  if shared is None and shares(scheme):
    raise ValueError(
      'The scheme shares parameters between layers and this layer holds none, so model_params '
      'must be given: scheme.init_model(key, dims).'
    )
  return merge(unnamed(scheme, {}) if shared is None else shared, own)
