"""Products of heads, for attention and for the schemes that replace or add to its logits.

q [B, T, H, D], k [B, S, K, D], logits [B, H, T, S]. K divides H: each key head is shared by H / K
consecutive query heads.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Num


def at_least_float32(*arrays: Inexact[Array, '...']) -> np.dtype:
  """The dtype to compute in: float32, or what is wider (complex64 for complex arrays).

  By NumPy's rules, which hold whatever `jax_numpy_dtype_promotion` says.

  Example:
    >>> at_least_float32(jnp.ones(1, jnp.bfloat16)), at_least_float32(jnp.ones(1, jnp.complex64))
    (dtype('float32'), dtype('complex64'))
  """
  return np.result_type(np.float32, *(x.dtype for x in arrays))


def product(
  q: Inexact[Array, 'B T H D'], k: Inexact[Array, 'B S K D']
) -> Inexact[Array, 'B H T S']:
  """q . k for grouped heads, unscaled; complex k conjugated.

  Returns:
    float32 or what is wider (complex64 for complex heads).

  Example:
    >>> product(jnp.ones((1, 1, 2, 3)), 2 * jnp.ones((1, 1, 1, 3)))
    Array([[[[6.]],
    <BLANKLINE>
            [[6.]]]], dtype=float32)
  """
  batch, queries, heads, width = q.shape
  kv_heads = k.shape[-2]
  grouped = q.reshape(batch, queries, kv_heads, heads // kv_heads, width)
  k = k.conj() if jnp.iscomplexobj(k) else k
  wide = at_least_float32(q, k)
  logits = jnp.einsum('btkgd,bskd->bkgts', grouped, k, preferred_element_type=wide)
  return logits.reshape(batch, heads, queries, -1)


def multiplied(
  x: Inexact[Array, 'B T H D'], factor: Num[Array, '...'] | float
) -> Inexact[Array, 'B T H D']:
  """x * factor, computed in float32 or wider and rounded to the dtype of `x`.

  Args:
    x: queries or keys.
    factor: a number, or an array [B, T, H, D] in which each axis may be 1.

  Example:
    >>> factor = jnp.array([2, 3]).reshape(1, 2, 1, 1)
    >>> multiplied(jnp.ones((1, 2, 1, 1), jnp.bfloat16), factor)[0, :, 0, 0]
    Array([2, 3], dtype=bfloat16)
  """
  return (x.astype(at_least_float32(x)) * factor).astype(x.dtype)


def ungroup(k: Inexact[Array, 'B S K D'], num_heads: int) -> Inexact[Array, 'B S H D']:
  """One key head for each query head, shared ones repeated.

  Example:
    >>> ungroup(jnp.array([[[[1.0], [2.0]]]]), 4)[0, 0, :, 0]
    Array([1., 1., 2., 2.], dtype=float32)
  """
  return jnp.repeat(k, num_heads // k.shape[-2], axis=-2)
