"""Layers that keep content and position apart everywhere but in the logits of attention.

x [B, T, M] = [content | position], of M - P and P dimensions. q . k = q_c . k_c + q_p . k_p, and
every projection is two: one of the content half and one of the position half, also in values, the
output projection and the feed-forward layer. Only a layer norm over the whole vector, which belongs
to the model, mixes the halves, through its mean and its deviation.

Reference: Kitaev and Klein 2018, https://arxiv.org/abs/1805.01052, section 3; the layers are those
of the authors' code, whose halves of a head are equal, and whose feed-forward gives each half of
the model half of its width.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Num

from posjax.layers import arguments, parameters
from posjax.layers import layer as layers
from posjax.layers.tokens import Heads, Tokens
from posjax.models import axes
from posjax.models.layer_sets import activation_named
from posjax.nnx import Readable
from posjax.scheme import Ids, Params, PRNGKey, Scheme


class PartitionedLinear(nnx.Module):
  """[x_c | x_p] -> [W_c x_c | W_p x_p], each with a bias of its own where `use_bias` says so.

  `widths` and `out_widths` are those of the content and of the position half, and `names` those of
  the axes of each kernel, see `models.axes`. It computes in `dtype`, as `axes.linear` does.
  """

  def __init__(
    self,
    widths: tuple[int, int],
    out_widths: tuple[int, int],
    *,
    names: tuple[axes.Name, axes.Name] = axes.WHOLE,
    use_bias: bool = True,
    dtype: Any = None,
    rngs: nnx.Rngs,
  ):
    if min(*widths, *out_widths) < 1:
      raise ValueError(
        f'Both halves must have a width of at least 1, but got {widths} and {out_widths}.'
      )
    options: Any = {'names': names, 'use_bias': use_bias, 'dtype': dtype, 'rngs': rngs}
    self.content = axes.linear(widths[0], out_widths[0], **options)
    self.position = axes.linear(widths[1], out_widths[1], **options)
    self.content_width = widths[0]

  def __call__(self, x: Float[Array, '*B in']) -> Float[Array, '*B out']:
    """The halves of the result, side by side like those of `x`."""
    content, position = x[..., : self.content_width], x[..., self.content_width :]
    return jnp.concatenate([self.content(content), self.position(position)], axis=-1)


class PartitionedFeedForward(nnx.Module):
  """down(activation(up(x))), half by half; each half has half of `ff_width`."""

  def __init__(
    self,
    width: int,
    position_width: int,
    ff_width: int,
    activation: str = 'relu',
    *,
    dtype: Any = None,
    rngs: nnx.Rngs,
  ):
    halves, hidden = (width - position_width, position_width), (_half(ff_width),) * 2
    self.activation = activation_named(activation)
    inner, outer = (axes.WIDTH, axes.HIDDEN), (axes.HIDDEN, axes.WIDTH)
    self.up = PartitionedLinear(halves, hidden, names=inner, dtype=dtype, rngs=rngs)
    self.down = PartitionedLinear(hidden, halves, names=outer, dtype=dtype, rngs=rngs)

  def __call__(self, x: Float[Array, 'B T M']) -> Float[Array, 'B T M']:
    """The same for every token."""
    return self.down(self.activation(self.up(x)))


class PartitionedAttention(Readable):
  """Self-attention in which every head is half content and half position, without biases.

  Args:
    width: M, of the input and the output.
    position_width: P, the last of them, which are the position's.
    num_heads: H.
    scheme: what else enters, besides the position half. One that rotates or replaces q . k may let
      the halves cross; one that adds to the logits does not.
    head_dim: D, both halves of a head, even; by default M / H.
    causal: whether a token sees only what is not after it.
    scale: factor of q . k; by default 1/sqrt(D), as in the paper. The authors' code of 2018 has
      1/sqrt(M).
    content: whether the content half of the logits counts; False silences it, at test time say.
      The weights are the same either way, and the values whole.
    position: the same for the position half.
    dropout_rate: share of the attention weights dropped in calls, unless they are deterministic.
    model_params: whether this layer holds the parameters that the scheme shares between layers.
    model_places: whether the model calls the scheme's `ids` and `embed` before its first layer.
    dtype: to compute the projections in; by default that of input and weights.
    implementation: as in `attend`.
    rngs: `nnx.Rngs` with a `params` stream.

  Raises:
    ValueError: if sizes do not fit, or both halves are silent.
  """

  def __init__(
    self,
    width: int,
    position_width: int,
    num_heads: int,
    scheme: Scheme = Scheme(),  # noqa: B008 (immutable)
    *,
    head_dim: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    content: bool = True,
    position: bool = True,
    dropout_rate: float = 0.0,
    model_params: bool = True,
    model_places: bool = False,
    dtype: Any = None,
    implementation: str | None = None,
    rngs: nnx.Rngs,
  ):
    if not (content or position):
      raise ValueError(
        'Attention needs content or position, but got False for both content and position.'
      )
    self.layer = layers.make(
      width=width,
      num_heads=num_heads,
      scheme=scheme,
      head_dim=head_dim,
      num_kv_heads=None,
      causal=causal,
      window=None,
      logit_cap=None,
      dropout_rate=dropout_rate,
      scale=scale,
      implementation=implementation,
      model_places=model_places,
    )
    dims = self.layer.dims
    self.counts = (content, position)
    halves = (width - position_width, position_width)
    heads = (num_heads * _half(dims.head_dim),) * 2
    inner: Any = {'names': (axes.WIDTH, axes.HEADS), 'use_bias': False, 'dtype': dtype}
    inner['rngs'] = rngs
    self.query = PartitionedLinear(halves, heads, **inner)
    self.key = PartitionedLinear(halves, heads, **inner)
    self.value = PartitionedLinear(halves, heads, **inner)
    outer: Any = {**inner, 'names': (axes.HEADS, axes.WIDTH)}
    self.out = PartitionedLinear(heads, halves, **outer)
    make = lambda field: axes.parameters(scheme, field, rngs.params(), dims)
    self.scheme_params = make('init')
    self.model_params = make('init_model') if model_params else None

  def __call__(
    self,
    x: Float[Array, 'B T M'],
    pos: Ids,
    *,
    segments: Int[Array, '...'] | None = None,
    order: Num[Array, '...'] | None = None,
    mask: Bool[Array, '...'] | None = None,
    model_params: Params | None = None,
    dropout_key: PRNGKey | None = None,
    deterministic: bool = False,
  ) -> Float[Array, 'B T M']:
    """The layer's output, [content | position], before any residual; arguments as in `Attention`.

    Raises:
      ValueError: if shapes do not fit, or an argument lacks what it needs.
    """
    held = None if self.model_params is None else self.model_params()
    params = parameters.merged(self.layer.scheme, self.scheme_params(), held, model_params)
    q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))
    q = jnp.concatenate(
      [half * counts for half, counts in zip(jnp.split(q, 2, axis=-1), self.counts, strict=True)],
      axis=-1,
    )
    tokens = Tokens(x, pos, segments, order)
    key = arguments.chosen_key(self.layer.dropout_rate, dropout_key, deterministic)
    mixed = layers.attention(self.layer, params, Heads(q, k, v), tokens, mask=mask, dropout_key=key)
    halves = (half.reshape(*x.shape[:-1], -1) for half in jnp.split(mixed, 2, axis=-1))
    return self.out(jnp.concatenate(list(halves), axis=-1))

  def _heads(self, both: Float[Array, 'B T both']) -> Float[Array, 'B T H D']:
    """[all content halves | all position halves] as heads that are [content | position] each."""
    heads = (*both.shape[:-1], self.layer.dims.num_heads, -1)
    halves = (half.reshape(heads) for half in jnp.split(both, 2, axis=-1))
    return jnp.concatenate(list(halves), axis=-1)


def _half(width: int) -> int:
  """Half of a width that content and position share.

  Raises:
    ValueError: if it is odd.
  """
  if width % 2:
    raise ValueError(f'Two halves need an even width, but got {width}.')
  return width // 2
