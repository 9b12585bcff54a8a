"""TUPE: positions attend to positions with projections of their own, and content to content.

logits = (q_i . k_j + p_i U_Q . p_j U_K) / sqrt(2 D), where p is a trained, layer-normalized table
[N, M], and U_Q and U_K are shared by all layers, so that the second product is the same in the
whole model. Ids beyond the table give NaN.

With `untie_cls` the token with the id 0, [CLS], has no position. theta_1 takes the place of the
positional term where [CLS] is the query, and theta_2 where it is the key of another query; both are
one number for each head, shared by all layers.

With `num_buckets` T5's bias b by the distance, bidirectional and shared by all layers, is part of
the positional term (TUPE-R; without it, TUPE-A). Without `untie_cls`, chaining `t5` is the same.

Reference: Ke, He, Liu 2021, https://arxiv.org/abs/2006.15595, sections 3.1 and 3.2; for what the
paper leaves open the authors' code, guolinke/TUPE. The layer norm is in the code only. So are
constants that are added to p U_Q and p U_K; they are left out here, because the norm's offset does
nearly the same. The code computes theta from two rows of the table, (p U_Q . p U_K) / sqrt(2 D),
and in TUPE-R from two rows of b: these can be any numbers, as here, where they start at 0. Other
initial values have the standard deviation 0.02, as in the code.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from posjax.arguments import Size, checked
from posjax.math.differences import saturating_subtract
from posjax.math.network import layer_norm
from posjax.math.tables import lookup
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
PAPERS = ('ke2021rethinking',)


def concat_heads(
  x: Float[Array, 'B T H D'], positions: Float[Array, 'B T H D']
) -> Float[Array, 'B T H twice']:
  """Heads of twice the width, whose products are sums of the products of both halves.

  Example:
    >>> q, k = jnp.array([[[[3.0]]]]), jnp.array([[[[5.0]]]])
    >>> (concat_heads(q, q - 2) * concat_heads(k, k - 3)).sum()  # 3 * 5 + 1 * 2
    Array(17., dtype=float32)
  """
  return jnp.concatenate([x, positions.astype(x.dtype)], axis=-1)


def untied(
  theta: Float[Array, '2 H'], q_cls: Bool[Array, 'B T'], k_cls: Bool[Array, 'B S']
) -> Float[Array, 'B H T S']:
  """theta_1 where [CLS] is the query, else theta_2 where it is the key, else 0.

  Args:
    theta: two numbers for each head.
    q_cls: whether each query is [CLS].
    k_cls: whether each key is [CLS].

  Example:
    >>> cls = jnp.array([[True, False]])
    >>> untied(jnp.array([[1.0], [2.0]]), cls, cls)
    Array([[[[1., 1.],
             [2., 0.]]]], dtype=float32)
  """
  from_cls, to_cls = (x[None, :, None, None] for x in theta)
  others = jnp.where(k_cls[:, None, None, :], to_cls, 0)
  return jnp.where(q_cls[:, None, :, None], from_cls, others)


@checked
def scheme(
  max_length: Size = 512,
  untie_cls: bool = False,
  num_buckets: int | None = None,
  max_distance: Size = 128,
) -> Scheme:
  """Untied positions.

  Args:
    max_length: the number of rows of the table: ids 0 .. max_length - 1 have one, others
      give NaN.
    untie_cls: whether the id 0 is that of a [CLS] token, which has no position.
    num_buckets: the number of buckets of T5's bias, both directions together, even; None has no
      bias.
    max_distance: the distance in tokens from which on everything is in the last bucket of T5's
      bias.

  Raises:
    ValueError: if an argument is out of range; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(untie_cls=True, num_buckets=32))
    ('query', 'key', 'logits')
  """
  biases = None if num_buckets is None else _t5_bias(num_buckets, max_distance)

  def init_model(key, dims):
    keys = jax.random.split(key, 4)
    shapes = {
      'table': (max_length, dims.width),
      'u_q': (dims.width, dims.num_heads, dims.head_dim),
      'u_k': (dims.width, dims.num_kv_heads or dims.num_heads, dims.head_dim),
    }
    shapes |= {} if num_buckets is None else {'buckets': (num_buckets, dims.num_heads)}
    params = {
      name: 0.02 * jax.random.normal(key, shape, jnp.float32)
      for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    params |= {'scale': jnp.ones(dims.width), 'offset': jnp.zeros(dims.width)}
    return params | ({'theta': jnp.zeros((2, dims.num_heads))} if untie_cls else {})

  def prepare(params, x, pos, last, starts):
    rows = layer_norm(params['table'], params['scale'], params['offset'], epsilon=1e-5)
    if untie_cls:
      rows = rows.at[0].set(0)  # no positional term, for `logits` to add theta
    projected = {name: jnp.einsum('nm,mhd->nhd', rows, params[name]) for name in ('u_q', 'u_k')}
    return params | projected, pos

  def query(params, x, at):
    return concat_heads(x, lookup(params['u_q'], at)) * 2**-0.5

  def key(params, x, at):
    return concat_heads(x, lookup(params['u_k'], at))

  def logits(params, logits, q, k, q_at, k_at):
    q_cls, k_cls = q_at == 0, k_at == 0
    if biases is not None:
      bias = biases(params, saturating_subtract(q_at[:, :, None], k_at[:, None]))
      is_cls = q_cls[:, None, :, None] | k_cls[:, None, None]
      logits = logits + jnp.where(is_cls, 0, jnp.moveaxis(bias, 0, 1))
    return logits + untied(params['theta'], q_cls, k_cls)

  absolute = Scheme(init_model=init_model, prepare=prepare, query=query, key=key)
  if untie_cls:
    return absolute._replace(logits=logits)
  return absolute if biases is None else absolute._replace(bias=biases)


def _t5_bias(num_buckets: int, max_distance: int) -> Callable[..., Array]:
  """The bias of the scheme `t5`, with its table named `buckets`."""
  from posjax.expression import get  # here, because it imports the folder of this file

  t5: Any = get(f't5({num_buckets}, {max_distance}, bidirectional=True)')
  return lambda params, distance: t5.bias({'table': params['buckets']}, distance)
