"""Places 2 to 4 of a scheme, for some queries and some keys: all implementations call these.

The dense reference calls each function once, with all queries and all keys, and attention in tiles
calls those of places 3 and 4 for each tile. B batch, T queries, S keys, H query heads, K key heads.

A place that returns another number of tokens or heads than it was given is refused here: attention
in tiles would take a part of it for the right ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from posjax.attention.inputs import Rules, Side
from posjax.math.differences import saturating_subtract
from posjax.scheme import Params, Scheme, Traits, Values, declares

_FAR_BELOW = -1e30  # what `logits` gets for hidden pairs: finite, so that schemes may calculate


def query_and_key(
  scheme: Scheme, params: Params, q: Side, k: Side
) -> tuple[Inexact[Array, 'B T H Wider'], Inexact[Array, 'B S K Wider']]:
  """Place 2: queries and keys, each transformed by the position of its token.

  Raises:
    ValueError: if one has other tokens or heads afterwards, or they differ in width.
  """
  new_q = _with_axes('query', scheme.query(params, q.raw, q.at), (*q.raw.shape[:-1], None))
  new_k = _with_axes('key', scheme.key(params, k.raw, k.at), (*k.raw.shape[:-1], None))
  widths = new_q.shape[-1], new_k.shape[-1]
  if widths[0] != widths[1]:
    raise ValueError(
      f"The scheme's query and key must return heads of one width, but got {widths[0]} and "
      f'{widths[1]}.'
    )
  return new_q, new_k


def logits(
  scheme: Scheme,
  params: Params,
  content: Inexact[Array, 'B H T S'],
  q: Side,
  k: Side,
  allowed: Bool[Array, 'b h T S'],
) -> Inexact[Array, 'B H T S']:
  """Place 3: the content logits, to which `scheme.logits` adds, or which it replaces.

  Args:
    scheme: any scheme.
    params: its parameters.
    content: the scaled products of queries and keys after place 2.
    q: the queries.
    k: the keys.
    allowed: which pairs may attend, see `masks.visible`.
  """
  if 'S' in scheme.traits.mixes:
    content = jnp.where(allowed, content, _FAR_BELOW)
  if not declares(scheme, 'logits'):
    return content
  found = scheme.logits(params, content, q.raw, k.raw, q.at, k.at)
  return _with_axes('logits', found, content.shape)


def bias(scheme: Scheme, params: Params, q: Side, k: Side) -> Float[Array, 'b H T S'] | None:
  """Place 3: the scheme's bias by the distance of each pair; None where it has none.

  Raises:
    ValueError: if it does not return one number for each head and pair.
  """
  if scheme.bias is None:
    return None
  distance = saturating_subtract(q.pos[:, :, None], k.pos[:, None])
  pairs = distance.shape[0], q.pos.shape[1], k.pos.shape[1]
  return by_head(scheme.bias(params, distance), pairs)


def by_head(per_head: Float[Array, 'H b ...'], rest: tuple[int, ...]) -> Float[Array, 'b H ...']:
  """A bias [H, ...], as a scheme returns it, with the axis of the batch first.

  Raises:
    ValueError: if the axes after that of the heads are not `rest`.
  """
  if per_head.ndim != len(rest) + 1 or per_head.shape[1:] != rest:
    expected = f'[H, {", ".join(map(str, rest))}]'
    raise ValueError(f'bias must return {expected}, heads first, but got {per_head.shape}.')
  return jnp.moveaxis(per_head, 0, 1)


def limited(
  logits: Inexact[Array, 'B H T S'],
  by_distance: Float[Array, 'bias_b bias_h T S'] | None,
  given: Float[Array, 'given_b given_h t s'] | None,
  allowed: Bool[Array, 'b h T S'],
  rules: Rules,
) -> Float[Array, 'B H T S']:
  """The logits that enter the softmax: with all biases, under the cap, -inf for hidden pairs.

  Args:
    logits: of `logits`.
    by_distance: the scheme's bias, of `bias`.
    given: the caller's bias, which broadcasts over the pairs; None where there is none.
    allowed: which pairs may attend. The scheme and the caller may add -inf: that pair may not
      attend either, whatever the cap.
    rules: the logit cap.

  Raises:
    ValueError: if the logits are complex after place 3.
  """
  if by_distance is not None:
    logits = logits + by_distance
  if jnp.iscomplexobj(logits):
    raise ValueError('The logits of complex q and k are complex, and no scheme makes them real.')
  if rules.logit_cap is not None:
    allowed = allowed & (logits != -jnp.inf)
    logits = jnp.where(allowed, logits, 0)  # a table may give NaN to other pairs
    logits = rules.logit_cap * jnp.tanh(logits / rules.logit_cap)
  if given is not None:
    logits = logits + given
  return jnp.where(allowed, logits, -jnp.inf)


def value(
  scheme: Scheme, params: Params, v: Inexact[Array, 'B S K E'], k: Side
) -> Inexact[Array, 'B S K Wider']:
  """Place 4: the values, transformed by the positions of their keys, before they are summed."""
  return _with_axes('values.value', scheme.values.value(params, v, k.at), (*v.shape[:-1], None))


def output(
  scheme: Scheme, params: Params, total: Inexact[Array, 'B T H E'], q: Side
) -> Inexact[Array, 'B T H F']:
  """Place 4: the weighted sums of the values, transformed by the positions of their queries."""
  found = scheme.values.output(params, total, q.at)
  return _with_axes('values.output', found, (*total.shape[:-1], None))


def addition(
  scheme: Scheme, params: Params, weights: Float[Array, 'B H T S'], q: Side, k: Side, width: int
) -> Inexact[Array, 'B T H F']:
  """Place 4: what positions add to the output; call it where `scheme.values.add` is not None.

  Args:
    scheme: any scheme.
    params: its parameters.
    weights: of the softmax, or of some of its keys: the function is linear in them.
    q: the queries.
    k: the keys.
    width: F, of the output.
  """
  batch, heads, queries, _ = weights.shape
  add: Any = scheme.values.add
  found = add(params, weights, q.at, k.at)
  return _with_axes('values.add', found, (batch, queries, heads, width))


def output_width(scheme: Scheme, params: Params, width: int, q: Side, k: Side) -> int:
  """The width of the output, where values come `width` wide: no numbers are computed."""
  like = lambda side, width: jax.ShapeDtypeStruct((*side.raw.shape[:-1], width), jnp.float32)
  v = jax.eval_shape(lambda v: value(scheme, params, v, k), like(k, width))
  total = like(q, v.shape[-1])
  return jax.eval_shape(lambda total: output(scheme, params, total, q), total).shape[-1]


def transforms_values(scheme: Scheme) -> bool:
  """Whether the scheme transforms values, or their weighted sums."""
  return scheme.values._replace(add=None) != Values()


def without_place_2(scheme: Scheme) -> Scheme:
  """The scheme for queries and keys to which place 2 has been applied."""
  none = Scheme()
  tiled = scheme.traits.tiled._replace(relative=None)
  traits: Traits = scheme.traits._replace(tiled=tiled)
  return scheme._replace(query=none.query, key=none.key, traits=traits)


def without_value(scheme: Scheme) -> Scheme:
  """The scheme for values to which its `values.value` has been applied."""
  return scheme._replace(values=scheme.values._replace(value=Values().value))


def _with_axes(place: str, x: Array, shape: tuple[int | None, ...]) -> Array:
  """The array that a place returned, if it has this shape; None stands for any size."""
  if x.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, x.shape, strict=True)):
    expected = ', '.join('any width' if n is None else str(n) for n in shape)
    raise ValueError(f"The scheme's {place} must return [{expected}], but got shape {x.shape}.")
  return x
