"""The gallery's curves are the papers' formulas, and each tile says what it shows."""

import io

import matplotlib.pyplot as plt
import numpy as np
import PIL.Image
import pytest

import posjax
from tests.support.loops import error
from tools import gallery

DISTANCE = np.arange(2 * gallery.TRAINED)


@pytest.fixture
def ax():
  figure, axes = plt.subplots()
  yield axes
  plt.close(figure)


def texts(ax):
  return ' '.join(text.get_text() for text in ax.texts)


def test_every_scheme_stands_in_one_group():
  found = [name for members in gallery.groups().values() for name in members]
  assert sorted(found) == sorted(posjax.names())


@pytest.mark.slow
def test_rope_is_drawn_as_the_sum_of_cosines_of_the_distance():
  width = gallery.DIMS.head_dim
  frequencies = 1e4 ** (-2 * np.arange(width // 2) / width)
  # Each pair of the word has the squared length 2, and logits are divided by sqrt(D).
  wanted = 2 * (np.cos(np.outer(DISTANCE, frequencies)) - 1).sum(-1) / width**0.5
  found = gallery.curves(gallery.subject('rope'))
  assert error(found.far, np.tile(wanted, (gallery.DIMS.num_heads, 1))) < 1e-4
  assert gallery.parting(gallery.subject('rope')) < 1e-4


def test_alibi_is_drawn_with_its_slopes_and_a_mark_at_the_trained_length(ax):
  gallery.draw_logits(ax, gallery.subject('alibi'))
  slopes = 4.0 ** -np.arange(1, gallery.DIMS.num_heads + 1)
  solid = [line.get_ydata() for line in ax.lines if len(line.get_ydata()) == len(DISTANCE)]
  for drawn, slope in zip(solid, slopes, strict=True):
    assert error(drawn[:80], -slope * DISTANCE[:80]) < 1e-4
  (mark,) = [line for line in ax.lines if set(line.get_xdata()) == {gallery.TRAINED}]
  assert mark.get_linestyle() == '--'
  assert ax.get_xlabel() == 'distance in tokens'
  assert ax.get_ylabel() == 'logit'
  assert ax.get_xlim() == (0, 2 * gallery.TRAINED)
  assert len(ax.get_xticks()) == 5
  assert texts(ax) == ''


def test_a_table_of_positions_ends_at_the_trained_length_and_depends_on_the_query(ax):
  shown = gallery.subject('learned')
  gallery.draw_logits(ax, shown)
  assert 'table\nhas ended' in texts(ax)
  assert max(len(line.get_xdata()) for line in ax.lines) == gallery.TRAINED
  assert gallery.parting(shown) > 1e-2
  assert not shown.invariant


def test_without_positions_the_tile_says_so(ax):
  gallery.draw(ax, gallery.subject('none'))
  assert 'changes nothing' in texts(ax)


def test_log_scaled_is_drawn_against_the_position_of_the_query(ax):
  shown = gallery.subject('log_scaled')
  assert gallery.kind(shown) is gallery.draw_growth
  gallery.draw(ax, shown)
  grown = np.maximum(1, np.log(DISTANCE + 1) / np.log(gallery.TRAINED))
  assert error(ax.lines[0].get_ydata(), gallery.DIMS.head_dim**0.5 * grown) < 1e-4
  assert ax.get_xlabel() == 'position of the query'


def test_a_window_of_offsets_has_a_bar_of_colours_and_ends_at_its_frame(ax):
  shown = gallery.subject('swin')
  assert gallery.kind(shown) is gallery.draw_grid
  gallery.draw(ax, shown)
  (image,) = ax.images
  assert image.get_array().shape == (2 * gallery.WINDOW - 1,) * 2
  assert image.colorbar.ax.get_ylabel() == 'logit'
  assert len(ax.get_xticks()) == len(ax.get_yticks()) == 5


def test_the_similarities_are_drawn_by_the_length_of_the_key(ax):
  gallery.draw_lengths(ax, gallery.subject('unscaled'))
  line = ax.lines[0]
  assert error(line.get_ydata(), gallery.DIMS.head_dim * line.get_xdata()) < 1e-4


def test_the_picture_has_110_dots_per_inch_and_few_colours(capsys):
  with plt.rc_context(gallery.STYLE):
    picture = gallery.gallery(['none', 'alibi'])
  drawn = PIL.Image.open(io.BytesIO(picture.data))
  assert drawn.width == round(9.6 * 110)
  assert drawn.mode == 'P'
  assert capsys.readouterr().out == 'none alibi\n'
  assert not plt.get_fignums()
