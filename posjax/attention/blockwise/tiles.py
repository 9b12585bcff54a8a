"""One tile of attention, forward and backward; `engine` sums over all tiles.

Products of heads and their derivatives are written out, in the order of axes that `cut.cut_heads`
chose. All other computations of a scheme are differentiated by `jax.vjp`, so that no scheme needs
code here: its answer for the tokens of a tile is a tile of its answer.

K key heads, each shared by G query heads; t counts the queries of all G side by side.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Inexact, UInt32

from posjax.attention import masks, places
from posjax.attention.distances import Table
from posjax.attention.inputs import Rules, Side
from posjax.attention.softmax import Sums, softmax_step
from posjax.math.heads import at_least_float32, product
from posjax.math.toeplitz import shift, unshift
from posjax.scheme import Params, PRNGKey, Scheme, declares


class Plan(NamedTuple):
  """The facts that are known when the attention is traced.

  Attributes:
    scheme: with its faster forms of places 3 and 4 in their place.
    rules: the plain arguments of `attend`.
    heads: query heads.
    queries: tokens of a tile.
    keys: tokens of a tile.
    tabulated: whether ids count up by one, and what depends on the distance is in a table; None
      where the program finds out when it runs.
    trained: whether the scheme has parameters, so that a table of its bias needs a cotangent.
    budget: see `groups.most_pairs`.
    spans: the keys that each row of tiles may see, where they are used: see `unrolled`. Weights
      and cotangents are then rounded to bfloat16, for products with heads in bfloat16.
    unrolled: whether a row of tiles is one tile, and rows are unrolled.
  """

  scheme: Scheme
  rules: Rules
  heads: int
  queries: int
  keys: int
  tabulated: bool | None
  trained: bool = True
  budget: int | None = None
  spans: tuple[tuple[int, int], ...] | None = None
  unrolled: bool = False


class Tile(NamedTuple):
  """The arrays of one tile; None for those that the scheme and the rules do not need.

  Attributes:
    params: the scheme's parameters.
    q: queries after place 2; None where the tile calls place 2 itself.
    k: keys after place 2, likewise.
    v: values.
    relative: the queries that are multiplied with the vectors of the table.
    table: of the tile's distances, where all ids count up by one.
    q_side: the queries' tokens.
    k_side: the keys' tokens.
    mask: True where a pair may attend.
    dropout_key: random key.
    dropout_rows: see `masks.dropout_rows`.
    bias: the caller's, in which each axis may be 1.
  """

  params: Params
  q: Inexact[Array, 'B K D t'] | None
  k: Inexact[Array, 'B K D S'] | None
  v: Inexact[Array, 'B K E S']
  relative: Inexact[Array, 'B H W T'] | None
  table: Table
  q_side: Side
  k_side: Side
  mask: Bool[Array, 'b h T S'] | None
  dropout_key: PRNGKey | None
  dropout_rows: UInt32[Array, 'B H'] | None
  bias: Float[Array, 'b h t s'] | None


class Running(NamedTuple):
  """The online softmax of some queries, and their output so far, not yet divided by the sums."""

  sums: Sums
  out: Inexact[Array, 'B K t E']


class Rows(NamedTuple):
  """The results of the forward pass, and the cotangents, of some queries.

  Weights are exp(logit - top) / total. The cotangents are divided by the total already, once for
  each query, so that no pair has to be.

  Attributes:
    d_out: the cotangent of the output, over the total.
    top: the largest logit of each query.
    delta: the output times its cotangent, summed over the head, over the total.
  """

  d_out: Inexact[Array, 'B K E t']
  top: Float[Array, 'B H T']
  delta: Float[Array, 'B H T']


class Cotangents(NamedTuple):
  """The cotangents of a tile's arrays; None where it has no such array.

  Attributes:
    scheme: of the floats of (parameters, q_side, k_side), in their trees.
    q: of the queries, tokens before width.
    k: of the keys.
    v: of the values.
    relative: of the queries that are multiplied with vectors, tokens before width.
    table: its bias for each pair, not yet summed over the pairs of a distance.
    bias: of the caller's bias.
  """

  scheme: Any
  q: Inexact[Array, 'B K t D'] | None
  k: Inexact[Array, 'B K D S'] | None
  v: Inexact[Array, 'B K E S']
  relative: Inexact[Array, 'B H T W'] | None
  table: Table
  bias: Float[Array, 'b h t s'] | None


def forward(plan: Plan, x: Tile, sums: Sums) -> tuple[Sums, Array, Array]:
  """One step of the online softmax, with the keys of this tile.

  Returns:
    The sums with these keys; the factor of the output so far; and what is then added to it.
  """
  sums, weights, factor = softmax_step(sums, _logits(plan, x, _content(plan, x)), axis=-1)
  if plan.rules.dropout_rate:
    weights = weights * _dropout_mask(plan, x)
  more = _einsum(plan, x.v, 'bkts,bkes->bkte', _by_key_head(plan, x, weights), x.v)
  if plan.scheme.values.add:
    more = more + _values(plan, x, weights)
  return sums, factor.reshape(*more.shape[:3], 1), more


def backward(plan: Plan, x: Tile, rows: Rows) -> Cotangents:
  """Computes the tile again, and the cotangents of its arrays."""
  d_out, top, delta = rows
  inside = x.params, x.q_side, x.k_side
  floats, others = split(inside)

  def with_floats(floats, bias=None):
    params, q_side, k_side = join(floats, others)
    table = x.table._replace(bias=bias)
    return x._replace(params=params, q_side=q_side, k_side=k_side, table=table)

  d_scheme = []  # from place 4, and from place 3
  logits, logits_back = _logits_vjp(plan, x, floats, with_floats)
  # The logits were rounded anew: where they are large, perhaps to more than their largest.
  weights = jnp.exp(jnp.minimum(logits - top[..., None], 0))
  d_weights = _real(_einsum(plan, x.v, 'bket,bkes->bkts', d_out, x.v)).reshape(weights.shape)
  factors = _dropout_mask(plan, x) if plan.rules.dropout_rate else None
  mixed = weights if factors is None else weights * factors
  if plan.scheme.values.add:
    values = lambda floats, mixed: _values(plan, with_floats(floats), mixed)
    _, values_back = jax.vjp(values, floats, mixed)
    d_floats, more = values_back(d_out.swapaxes(-1, -2))
    d_scheme.append(d_floats)
    d_weights = d_weights + more
  if factors is not None:
    d_weights = d_weights * factors
  d_logits = weights * (d_weights - delta[..., None])
  d_floats, d_content, d_bias = logits_back(d_logits)
  if d_floats is not None:
    d_scheme.append(d_floats)
  d_q, d_k, d_relative, d_vectors = _content_back(plan, x, d_content)
  mixed = _by_key_head(plan, x, mixed)
  return Cotangents(
    scheme=add_wide(*d_scheme) if d_scheme else None,
    q=d_q,
    k=d_k,
    v=_einsum(plan, x.v, 'bket,bkts->bkes', d_out, mixed),
    relative=d_relative,
    table=Table(d_bias if x.table.bias is not None and plan.trained else None, d_vectors),
    bias=None if x.bias is None else _summed_to(x.bias.shape, d_logits),
  )


def _summed_to(shape: tuple[int, ...], x: Array) -> Array:
  """The sum over the axes that a shape has as 1: the cotangent of what was broadcast to x."""
  axes = tuple(axis for axis, size in enumerate(shape) if size == 1)
  return x.sum(axes, keepdims=True)


def _logits_vjp(plan: Plan, x: Tile, floats, with_floats):
  """The logits, and the function from their cotangent to those of floats, content and bias."""
  content = _content(plan, x)
  by_pairs = plan.scheme.bias is not None and x.table.bias is None
  is_bent = by_pairs or declares(plan.scheme, 'logits') or plan.rules.logit_cap is not None
  if not is_bent and content is not None:  # sums and a mask, whose derivative is the identity
    return _logits(plan, x, content), lambda d_logits: (None, d_logits, d_logits)
  batch = x.v.shape[0]
  bias = x.table.bias
  if bias is not None:  # so that each pair of each row has a cotangent
    bias = jnp.broadcast_to(bias, (batch, plan.heads, plan.queries, plan.keys))
  logits = lambda floats, content, bias: _logits(plan, with_floats(floats, bias), content)
  return jax.vjp(logits, floats, content, bias)


def _content(plan: Plan, x: Tile) -> Inexact[Array, 'B H T S'] | None:
  """The scaled products of heads; None where the tile must call place 2 first."""
  if x.q is None or x.k is None:
    return None
  dtype = at_least_float32(x.q, x.k)
  logits = jnp.einsum('bkdt,bkds->bkts', x.q, x.k, preferred_element_type=dtype)
  logits = logits.reshape(logits.shape[0], plan.heads, plan.queries, plan.keys)
  if x.relative is not None:
    by_distance = jnp.einsum('bhwt,bhwn->bhtn', wide(x.relative), _vectors(x))
    # The barrier has the rows shifted once: both the maximum and the exponentials read them.
    logits = logits + lax.optimization_barrier(shift(by_distance))
  return logits * plan.rules.scale


def _content_back(plan: Plan, x: Tile, d_content):
  """Cotangents of queries, keys, relative queries, and vectors."""
  if x.q is None or x.k is None:
    return None, None, None, None
  scale, pairs = plan.rules.scale, _by_key_head(plan, x, d_content)
  d_q = _einsum(plan, x.k, 'bkts,bkds->bktd', pairs, x.k) * scale
  d_k = _einsum(plan, x.q, 'bkdt,bkts->bkds', x.q, pairs) * scale
  if x.relative is None:
    return d_q, d_k, None, None
  by_distance = lax.optimization_barrier(unshift(d_content))
  d_relative = jnp.einsum('bhtn,bhwn->bhtw', by_distance, _vectors(x)) * scale
  d_vectors = jnp.einsum('bhwt,bhtn->bhwn', wide(x.relative), by_distance) * scale
  return d_q, d_k, d_relative, d_vectors.sum(0)


def _einsum(plan: Plan, heads: Array, formula: str, one: Array, other: Array) -> Array:
  """A product, summed in float32 or wider; of bfloat16 where the heads are, in unrolled rows."""
  if plan.spans is not None and heads.dtype == jnp.bfloat16:
    one, other = one.astype(jnp.bfloat16), other.astype(jnp.bfloat16)
    return jnp.einsum(formula, one, other, preferred_element_type=jnp.float32)
  return jnp.einsum(formula, wide(one), wide(other))


def _vectors(x: Tile) -> Float[Array, 'B H W n']:
  """The vectors for each row, so that products are batched over rows and heads."""
  vectors = jnp.asarray(x.table.vectors)
  return jnp.broadcast_to(wide(vectors), (x.v.shape[0], *vectors.shape))


def _logits(plan: Plan, x: Tile, content) -> Float[Array, 'B H T S']:
  scheme, q, k = plan.scheme, x.q_side, x.k_side
  if content is None:
    content = product(*places.query_and_key(scheme, x.params, q, k)) * plan.rules.scale
  allowed = masks.visible(q, k, plan.rules, x.mask)
  logits = places.logits(scheme, x.params, content, q, k, allowed)
  bias = places.bias(scheme, x.params, q, k) if x.table.bias is None else x.table.bias
  return places.limited(logits, bias, x.bias, allowed, plan.rules)


def _values(plan, x: Tile, weights) -> Inexact[Array, 'B K t E']:
  """Place 4, in the order of `Running.out`."""
  out = places.addition(plan.scheme, x.params, weights, x.q_side, x.k_side, x.v.shape[2])
  return out.swapaxes(1, 2).reshape(*x.v.shape[:2], -1, out.shape[-1])


def _dropout_mask(plan: Plan, x: Tile) -> Float[Array, 'B H T S']:
  rate, rows = plan.rules.dropout_rate, jnp.asarray(x.dropout_rows)
  return masks.dropout_mask(x.dropout_key, rate, rows, x.q_side.index, x.k_side.index)


def _by_key_head(plan: Plan, x: Tile, pairs: Array) -> Inexact[Array, 'B K t S']:
  return pairs.reshape(*x.v.shape[:2], -1, plan.keys)


def _real(x: Array) -> Array:
  return x.real if jnp.iscomplexobj(x) else x


def _is_float(leaf: Array) -> bool:
  return jnp.issubdtype(leaf.dtype, jnp.inexact)


def split(tree: Any) -> tuple[Any, Any]:
  """The floats of a tree, and its other leaves, as two trees with None for the missing leaves."""
  floats = jax.tree.map(lambda leaf: leaf if _is_float(leaf) else None, tree)
  return floats, jax.tree.map(lambda leaf: None if _is_float(leaf) else leaf, tree)


def join(floats: Any, others: Any) -> Any:
  """The inverse of `split`."""
  both = lambda one, other: other if one is None else one
  return jax.tree.map(both, floats, others, is_leaf=lambda leaf: leaf is None)


def wide(x: Array) -> Array:
  """The array in float32, or in its own dtype where that is wider."""
  return x.astype(at_least_float32(x))


def add_wide(*trees: Any) -> Any:
  """The sum of trees of cotangents, in float32 or what is wider."""
  return jax.tree.map(lambda *leaves: sum(map(wide, leaves)), *trees)
