"""The range of an axis of qualities, chosen so that noise does not look like a cliff."""

from collections.abc import Sequence

LEAST = 0.1  # of the best number, or else of the largest: what an axis spans at least
MARGIN = 0.05  # of what an axis spans, above and below what it shows


def axis_range(
  ends: Sequence[float], widths: Sequence[float] = (), best: float | None = None
) -> tuple[float, float]:
  """The lowest and the highest number of an axis.

  An axis shows all that it must, and spans at least twice the widest interval, and a tenth of the
  best number or else of its largest, so that differences within the uncertainty look as small as
  they are. Shares that spread over half of what there can be have the whole axis, from 0 to the
  best.

  Args:
    ends: the finite numbers that are shown, one or more, the ends of intervals among them.
    widths: of the intervals, from end to end.
    best: the best number there can be, where there is one; the axis then stays within 0 and it.

  Raises:
    ValueError: if there is no number.

  Example:
    >>> axis_range([97.0, 99.0], best=100.0)
    (90.0, 100.0)
  """
  if not ends:
    raise ValueError('An axis needs a number to show, but got none.')
  low, high = min(ends), max(ends)
  top = None if best is None or high > best else best
  if top and low >= 0 and high - low > top / 2:
    return 0.0, top
  least = max([LEAST * (top or max(abs(low), abs(high))), *(2 * width for width in widths)])
  span = max((high - low) * (1 + 2 * MARGIN), least) or 1.0
  first = (low + high - span) / 2
  if low >= 0:
    first = max(first, 0.0)
  if top is not None:
    first = max(min(first, top - span), min(low, 0.0))
    return first, min(first + span, top)
  return first, first + span
