"""Complex-order: each dimension of a word's embedding is a complex wave over positions.

x_d -> x_d e^(i (w_jd pos + t_jd)) for word j: the embedding x is the amplitude, the frequency w is
learned, and the initial phase t is learned or zero. Attention then takes the modulus of the complex
logits, |q . conj(k)| / sqrt(D), and its weights multiply complex values. The layers that follow
must be complex too, or concatenate real and imaginary parts.

g(pos) = z2 z1^pos with |z1| <= 1 are the only bounded functions for which g(pos + n) = w(n) g(pos)
for some w. The wave is the case |z1| = 1, in which g does not vanish. With amplitude 1, frequencies
that words share, and origin 0, its imaginary and real parts are the sinusoid of width 2 M.

Reference: Wang et al. 2020, Encoding Word Order in Complex Embeddings,
https://arxiv.org/abs/1912.12333, claim 1, eqs. 4-6, 8 and 14, appendices A and C. Positions count
from 1, as in appendix C. Word-sharing, one frequency for each dimension, is `per_word=False`;
dimension-sharing, one for each word, is `per_dimension=False` (section 3.1 swaps their parameter
counts). Initial phases hurt in table 4, so by default there are none. The frequencies start as the
sinusoid's, or, with one for each word, are drawn from the same range: the paper gives no initial
values, and the authors' code (iclr-complex-order/complex-order 4c4ec246) has other ones in each
task. That code does not conjugate (`conjugate=False`); it counts from the end of the text in one
task, and freezes the frequencies in another. We follow the paper.

The error of the phase is below 3e-7 radians at every int32 position, for the number that the
float32 frequency holds. A float32 near 1 is itself off by up to 6e-8, which is 8e-3 radians at
position 131,072. A frequency that is not a float32, such as most of the sinusoid's, is thus exact
at near positions only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Num

from posjax.arguments import Positive, checked
from posjax.math.angles import frequencies, learned_angles
from posjax.math.complex_embeddings import conjugated, modulus, with_phase, words
from posjax.scheme import Scheme

SHIFT_INVARIANT = False
PAPERS = ('wang2020encoding',)


def solution(
  pos: Num[Array, '*shape'], z1: Complex[Array, ' M'], z2: Complex[Array, ' M']
) -> Complex[Array, '*shape M']:
  """z2 z1^pos, which claim 1 proves to be the only form for |z1| <= 1; for |z1| < 1 it vanishes.

  Args:
    pos: ids, in tokens, from 0.
    z1: the number that one step from token to token multiplies by.
    z2: the value at position 0.

  Example:
    >>> solution(jnp.array([0, 3]), jnp.array([0.5 + 0j]), jnp.array([16 + 0j]))
    Array([[16.+0.j],
           [ 2.+0.j]], dtype=complex64)
  """
  z1, z2 = (z.reshape((1,) * pos.ndim + z.shape) for z in (z1, z2))
  return with_phase(z2 * abs(z1) ** pos[..., None], learned_angles(pos, jnp.angle(z1)))


@checked
def scheme(
  base: Positive = 10000.0,
  per_word: bool = True,
  per_dimension: bool = True,
  phases: bool = False,
  origin: int = 1,
  conjugate: bool = True,
) -> Scheme:
  """Complex embeddings whose phase is the position.

  Args:
    base: initial frequencies lie in (1/base, 1], radians per token.
    per_word: whether each word has frequencies of its own; False is "word-sharing".
    per_dimension: whether each dimension has a frequency of its own; False is "dimension-sharing".
    phases: whether initial phases are learned, shared as the frequencies are, instead of being 0.
    origin: the position of the token with the id 0.
    conjugate: whether logits are q . conj(k), as in the paper, instead of q . k, as in the authors'
      code.

  Raises:
    ValueError: if the base is not positive; where used with `per_word`, if there are no tokens or
      the size of the vocabulary is not known.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme())
    ('embed', 'logits')
  """

  def init_model(key, dims):
    shape = (dims.vocab if per_word else 1, dims.width if per_dimension else 1)
    frequency_key, phase_key = jax.random.split(key)
    if per_dimension:
      frequency = jnp.broadcast_to(jnp.asarray(frequencies(2 * dims.width, base)), shape)
    else:
      frequency = base ** -jax.random.uniform(frequency_key, shape)
    params = {'frequency': frequency.astype(jnp.float32)}
    if phases:
      params['phase'] = jax.random.uniform(phase_key, shape, minval=-jnp.pi, maxval=jnp.pi)
    return params

  def embed(params, x, tokens, pos):
    pos = jnp.broadcast_to(pos, x.shape[:2]) + jnp.int32(origin)
    by_token = lambda table: words(table, tokens) if per_word else table[None]
    angle = learned_angles(pos, by_token(params['frequency']))
    return with_phase(x, angle + by_token(params['phase']) if phases else angle)

  paper = Scheme(init_model=init_model, embed=embed, logits=modulus)
  return paper if conjugate else paper._replace(key=conjugated)
