"""Fourier features: sines and cosines of random frequencies, through a small network.

r = 1/sqrt(F) [cos(pos W^T), sin(pos W^T)], W [F/2, n] drawn from N(0, gamma^-2); then x +
W2 gelu(W1 r + b1) + b2, with ids in R^n. The frequencies W are trained, or constants.

Reference: Li, Si, Li, Hsieh, Bengio 2021, https://arxiv.org/abs/2106.02795, section 3, eqs. 2-6 and
algorithm 1. Ids may be split into groups that do not mix: each passes through the same W and the
same network, and gives an equal share of the width. Constant frequencies are the random features of
Rahimi, Recht 2007 (Random Features for Large-Scale Kernel Machines) and of Tancik et al. 2020,
https://arxiv.org/abs/2006.10739, who scale otherwise (with 2 pi, without 1/sqrt(F)).

As F grows, r(x) . r(y) becomes exp(-|x - y|^2 / (2 gamma^2)) / 2: a Gaussian of the distance on all
axes together, as wide as gamma, in units of the ids (the half is that of F/2 cosines over F). The
paper does not say how the network begins: here with Glorot's uniform matrices and zeros.

Angles are exact at every int32 id, for constant frequencies and for trained ones alike.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.math.angles import angles, learned_angles
from posjax.scheme import Params, Scheme

SHIFT_INVARIANT = False


def constants(
  seed: int, num_features: int, axes: int = 1, gamma: float = 1.0
) -> Float[np.ndarray, 'half n']:
  """Frequencies that a seed stands for, N(0, gamma^-2); NumPy has frozen this generator.

  Returns:
    float64 [num_features // 2, axes], radians per unit of the ids.

  Example:
    >>> constants(0, 4).round(3)
    array([[1.764],
           [0.4  ]])
  """
  normal = np.random.RandomState(seed).standard_normal((num_features // 2, axes))
  return normal / gamma


def exact_angles(
  pos: Num[Array, '*shape n'], frequencies: Float[np.ndarray, 'half n']
) -> Float[Array, '*shape half']:
  """pos W^T modulo 2 pi, exact for integers: see `posjax.angles`.

  Example:
    >>> exact_angles(jnp.array([[2, 1]]), np.array([[1.0, 0.5]]))
    Array([[2.5]], dtype=float32)
  """
  axes = range(frequencies.shape[1])
  return functools.reduce(jnp.add, (angles(pos[..., i], frequencies[:, i]) for i in axes))


def trained_angles(
  pos: Num[Array, '*shape n'], frequencies: Float[Array, 'half n']
) -> Float[Array, '*shape half']:
  """pos W^T modulo 2 pi, as exact, with gradients to both: see `posjax.angles.learned_angles`.

  Example:
    >>> trained_angles(jnp.array([[2, 1]]), jnp.array([[1.0, 0.5]]))
    Array([[2.5]], dtype=float32)
  """
  # Sums of products, not a product of matrices: accelerators round the factors of those.
  by_axis = (pos[..., i] for i in range(frequencies.shape[1]))
  each = (learned_angles(p, _row(frequencies[:, i], p)) for i, p in enumerate(by_axis))
  return functools.reduce(jnp.add, each)


def features(angle: Float[Array, '*shape half']) -> Float[Array, '*shape F']:
  """1/sqrt(F) [cos, sin]: eq. 2. Their squares sum to 1/2.

  Example:
    >>> features(jnp.zeros((1, 2)))
    Array([[0.5, 0.5, 0. , 0. ]], dtype=float32)
  """
  both = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)
  return both * both.shape[-1] ** -0.5


def network(params: Params, features: Float[Array, '*shape F']) -> Float[Array, '*shape M']:
  """W2 gelu(W1 r + b1) + b2: eq. 6, with the exact gelu.

  Args:
    params: `hidden` [F, hidden], `hidden_bias`, `out` [hidden, M], `out_bias`.
    features: r.

  Example:
    >>> one = jnp.ones((1, 1))
    >>> params = {'hidden': one, 'hidden_bias': one[0], 'out': one, 'out_bias': one[0]}
    >>> network(params, -one)
    Array([[1.]], dtype=float32)
  """
  hidden = jnp.einsum('...f,fh->...h', features, params['hidden'])
  hidden = jax.nn.gelu(hidden + _row(params['hidden_bias'], hidden[..., 0]), approximate=False)
  out = jnp.einsum('...h,hm->...m', hidden, params['out'])
  return out + _row(params['out_bias'], out[..., 0])


def _row(vector: Float[Array, ' N'], like: Num[Array, '*shape']) -> Float[Array, '*ones N']:
  """[N] as [1, ..., N], to go with `like` and one axis more."""
  return vector.reshape((1,) * like.ndim + (-1,))


def scheme(
  num_features: int = 32,
  hidden: int = 16,
  gamma: float = 1.0,
  groups: int = 1,
  axes: int = 1,
  constant_seed: int | None = None,
) -> Scheme:
  """Adds the code of each token's ids to its embedding.

  Args:
    num_features: F, cosines and sines together; even.
    hidden: width of the network's hidden layer.
    gamma: how far apart ids begin to be unlike, in units of the ids; positive.
    groups: G: each axes / G consecutive ids of a token are a group, with a share of the width.
    axes: ids per token.
    constant_seed: None trains the frequencies. A number from 0 makes them constants that it stands
      for, of which no parameter is kept.

  Raises:
    ValueError: if an argument is out of range; where used, if the groups do not divide the width.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(axes=2, gamma=10.0))
    ('embed',)
  """
  if num_features < 2 or num_features % 2:
    raise ValueError(f'Features are pairs, so their number must be even, but got {num_features}.')
  if hidden < 1:
    raise ValueError(f'The hidden layer must have a positive width, but got {hidden}.')
  if not gamma > 0:
    raise ValueError(f'The gamma of Fourier features must be positive, but got {gamma}.')
  if axes < 1 or groups < 1 or axes % groups:
    raise ValueError(f'The groups must divide the axes, but got {groups} groups of {axes} axes.')
  if constant_seed is not None and not 0 <= constant_seed < 2**32:
    raise ValueError(f'The constant_seed must be in 0 .. 2^32 - 1, but got {constant_seed}.')
  each = axes // groups

  def init_model(key, dims):
    draw, first, second = jax.random.split(key, 3)
    share = _share(dims.width, groups)
    make = jax.nn.initializers.glorot_uniform()
    made = {
      'hidden': make(first, (num_features, hidden), jnp.float32),
      'hidden_bias': jnp.zeros(hidden, jnp.float32),
      'out': make(second, (hidden, share), jnp.float32),
      'out_bias': jnp.zeros(share, jnp.float32),
    }
    if constant_seed is None:
      normal = jax.random.normal(draw, (num_features // 2, each), jnp.float32)
      made['frequencies'] = normal / gamma
    return made

  def embed(params, x, tokens, pos):
    tokens_of = pos.shape[: pos.ndim - (axes > 1)]
    grouped = pos.reshape(*tokens_of, groups, each)
    if constant_seed is None:
      angle = trained_angles(grouped, params['frequencies'])
    else:
      angle = exact_angles(grouped, constants(constant_seed, num_features, each, gamma))
    _share(x.shape[-1], groups)
    code = network(params, features(angle)).reshape(*tokens_of, x.shape[-1])
    return (x + jnp.broadcast_to(code, x.shape)).astype(x.dtype)

  return Scheme(init_model=init_model, embed=embed, axes=axes)


def _share(width: int, groups: int) -> int:
  """The width of one group's code."""
  if width % groups:
    raise ValueError(f'The {groups} groups must divide the width, but got {width}.')
  return width // groups
