"""A norm of queries and keys after they have turned, as HunYuan has it."""

import jax.numpy as jnp

from posjax.interop.fields import Fields
from posjax.layers.projections import Norm, normalized
from posjax.scheme import Scheme


def turned_norm(fields: Fields) -> Scheme:
  """The norm as a scheme that follows RoPE in a chain, with a weight [D] for each side.

  The norm of a layer (`qk_norm`) comes before its scheme, and would not do: the weights of the two
  dimensions of a pair differ.

  Example:
    >>> import posjax
    >>> made = turned_norm(Fields({'rms_norm_eps': 1e-5}))
    >>> made.init(None, posjax.Dims(8, 2, 4))['key'].shape
    (4,)
  """
  norm = Norm('rms', fields.needed('rms_norm_eps', fields.positive))

  def init(key, dims):
    return {side: jnp.ones(dims.head_dim) for side in ('query', 'key')}

  def of(side):
    return lambda params, x, at: normalized(norm, x, params[side], None)

  return Scheme(init=init, query=of('query'), key=of('key'))
