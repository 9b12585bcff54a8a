"""The record: a scheme is one pure function for each place where position enters a Transformer.

B batch, T queries, S keys, H query heads, K key/value heads, D head width, M model width, V
vocabulary. Each `...Fn` below documents one place; a field left at its default does nothing, so
`Scheme()` is a Transformer without positions and the identity of `chain`.

`posjax.chain` composes schemes; `posjax.expression` reads them from one line of text.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, Shaped

from posjax.arguments import Size, Whole, read, shown
from posjax.token_order import refuse_other_orders

Params = Any  # a dict of arrays; for a chain, a tuple with one dict per member
At = Any  # what `prepare` knows about each token: a tree of arrays [B, T, ...]
Ids = Num[Array, '...']  # int32 or float32, [B, T] or, for schemes with n axes, [B, T, n]
PRNGKey = Any  # typed (`jax.random.key`) or raw (`jax.random.PRNGKey`)


class _Sizes(NamedTuple):
  width: Size
  num_heads: Size
  head_dim: Size
  num_kv_heads: Size | None = None
  vocab: Whole = 0


class Dims(_Sizes):
  """The sizes that `init` may need.

  Attributes:
    width: M, the model's width.
    num_heads: H, query heads.
    head_dim: D, the width of one head.
    num_kv_heads: K, key/value heads, which divides H; None means H.
    vocab: V, the number of token types; 0 where unknown.

  Raises:
    TypeError: if a size is not an integer.
    ValueError: if it is not positive, or K does not divide H.

  Example:
    >>> Dims(width=8, num_heads=2, head_dim=4).vocab
    0
  """

  __slots__ = ()

  def __new__(
    cls,
    width: int,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    vocab: int = 0,
  ) -> 'Dims':
    """Reads and checks all sizes."""
    return cls._make((width, num_heads, head_dim, num_kv_heads, vocab))

  @classmethod
  def _make(cls, iterable: Iterable[Any]) -> 'Dims':
    """The sizes in their order; `_replace` makes its result with it, too."""
    kinds = _Sizes.__annotations__.items()
    each = zip(kinds, iterable, strict=True)
    dims = super()._make(read(value, kind, f"Dims' {name}") for (name, kind), value in each)
    if dims.num_heads % (dims.num_kv_heads or 1):
      raise ValueError(
        'The key heads must divide the query heads, but got '
        f'{dims.num_kv_heads} and {dims.num_heads}.'
      )
    return dims


class IdsFn(Protocol):
  """Place 0: the ids that the model numbers its tokens with. Called once per model call."""

  def __call__(self, pos: Ids, key: PRNGKey | None) -> Ids:
    """Maps ids to ids of the same shape; `key` is None where nothing may be random."""
    ...


class InitFn(Protocol):
  """Makes parameters: of one layer (`init`), or those that all layers share (`init_model`)."""

  def __call__(self, key: PRNGKey, dims: Dims) -> Params:
    """Returns a dict of named arrays; the names of `init` and `init_model` are disjoint."""
    ...


class EmbedFn(Protocol):
  """Place 1: where position meets the token embeddings, before the first layer."""

  def __call__(
    self, params: Params, x: Num[Array, 'B T M'], tokens: Int[Array, 'B T'] | None, pos: Ids
  ) -> Num[Array, 'B T M']:
    """Returns the embeddings with their positions, in the dtype of `x`."""
    ...


class PrepareFn(Protocol):
  """Work done once per attention call, outside any kernel. `posjax.prepare` calls it."""

  def __call__(
    self,
    params: Params,
    x: Num[Array, 'B T M'],
    pos: Ids,
    last: At | None,
    starts: Bool[Array, 'B T'],
  ) -> tuple[Params, At]:
    """Returns `(params, at)`: params stay whole, `at` is cut and cached with the tokens.

    `last` is the `at` of the token before the first, without its token axis ([B, ...]). At the
    start of a stream it is None, or all zeros (an empty cache): a scheme treats them alike.

    `starts` is True for the first token of each document: in a packed row, the last tokens of one
    document are neighbours of the first ones of the next, and what mixes neighbouring tokens, as a
    short convolution does, must not mix these. The first token of x, too, starts a document unless
    it is in that of the token of `last`. Padding is no document: the token after it starts one.
    """
    ...


class HeadsFn(Protocol):
  """Rotates, scales or widens each vector of each head by the position of its token.

  At place 2, these are queries (`query`) and keys (`key`). `attend` scales their product by the
  incoming 1/sqrt(D). At place 4, they are the values before the weights sum them (`values.value`),
  by the positions of their keys, and the outputs (`values.output`), by those of the queries.
  """

  def __call__(self, params: Params, x: Num[Array, 'B T H D'], at: At) -> Num[Array, 'B T H Wider']:
    """Returns the transformed heads. `values.output` must return zeros for zeros."""
    ...


class LogitsFn(Protocol):
  """Place 3: adds to, or replaces, the content logits. A tile sees its own tokens only."""

  def __call__(
    self,
    params: Params,
    logits: Shaped[Array, 'B H T S'],
    q: Num[Array, 'B T H D'],
    k: Num[Array, 'B S K D'],
    q_at: At,
    k_at: At,
  ) -> Shaped[Array, 'B H T S']:
    """Returns logits. `logits` come scaled and after place 2; `q` and `k` are the raw heads."""
    ...


class BiasFn(Protocol):
  """Place 3, for what depends on the signed distance alone. Added last, unscaled."""

  def __call__(self, params: Params, distance: Num[Array, '...']) -> Float[Array, 'H ...']:
    """Returns [H, ...] for `distance = q_pos - k_pos` [...] (with n axes: [..., n])."""
    ...


class AddFn(Protocol):
  """Place 4: vectors that positions add to the output. Linear in `weights`."""

  def __call__(
    self, params: Params, weights: Float[Array, 'B H T S'], q_at: At, k_at: At
  ) -> Float[Array, 'B T H D']:
    """Returns the addition to the weighted sum of the values."""
    ...


class CutHeadsFn(Protocol):
  """Cuts the parameters of places 3 and 4 down to some query heads."""

  def __call__(self, params: Params, first: Int[Array, ''], count: int, shared: int) -> Params:
    """Returns the parameters with which query heads `first` to `first + count - 1` are computed.

    They must serve `logits` and `values.add` of queries that have these heads alone. `shared` query
    heads use the same key head; it divides `first` and `count`.
    """
    ...


class Relative(NamedTuple):
  """Place 2 in two products: the queries with the keys, and with one vector for each distance.

  `query(q) . key(k) = content(q) . k + heads(q) . vectors(q_pos - k_pos)`, for one id per token.
  Where ids count up by one and heads are real, attention in tiles computes the right side, which
  is cheaper where `query` and `key` widen the heads.

  Attributes:
    content: `(params, q [B, T, H, D]) -> [B, T, H, D]`, the queries that are multiplied with keys.
    heads: `(params, q [B, T, H, D]) -> [B, T, H, W]`, those that are multiplied with vectors.
    vectors: `(params, distance [N]) -> [N, H, W]`.
  """

  content: Callable[[Params, Array], Array]
  heads: Callable[[Params, Array], Array]
  vectors: Callable[[Params, Array], Array]


class Tiled(NamedTuple):
  """Faster ways to compute the same, for attention in tiles.

  The places of the record define a scheme; the dense reference computes them and reads nothing of
  this. Each entry must agree with its place, with all gradients, which the contract tests. A form
  may have derivatives of first order only, and those backward.

  Attributes:
    logits: instead of the record's `logits`, within a tile; None where that is as fast.
    add: instead of `values.add`, within a tile; None where that is as fast.
    relative: instead of the products of `query` and `key`; None where that is not cheaper.
    cut_heads: `(params, first, count, shared) -> params`, so that a tile may hold some of the heads
      only; None where `logits` or `values.add` need the parameters of all heads.
    constant_from: the distance from which on a head's `bias` is one number, so that kernels sum its
      gradient over nearer tokens only; None where there is no such distance.
  """

  logits: LogitsFn | None = None
  add: AddFn | None = None
  relative: Relative | None = None
  cut_heads: CutHeadsFn | None = None
  constant_from: int | None = None


def _unmoved(pos, key):
  return pos


def _none(key, dims):
  return {}


def _embed_unchanged(params, x, tokens, pos):
  return x


def _plain(params, x, pos, last, starts):
  return params, pos


def _unchanged(params, x, at):
  return x


def _same(params, logits, q, k, q_at, k_at):
  return logits


class Values(NamedTuple):
  """Place 4: the values, before and after the weights of the softmax sum them.

  Attributes:
    value: `(params, v, at) -> v`, possibly wider, before the sum. v may be of another width than q
      and k.
    output: `(params, out, at) -> out`, possibly of another width: the weighted sum of the values,
      by the position of the query.
    add: `(params, weights, q_at, k_at) -> [B, T, H, D]`, added after `output`; None adds nothing.
  """

  value: HeadsFn = _unchanged
  output: HeadsFn = _unchanged
  add: AddFn | None = None


class Traits(NamedTuple):
  """Facts about a scheme for those that call it; a first reader may skip them.

  Attributes:
    axes: ids per token: 1 for [B, T], n for [B, T, n]; 0 for any number of them.
    mixes: letters of the axes over which functions are not pointwise. 'S' keys and 'H' heads:
      `logits` or `values.add` are not, so that attention may not be cut along them; with 'S', the
      logits that `logits` receives are masked already. 'T' tokens: `prepare` is not. With 'S' and
      'T', tokens must stand in the array in their order.
    fixed: names of the parameters that are constants: stored, never trained nor decayed.
    tiled: faster ways to compute places 2 to 4 in tiles; they add nothing.
    parts: the members of a chain, flat; empty otherwise.
  """

  axes: int = 1
  mixes: str = ''
  fixed: tuple[str, ...] = ()
  tiled: Tiled = Tiled()
  parts: tuple['Scheme', ...] = ()


class _Places(NamedTuple):
  ids: IdsFn = _unmoved
  init_model: InitFn = _none
  embed: EmbedFn = _embed_unchanged
  init: InitFn = _none
  prepare: PrepareFn = _plain
  query: HeadsFn = _unchanged
  key: HeadsFn = _unchanged
  logits: LogitsFn = _same
  bias: BiasFn | None = None
  values: Values = Values()
  traits: Traits = Traits()


class Scheme(_Places):
  """A positional encoding: pure functions, one for each place. See the `...Fn` protocols.

  A scheme is the tuple of its fields: two are equal where all fields are. It also remembers
  the line that makes it, which is its `repr` and part of no comparison.

  Attributes:
    ids: place 0, `(pos, key | None) -> pos`, once per model call.
    init_model: parameters that `embed` and every layer see.
    embed: place 1, `(params, x, tokens, pos) -> x`.
    init: parameters of one layer.
    prepare: `(params, x, pos, last, starts) -> (params, at)`, once per attention call; see
      `posjax.prepare`, which calls it.
    query: place 2, `(params, q, at) -> q`, possibly wider.
    key: place 2, `(params, k, at) -> k`, possibly wider.
    logits: place 3, `(params, logits, q, k, q_at, k_at) -> logits`.
    bias: place 3, `(params, distance[...]) -> [H, ...]`; None adds nothing.
    values: place 4, see `Values`.
    traits: the facts about it, see `Traits`.

  Example:
    >>> Scheme(bias=lambda params, distance: -abs(distance).sum(-1)[None], traits=Traits(axes=2))
    Scheme(bias=..., traits=Traits(axes=2))
  """

  # No slots: the line is in the instance's dictionary, where tuples do not compare it.

  @property
  def line(self) -> str | None:
    """The line that `posjax.get` reads to make an equal scheme; None for one made by hand."""
    return self.__dict__.get('line')

  @property
  def parts(self) -> tuple['Scheme', ...]:
    """The members of a chain, flat; empty otherwise."""
    return self.traits.parts

  def with_line(self, line: str | None) -> 'Scheme':
    """An equal scheme that is made by this line; `_replace` makes one of no line."""
    scheme = self._make(self)
    scheme.__dict__['line'] = line
    return scheme

  def __setattr__(self, name: str, value: Any) -> None:
    """Refuses every change, as a tuple with names does."""
    raise AttributeError(f'A scheme cannot be changed, but got a new {name}; use _replace.')

  def __repr__(self) -> str:
    """The line; without one, those of a chain's members, or the fields that are filled."""
    if self.line is not None:
      return self.line
    if self.parts:
      return '+'.join(map(repr, self.parts))
    return _filled(self, Scheme())


def _filled(record: Any, default: Any) -> str:
  """A record with the fields that are not the default's; functions are '...'."""
  shown = []
  for name, value, usual in zip(record._fields, record, default, strict=True):
    if value != usual:
      plain = isinstance(value, int | str) or type(value) is tuple
      nested = hasattr(value, '_fields')
      shown.append(f'{name}={_filled(value, usual) if nested else repr(value) if plain else "..."}')
  return f'{type(record).__name__}({", ".join(shown)})'


_PLACES = ('ids', 'embed', 'query', 'key', 'logits', 'bias', 'values')


def check_is_scheme(scheme: Any) -> None:
  """Refuses whatever is no scheme, such as the line of one.

  Raises:
    TypeError: if it is none.

  Example:
    >>> check_is_scheme('rope')
    Traceback (most recent call last):
      ...
    TypeError: A scheme must be a posjax.Scheme, as posjax.get makes from a line, but got 'rope'.
  """
  if not isinstance(scheme, Scheme):
    raise TypeError(
      f'A scheme must be a posjax.Scheme, as posjax.get makes from a line, but got {shown(scheme)}.'
    )


def check_params(
  scheme: Scheme,
  params: Any,
  name: str = 'The parameters of the scheme',
  source: str = 'posjax.init(scheme, key, dims)',
) -> None:
  """Refuses parameters that have not the form of a scheme's: a dict; for a chain, a tuple of dicts.

  Args:
    scheme: any scheme.
    params: what should be its parameters.
    name: of the argument, for the error.
    source: the function that makes them, for the error.

  Raises:
    TypeError: if they are something else.
    ValueError: if the tuple has another length than the chain.
  """
  members = len(scheme.parts)
  form = (
    f'{name} must be {f"a tuple of {members} dicts" if members else "a dict"}, as from {source}'
  )
  each = params if members else (params,)
  if not isinstance(each, (tuple, list)) or not all(isinstance(one, Mapping) for one in each):
    raise TypeError(f'{form}, but got {shown(params)}.')
  if members and len(each) != members:
    raise ValueError(f'{form}, but got {len(each)} dicts.')


def check_key(name: str, key: Any) -> None:
  """Refuses what is no single random key of JAX, typed or raw.

  Raises:
    TypeError: if it is none.
  """
  if isinstance(key, jax.Array | np.ndarray):
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if key.ndim == 0 if typed else key.dtype == jnp.uint32 and key.ndim == 1 and key.size > 1:
      return
    got = f'an array {key.dtype}{list(key.shape)}'
  else:
    got = shown(key)
  raise TypeError(f'{name} must be one random key, as jax.random.key(0), but got {got}.')


def declares(scheme: Scheme, field: str) -> bool:
  """Whether `scheme` does anything in `field`, one of the record's names."""
  return getattr(scheme, field) != getattr(Scheme(), field)


def places(scheme: Scheme) -> tuple[str, ...]:
  """The fields for places that `scheme` uses, in the order in which they act.

  They are some of ids, embed, query, key, logits, bias, values.

  Example:
    >>> places(Scheme(bias=lambda params, distance: -abs(distance)[None]))
    ('bias',)
  """
  check_is_scheme(scheme)
  return tuple(name for name in _PLACES if declares(scheme, name))


def init(scheme: Scheme, key: PRNGKey, dims: Dims) -> Params:
  """Model and layer parameters merged: all that a notebook, or a lone layer, needs.

  Args:
    scheme: any scheme or chain.
    key: a JAX random key.
    dims: the sizes of the model.

  Returns:
    A dict of arrays; for a chain, a tuple with one dict per member.

  Raises:
    TypeError: if `scheme` is no Scheme, `key` no random key, or `dims` no Dims.
  """
  check_is_scheme(scheme)
  check_key('key', key)
  if not isinstance(dims, Dims):
    raise TypeError(f'The sizes of a model must be a posjax.Dims, but got {shown(dims)}.')
  model_key, layer_key = jax.random.split(key)
  return merge(scheme.init_model(model_key, dims), scheme.init(layer_key, dims))


def prepare(
  scheme: Scheme,
  params: Params,
  x: Num[Array, 'B T M'],
  pos: Ids,
  last: At | None = None,
  *,
  segments: Num[Array, '...'] | None = None,
  last_segment: Num[Array, '...'] | None = None,
  order: Num[Array, '...'] | None = None,
) -> tuple[Params, At]:
  """Calls the scheme's `prepare`, and tells it where documents start.

  Layers do this by themselves; it is for those who call `attend`.

  Args:
    scheme: any scheme.
    params: its parameters.
    x: the input of the layer.
    pos: ids.
    last: the `at` of the token before the first, [B, ...]; None at the start of a stream.
    segments: document of each token, [B, T]; 0 is padding. None: all are in one.
    last_segment: document of the token of `last`, [B], 0 where there is none. None: that of the
      first token, if there is a `last`.
    order: index of each token in its stream, [B, T]; None: the ids, where they can be one. It is
      needed to refuse another order of tokens for a scheme whose `prepare` goes by it.

  Returns:
    `(params, at)`, for `attend`.

  Raises:
    TypeError: if `scheme` is no Scheme, `x` no array, or the segments are no integers.
    ValueError: if `x` has other axes, there is not one segment for each token, or the tokens stand
      in an order in which the scheme would be wrong (NaN, if that is known only at run time).

  Example:
    >>> params, at = prepare(Scheme(), {}, jnp.ones((1, 2, 4)), jnp.array([[0, 1]]))
    >>> at.tolist()
    [[0, 1]]
  """
  check_is_scheme(scheme)
  _check_input(x)
  if segments is not None:
    _check_documents('segments', segments, x.shape[:2])
  if last_segment is not None:
    _check_documents('last_segment', last_segment, x.shape[:1])
  if segments is None:
    segments = jnp.ones(x.shape[:2], jnp.int32)
  if last_segment is None:
    last_segment = jnp.zeros_like(segments[:, 0]) if last is None else segments[:, 0]
  before = jnp.concatenate([last_segment[:, None], segments[:, :-1]], axis=1)
  params, at = scheme.prepare(params, x, pos, last, segments != before)
  if 'T' in scheme.traits.mixes:
    if order is None and not declares(scheme, 'ids') and pos.ndim < 3:
      order = pos
    if order is not None:
      rows = order.reshape(-1, x.shape[1])
      at = refuse_other_orders(at, rows, segments)
  return params, at


def _check_input(x: Any) -> None:
  if not isinstance(x, jax.Array | np.ndarray):
    raise TypeError(f'x must be an array, the input of a layer, but got {shown(x)}.')
  if x.ndim != 3:
    raise ValueError(f'x must be [B, T, M], the input of a layer, but got shape {x.shape}.')


def _check_documents(name: str, documents: Any, shape: tuple[int, ...]) -> None:
  if not isinstance(documents, jax.Array | np.ndarray):
    raise TypeError(f'{name} must be an array, but got {shown(documents)}.')
  if not jnp.issubdtype(documents.dtype, jnp.integer):
    raise TypeError(f'{name} must be integers, but got {documents.dtype}.')
  if documents.shape != shape:
    raise ValueError(f'{name} must be {shape}, as x has tokens, but got {documents.shape}.')


def merge(model: Params, layer: Params) -> Params:
  """The union of two parameter trees of one scheme, member by member for a chain.

  Raises:
    TypeError: if a tree is neither a dict nor a tuple of dicts.
    ValueError: if both hold a parameter of the same name, or are not of as many members.
  """
  trees = {'model': model, 'layer': layer}
  if isinstance(model, tuple) and isinstance(layer, tuple):
    if len(model) != len(layer):
      raise ValueError(
        f'Both trees must be of one scheme, but got {len(model)} and {len(layer)} members.'
      )
    return tuple(merge(one, other) for one, other in zip(model, layer, strict=True))
  for name, tree in trees.items():
    if not isinstance(tree, Mapping):
      raise TypeError(
        f'Both trees must be dicts, or tuples of dicts, but got {shown(tree)} as {name}.'
      )
  twice = sorted(set(model) & set(layer))
  if twice:
    raise ValueError(f'Parameters must be named once, but both trees hold {twice}.')
  return {**model, **layer}


def split(scheme: Scheme, params: Params) -> tuple[Params, Params]:
  """`(trained, fixed)`: parameters to learn, and the constants named in `scheme.traits.fixed`.

  `merge` puts them together again. Give the optimizer the first: weight decay would change
  constants although their gradients are zero.

  Raises:
    TypeError: if `scheme` is no Scheme, or `params` no dict; of a chain, no tuple of dicts.
    ValueError: if a chain has another number of members.
  """
  check_is_scheme(scheme)
  check_params(scheme, params)
  if scheme.parts:
    both = [split(part, p) for part, p in zip(scheme.parts, params, strict=True)]
    return tuple(trained for trained, _ in both), tuple(fixed for _, fixed in both)
  fixed = scheme.traits.fixed
  trained = {name: value for name, value in params.items() if name not in fixed}
  return trained, {name: value for name, value in params.items() if name in fixed}
