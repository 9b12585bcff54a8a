"""CoPE: positions count what the content of a query asks for, and may lie between two numbers.

g_ij = sigmoid(logits_ij), p_ij = the sum of g_il over the keys l from j on that i sees (to i, under
a causal mask), and

  logits_ij + q_i . e[p_ij], e[p] = (1 - w) e[floor(p)] + w e[ceil(p)], w = p - floor(p),

for a trained table e [N, D] of one layer, shared by its heads; p is at most N - 1. Computed as the
paper does: q is multiplied with the table, and the products are interpolated. The ids are not used.

Reference: Golovneva, Wang, Weston, Sukhbaatar 2024, https://arxiv.org/abs/2405.18719, section 4,
and the listing in its appendix, whose gates are sigmoids of the logits scaled by 1/sqrt(D), and
which adds q . e unscaled: the default. The authors' training code (facebookresearch/RAM) divides
q . e by sqrt(D) as well, unless `scaled` is False. Tables begin with zeros, as in both. The
gates see the logits as place 2, and the members of a chain before this one, made them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.arguments import AtLeastTwo, checked
from posjax.scheme import Scheme, Traits

SHIFT_INVARIANT = True
PAPERS = ('golovneva2024contextual',)


def positions(logits: Float[Array, '*H T S'], num_positions: int) -> Float[Array, '*H T S']:
  """How much each query counts from each key on, at most num_positions - 1.

  Args:
    logits: masked ones far below 0, keys in the order of the tokens.
    num_positions: rows of the table.

  Example:
    >>> positions(jnp.array([[99.0, 0.0, 99.0, -1e30]]), 3)
    Array([[2. , 1.5, 1. , 0. ]], dtype=float32)
  """
  counts = jax.lax.cumsum(jax.nn.sigmoid(logits), axis=logits.ndim - 1, reverse=True)
  return jnp.minimum(counts, num_positions - 1)


def interpolated(
  by_position: Float[Array, '*H T N'], at: Float[Array, '*H T S']
) -> Float[Array, '*H T S']:
  """The entries at `at`, in 0 .. N - 1; between two, their mean weighted by nearness.

  Example:
    >>> interpolated(jnp.array([[10.0, 20.0, 40.0]]), jnp.array([[0.0, 1.75, 2.0]]))
    Array([[10., 35., 40.]], dtype=float32)
  """
  below = jnp.floor(at).astype(jnp.int32)
  above = jnp.minimum(below + 1, by_position.shape[-1] - 1)
  part = at - below.astype(at.dtype)
  low, high = (jnp.take_along_axis(by_position, i, axis=-1) for i in (below, above))
  return low * (1 - part) + high * part


@checked
def scheme(num_positions: AtLeastTwo = 64, scaled: bool = False) -> Scheme:
  """Contextual positions.

  Args:
    num_positions: N, rows of the table; farther keys count as N - 1.
    scaled: whether 1/sqrt(D) applies to q . e, too.

  Example:
    >>> scheme().traits.mixes  # sums over all keys that a query sees
    'S'
  """

  def init(key, dims):
    return {'table': jnp.zeros((num_positions, dims.head_dim))}

  def logits(params, logits, q, k, q_at, k_at):
    table = params['table'] * q.shape[-1] ** -0.5 if scaled else params['table']
    by_position = jnp.einsum('bthd,nd->bhtn', q, table)
    return logits + interpolated(by_position, positions(logits, num_positions))

  return Scheme(init=init, logits=logits, traits=Traits(axes=0, mixes='S'))
