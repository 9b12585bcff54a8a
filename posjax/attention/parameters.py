"""A scheme's parameters, compared with those that the scheme itself would make for these heads.

Parameters of another number of heads might be broadcast without a word, as those of one head for
four. `jax.eval_shape` tells the shapes that `init` and `prepare` give: nothing is drawn, and it
works under jit. The width of the model and the vocabulary are unknown here, so axes that depend on
them may have any size. A scheme whose `init` cannot be traced for any of the sizes that are tried
is not compared.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from posjax.scheme import At, Dims, Params, Scheme, check_params, declares, init, prepare


def check(
  scheme: Scheme,
  params: Params,
  q: Array,
  k: Array,
  pos: Array,
  q_at: At = None,
  k_at: At = None,
  head_dim: int | None = None,
) -> Params:
  """Compares names, and the sizes of axes that the heads decide.

  Args:
    scheme: any scheme.
    params: its parameters, as from `prepare`.
    q: the queries, before place 2.
    k: the keys.
    pos: ids of the queries.
    q_at: what `prepare` returned for the queries; None where the scheme has none.
    k_at: the same for the keys.
    head_dim: D, where that of `q` is another, since place 2 has acted already.

  Returns:
    The parameters, those of NumPy as arrays of JAX.

  Raises:
    ValueError: if names or sizes differ, or a prepared side is missing.
    TypeError: if the parameters are neither a dict nor, for a chain, a tuple of dicts; or a leaf is
      no array.
  """
  if declares(scheme, 'prepare') and (q_at is None or k_at is None):
    raise ValueError(
      'The scheme prepares its sides, so q_at and k_at must be given: params, at = '
      'posjax.prepare(scheme, params, x, pos), and q_at=at, k_at=at.'
    )
  check_params(scheme, params)
  axes = pos.shape[-1] if pos.ndim == q.ndim - 1 and scheme.traits.axes != 1 else 1
  heads = q.shape[-2], head_dim or q.shape[-1], k.shape[-2]
  made, given = _made(scheme, heads, axes, jnp.iscomplexobj(q)), _leaves('params', params)
  if made is not None:
    _compare(made.params, given, heads, 'posjax.init(scheme, key, dims), and its prepare')
    for name, at, x in (('q_at', q_at, q), ('k_at', k_at, k)):
      if at is not None:
        of_token = {path: shape[x.ndim - 2 :] for path, shape in _leaves(name, at).items()}
        expected = {f'{name}{path}': shape for path, shape in made.at.items()}
        _compare(expected, of_token, heads, "the scheme's prepare")
  if any(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(params)):
    return jax.tree.map(jnp.asarray, params)
  return params


class _Made(NamedTuple):
  """Shapes by path, with None for sizes that the heads do not decide."""

  params: dict[str, tuple[int | None, ...]]
  at: dict[str, tuple[int | None, ...]]  # of one token


def _compare(
  made: dict[str, tuple[int | None, ...]],
  given: dict[str, tuple[int, ...]],
  heads: tuple[int, int, int],
  source: str,
) -> None:
  if made.keys() != given.keys():
    missing, unknown = sorted(made.keys() - given.keys()), sorted(given.keys() - made.keys())
    found = [f'{", ".join(missing)} missing'] if missing else []
    found += [f'{", ".join(unknown)}, which the scheme does not make'] if unknown else []
    raise ValueError(f'All must be as from {source}, but got {" and ".join(found)}.')
  for path, shape in made.items():
    got = given[path]
    if len(got) != len(shape) or any(n not in (None, m) for n, m in zip(shape, got, strict=True)):
      expected = ', '.join('any' if n is None else str(n) for n in shape)
      shown = f'{heads[0]} heads of width {heads[1]}'
      shown += f', {heads[2]} key heads' * (heads[2] != heads[0])
      raise ValueError(f'{path} must have shape [{expected}] for {shown}, but got {list(got)}.')


@functools.lru_cache(maxsize=1024)
def _made(scheme: Scheme, heads: tuple[int, int, int], axes: int, is_complex: bool) -> _Made | None:
  """The shapes of all that the scheme makes; None where it makes nothing for any width."""
  num_heads, head_dim, kv_heads = heads
  usual = num_heads * head_dim
  found = []
  for width, vocab in ((usual, 2), (2 * usual, 4), (3 * usual, 0)):
    try:
      dims = Dims(width, num_heads, head_dim, kv_heads, vocab)
      found.append(_shapes(scheme, dims, axes, is_complex))
    except Exception:  # a user's `init` may raise anything for sizes that are not its own
      continue
  if not found:
    return None
  return _Made(*(_agreed([getattr(one, field) for one in found]) for field in _Made._fields))


def _agreed(each: list[dict[str, tuple[int, ...]]]) -> dict[str, tuple[int | None, ...]]:
  """The sizes that are the same for all widths, and None for the others."""
  return {
    path: tuple(n if all(one[path][i] == n for one in each) else None for i, n in enumerate(shape))
    for path, shape in each[0].items()
  }


def _shapes(scheme: Scheme, dims: Dims, axes: int, is_complex: bool) -> Any:
  def make():
    params = init(scheme, jax.random.key(0), dims)
    x = jnp.zeros((1, 1, dims.width), jnp.complex64 if is_complex else jnp.float32)
    pos = jnp.zeros((1, 1, axes) if axes > 1 else (1, 1), jnp.int32)
    return prepare(scheme, params, x, pos)

  params, at = jax.eval_shape(make)
  of_token = {path: shape[2:] for path, shape in _leaves('', at).items()}
  return _Made(_leaves('params', params), of_token)


def _leaves(name: str, tree: Any) -> dict[str, Any]:
  """The shapes of the leaves by their paths, as `params[1]['table']`.

  Raises:
    TypeError: if one is no array.
  """
  found = {}
  for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
    path = name + jax.tree_util.keystr(path)
    if not (hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')):
      raise TypeError(f'{path} must be an array, but got {type(leaf).__name__}.')
    found[path] = leaf.shape
  return found
