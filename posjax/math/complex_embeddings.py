"""Complex embeddings: an amplitude and a phase for each dimension, for words and for positions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact, Int

from posjax.math.tables import lookup
from posjax.scheme import At, Params


def with_phase(
  x: Inexact[Array, '*shape'], phase: Float[Array, '*phases']
) -> Complex[Array, '*shape']:
  """x e^(i phase).

  Args:
    x: the amplitudes.
    phase: radians; broadcasts to `x`.

  Returns:
    complex64, or complex128 for float64 amplitudes.

  Example:
    >>> with_phase(jnp.array([2.0]), jnp.array([jnp.pi / 2])).round(3)
    Array([-0.+2.j], dtype=complex64)
  """
  unit = jax.lax.complex(jnp.cos(phase), jnp.sin(phase))
  wide = jnp.complex128 if jnp.float64 in (x.dtype, phase.dtype) else jnp.complex64
  return x.astype(wide) * unit.astype(wide)


def words(table: Float[Array, 'V M'], tokens: Int[Array, '*shape'] | None) -> Float[Array, '...']:
  """The row of each word, and NaN for words that the table has no row for.

  Args:
    table: one row for each word of the vocabulary.
    tokens: the word of each token.

  Raises:
    ValueError: if there are no tokens, or no rows.

  Example:
    >>> words(jnp.array([[1.0], [2.0]]), jnp.array([1, 0, 2]))
    Array([[ 2.], [ 1.], [nan]], dtype=float32)
  """
  if tokens is None:
    raise ValueError('What each word has of its own needs the tokens, but got None.')
  if not table.shape[0]:
    raise ValueError('What each word has of its own needs Dims(vocab=...), but got 0 words.')
  return lookup(table, tokens)


def modulus(
  params: Params,
  logits: Inexact[Array, 'B H T S'],
  q: Inexact[Array, 'B T H D'],
  k: Inexact[Array, 'B S K D'],
  q_at: At,
  k_at: At,
) -> Float[Array, 'B H T S']:
  """The modulus of the complex logits q . conj(k) / sqrt(D), as a scheme's place 3.

  The gradient at 0 is 0.

  Example:
    >>> one = jnp.ones((1, 1, 1, 1))
    >>> modulus({}, one * (3 + 4j), one, one, None, None)
    Array([[[[5.]]]], dtype=float32)
  """
  return jnp.abs(logits)


def conjugated(params: Params, x: Inexact[Array, 'B S K D'], at: At) -> Inexact[Array, 'B S K D']:
  """The conjugate of the keys, as a scheme's place 2.

  `attend` conjugates the keys itself, so that the logits are then q . k, without a conjugate.

  Example:
    >>> conjugated({}, jnp.ones((1, 1, 1, 1)) * (1 + 2j), None)
    Array([[[[1.-2.j]]]], dtype=complex64)
  """
  return jnp.conj(x)
