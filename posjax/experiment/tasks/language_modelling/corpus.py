"""A text as token ids: read, spelled in a vocabulary, and cut for evaluation."""

import contextlib
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

import numpy as np

from posjax.experiment.data.vocabulary import Vocabulary, learn, restore, to_text
from posjax.experiment.tasks.language_modelling import data as texts
from posjax.experiment.tasks.language_modelling.data import Text
from posjax.experiment.tasks.language_modelling.pipeline import windows


class Corpus(NamedTuple):
  """A text as token ids.

  Attributes:
    text: as it was read.
    vocabulary: what an id is.
    train: ids of each document to learn from.
    held_out: ids of each document held out.
  """

  text: Text
  vocabulary: Vocabulary
  train: tuple[np.ndarray, ...]
  held_out: tuple[np.ndarray, ...]


def read(
  data: str, tokens: str, vocab_size: int | None, stored: Mapping[str, Any] | None
) -> Corpus:
  """Reads a text, and spells it in a vocabulary: the stored one, or one learned from it.

  Raises:
    ValueError: if the stored vocabulary is none of these tokens, the text is not UTF-8 where that
      is needed, or held-out text has what has no token; the message begins with the file, if there
      is one, and the line.
  """
  text = texts.read(data)
  made = _learned(text, tokens, vocab_size) if stored is None else _stored(stored, tokens)
  return Corpus(text, made, spelled(text, made, False), spelled(text, made, True))


def _stored(stored: Mapping[str, Any], tokens: str) -> Vocabulary:
  with named('vocabulary.json of the work folder'):
    if not isinstance(stored, Mapping):
      raise ValueError('It must hold a vocabulary as JSON, but holds something else.')
    made = restore(stored)
    if stored['tokens'] != tokens:
      raise ValueError(f'It must hold {tokens}, as task.tokens says, but holds {stored["tokens"]}.')
    return made


def _learned(text: Text, tokens: str, vocab_size: int | None) -> Vocabulary:
  plain = []
  for i, document in enumerate(text.train if tokens != 'bytes' else ()):
    with named(text.place(False, i)):
      plain.append(to_text(document))
  with named(text.name):
    return learn(tokens, plain, vocab_size)


def spelled(text: Text, made: Vocabulary, held_out: bool) -> tuple[np.ndarray, ...]:
  """The token ids of each document of one side: held out, or to learn from."""
  ids, ending = [], made.ending.encode()
  for i, document in enumerate(text.held_out if held_out else text.train):
    with named(text.place(held_out, i)):
      ids.append(made.encode(document if document.endswith(ending) else document + ending))
  return tuple(ids)


def held_out_windows(corpus: Corpus, longest: int, eval_tokens: int) -> list[dict[str, np.ndarray]]:
  """Windows of the longest evaluation, as many as hold `eval_tokens`; all if there are fewer.

  Raises:
    ValueError: if there is none.
  """
  count = eval_tokens // longest
  if count < 1:
    raise ValueError(
      f'eval_tokens must hold the longest evaluation of {longest}, but got {eval_tokens}.'
    )
  gap = corpus.vocabulary.encode(corpus.vocabulary.separator)
  sizes = {'length': longest, 'batch_size': 1, 'count': count}
  with named(corpus.text.name):
    return list(windows(corpus.held_out, **sizes, encode=np.asarray, separator=gap))


def held_out_documents(corpus: Corpus, longest: int, eval_tokens: int) -> np.ndarray:
  """The number of the document of each target of `held_out_windows`, [windows, longest].

  What is between two documents belongs to the first of them.
  """
  gap = len(corpus.vocabulary.encode(corpus.vocabulary.separator))
  last = len(corpus.held_out) - 1
  numbers = tuple(
    np.full(len(ids) + (gap if i < last else 0), i) for i, ids in enumerate(corpus.held_out)
  )
  bare = corpus.vocabulary._replace(encode=lambda _: np.zeros(0, np.int64))
  numbered = corpus._replace(held_out=numbers, vocabulary=bare)
  return np.concatenate(
    [window['targets'] for window in held_out_windows(numbered, longest, eval_tokens)]
  )


@contextlib.contextmanager
def named(place: str) -> Generator[None]:
  """Puts the place in front of what is wrong there."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'{place}: {error}') from error
