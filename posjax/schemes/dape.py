"""DAPE: another scheme's bias, adapted to the content by a small network over the heads.

logits = A + B + f(A, B), where A are the content logits of a pair and B its biases, both with one
number for each head, and

  f(A, B) = LeakyReLU(A W_a + B W_b + b) W_out, with W_a and W_b [H, W], b [W], W_out [W, H].

The correction of every head depends on all heads, and all pairs of a layer share the weights.

Reference: Zheng et al. 2024, https://arxiv.org/abs/2405.14722, eq. 4, in which B enters plainly as
well; for what the paper leaves open the authors' code, chuanyang-Zheng/DAPE: W = 32, a slope of
0.01 below zero, uniform initial weights within 1/sqrt(2 H) and 1/sqrt(W), A scaled by 1/sqrt(D).
Their last layer also adds a number for each head, the same for all pairs, which does not change a
softmax and is left out. A are the logits after place 2 and after the members of a chain that come
before this one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from posjax.arguments import Size, checked
from posjax.math.differences import saturating_subtract
from posjax.scheme import Params, Scheme, Traits, declares, places

SHIFT_INVARIANT = True  # where the inner scheme is, as ALiBi
PAPERS = ('zheng2024dape',)

_INNER = 'inner_'  # stands before the names of the inner scheme's parameters


def correction(
  params: Params, logits: Float[Array, 'B H T S'], biases: Float[Array, 'b H T S']
) -> Float[Array, 'B H T S']:
  """f(A, B).

  Args:
    params: W_a as `from_logits` and W_b as `from_bias` [H, W], b as `offset` [W], and W_out as
      `out` [W, H].
    logits: A.
    biases: B, for each row of the batch, or one for all rows.

  Example:
    >>> params = {'from_logits': jnp.ones((1, 1)), 'from_bias': jnp.ones((1, 1))}
    >>> params |= {'offset': jnp.ones(1), 'out': jnp.ones((1, 1))}
    >>> correction(params, jnp.array([[[[1.0, 2.0]]]]), jnp.array([[[[1.0, -103.0]]]]))
    Array([[[[ 3., -1.]]]], dtype=float32)
  """
  hidden = jnp.einsum('bhts,hw->btsw', logits, params['from_logits'])
  hidden = hidden + jnp.einsum('bhts,hw->btsw', biases, params['from_bias'])
  hidden = jax.nn.leaky_relu(hidden + params['offset'][None, None, None], 0.01)
  return jnp.einsum('btsw,wh->bhts', hidden, params['out'])


@checked
def scheme(inner: Scheme | str = 'alibi', width: Size = 32) -> Scheme:
  """Data-adaptive positions.

  Args:
    inner: the scheme whose bias is adapted, or its line for `posjax.get`, such as 'alibi' or
      't5(num_buckets=64)'. It must act on the logits only, and have no `prepare`. B is what it adds
      to the logits. Its parameters get names that begin with 'inner_'.
    width: W, the number of hidden units of the network.

  Raises:
    ValueError: if the width is not positive, or the inner scheme is a chain, acts at another place
      or has a `prepare`.
    TypeError: if `inner` is neither a scheme nor a line.

  Example:
    >>> scheme('t5(num_buckets=8)').traits.mixes  # heads are mixed
    'H'
  """
  if isinstance(inner, str):
    from posjax.expression import get  # here, because it imports the folder of this file

    inner = get(inner)
  if inner.parts:
    raise ValueError(f'DAPE adapts one scheme, but got a chain of {len(inner.parts)}.')
  used = [*places(inner), *(['prepare'] if declares(inner, 'prepare') else [])]
  elsewhere = [place for place in used if place not in ('logits', 'bias')]
  if elsewhere:
    raise ValueError(f'DAPE adapts what acts on the logits only, but got a scheme of {elsewhere}.')

  def init(key, dims):
    inner_key, a_key, b_key, offset_key, out_key = jax.random.split(key, 5)

    def uniform(key, shape, inputs):
      return jax.random.uniform(key, shape, jnp.float32, -(inputs**-0.5), inputs**-0.5)

    heads = dims.num_heads
    return {
      **_renamed(inner.init(inner_key, dims)),
      'from_logits': uniform(a_key, (heads, width), 2 * heads),
      'from_bias': uniform(b_key, (heads, width), 2 * heads),
      'offset': uniform(offset_key, (width,), 2 * heads),
      'out': uniform(out_key, (width, heads), width),
    }

  def init_model(key, dims):
    return _renamed(inner.init_model(key, dims))

  def logits(params, logits, q, k, q_at, k_at):
    of_inner = {n.removeprefix(_INNER): x for n, x in params.items() if n.startswith(_INNER)}
    biases = inner.logits(of_inner, logits, q, k, q_at, k_at) - logits
    if inner.bias:
      by_distance = inner.bias(of_inner, saturating_subtract(q_at[:, :, None], k_at[:, None]))
      biases = biases + jnp.moveaxis(by_distance, 0, 1)
    return logits + biases + correction(params, logits, biases)

  adapted = Scheme(
    init=init,
    logits=logits,
    traits=Traits(
      axes=inner.traits.axes,
      mixes=''.join(sorted({'H', *inner.traits.mixes})),
      fixed=tuple(_INNER + name for name in inner.traits.fixed),
    ),
  )
  return adapted._replace(init_model=init_model) if declares(inner, 'init_model') else adapted


def _renamed(params: Params) -> Params:
  return {_INNER + name: value for name, value in params.items()}
