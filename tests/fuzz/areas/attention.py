"""`attend` with one wrong argument, for schemes of each kind; and with many that fit, for all."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import posjax
from posjax.scheme import declares
from tests.fuzz import oracle
from tests.fuzz.areas.subjects import DIMS, KEYS, QUERIES, Subject, heads, lines, subject
from tests.fuzz.case import Case, draw, line, normal, refused

NAN, INF = float('nan'), float('inf')
KINDS = ('none', 'rope', 'alibi', 't5', 'shaw', 'cope', 'deberta', 'randomized+rope')
KEY = jax.random.key(3)
T, S, H, D = QUERIES, KEYS, DIMS.num_heads, DIMS.head_dim


def cases() -> list[Case]:
  """All cases of this file."""
  wrong = [case for name in KINDS for case in one_wrong(name)]
  return [*wrong, *under_jit(), *fitting(), *all_ways()]


def attend(one: Subject | str, **changes: Any) -> Any:
  """`attend` on the small arrays, with some arguments changed. A line names its subject."""
  one = subject(one) if isinstance(one, str) else one
  q, k, v = heads()
  arguments = {'q': q, 'k': k, 'v': v, 'scheme': one.scheme, 'params': one.params, **one.sides()}
  return posjax.attend(**{**arguments, **changes})


def expected(one: Subject | str, **changes: Any) -> np.ndarray:
  """What `attend` must return for these arguments."""
  one = subject(one) if isinstance(one, str) else one
  q, k, v = heads()
  arguments = {'q': q, 'k': k, 'v': v, 'scheme': one.scheme, 'params': one.params, **one.sides()}
  return oracle.attention(**{**arguments, **changes})


def agrees(one: Subject | str, **changes: Any):
  """The check of an accepted call: the oracle's output."""
  return lambda out: oracle.difference(out, expected(one, **changes))


def ids(count: int, dtype: Any) -> np.ndarray:
  return np.arange(count).astype(dtype)


def arrays(name: str) -> list[Any]:
  """Wrong values of q, k or v."""
  x = {'q': heads()[0], 'k': heads()[1], 'v': heads()[2]}[name]
  integers = [(np.asarray(x) * 10).astype(kind) for kind in ('int32', 'int8', 'uint8', 'bool')]
  shapes = [x[0, 0], x[..., 0], jnp.swapaxes(x, 1, 2), x[:1], x[:, :, :0]]
  shapes += [] if name == 'v' else [x[..., :3]]
  return [*integers, *shapes, np.asarray(x).tolist(), None, 'x', 1.0, object()]


def positions(name: str, count: int) -> list[Any]:
  """Wrong ids, orders or segments of `count` tokens."""
  kinds = [ids(count, kind) for kind in ('bool', 'complex64', 'float16', '<U3')]
  kinds += [ids(count, 'float32')] if 'segments' in name else []
  kinds += [np.full(count, NAN, 'float32')] if 'order' in name else []
  shapes = [ids(count + 1, 'int32'), ids(count, 'int32')[:, None, None], np.int32(3)]
  shapes += [np.zeros((3, count), 'int32'), np.zeros((2, count, 2, 2), 'int32')]
  return [*kinds, *shapes, 'x', ids(count, 'int32').tolist(), 3.5, {}]


WRONG = {
  'scheme': [None, 3, 'no_such_scheme', {}, (), posjax.Scheme, lambda: None],
  'causal': ['no', 'False', 2, -1, 0.5, NAN, [], np.array([True, False])],
  'window': [
    *(NAN, INF, 1.5, 0, -3, 2**31, 2**40, '3', [3], np.array([3, 3])),
    *((), (1,), (1, 2, 3), (-1, 2), (2, -1), (1.5, 2), ('1', 2), (2**31, 0), (NAN, 1), {1, 2}),
  ],
  'logit_cap': [NAN, INF, 0, -1.0, '5', [5.0], np.ones(2, 'float32'), 1j],
  'scale': [NAN, INF, -INF, '1', [1.0], np.ones(2, 'float32'), 1j, {}],
  'dropout_rate': [NAN, INF, -0.1, 1.0, 2, '0.5', None, [0.5], 0.5, np.float32(0.5)],
  'dropout_key': ['x', 3, 1.5, [], {}, np.zeros((3,), 'float32')],
  'implementation': ['fast', '', 1, True, [], 'DENSE', 'ring', 'all_gather'],  # without a mesh
  'mask': [
    *(np.ones(shape, bool) for shape in ((S, T + 3), (T,), (3, T, S), (2, 3, T, S), (2, T, S))),
    *('x', 1, 0.5, [[True] * S] * T, {}, np.ones((T, S), 'object')),
  ],
  'bias': [
    *(np.ones(shape, 'float32') for shape in ((S, T + 3), (T,), (), (3, T, S), (5, 1, T, S))),
    *(np.ones((T, S), kind) for kind in ('bool', 'int32', 'complex64', 'object')),
    *('x', 1.0, [[0.0] * S] * T, {}),
  ],
  'sinks': [
    *(np.ones(shape, 'float32') for shape in ((H + 1,), (1,), (H, 1), ())),
    *(np.ones(H, kind) for kind in ('int32', 'bool', 'complex64')),
    *([0.0] * H, 'x', 1.0, {}),
  ],
}
# Legal, but unusual: these may be refused, and the oracle decides if they are accepted.
UNUSUAL = {
  'causal': [True, False, np.bool_(True), np.bool_(False), 0, 1, None],
  'window': [
    *(1, 3, 2.0, np.int64(2), np.int32(2), True, 10**6),
    *((1, 0), (0, 2), (None, 1), (2, None), (None, None), [1, 1], (10**6, 2**31 - 1)),
  ],
  'logit_cap': [5, 0.5, np.float32(2), True],
  'scale': [0, 0.0, -1.0, 1, np.float32(0.3), True, jnp.float32(0.3)],
  'mask': [
    *(np.ones(shape, bool) for shape in ((2, 1, 1, S), (1, 1, T, 1), (2, H, T, S))),
    *(np.tril(np.ones((T, S))).astype(kind) for kind in ('int32', 'float32', 'uint8')),
  ],
  'bias': [
    *(normal(*shape) for shape in ((T, S), (H, T, S), (2, 1, 1, S), (1, H, T, 1), (2, H, T, S))),
    np.where(np.tril(np.ones((T, S))) > 0, 0, -INF).astype('float32'),
    normal(T, S).astype('float16'),
  ],
  'implementation': ['dense', 'blockwise', None],
}


def one_wrong(scheme: str) -> Iterator[Case]:
  """Calls of `attend` in which one argument is wrong, or unusual."""
  wrong = {**WRONG, **{name: arrays(name) for name in ('q', 'k', 'v')}}
  wrong['params'] = [None, [], 'x', 3, {'nothing': np.ones(3, 'float32')}, ({},) * 7]
  for side, count in (('q', T), ('k', S)):
    if posjax.get(scheme).traits.axes < 2:
      wrong[f'{side}_pos'] = [None, *positions('pos', count)]
      wrong[f'{side}_order'] = positions('order', count)
    wrong[f'{side}_segments'] = [np.ones(count, 'int32'), *positions('segments', count)]
  for name, values in wrong.items():
    for value in values:
      changes = {name: value}
      changes |= {'causal': True} if name.endswith('order') else {}
      if name.endswith('segments'):  # beside those of the other side, but for the first one
        other, count = ('k_segments', S) if name[0] == 'q' else ('q_segments', T)
        changes |= {} if value is values[0] else {other: np.ones(count, 'int32')}
      changes |= {'dropout_rate': 0.5} if name == 'dropout_key' else {}
      yield Case(
        line('attend', scheme, **changes),
        functools.partial(attend, scheme, **changes),
        refused_unless_same(scheme, name, value, changes),
      )
  for name, values in UNUSUAL.items():
    for value in values:
      changes = {name: value}
      yield Case(
        line('attend', scheme, **changes),
        functools.partial(attend, scheme, **changes),
        agrees(scheme, **changes),
      )


def refused_unless_same(scheme: str, name: str, value: Any, changes: dict[str, Any]):
  """Wrong values must be refused; but lists may be read as arrays, and lines by `posjax.get`."""
  if isinstance(value, list) and name in ('mask', 'bias', 'sinks', 'q_pos', 'k_pos', 'q', 'k', 'v'):
    return agrees(scheme, **{**changes, name: np.asarray(value)})
  own = any(declares(posjax.get(scheme), field) for field in ('init', 'init_model'))
  if name == 'params' and value is None and not own:
    return lambda out: ''
  return refused


def under_jit() -> Iterator[Case]:
  """Wrong shapes and dtypes, where values are not known."""
  for name in ('none', 'rope', 't5'):
    for argument in ('q', 'k', 'v', 'q_pos', 'k_pos', 'sinks', 'mask', 'bias'):
      values = {
        'sinks': WRONG['sinks'][:7],
        'mask': WRONG['mask'][:8],
        'bias': WRONG['bias'][:8],
      }.get(argument)
      values = values or (arrays(argument)[:8] if argument in 'qkv' else positions('pos', 5)[:3])
      for value in (value for value in values if hasattr(value, 'dtype')):
        if value.dtype.kind not in 'fiubc':
          continue
        call = lambda x, name=name, argument=argument: jax.eval_shape(
          lambda x: attend(name, **{argument: x}), x
        )
        title = line('eval_shape(attend)', name, **{argument: value})
        yield Case(title, functools.partial(call, value), refused)


@st.composite
def options(found):
  """Arguments of `attend` that fit one another."""
  pick = lambda *values: found(st.sampled_from(values))
  arguments: dict[str, Any] = {
    'causal': pick(True, False),
    'window': pick(None, None, 1, 2, 3, (2, None), (1, 0), (0, 0)),
    'logit_cap': pick(None, None, 5.0),
    'scale': pick(None, None, 0.3, 1.0),
  }
  if pick(True, False):
    arguments['sinks'] = jnp.asarray(normal(H))
  if pick(True, False):
    numbers = np.asarray([found(st.integers(0, 2)) for _ in range(S)], 'int32')
    arguments |= {'q_segments': numbers[-T:], 'k_segments': numbers}
  shape = pick(None, None, (T, S), (2, 1, T, S), (1, H, T, S), (2, H, T, S))
  if shape:
    seed = found(st.integers(0, 99))
    arguments['mask'] = jnp.asarray(np.random.default_rng(seed).random(shape) < 0.6)
  shape = pick(None, None, (T, S), (2, 1, 1, S), (1, H, T, S), (2, H, T, 1))
  if shape:
    seed = found(st.integers(0, 99))
    arguments['bias'] = jnp.asarray(np.random.default_rng(seed).normal(size=shape), 'float32')
  return arguments, pick('dense', 'dense', 'dense', 'blockwise')


def fitting() -> Iterator[Case]:
  """Calls that must be accepted, for every scheme, with options that hypothesis draws."""
  drawn = draw(options(), 5 * len(lines()))
  for (arguments, implementation), name in zip(drawn, itertools.cycle(lines()), strict=False):
    yield Case(
      line('attend', name, implementation=implementation, **arguments),
      functools.partial(attend, name, implementation=implementation, **arguments),
      agrees(name, **arguments),
      valid=True,
    )


def all_ways() -> Iterator[Case]:
  """Other dtypes, and gradients: the same in all implementations."""
  for name in lines():
    q, k, v = heads(dtype='bfloat16')
    half = {'q': q, 'k': k, 'v': v, 'causal': True}
    call = functools.partial(attend, name, **half)
    yield Case(line('attend', name, **half), call, agrees(name, **half))
    yield Case(
      f"grad(attend)({name!r}), 'dense' and 'blockwise'",
      functools.partial(gradients, name),
      same_gradients,
      valid=True,
    )


def gradients(name: str) -> list[Any]:
  """Gradients of q, k and v, by both implementations."""

  def number(qkv, implementation):
    q, k, v = qkv
    out = attend(name, q=q, k=k, v=v, causal=True, implementation=implementation)
    return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum()

  return [jax.grad(number)(heads(), name) for name in ('dense', 'blockwise')]


def same_gradients(both: list[Any]) -> str:
  """Whether dense and blockwise attention have the same gradients."""
  for one, other in zip(*both, strict=True):
    fault = oracle.difference(one, np.asarray(other, np.float64), 'the other implementation')
    if fault:
      return f'gradients: {fault}'
  return ''
