"""The pictures of a run: how its axes, bars and bands show what is uncertain."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from posjax.experiment import metrics, report
from posjax.experiment.colours import colour
from posjax.experiment.evaluation import Score
from posjax.experiment.task import Evaluation, Task, Unit

LENGTHS = (16, 32, 64)


def drawn(monkeypatch, values, errors, metric, lengths=LENGTHS, arrays=False):
  """The axes of a report: learning, by length or evaluation, and arrays."""
  named = {'loss': metric}
  if arrays:
    named['loss_by_position'] = metrics.loss_by_position('nats')
  evaluations = [
    Evaluation(f'at {i}', None, None, named, None, length=length)
    for i, length in enumerate(lengths)
  ]
  scores = {}
  for i, (value, error) in enumerate(zip(values, errors, strict=True)):
    each = {'loss_by_position': np.full(lengths[i] or 1, 2.0)} if arrays else {}
    known = {name: np.full(len(metrics.windows(len(x))), 0.25) for name, x in each.items()}
    known |= {'loss': error} if error else {}
    scores[f'at {i}'] = Score({'loss': value}, each, 9, '', known)
  task = Task({}, None, None, None, Unit('nats'), tuple(evaluations))
  found = []
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **options: found.append(figure))
  report.draw(Path('no.png'), task, [{'step': 1, 'loss': 3.0}], scores, 'a run', 'rope')
  return found[0].axes


def span(limits):
  return limits[1] - limits[0]


def test_two_hundredths_of_a_bit_are_no_cliff_and_have_error_bars(monkeypatch):
  values, loss = [2.23, 2.22, 2.21], metrics.mean_loss('nats')
  _, axes = drawn(monkeypatch, values, [0.1] * 3, loss)
  assert span(axes.get_ylim()) == pytest.approx(2 * 2 * 1.96 * 0.1)
  (bars,) = axes.containers
  ends = np.array([bar[:, 1] for bar in bars[2][0].get_segments()])
  np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * 1.96 * 0.1)
  assert 'bars: 95 %' in axes.get_title()
  _, unknown = drawn(monkeypatch, values, [None] * 3, loss)
  assert span(unknown.get_ylim()) > 0.2
  assert 'bars' not in unknown.get_title()


def test_a_share_stays_on_its_axis_and_what_has_no_number_is_left_out(monkeypatch):
  share = metrics.answer_accuracy()
  _, axes = drawn(monkeypatch, [1.0, 0.98, np.nan], [0.01, 0.3, None], share)
  assert axes.get_ylim() == pytest.approx((0, 100))
  _, empty = drawn(monkeypatch, [np.nan], [None], share, lengths=(16,))
  assert np.isfinite(empty.get_ylim()).all()


def test_evaluations_without_a_length_have_bars_too(monkeypatch):
  _, axes = drawn(monkeypatch, [2.0, 2.1], [0.2, 0.1], metrics.mean_loss('nats'), (None, None))
  assert span(axes.get_xlim()) == pytest.approx(2 * 2 * 1.96 * 0.2)
  assert axes.containers


def test_a_loss_by_position_is_drawn_as_means_over_windows_with_a_band(monkeypatch):
  loss = metrics.mean_loss('nats')
  axes = drawn(monkeypatch, [2.0] * 3, [0.1] * 3, loss, arrays=True)[2]
  assert [len(line.get_xdata()) for line in axes.lines] == [3, 4, 5]
  low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
  assert (low, high) == pytest.approx((2 - 1.96 * 0.25, 2 + 1.96 * 0.25))
  assert axes.get_ylim()[0] < low < high < axes.get_ylim()[1]
  assert 'bands: 95 %' in axes.get_title()


def test_a_run_has_the_colour_of_its_scheme(monkeypatch):
  axes = drawn(monkeypatch, [2.0] * 3, [0.1] * 3, metrics.mean_loss('nats'), arrays=True)
  (bars,) = axes[1].containers
  assert bars[0].get_color() == colour('rope')
  assert to_hex(axes[2].lines[-1].get_color()) == colour('rope')
  assert len({to_hex(line.get_color()) for line in axes[2].lines}) == 3


def test_letters_of_the_picture_can_be_read_on_a_page_of_774_pixels(monkeypatch):
  loss = metrics.mean_loss('nats')
  for arrays, wide in ((False, 1), (True, 2)):
    axes = drawn(monkeypatch, [2.0] * 3, [0.1] * 3, loss, arrays=arrays)
    figure = axes[0].figure
    assert figure.get_figwidth() < 774 / 80  # 10 points are 11 pixels there
    assert {text.get_fontsize() for each in axes for text in each.get_xticklabels()} == {10}
    figure.canvas.draw()
    ends = axes[-1].get_position().intervalx
    assert (ends[1] - ends[0] > 0.7) == (wide == 2)  # the last one of an odd number has the row


def test_means_over_windows_are_those_counted_by_hand():
  values, places = report._windowed(np.arange(10.0))
  np.testing.assert_allclose(values, [1.5, 5.5, 8.5])
  np.testing.assert_allclose(places, [2.5, 6.5, 9.5])
