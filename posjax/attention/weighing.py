"""`weights`: who attends to whom, without values."""

from typing import Any

from jaxtyping import Array, Bool, Float, Inexact, Int, Num

from posjax.attention.dispatch import attend
from posjax.scheme import At, Ids, Params, Scheme


def weights(
  q: Inexact[Array, '*B T H D'],
  k: Inexact[Array, '*B S K D'],
  scheme: Scheme | str,
  params: Params,
  *,
  q_pos: Ids,
  k_pos: Ids,
  q_at: At = None,
  k_at: At = None,
  q_order: Num[Array, '...'] | None = None,
  k_order: Num[Array, '...'] | None = None,
  q_segments: Int[Array, '...'] | None = None,
  k_segments: Int[Array, '...'] | None = None,
  mask: Bool[Array, '...'] | None = None,
  bias: Float[Array, '...'] | None = None,
  causal: bool = False,
  window: int | tuple[int | None, int | None] | None = None,
  logit_cap: float | None = None,
  sinks: Float[Array, ' H'] | None = None,
  scale: float | None = None,
  model_places: bool = False,
) -> Float[Array, '*B H T S']:
  """The attention weights of a scheme, for pictures and tests: all [T, S] of them in memory.

  They are what `attend(..., return_weights=True)` returns, for which the values do not matter. All
  arguments are those of `attend`.

  Args:
    q: queries.
    k: keys; K heads, each shared by H / K consecutive query heads.
    scheme: a `Scheme`, or a line for `posjax.get`.
    params: the scheme's parameters.
    q_pos: ids of the queries.
    k_pos: ids of the keys.
    q_at: what the scheme's `prepare` returned for the queries; by default the ids.
    k_at: the same for the keys.
    q_order: index of each query in its stream, for `causal` and `window`.
    k_order: the same for the keys.
    q_segments: document of each query; 0 is padding.
    k_segments: the same for the keys.
    mask: True may attend.
    bias: what is added to the logits.
    causal: whether a query sees only keys whose order is not above its own.
    window: how many tokens a query sees.
    logit_cap: bounds the logits.
    sinks: one logit per head that takes its share of the softmax.
    scale: factor of q . k; by default 1/sqrt(D).
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer.

  Returns:
    float32 [*B, H, T, S]. Each row sums to 1, less what a sink takes; to 0 where a query sees
    nothing.

  Raises:
    ValueError: as `attend`.
    TypeError: as `attend`.

  Example:
    >>> import jax.numpy as jnp
    >>> x, pos = jnp.ones((1, 3, 2, 4)), jnp.arange(3)
    >>> weights(x, x, 'rope', {}, q_pos=pos, k_pos=pos, causal=True)[0, 0, 0]
    Array([1., 0., 0.], dtype=float32)
  """
  options: dict[str, Any] = {
    **{'q_pos': q_pos, 'k_pos': k_pos, 'q_at': q_at, 'k_at': k_at},
    **{'q_order': q_order, 'k_order': k_order},
    **{'q_segments': q_segments, 'k_segments': k_segments},
    **{'mask': mask, 'bias': bias, 'causal': causal, 'window': window},
    **{'logit_cap': logit_cap, 'sinks': sinks, 'scale': scale},
    'model_places': model_places,
  }
  return attend(q, k, k, scheme, params, **options, return_weights=True)[1]
