"""Numbers at the ends of what is represented, and NaN in tokens that nobody may see."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import posjax
from posjax.scheme import Scheme, declares
from tests.fuzz import oracle
from tests.fuzz.areas.attention import agrees, attend, expected
from tests.fuzz.areas.subjects import DIMS, KEYS, QUERIES, heads, lines
from tests.fuzz.case import Case, line, refused

WAYS = ('dense', 'blockwise')
INF = float('inf')


def cases() -> list[Case]:
  """All cases of this file."""
  return [*far(), *steep(), *hidden(), *whole_numbers(), *empty()]


def far() -> Iterator[Case]:
  """Ids or orders at a great distance: what would wrap is refused, what fits is exact."""
  offsets = (2**31 - 1, 2**30, 2**24, -(2**31), -(2**30))
  for name in ('none', 'rope', 'alibi', 't5', 'shaw', 'fire(threshold=4.0, width=8)', 'laplace'):
    for way in WAYS:
      for first, other in ((a, b) for a in offsets for b in (0, -a - 1)):
        if abs(first) >= 2**31 and first > 0:
          continue
        k_order = np.arange(KEYS).astype('int32')
        k_order[0] = first
        q_order = np.arange(KEYS - QUERIES, KEYS).astype('int32')
        q_order[0] = np.clip(other, -(2**31), 2**31 - 1)
        changes = {'k_order': k_order, 'q_order': q_order, 'causal': True}
        wraps = int(q_order.astype(int).max() - k_order.astype(int).min()) >= 2**31
        wraps |= int(k_order.astype(int).max() - q_order.astype(int).min()) >= 2**31
        title = f'attend({name!r}, k_order[0]={first}, q_order[0]={q_order[0]}, causal, {way!r})'
        call = functools.partial(attend, name, implementation=way, **changes)
        yield Case(title, call, agrees(name, **changes), valid=not wraps)
    ids = np.arange(KEYS).astype('int32')
    for first in (2**31 - 1, -(2**31), 2**31 - KEYS):
      far_ids = ids.copy()
      far_ids[0] = first
      near = np.full(QUERIES, -3, 'int32')
      call = functools.partial(attend, name, k_pos=far_ids, q_pos=near)
      title = f'attend({name!r}, k_pos[0]={first}, q_pos=-3)'
      wraps = not -(2**31) <= -3 - first < 2**31
      if name == 'rope':  # it turns by each id alone, so there is no distance that could wrap
        yield Case(title, call, agrees(name, k_pos=far_ids, q_pos=near), valid=True)
      elif name != 'none':
        yield Case(title, call, refused if wraps else lambda out: '')


def biased(values: Any) -> Scheme:
  """A scheme that adds fixed numbers to the logits, by distance."""
  table = jnp.asarray(values, jnp.float32)

  def bias(params, distance):
    picked = table[jnp.clip(abs(distance).astype(jnp.int32), 0, len(table) - 1)]
    return jnp.broadcast_to(picked, (DIMS.num_heads, *distance.shape))

  return Scheme(bias=bias)


def steep() -> Iterator[Case]:
  """Logits far below -1e30, and biases of -inf."""
  tables = {
    'low': [-1.0e31, -1.1e31, -1.2e31, -3e38],
    'lowest': [-3.3e38, -3.4e38, -3.4e38, -3.4e38],
    'at the limit': [-1e30, -1.00001e30, -0.9999e30, -1e30],
    'high': [1e31, 1.1e31, 3e38, 0.0],
    'mixed': [-1e31, 0.0, -1e30, 1.0],
    'inf beside numbers': [0.0, -INF, 1.0, -INF],
    'inf at the query': [-INF, 0.0, 1.0, 2.0],
    'inf for all': [-INF, -INF, -INF, -INF],
    'inf and low': [-1e31, -INF, -1.5e31, -INF],
  }
  sides = {'q_pos': jnp.arange(KEYS)[-QUERIES:], 'k_pos': jnp.arange(KEYS)}
  q, k, v = heads()
  for name, table in tables.items():
    scheme = biased(table)
    for options in ({}, {'causal': True}, {'causal': True, 'sinks': jnp.zeros(4)}, {'window': 2}):
      reference = functools.partial(oracle.attention, q, k, v, scheme, {}, **sides, **options)
      for way in WAYS:
        call = functools.partial(
          posjax.attend, q, k, v, scheme, {}, **sides, **options, implementation=way
        )
        check = lambda out, reference=reference: oracle.difference(out, reference())
        yield Case(line(f'attend(bias {name})', way, **options), call, check, valid=True)
        loss = lambda q, call=call: call.func(q, *call.args[1:], **call.keywords).sum()
        yield Case(
          line(f'grad(attend)(bias {name})', way, **options),
          functools.partial(jax.grad(loss), q),
          lambda grads: '' if jnp.isfinite(grads).all() else 'gradients are not finite',
          valid=True,
        )
  for factor in (1e15, 3e15, 1e18):
    for way in WAYS:
      call = functools.partial(attend, 'none', q=q * factor, k=-abs(k) * factor)
      yield Case(
        f"attend('none', q * {factor}, -abs(k) * {factor}, {way!r})",
        functools.partial(call, implementation=way),
        lambda out: '' if jnp.isfinite(out).all() else 'the output is not finite',
      )


def hidden() -> Iterator[Case]:
  """NaN and infinity in tokens of segment 0, or that the mask hides from every query."""
  segments = np.array([1, 1, 0, 1, 1, 0], 'int32')
  masks = np.ones((QUERIES, KEYS), bool)
  masks[:, 2] = masks[:, 5] = False
  hiding = {
    'segments': {'k_segments': segments, 'q_segments': np.ones(QUERIES, 'int32')},
    'mask': {'mask': masks},
  }
  for name in lines():
    scheme = posjax.get(name)
    if declares(scheme, 'prepare'):
      continue  # `at` of a hidden token is a number of its own
    for how, options in hiding.items():
      for number, way in ((float('nan'), 'dense'), (INF, 'blockwise')):
        _, k, v = heads()
        spoiled = {'k': k, 'v': v.at[:, [2, 5]].set(number)}
        if 'S' not in scheme.traits.mixes:  # such a scheme sees the keys together
          spoiled['k'] = k.at[:, [2, 5]].set(number)
        title = f'attend({name!r}, {number} in tokens that {how} hides, {way!r})'
        call = functools.partial(attend, name, implementation=way, **spoiled, **options)
        check = lambda out, name=name, options=options: oracle.difference(
          out, expected(name, **options)
        )
        yield Case(title, call, check, valid=True)
    loss = lambda v, name=name: attend(name, v=v, **hiding['segments']).sum()
    spoiled = heads()[2].at[:, [2, 5]].set(float('nan'))
    yield Case(
      f'grad(attend)({name!r}, NaN in values of segment 0)',
      functools.partial(jax.grad(loss), spoiled),
      lambda grads: '' if jnp.isfinite(grads).all() else 'gradients are not finite',
      valid=True,
    )


def whole_numbers() -> Iterator[Case]:
  """q, k and v that are all integers or booleans, for every scheme."""
  for name in lines():
    for kind in ('int32', 'bool'):
      q, k, v = ((10 * np.asarray(x)).astype(kind) for x in heads())
      call = functools.partial(attend, name, q=q, k=k, v=v)
      yield Case(line('attend', name, q=q, k=k, v=v), call, refused)


def empty() -> Iterator[Case]:
  """No keys, no queries, no rows."""
  q, k, v = heads()
  for name in ('none', 'rope', 'alibi', 't5'):
    for way in (*WAYS, None):
      nothing = {
        'keys': {'k': k[:, :0], 'v': v[:, :0], 'k_pos': jnp.arange(0)},
        'queries': {'q': q[:, :0], 'q_pos': jnp.arange(0)},
        'rows': {'q': q[:0], 'k': k[:0], 'v': v[:0]},
        'width': {'q': q[..., :0], 'k': k[..., :0]},
      }
      for what, changes in nothing.items():
        call = functools.partial(attend, name, implementation=way, **changes)
        check = lambda out: '' if jnp.isfinite(out).all() else 'the output is not finite'
        yield Case(f'attend({name!r}, no {what}, {way!r})', call, check)
