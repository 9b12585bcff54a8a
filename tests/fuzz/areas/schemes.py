"""Constructors of all schemes, `Dims`, `init`, `split`, `merge`, `chain`, `get` and `positions`."""

import functools
import inspect
import re
import string
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import posjax
from posjax.scheme import declares
from tests.fuzz.areas.subjects import DIMS, KEYS, QUERIES, heads, lines, module, subject
from tests.fuzz.case import Case, draw, line, normal, refused, short

NAN, INF = float('nan'), float('inf')
# By the annotation of an argument: what it must refuse, and what it may take or refuse.
REFUSED: dict[Any, list[Any]] = {
  bool: ['False', 'no', 2, -1, 0.5, NAN, [], [1], {}, b'x'],
  int: [1.5, NAN, INF, '3', [3], {}, 1j, np.ones(2, 'int32')],
  float: [NAN, '1', [1.0], {}, 1j, np.ones(2, 'float32')],
}
ODD: dict[Any, list[Any]] = {
  bool: [0, 1, np.bool_(True)],
  int: [0, -1, 1, 7, True, np.int64(4), 4.0, 2**40, -(2**40), 10**30],
  float: [INF, -INF, 0, 0.0, -1.0, 1e-30, 1e30, 3, True, np.float32(2)],
}


def cases() -> list[Case]:
  """All cases of this file."""
  makers = [case for name in posjax.names() for case in constructors(name)]
  return [*makers, *sizes(), *trees(), *chains(), *expressions(), *world()]


# Constructors.


def given(name: str) -> dict[str, Any]:
  """The arguments with which a scheme's example is made."""
  found = re.fullmatch(r'\w+\((.*)\)', getattr(module(name), 'EXAMPLE', name))
  return eval(f'dict({found[1]})') if found else {}


def constructors(name: str) -> Iterator[Case]:
  """Each argument of a scheme, wrong and odd."""
  make, fixed = module(name).scheme, given(name)
  for argument in inspect.signature(make).parameters.values():
    kinds = [kind for kind in (bool, int, float) if kind in kinds_of(argument.annotation)]
    for value in [*wrong_values(argument, kinds), *[v for kind in kinds for v in ODD[kind]]]:
      named = {**fixed, argument.name: value}
      odd = any(value is each for kind in kinds for each in ODD[kind])
      title = line(f'posjax.schemes.{name}.scheme', **named)
      if not odd:
        call = functools.partial(make, **named)
        yield Case(title, call, refused)
      elif not (isinstance(value, int) and abs(value) > 2**39 and argument.name == 'num_layers'):
        yield Case(title, functools.partial(used, make, named), means_something(value))
  yield Case(line(f'{name}.scheme', nothing=3), functools.partial(posjax.get, f'{name}(nothing=3)'))


def kinds_of(annotation: Any) -> tuple[Any, ...]:
  return getattr(annotation, '__args__', (annotation,))


def wrong_values(argument: inspect.Parameter, kinds: list[Any]) -> list[Any]:
  """What an argument must refuse, by its annotation."""
  optional = type(None) in kinds_of(argument.annotation)
  missing = [] if optional else [None]
  if not kinds:
    return [3.5, {}, object(), *missing]
  return [*REFUSED[kinds[-1]], *missing]


def used(make: Any, named: dict[str, Any]) -> Any:
  """Makes a scheme, its parameters, and one attention with it. Refusals may come at each step."""
  scheme = make(**named)
  shapes = jax.eval_shape(lambda: posjax.init(scheme, jax.random.key(0), DIMS))
  if sum(leaf.size for leaf in jax.tree.leaves(shapes)) > 2**22:
    return None  # a table that large is a matter of memory
  params = posjax.init(scheme, jax.random.key(0), DIMS)
  pos = jnp.arange(KEYS)
  pos = (
    pos
    if scheme.traits.axes < 2
    else jnp.stack([pos // 3, *[pos % 3] * (scheme.traits.axes - 1)], -1)
  )
  tokens = jnp.arange(KEYS)[None]
  x = scheme.embed(params, jnp.asarray(normal(1, KEYS, DIMS.width)), tokens, pos[None])
  at = None
  if declares(scheme, 'prepare'):
    params, at = posjax.prepare(scheme, params, x, pos[None])
  q, k, v = (y[:1] for y in heads())
  q_at = None if at is None else jax.tree.map(lambda leaf: leaf[:, -QUERIES:], at)
  sides = {'q_pos': pos[-QUERIES:], 'k_pos': pos, 'q_at': q_at, 'k_at': at}
  return x, posjax.attend(q, k, v, scheme, params, **sides)


def means_something(value: Any):
  """The check of an odd value that is accepted: it gives finite numbers.

  Beyond a table, outputs are NaN: so of small sizes nothing is asked, nor of what overflows.
  """
  small = isinstance(value, (int, float, np.integer)) and (0 < value < KEYS or value >= 1e30)

  def check(result):
    if result is None or small:
      return ''
    finite = all(bool(jnp.isfinite(x).all()) for x in result)
    return '' if finite else f'accepted {short(value)}, and gives numbers that are not finite'

  return check


# Sizes and parameters.

SIZES = [1.5, 2.0, NAN, INF, '4', None, [4], {}, 0, -1, -(2**40), 1j, np.ones(2, 'int32'), b'4']


def sizes() -> Iterator[Case]:
  """`Dims` with one wrong size, in the schemes that read it."""
  readers = ('alibi', 't5', 'learned', 'deberta', 'complex_order', 'none', 'rope+alibi')
  for name in readers:
    for field in posjax.Dims._fields:
      for value in SIZES:
        if (field == 'num_kv_heads' and value is None) or (field == 'vocab' and value is SIZES[8]):
          continue
        sized = functools.partial(made_with, name, {field: value})
        yield Case(f'init({name!r}, {line("Dims", **{field: value})})', sized, refused)
    for kv_heads in (3, 5, 8):
      sized = functools.partial(made_with, name, {'num_kv_heads': kv_heads})
      yield Case(f'init({name!r}, Dims(num_heads=4, num_kv_heads={kv_heads}))', sized, refused)


def made_with(name: str, sizes: dict[str, Any]) -> Any:
  dims = posjax.Dims(**{**DIMS._asdict(), **sizes})
  return posjax.init(posjax.get(name), jax.random.key(0), dims)


def trees() -> Iterator[Case]:
  """`init`, `split` and `merge` of what they cannot take; and of every scheme's parameters."""
  key = jax.random.key(0)
  alibi, both = posjax.get('alibi'), posjax.get('rope+alibi')
  for value in (None, 3, 'alibi', {}, (), [alibi], posjax.Scheme):
    yield Case(
      line('posjax.init', value), functools.partial(posjax.init, value, key, DIMS), refused
    )
    yield Case(line('posjax.places', value), functools.partial(posjax.places, value), refused)
    yield Case(line('posjax.split', value, {}), functools.partial(posjax.split, value, {}), refused)
  t5 = posjax.get('t5')
  for value in (None, 'x', 0.5, [], np.ones(3, 'float32'), {}):
    yield Case(line('posjax.init', 't5', value), functools.partial(posjax.init, t5, value, DIMS))
  for value in (None, 3, (16, 4), {}, 'x', {'width': 16}):
    yield Case(
      line('posjax.init', 't5', 'key', value),
      functools.partial(posjax.init, t5, key, value),
      refused,
    )
  for value in (None, {}, [], 'x', ({},), ({}, {}, {}), 3):
    yield Case(
      line('posjax.split', 'rope+alibi', value),
      functools.partial(posjax.split, both, value),
      refused,
    )
  x, pos = jnp.ones((2, 3, 16)), jnp.ones((2, 3), jnp.int32)
  for value in (None, 3, 'alibi', {}, posjax.Scheme):
    call = functools.partial(posjax.prepare, value, {}, x, pos)
    yield Case(line('posjax.prepare', value), call, refused)
  for value in (None, 3, [x], x[0], x[None]):
    call = functools.partial(posjax.prepare, alibi, {}, value, pos)
    yield Case(line('posjax.prepare', 'alibi', {}, value), call, refused)
  for value in (3, [1, 2], 'x', pos[0], pos[:, :2], pos[..., None], 1.0 * pos, pos > 0):
    call = functools.partial(posjax.prepare, alibi, {}, x, pos, segments=value)
    yield Case(line('posjax.prepare', 'alibi', segments=value), call, refused)
    call = functools.partial(posjax.prepare, alibi, {}, x, pos, last_segment=value)
    yield Case(line('posjax.prepare', 'alibi', last_segment=value), call, refused)
  for pair in (({'a': 1}, {'a': 2}), ({}, ({},)), (({},), ({}, {})), (None, {}), ({}, 'x'), (3, 4)):
    yield Case(line('posjax.merge', *pair), functools.partial(posjax.merge, *pair), refused)
  for name in lines():
    call = lambda name=name: posjax.merge(*posjax.split(posjax.get(name), subject(name).raw))
    same = lambda tree, name=name: '' if same_tree(tree, subject(name).raw) else 'the tree differs'
    yield Case(f'merge(*split({name!r}))', call, same, valid=True)


def same_tree(one: Any, other: Any) -> bool:
  if jax.tree.structure(one) != jax.tree.structure(other):
    return False
  return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def chains() -> Iterator[Case]:
  """`chain` with what is no scheme, and with schemes that do not fit."""
  alibi, grid = posjax.get('alibi'), posjax.get('axial_rope')
  for value in (None, 'rope', 3, {}, (), [alibi], posjax.Scheme, (alibi, grid)):
    before = functools.partial(posjax.chain, value, alibi)
    yield Case(line('posjax.chain', value, 'alibi'), before, refused)
    after = functools.partial(posjax.chain, alibi, value)
    yield Case(line('posjax.chain', 'alibi', value), after, refused)
  learned = posjax.get('t5')
  yield Case('chain(axial_rope, t5)', functools.partial(posjax.chain, grid, learned))
  yield Case(
    'chain(axial_rope, mrope)',
    functools.partial(posjax.chain, grid, posjax.get('mrope(sections=(1, 2, 1))')),
    refused,
  )


# Lines of text.

LINES = [
  *('', ' ', '+', 'rope+', '+rope', 'rope++alibi', 'rope-alibi', 'rope alibi', 'rope#+alibi'),
  *('rope #', '#', 'rope\n+alibi', 'rope\nalibi', 'rope;alibi', 'rope,alibi', '(rope'),
  *(
    'rope)',
    'rope(',
    'rope()',
    'rope()()',
    'rope(1)(2)',
    'rope(base)',
    'rope(base=)',
    'rope(**{})',
  ),
  *('rope(*[1])', 'rope(base=1,base=2)', 'rope(base=__import__("os"))', 'rope(base=1e999)'),
  *('rope(base="5")', 'rope(base=nan)', 'rope.scheme', 'rope[0]', 'lambda: 0', 'rope if 1 else 2'),
  *('ROPE', 'Rope', 'róp', 'ｒｏｐｅ', 'rope\x00', '\ud800', 'rope\ud800', '​rope', '\ufefft5'),
  *('__init__', '.', '..', '../rope', 'os', 'scheme', 'none+none', 'none', 'rope + alibi '),
  *('rope(base=1e4)+alibi(learned=True)', "dape('t5')", "dape(inner='dape')", "dape('nope')"),
  *(
    'dape("rope+alibi")',
    'yarn',
    'yarn()',
    'yarn(4.0)',
    'alibi(1, 2, 3, 4, 5)',
    'alibi(learn=True)',
  ),
  *('rope(' * 300, '(' * 300, '+'.join(['rope'] * 3000), 'rope+' * 100 + 'nope', 'x' * 100_000),
  *(
    'rope(base=' + '9' * 5000 + ')',
    'rope(base=' + '(' * 200 + '1' + ')' * 200 + ')',
    'rope(base=1_0)',
  ),
  *('rope(base=10000.0)  # comment', 'rope \\\n+alibi', 'rope(base=True)', "'rope'", 'f"rope"'),
]


def expressions() -> Iterator[Case]:
  """`posjax.get` of texts, right and wrong, and of what is no text."""
  for value in (None, 3, 1.5, True, [], ['rope'], {}, b'rope', posjax.Scheme(), object(), NAN):
    yield Case(line('posjax.get', value), functools.partial(posjax.get, value), refused)
  pieces = st.sampled_from([*posjax.names(), '+', '(', ')', '=', ',', '#', ' ', 'base', '1', "'"])
  mixed = st.lists(pieces, min_size=1, max_size=7).map(''.join)
  letters = st.text(st.sampled_from(string.printable + 'é\u200b\ud800'), max_size=12)
  for text in [*LINES, *draw(mixed, 60), *draw(letters, 40)]:
    call = functools.partial(posjax.get, text)
    check = functools.partial(reads_all_of, text)
    yield Case(f'posjax.get({short(text)})', call, check, valid=is_plain(text))


def reads_all_of(text: str, scheme: posjax.Scheme) -> str:
  """Whether the scheme has a member for each name that the text holds."""
  names = re.findall(r'[A-Za-z_]\w*(?=\s*[(+]|\s*\Z)', re.sub(r'\([^()]*\)', '()', text))
  wanted = [name for name in names if name != 'none']
  found = len(scheme.parts) or int(scheme != posjax.Scheme())
  comment = '#' in re.sub(r'\([^()]*\)', '', text)
  if comment or found != len(wanted) or not set(names) <= set(posjax.names()):
    return f'read as {found} members, where the text names {wanted}'
  return ''


def is_plain(text: str) -> bool:
  """Whether a text is names of schemes with a `+` between, which fit one another."""
  names = [name.strip(' ') for name in text.split('+')]
  free = {'rope', 'alibi', 't5', 'shaw', 'sinusoidal', 'none', 'cope'}
  return len(names) < 20 and all(name in free for name in names)


# Ids from the world.


def world() -> Iterator[Case]:
  """The functions of `posjax.positions`."""
  positions = posjax.positions
  ints = [-1, 1.5, '3', None, [3], NAN, 2**31, {}, True, 1j]
  for value in ints:
    wrong = refused if value not in (True,) else lambda out: ''
    yield Case(
      line('sequential', value),
      functools.partial(positions.sequential, value),
      wrong,
    )
    yield Case(line('grid', value, 2), functools.partial(positions.grid, value, 2), wrong)
    yield Case(line('grid', 2, value), functools.partial(positions.grid, 2, value), wrong)
  for value in [1.5, '3', None, NAN, 2**31, -(2**31) - 1, 2**31 - 2, normal(2), {}, 'x', 1j, [0.5]]:
    call = functools.partial(positions.sequential, 4, value)
    yield Case(line('sequential', 4, value), call, refused)
  for value in ([0, 7], np.array([0, 7]), np.int64(5), True, -3, np.array([2**40])):
    call = functools.partial(positions.sequential, 4, value)
    yield Case(line('sequential', 4, value), call, functools.partial(counts_from, value))
  for value in [None, 'x', 3, True, [True, False], normal(2, 3), np.ones((2, 3), 'int32'), {}]:
    call = functools.partial(positions.from_mask, value)
    check = (lambda out: '') if isinstance(value, (bool, list)) else refused
    yield Case(line('from_mask', value), call, check)
  for value in [None, 'x', 3.5, normal(2, 3), np.ones((2, 3), bool), {}, np.int32(3), [1.0, 2.0]]:
    call = functools.partial(positions.from_segments, value)
    yield Case(line('from_segments', value), call, refused)
  for segments in draw(st.lists(st.integers(0, 3), min_size=1, max_size=8), 20):
    call = functools.partial(positions.from_segments, jnp.asarray(segments, jnp.int32))
    yield Case(
      line('from_segments', segments), call, functools.partial(numbered_in, segments), valid=True
    )


def counts_from(offset: Any, ids: Any) -> str:
  expected = np.asarray(offset).astype(object)[..., None] + np.arange(4)
  return '' if np.array_equal(np.asarray(ids), expected) else f'wrong ids: {ids.tolist()}'


def numbered_in(segments: list[int], ids: Any) -> str:
  """Counts each run of equal segments, one token after the other."""
  expected, last = [], None
  for number in segments:
    expected.append(expected[-1] + 1 if number == last and number else 0)
    last = number
  return '' if ids.tolist() == expected else f'wrong ids: {ids.tolist()}, not {expected}'
