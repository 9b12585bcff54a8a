"""A Transformer encoder of complex numbers.

Queries, keys and values are complex dense layers of the input; the scheme turns their products into
real logits (eq. 14), and the weights then mix complex values. The feed-forward part is two complex
dense layers. Norms, activations and residuals as in a real Transformer, on each part.

B batch, T tokens, M width.

Reference: Wang et al. 2020, https://arxiv.org/abs/1912.12333, section 3.3 and eqs. 10 and 14. The
authors' classifiers (iclr-complex-order/complex-order 4c4ec246) take one real layer for both parts,
leave out residuals and norms of one part, and run the layer twice with the parts exchanged: errors,
not followed here.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Complex, Int

from posjax.experiment.models.complex_layers import Dense, LayerNorm
from posjax.experiment.models.fields import dropped, named_activation
from posjax.layers import layer as layers
from posjax.layers import parameters
from posjax.layers.tokens import Heads, Tokens
from posjax.nnx import Parameters
from posjax.scheme import Ids, Params, PRNGKey, Scheme


class Attention(nnx.Module):
  """Self-attention of complex tokens; the logits are made real by the scheme.

  Args:
    width: M.
    num_heads: must divide the width.
    scheme: one with complex embeddings, or a chain with it.
    dropout_rate: of the attention weights.
    rngs: a stream for `params`.
  """

  def __init__(
    self, width: int, num_heads: int, scheme: Scheme, *, dropout_rate: float, rngs: nnx.Rngs
  ):
    self.layer = layers.make(
      width=width,
      num_heads=num_heads,
      scheme=scheme,
      head_dim=None,
      num_kv_heads=None,
      causal=False,
      window=None,
      logit_cap=None,
      dropout_rate=dropout_rate,
      scale=None,
      implementation=None,
    )
    make = lambda: Dense(width, width, rngs=rngs)
    self.query, self.key, self.value, self.out = make(), make(), make(), make()
    self.scheme_params = Parameters(scheme, scheme.init(rngs.params(), self.layer.dims))

  def __call__(
    self,
    z: Complex[Array, 'B T M'],
    pos: Ids,
    segments: Int[Array, 'B T'],
    model_params: Params,
    dropout_key: PRNGKey | None,
  ) -> Complex[Array, 'B T M']:
    """The layer's output, before any residual."""
    params = parameters.merged(self.layer.scheme, self.scheme_params(), None, model_params)
    shape = (*z.shape[:-1], self.layer.dims.num_heads, -1)
    heads = Heads(*(make(z).reshape(shape) for make in (self.query, self.key, self.value)))
    order = jnp.arange(z.shape[1], dtype=jnp.int32)
    tokens = Tokens(z, pos, segments, order)
    mixed = layers.attention(self.layer, params, heads, tokens, dropout_key=dropout_key)
    return self.out(mixed.reshape(z.shape))


class Block(nnx.Module):
  """Self-attention and feed-forward, each with its norm and residual."""

  def __init__(
    self,
    scheme: Scheme,
    *,
    width: int,
    num_heads: int,
    ff_width: int,
    pre_norm: bool,
    activation: str,
    dropout_rate: float,
    rngs: nnx.Rngs,
  ):
    self.attention = Attention(width, num_heads, scheme, dropout_rate=dropout_rate, rngs=rngs)
    function = named_activation(activation)
    self.up = Dense(width, ff_width, activation=function, rngs=rngs)
    self.down = Dense(ff_width, width, rngs=rngs)
    self.norms = nnx.List([LayerNorm(width, rngs=rngs) for _ in range(2)])
    self.pre_norm, self.dropout_rate = pre_norm, dropout_rate

  def __call__(
    self,
    z: Complex[Array, 'B T M'],
    pos: Ids,
    segments: Int[Array, 'B T'],
    model_params: Params,
    train_key: PRNGKey | None,
  ) -> Complex[Array, 'B T M']:
    """The tokens' next state."""
    keys = [None] * 3 if train_key is None else jax.random.split(train_key, 3)
    attend = lambda y: self.attention(y, pos, segments, model_params, keys[0])
    feed_forward = lambda y: self.down(self.up(y))
    for part, norm, key in zip((attend, feed_forward), self.norms, keys[1:], strict=True):
      if self.pre_norm:
        z = z + dropped(part(norm(z)), self.dropout_rate, key)
      else:
        z = norm(z + dropped(part(z), self.dropout_rate, key))
    return z


class ComplexStack(nnx.Module):
  """L blocks, with the arguments of `blocks.Stack` that there are here; each its own.

  Args:
    schemes: a pattern that repeats over the layers.
    num_layers: L; the pattern must divide it.
    rngs: a stream for `params`.
    block: further arguments of `Block`.

  Raises:
    ValueError: if the pattern does not divide the layers.
  """

  def __init__(self, schemes: tuple[Scheme, ...], num_layers: int, *, rngs: nnx.Rngs, **block: Any):
    repeats, rest = divmod(num_layers, len(schemes))
    if rest or repeats < 1:
      raise ValueError(
        f'The pattern of {len(schemes)} layers must divide num_layers, but got {num_layers}.'
      )
    self.blocks = nnx.List([Block(scheme, rngs=rngs, **block) for scheme in schemes * repeats])

  def __call__(
    self,
    z: Complex[Array, 'B T M'],
    ids: list[Ids],
    *,
    segments: Int[Array, 'B T'],
    model_params: list[Params],
    train_key: PRNGKey | None,
  ) -> tuple[Complex[Array, 'B T M'], None]:
    """Runs all layers; `ids` and `model_params` have one entry per layer of the pattern.

    Returns:
      The tokens' last state, and no cache.
    """
    for i, block in enumerate(self.blocks):
      key = None if train_key is None else jax.random.fold_in(train_key, i)
      at = i % len(ids)
      z = block(z, ids[at], segments, model_params[at], key)
    return z, None
