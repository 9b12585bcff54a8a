"""TUPE: positions look at positions, with projections of their own, beside content at content.

logits = (q_i . k_j + p_i U_Q . p_j U_K) / sqrt(2 D), where p is a trained, layer-normalized table
[N, M], and U_Q and U_K are shared by all layers: the second product is one for the whole model. NaN
for ids beyond the table.

`untie_cls`: the token at id 0, [CLS], stands nowhere. Where it asks, theta_1 takes the place of the
positional term, and where another asks about it, theta_2: a number per head, shared by all layers.

`num_buckets`: T5's bias b by the distance, bidirectional and shared by all layers, is part of the
positional term (TUPE-R; without it, TUPE-A). While [CLS] is tied, chaining `t5` is the same.

Reference: Ke, He, Liu 2021, https://arxiv.org/abs/2006.15595, sections 3.1 and 3.2; for what the
paper leaves open the authors' code, guolinke/TUPE. The layer norm is in the code only. So are
constants added to p U_Q and p U_K, left out here: the norm's offset does nearly the same. The code
makes theta from two rows of the table, (p U_Q . p U_K) / sqrt(2 D), plus, in TUPE-R, two rows of b:
numbers that can be anything, as here, where they start at 0. Deviation 0.02 at first, as in the
code.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Num

from posjax.scheme import Scheme
from posjax.schemes import t5
from posjax.schemes.deberta import layer_norm
from posjax.schemes.learned import lookup

SHIFT_INVARIANT = False


def beside(
  x: Float[Array, 'B T H D'], positions: Float[Array, 'B T H D']
) -> Float[Array, 'B T H twice']:
  """Heads of twice the width: their products are sums of both products.

  Example:
    >>> q, k = jnp.array([[[[3.0]]]]), jnp.array([[[[5.0]]]])
    >>> (beside(q, q - 2) * beside(k, k - 3)).sum()  # 3 * 5 + 1 * 2
    Array(17., dtype=float32)
  """
  return jnp.concatenate([x, positions.astype(x.dtype)], axis=-1)


def untied(
  theta: Float[Array, '2 H'], q_cls: Bool[Array, 'B T'], k_cls: Bool[Array, 'B S']
) -> Float[Array, 'B H T S']:
  """theta_1 where [CLS] asks, else theta_2 where it is asked about, else 0.

  Example:
    >>> cls = jnp.array([[True, False]])
    >>> untied(jnp.array([[1.0], [2.0]]), cls, cls)
    Array([[[[1., 1.],
             [2., 0.]]]], dtype=float32)
  """
  from_cls, to_cls = (x[None, :, None, None] for x in theta)
  others = jnp.where(k_cls[:, None, None, :], to_cls, 0)
  return jnp.where(q_cls[:, None, :, None], from_cls, others)


def scheme(
  max_length: int = 512,
  untie_cls: bool = False,
  num_buckets: int | None = None,
  max_distance: int = 128,
) -> Scheme:
  """Untied positions.

  Args:
    max_length: rows of the table: ids 0 .. max_length - 1 have one.
    untie_cls: whether id 0 is a [CLS] token, without a position.
    num_buckets: of T5's bias, both directions together, even; None has no bias.
    max_distance: of T5's bias: from it on, in tokens, everything is in the last bucket.

  Raises:
    ValueError: if an argument is out of range; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(untie_cls=True, num_buckets=32))
    ('query', 'key', 'logits')
  """
  if max_length < 1:
    raise ValueError(f'A table of positions needs at least one row, but got {max_length}.')
  if num_buckets is not None:
    t5.bucket(jnp.zeros((), jnp.int32), num_buckets, max_distance, True)  # or an error, now

  def init_model(key, dims):
    keys = jax.random.split(key, 4)
    shapes = {
      'table': (max_length, dims.width),
      'u_q': (dims.width, dims.num_heads, dims.head_dim),
      'u_k': (dims.width, dims.num_kv_heads or dims.num_heads, dims.head_dim),
    }
    shapes |= {} if num_buckets is None else {'buckets': (num_buckets, dims.num_heads)}
    each = zip(shapes.items(), keys, strict=False)
    made = {n: 0.02 * jax.random.normal(one, shape, jnp.float32) for (n, shape), one in each}
    made |= {'scale': jnp.ones(dims.width), 'offset': jnp.zeros(dims.width)}
    return made | ({'theta': jnp.zeros((2, dims.num_heads))} if untie_cls else {})

  def prepare(params, x, pos, last):
    rows = layer_norm(params['table'], params['scale'], params['offset'], epsilon=1e-5)
    if untie_cls:
      rows = rows.at[0].set(0)  # no positional term, for `logits` to add theta
    made = {name: jnp.einsum('nm,mhd->nhd', rows, params[name]) for name in ('u_q', 'u_k')}
    return params | made, pos

  def query(params, x, at):
    return beside(x, _rows(params['u_q'], at)) * 2**-0.5

  def key(params, x, at):
    return beside(x, _rows(params['u_k'], at))

  def biases(params, distance):
    return t5.bias(params['buckets'], distance, max_distance, bidirectional=True)

  def logits(params, logits, q, k, q_at, k_at):
    q_cls, k_cls = q_at == 0, k_at == 0
    if num_buckets is not None:
      by_distance = biases(params, q_at[:, :, None] - k_at[:, None])
      reset = q_cls[:, None, :, None] | k_cls[:, None, None]
      logits = logits + jnp.where(reset, 0, jnp.moveaxis(by_distance, 0, 1))
    return logits + untied(params['theta'], q_cls, k_cls)

  made = Scheme(init_model=init_model, prepare=prepare, query=query, key=key, axes=1)
  if untie_cls:
    return made._replace(logits=logits)
  return made if num_buckets is None else made._replace(bias=biases)


def _rows(table: Float[Array, 'N H D'], pos: Num[Array, 'B T']) -> Float[Array, 'B T H D']:
  flat = lookup(table.reshape(table.shape[0], -1), pos)
  return flat.reshape(*pos.shape, *table.shape[1:])
