"""Pictures of attention weights: layers by heads, in small multiples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from posjax.experiment.plain import in_picture

NAMED = 40  # tokens of a side, at most, whose names still fit beside a map


def draw(figure: Any, weights: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> None:
  """Draws one map for each head of each layer; a row of a map is what one token attends to.

  Args:
    figure: a `matplotlib.figure.Figure`, or a part of one.
    weights: [L, H, T, S], each row a distribution over the keys.
    queries: names of the T tokens that attend.
    keys: names of the S tokens that they attend to.

  Raises:
    ValueError: if the weights have other numbers of tokens.
  """
  layers, heads, rows, columns = weights.shape
  if (rows, columns) != (len(queries), len(keys)):
    raise ValueError(
      f'The weights should be of {len(queries)} tokens by {len(keys)}, but are {rows} by {columns}.'
    )
  axes = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
  for layer, row in enumerate(axes):
    for head, one in enumerate(row):
      one.imshow(weights[layer, head], vmin=0, vmax=1, cmap='Blues', aspect='auto')
      one.tick_params(length=0, labelsize=5)
      if layer == 0:
        one.set_title(f'head {head + 1}', fontsize=7)
    row[0].set_ylabel(f'layer {layer + 1}', fontsize=7)
  _name(axes[-1, 0].set_xticks, keys)
  for one in axes[-1]:  # the places of ticks are shared, their rotation is not
    one.tick_params('x', rotation=90)
  _name(axes[0, 0].set_yticks, queries)


def _name(set_ticks: Any, names: Sequence[str], **style: Any) -> None:
  """The names of tokens along an axis; every second, third, .. one where there are many."""
  every = -(-len(names) // NAMED)
  set_ticks(range(0, len(names), every), [in_picture(name) for name in names[::every]], **style)
