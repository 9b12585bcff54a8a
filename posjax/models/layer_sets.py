"""The layers that a model is made of: one set for real numbers, and one for complex numbers.

Blocks and encoders take the set as an argument, so that each is written once and is complex where
its embeddings are. Real layers are Flax's, complex ones those of `complex_layers`.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Inexact

from posjax import nnx as adapter
from posjax.arguments import nearest
from posjax.keys import check_value
from posjax.models import axes, complex_layers
from posjax.scheme import Dims, PRNGKey, Scheme, declares

Norm = Literal['LayerNorm', 'RMSNorm', 'BatchNorm']


class LayerSet(NamedTuple):
  """Constructors of layers for numbers of one kind.

  Attributes:
    dense: `(width, out_width, names=, rngs=) -> layer`, without activation; the names are those of
      the axes of its kernel, see `models.axes`.
    conv: `(width, out_width, kernel_size, rngs=) -> layer`, without padding.
    norm: `(name) -> (width, rngs=) -> layer`.
    attention: the constructor of `posjax.nnx.Attention`, or one with the same arguments.
    cross: `(scheme) -> scheme`: for cross-attention, from one that is written for real heads.
    rnn: `(width, hidden_width, rngs=) -> recurrent cell`; so are lstm and gru.
    lstm: a cell with gates and a memory.
    gru: a cell with gates.
    apply: `(function, *x) -> y`: a function of real numbers, applied to each number, or to real
      and imaginary parts apart.
    parts: how many real numbers one number is.
    dtype: `(dtype) -> dtype`: of numbers of this kind whose parts have that dtype.
  """

  dense: Callable[..., nnx.Module]
  conv: Callable[..., nnx.Module]
  norm: Callable[[str], Callable[..., nnx.Module]]
  attention: Callable[..., adapter.Attention]
  cross: Callable[[Scheme], Scheme]
  rnn: Callable[..., nnx.RNNCellBase]
  lstm: Callable[..., nnx.RNNCellBase]
  gru: Callable[..., nnx.RNNCellBase]
  apply: Callable[..., Array]
  parts: int
  dtype: Callable[[Any], Any]


def activation_named(name: str) -> Callable[[Array], Array]:
  """The activation of that name in jax.nn, for configs, which can only hold names.

  Raises:
    ValueError: if there is none of that name, or it does not turn an array into one of its shape.
  """
  if not (name.isidentifier() and callable(getattr(jax.nn, name, None))):
    near = nearest(name, [each for each in dir(jax.nn) if _is_activation(each)])
    hint = f'; did you mean {near!r}?' if near else '.'
    raise ValueError(f'model.activation must be a name in jax.nn, but got {name!r}{hint}')
  if not _is_activation(name):
    raise ValueError(
      'model.activation must turn an array into another of its shape, but got '
      f"'{name}', which does not."
    )
  return getattr(jax.nn, name)


@functools.cache
def _is_activation(name: str) -> bool:
  function, x = getattr(jax.nn, name), jax.ShapeDtypeStruct((2, 3), jnp.float32)
  try:
    y = jax.eval_shape(function, x)
  except Exception:  # whatever it needs in place of an array
    return False
  return getattr(y, 'shape', None) == x.shape and y.dtype == x.dtype


def _norm(name: str) -> Callable[..., nnx.Module]:
  check_value('model.norm', Norm, name)
  return getattr(nnx, name)


def _complex_norm(name: str) -> Callable[..., nnx.Module]:
  if name != 'LayerNorm':
    raise ValueError(f"The norm of complex layers must be 'LayerNorm', but got {name!r}.")
  return complex_layers.LayerNorm


REAL = LayerSet(
  dense=axes.linear,
  conv=lambda width, out_width, kernel_size, *, rngs: nnx.Conv(
    width, out_width, (kernel_size,), padding='VALID', rngs=rngs
  ),
  norm=_norm,
  attention=adapter.Attention,
  cross=lambda scheme: scheme,
  rnn=nnx.SimpleCell,
  lstm=nnx.OptimizedLSTMCell,  # nnx.LSTMCell with its gates in one product: the same, faster
  gru=nnx.GRUCell,
  apply=lambda function, *x: function(*x),
  parts=1,
  dtype=lambda dtype: dtype,
)
COMPLEX = LayerSet(
  dense=complex_layers.Dense,
  conv=complex_layers.Conv,
  norm=_complex_norm,
  attention=complex_layers.Attention,
  cross=complex_layers.with_modulus,
  rnn=complex_layers.RNNCell,
  lstm=complex_layers.LSTMCell,
  gru=complex_layers.GRUCell,
  apply=complex_layers.apart,
  parts=2,
  dtype=lambda dtype: jnp.promote_types(dtype, jnp.complex64),
)


def layer_set_of(schemes: Iterable[Scheme], dims: Dims) -> LayerSet:
  """The layers of a model with these schemes: complex if one of them makes complex embeddings."""
  return COMPLEX if any(is_complex(scheme, dims) for scheme in schemes) else REAL


def is_complex(scheme: Scheme, dims: Dims) -> bool:
  """Whether a scheme makes complex numbers of real embeddings, in a model of these sizes."""
  if not any(declares(part, 'embed') for part in scheme.parts or (scheme,)):
    return False
  axes = scheme.traits.axes or 1
  pos = (1, 1, axes) if axes > 1 else (1, 1)

  def embedded(key, x):
    ids = scheme.ids(jnp.zeros(pos, jnp.int32), None)
    return scheme.embed(scheme.init_model(key, dims), x, jnp.zeros((1, 1), jnp.int32), ids)

  x = jax.ShapeDtypeStruct((1, 1, dims.width), jnp.float32)
  return jnp.iscomplexobj(jax.eval_shape(embedded, jax.random.key(0), x))


def real_parts(x: Inexact[Array, '*B N']) -> Float[Array, '*B n']:
  """[Re x | Im x] of complex features; real ones as they are.

  Example:
    >>> real_parts(jnp.array([[1 + 3j, 2 + 4j]]))
    Array([[1., 2., 3., 4.]], dtype=float32)
  """
  return jnp.concatenate([x.real, x.imag], axis=-1) if jnp.iscomplexobj(x) else x


def split_key(key: PRNGKey | None, count: int = 2) -> list[PRNGKey | None]:
  """So many keys of one, or as many times None: a random key that may be absent stays so."""
  return [None] * count if key is None else list(jax.random.split(key, count))


def dropout(
  x: Inexact[Array, '*shape'], rate: float, key: PRNGKey | None, *, shared: bool = False
) -> Inexact[Array, '*shape']:
  """Drops numbers at that rate, a complex number as a whole; none without a key.

  Args:
    x: what loses numbers.
    rate: the share of them.
    key: random key.
    shared: whether all tokens of a text lose the same features, where `x` is [B, T, M].
  """
  return nnx.Dropout(rate, broadcast_dims=(1,) if shared else ())(
    x, deterministic=key is None, rngs=key
  )
