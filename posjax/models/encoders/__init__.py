"""Encoders of texts: one file each, whose constructor is `encoder`. The folder is the registry.

An encoder turns embedded tokens [B, T, M] into features of each token, [B, T, N]. It does not pool
them: `pooling` does, for models that want one vector a text. Whatever the dtype of its layers, its
features are float32, or complex64. The constructor in each file has the
arguments `layer_set` (a `LayerSet`, real or complex), `width` (M), `rngs`, and its own options by
name. One that takes `schemes`, a pattern over its layers, has attention; the others know positions
by place 0 and 1 alone.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Inexact

from posjax.arguments import check_known
from posjax.keys import Key, keys_of
from posjax.models.embedding import Embedded, make_dims
from posjax.models.layer_sets import REAL, LayerSet, check_without_transformer
from posjax.models.orthogonal import QueryKey, head_dim
from posjax.models.pooling import Encoded
from posjax.nnx import Readable
from posjax.scheme import Dims, PRNGKey, Scheme, places


class Encoder(Readable):
  """The interface of an encoder.

  Attributes:
    features: N, of each token.
    pooling: the pooling that belongs to the method; None where the model chooses one.
    pooled_features: of the vector that `after_pooling` returns; by default N.
  """

  features: int
  pooling: str | None = None

  @property
  def pooled_features(self) -> int:
    """The number of features after pooling."""
    return self.features

  def __call__(self, embedded: Embedded, *, train_key: PRNGKey | None = None) -> Encoded:
    """Features of each token; without a random key, nothing is dropped."""
    raise NotImplementedError

  def after_pooling(self, pooled: Inexact[Array, 'B N']) -> Inexact[Array, 'B P']:
    """Applies the layers of the method that follow its pooling, if it has any."""
    return pooled


def names() -> tuple[str, ...]:
  """The encoders that there are: the modules of this folder, sorted."""
  return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def get_encoder(name: str) -> Callable[..., Encoder]:
  """The constructor of an encoder.

  Raises:
    ValueError: if there is none of that name.
  """
  check_known('encoder', name, names())
  return importlib.import_module(f'{__name__}.{name}').encoder


def attends(name: str) -> bool:
  """Whether an encoder has attention, and with it a use for places 2 to 4 of a scheme.

  Example:
    >>> attends('transformer'), attends('lstm')
    (True, False)
  """
  return 'schemes' in _parameters(name)


def dims_of(name: str, width: int, num_heads: int, vocab: int, query_key: QueryKey) -> Dims:
  """The sizes of a model with an encoder: without attention it has one head.

  Raises:
    ValueError: if the heads do not divide the width.
  """
  heads = num_heads if attends(name) else 1
  dims = make_dims(width, heads, None, vocab)
  return dims._replace(head_dim=head_dim(query_key, width, heads))


def options(name: str) -> frozenset[str]:
  """The options that an encoder takes, by name.

  Example:
    >>> sorted(options('fasttext'))
    ['activation', 'hidden_width']
  """
  return _parameters(name) - {'layer_set', 'width', 'schemes', 'rngs'}


def option_keys() -> dict[str, Key]:
  """The options that the encoders take, all of them together, with their types."""
  return {name: _keys(encoder)[name] for encoder in names() for name in options(encoder)}


def _parameters(name: str) -> frozenset[str]:
  return frozenset(_keys(name))


def _keys(name: str) -> Mapping[str, Key]:
  return keys_of(get_encoder(name)).known


def make(
  name: str,
  schemes: Sequence[Scheme],
  width: int,
  given: Mapping[str, Any],
  *,
  layer_set: LayerSet,
  rngs: nnx.Rngs,
) -> Encoder:
  """An encoder, from the options of a config that serves all encoders.

  Args:
    name: a file of this folder.
    schemes: one scheme; for an encoder with attention, perhaps a pattern that repeats.
    width: M, of the embeddings.
    given: options by name. Those that only other encoders take are not used, but `bidirectional`
      and `shared_dropout` must be false, `query_key` 'free', and none silent, where they cannot be
      had.
    layer_set: real or complex layers.
    rngs: a stream for `params`.

  Raises:
    ValueError: if a name is unknown, or sizes do not fit, or the scheme would lose what it does in
      attention.
  """
  make_encoder, taken = get_encoder(name), options(name)
  known = frozenset().union(*map(options, names()))
  if unknown := sorted(set(given) - known):
    raise ValueError(
      f'The options of encoders are {", ".join(sorted(known))}, but got {", ".join(unknown)}.'
    )
  if given.get('bidirectional') and 'bidirectional' not in taken:
    raise ValueError(f'bidirectional is for recurrent encoders, but the encoder is {name!r}.')
  off: dict[str, Any] = {'query_key': 'free', 'shared_dropout': False}
  off |= {'silent_content': (), 'silent_position': ()}
  for option, unset in off.items():
    value = given.get(option) or unset
    if option not in taken and value != unset:
      raise ValueError(f'The encoder {name!r} has no model.{option}, but got {value!r}.')
  own = {option: value for option, value in given.items() if option in taken}
  for option, key in _keys(name).items():
    if option in taken and key.required and option not in own:
      raise ValueError(f'The encoder {name!r} needs model.{option}, but it is missing.')
  if attends(name):
    own['schemes'] = tuple(schemes)
  else:
    check_without_attention(f'The encoder {name!r}', schemes, layer_set)
  return make_encoder(layer_set, width, rngs=rngs, **own)


def check_without_attention(
  what: str, schemes: Sequence[Scheme], layer_set: LayerSet = REAL
) -> None:
  """Refuses schemes that need layers of self-attention, and what these alone take.

  Args:
    what: the model that has none, as the error calls it.
    schemes: of a config.
    layer_set: of the model.

  Raises:
    ValueError: if there are several schemes, one would lose what it does in attention, or the
      layers should compute in 16 bits, or attention in one way.
  """
  dtype = 'bfloat16' if layer_set.dtype == jnp.bfloat16 else 'float32'
  check_without_transformer(what, dtype, layer_set.implementation)
  if len(schemes) > 1:
    raise ValueError(
      f'{what} takes one scheme, but got {len(schemes)} of them: patterns are for '
      'the layers of a Transformer.'
    )
  for part in schemes[0].parts or schemes:
    used = places(part)
    if used and not {'ids', 'embed'} & set(used):
      raise ValueError(
        f'{what} has no attention, and would lose what the scheme does in '
        f'{", ".join(used)}; it needs one that acts on embeddings, or none.'
      )
