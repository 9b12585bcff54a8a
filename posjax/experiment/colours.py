"""One colour for each scheme, in every picture and on every page, decided by its name alone."""

import collections
import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

# Ten hues, light and dark. Each stands out from white and from a dark page alike, by a contrast of
# 2.9 at least.
PALETTE = (
  '#7e6f08', '#0a74b4', '#3e8201', '#c52c26', '#a170f3', '#15a6a0', '#ba2c7a', '#b88715', '#508bfd',
  '#138168', '#d25bc0', '#e5640e', '#029fcb', '#9e5d06', '#5e58d8', '#01ad5f', '#ec5276', '#0e7d8a',
  '#9840b7', '#899c0b',
)  # fmt: skip
# Among many salts, one with which the sixteen schemes that are compared most have sixteen colours.
SALT = (7478).to_bytes(8, 'big')


class Style(NamedTuple):
  """How a scheme is drawn.

  Attributes:
    colour: of its name, the same in every picture; another one where a scheme before it in this
      picture has that of its name.
    repeat: how many schemes before it in this picture have the colour of its name: they differ by
      their dashes and markers, too.
  """

  colour: str
  repeat: int


def colour(scheme: str) -> str:
  """The colour of a scheme, '#rrggbb', which depends on nothing but the line.

  Args:
    scheme: as `posjax.get` reads it. Spaces do not count.
  """
  name = ''.join(scheme.split()).encode()
  digest = hashlib.blake2s(name, digest_size=4, salt=SALT).digest()
  return PALETTE[int.from_bytes(digest, 'big') % len(PALETTE)]


def styles(schemes: Iterable[str]) -> dict[str, Style]:
  """The styles of schemes that one picture shows together, by scheme; no two are the same.

  No two have one colour, either, while there are as many colours as schemes.
  """
  schemes = tuple(schemes)
  owner: dict[str, str] = {}
  for scheme in schemes:
    owner.setdefault(colour(scheme), scheme)
  found: dict[str, Style] = {}
  repeats = collections.Counter()
  for scheme in schemes:
    name = mine = colour(scheme)
    if owner[mine] != scheme:
      mine = _farthest(owner) or mine
      owner.setdefault(mine, scheme)
    style = Style(mine, repeats[name])
    while style in found.values():
      style = style._replace(repeat=style.repeat + 1)
    found[scheme], repeats[name] = style, repeats[name] + 1
  return found


def _farthest(taken: Iterable[str]) -> str | None:
  """The colour of the palette that is least like those that are taken; None if all are."""
  parts = lambda each: [int(each[i : i + 2], 16) for i in (1, 3, 5)]
  apart = lambda one, other: math.dist(parts(one), parts(other))
  taken = set(taken)
  free = [each for each in PALETTE if each not in taken]
  return max(free, key=lambda each: min(apart(each, other) for other in taken), default=None)
