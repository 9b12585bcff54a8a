"""The linear maps of an attention layer and the norms of its heads, without their weights.

Both Flax layers make the same modules from one `Plan`, and so hold the same tree of weights.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from posjax.arguments import Positive, read, shown
from posjax.scheme import Dims


class Norm(NamedTuple):
  """A norm of the queries and of the keys after their projections, before the scheme's place 2.

  Attributes:
    kind: 'rms' divides by the root of the mean square, 'layer' subtracts the mean before it.
    epsilon: what is added to the mean square.
    heads: 'alike' normalizes each head, with one weight [D] for all heads (Qwen 3, Gemma 3);
      'apart' normalizes each head, with weights of its own, [H, D] (Command R+); 'together'
      normalizes all heads as one vector, with weights [H, D] (OLMo 2).
    use_bias: whether a bias is added, with the shape of the weight.
  """

  kind: Literal['rms', 'layer'] = 'rms'
  epsilon: Positive = 1e-6
  heads: Literal['alike', 'apart', 'together'] = 'alike'
  use_bias: bool = False


class Linear(NamedTuple):
  """A linear map from some axes to others.

  Attributes:
    inputs: a letter for each axis of the input: M, H (also the key heads) or D (also the width of
      a value).
    outputs: the same for the output.
    sizes: of the input's axes, and of the output's.
    use_bias: whether the output has a bias.
  """

  inputs: str
  outputs: str
  sizes: tuple[tuple[int, ...], tuple[int, ...]]
  use_bias: bool


class Plan(NamedTuple):
  """The modules of a layer by their names, without weights.

  Attributes:
    linears: the linear maps, in the order in which they draw their weights.
    norms: the shape of the weight of each norm.
    norm: the norm of queries and keys; None where there is none.
  """

  linears: dict[str, Linear]
  norms: dict[str, tuple[int, ...]]
  norm: Norm | None


def plan(
  dims: Dims, value_dim: int, *, use_bias: bool, out_bias: bool | None, qk_norm: str | Norm | None
) -> Plan:
  """The modules of a layer.

  Args:
    dims: the sizes of the layer.
    value_dim: E, the width of a value.
    use_bias: whether queries, keys and values have biases.
    out_bias: whether the output has one; None: as the others.
    qk_norm: 'rms', 'layer', a `Norm`, or None.

  Raises:
    TypeError: if an argument is of another type.
    ValueError: if it has the type, but not a value that is allowed.
  """
  use_bias = read(use_bias, bool, 'use_bias')
  out_bias = read(out_bias, bool | None, 'out_bias')
  norm = _read_norm(qk_norm)
  heads, width, kv_heads = dims.num_heads, dims.head_dim, dims.num_kv_heads or dims.num_heads
  linears = {
    'query': Linear('M', 'HD', ((dims.width,), (heads, width)), use_bias),
    'key': Linear('M', 'HD', ((dims.width,), (kv_heads, width)), use_bias),
    'value': Linear('M', 'HD', ((dims.width,), (kv_heads, value_dim)), use_bias),
    'out': Linear(
      'HD', 'M', ((heads, value_dim), (dims.width,)), use_bias if out_bias is None else out_bias
    ),
  }
  if norm is None:
    return Plan(linears, {}, None)
  shape = lambda count: (width,) if norm.heads == 'alike' else (count, width)
  return Plan(linears, {'query_norm': shape(heads), 'key_norm': shape(kv_heads)}, norm)


def _read_norm(given: str | Norm | None) -> Norm | None:
  """The norm that is meant; a string names its kind.

  Raises:
    TypeError: if it is neither None nor a string nor a `Norm`, or a field is of another type.
    ValueError: if a field has another value.
  """
  if given is None:
    return None
  if not isinstance(given, str | Norm):
    raise TypeError(f"qk_norm must be None, 'rms', 'layer' or a Norm, but got {shown(given)}.")
  if isinstance(given, str):
    return Norm(read(given, Literal['rms', 'layer'], 'qk_norm'))
  kinds = Norm.__annotations__.items()
  return Norm(*(read(getattr(given, name), kind, f'qk_norm.{name}') for name, kind in kinds))


def normalized(
  norm: Norm, x: Inexact[Array, 'B T H D'], scale: Array, bias: Array | None
) -> Inexact[Array, 'B T H D']:
  """The heads after their norm, computed in float32 at least, in the dtype of the heads.

  Args:
    norm: what is computed.
    x: queries or keys.
    scale: the weight, [D] or [H, D].
    bias: of the same shape, or None.

  Example:
    >>> x = jnp.array([3.0, 4.0]).reshape(1, 1, 1, 2)
    >>> normalized(Norm(epsilon=1e-12), x, jnp.ones(2), None).ravel() * 12.5**0.5
    Array([3., 4.], dtype=float32)
  """
  axes = (-2, -1) if norm.heads == 'together' else (-1,)
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  if norm.kind == 'layer':
    wide = wide - wide.mean(axes, keepdims=True)
  square = (wide * wide.conj()).real.mean(axes, keepdims=True)
  whole = lambda weight: jnp.broadcast_to(weight.astype(wide.dtype), x.shape)
  out = wide * jax.lax.rsqrt(square + norm.epsilon) * whole(scale)
  return (out if bias is None else out + whole(bias)).astype(x.dtype)
