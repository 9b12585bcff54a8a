"""Tagged sentences from TensorFlow Datasets, read without TensorFlow: `tfds:NAME`."""

from typing import Any

from posjax.experiment.data.corpus import HELD_OUT, decoded
from posjax.experiment.data.tfds import library, open_builder, read_split
from posjax.experiment.tasks.tagging.files import Raw
from posjax.experiment.tasks.tagging.tags import check_tag

_PREFERRED = 'ner'  # of several features with tags, as those of conll2003


def read(name: str) -> tuple[list[Raw], list[Raw]]:
  """Reads the train split, and the one that is held out where there is one.

  The test split is never read. Nothing is ever downloaded; `posjax.experiment.data.tfds` says where
  the data must be.

  Args:
    name: what `tfds.builder` takes, such as `conll2003`; with `#FEATURE` for the tags of another
      feature than 'ner': `conll2003#chunks`.

  Returns:
    Training sentences and held-out sentences, perhaps none.

  Raises:
    ImportError: tensorflow_datasets is not installed.
    ValueError: there is no such data set, configuration or feature; an example has no tokens, not
      as many tags as tokens, or a tag without a name; or a token is no UTF-8.
    FileNotFoundError: the data was not prepared as array_record.
  """
  dataset, _, chosen = name.partition('#')
  builder = open_builder(dataset)
  tokens, tags = _features(builder, dataset, chosen)
  names = builder.info.features[tags].feature.names
  parts = ['train', *sorted(HELD_OUT & set(builder.info.splits))]
  read_one = lambda example, where: _sentence(example[tokens], example[tags], names, where)
  found = [read_split(builder, dataset, split, read_one) for split in parts[:2]]
  return found[0], found[1] if len(found) > 1 else []


def _features(builder: Any, dataset: str, chosen: str) -> tuple[str, str]:
  """The names of the feature with the tokens and of the one with the tags."""
  kinds, features = library().features, builder.info.features
  lists = lambda kind: [
    name
    for name in sorted(features)
    if isinstance(features[name], kinds.Sequence) and isinstance(features[name].feature, kind)
  ]
  tokens, tags = lists(kinds.Text), lists(kinds.ClassLabel)
  if chosen and chosen not in tags:
    raise ValueError(
      f'tfds:{dataset} has no tags named {chosen!r}, but has {", ".join(tags) or "none"}.'
    )
  picked = [chosen] if chosen else [name for name in tags if name == _PREFERRED] or tags
  if len(tokens) != 1 or len(picked) != 1:
    raise ValueError(
      f'tfds:{dataset} should have one list of tokens and one of tags, but has '
      f'{", ".join(tokens) or "none"} and {", ".join(picked) or "none"}: choose the tags as '
      f'tfds:{dataset}#FEATURE.'
    )
  return tokens[0], picked[0]


def _sentence(tokens: Any, tags: Any, names: list[str], where: str) -> Raw:
  numbers = [int(tag) for tag in tags]
  if len(tokens) != len(numbers) or not numbers:
    raise ValueError(
      f'{where} should have a tag for each of its tokens, one or more, but has {len(tokens)} '
      f'tokens and {len(numbers)} tags.'
    )
  found = []
  for token, number in zip(tokens, numbers, strict=True):
    if not 0 <= number < len(names):
      raise ValueError(f'{where} should have tags in [0, {len(names)}), but has {number}.')
    check_tag(names[number], where)
    found.append((decoded(token, where), names[number], where))
  return found
