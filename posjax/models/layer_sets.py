"""The layers that a model is made of: one set for real numbers, and one for complex numbers.

Blocks and encoders take the set as an argument, so that each is written once and is complex where
its embeddings are. Real layers are Flax's, complex ones those of `complex_layers`.

The set also says in which dtype its layers compute. In bfloat16, parameters stay float32: Flax's
layers cast them and their input as they compute, so that gradients, optimizers and checkpoints know
float32 alone. What makes angles, slopes and tables of positions is not cast, and `posjax.attend`
has its logits and its softmax in float32.
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
Dtype = Literal['float32', 'bfloat16']


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
    lstm: a cell with gates and a memory, which also takes `forget_bias`, the initial bias of its
      forget gate, 1 by default: it remembers at first (Jozefowicz et al. 2015, section 5).
    gru: a cell with gates.
    apply: `(function, *x) -> y`: a function of real numbers, applied to each number, or to real
      and imaginary parts apart.
    parts: how many real numbers one number is.
    dtype: in which the layers compute, and of the states between them.
    implementation: of the attention, as `posjax.attend` takes it.
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
  dtype: Any
  implementation: str | None = None

  @property
  def is_complex(self) -> bool:
    """Whether the numbers are complex."""
    return self.parts == 2


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


def lstm_cell(
  width: int, hidden_width: int, *, forget_bias: float = 1.0, rngs: nnx.Rngs
) -> nnx.OptimizedLSTMCell:
  """`nnx.LSTMCell` with its gates in one product, which is faster.

  Args:
    width: of the input.
    hidden_width: of the state.
    forget_bias: the initial bias of the forget gate; those of the other gates are 0.
    rngs: a stream for `params`.
  """

  def bias(key: PRNGKey, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jnp.repeat(jnp.array([0, forget_bias, 0, 0], dtype), shape[0] // 4)  # i, f, g, o

  return nnx.OptimizedLSTMCell(width, hidden_width, bias_init=bias, rngs=rngs)


REAL = LayerSet(
  dense=axes.linear,
  conv=lambda width, out_width, kernel_size, *, rngs: nnx.Conv(
    width, out_width, (kernel_size,), padding='VALID', rngs=rngs
  ),
  norm=_norm,
  attention=adapter.Attention,
  cross=lambda scheme: scheme,
  rnn=nnx.SimpleCell,
  lstm=lstm_cell,
  gru=nnx.GRUCell,
  apply=lambda function, *x: function(*x),
  parts=1,
  dtype=jnp.float32,
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
  dtype=jnp.complex64,
)


def layer_set_of(
  schemes: Iterable[Scheme],
  dims: Dims,
  dtype: Dtype = 'float32',
  implementation: str | None = None,
) -> LayerSet:
  """The layers of a model with these schemes: complex if one of them makes complex embeddings.

  Args:
    schemes: of the model.
    dims: its sizes.
    dtype: in which real layers compute; complex ones know float32 alone, for each part.
    implementation: of the attention, as `posjax.attend` takes it.

  Raises:
    ValueError: if complex layers should compute in another dtype, or there is no such dtype.
  """
  check_value('model.dtype', Dtype, dtype)
  made = COMPLEX if any(is_complex(scheme, dims) for scheme in schemes) else REAL
  if made.is_complex and dtype != 'float32':
    raise ValueError(
      "The scheme makes complex embeddings, of two float32 each, so model.dtype must be 'float32', "
      f'but got {dtype!r}.'
    )
  return _computing(made, dtype, implementation)


@functools.cache  # two models with the same layers have the same set, and share their programs
def _computing(plain: LayerSet, dtype: Dtype, implementation: str | None) -> LayerSet:
  """A set whose layers compute in a dtype, and whose attention in one way."""
  own: dict[str, Any] = {} if dtype == 'float32' else {'dtype': jnp.dtype(dtype)}
  if implementation is not None:
    attention = functools.partial(plain.attention, implementation=implementation)
    plain = plain._replace(attention=attention, implementation=implementation)
  if not own:
    return plain
  return plain._replace(
    dense=functools.partial(plain.dense, **own),
    norm=lambda name: functools.partial(plain.norm(name), **own),
    attention=functools.partial(plain.attention, **own),
    **own,
  )


def check_without_transformer(what: str, dtype: str, implementation: str | None) -> None:
  """Refuses what layers of a Transformer alone take.

  Args:
    what: the model that has none, as the error calls it.
    dtype: of a config.
    implementation: of its attention.

  Raises:
    ValueError: if one of them is set.
  """
  given = {'model.dtype': (dtype, 'float32'), 'attention.implementation': (implementation, None)}
  for key, (value, unset) in given.items():
    if value != unset:
      raise ValueError(
        f'{what} has no layers of a Transformer, so {key} must be {unset!r}, but got {value!r}.'
      )


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
