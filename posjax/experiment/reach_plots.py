"""The picture of `reach`: losses by length and by position, and numbers found by depth."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posjax.experiment.colours import styles
from posjax.experiment.compare.statistics import ratio_interval
from posjax.experiment.plain import in_picture

_WORDS = 30  # letters of a line of a title


def draw(path: str | Path, lines: Sequence[dict[str, Any]]) -> None:
  """Draws the lines of results.jsonl.

  Args:
    path: of the picture.
    lines: of the command, in the order of rows and lengths.
  """
  from matplotlib.figure import Figure

  names = list(dict.fromkeys(line['name'] for line in lines))
  lengths = sorted({line['length'] for line in lines})
  asked = any('retrieval' in line for line in lines)
  columns = min(len(names), 6)
  rows = math.ceil(len(names) / columns) if asked else 0
  figure = Figure(figsize=(13, 4.6 + 2.7 * rows), layout='constrained')
  heights = [4.6, 2.7 * rows] if rows else [4.6]
  parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
  by_length, by_position = parts[0].subplots(1, 2)
  drawn = styles(names)
  for name in names:
    own = [line for line in lines if line['name'] == name]
    style = {
      'color': drawn[name].colour,
      'linestyle': ('-', '--', ':', '-.')[drawn[name].repeat % 4],
    }
    means = [ratio_interval(line['losses'], line['counts']) for line in own]
    half = [(each.high - each.low) / 2 for each in means]
    by_length.errorbar(
      [line['length'] for line in own],
      [each.mean for each in means],
      np.nan_to_num(half),
      label=in_picture(name),
      marker='o',
      markersize=4,
      capsize=3,
      **style,
    )
    longest = own[-1]
    count = len(longest['positions'])
    middles = (np.arange(count) + 0.5) * longest['length'] / count
    by_position.plot(middles, longest['positions'], **style)
  by_length.set_xscale('log', base=2)
  by_length.set_xticks(lengths, [f'{each:,}' for each in lengths])
  by_length.set(xlabel='tokens of context, at most', ylabel='nats per token', title='by length')
  by_position.set(
    xlabel='position', ylabel='nats per token', title=f'by position, in {lengths[-1]:,} tokens'
  )
  by_length.legend(fontsize='small')
  if rows:
    _draw_retrieval(parts[1], lines, names, lengths, columns, rows)
  figure.savefig(path, dpi=120)


def _draw_retrieval(
  part: Any,
  lines: Sequence[dict[str, Any]],
  names: Sequence[str],
  lengths: Sequence[int],
  columns: int,
  rows: int,
) -> None:
  """The mean loss of the digits of the pass key, which small models differ in, by depth."""
  part.suptitle('pass key: nats per token of the answer; the share that is right')
  axes = part.subplots(rows, columns, squeeze=False).ravel()
  found = {
    (line['name'], line['length']): line['retrieval']['passkey']
    for line in lines
    if 'retrieval' in line
  }
  grid = lambda name, what: np.array(
    [[np.nan if x is None else x for x in found[name, each][what]] for each in lengths], float
  )
  every = [x for each in found.values() for x in each['nats'] if x is not None]
  worst = max(every, default=1.0)  # none, where all texts are too short for a question
  for axis, name in zip(axes, names, strict=False):
    nats, share = grid(name, 'nats'), grid(name, 'share')
    image = axis.imshow(nats.T, vmin=0, vmax=worst, cmap='viridis_r', aspect='auto')
    for i, j in np.ndindex(*share.shape):
      if np.isfinite(share[i, j]):
        dark = nats[i, j] > worst / 2
        axis.text(
          i, j, f'{share[i, j]:.2g}', ha='center', va='center', color='w' if dark else 'k', size=7
        )
    axis.set_title(in_picture(textwrap.fill(name, _WORDS)), fontsize='small')
    axis.set_xticks(range(len(lengths)), [f'{each:,}' for each in lengths], fontsize='x-small')
    depths = found[name, lengths[0]]['depth']
    axis.set_yticks(range(len(depths)), [f'{each:.2g}' for each in depths], fontsize='x-small')
  for axis in axes[len(names) :]:
    axis.set_axis_off()
  axes[0].set_ylabel('depth')
  part.colorbar(image, ax=list(axes), label='nats')
