"""A Transformer encoder of texts, real or complex, pooled to one vector a row."""

from typing import Any

from flax import nnx
from jaxtyping import Array, Bool, Inexact, Int

from posjax.experiment.models import pooling as pool
from posjax.experiment.models.blocks import Layer, Stack
from posjax.experiment.models.complex_encoder import ComplexStack
from posjax.experiment.models.fields import COMPLEX, Field
from posjax.scheme import Ids, Params, PRNGKey, Scheme


class TransformerEncoder(nnx.Module):
  """Layers of self-attention and feed-forward over the words; their outputs, pooled.

  Args:
    field: real or complex numbers.
    schemes: a pattern that repeats over the layers.
    width: M.
    num_layers: L; the pattern must divide it.
    num_heads: H; must divide the width.
    ff_width: of the feed-forward part.
    pre_norm: norm before each part, and once at the end, instead of after each.
    activation: a name in jax.nn.
    dropout_rate: of attention weights and of what each part adds.
    pooling: 'mean', 'max' or 'last', over the words.
    rngs: a stream for `params`.

  Raises:
    ValueError: if sizes do not divide, or a name is unknown.
  """

  def __init__(
    self,
    field: Field,
    schemes: tuple[Scheme, ...],
    *,
    width: int,
    num_layers: int,
    num_heads: int,
    ff_width: int,
    pre_norm: bool,
    activation: str,
    dropout_rate: float,
    pooling: str,
    rngs: nnx.Rngs,
  ):
    self.pooling = pool.check(pooling)
    self.features = width
    block: dict[str, Any] = {
      'width': width,
      'num_heads': num_heads,
      'ff_width': ff_width,
      'pre_norm': pre_norm,
      'activation': activation,
      'dropout_rate': dropout_rate,
    }
    if field is COMPLEX:
      self.stack = ComplexStack(schemes, num_layers, rngs=rngs, **block)
    else:
      pattern = tuple(Layer(scheme) for scheme in schemes)
      plain: dict[str, Any] = {
        'num_kv_heads': None,
        'causal': False,
        'cross': False,
        'gated': False,
      }
      plain |= {'norm': 'LayerNorm', 'unroll': num_layers}
      self.stack = Stack(pattern, num_layers, rngs=rngs, **block, **plain)
    self.norm = field.norm(width, rngs=rngs) if pre_norm else None

  def __call__(
    self,
    x: Inexact[Array, 'B T M'],
    real: Bool[Array, 'B T'],
    *,
    ids: list[Ids],
    segments: Int[Array, 'B T'],
    model_params: list[Params],
    train_key: PRNGKey | None,
  ) -> Inexact[Array, 'B M']:
    """One vector a row; `real` is False in the padding.

    Args:
      x: embeddings.
      real: where a token is one.
      ids: after place 0, one entry per layer of the pattern.
      segments: 0 in the padding.
      model_params: what the schemes share between layers, likewise.
      train_key: random key of dropout.
    """
    tokens: dict[str, Any] = {
      'segments': segments,
      'model_params': model_params,
      'train_key': train_key,
    }
    x, _ = self.stack(pool.silence(x, real), ids, **tokens)
    return pool.POOLINGS[self.pooling](x if self.norm is None else self.norm(x), real)
