"""What is measured: the sizes, and the numbers that every peer gets alike."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Unable(Exception):
  """A peer cannot do what is asked, here; the text says why."""


class Absent(Unable):
  """The same for all cases of a peer: a library or a device is missing, or lacks the data type."""


class Attention(NamedTuple):
  """Attention of one row.

  Attributes:
    scheme: a line of `posjax.get`.
    way: which of a peer's ways to compute it; '' where it has one.
    length: tokens.
    heads: H.
    width: D, of a head.
    dtype: of q, k and v; parameters are float32.
    backward: whether the gradients of q, k, v and all parameters are computed too.
    causal: whether a token sees what precedes it alone.
  """

  scheme: str
  way: str
  length: int
  heads: int = 8
  width: int = 64
  dtype: str = 'float32'
  backward: bool = True
  causal: bool = True

  @property
  def flops(self) -> float:
    """Of the products that attention cannot do without: 2 forward, 5 backward; pairs that meet."""
    pairs = self.length**2 / (2 if self.causal else 1)
    return 2 * self.heads * self.width * pairs * (7 if self.backward else 2)

  @property
  def plane(self) -> int:
    """Bytes of one float32 array [H, T, S]."""
    return 4 * self.heads * self.length**2


class Step(NamedTuple):
  """One training step of a causal decoder, AdamW and all.

  Attributes:
    scheme: a line of `posjax.get`.
    way: which of a peer's ways; '' where it has one.
    length: tokens of a row.
    layers: L.
    heads: H.
    width: M, of the model.
    ff_width: F.
    vocab: token types.
    batch: rows.
    dtype: in which the model computes; what is trained is float32.
  """

  scheme: str
  way: str
  length: int
  layers: int = 6
  heads: int = 8
  width: int = 256
  ff_width: int = 1024
  vocab: int = 256
  batch: int = 1
  dtype: str = 'float32'

  @property
  def plane(self) -> int:
    """Bytes of one float32 array [B, H, T, S]."""
    return 4 * self.batch * self.heads * self.length**2


class Pairs(NamedTuple):
  """Sentence pairs, two sentences of one length in each: a training step, or inference.

  Attributes:
    scheme: a line of `posjax.get`.
    way: which model of a peer.
    length: words of each sentence.
    training: whether a step of AdamW is timed, with dropout; if not, the logits.
    batch: pairs.
    vocab: words; their vectors are 300 wide, and not trained.
    labels: of entailment, contradiction, neutral.
  """

  scheme: str
  way: str
  length: int
  training: bool = True
  batch: int = 32
  vocab: int = 10_000
  labels: int = 3


class Parse(NamedTuple):
  """Sentences of one length through a part of a parser.

  Attributes:
    scheme: a line of `posjax.get`.
    way: which part of a peer.
    length: words of each sentence.
    batch: sentences.
    vocab: words.
    labels: of constituents, with that of none.
  """

  scheme: str
  way: str
  length: int
  batch: int = 1
  vocab: int = 10_000
  labels: int = 100


SPECS = {spec.__name__: spec for spec in (Attention, Step, Pairs, Parse)}
LEARNING_RATE = 1e-3


class Built(NamedTuple):
  """What a peer made ready.

  Attributes:
    run: does it once, waits for the end, and returns what was computed.
    temporary: bytes, the compiler's own figure for what a run holds; None where there is none.
    device_peak: bytes, the most that the accelerator has held; None on a CPU.
    parameters: how many numbers are trained.
  """

  run: Callable[[], Any]
  temporary: int | None = None
  device_peak: Callable[[], int | None] = lambda: None
  parameters: int = 0


def heads(spec: Attention) -> list[np.ndarray]:
  """q, k, v and the cotangent of the output, each [1, T, H, D], float32."""
  shape = (4, 1, spec.length, spec.heads, spec.width)
  return list(np.random.default_rng(0).standard_normal(shape, np.float32))


def tokens(spec: Step) -> np.ndarray:
  """[B, T + 1] token numbers: inputs, and targets one later."""
  shape = spec.batch, spec.length + 1
  return np.random.default_rng(0).integers(0, spec.vocab, shape, np.int32)


def buckets(length: int) -> np.ndarray:
  """T5's buckets of the distances 0 .. length - 1, of its 32 up to 128 tokens, as published."""
  distance = np.arange(length)
  far = 16 + (np.log(np.maximum(distance, 1) / 16) / np.log(128 / 16) * 16).astype(int)
  return np.where(distance < 16, distance, np.minimum(far, 31)).astype(np.int32)


def slopes(count: int) -> np.ndarray:
  """ALiBi's, for a power of two of heads."""
  if count & (count - 1):
    raise Unable(f'the slopes here are for a power of two of heads, not for {count}')
  return (2.0 ** (-8 * np.arange(1, count + 1) / count)).astype(np.float32)


def table(count: int) -> np.ndarray:
  """A T5 table [32, H]."""
  return 0.1 * np.random.default_rng(1).standard_normal((32, count), np.float32)
