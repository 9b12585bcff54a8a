"""Places 3 and 4 of a scheme, for some queries and some keys.

The dense reference calls these functions once, with all queries and all keys, and attention in
tiles calls them for each tile. B batch, T queries, S keys, H heads.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from posjax.attention.inputs import Rules, Side, check_returned
from posjax.math.differences import difference
from posjax.math.heads import product
from posjax.scheme import Ids, Params, Scheme, declares

_FAR_BELOW = -1e30  # what `logits` gets for hidden pairs: finite, so that schemes may calculate


def content(q: Side, k: Side, rules: Rules) -> Inexact[Array, 'B H T S']:
  """The content logits: the scaled products of queries and keys after place 2."""
  return product(q.positioned, k.positioned) * rules.scale


def final_logits(
  scheme: Scheme,
  params: Params,
  logits: Inexact[Array, 'B H T S'],
  q: Side,
  k: Side,
  rules: Rules,
  allowed: Bool[Array, 'b h T S'],
  by_distance: Float[Array, 'bias_b bias_h T S'] | None = None,
  given: Float[Array, 'given_b given_h t s'] | None = None,
) -> Float[Array, 'B H T S']:
  """Place 3, the logit cap, the caller's bias and the mask: the logits that enter the softmax.

  Args:
    scheme: any scheme.
    params: its parameters.
    logits: the content logits, see `content`.
    q: the queries.
    k: the keys.
    rules: the logit cap.
    allowed: which pairs may attend, see `masks.visible`.
    by_distance: the scheme's bias, see `bias`; None where it has none.
    given: the caller's bias, which broadcasts over the pairs; None where there is none.

  Returns:
    The logits, and -inf for pairs that may not attend. The scheme and the caller may add -inf,
    too: that pair may not attend either, whatever the cap.

  Raises:
    ValueError: if the logits are complex after place 3.
  """
  if 'S' in scheme.whole:
    logits = jnp.where(allowed, logits, _FAR_BELOW)
  if declares(scheme, 'logits'):
    shape = logits.shape
    logits = scheme.logits(params, logits, q.raw, k.raw, q.at, k.at)
    check_returned('logits', logits, shape)
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


def bias(
  function: Callable[..., Array], params: Params, q_pos: Ids, k_pos: Ids
) -> Float[Array, 'b H T S']:
  """A scheme's bias for every pair of ids.

  Args:
    function: the scheme's `bias`.
    params: its parameters.
    q_pos: ids of the queries, [b, T] or [b, T, n].
    k_pos: ids of the keys.

  Raises:
    ValueError: if it does not return one number for each head and pair.
  """
  distance = difference(q_pos[:, :, None], k_pos[:, None])
  per_head = function(params, distance)
  heads, pairs = per_head.shape[:1], (distance.shape[0], q_pos.shape[1], k_pos.shape[1])
  if per_head.shape != heads + pairs:
    expected = f'[H, {", ".join(map(str, pairs))}]'
    raise ValueError(f'bias must return {expected}, heads first, but got {per_head.shape}.')
  return jnp.moveaxis(per_head, 0, 1)


def output(
  scheme: Scheme,
  params: Params,
  weights: Float[Array, 'B H T S'],
  v: Inexact[Array, 'B S K E'],
  q: Side,
  k: Side,
) -> Inexact[Array, 'B T H E']:
  """The weighted sum of the values, with the addition of place 4. Linear in `weights`."""
  batch, heads, queries, keys = weights.shape
  kv_heads = v.shape[-2]
  grouped = weights.reshape(batch, kv_heads, heads // kv_heads, queries, keys)
  out = jnp.einsum('bkgts,bske->btkge', grouped, v.astype(jnp.result_type(v, jnp.float32)))
  out = out.reshape(batch, queries, heads, -1)
  if scheme.values:  # place 4
    out = out + check_returned('values', scheme.values(params, weights, q.at, k.at), out.shape)
  return out
