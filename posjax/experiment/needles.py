"""Passkey and needle tests: a long text holds a number, and its end asks for that number.

In a *passkey* (Mohtashami and Jaggi 2023, https://arxiv.org/abs/2305.16300) the sentence stands
among a few others that are repeated; a *needle* (Kamradt 2023,
https://github.com/gkamradt/LLMTest_NeedleInAHaystack) is in a haystack of real text. The number has
five digits, drawn anew for each text. All pieces are encoded apart, so that the number is the same
tokens where it stands and where it is asked for, and the text is cut to its length in tokens.

An answer is right when each of its tokens is the most likely one, given the true ones before it.
One pass of the model says so, and it is right exactly when greedy decoding would write it: both
agree up to the first token that is wrong. Models that are seldom right differ in the mean loss of
the answer's tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from posjax.interop.tokenizer import Tokenizer

Losses = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
NEAR = 32  # tokens, within which the sentence moves to the end of another one


class Wording(NamedTuple):
  """The words around a number.

  Attributes:
    start: how the text begins.
    filler: sentences to repeat; None for a haystack of real text.
    before: the sentence up to its number.
    after: the rest of it.
    question: what the number is the answer to.
  """

  start: str
  filler: str | None
  before: str
  after: str
  question: str


WORDINGS: Mapping[str, Wording] = {
  'passkey': Wording(
    'One line of this text holds a pass key. Keep it in mind.\n',
    'The meadow is wide. A mild wind is blowing. The river runs on, and birds come and go. ',
    'The pass key is',
    '. ',
    '\nWhich pass key was it? The pass key is',
  ),
  'needle': Wording(
    '',
    None,
    '\nThe old violin is in locker',
    '.\n',
    '\nWhere is it? The old violin is in locker',
  ),
}


class Prompt(NamedTuple):
  """A text that ends with the number that it is asked for.

  Attributes:
    tokens: [T], the answer included.
    answer: how many of them are the answer, the last ones.
    place: the first token of the sentence with the number.
    number: the number.
  """

  tokens: np.ndarray
  answer: int
  place: int
  number: str


def make(
  wording: Wording,
  made: Tokenizer,
  haystack: np.ndarray,
  length: int,
  depth: float,
  rng: np.random.Generator,
) -> Prompt | None:
  """A text of exactly this many tokens; None where they are too few for its sentences.

  Args:
    wording: its words.
    made: the tokenizer. Where it begins texts with a special token, this one does, too.
    haystack: tokens of real text, at least `length`.
    length: T.
    depth: where the sentence stands, from 0 (after the beginning) to 1 (before the question); it
      moves to the nearest end of a sentence within 32 tokens.
    rng: of the number, and of the part of the haystack.
  """
  spell = lambda text: made.encode(text, special=False)
  start = [*_begins(made), *spell(wording.start)]
  before, after, question = (spell(each) for each in wording[2:])
  number = str(rng.integers(10_000, 100_000))
  answer = spell(f' {number}')
  room = length - sum(map(len, (start, before, answer, after, question, answer)))
  if room < 1:
    return None
  if wording.filler is None:
    first = rng.integers(len(haystack) - room + 1)
    hay = haystack[first : first + room].tolist()
    if number in made.decode(hay):  # the next number is another one
      return make(wording, made, haystack, length, depth, rng)
  else:
    filler = spell(wording.filler)
    hay = (filler * (room // len(filler) + 1))[:room]
  at = _sentence_end(made, hay, depth)
  tokens = [*start, *hay[:at], *before, *answer, *after, *hay[at:], *question, *answer]
  return Prompt(np.asarray(tokens, np.int32), len(answer), len(start) + at, number)


def retrieval(
  read: Losses,
  made: Tokenizer,
  haystack: np.ndarray,
  *,
  length: int,
  depths: int,
  trials: int,
  seed: int,
) -> dict[str, Any]:
  """How well a model finds numbers: by wording `depth`, `share` and `nats`, a number each.

  Args:
    read: `(inputs, targets) ->` the loss of each target [N, T] and whether it is the most likely
      token, of texts [N, T].
    made: the tokenizer.
    haystack: as of `make`.
    length: T.
    depths: how many, evenly spaced from 0 to 1.
    trials: texts for each depth.
    seed: of the texts, which are the same for every model.

  Returns:
    `share` of answers that are right, and `nats`, the mean loss of the answers' tokens; None where
    the text is too short for its sentences, or a loss is no number.
  """
  places = np.linspace(0, 1, depths).tolist()
  found = {}
  for kind, (name, wording) in enumerate(WORDINGS.items()):
    rngs = [
      np.random.default_rng([seed, length, kind, depth, trial])
      for depth in range(depths)
      for trial in range(trials)
    ]
    wanted = [depth for depth in places for _ in range(trials)]
    made_of = [
      make(wording, made, haystack, length, depth, rng)
      for depth, rng in zip(wanted, rngs, strict=True)
    ]
    share, nats = _scores(read, made_of)
    by_depth = lambda each: [_mean(row) for row in np.reshape(each, (depths, trials))]
    found[name] = {'depth': places, 'share': by_depth(share), 'nats': by_depth(nats)}
  return found


def _scores(read: Losses, prompts: list[Prompt | None]) -> tuple[list[float], list[float]]:
  """Whether each answer is right, and its mean loss; NaN where there is none."""
  known = [each for each in prompts if each is not None]
  share, nats = [np.nan] * len(prompts), [np.nan] * len(prompts)
  if not known:
    return share, nats
  inputs = np.stack([each.tokens for each in known])
  loss, correct = read(inputs, np.roll(inputs, -1, 1))  # nothing asks for the last target
  row = 0
  for i, prompt in enumerate(prompts):
    if prompt is not None:
      ends = slice(-1 - prompt.answer, -1)
      nats[i] = float(loss[row, ends].mean())
      share[i] = float(correct[row, ends].all()) if np.isfinite(nats[i]) else np.nan
      row += 1
  return share, nats


def _mean(values: np.ndarray) -> float | None:
  return float(values.mean()) if np.isfinite(values).all() else None


def _begins(made: Tokenizer) -> list[int]:
  """The special token that begins a text, where the tokenizer adds one."""
  around = made.encode('')
  return around[:1] if around and around[0] == made.bos else []


def _sentence_end(made: Tokenizer, tokens: list[int], depth: float) -> int:
  """The place at this depth, or the nearest end of a sentence where one is near."""
  wanted = round(depth * len(tokens))
  near = range(max(wanted - NEAR, 1), min(wanted + NEAR, len(tokens)))
  ends = [i for i in near if made.decode(tokens[i - 1 : i]).endswith(('.', '!', '?', '\n'))]
  ends += [i for i in (0, len(tokens)) if abs(i - wanted) <= NEAR]
  return min(ends, key=lambda i: abs(i - wanted), default=wanted)
