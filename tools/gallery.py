"""Draws the gallery, notebooks/04_gallery.ipynb, with nothing but the public functions of posjax.

A `Subject` is a scheme with parameters, in a text of twice the trained length in which every word
is the same. `preference` measures by how much a query prefers each key to itself; the functions
`draw_...` fill one tile, and `gallery` lays tiles out.
"""

import functools
import importlib
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
from IPython.display import Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import posjax
from tools import schemes_page

TRAINED = 64  # tokens of a training text
WINDOW = 8  # rows and columns of a training picture, for schemes with two ids for each token
DIMS = posjax.Dims(width=128, num_heads=4, head_dim=32, vocab=1)
SHADES = plt.get_cmap('viridis')(np.linspace(0, 0.85, DIMS.num_heads))
DEEPEST = -20.0  # tiles show no lower logits, since their softmax is nothing
STYLE = {
  'figure.dpi': 110,
  'figure.facecolor': 'white',
  'axes.spines.top': False,
  'axes.spines.right': False,
  'font.size': 8,
  'axes.titlesize': 8,
  'image.cmap': 'viridis',
}

_FACTORS = tuple(np.geomspace(1, 2, DIMS.head_dim // 2).tolist())
# Where a scheme has arguments for lengths, these are what the text here asks for.
LINES = {
  'interpolated': 'interpolated(factor=2.0)',
  'randomized': f'randomized(max_length={4 * TRAINED})',
  'shifted': f'shifted(max_shift={2 * TRAINED})',
  'learned': f'learned(max_length={TRAINED})',
  'concatenated': f'concatenated(max_length={TRAINED})',
  'factored': f'factored(max_length={TRAINED})',
  'position_only': f'position_only(max_length={TRAINED})',
  'tupe': f'tupe(max_length={TRAINED})',
  'dynamic_ntk': f'dynamic_ntk(length={2 * TRAINED}, original_length={TRAINED})',
  'floor_log': 'floor_log(floor=16)',
  'llama3': f'llama3(factor=2.0, original_length={TRAINED}, base=10000.0)',
  'log_scaled': f'log_scaled(length={TRAINED})',
  'longrope': f'longrope(length={2 * TRAINED}, original_length={TRAINED}, '
  f'short_factor={(1.0,) * len(_FACTORS)}, long_factor={_FACTORS})',
  'mrope': 'mrope(sections=(4, 6, 6))',
  'ntk': 'ntk(factor=2.0)',
  'ssmax': f'ssmax(length={TRAINED})',
  'yarn': f'yarn(factor=2.0, original_length={TRAINED})',
  'dual_chunk': 'dual_chunk(chunk_size=40, length=64)',
  'fire': f'fire(threshold={TRAINED}.0)',
  'grouped': 'grouped(group=5, window=32)',
  'swin': f'swin(height={WINDOW}, width={WINDOW})',
  'swin_continuous': f'swin_continuous(height={WINDOW}, width={WINDOW}, hidden=16)',
}


class Subject(NamedTuple):
  """A scheme of the folder, with what the pictures need of it.

  Attributes:
    name: the name of its file.
    sentence: the first line of its docstring.
    invariant: whether its file declares that adding one number to all ids changes nothing.
    scheme: the scheme itself, with RoPE after it where it changes ids alone.
    params: its parameters.
  """

  name: str
  sentence: str
  invariant: bool
  scheme: posjax.Scheme
  params: posjax.scheme.Params


def subject(name: str) -> Subject:
  """A scheme with parameters a little off their initial values, some of which are all zero."""
  module = importlib.import_module(f'posjax.schemes.{name}')
  scheme = posjax.get(LINES.get(name, getattr(module, 'EXAMPLE', name)))
  if posjax.places(scheme) == ('ids',):  # ids show only through a scheme that reads them
    scheme = posjax.chain(scheme, posjax.get('rope'))
  trained, fixed = posjax.split(scheme, posjax.init(scheme, jax.random.key(0), DIMS))
  rng = np.random.default_rng(0)
  draw = lambda leaf: leaf + rng.normal(scale=0.1, size=leaf.shape).astype(leaf.dtype)
  params = posjax.merge(jax.tree.map(draw, trained), fixed)
  return Subject(name, schemes_page.summary(module), module.SHIFT_INVARIANT, scheme, params)


def groups() -> dict[str, list[str]]:
  """The names of the schemes under each heading of the README's tables, in their order."""
  first = {
    name: next(iter(posjax.places(schemes_page.make(name))), None) for name in posjax.names()
  }
  members = lambda places: [name for name in first if first[name] in places]
  return {title: members(places) for title, places in schemes_page.GROUPS.items()}


def word() -> np.ndarray:
  """The embedding of the only word [M]: ones of either sign, the same in every head."""
  head = np.random.default_rng(1).choice([-1, 1], size=DIMS.head_dim)
  return np.tile(head, DIMS.num_heads).astype(np.float32)


def embedded(subject: Subject, pos: jax.Array) -> jax.Array:
  """What the word becomes at each of these positions: [1, T, M]."""
  tokens = jnp.zeros(pos.shape[:2], jnp.int32)
  x = jnp.broadcast_to(jnp.asarray(word()), (*tokens.shape, DIMS.width))
  return subject.scheme.embed(subject.params, x, tokens, pos)


def preference(subject: Subject, pos: jax.Array, queries: Sequence[int], causal: bool = True):
  """The logit of each key less that of the query's own token: NumPy [H, T, S], NaN where hidden.

  Embeddings, cut into heads, are queries and keys themselves: no projection stands between a
  scheme and its picture. The logits are the logarithms of the weights that `attend` returns.

  Args:
    subject: a scheme and its parameters.
    pos: ids of a text, [1, S] or [1, S, axes].
    queries: the indices of T tokens that ask.
    causal: whether they see earlier tokens alone.
  """
  scheme, rows = subject.scheme, np.asarray(queries)
  ids, order = scheme.ids(pos, None), jnp.arange(pos.shape[1])
  x = embedded(subject, ids)
  params, at = posjax.prepare(scheme, subject.params, x, ids)
  heads = x.reshape(*x.shape[:2], DIMS.num_heads, DIMS.head_dim)
  sides = {'q_pos': ids[:, rows], 'k_pos': ids, 'q_order': order[rows], 'k_order': order}
  sides |= {'q_at': jax.tree.map(lambda leaf: leaf[:, rows], at), 'k_at': at}
  logs = _logs(heads[:, rows], heads, scheme, params, causal=causal, **sides)
  return logs - np.take_along_axis(logs, rows[None, :, None], axis=-1)


def _logs(q, k, scheme, params, **options) -> np.ndarray:
  """The logarithms of the weights: [H, T, S], NaN where a weight is 0."""
  _, weights = posjax.attend(
    q, k, k, scheme, params, return_weights=True, model_places=True, **options
  )
  weights = np.asarray(weights[0], np.float64)
  return np.log(np.where(weights > 0, weights, np.nan))


def line_of_ids(subject: Subject, length: int) -> jax.Array:
  """0, 1, 2, ..; where tokens have several ids, all of them alike, as in text."""
  pos = posjax.positions.sequential(length)
  if subject.scheme.traits.axes > 1:
    pos = jnp.stack([pos] * subject.scheme.traits.axes, axis=-1)
  return pos[None]


class Curves(NamedTuple):
  """Logits against the distance.

  Attributes:
    length: how many distances there are: twice the trained length, or only this, for a table.
    far: of the last query of the text, [H, length].
    near: of the query in its middle, [H, length / 2].
  """

  length: int
  far: np.ndarray
  near: np.ndarray


@functools.cache
def _curves(name: str) -> Curves:
  shown = subject(name)
  for length in (2 * TRAINED, TRAINED):
    ends = length - 1, length // 2 - 1
    rows = preference(shown, line_of_ids(shown, length), ends)
    if np.isfinite(rows[:, 0, -1]).all():  # otherwise, a table ends before the last id
      break
  far, near = (rows[:, i, : end + 1][:, ::-1] for i, end in enumerate(ends))
  return Curves(length, far, near)


def curves(subject: Subject) -> Curves:
  """The logits of two queries, by distance; computed once for each name."""
  return _curves(subject.name)


def parting(subject: Subject) -> float:
  """How far the logits of the two queries are apart at equal distances, at most."""
  _, far, near = curves(subject)
  return float(np.nanmax(abs(far[:, : near.shape[1]] - near)))


def flat(logits: np.ndarray) -> bool:
  """Whether the distance makes no difference beyond rounding."""
  return bool(np.nanmax(abs(logits)) < 1e-3)


def draw_logits(ax: Axes, subject: Subject) -> None:
  """The logit against the distance; heads from dark to light, the query in the middle dotted."""
  length, far, near = curves(subject)
  for shade, whole, half in zip(SHADES, far, near, strict=True):
    ax.plot(whole, lw=1.2, color=shade)
    ax.plot(half, ':', lw=1.6, color=shade)
  ax.axvline(TRAINED, ls='--', lw=0.8, color='0.4')
  ax.set(xlim=(0, 2 * TRAINED), xticks=range(0, 2 * TRAINED + 1, TRAINED // 2))
  ax.set(xlabel='distance in tokens', ylabel='logit')
  low, high = np.nanmin(far), np.nanmax(far)
  ax.set_ylim(*_limits(low, high))
  if flat(far):
    ax.text(TRAINED, 0.25, 'position\nchanges nothing', ha='center', color='0.3')
  if length == TRAINED:
    ax.axvspan(TRAINED, 2 * TRAINED, color='0.93', lw=0)
    middle = sum(ax.get_ylim()) / 2
    ax.text(1.5 * TRAINED, middle, 'the table\nhas ended', ha='center', va='center')


def _limits(low: float, high: float) -> tuple[float, float]:
  """What a tile shows of these logits, with a margin."""
  if high - low < 1e-3:
    return -1.0, 1.0
  low = max(low, DEEPEST)
  return low - 0.05 * (high - low), high + 0.05 * (high - low)


def draw_grid(ax: Axes, subject: Subject) -> None:
  """The logit against both offsets, of the head in which it varies most; the window is framed."""
  for reach in (2 * WINDOW - 1, WINDOW - 1):
    side = 2 * reach + 1
    pos = posjax.positions.grid(side, side)[None]
    logits = preference(subject, pos, [side * side // 2], causal=False)[:, 0]
    if np.isfinite(logits).any():  # otherwise, a table ends before the corners
      break
  head = logits[np.nanstd(logits, axis=-1).argmax()].reshape(side, side)
  edge = reach + 0.5
  image = ax.imshow(head, extent=(-edge, edge, edge, -edge))
  _add_scale(ax, image, 'logit')
  inside, whole = WINDOW - 0.5, 2 * WINDOW - 0.5
  frame = plt.Rectangle((-inside, -inside), 2 * inside, 2 * inside, fill=False, ls='--', color='C3')
  ax.add_patch(frame)
  ticks = range(-2 * WINDOW + 2, 2 * WINDOW, WINDOW - 1)
  ax.set(xlim=(-whole, whole), ylim=(whole, -whole), xticks=ticks, yticks=ticks)
  ax.set(xlabel='columns away', ylabel='rows away')


def _add_scale(ax, image, label):
  """A bar of colours within the room of the tile, with its numbers."""
  ax.figure.colorbar(image, ax=ax, label=label, fraction=0.38, pad=0.03, aspect=15, anchor=(0, 0.5))


def draw_ids(ax: Axes, subject: Subject) -> None:
  """The id of each token: black without a random key, coloured for three keys."""
  pos = line_of_ids(subject, TRAINED)
  for seed in range(3):
    ax.plot(subject.scheme.ids(pos, jax.random.key(seed))[0], lw=1.2, color=f'C{seed}')
  ax.plot(subject.scheme.ids(pos, None)[0], lw=1.2, color='black')
  ax.set(xlabel='token', ylabel='id', xticks=range(0, TRAINED + 1, TRAINED // 4))


def draw_embedding(ax: Axes, subject: Subject) -> None:
  """What is added to the mean of each dimension; the real part, where embeddings are complex."""
  length = curves(subject).length
  x = np.asarray(embedded(subject, line_of_ids(subject, length))[0].real)
  x = x - x.mean(axis=0, keepdims=True)
  largest = abs(x).max()
  limit = largest if largest > 1e-3 else 1.0  # without positions there is nothing but rounding
  image = ax.imshow(x, aspect='auto', vmin=-limit, vmax=limit, interpolation='nearest')
  _add_scale(ax, image, 'less its mean')
  if length > TRAINED:
    ax.axhline(TRAINED, ls='--', lw=0.8, color='white')
  ax.set(xlabel='dimension', ylabel='position', xticks=range(0, DIMS.width + 1, DIMS.head_dim))
  ax.set_yticks(range(0, length + 1, TRAINED // 2))


def draw_lengths(ax: Axes, subject: Subject) -> None:
  """The logit of a key that is a multiple of its query, less that of a key of zeros."""
  factors = np.linspace(0, 2, 21, dtype=np.float32)
  q = jnp.asarray(word()).reshape(1, 1, DIMS.num_heads, DIMS.head_dim)
  keys = q * factors[None, :, None, None]
  here = jnp.zeros((1, len(factors)), jnp.int32)  # one position for all, so that none matters
  logs = _logs(q, keys, subject.scheme, subject.params, q_pos=here[:, :1], k_pos=here)[:, 0]
  for shade, head in zip(SHADES, logs, strict=True):
    ax.plot(factors, head - head[0], lw=1.2, color=shade)
  ax.set(xlabel='length of the key / of the query', ylabel='logit', xticks=range(3))


def draw_growth(ax: Axes, subject: Subject) -> None:
  """The logit of a key that equals its query, by the position of the query."""
  pos = line_of_ids(subject, 2 * TRAINED)
  head = jnp.asarray(word()).reshape(1, 1, DIMS.num_heads, DIMS.head_dim)
  q = jnp.tile(head, (1, 2 * TRAINED, 1, 1))
  keys = jnp.concatenate([head, 0 * head], axis=1)  # the logit of a key of zeros is 0
  here = jnp.zeros((1, 2), jnp.int32)
  logs = _logs(q, keys, subject.scheme, subject.params, q_pos=pos, k_pos=here)
  for shade, each in zip(SHADES, logs[:, :, 0] - logs[:, :, 1], strict=True):
    ax.plot(each, lw=1.2, color=shade)
  ax.axvline(TRAINED, ls='--', lw=0.8, color='0.4')
  ax.set(xlim=(0, 2 * TRAINED), xticks=range(0, 2 * TRAINED + 1, TRAINED // 2))
  ax.set(xlabel='position of the query', ylabel='logit of its equal')


def kind(subject: Subject) -> Callable[[Axes, Subject], None]:
  """How a scheme is drawn: by the distance, or by what it looks at instead."""
  if subject.scheme.traits.axes == 2:
    return draw_grid
  if posjax.places(subject.scheme) == ('query',) and not subject.invariant:
    return draw_growth
  return draw_logits


def draw(ax: Axes, subject: Subject) -> None:
  """The logits of a scheme, in the form that suits it."""
  kind(subject)(ax, subject)


def gallery(
  names: Sequence[str], *draws: Callable[[Axes, Subject], None], columns: int = 3
) -> Image:
  """One tile for each scheme and each of these drawings, which stand side by side.

  The names are printed, too, so that they can be searched for.

  Args:
    names: schemes.
    draws: what fills the tiles of a scheme; by default, `draw` alone.
    columns: how many tiles stand in a row, a multiple of the number of drawings.
  """
  draws = draws or (draw,)
  count = len(names) * len(draws)
  rows = -(-count // columns)
  fig, axes = _tiles(rows, columns)
  for ax in axes.flat[count:]:
    ax.axis('off')
  tiles = iter(axes.flat)
  for shown in map(subject, names):
    for i, fill in enumerate(draws):
      ax = next(tiles)
      fill(ax, shown)
      _entitle(ax, shown, first=i == 0, width=126 // columns * len(draws))
  print(*names)
  return _small(fig)


def _small(figure: Figure) -> Image:
  """The picture of a figure with 128 colours, which takes a third of the bytes."""
  whole, small = io.BytesIO(), io.BytesIO()
  figure.savefig(whole, format='png')
  plt.close(figure)  # Jupyter would show it a second time
  colours = PIL.Image.open(whole).convert('RGB')
  colours.quantize(128, dither=PIL.Image.Dither.NONE).save(small, 'PNG', optimize=True)
  return Image(small.getvalue())


def _tiles(rows, columns):
  """Axes of equal sizes, with room for three lines of title above and for labels beside: inches."""
  width, height, above, below, beside = 9.6, 1.5, 0.75, 0.45, 0.65
  whole = rows * (above + height + below)
  one = (width - 0.15) / columns - beside
  fig, axes = plt.subplots(rows, columns, figsize=(width, whole), squeeze=False)
  fig.subplots_adjust(
    left=beside / width,
    right=1 - 0.15 / width,
    top=1 - above / whole,
    bottom=below / whole,
    wspace=beside / one,
    hspace=(above + below) / height,
  )
  return fig, axes


def _entitle(ax: Axes, subject: Subject, first: bool, width: int) -> None:
  """The name of a scheme, and its sentence below, over the first of its tiles."""
  lines = textwrap.wrap(subject.sentence, width) if first else []
  ax.set_title('\n'.join(lines), loc='left')
  if first:
    above = (0, 7 + 9.8 * len(lines))
    kind = {'fontweight': 'bold', 'fontsize': 9, 'textcoords': 'offset points'}
    ax.annotate(subject.name, (0, 1), above, xycoords='axes fraction', **kind)
