"""Convolutions of several sizes over a text's words, and the largest answer of each filter.

Kim 2014, https://arxiv.org/abs/1408.5882: narrow convolutions, max-over-time pooling. Complex
convolutions as in Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 11, and in the authors'
code, but for their single bias; the largest of each part apart.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool

from posjax.keys import Count
from posjax.models.embedding import Embedded
from posjax.models.encoders import Encoder
from posjax.models.layer_sets import LayerSet, activation_named
from posjax.models.pooling import Encoded, Group, zero_padding
from posjax.scheme import PRNGKey


class CNN(Encoder):
  """activation(convolution) for each kernel size, side by side.

  The features of a word are of the windows that begin with it. Only windows that lie within the
  text count; a text shorter than a kernel has one window, which is filled up with zeros.

  Args:
    layer_set: real or complex layers.
    width: M.
    hidden_width: filters of each size.
    kernel_sizes: words that a filter sees.
    activation: a name in jax.nn.
    rngs: a stream for `params`.

  Raises:
    ValueError: if there is no kernel size, or one is below 1.
  """

  pooling = 'max'

  def __init__(
    self,
    layer_set: LayerSet,
    width: int,
    *,
    hidden_width: Count,
    kernel_sizes: Sequence[Count],
    activation: str,
    rngs: nnx.Rngs,
  ):
    if not kernel_sizes or min(kernel_sizes) < 1:
      raise ValueError(f'kernel_sizes must be 1 or more each, but got {tuple(kernel_sizes)}.')
    self.layer_set = layer_set
    self.kernel_sizes = tuple(kernel_sizes)
    self.activation = activation_named(activation)
    self.convs = nnx.List([layer_set.conv(width, hidden_width, n, rngs=rngs) for n in kernel_sizes])
    self.features = hidden_width * len(self.kernel_sizes)

  def __call__(self, embedded: Embedded, *, train_key: PRNGKey | None = None) -> Encoded:
    """The answers of all filters, and which of them count; nothing is random."""
    groups, real = [], embedded.real
    x = zero_padding(embedded.x, real)
    for size, conv in zip(self.kernel_sizes, self.convs, strict=True):
      padding = ((0, 0), (0, size - 1))
      answers = conv(jnp.pad(x, (*padding, (0, 0))))
      windows = _windows(jnp.pad(real, padding), size)
      groups.append(Group(self.layer_set.apply(self.activation, answers), windows))
    return Encoded(tuple(groups))


def _windows(real: Bool[Array, 'B padded'], size: int) -> Bool[Array, 'B T']:
  """Which windows count: those within the text; of a shorter text, the first."""
  count = real.shape[1] - size + 1
  within = jnp.stack([real[:, i : i + count] for i in range(size)]).all(0)
  start = real[:, :count] & (jnp.cumsum(real, axis=1)[:, :count] == 1)
  return jnp.where((real.sum(1) >= size)[:, None], within, start)


encoder = CNN
