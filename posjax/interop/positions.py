"""The scheme of a configuration: which function reads it, and the schemes that are not rotary."""

from posjax.arguments import Size, Whole, shown
from posjax.chain import chain
from posjax.interop.fields import Fields
from posjax.interop.rope import rotary
from posjax.scheme import Scheme
from posjax.schemes import alibi, deberta, learned, shaw, t5

_T5 = {'t5', 'mt5', 'umt5', 'switch_transformers'}
BERT = {'bert', 'albert', 'electra', 'roberta', 'xlm-roberta', 'camembert'}
_LEARNED = {'gpt2', 'openai-gpt', 'gpt_neo', 'gpt_bigcode', 'opt', 'bart', 'mbart'}
_PADDED = {'roberta', 'xlm-roberta', 'camembert'}  # these count positions from pad_token_id + 1


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
  if kind in _LEARNED:
    return _table(fields)
  return rotary(fields, layer_type, length, interleaved, layer)


def _t5(fields: Fields, bidirectional: bool) -> Scheme:
  return t5.scheme(
    num_buckets=fields.get('relative_attention_num_buckets', Size, 32),
    max_distance=fields.get('relative_attention_max_distance', Size, 128),
    bidirectional=bidirectional,
    shared=fields.values['model_type'] != 'umt5',
  )


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
    return _table(fields)
  raise ValueError(f"There is no scheme for {kind}'s {named} {embedding!r}.")


def _deberta(fields: Fields) -> Scheme:
  """DeBERTa's versions 1 and 2; the model_type of version 3 is that of version 2."""
  absolute = [_table(fields)] if fields.get('position_biased_input', bool, True) else []
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


def _table(fields: Fields) -> Scheme:
  length = fields.size('n_positions', 'max_position_embeddings')
  if length is None:
    raise ValueError('A learned table needs n_positions or max_position_embeddings.')
  is_padded = fields.values['model_type'] in _PADDED
  unused = fields.get('pad_token_id', Whole, 1) + 1 if is_padded else 0
  if length <= unused:
    raise ValueError(
      f'A learned table needs more than its {unused} rows of padding, but got {length} rows.'
    )
  return learned.scheme(max_length=length - unused)
