"""The table and the picture of what `reach` has measured, from its lines."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from posjax.experiment import colours
from posjax.experiment.axis_range import axis_range
from posjax.experiment.plain import console, in_picture

STYLES = ('-', '--', ':', '-.')  # of schemes that have the same colour
MARKERS = 'os^Dv*'
ACROSS = 6  # maps of one kind that stand side by side, at most
BEYOND = 'beyond its table'

Line = Mapping[str, Any]


def stated(value: Mapping[str, Any] | None, signed: bool = False) -> str:
  """A mean with half of its interval; `BEYOND` where there is none.

  Example:
    >>> stated({'mean': 2.5, 'low': 2.25, 'high': 2.75}), stated(None)
    ('2.500 ± 0.250', 'beyond its table')
  """
  if value is None:
    return BEYOND
  mean, low = value['mean'], value['low']
  text = f'{mean:{"+" if signed else ""}.3f}'
  return text if low is None else f'{text} ± {mean - low:.3f}'


def sheet(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
  """The headings and the rows of the table."""
  first = lines[0]['name']
  headings = ['scheme', 'length', 'nats per token', 'bits per byte']
  compared = any(line['difference'] for line in lines)
  headings += [f'nats minus {first}', 'verdict'] if compared else []
  kinds = list(dict.fromkeys(name for line in lines for name in line.get('retrieval') or {}))
  rows = []
  for line in lines:
    row = [line['name'], str(line['length']), stated(line['nats'])]
    row.append('-' if line['bits_per_byte'] is None else stated(line['bits_per_byte']))
    other = line['difference']
    if compared:
      row += ['-', '-'] if other is None else [stated(other, signed=True), other['verdict']]
    rows.append([*row, *(_found(line, name) for name in kinds)])
  return headings + kinds, rows


def _found(line: Line, name: str) -> str:
  """The share of answers that are right over all depths, and their loss."""
  found = (line.get('retrieval') or {}).get(name)
  if found is None or None in found['nats']:
    return '-'
  return f'{100 * np.mean(found["share"]):.0f} % ({np.mean(found["nats"]):.2f} nats)'


def print_table(lines: Sequence[Line]) -> None:
  """Prints the table: drawn in a terminal, and as aligned text in a pipe."""
  headings, rows = sheet(lines)
  terminal = console()
  if terminal.is_terminal:
    table = Table()
    for heading in headings:
      left = heading in ('scheme', 'verdict')
      table.add_column(heading, justify='left' if left else 'right', overflow='fold')
    for i, row in enumerate(rows):
      again = i and row[0] == rows[i - 1][0]
      table.add_row('' if again else row[0], *row[1:])
    terminal.print(table)
  else:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
      cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
      print('  '.join(cells).rstrip())
  for sentence in captions(lines):
    terminal.print(sentence, soft_wrap=True)


def captions(lines: Sequence[Line]) -> list[str]:
  """How the numbers are to be read, in sentences."""
  one = lines[0]
  count, kind = len(one['counts']), one['parts']
  scored = f'{sum(one["counts"]):,} held-out tokens of {one["data"]}'
  found = [
    f'Scored: the same {scored} at each length. Intervals: 95 % over {count} {kind}, '
    'by a jackknife.'
    if count > 1
    else f'Scored: the same {scored} at each length, of one window, so that there is no interval.'
  ]
  if one.get('retrieval'):
    found.append(
      'Passkey, needle: five-digit numbers in texts; the share of answers whose every token is the '
      "most likely one, and the mean loss of the answers' tokens; - where the text is too short."
    )
  return found


def draw(path: Path, lines: Sequence[Line]) -> None:
  """Draws the picture: loss by length and by position, and maps of retrieval."""
  from matplotlib.figure import Figure

  names = list(dict.fromkeys(line['name'] for line in lines))
  maps = [name for name in names if any(_is_mapped(line) for line in lines if _is(line, name))]
  kinds = list(dict.fromkeys(kind for line in lines for kind in line.get('retrieval') or {}))
  across = -(-len(maps) // max(1, -(-len(maps) // ACROSS)))
  bands = [maps[i : i + across] for i in range(0, len(maps), max(across, 1))]
  heights = [4.0, *(2.2 * len(kinds) + 0.3 for _ in bands)]
  legend = 0.24 * -(-len(names) // 2) + 0.2
  figure = Figure(figsize=(12, sum(heights) + legend), layout='constrained')
  parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
  left, middle = parts[0].subplots(1, 2)
  styles = {
    name: {'color': each.colour, 'ls': STYLES[each.repeat % len(STYLES)], 'label': in_picture(name)}
    for name, each in colours.styles(names).items()
  }
  _draw_lengths(left, lines, styles)
  _draw_positions(middle, lines, styles)
  for axes in (left, middle):
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  place: Any = {'loc': 'outside lower center', 'ncols': 2, 'frameon': False, 'fontsize': 9}
  figure.legend(*left.get_legend_handles_labels(), **place)
  _draw_maps(parts[1:], lines, bands, kinds)
  figure.savefig(path, dpi=120)


def _is(line: Line, name: str) -> bool:
  return line['name'] == name


def _is_mapped(line: Line) -> bool:
  found = (line.get('retrieval') or {}).values()
  return any(value is not None for each in found for value in each['nats'])


def _draw_lengths(axes, lines: Sequence[Line], styles: Mapping[str, Any]) -> None:
  lengths = sorted({line['length'] for line in lines})
  ends, widths = [], []
  for number, (name, style) in enumerate(styles.items()):
    known = [line for line in lines if _is(line, name) and line['nats'] is not None]
    values = [line['nats'] for line in known]
    mean = [value['mean'] for value in values]
    half = [value['mean'] - value['low'] if value['low'] is not None else 0.0 for value in values]
    # Side by side, so that intervals do not hide each other.
    aside = 2 ** (0.06 * (number - (len(styles) - 1) / 2))
    places = [line['length'] * aside for line in known]
    axes.errorbar(
      places, mean, yerr=half, marker=MARKERS[number % 6], ms=4, capsize=3, elinewidth=1, **style
    )
    ends += [m - h for m, h in zip(mean, half, strict=True)]
    ends += [m + h for m, h in zip(mean, half, strict=True)]
    widths += [2 * h for h in half]
  if ends:
    axes.set_ylim(*axis_range(ends, widths))
  axes.set_xscale('log', base=2)
  axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
  axes.set_xticks(lengths, [str(length) for length in lengths])
  axes.minorticks_off()
  kind = lines[0]['parts']
  note = f'\nbars: 95 %, over {kind}' if len(lines[0]['counts']) > 1 else ''
  axes.set(title=f'loss by length{note}', xlabel='tokens of context, at most')
  axes.set(ylabel='nats per token')


def _draw_positions(axes, lines: Sequence[Line], styles: Mapping[str, Any]) -> None:
  longest = max(line['length'] for line in lines)
  values = []
  for name, style in styles.items():
    for line in lines:
      if _is(line, name) and line['length'] == longest and line['positions'] is not None:
        bins = np.array_split(np.arange(1, longest + 1), len(line['positions']))
        axes.plot([each.mean() for each in bins], line['positions'], lw=1.2, **style)
        values += line['positions']
  if values:
    axes.set_ylim(*axis_range(values))
  title = f'loss by position, of texts of {longest} tokens'
  axes.set(title=f'{title}\nmeans over neighbouring positions', xlabel='position')
  axes.set(ylabel='nats per token', xlim=(0, longest))


def _draw_maps(
  parts: Any, lines: Sequence[Line], bands: Sequence[Sequence[str]], kinds: Sequence[str]
) -> None:
  """Maps of retrieval: coloured by the share of right answers, with the loss written in them.

  Where no model has a right answer, the loss is the colour.
  """
  every = [each for line in lines for each in (line.get('retrieval') or {}).values()]
  shares = [share for each in every for share in each['share'] if share is not None]
  nats = [loss for each in every for loss in each['nats'] if loss is not None]
  by_share = any(shares)
  span = (0.0, 1.0) if by_share else (min(nats, default=0.0), max(nats, default=1.0))
  colour = 'viridis' if by_share else 'viridis_r'
  what = 'share of right answers' if by_share else 'nats (no answer is right)'
  lengths = sorted({line['length'] for line in lines})
  for part, names in zip(parts, bands, strict=True):
    across = max(len(bands[0]), 3)  # few are no wider than they need be
    grid = part.subplots(len(kinds), across, squeeze=False)
    for row, kind in zip(grid, kinds, strict=True):
      shown = None
      for axes in row[len(names) :]:
        axes.set_axis_off()
      for axes, name in zip(row, names, strict=False):
        mine = {line['length']: line for line in lines if _is(line, name)}
        depth, share, loss = _map(mine, lengths, kind)
        values = share if by_share else loss
        shown = axes.imshow(values, cmap=colour, vmin=span[0], vmax=span[1], aspect='auto')
        _write(axes, values, loss, span, by_share)
        axes.set_xticks(range(len(lengths)), [str(each) for each in lengths], fontsize=8)
        axes.set_yticks(range(len(depth)), [f'{each:.2g}' for each in depth], fontsize=8)
        if kind == kinds[0]:
          axes.set_title(in_picture(_folded(name, 120 // across)), fontsize=9 if across < 5 else 8)
        if kind == kinds[-1]:
          axes.set_xlabel('length', fontsize=9)
        if axes is row[0]:
          axes.set_ylabel(f'{kind}: depth', fontsize=9)
      if shown is not None:
        bar = part.colorbar(shown, ax=list(row), aspect=12, pad=0.01)
        bar.set_label(what, fontsize=8)
        bar.ax.tick_params(labelsize=8)
  if len(parts):
    parts[0].suptitle("retrieval (written: mean loss of the answer's tokens, in nats)", fontsize=11)


def _map(
  lines: Mapping[int, Line], lengths: Sequence[int], kind: str
) -> tuple[list[float], np.ndarray, np.ndarray]:
  """The depths, and the share and the loss of each depth and length; NaN where there is none."""
  found = {length: (lines.get(length, {}).get('retrieval') or {}).get(kind) for length in lengths}
  depth = next((each['depth'] for each in found.values() if each), [0.0])
  missing = {'share': [None] * len(depth), 'nats': [None] * len(depth)}
  table = lambda name: np.array([(found[length] or missing)[name] for length in lengths], float).T
  return depth, table('share'), table('nats')


def _write(axes, values: np.ndarray, loss: np.ndarray, span: tuple, by_share: bool) -> None:
  """Writes the loss into each cell; a dash where there is none."""
  low, high = span
  for (row, column), nats in np.ndenumerate(loss):
    text = '-' if math.isnan(nats) else f'{nats:.1f}'
    level = (values[row, column] - low) / (high - low) if high > low else 0.0
    dark = level < 0.6 if by_share else level > 0.4
    ink = 'black' if math.isnan(nats) or not dark else 'white'
    axes.text(column, row, text, ha='center', va='center', fontsize=7, color=ink)


def _folded(name: str, width: int) -> str:
  """A long name on several lines, cut after its commas."""
  rows = ['']
  for piece in name.replace(', ', ',\0').split('\0'):
    if rows[-1] and len(rows[-1]) + len(piece) > width:
      rows.append('')
    rows[-1] += piece if not rows[-1] or rows[-1].endswith(' ') else f' {piece}'
  return '\n'.join(rows)
