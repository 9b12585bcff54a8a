"""Two ways to put a question and its answer into a row of tokens: a decoder's, an encoder's.

Four marks take the first token ids; symbol `s` of an alphabet is token `s + 4`. A row is a
dictionary of arrays [W]: `inputs`, `targets`, `segments` (1, or 0 for padding) and `positions` (0,
1, ..., or 0 for padding), int32; `weights`, float32, 1 where a target counts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

MARKS = ('<pad>', '<bos>', '<sep>', '<eos>')
PAD, BOS, SEP, EOS = range(len(MARKS))

Row = dict[str, np.ndarray]


class Form(NamedTuple):
  """A way to frame questions.

  Attributes:
    width: `(prompt symbols, answer symbols, varies) ->` tokens in a row that holds them.
    row: `(prompt, answer, places, width) ->` a row; `places` says how many the longest answer to
      such a prompt needs, its end included where answers vary.
  """

  width: Callable[[int, int, bool], int]
  row: Callable[[Sequence[int], Sequence[int], int, int], Row]


def _decoder_width(prompt: int, answer: int, varies: bool) -> int:
  # <bos> prompt <sep> answer are inputs; <eos> is a target only.
  return prompt + answer + 2


def _decoder_row(prompt: Sequence[int], answer: Sequence[int], places: int, width: int) -> Row:
  """`<bos> prompt <sep> answer <eos>`: targets are the next tokens, and the answer's count."""
  question, reply = _tokens(prompt), _tokens(answer)
  tokens = np.concatenate([[BOS], question, [SEP], reply, [EOS]])
  # The target at <sep>, which is input number len(prompt) + 1, is the first of the answer.
  weights = np.arange(len(tokens) - 1) > len(prompt)
  return _padded(tokens[:-1], tokens[1:], weights, width)


def _encoder_width(prompt: int, answer: int, varies: bool) -> int:
  return prompt + answer + varies


def _encoder_row(prompt: Sequence[int], answer: Sequence[int], places: int, width: int) -> Row:
  """`prompt <sep> .. <sep>`: the empty places are to hold the answer, and <eos> if one is left."""
  question, reply = _tokens(prompt), _tokens(answer)
  end = [EOS] * (len(reply) < places)
  right = np.concatenate([reply, end])
  inputs = np.concatenate([question, np.full(places, SEP)])
  targets = np.concatenate([np.full(len(question), PAD), right, np.full(places - len(right), PAD)])
  place = np.arange(len(inputs)) - len(question)
  return _padded(inputs, targets, (place >= 0) & (place < len(right)), width)


def _tokens(symbols: Sequence[int]) -> np.ndarray:
  return len(MARKS) + np.array(symbols, np.int32)


def _padded(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray, width: int) -> Row:
  def pad(array, dtype=np.int32):
    row = np.zeros(width, dtype)
    row[: len(array)] = array
    return row

  count = len(inputs)
  return {
    'inputs': pad(inputs),
    'targets': pad(targets),
    'weights': pad(weights, np.float32),
    'segments': pad(np.ones(count)),
    'positions': pad(np.arange(count)),
  }


DECODER = Form(_decoder_width, _decoder_row)
ENCODER = Form(_encoder_width, _encoder_row)
