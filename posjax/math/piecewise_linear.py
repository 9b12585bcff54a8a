"""A ReLU network of one number, computed from its straight pieces.

Such a network is a straight line between its knots, the points where a hidden unit turns on or off.
The numbers of a tile lie in an interval with few knots, in most tiles one or none. The offset and
the slope of each piece are then all of the network there, so that no hidden unit is computed for a
pair. Values and derivatives are exactly the network's own. Where there are many knots, and on
accelerators, for which the network's products are cheap, the network itself is run.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from posjax.math.network import network

_MOST = 24  # knots of an interval that is computed from its pieces

_run = functools.partial(network, activation=jax.nn.relu)


def relu_network(
  params: dict[str, Any], x: Float[Array, '*shape']
) -> Float[Array, 'outputs *shape']:
  """`network.network` with ReLU and one input, from its straight pieces where they are few.

  Only for attention in tiles: derivatives are of first order, and backward.

  Args:
    params: of `network.network`, with kernel_0 [1, width] and no norm.
    x: finite inputs; few knots lie between numbers that are close together.

  Example:
    >>> params = {'kernel_0': jnp.ones((1, 1)), 'offset_0': jnp.ones(1)}
    >>> params['kernel_1'] = jnp.array([[2.0]])
    >>> relu_network(params, jnp.array([3.0, -3.0]))
    Array([[8., 0.]], dtype=float32)
  """
  # Rows stay rows, from which XLA writes vectors of its CPU.
  return _by_pieces(params, x.reshape(-1, x.shape[-1])).reshape(-1, *x.shape)


@jax.custom_vjp
def _by_pieces(params, x):
  return _forward(params, x)[0]


def _forward(params, x):
  points, count = knots(params, x.min(), x.max(), _MOST)
  whole = lambda params, x, points: _run(params, x[None])
  return _by_count(count, (_bend, _pieces, whole), params, x, points), (params, x, points, count)


def _backward(saved, d_out):
  *args, count = saved
  whole = lambda params, x, points, d_out: jax.vjp(
    lambda params, x: _run(params, x[None]), params, x
  )[1](d_out)
  return _by_count(count, (_bend_back, _pieces_back, whole), *args, d_out)


_by_pieces.defvjp(_forward, _backward)


def _by_count(count: Int[Array, ''], ways: Sequence[Callable[..., Any]], *args):
  """Calls one of three functions on a CPU: for at most one knot, for few, or for many.

  Other devices always call the last one, the network itself.
  """
  which = (count > 1).astype(jnp.int32) + (count > _MOST).astype(jnp.int32)
  by_pieces = lambda *args: lax.switch(which, ways, *args)
  return lax.platform_dependent(*args, cpu=by_pieces, default=ways[-1])


def knots(
  params: dict[str, Any], low: Float[Array, ''], high: Float[Array, ''], most: int
) -> tuple[Float[Array, ' points'], Int[Array, '']]:
  """The ends of an interval with the first `most` knots between them, and how many there are.

  Args:
    params: as in `relu_network`.
    low: the interval's least number.
    high: its largest.
    most: knots to keep.

  Returns:
    `most` + 2 rising numbers, `high` in the place of knots that are not there; and the number of
    knots, which is only known to be larger than `most` where it is.

  Example:
    >>> params = {'kernel_0': jnp.ones((1, 2)), 'offset_0': jnp.array([-0.5, -2.0])}
    >>> params['kernel_1'] = jnp.ones((2, 1))
    >>> points, count = knots(params, jnp.array(0.0), jnp.array(1.0), most=2)
    >>> points, int(count)
    (Array([0. , 0.5, 1. , 1. ], dtype=float32), 1)
  """
  points = jnp.full(most + 2, high).at[0].set(low)
  count = jnp.zeros((), int)
  for layer in range(sum(name.startswith('offset_') for name in params)):
    unit = _before_activation(params, points, layer)
    start, end = unit[:, :-1], unit[:, 1:]
    crosses = (start < 0) != (end < 0)
    share = start / jnp.where(crosses, start - end, 1)
    found = jnp.where(crosses, points[None, :-1] + share * jnp.diff(points)[None], high)
    inside = -lax.top_k(-jnp.concatenate([points[1:-1], found.ravel()]), most)[0]
    points = jnp.concatenate([points[:1], inside, points[-1:]])
    count = count + crosses.sum()
  return points, count


def _bend(params, x, points):
  """The network on an interval with at most one knot, the second point."""
  before, after = _two_lines(params, points)
  line = lambda offset, slope: offset + slope * x[None]
  return jnp.where(x[None] >= points[1], line(*after), line(*before))


def _bend_back(params, x, points, d_out):
  """The cotangents of the parameters and of `x`, for an interval with at most one knot."""
  lines, back = jax.vjp(lambda params: _two_lines(params, points), params)
  after_knot = x >= points[1]
  one = jnp.ones_like(x)
  sides = ~after_knot, after_knot
  parts = [jnp.where(side, part, 0).ravel() for side in sides for part in (one, x)]
  flat = d_out.reshape(d_out.shape[0], -1)
  found = jnp.einsum('hn,cn->ch', flat, jnp.stack(parts), precision=lax.Precision.HIGHEST)
  d_lines = found.reshape(2, 2, -1, 1, 1)
  (d_params,) = back(((d_lines[0, 0], d_lines[0, 1]), (d_lines[1, 0], d_lines[1, 1])))
  (_, first), (_, second) = lines
  heads = zip(d_out, first, second, strict=True)
  return d_params, sum(head * jnp.where(after_knot, after, before) for head, before, after in heads)


def _two_lines(params, points):
  """(offset, slope), [outputs, 1, 1] each, before the second point; and after it."""
  lines = _lines(params, points[:3])
  return tuple(tuple(part[:, i, None, None] for part in lines) for i in range(2))


def _pieces(params, x, points):
  """The network on an interval all of whose knots are among `points`."""
  piece = _piece(x.ravel(), points)
  offset, slope = _lines(params, points)
  first = offset.shape[1] * jnp.arange(offset.shape[0])
  each = first[:, None] + piece[None]
  out = _at(offset.ravel(), each) + _at(slope.ravel(), each) * x.reshape(1, -1)
  return out.reshape(-1, *x.shape)


def _pieces_back(params, x, points, d_out):
  """The cotangents of the parameters and of `x`, for an interval with few knots."""
  (_, slope), back = jax.vjp(lambda params: _lines(params, points), params)
  piece, d_out = _piece(x.ravel(), points), d_out.reshape(d_out.shape[0], -1)
  both = jnp.concatenate([d_out, d_out * x.reshape(1, -1)]).T
  (d_params,) = back(tuple(jnp.split(jax.ops.segment_sum(both, piece, points.size - 1).T, 2)))
  # One output after the other: XLA sums over a first axis ten times more slowly on CPU.
  d_x = jnp.asarray(sum(one * _at(row, piece) for one, row in zip(d_out, slope, strict=True)))
  return d_params, d_x.reshape(x.shape)


def _lines(params, points):
  """offset + slope x between each two neighbouring points: [outputs, points - 1] of either."""
  middle = (points[:-1] + points[1:]) / 2
  value, slope = jax.jvp(lambda x: _run(params, x[None]), (middle,), (jnp.ones_like(middle),))
  return value - slope * middle[None], slope


def _piece(x, points):
  """Between which points each number lies."""
  return (x[None] >= points[1:-1, None]).sum(0)


def _at(row, piece):
  return row.at[piece].get(mode='promise_in_bounds')


def _before_activation(params, x, layer):
  """Units of a hidden layer before their ReLU, [width, points]."""
  shorter = {f'kernel_{i}': params[f'kernel_{i}'] for i in range(layer + 1)}
  shorter |= {f'offset_{i}': params[f'offset_{i}'] for i in range(layer)}
  return _run(shorter, x[None]) + params[f'offset_{layer}'][:, None]
