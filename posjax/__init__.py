"""posjax: positional encodings for Transformers, as records of pure functions.

  place 0     place 1           place 2          place 3                  place 4
  ids(pos) -> embed(x, pos) -> [query(q, at)  -> logits(logits, q, k) ->  value(v, at), summed] x N
                                key(k, at)       + bias(distance),        output(sum, at)
                                                 softmax                  + values(weights)

Letters: B batch (any leading axes), T queries, S keys, H query heads, K key/value heads, D head
width, M model width, L layers, V vocabulary. q [B, T, H, D], k and v [B, S, K, D], ids [B, T] and
[B, S], logits [B, H, T, S]. distance = q_pos - k_pos: positive looks back.

`posjax.nnx.Attention` and `posjax.linen.Attention` (they need flax) own projections and parameters;
`posjax.schemes.<name>` holds each scheme's pure functions. `posjax.nnx`, `posjax.linen`,
`posjax.interop` and `posjax.experiment` are imported when they are first asked for, so that
`import posjax` needs no more than JAX.
"""

import importlib
from typing import Any

from posjax import positions as positions
from posjax.attention import attend as attend
from posjax.attention import weights as weights
from posjax.chain import chain as chain
from posjax.citation import citation as citation
from posjax.expression import get as get
from posjax.expression import names as names
from posjax.layers.hook import attention_fn as attention_fn
from posjax.scheme import Dims as Dims
from posjax.scheme import Scheme as Scheme
from posjax.scheme import init as init
from posjax.scheme import merge as merge
from posjax.scheme import places as places
from posjax.scheme import prepare as prepare
from posjax.scheme import split as split

__version__ = '0.1.0'

_LAZY = ('experiment', 'interop', 'linen', 'nnx')


def __getattr__(name: str) -> Any:
  """The modules that are imported when they are first asked for."""
  if name not in _LAZY:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return importlib.import_module(f'{__name__}.{name}')


def __dir__() -> list[str]:
  """All names, those that have not been imported yet among them."""
  return sorted({*globals(), *_LAZY})
