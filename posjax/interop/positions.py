"""The scheme of a configuration: which function reads it, and the schemes that are not rotary."""

from posjax.arguments import Size, Whole, shown
from posjax.chain import chain
from posjax.interop.embeddings import EMBEDDED, embedded
from posjax.interop.fields import Fields
from posjax.interop.rope import rotary
from posjax.interop.stages import swin_scheme, swinv2_scheme
from posjax.scheme import Scheme
from posjax.schemes import alibi, deberta, shaw, t5, transformer_xl

_T5 = {'t5', 'mt5', 'umt5', 'switch_transformers', 'longt5'}
BERT = {'bert', 'albert', 'electra', 'roberta', 'xlm-roberta', 'camembert'}


def of_model(
  fields: Fields,
  *,
  layer: int | None = None,
  layer_type: str | None = None,
  length: int | None = None,
  bidirectional: bool = False,
  interleaved: bool | None = None,
) -> Scheme:
  """The scheme of a model, or of one of its layers; for the arguments see `interop.from_hf`.

  Raises:
    ValueError: if the configuration has something that is not known, or an argument is missing.
  """
  kind = fields.get('model_type', str)
  if kind in _T5:
    return _t5(fields, bidirectional)
  if kind in ('bloom', 'mpt') or (kind == 'falcon' and fields.get('alibi', bool)):
    return _alibi(fields)
  if kind == 'wav2vec2-bert' or kind in BERT:
    return _bert(fields)
  if kind in ('deberta', 'deberta-v2'):
    return _deberta(fields)
  if kind == 'mpnet':
    return _mpnet(fields)
  if kind == 'xlnet':
    return _xlnet(fields)
  if kind == 'wav2vec2-conformer':
    return _conformer(fields)
  if kind == 'swin':
    return swin_scheme(fields)
  if kind == 'swinv2':
    return swinv2_scheme(fields, layer)
  if kind in EMBEDDED:
    return embedded(fields, bidirectional)
  return rotary(fields, layer_type, length, interleaved, layer)


def _t5(fields: Fields, bidirectional: bool) -> Scheme:
  return t5.scheme(
    num_buckets=fields.get('relative_attention_num_buckets', Size, 32),
    max_distance=fields.get('relative_attention_max_distance', Size, 128),
    bidirectional=bidirectional,
    shared=fields.values['model_type'] != 'umt5',
  )


def _mpnet(fields: Fields) -> Scheme:
  """A learned table, and biases of T5's buckets; transformers has 32 of them, whatever is told."""
  buckets = fields.get('relative_attention_num_buckets', Size, 32)
  if buckets != 32:
    raise fields.refuse('relative_attention_num_buckets', '32, which is all that MPNet uses')
  return chain(embedded(fields), t5.scheme(num_buckets=32, bidirectional=True))


def _xlnet(fields: Fields) -> Scheme:
  """XLNet's relative attention; one stream, and tokens of one text, between which no bias is."""
  clamp = fields.get('clamp_len', int, -1)
  return transformer_xl.scheme(shared=False, max_distance=clamp if clamp > 0 else None)


def _conformer(fields: Fields) -> Scheme:
  if fields.get('position_embeddings_type', str, 'relative') != 'relative':
    raise fields.refuse(
      'position_embeddings_type', "'relative', because others turn what is not projected yet"
    )
  return transformer_xl.scheme(shared=False)


def _alibi(fields: Fields) -> Scheme:
  standard = alibi.scheme()
  if fields.values['model_type'] == 'bloom':
    return standard
  if fields.values['model_type'] == 'mpt':
    told = fields.section('attn_config')
    if not told.get('alibi', bool, True) or told.get('alibi_bias_max', float, 8.0) != 8:
      got = shown(dict(told.values))
      raise ValueError(f'MPT is known with ALiBi up to a slope of 2^-8 only, but got {got}.')
    return standard

  def init(key, dims):  # Falcon scales its logits after it has added the biases
    return {'slopes': standard.init(key, dims)['slopes'] * dims.head_dim**-0.5}

  return standard._replace(init=init)


def _bert(fields: Fields) -> Scheme:
  kind = fields.values['model_type']
  is_wave = kind == 'wav2vec2-bert'
  named = 'position_embeddings_type' if is_wave else 'position_embedding_type'
  embedding = fields.get(named, str, 'relative_key' if is_wave else 'absolute')
  if embedding == 'relative_key':
    return shaw.scheme(max_distance=max(reach(fields)), values=False)
  if embedding == 'absolute' and not is_wave:
    return embedded(fields)
  raise ValueError(f"There is no scheme for {kind}'s {named} {embedding!r}.")


def _deberta(fields: Fields) -> Scheme:
  """DeBERTa's versions 1 and 2; the model_type of version 3 is that of version 2."""
  absolute = [embedded(fields)] if fields.get('position_biased_input', bool, True) else []
  if not fields.get('relative_attention', bool, False):
    return chain(*absolute)
  terms = fields.get('pos_att_type', str | list[str]) or ()
  terms = set(terms.lower().split('|') if isinstance(terms, str) else terms)
  if terms - {'c2p', 'p2c'}:
    raise ValueError(f"DeBERTa's pos_att_type is known to hold c2p and p2c, but got {terms}.")
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


def reach(fields: Fields) -> tuple[int, int]:
  """The largest distances that a table of relative keys has a row for, backward and forward."""
  if fields.values['model_type'] == 'wav2vec2-bert':
    left = fields.get('left_max_position_embeddings', Whole, 64)
    return left, fields.get('right_max_position_embeddings', Whole, 8)
  return (fields.get('max_position_embeddings', Size, 512) - 1,) * 2
