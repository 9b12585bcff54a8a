"""The linear maps of an attention layer and the norms of its heads, without their weights.

Both Flax layers make the same modules from one `Plan`, and so hold the same tree of weights.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from posjax.arguments import Positive, Size, Whole, read, shown
from posjax.math.heads import at_least_float32
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
    offset: what is added to the weight before it multiplies: 1 in Gemma, whose weights begin at 0.
  """

  kind: Literal['rms', 'layer'] = 'rms'
  epsilon: Positive = 1e-6
  heads: Literal['alike', 'apart', 'together'] = 'alike'
  use_bias: bool = False
  offset: float = 0.0


class Latent(NamedTuple):
  """Keys and values of narrow vectors, one for each token, as DeepSeek's latent attention has them.

  narrow = norm(W x) [R]; the key of a head is its own map of `narrow` behind `shared` dimensions
  that are the same for all heads, a map of x. With `rope(fraction=shared / D)`, which rotates
  the first dimensions of a head, these alone are rotated. Values are maps of `narrow`. Norms are
  RMS norms. Only maps of x to narrow vectors and to the shared dimensions have biases where
  `use_bias` is set. Caches hold whole keys and values.

  Attributes:
    rank: R, the width of the narrow vector of keys and values.
    shared: the dimensions of a key that all heads share, fewer than D; 0 for none.
    query_rank: the width of a narrow vector of which queries are made; None: they are made of x.
    epsilon: of the norms of narrow vectors.
  """

  rank: Size
  shared: Whole = 0
  query_rank: Size | None = None
  epsilon: Positive = 1e-6


class Linear(NamedTuple):
  """A linear map from some axes to others.

  Attributes:
    inputs: a letter for each axis of the input: M, H (also the key heads), D (also the width of a
      value) or R (a narrow vector).
    outputs: the same for the output.
    sizes: of the input's axes, and of the output's.
    use_bias: whether the output has a bias.
  """

  inputs: str
  outputs: str
  sizes: tuple[tuple[int, ...], tuple[int, ...]]
  use_bias: bool


class Weight(NamedTuple):
  """The weight of a norm.

  Attributes:
    norm: what is computed with it.
    axes: a letter for each of its axes, as in `Linear`.
    shape: its shape, and that of the bias.
  """

  norm: Norm
  axes: str
  shape: tuple[int, ...]


class Plan(NamedTuple):
  """The modules of a layer by their names, without weights.

  Attributes:
    linears: the linear maps.
    norms: the weights of the norms.
  """

  linears: dict[str, Linear]
  norms: dict[str, Weight]


def plan(
  dims: Dims,
  value_dim: int,
  *,
  use_bias: bool,
  out_bias: bool | None,
  qk_norm: str | Norm | None,
  latent: Latent | None,
  gated: bool = False,
) -> Plan:
  """The modules of a layer.

  Args:
    dims: the sizes of the layer.
    value_dim: E, the width of a value.
    use_bias: whether queries, keys and values have biases.
    out_bias: whether the output has one; None: as the others.
    qk_norm: 'rms', 'layer', a `Norm`, or None.
    latent: the narrow vectors of which keys and values are made; None: they are made of x.
    gated: whether a map of x says which share of each number of the heads is let through.

  Raises:
    TypeError: if an argument is of another type.
    ValueError: if it has the type, but not a value that is allowed.
  """
  latent = _read_latent(latent, dims)
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
  if read(gated, bool, 'gated'):
    linears['gate'] = Linear('M', 'HD', ((dims.width,), (heads, value_dim)), use_bias)
  norms = {}
  if latent is not None:
    _make_latent(linears, norms, latent, dims, use_bias)
  if norm is None:
    return Plan(linears, norms)

  def weight(count):
    alike = norm.heads == 'alike'
    return Weight(norm, 'D' if alike else 'HD', (width,) if alike else (count, width))

  return Plan(linears, norms | {'query_norm': weight(heads), 'key_norm': weight(kv_heads)})


def _make_latent(
  linears: dict[str, Linear], norms: dict[str, Weight], latent: Latent, dims: Dims, use_bias: bool
) -> None:
  """Adds the maps to narrow vectors, and makes queries, keys and values of these."""

  def down(name, rank):
    linears[name] = Linear('M', 'R', ((dims.width,), (rank,)), use_bias)
    norms[f'{name}_norm'] = Weight(Norm('rms', latent.epsilon), 'R', (rank,))

  def up(name, rank, left_out=0):
    heads, width = linears[name].sizes[1]
    linears[name] = Linear('R', 'HD', ((rank,), (heads, width - left_out)), False)

  linears['query'] = linears['query']._replace(use_bias=False)
  if latent.query_rank is not None:
    down('query_down', latent.query_rank)
    up('query', latent.query_rank)
  down('kv_down', latent.rank)
  up('key', latent.rank, latent.shared)
  up('value', latent.rank)
  if latent.shared:
    linears['shared_key'] = Linear('M', 'D', ((dims.width,), (latent.shared,)), use_bias)


def _read_latent(given: Latent | None, dims: Dims) -> Latent | None:
  """The fields as Python's numbers.

  Raises:
    TypeError: if it is neither None nor a `Latent`, or a field is of another type.
    ValueError: if a field is out of its range.
  """
  if given is None:
    return None
  if not isinstance(given, Latent):
    raise TypeError(f'latent must be a Latent or None, but got {shown(given)}.')
  kinds = Latent.__annotations__.items()
  latent = Latent(*(read(getattr(given, name), kind, f'latent.{name}') for name, kind in kinds))
  if latent.shared >= dims.head_dim:
    raise ValueError(
      f'latent.shared must be below head_dim, {dims.head_dim}, so that a key has dimensions of its '
      f'own head, but got {latent.shared}.'
    )
  return latent


Parts = Callable[[str], Callable[[Array], Array] | None]  # the module of a name, where it is there


def queries(parts: Parts, x: Array) -> Array:
  """The queries [B, T, H, D] of the input."""
  return _through(parts, ('query_down', 'query_down_norm', 'query', 'query_norm'), x)


def keys_and_values(parts: Parts, x: Array) -> tuple[Array, Array]:
  """The keys [B, S, K, D] and the values [B, S, K, E] of the input."""
  narrow = _through(parts, ('kv_down', 'kv_down_norm'), x)
  k, shared = _through(parts, ('key',), narrow), parts('shared_key')
  if shared is not None:
    one = shared(x)[:, :, None]
    one = jnp.broadcast_to(one, (*k.shape[:-1], one.shape[-1]))
    k = jnp.concatenate([one, k], axis=-1)
  return _through(parts, ('key_norm',), k), _through(parts, ('value',), narrow)


def output(parts: Parts, x: Array, attended: Array) -> Array:
  """The output [B, T, M] of the heads [B, T, H, E], behind the gate where the layer has one."""
  gate = parts('gate')
  if gate is not None:
    attended = (attended * jax.nn.sigmoid(gate(x))).astype(attended.dtype)
  return _through(parts, ('out',), attended)


def _through(parts: Parts, names: tuple[str, ...], x: Array) -> Array:
  for name in names:
    part = parts(name)
    x = x if part is None else part(x)
  return x


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
  norm: Norm, x: Inexact[Array, '...'], scale: Array, bias: Array | None
) -> Inexact[Array, '...']:
  """The input after its norm, computed in float32 at least, in the dtype of the input.

  Args:
    norm: what is computed.
    x: queries or keys [B, T, H, D], or narrow vectors [B, T, R].
    scale: the weight, [D], [H, D] or [R].
    bias: of the same shape, or None.

  Example:
    >>> x = jnp.array([3.0, 4.0]).reshape(1, 1, 1, 2)
    >>> normalized(Norm(epsilon=1e-12), x, jnp.ones(2), None).ravel() * 12.5**0.5
    Array([3., 4.], dtype=float32)
  """
  axes = (-2, -1) if norm.heads == 'together' else (-1,)
  wide = x.astype(at_least_float32(x))
  if norm.kind == 'layer':
    wide = wide - wide.mean(axes, keepdims=True)
  square = (wide * wide.conj()).real.mean(axes, keepdims=True)
  whole = lambda weight: jnp.broadcast_to(weight.astype(wide.dtype), x.shape)
  out = wide * jax.lax.rsqrt(square + norm.epsilon) * (whole(scale) + norm.offset)
  return (out if bias is None else out + whole(bias)).astype(x.dtype)
