"""Colours of schemes: one for each name, in every picture."""

import re

from posjax.experiment.colours import PALETTE, colour, styles

COMPARED = (
  *('none', 'rope', 'alibi', 't5', 'sinusoidal', 'learned', 'shaw', 'transformer_xl', 'fire'),
  *('kerple', 'randomized(max_length=2048)+rope', 'cope', 'xpos', 'deberta', 'complex_order'),
  'tener',
)


def test_a_scheme_has_the_colour_of_its_name_in_any_company():
  """Written out, so that pictures of today look like those of other versions and machines."""
  assert colour('rope') == colour(' rope') == '#0a74b4'
  assert colour('alibi') == '#e5640e'
  alone, among = styles(['rope']), styles(['alibi', 't5', 'rope'])
  assert alone['rope'] == among['rope'] == ('#0a74b4', 0)
  assert colour('rope(base=5e5)') != '#0a74b4'


def test_schemes_that_are_compared_most_have_different_colours():
  assert len({colour(scheme) for scheme in COMPARED}) == len(COMPARED)


def test_schemes_whose_names_have_one_colour_are_told_apart_by_colours_and_dashes():
  many = [f'randomized(max_length={length})+rope' for length in range(64, 104)]
  found = styles(many)
  assert len(set(found.values())) == len(many)
  assert {style.repeat for style in found.values()} >= {0, 1, 2}
  twenty = styles(many[: len(PALETTE)])
  assert {style.colour for style in twenty.values()} == set(PALETTE)
  first = {}
  for scheme in twenty:  # who has the colour of its name first keeps it, wherever others stand
    first.setdefault(colour(scheme), scheme)
  assert len(first) < len(twenty)
  for scheme, style in twenty.items():
    assert (style == (colour(scheme), 0)) == (first[colour(scheme)] == scheme)
    assert (style.repeat > 0) == (first[colour(scheme)] != scheme)


def test_every_colour_stands_out_from_a_white_page_and_from_a_dark_one():
  white, dark = luminance('#ffffff'), luminance('#161618')
  for each in PALETTE:
    assert re.fullmatch('#[0-9a-f]{6}', each)
    mine = luminance(each)
    assert (white + 0.05) / (mine + 0.05) > 2.9
    assert (mine + 0.05) / (dark + 0.05) > 2.9


def luminance(colour):
  """Relative luminance, as the Web Content Accessibility Guidelines define it."""
  parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
  linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
  return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
