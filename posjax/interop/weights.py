"""The weights of attention between the layout of a checkpoint and that of posjax."""

import jax.numpy as jnp  # noqa: F401 (for the examples)
import numpy as np
from jaxtyping import Array, Num, Shaped

from posjax.arguments import Size, read, shown
from posjax.interop.families import family_of
from posjax.interop.fields import Config, read_config

AnyArray = Array | np.ndarray


def kernel(weight: Shaped[AnyArray, 'rows *M'], num_heads: int) -> Shaped[AnyArray, '*M H D']:
  """The weight [H D, M] of a projection as a kernel [M, H, D], or its bias [H D] as [H, D].

  Args:
    weight: the weight of the projection of queries, keys or values, in the layout of
      `torch.nn.Linear`.
    num_heads: the number of heads of this projection.

  Raises:
    ValueError: if the heads do not divide the rows.
    TypeError: if the weight is no array, or the number of heads no integer.

  Example:
    >>> kernel(jnp.arange(6), 2)
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    >>> kernel(jnp.zeros((6, 5)), 2).shape
    (5, 2, 3)
  """
  num_heads = read(num_heads, Size, 'The number of heads')
  _check_array(weight, 'The weight of a projection', 1)
  if weight.shape[0] % num_heads:
    raise ValueError(f'{num_heads} heads must divide the rows, but got {weight.shape[0]}.')
  heads = weight.reshape(num_heads, -1, *weight.shape[1:])
  return heads.transpose(*range(2, heads.ndim), 0, 1)


def weight(kernel: Shaped[Array, '*M H D']) -> Shaped[Array, 'rows *M']:
  """A kernel [M, H, D] as the weight [H D, M] of a projection, or a bias [H, D] as [H D].

  Raises:
    TypeError: if the kernel is no array.
    ValueError: if it has less than two axes.

  Example:
    >>> weight(jnp.array([[0, 1, 2], [3, 4, 5]]))
    Array([0, 1, 2, 3, 4, 5], dtype=int32)
  """
  _check_array(kernel, 'A kernel', 2)
  last = kernel.ndim - 2, kernel.ndim - 1
  heads = kernel.transpose(*last, *range(kernel.ndim - 2))
  return heads.reshape(-1, *heads.shape[2:])


def relative_keys(table: Num[Array, 'N D'], config: Config) -> Num[Array, 'Rows D']:
  """The table `distance_embedding` of a checkpoint as the parameter `keys` of the scheme `shaw`.

  BERT's rows are sorted by q_pos - k_pos, so that their order is reversed. Wav2Vec2-BERT's rows are
  sorted by k_pos - q_pos, as those of `shaw`, but may reach further back than forward. The last row
  is then repeated for all farther distances.

  Args:
    table: the table of the checkpoint.
    config: see `from_hf`.

  Raises:
    ValueError: if the configuration is not that of a model with relative keys, or the table has
      another number of rows.
    TypeError: if the table is no array, or the configuration no dict.

  Example:
    >>> config = {'model_type': 'bert', 'position_embedding_type': 'relative_key'}
    >>> config['max_position_embeddings'] = 2
    >>> relative_keys(jnp.array([[1.0], [2.0], [3.0]]), config)[:, 0]
    Array([3., 2., 1.], dtype=float32)
  """
  fields = read_config(config)
  relative = family_of(fields).relative_keys
  if relative is None:
    kind = fields.get('model_type', str)
    raise ValueError(f'Relative keys are those of BERT and of wav2vec2-bert, but got {kind!r}.')
  left, right = relative.reach(fields)
  _check_array(table, 'A table of relative keys', 2)
  if table.shape[0] != left + right + 1:
    raise ValueError(
      f'A table of relative keys must have {left + right + 1} rows, as its configuration says, but '
      f'got shape {table.shape}.'
    )
  if relative.descending:
    return table[::-1]
  farthest = max(left, right)
  return table[np.clip(np.arange(-farthest, farthest + 1), -left, right) + left]


def _check_array(x: AnyArray, name: str, axes: int) -> None:
  if not hasattr(x, 'shape') or not hasattr(x, 'reshape'):
    raise TypeError(f'{name} must be an array, but got {shown(x)}.')
  if len(x.shape) < axes:
    raise ValueError(f'{name} must have at least {axes} axes, but got shape {x.shape}.')
