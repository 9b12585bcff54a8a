"""The cases that are compared: one scheme of each kind, at three widths, in two dtypes."""

from typing import NamedTuple

TOKENS = 600  # several blocks of every kernel, and no multiple of one
BATCH = 2
HEADS = 4
WIDTHS = (64, 128, 256)
DTYPES = ('bfloat16', 'float32')  # the one that models train in comes first


class Kind(NamedTuple):
  """A kind of attention.

  Attributes:
    title: on the page.
    scheme: a line of `posjax.get`.
    causal: whether a query sees what precedes it alone.
    window: how many tokens before it a query sees; None for all.
    key_heads: heads of keys and values.
    packed: whether a row holds two documents and padding.
  """

  title: str
  scheme: str
  causal: bool = True
  window: int | None = None
  key_heads: int = HEADS
  packed: bool = False


KINDS = (
  Kind('no positions', 'none', causal=False),
  Kind('queries and keys', 'rope'),
  Kind('a fixed bias', 'alibi'),
  Kind('a learned bias', 't5'),
  Kind('logits', 'shaw'),
  Kind('values', 'rope(values=True)'),
  Kind('packed rows', 'rope', packed=True),
  Kind('a window', 'rope', window=100),
  Kind('grouped heads', 'rope', key_heads=HEADS // 2),
)


class Case(NamedTuple):
  """A kind at one head width, in one dtype."""

  kind: Kind
  width: int
  dtype: str

  @property
  def title(self) -> str:
    """The case in words, of which `--only` takes some."""
    return f'{self.kind.title} ({self.kind.scheme}), width {self.width}, {self.dtype}'

  @property
  def bound(self) -> float:
    """The most by which a result may differ from the reference, relative to its size."""
    return rounding(self.dtype, self.width, TOKENS)


def rounding(dtype: str, width: int, tokens: int) -> float:
  """The most by which attention and its gradients may be rounded, relative to their size.

  A sum of n products in float32 errs by at most n 2^-24 of the sum of their sizes. A gradient is a
  chain of four sums: two over the width (the logits, and the weights' cotangents) and two over the
  tokens (the softmax, and the result). Rounding errors have either sign, and so have the terms:
  what the former lose to their bound, about the root of n, the sum loses to the sizes.

  In bfloat16 a rounded number errs by at most 2^-9 of itself, and up to six arrays are rounded
  between the arguments and a gradient: heads after their places, weights, output, the cotangents of
  output and logits, and the result.

  Args:
    dtype: of the heads, 'float32' or 'bfloat16'.
    width: of a head.
    tokens: that a query sees at most.
  """
  summed = 2 * (width + tokens) * 2.0**-24
  return summed if dtype == 'float32' else summed + 6 * 2.0**-9


def cases(only: str = '') -> list[Case]:
  """All cases, every kind before the next dtype and width: time may end before the last.

  Args:
    only: words; a case stays if its title has each of them.
  """
  found = [Case(kind, width, dtype) for width in WIDTHS for dtype in DTYPES for kind in KINDS]
  return [case for case in found if all(word in case.title for word in only.split())]
