"""The schemes of the families that neither rotate nor add positions to the embeddings alone."""

import functools

from posjax.arguments import Size, Whole, shown
from posjax.chain import chain
from posjax.interop.embeddings import BERT, MPNET, Embedded, embedded
from posjax.interop.family import Family, Options, RelativeKeys, SchemeReader
from posjax.interop.fields import Fields
from posjax.interop.rope import rotary
from posjax.scheme import Scheme
from posjax.schemes import alibi, deberta, shaw, t5, transformer_xl


def t5_scheme(shared: bool = True) -> SchemeReader:
  """T5's biases; `shared` says whether all layers have one table."""

  def scheme(family: Family, fields: Fields, options: Options) -> Scheme:
    return t5.scheme(
      num_buckets=fields.get('relative_attention_num_buckets', Size, 32),
      max_distance=fields.get('relative_attention_max_distance', Size, 128),
      bidirectional=options.bidirectional,
      shared=shared,
    )

  return scheme


def mpnet_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """A learned table, and biases of T5's buckets; transformers always has 32 of them."""
  buckets = fields.get('relative_attention_num_buckets', Size, 32)
  if buckets != 32:
    raise fields.refuse('relative_attention_num_buckets', '32, which is all that MPNet uses')
  biases = t5.scheme(num_buckets=32, bidirectional=True)
  return chain(embedded(MPNET, fields), biases)


def xlnet_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """XLNet's relative attention; one stream, and tokens of one text, between which no bias is."""
  clamp = fields.get('clamp_len', int, -1)
  return transformer_xl.scheme(shared=False, max_distance=clamp if clamp > 0 else None)


def conformer_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """The relative attention of Wav2Vec2-Conformer."""
  if fields.get('position_embeddings_type', str, 'relative') != 'relative':
    raise fields.refuse(
      'position_embeddings_type',
      "'relative', because the others, which rotate the input of the projections, are "
      'not supported',
    )
  return transformer_xl.scheme(shared=False)


def bloom_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """ALiBi."""
  return alibi.scheme()


def mpt_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """ALiBi, which MPT may turn off, or give other slopes."""
  section = fields.section('attn_config')
  if not section.get('alibi', bool, True) or section.get('alibi_bias_max', float, 8.0) != 8:
    got = shown(dict(section.values))
    raise ValueError(f"MPT's attn_config must have ALiBi with alibi_bias_max 8, but got {got}.")
  return alibi.scheme()


def falcon_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """RoPE, or ALiBi whose biases are scaled with the logits, to which Falcon adds them before."""
  if not fields.get('alibi', bool):
    return rotary(family, fields, options)
  return _scaled_alibi()


@functools.cache  # all layers have the same one
def _scaled_alibi() -> Scheme:
  standard = alibi.scheme()

  def init(key, dims):
    return {'slopes': standard.init(key, dims)['slopes'] * dims.head_dim**-0.5}

  return standard._replace(init=init)


def relative_scheme(relative: RelativeKeys, table: Embedded | None) -> SchemeReader:
  """A table of keys by distance, or, where the family has it, one that is added to embeddings."""

  def scheme(family: Family, fields: Fields, options: Options) -> Scheme:
    usual = 'relative_key' if table is None else 'absolute'
    found = fields.get(relative.field, str, usual)
    if found == 'relative_key':
      return shaw.scheme(max_distance=max(relative.reach(fields)), values=False)
    if found == 'absolute' and table is not None:
      return embedded(table, fields)
    kind = fields.values['model_type']
    raise ValueError(f'The {relative.field} of {kind} is not supported, but got {found!r}.')

  return scheme


def _bert_reach(fields: Fields) -> tuple[int, int]:
  return (fields.get('max_position_embeddings', Size, 512) - 1,) * 2


def _wav2vec2_bert_reach(fields: Fields) -> tuple[int, int]:
  left = fields.get('left_max_position_embeddings', Whole, 64)
  return left, fields.get('right_max_position_embeddings', Whole, 8)


BERT_KEYS = RelativeKeys('position_embedding_type', _bert_reach, descending=True)
WAV2VEC2_BERT_KEYS = RelativeKeys('position_embeddings_type', _wav2vec2_bert_reach, False)


def deberta_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """DeBERTa's versions 1 and 2; the model_type of version 3 is that of version 2."""
  biased = fields.get('position_biased_input', bool, True)
  absolute = [embedded(BERT, fields)] if biased else []
  if not fields.get('relative_attention', bool, False):
    return chain(*absolute)
  terms = fields.get('pos_att_type', str | list[str]) or ()
  terms = set(terms.lower().split('|') if isinstance(terms, str) else terms)
  if terms - {'c2p', 'p2c'}:
    raise ValueError(f"DeBERTa's pos_att_type may hold c2p and p2c, but got {terms}.")
  farthest = fields.get('max_relative_positions', int, -1)
  buckets = fields.get('position_buckets', int, -1)
  normalized = fields.get('norm_rel_ebd', str, 'none').lower().split('|')
  relative = deberta.scheme(
    max_distance=fields.get('max_position_embeddings', Size, 512) if farthest < 1 else farthest,
    buckets=None if buckets < 1 else buckets,
    c2p='c2p' in terms,
    p2c='p2c' in terms,
    normalized='layer_norm' in normalized,
  )
  return chain(*absolute, relative)
