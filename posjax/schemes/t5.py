"""T5: a learned bias per head for each bucket of distances, fine near by and coarse far away.

bias = table[bucket(distance)], added to the logits. Of the n buckets of one direction, the first
n/2 hold one distance each; the others grow geometrically up to max_distance, and the last one holds
all that is farther.

Reference: Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.1; the buckets are those
of the authors' code (mesh_tensorflow, flaxformer), in which bidirectional attention gives half of
them to each direction, and a causal one puts all later keys in bucket 0. That code takes a float32
logarithm; here the boundaries are integers, exact at every distance. Its initial deviation M^-0.5
is that of mesh_tensorflow and Hugging Face. T5 does not divide q . k by sqrt(D): for its weights,
`attend(..., scale=1.0)`.
"""

import bisect

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from posjax.arguments import checked
from posjax.math.checks import check_integer_ids
from posjax.scheme import Scheme, Tiled, Traits

SHIFT_INVARIANT = True
PAPERS = ('raffel2020exploring',)


def thresholds(num_buckets: int, max_distance: int) -> Int[np.ndarray, ' buckets_less_one']:
  """The least distance of each bucket but the first, for one direction.

  1, 2, .. e, then ceil(e (max_distance/e)^(j/r)), with e = num_buckets // 2, r = num_buckets - e,
  j = 1 .. r - 1: found by comparing integers, n^r >= max_distance^j e^(r - j).

  Args:
    num_buckets: buckets of this direction, at least 2.
    max_distance: tokens from which on everything is in the last bucket; above e.

  Returns:
    Rising int32 [num_buckets - 1].

  Raises:
    ValueError: if an argument is out of range.

  Example:
    >>> thresholds(8, 32)
    array([ 1,  2,  3,  4,  7, 12, 20], dtype=int32)
  """
  exact = num_buckets // 2
  if exact < 1:
    raise ValueError(f'T5 needs at least 2 buckets for each direction, but got {num_buckets}.')
  if not exact < max_distance < 2**31:
    raise ValueError(
      f'The max_distance of {num_buckets} buckets must be above {exact}, the distances that have a '
      f'bucket of their own, and below 2^31, but got {max_distance}.'
    )
  rest = num_buckets - exact
  powers = [max_distance**j * exact ** (rest - j) for j in range(1, rest)]
  growing = [bisect.bisect_left(range(max_distance), p, key=lambda n: n**rest) for p in powers]
  return np.array([*range(1, exact + 1), *growing], np.int32)


def bucket(
  distance: Num[Array, '*shape'],
  num_buckets: int = 32,
  max_distance: int = 128,
  bidirectional: bool = False,
) -> Int[Array, '*shape']:
  """The bucket of each distance.

  Args:
    distance: q_pos - k_pos, in tokens; any integer.
    num_buckets: all of them; half for each direction if bidirectional.
    max_distance: see `thresholds`.
    bidirectional: whether later keys (negative distances) have buckets of their own, the second
      half, or share bucket 0 with distance 0.

  Returns:
    int32, in 0 .. num_buckets - 1.

  Raises:
    TypeError: if distances are not integers.
    ValueError: if an argument is out of range.

  Example:
    >>> bucket(jnp.array([0, 3, 40, 2**31 - 1, -3]), bidirectional=True)
    Array([ 0,  3, 12, 15, 19], dtype=int32)
  """
  check_integer_ids(distance, 'T5 counts whole tokens and needs')
  if bidirectional and num_buckets % 2:
    raise ValueError(f'Two directions need an even number of buckets, but got {num_buckets}.')
  one_way = num_buckets // 2 if bidirectional else num_buckets
  least = jnp.asarray(thresholds(one_way, max_distance))
  # Farther ones are alike, and the absolute value of -2^31 is no int32.
  near = jnp.clip(
    distance.astype(jnp.result_type(distance, jnp.int32)), -max_distance, max_distance
  )
  size = abs(near) if bidirectional else jnp.maximum(near, 0)
  found = jnp.searchsorted(least, size, side='right', method='compare_all').astype(jnp.int32)
  # The authors' relative position is k_pos - q_pos, positive where our distance is negative.
  return found + one_way * (near < 0) if bidirectional else found


def bias(
  table: Float[Array, 'buckets H'],
  distance: Num[Array, '*shape'],
  max_distance: int = 128,
  bidirectional: bool = False,
) -> Float[Array, 'H *shape']:
  """table[bucket(distance)], heads first.

  Args:
    table: the bias of each bucket and head.
    distance: q_pos - k_pos, in tokens; integers.
    max_distance: see `thresholds`.
    bidirectional: see `bucket`.

  Raises:
    TypeError: if distances are not integers.
    ValueError: if an argument is out of range.

  Example:
    >>> bias(jnp.array([[0.0], [1.0], [2.0], [3.0]]), jnp.array([0, 1, 2, 9]), max_distance=4)
    Array([[0., 1., 2., 3.]], dtype=float32)
  """
  return table.T[:, bucket(distance, table.shape[0], max_distance, bidirectional)]


@checked
def scheme(
  num_buckets: int = 32,
  max_distance: int = 128,
  bidirectional: bool = False,
  shared: bool = True,
) -> Scheme:
  """Bucketed biases.

  Args:
    num_buckets: rows of the table; even if bidirectional.
    max_distance: tokens from which on everything is in the last bucket.
    bidirectional: for encoders; a causal decoder has no use for the second half.
    shared: one table for all layers, as in T5, or one for each.

  Raises:
    ValueError: if an argument is out of range; where used, TypeError for ids that are not integers.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('bias',)
  """
  bucket(jnp.zeros((), jnp.int32), num_buckets, max_distance, bidirectional)  # or an error, now

  def init(key, dims):
    normal = jax.random.normal(key, (num_buckets, dims.num_heads), jnp.float32)
    return {'table': dims.width**-0.5 * normal}

  def biases(params, distance):
    return bias(params['table'], distance, max_distance, bidirectional)

  traits = Traits(tiled=Tiled(constant_from=max_distance))
  if shared:
    return Scheme(init_model=init, bias=biases, traits=traits)
  return Scheme(init=init, bias=biases, traits=traits)
