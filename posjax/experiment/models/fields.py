"""Real and complex numbers: for each, the layers that an encoder is made of.

So that an encoder is written once, and is complex where its embeddings are. Real layers are Flax's,
complex ones those of `complex_layers`. N features of complex numbers are 2 N real ones in the end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Inexact

from posjax.experiment.models import complex_layers
from posjax.scheme import Dims, Scheme

Activation = Callable[[Array], Array]


class Field(NamedTuple):
  """Numbers of one kind.

  Attributes:
    dense: `(width, out_width, rngs=) -> layer`, without activation.
    conv: `(width, out_width, kernel_size, rngs=) -> layer`, narrow (no padding).
    norm: `(width, rngs=) -> layer norm`.
    rnn: `(width, hidden_width, rngs=) -> recurrent cell`; so are lstm and gru.
    lstm: with gates and a memory.
    gru: with gates.
    apply: `(function, x) -> x`: a real function of each number, or of its two parts apart.
    parts: how many real numbers one is.
  """

  dense: Callable[..., nnx.Module]
  conv: Callable[..., nnx.Module]
  norm: Callable[..., nnx.Module]
  rnn: Callable[..., nnx.RNNCellBase]
  lstm: Callable[..., nnx.RNNCellBase]
  gru: Callable[..., nnx.RNNCellBase]
  apply: Callable[[Any, Array], Array]
  parts: int


REAL = Field(
  dense=nnx.Linear,
  conv=lambda width, out_width, kernel_size, *, rngs: nnx.Conv(
    width, out_width, (kernel_size,), padding='VALID', rngs=rngs
  ),
  norm=nnx.LayerNorm,
  rnn=nnx.SimpleCell,
  lstm=nnx.OptimizedLSTMCell,  # nnx.LSTMCell with its gates in one product: the same, faster
  gru=nnx.GRUCell,
  apply=lambda function, x: function(x),
  parts=1,
)
COMPLEX = Field(
  dense=complex_layers.Dense,
  conv=complex_layers.Conv,
  norm=complex_layers.LayerNorm,
  rnn=complex_layers.RNNCell,
  lstm=complex_layers.LSTMCell,
  gru=complex_layers.GRUCell,
  apply=complex_layers.apart,
  parts=2,
)


def real_parts(x: Inexact[Array, 'B N']) -> Float[Array, 'B n']:
  """[Re x | Im x] of complex features; real ones as they are.

  Example:
    >>> real_parts(jnp.array([[1 + 3j, 2 + 4j]]))
    Array([[1., 2., 3., 4.]], dtype=float32)
  """
  return jnp.concatenate([x.real, x.imag], axis=-1) if jnp.iscomplexobj(x) else x


def dropped(x: Inexact[Array, '...'], rate: float, key: Any) -> Inexact[Array, '...']:
  """Dropout, of both parts of a number together; none without a key."""
  return nnx.Dropout(rate)(x, deterministic=key is None, rngs=key)


def named_activation(name: str) -> Activation:
  """A function in jax.nn.

  Raises:
    ValueError: if there is none of that name.
  """
  found = getattr(jax.nn, name, None)
  if not callable(found):
    raise ValueError(f'The activation must be a name in jax.nn, but got {name!r}.')
  return found


def is_complex(scheme: Scheme) -> bool:
  """Whether a scheme makes complex numbers of real embeddings."""

  def embedded(key, x):
    params = scheme.init_model(key, Dims(2, 1, 2, 1, vocab=1))
    zeros = jnp.zeros((1, 1), jnp.int32)
    return scheme.embed(params, x, zeros, zeros)

  x = jax.ShapeDtypeStruct((1, 1, 2), jnp.float32)
  return jnp.iscomplexobj(jax.eval_shape(embedded, jax.random.key(0), x))
