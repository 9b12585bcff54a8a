"""Answers of classifiers: every label with its probability."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.text import Text

from posjax.experiment.plain import in_picture
from posjax.experiment.task import Answer


def ranked(
  labels: Sequence[str],
  probabilities: Sequence[float],
  pictures: Mapping[str, Callable[[Any], None]] = MappingProxyType({}),
) -> Answer:
  """The labels with their probabilities, the likeliest first, in words and as bars.

  Args:
    labels: all that there are.
    probabilities: one for each label, 0 to 1.
    pictures: further pictures of the answer, by name; that of the bars is 'probabilities'.
  """
  best = sorted(zip(probabilities, labels, strict=True), reverse=True)
  told = [f'{label} {probability:.1%}' for probability, label in best]

  def draw(figure) -> None:
    axes = figure.subplots()
    axes.barh(
      [in_picture(label) for _, label in best], [100 * probability for probability, _ in best]
    )
    axes.invert_yaxis()
    axes.set(xlabel='probability, %', xlim=(0, 100))

  styled = Text.assemble((told[0], 'bold'), ', '.join(['', *told[1:]]))
  return Answer(', '.join(told), styled, {'probabilities': draw, **pictures})
