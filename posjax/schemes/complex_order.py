"""Complex-order: each number of a word's embedding is a wave over positions.

x_d -> x_d e^(i (w_jd pos + t_jd)) for word j: the embedding x is the amplitude, the frequency w is
learned, the initial phase t is learned or zero. Attention then takes the modulus of the complex
logits, |q . conj(k)| / sqrt(D), and weighs complex values. The layers that follow must be complex
too; or concatenate real and imaginary parts.

g(pos) = z2 z1^pos with |z1| <= 1 are the only bounded functions for which g(pos + n) = w(n) g(pos)
for some w; the wave is the case |z1| = 1, in which g does not vanish. With amplitude 1, frequencies
that words share, and origin 0, the imaginary and real parts are the sinusoid of width 2 M.

Reference: Wang et al. 2020, Encoding Word Order in Complex Embeddings,
https://arxiv.org/abs/1912.12333, claim 1, eqs. 4-6, 8 and 14, appendices A and C. Positions count
from 1, as in appendix C. Word-sharing, one frequency per dimension, is `per_word=False`;
dimension-sharing, one per word, is `per_dimension=False` (section 3.1 swaps their parameter
counts). Initial phases hurt in table 4, so by default there are none. The frequencies start as the
sinusoid's, or, with one per word, drawn from the same range: the paper gives no initial values, and
the authors' code (iclr-complex-order/complex-order 4c4ec246) has other ones in each task. That code
does not conjugate (`conjugate=False`); it counts from the end of the text in one task, and freezes
the frequencies in another. We follow the paper.

The phase is exact for the frequency as the float32 that it is: to 3e-7 radians at every int32
position. A float32 near 1 is itself off by up to 6e-8, or 8e-3 radians at position 131,072: what is
no float32, such as most frequencies of the sinusoid, is met only so far.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact, Int, Num

from posjax.math.angles import frequencies, learned_angles
from posjax.scheme import At, Params, Scheme
from posjax.schemes.learned import lookup

SHIFT_INVARIANT = False


def rotate(x: Inexact[Array, '*shape'], phase: Float[Array, '*phases']) -> Complex[Array, '*shape']:
  """x e^(i phase): eq. 6.

  Args:
    x: amplitudes.
    phase: radians; broadcasts to `x`.

  Returns:
    complex64, or complex128.

  Example:
    >>> rotate(jnp.array([2.0]), jnp.array([jnp.pi / 2])).round(3)
    Array([-0.+2.j], dtype=complex64)
  """
  wave = jax.lax.complex(jnp.cos(phase), jnp.sin(phase))
  return x.astype(jnp.result_type(x, jnp.float32)) * wave


def solution(
  pos: Num[Array, '*shape'], z1: Complex[Array, ' M'], z2: Complex[Array, ' M']
) -> Complex[Array, '*shape M']:
  """z2 z1^pos: what claim 1 proves to be the only form, for |z1| <= 1; it vanishes below 1.

  Args:
    pos: ids, in tokens, from 0.
    z1: what one step multiplies by.
    z2: the value at 0.

  Example:
    >>> solution(jnp.array([0, 3]), jnp.array([0.5 + 0j]), jnp.array([16 + 0j]))
    Array([[16.+0.j],
           [ 2.+0.j]], dtype=complex64)
  """
  z1, z2 = (z.reshape((1,) * pos.ndim + z.shape) for z in (z1, z2))
  return rotate(z2 * abs(z1) ** pos[..., None], learned_angles(pos, jnp.angle(z1)))


def words(table: Float[Array, 'V M'], tokens: Int[Array, '*shape'] | None) -> Float[Array, '...']:
  """The row of each word, NaN for words outside of the table.

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
  """|logits|, eq. 14 at place 3: the logits come as q . conj(k) / sqrt(D). Gradient 0 at 0."""
  return jnp.abs(logits)


def conjugated(params: Params, x: Inexact[Array, 'B S K D'], at: At) -> Inexact[Array, 'B S K D']:
  """conj(x) of the keys at place 2, which `attend` conjugates again: the logits are then q . k."""
  return jnp.conj(x)


def scheme(
  base: float = 10000.0,
  per_word: bool = True,
  per_dimension: bool = True,
  phases: bool = False,
  origin: int = 1,
  conjugate: bool = True,
) -> Scheme:
  """Complex embeddings whose phase is the position.

  Args:
    base: initial frequencies lie in (1/base, 1], radians per token.
    per_word: whether each word has frequencies of its own; if not, "word-sharing".
    per_dimension: whether each dimension has a frequency; if not, "dimension-sharing".
    phases: whether initial phases are learned, shared as the frequencies are; without them 0.
    origin: the position of id 0.
    conjugate: q . conj(k), as in the paper, instead of q . k, as in the authors' code.

  Raises:
    ValueError: if the base is not positive; where used, if words matter and tokens are missing or
      the vocabulary was unknown.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('embed', 'logits')
  """
  if not base > 0:
    raise ValueError(f'The base of complex-order must be positive, but got {base}.')

  def init_model(key, dims):
    shape = (dims.vocab if per_word else 1, dims.width if per_dimension else 1)
    frequency_key, phase_key = jax.random.split(key)
    if per_dimension:
      frequency = jnp.broadcast_to(jnp.asarray(frequencies(2 * dims.width, base)), shape)
    else:
      frequency = base ** -jax.random.uniform(frequency_key, shape)
    made = {'frequency': frequency.astype(jnp.float32)}
    if phases:
      made['phase'] = jax.random.uniform(phase_key, shape, minval=-jnp.pi, maxval=jnp.pi)
    return made

  def embed(params, x, tokens, pos):
    pos = jnp.broadcast_to(pos, x.shape[:2]) + jnp.int32(origin)
    of = lambda table: words(table, tokens) if per_word else table[None]
    angle = learned_angles(pos, of(params['frequency']))
    return rotate(x, angle + of(params['phase']) if phases else angle)

  made = Scheme(init_model=init_model, embed=embed, logits=modulus, axes=1)
  return made if conjugate else made._replace(key=conjugated)
