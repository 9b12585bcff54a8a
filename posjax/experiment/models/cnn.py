"""Convolutions of several sizes over a text's words, and the largest answer of each filter.

Kim 2014, https://arxiv.org/abs/1408.5882: narrow convolutions, max-over-time pooling. Complex
convolutions as in Wang et al. 2020, https://arxiv.org/abs/1912.12333, eq. 11, and in the authors'
code, but for their single bias; the largest of each part apart.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Inexact

from posjax.experiment.models.fields import Field, named_activation
from posjax.experiment.models.pooling import maximum, silence


class CNN(nnx.Module):
  """max over windows of activation(convolution), for each kernel size, side by side.

  A text shorter than a kernel has one window: it, and zeros after it.

  Args:
    field: real or complex numbers.
    width: M.
    filters: of each size.
    kernel_sizes: words that a filter sees.
    activation: a name in jax.nn.
    rngs: a stream for `params`.

  Raises:
    ValueError: if there is no kernel size, or one is below 1.
  """

  def __init__(
    self,
    field: Field,
    width: int,
    filters: int,
    kernel_sizes: Sequence[int],
    *,
    activation: str,
    rngs: nnx.Rngs,
  ):
    if not kernel_sizes or min(kernel_sizes) < 1:
      raise ValueError(f'kernel_sizes must be 1 or more each, but got {tuple(kernel_sizes)}.')
    self.field = field
    self.kernel_sizes = tuple(kernel_sizes)
    self.activation = named_activation(activation)
    self.convs = nnx.List([field.conv(width, filters, size, rngs=rngs) for size in kernel_sizes])
    self.features = filters * len(self.kernel_sizes)

  def __call__(self, x: Inexact[Array, 'B T M'], real: Bool[Array, 'B T']) -> Inexact[Array, 'B N']:
    """One vector a row; `real` is False in the padding."""
    found = []
    for size, conv in zip(self.kernel_sizes, self.convs, strict=True):
      after = ((0, 0), (0, size - 1))
      answers = conv(jnp.pad(silence(x, real), (*after, (0, 0))))
      windows = _windows(jnp.pad(real, after), size)
      found.append(maximum(self.field.apply(self.activation, answers), windows))
    return jnp.concatenate(found, axis=-1)


def _windows(real: Bool[Array, 'B padded'], size: int) -> Bool[Array, 'B T']:
  """Which windows count: those within the text; of a shorter text, the first."""
  count = real.shape[1] - size + 1
  within = jnp.stack([real[:, i : i + count] for i in range(size)]).all(0)
  start = real[:, :count] & (jnp.cumsum(real, axis=1)[:, :count] == 1)
  return jnp.where((real.sum(1) >= size)[:, None], within, start)
