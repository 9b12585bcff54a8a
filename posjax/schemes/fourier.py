"""Fourier features: sines and cosines of random frequencies, through a small network.

x + W2 gelu(W1 r + b1) + b2, with r = 1/sqrt(F) [cos(pos W^T), sin(pos W^T)] for ids pos in R^n. The
frequencies W [F/2, n] are drawn from N(0, gamma^-2), and are trained or constant.

Reference: Li, Si, Li, Hsieh, Bengio 2021, https://arxiv.org/abs/2106.02795, section 3, eqs. 2-6 and
algorithm 1. The ids of a token may be split into groups that do not mix: each group passes through
the same W and the same network, and makes an equal share of the width. Constant frequencies are the
random features of Rahimi, Recht 2007 (Random Features for Large-Scale Kernel Machines) and of
Tancik et al. 2020, https://arxiv.org/abs/2006.10739, who scale differently (with 2 pi, and without
1/sqrt(F)).

As F grows, r(x) . r(y) becomes exp(-|x - y|^2 / (2 gamma^2)) / 2: a Gaussian of the distance on all
axes together, with gamma as its standard deviation, in units of the ids (the half is due to F/2
cosines divided by F). The paper does not say how the network is initialized; here its matrices are
Glorot's uniform ones, and its offsets zeros.

Angles are exact at every int32 id, for constant and for trained frequencies.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from posjax.arguments import Positive, Range, Size, checked
from posjax.math.angles import angles, learned_angles
from posjax.scheme import Params, Scheme, Traits

SHIFT_INVARIANT = False
PAPERS = ('li2021learnable',)


def constants(
  seed: int, num_features: int, axes: int = 1, gamma: float = 1.0
) -> Float[np.ndarray, 'half n']:
  """Constant frequencies, drawn from N(0, gamma^-2).

  NumPy has promised not to change this generator, so that a seed always means the same numbers.

  Args:
    seed: of the generator.
    num_features: F, the number of cosines and sines together.
    axes: n, the number of ids that a frequency multiplies.
    gamma: the distance at which ids begin to be unlike, in units of the ids.

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
  """pos W^T modulo 2 pi for constant frequencies, as exact as `posjax.math.angles.angles`.

  Args:
    pos: n ids for each token.
    frequencies: W, radians per unit of the ids.

  Example:
    >>> exact_angles(jnp.array([[2, 1]]), np.array([[1.0, 0.5]]))
    Array([[2.5]], dtype=float32)
  """
  axes = range(frequencies.shape[1])
  return functools.reduce(jnp.add, (angles(pos[..., i], frequencies[:, i]) for i in axes))


def trained_angles(
  pos: Num[Array, '*shape n'], frequencies: Float[Array, 'half n']
) -> Float[Array, '*shape half']:
  """pos W^T modulo 2 pi for trained frequencies: see `posjax.math.angles.learned_angles`.

  Args:
    pos: n ids for each token.
    frequencies: W, radians per unit of the ids.

  Example:
    >>> trained_angles(jnp.array([[2, 1]]), jnp.array([[1.0, 0.5]]))
    Array([[2.5]], dtype=float32)
  """
  # This is a sum of products and not a product of matrices, because accelerators round the factors
  # of a product of matrices.
  ids = (pos[..., i] for i in range(frequencies.shape[1]))
  by_axis = (learned_angles(p, _row(frequencies[:, i], p)) for i, p in enumerate(ids))
  return functools.reduce(jnp.add, by_axis)


def features(angle: Float[Array, '*shape half']) -> Float[Array, '*shape F']:
  """1/sqrt(F) [cos, sin], eq. 2, whose squares sum to 1/2.

  Example:
    >>> features(jnp.zeros((1, 2)))
    Array([[0.5, 0.5, 0. , 0. ]], dtype=float32)
  """
  both = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)
  return both * both.shape[-1] ** -0.5


def network(params: Params, features: Float[Array, '*shape F']) -> Float[Array, '*shape M']:
  """W2 gelu(W1 r + b1) + b2, eq. 6, with the exact gelu.

  Args:
    params: W1 as `hidden` [F, hidden], b1 as `hidden_bias`, W2 as `out` [hidden, M], and b2 as
      `out_bias`.
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
  """The vector as [1, ..., N], with one axis more than `like`."""
  return vector.reshape((1,) * like.ndim + (-1,))


@checked
def scheme(
  num_features: Size = 32,
  hidden: Size = 16,
  gamma: Positive = 1.0,
  groups: Size = 1,
  axes: Size = 1,
  constant_seed: Annotated[int, Range(0, below=2**32)] | None = None,
) -> Scheme:
  """Adds the code of each token's ids to its embedding.

  Args:
    num_features: F, the number of cosines and sines together; even.
    hidden: the width of the network's hidden layer.
    gamma: the distance at which ids begin to be unlike, in units of the ids; positive.
    groups: the axes of a token are cut into G groups of axes / G; each gets an equal share of the
      width.
    axes: the number of ids of each token.
    constant_seed: None trains the frequencies. A seed makes them constants, which are not
      parameters; from 0 on.

  Raises:
    ValueError: if an argument is out of range; where used, if the groups do not divide the width.

  Example:
    >>> from posjax.scheme import places
    >>> places(scheme(axes=2, gamma=10.0))
    ('embed',)
  """
  if num_features % 2:
    raise ValueError(f'Features are pairs, so their number must be even, but got {num_features}.')
  if axes % groups:
    raise ValueError(f'The groups must divide the axes, but got {groups} groups of {axes} axes.')
  group_size = axes // groups

  def init_model(key, dims):
    draw, first, second = jax.random.split(key, 3)
    share = _share(dims.width, groups)
    make = jax.nn.initializers.glorot_uniform()
    params = {
      'hidden': make(first, (num_features, hidden), jnp.float32),
      'hidden_bias': jnp.zeros(hidden, jnp.float32),
      'out': make(second, (hidden, share), jnp.float32),
      'out_bias': jnp.zeros(share, jnp.float32),
    }
    if constant_seed is None:
      normal = jax.random.normal(draw, (num_features // 2, group_size), jnp.float32)
      params['frequencies'] = normal / gamma
    return params

  def embed(params, x, tokens, pos):
    shape = pos.shape[: pos.ndim - (axes > 1)]  # of the tokens
    grouped = pos.reshape(*shape, groups, group_size)
    if constant_seed is None:
      angle = trained_angles(grouped, params['frequencies'])
    else:
      angle = exact_angles(grouped, constants(constant_seed, num_features, group_size, gamma))
    _share(x.shape[-1], groups)
    code = network(params, features(angle)).reshape(*shape, x.shape[-1])
    return (x + jnp.broadcast_to(code, x.shape)).astype(x.dtype)

  return Scheme(init_model=init_model, embed=embed, traits=Traits(axes))


def _share(width: int, groups: int) -> int:
  """The width of the code of one group."""
  if width % groups:
    raise ValueError(f'The {groups} groups must divide the width, but got {width}.')
  return width // groups
