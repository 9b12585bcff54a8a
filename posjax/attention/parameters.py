"""A scheme's parameters, and what it prepared, compared with what the scheme itself would make.

`jax.eval_shape` tells the shapes that `init` and `prepare` give for the sizes of a call: nothing is
drawn, no value is read, and it works under jit. This refuses parameters that would be broadcast by
accident, as those of one head for four. What was found to fit is remembered by scheme, sizes and
shapes, so that an eager call pays for a lookup alone.

Two kinds of a user's schemes are not compared: those whose `init` cannot be traced, because it
looks at the values that it draws, and those with sizes that grow along no line with the model's.
"""

import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from posjax.scheme import At, Dims, Ids, Params, Scheme, declares, init, prepare

_MOST = 4096  # combinations that are remembered; beyond it, all are forgotten
_FITTING: dict[Any, bool] = {}  # combination -> whether one of its arrays is NumPy's
_LEAF = jax.tree.structure(0)
_KINDS = {
  'real numbers': jnp.floating,
  'complex numbers': jnp.complexfloating,
  'integers': jnp.integer,
  'booleans': jnp.bool_,
}


class Trusted(NamedTuple):
  """Parameters in the form that layers give them to `attend`, which does their work no second time.

  Attributes:
    params: the scheme's parameters, as from its `prepare`, compared with the sizes of the layer.
    zero_padding: whether keys and values of segment 0 are zeros already, as in a cache.
  """

  params: Params
  zero_padding: bool = False


class _Call(NamedTuple):
  """The facts that decide the form of all that a scheme makes.

  Attributes:
    scheme: any scheme.
    num_heads: H.
    head_dim: D.
    num_kv_heads: K.
    width: M; None where it is unknown.
    vocab: V; None where it is unknown.
    sides: name of each tree of `at`, with the shape and the dtype of one token's ids.
    dtype: of the layer's input, for `prepare`.
  """

  scheme: Scheme
  num_heads: int
  head_dim: int
  num_kv_heads: int
  width: int | None = None
  vocab: int | None = None
  sides: tuple[tuple[str, tuple[int, ...], Any], ...] = ()
  dtype: Any = jnp.float32


class _Difference(NamedTuple):
  """How many leaves differ, and the error that names the first of them."""

  count: int
  error: Exception


def check(scheme: Scheme, params: Params, dims: Dims) -> Params:
  """Compares the parameters of a layer, before `prepare`, with those that `posjax.init` makes.

  Args:
    scheme: any scheme.
    params: its parameters.
    dims: the sizes of the layer; where `vocab` is 0, it is unknown.

  Returns:
    The parameters, those of NumPy as JAX's arrays.

  Raises:
    ValueError: if names or shapes differ.
    TypeError: if one is no array, or holds another kind of numbers.

  Example:
    >>> scheme = Scheme(init=lambda key, dims: {'rate': jnp.ones(dims.num_heads)})
    >>> check(scheme, {'rate': jnp.ones(1)}, Dims(width=8, num_heads=2, head_dim=4))
    Traceback (most recent call last):
      ...
    ValueError: params['rate'] must have shape (2,) for 2 heads of width 4, but got (1,).
  """
  kv_heads = dims.num_kv_heads or dims.num_heads
  heads = dims.num_heads, dims.head_dim, kv_heads
  return _compared(_Call(scheme, *heads, dims.width, dims.vocab or None), {'params': params})


def check_call(
  scheme: Scheme,
  params: Params,
  q: Array,
  k: Array,
  q_pos: Ids,
  k_pos: Ids,
  q_at: At,
  k_at: At,
) -> Params:
  """Compares the parameters of one `attend`, and both prepared sides, after `prepare`.

  Heads and their width are those of `q` and `k`. The model's width and the vocabulary cannot be
  known here: they may be any numbers on which all parameters agree.

  Args:
    scheme: any scheme.
    params: its parameters, as from `prepare`.
    q: the queries, before place 2.
    k: the keys.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    q_at: what `prepare` returned for the queries; None where the scheme has none.
    k_at: the same for the keys.

  Returns:
    The parameters, those of NumPy as JAX's arrays.

  Raises:
    ValueError: if names or shapes differ, or a prepared side is missing.
    TypeError: if one is no array, or holds another kind of numbers.
  """
  heads = q.shape[-2], q.shape[-1], k.shape[-2]
  prepares = declares(scheme, 'prepare')
  if not prepares and q_at is None and k_at is None:
    return _compared(_Call(scheme, *heads), {'params': params})
  if prepares and (q_at is None or k_at is None):
    raise ValueError(
      f'The scheme prepares its sides, so q_at and k_at must be given: {_preparing(scheme)}, and '
      'q_at=at, k_at=at.'
    )
  trees, sides = {'params': params}, []
  for name, at, x, pos in (('q_at', q_at, q, q_pos), ('k_at', k_at, k, k_pos)):
    if at is not None:
      several = scheme.axes > 1 or (scheme.axes == 0 and pos.ndim == x.ndim - 1)
      sides.append((name, pos.shape[-1:] if several else (), pos.dtype))
      trees[name] = _of_one_token(name, at, x)
  dtype = jnp.complex64 if jnp.iscomplexobj(q) else jnp.float32
  return _compared(_Call(scheme, *heads, sides=tuple(sides), dtype=dtype), trees)


def _preparing(scheme: Scheme) -> str:
  """The call that prepares a side, for messages."""
  if scheme.documents:
    return 'params, at = posjax.prepare(scheme, params, x, pos, segments=segments)'
  return 'params, at = posjax.prepare(scheme, params, x, pos)'


def _of_one_token(name: str, at: At, x: Array) -> At:
  """The shapes of `at` without their first axes, which must be the rows and tokens of x."""
  leading, length, rank = x.shape[:-3], x.shape[-3], x.ndim - 3

  def one(leaf):
    shape = leaf.shape
    fits = len(shape) > rank and shape[rank] == length
    if not fits or any(n not in (1, m) for n, m in zip(shape[:rank], leading, strict=True)):
      raise ValueError(f'{name} must begin with {(*leading, length)}, but got {shape}.')
    return jax.ShapeDtypeStruct(shape[rank + 1 :], leaf.dtype)

  try:
    leaves, structure = jax.tree.flatten(at)
  except (TypeError, ValueError):  # names that cannot be sorted
    raise ValueError(f'{name} must have strings as names, but got others.') from None
  try:
    return jax.tree.unflatten(structure, [one(leaf) for leaf in leaves])
  except AttributeError:
    _check_arrays(_named_leaves(at, name))
    raise


def _compared(call: _Call, trees: dict[str, Any]) -> Params:
  """The parameters, with NumPy's arrays as JAX's, if all trees are as the scheme makes them."""
  try:
    leaves, structure = jax.tree.flatten(trees)
    combination = call, structure, tuple([(x.shape, x.dtype, x.__class__) for x in leaves])
    of_numpy = _FITTING.get(combination)
  except (AttributeError, TypeError, ValueError):  # no arrays, or names that cannot be sorted
    named = _named_leaves(trees)
    _check_arrays(named)
    raise ValueError(f'Parameters must have strings as names, but got {[*named]}.') from None
  if of_numpy is None:
    difference = _difference(call, trees)
    if difference is not None:
      raise difference.error
    of_numpy = any(isinstance(x, np.ndarray | np.generic) for x in leaves)
    if len(_FITTING) >= _MOST:
      _FITTING.clear()
    _FITTING[combination] = of_numpy
  params = trees['params']
  return jax.tree.map(jnp.asarray, params) if of_numpy else params


def _check_arrays(leaves: dict[str, Any]) -> None:
  for path, leaf in leaves.items():
    if not (hasattr(leaf, 'shape') and hasattr(leaf, 'dtype')):
      raise TypeError(f'{path} must be an array, but got {type(leaf).__name__}.')


def _named_leaves(tree: Any, path: str = '') -> dict[str, Any]:
  """The leaves of a tree by their paths, as `params['table']`; all mappings count as dicts."""
  if isinstance(tree, Mapping):
    parts = [(f'{path}[{name!r}]' if path else str(name), part) for name, part in tree.items()]
  elif isinstance(tree, tuple | list):
    parts = [(f'{path}[{i}]', part) for i, part in enumerate(tree)]
  elif hasattr(tree, 'shape') or jax.tree.structure(tree) == _LEAF:
    return {path: tree}
  else:  # None, or a container of someone's own
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {path + jax.tree_util.keystr(keys): leaf for keys, leaf in leaves}
  return {name: leaf for start, part in parts for name, leaf in _named_leaves(part, start).items()}


def _difference(call: _Call, trees: dict[str, Any]) -> _Difference | None:
  """The difference between what was given and what the scheme makes; None if there is none.

  Where the model's width or the vocabulary is unknown, it follows from the axes that depend on it:
  their sizes grow along a line, which examples tell.
  """
  members, params = len(call.scheme.parts), trees['params']
  dicts = isinstance(params, tuple) and all(isinstance(one, Mapping) for one in params)
  if members and not (dicts and len(params) == members):
    return _Difference(1, ValueError(
      f'The parameters of a chain must be a tuple of {members} dicts, as from '
      f'posjax.init(scheme, key, dims), but got {_shown(params)}.'
    ))  # fmt: skip
  if not members and not isinstance(params, Mapping | None):
    return _Difference(1, ValueError(
      'The parameters must be a dict, as from posjax.init(scheme, key, dims), but got '
      f'{_shown(params)}.'
    ))  # fmt: skip
  given = _named_leaves(trees)
  usual = call.width or call.num_heads * call.head_dim
  for vocab in (call.vocab,) if call.vocab else (2, 0):  # 0: tables of a lone layer, with no words
    made = _made(call, usual, vocab)
    if made is not None and _against(call, made, given, (usual, vocab)) is None:
      return None
  widths = [call.width] if call.width else [usual * n for n in range(1, 17)]
  vocabs = [call.vocab] if call.vocab else [2, 4, 6]
  examples = _examples(call, [(width, vocabs[0]) for width in widths])
  if not examples:  # this scheme has no `init` for these heads that could be compared
    return None
  width = next(iter(examples))[0]
  examples |= _examples(call, [(width, vocab) for vocab in vocabs])
  if not _grow_along_lines(examples):
    return None
  unknown, found = [_solutions(examples, given, i) for i in (0, 1)], []
  for free in itertools.product(unknown[0], unknown[1]):
    made = _made(call, *free)
    if made is not None:
      difference = _against(call, made, given, free)
      if difference is None:
        return None
      found.append(difference)
  return min(found, key=lambda difference: difference.count)


def _examples(call: _Call, free: list[tuple[int, int]]) -> dict[tuple[int, int], Any]:
  """The trees that the scheme makes for the first three widths and vocabularies that it takes."""
  found = {}
  for width, vocab in free:
    made = _made(call, width, vocab)
    if made is not None:
      found[width, vocab] = made
    if len(found) == 3:
      break
  return found


def _shown(params: Any) -> str:
  if isinstance(params, tuple):
    return f'a tuple of {[type(one).__name__ for one in params]}'
  return type(params).__name__


def _solutions(examples: dict[tuple[int, int], Any], given: dict[str, Any], i: int) -> list[int]:
  """The widths (i = 0) or vocabularies (1) for which an axis would have the size that it has."""
  first = next(iter(examples))
  line = [(free[i], made) for free, made in examples.items() if free[1 - i] == first[1 - i]]
  found = [first[i]]
  (low, short), (high, long) = line[0], line[-1]
  for path in short.keys() & long.keys() & given.keys():
    shapes = short[path].shape, long[path].shape, given[path].shape
    if len({len(shape) for shape in shapes}) > 1:
      continue
    for begin, end, size in zip(*shapes, strict=True):
      if begin != end:
        guess = round(low + (size - begin) * (high - low) / (end - begin))
        near = (0,) if end - begin == high - low else (0, -1, 1)  # a size may have been rounded
        found += [guess + step for step in near if guess + step > 0]
  return list(dict.fromkeys(found))[:16]


def _grow_along_lines(examples: dict[tuple[int, int], Any]) -> bool:
  """Whether all sizes grow evenly with the width and with the vocabulary, rounding aside."""
  first = next(iter(examples))
  for i in (0, 1):
    line = [(free[i], made) for free, made in examples.items() if free[1 - i] == first[1 - i]]
    (low, short), (high, long) = line[0], line[-1]
    for at, made in line[1:-1]:
      part = (at - low) / (high - low)
      for path in short.keys() & made.keys() & long.keys():
        for begin, size, end in zip(*(x[path].shape for x in (short, made, long)), strict=True):
          if abs(begin + part * (end - begin) - size) > 1:
            return False
  return True


@functools.lru_cache(maxsize=1024)
def _made(call: _Call, width: int, vocab: int) -> dict[str, Any] | None:
  """Shapes and dtypes of all that the scheme makes, by path; None if it makes nothing so."""

  def make():
    dims = Dims(width, call.num_heads, call.head_dim, call.num_kv_heads, vocab)
    params, trees = init(call.scheme, jax.random.key(0), dims), {}
    x = jnp.zeros((1, 1, width), call.dtype)
    prepared = params
    for name, axes, dtype in call.sides:
      prepared, at = prepare(call.scheme, params, x, jnp.zeros((1, 1, *axes), dtype))
      trees[name] = jax.tree.map(lambda leaf: leaf[0, 0], at)
    return {'params': prepared} | trees

  try:
    return _named_leaves(jax.eval_shape(make))
  except Exception:  # a user's `init` may raise anything for sizes that are not its own
    return None


def _against(
  call: _Call, made: dict[str, Any], given: dict[str, Any], free: tuple[int, int]
) -> _Difference | None:
  """The first of the leaves that are not as the scheme makes them, and how many they are."""
  if made.keys() != given.keys():
    count = len(made.keys() ^ given.keys())
    return _Difference(count, ValueError(_other_names(call, made, given)))
  errors: list[Exception] = []
  for path, like in made.items():
    x = given[path]
    kind = next((kind for kind, of in _KINDS.items() if jnp.issubdtype(like.dtype, of)), None)
    if x.shape != like.shape:
      shown = f'{call.num_heads} heads of width {call.head_dim}'
      shown += f', {call.num_kv_heads} key heads' * (call.num_kv_heads != call.num_heads)
      shown += f' in a model of width {free[0]}' * (free[0] in like.shape)
      error = f'{path} must have shape {like.shape} for {shown}, but got {x.shape}.'
      errors.append(ValueError(error))
    elif kind and not jnp.issubdtype(x.dtype, _KINDS[kind]):
      errors.append(TypeError(f'{path} must hold {kind}, but got {x.dtype}.'))
  return _Difference(len(errors), errors[0]) if errors else None


def _other_names(call: _Call, made: dict[str, Any], given: dict[str, Any]) -> str:
  """The sentence for names that are missing, or that the scheme does not have."""
  source = 'posjax.init(scheme, key, dims)'
  if not made:
    return f'The scheme has no parameters, for lack of an init, but got {", ".join(given)}.'
  if not given:
    return f'The scheme has parameters, {source}, but params hold none.'
  if call.sides and declares(call.scheme, 'prepare'):
    source = _preparing(call.scheme)
  missing, unknown = sorted(made.keys() - given.keys()), sorted(given.keys() - made.keys())
  found = [f'{", ".join(missing)} missing'] if missing else []
  found += [f'{", ".join(unknown)}, which the scheme does not make'] if unknown else []
  return f'All must be as from {source}, but got {" and ".join(found)}.'
