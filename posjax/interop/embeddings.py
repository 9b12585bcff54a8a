"""Positions that a model adds to its embeddings: the scheme, and the name of its table.

A learned table is that of the scheme `learned`, whose ids begin at 0 wherever the model's begin: of
the checkpoint's rows it has the last `max_length`. Sinusoids have no parameters.
"""

from collections.abc import Callable
from typing import NamedTuple

from posjax.arguments import Size, Whole
from posjax.interop.fields import Fields
from posjax.scheme import Scheme
from posjax.schemes import learned, sinusoidal


class Embedded(NamedTuple):
  """The positions of the embeddings of a model.

  Attributes:
    name: of the learned table after any prefix; {} is the part of a model that has several. '' if
      the positions are sinusoids.
    rows: how many tokens a learned table is for.
    unused: how many rows the checkpoint has before those of the tokens.
    sinusoids: the scheme, where the positions are not learned.
    encoder: the same of the encoder, where it differs.
  """

  name: str = ''
  rows: Callable[[Fields], int] = lambda fields: _length(fields)
  unused: Callable[[Fields], int] = lambda fields: 0
  sinusoids: Callable[[Fields], Scheme] | None = None
  encoder: 'Embedded | None' = None

  def of_part(self, *, encoder: bool) -> 'Embedded':
    """Those of the decoder, or of a model that has one part, or those of the encoder."""
    return self.encoder if encoder and self.encoder is not None else self


def _length(fields: Fields) -> int:
  length = fields.size('n_positions', 'max_position_embeddings')
  if length is None:
    raise ValueError('A learned table needs n_positions or max_position_embeddings.')
  return length


def _two(fields: Fields) -> int:
  """The rows that fairseq's tables begin with, and max_position_embeddings does not count."""
  return 2


def _trocr(fields: Fields) -> int:
  if not fields.get('use_learned_position_embeddings', bool, True):
    raise fields.refuse(
      'use_learned_position_embeddings', "true, because TrOCR's sinusoids are not supported"
    )
  return _length(fields)


def _padded(fields: Fields) -> int:
  return fields.get('pad_token_id', Whole, 1) + 1


def _after_padding(unused: Callable[[Fields], int]) -> Callable[[Fields], int]:
  """The rows of a table whose length counts those of the padding."""

  def rows(fields: Fields) -> int:
    length, left_out = _length(fields), unused(fields)
    if length <= left_out:
      raise ValueError(
        f'A learned table needs more than its {left_out} rows of padding, but got {length} rows.'
      )
    return length - left_out

  return rows


def _patches(fields: Fields) -> int:
  """ViT: a token for the class, then those of the patches, row by row."""
  sides = []
  for name in ('image_size', 'patch_size'):
    side = fields.needed(name, lambda name: fields.get(name, Size | list[Size]))
    sides.append(side if isinstance(side, list | tuple) else [side, side])
  (height, width), (patch_height, patch_width) = sides
  return 1 + (height // patch_height) * (width // patch_width)


def _from(first: Callable[[Fields], int]) -> Callable[[Fields], Scheme]:
  """Fairseq's sinusoids, whose first token has another id than 0."""

  def scheme(fields: Fields) -> Scheme:
    code, start = sinusoidal.scheme(interleaved=False, endpoint=True), first(fields)

    def embed(params, x, tokens, pos):
      return code.embed(params, x, tokens, pos + start)

    return code._replace(embed=embed)

  return scheme


def embedded(found: Embedded, fields: Fields, *, encoder: bool = False) -> Scheme:
  """The scheme of a model's embeddings.

  Args:
    found: the positions of the embeddings of its family.
    fields: its configuration.
    encoder: whether they are those of its encoder.

  Raises:
    ValueError: if the configuration lacks the length of a learned table, or its
      position_embedding_type has other positions than those of a table.

  Example:
    >>> from posjax.scheme import places
    >>> places(embedded(SINUSOIDS, Fields({'model_type': 'marian'})))
    ('embed',)
  """
  if fields.get('position_embedding_type', str, 'absolute') != 'absolute':
    raise fields.refuse('position_embedding_type', f"'absolute' for {fields.values['model_type']}")
  found = found.of_part(encoder=encoder)
  if found.sinusoids is not None:
    return found.sinusoids(fields)
  return learned.scheme(max_length=found.rows(fields))


SINUSOIDS = Embedded(sinusoids=lambda fields: sinusoidal.scheme(interleaved=False))
FAIRSEQ_SINUSOIDS = Embedded(sinusoids=_from(_padded))
XGLM = Embedded(sinusoids=_from(_two))
BERT = Embedded('embeddings.position_embeddings.weight')
ROBERTA = BERT._replace(rows=_after_padding(_padded), unused=_padded)
MPNET = BERT._replace(rows=_after_padding(_two), unused=_two)
CLIP = Embedded('embeddings.position_embedding.weight')
GPT2 = Embedded('wpe.weight')
GPT = Embedded('positions_embed.weight')
OPT = Embedded('decoder.embed_positions.weight', unused=_two)
BIOGPT = Embedded('embed_positions.weight', unused=_two)
TROCR = OPT._replace(rows=_trocr)
BLENDERBOT = Embedded('{}.embed_positions.weight')
BART = BLENDERBOT._replace(unused=_two)
VIT = Embedded('embeddings.position_embeddings', rows=_patches)
WHISPER = Embedded(
  'decoder.embed_positions.weight',
  rows=lambda fields: fields.needed('max_target_positions', fields.size),
  encoder=Embedded(sinusoids=lambda fields: sinusoidal.scheme(interleaved=False, endpoint=True)),
)
