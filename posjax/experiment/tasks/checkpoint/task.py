"""A published checkpoint as a language model, trained further on a text, with other positions.

The model, its tokens and its weights are those of the folder that `config.start_from` names, as
`posjax.interop.load` reads it. `config.scheme` is 'own', or takes the place of the checkpoint's
positions: 'yarn(factor=8.0, original_length=4096)' gets its base from the checkpoint. The work
folder keeps the tokenizer and the configuration, so that the run goes on, and is asked, without
that folder. Measured is what the task `language_modelling` measures.
"""

import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from posjax.experiment import losses
from posjax.experiment.data.vocabulary import Vocabulary, to_text
from posjax.experiment.task import Ask, Example, Task, Unit
from posjax.experiment.tasks.language_modelling import data as texts
from posjax.experiment.tasks.language_modelling import task as language
from posjax.experiment.tasks.language_modelling.corpus import Corpus, spelled
from posjax.interop import planning, pretrained
from posjax.interop.folder import read_config
from posjax.interop.tokenizer import Tokenizer, tokenizer
from posjax.keys import Count, Section, Seed, Share, keys_of
from posjax.models.blocks import RematPolicy
from posjax.models.pretrained import Making

TEXTS = (  # the files that the work folder keeps
  *('config.json', 'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json'),
  *('generation_config.json', 'chat_template.jinja', 'chat_template.json'),
)


class Model(NamedTuple):
  """The section `model` of a config.

  Attributes:
    dtype: 'float32' or 'bfloat16', of the computation; parameters are float32.
    dropout_rate: of attention weights and of what each part of a layer adds.
    remat: recompute activations in the backward pass.
    remat_policy: which of them are kept nevertheless.
    length: the length of the longest text, for dynamic NTK and LongRoPE; the longest evaluation
      unless set.
    implementation: of attention, as in `posjax.attend`.
  """

  dtype: Literal['float32', 'bfloat16'] = 'float32'
  dropout_rate: Share = 0.0
  remat: bool = False
  remat_policy: RematPolicy | None = None
  length: Count | None = None
  implementation: str | None = None


def task(
  lines: Sequence[str],
  model: Annotated[Mapping[str, Any], Section(lambda: keys_of(Model))],
  *,
  seed: Seed,
  batch_size: Count,
  start_from: str | None,
  data: str,
  length: Count,
  eval_factors: Sequence[Count],
  eval_tokens: Count,
  prompt: str,
  sample_length: language.SampleLength,
  vocabulary: Mapping[str, Any] | None = None,
) -> Task:
  """A checkpoint on text.

  Args:
    lines: 'own', one scheme, or a pattern that repeats over the layers, as of
      `posjax.interop.load`.
    model: see `Model`.
    seed: of the data's order, and of the parameters of a new scheme.
    batch_size: rows per step, all hosts together.
    start_from: the folder of the checkpoint.
    data: the text, as of the task `language_modelling`.
    length: tokens per training row.
    eval_factors: evaluation lengths, in training lengths; 1 first, each a divisor of the largest.
    eval_tokens: held-out tokens to score.
    prompt: what the sample continues.
    sample_length: tokens to generate, at most: a token that ends a text ends the sample.
    vocabulary: the files that an earlier run stored.

  Raises:
    ValueError: if a number is out of range, the text is too short, or the checkpoint is not read.
    FileNotFoundError: if there is no such folder.
  """
  if vocabulary is None and start_from is None:
    raise ValueError(
      'start_from must be the folder of a checkpoint, with config.json and safetensors, but got '
      'None.'
    )
  folder = Path(start_from or '')
  files = _read(folder) if vocabulary is None else dict(vocabulary['files'])
  config, made = _restored(files)
  options = Model(**model)
  lengths = language.evaluation_lengths(length, eval_factors)
  longest = options.length or max(lengths)
  whole = planning.whole_of(config)
  given = lines[0] if len(lines) == 1 else list(lines)
  names = pretrained.names_of(whole, folder) if vocabulary is None else vocabulary['names']
  planned = planning.plan(whole, given, length=longest, names=names)
  check_decoder(planned)
  made.check(planned.plans[None].vocab)
  making = Making(
    pretrained.dtype_of(options.dtype),
    dropout_rate=options.dropout_rate,
    implementation=options.implementation,
    remat=options.remat,
    remat_policy=options.remat_policy,
  )
  source = pretrained.source_of(planned, config, longest)
  words = vocabulary_of(made, {'files': files, 'names': sorted(names)})
  text = texts.read(data)
  corpus = Corpus(text, words, spelled(text, words, False), spelled(text, words, True))
  language.prompt_tokens(words, prompt)
  sizes = {'length': length, 'batch_size': batch_size, 'longest': max(lengths)}
  rows = language.packed_rows(corpus, seed, **sizes, eval_tokens=eval_tokens)
  scored = np.concatenate([language.counted(batch) for batch in rows.counted])
  measured = language.measures(words, scored, Unit('nats per token'))
  judge = lambda each: language.evaluation(each, lengths[0], measured)
  evaluations = [judge(each)._replace(**rows.at_length(each)) for each in lengths]
  return Task(
    facts={**language.facts(corpus, scored), 'checkpoint': whole.kind},
    model=lambda rngs: planned.make(making, source, rngs),
    train_batches=rows.train_batches,
    loss=losses.mean_next_token,
    weight=losses.count_tokens,
    unit=Unit('nats per token'),
    evaluations=(evaluations[0]._replace(during=True), *evaluations[1:]),
    ask=Ask(
      functools.partial(language.answer, words, sample_length, stop=made.stop), (Example(prompt),)
    ),
    vocabulary=words.stored,
    weights=lambda folder: pretrained.weights_of(planned, folder),
  )


def check_decoder(planned: planning.Planned) -> None:
  """Refuses a model that cannot predict the next token.

  Raises:
    ValueError: if it is an encoder, or has one.
  """
  alone = planned.plans.get(None)
  if alone is None or not all(dict(block.attention).get('causal') for block in alone.blocks):
    raise ValueError(f'A language model must be a causal decoder, but got {planned.whole.kind}.')


def tokenizer_of(stored: Mapping[str, Any]) -> Tokenizer:
  """The tokenizer of a run, from `Task.vocabulary`."""
  return _restored(stored['files'])[1]


def _read(folder: Path) -> dict[str, str]:
  """The texts of a folder by their names."""
  read_config(folder)
  return {name: (folder / name).read_text('utf-8') for name in TEXTS if (folder / name).is_file()}


def _restored(files: Mapping[str, str]) -> tuple[dict[str, Any], Tokenizer]:
  """The configuration and the tokenizer of stored texts."""
  with tempfile.TemporaryDirectory() as place:
    for name in TEXTS:
      if name in files:
        (Path(place) / name).write_text(files[name], 'utf-8')
    return read_config(place), tokenizer(place)


def vocabulary_of(made: Tokenizer, stored: Mapping[str, Any]) -> Vocabulary:
  """A tokenizer as a vocabulary, without the tokens that it adds around a text.

  Args:
    made: the tokenizer.
    stored: its files, as JSON.
  """

  def encode(content: str | bytes) -> np.ndarray:
    return np.asarray(made.encode(to_text(content), special=False), np.int32)

  separator = '\n\n'
  decode = lambda ids: made.decode(list(ids))
  return Vocabulary('token', made.vocab_size, encode, decode, separator, '', None, stored)
