"""How each family of models attends: the names of its weights, and what its layers do.

A family is one record. Transformers decides most of it in code, and only the rest is in the
configuration: what a configuration decides is a function of its fields and of the layer's index.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from posjax.interop import latent
from posjax.interop.fields import Fields
from posjax.interop.layers import turns, type_of
from posjax.layers.projections import Norm

Reader = Callable[[Fields, int], Any]  # the fields, and the index of the layer


class Names(NamedTuple):
  """The names of the weights of a layer's attention, and how they lie in fused ones.

  Attributes:
    block: where the attention of layer {} lies, after any prefix.
    query: the projection of the queries; so are `key`, `value` and `out`.
    key: see `query`.
    value: see `query`.
    out: see `query`.
    fused: one projection in the place of the three; '' if there is none.
    grouped: whether a fused projection has, for each key head, its queries, its key and its value.
      If not, it has all queries, all keys and all values.
    transposed: whether weights are [inputs, outputs], as in GPT-2.
    no_bias: the projection that has no bias where the others have one; '' if there is none.
    query_norm: the norm of the queries, where the layer has one.
    key_norm: the norm of the keys.
    sinks: the sinks, where the layer has some.
    beside: names in the block that are no weights of attention: buffers, and what comes after it.
  """

  block: str = 'layers.{}.self_attn'
  query: str = 'q_proj'
  key: str = 'k_proj'
  value: str = 'v_proj'
  out: str = 'o_proj'
  fused: str = ''
  grouped: Callable[[Fields], bool] = lambda fields: False
  transposed: bool = False
  no_bias: str = ''
  query_norm: str = 'q_norm'
  key_norm: str = 'k_norm'
  sinks: str = 'sinks'
  beside: tuple[str, ...] = ('rotary_emb.inv_freq',)


def never(fields: Fields, layer: int) -> Any:
  """None, for what a family does not have."""
  return None


class Family(NamedTuple):
  """A family: how its layers attend.

  Attributes:
    names: of the weights.
    bias: whether queries, keys and values have biases.
    out_bias: whether the output has one; None: as the others.
    causal: whether a token sees only what is not after it.
    window: the window of a layer, as `posjax.attend` has it, or None.
    scale: the factor of q . k, or None for 1/sqrt(D).
    logit_cap: the cap of the logits, or None.
    sinks: whether each head has a sink.
    norm: the norm of queries and keys, or None.
    added: what the weights of the norms lack, 1 in Gemma.
    weightless: whether the norms have no weights. Whether they come before RoPE or after it is then
      the same.
    embedded: whether positions are added to the embeddings, so that the layers know none.
    latent: the narrow vectors of which keys and values are made, or None.
    heads: the field that has the number of heads, where it is not a usual one.
    kv_heads: the number of key heads, where num_key_value_heads does not say it.
    chunk: tokens of one chunk, where tokens see no other chunk than their own.
    known: for fields that change attention in a way that is not read, the values that do not.
    table: the place of a table that the scheme needs, such as T5's, in which layer's block; None
      for the layer itself.
  """

  names: Names = Names()
  bias: Reader = never
  out_bias: Reader = never
  causal: Reader = lambda fields, layer: True
  window: Reader = never
  scale: Reader = never
  logit_cap: Reader = never
  sinks: bool = False
  norm: Reader = never
  added: float = 0.0
  weightless: bool = False
  embedded: bool = False
  latent: Reader = never
  heads: str = ''
  kv_heads: Reader = never
  chunk: Reader = never
  known: tuple[tuple[str, tuple[Any, ...]], ...] = ()
  table: 'Table | None' = None


class Table(NamedTuple):
  """A table of the scheme among the weights.

  Attributes:
    parameter: its name in the scheme.
    name: its name in the block.
    layer: the layer whose block has it for all layers; None if each layer has its own.
  """

  parameter: str
  name: str
  layer: int | None = None


# Readers. Each returns one.


def always(value: Any) -> Reader:
  """The same for all layers."""
  return lambda fields, layer: value


def flag(name: str) -> Reader:
  """A field that is true or false; null is false."""
  return lambda fields, layer: bool(fields.get(name, bool))


def positive(name: str) -> Reader:
  """A field that is a positive number or null."""
  return lambda fields, layer: fields.positive(name)


def everywhere(fields: Fields, layer: int) -> int | None:
  """The sliding window, in all layers."""
  return fields.size('sliding_window')


def where_sliding(fields: Fields, layer: int) -> int | None:
  """The sliding window, in the layers whose type has one."""
  return everywhere(fields, layer) if type_of(fields, layer) == 'sliding_attention' else None


def _both_sides(fields: Fields, layer: int) -> int | None:
  """ModernBERT's window: half of local_attention before a token, half after it."""
  if type_of(fields, layer) != 'sliding_attention':
    return None
  return fields.needed('local_attention', fields.size) // 2 + 1


def _gemma3_window(fields: Fields, layer: int) -> int | None:
  """Looking both ways, half of the window lies before a token, and half after it."""
  window = where_sliding(fields, layer)
  both = window is not None and fields.get('use_bidirectional_attention', bool)
  return window // 2 + 1 if both and window else window


def _inverse_root(name: str) -> Reader:
  return lambda fields, layer: fields.needed(name, fields.positive) ** -0.5


def heads_norm(
  epsilon: str,
  kind: Any = 'rms',
  heads: Any = 'alike',
  *,
  use_bias: bool = False,
  only: str | None = None,
) -> Reader:
  """A norm of queries and keys, if the field `only` says so; `epsilon` is a field's name."""

  def read(fields: Fields, layer: int) -> Norm | None:
    if only is not None and not fields.get(only, bool):
      return None
    return Norm(kind, fields.needed(epsilon, fields.positive), heads, use_bias)

  return read


_NO = (None, False, 0)  # values of a switch that is off


def off(*names: str) -> tuple[tuple[str, tuple[Any, ...]], ...]:
  """Switches that must be off, because what they switch on is not read."""
  return tuple((name, _NO) for name in names)


def _falcon_kv_heads(fields: Fields, layer: int) -> int | None:
  if fields.get('new_decoder_architecture', bool):
    return fields.size('num_kv_heads')
  return 1 if fields.get('multi_query', bool) else None


def _gpt2_scale(fields: Fields, layer: int) -> float | None:
  width, heads = fields.size('n_embd', 'hidden_size'), fields.size('n_head', 'num_attention_heads')
  scaled = fields.get('scale_attn_weights', bool, True)
  scale = (width // heads) ** -0.5 if scaled and width and heads else 1.0
  by_layer = fields.get('scale_attn_by_inverse_layer_idx', bool, False)
  return scale / (layer + 1) if by_layer else scale


def _mpt_scale(fields: Fields, layer: int) -> float | None:
  return fields.section('attn_config').positive('softmax_scale')


_EVERY = lambda fields: True
_LLAMA = Names()
_NEOX = Names(
  'layers.{}.attention',
  out='dense',
  fused='query_key_value',
  grouped=_EVERY,
  beside=('rotary_emb.inv_freq', 'bias', 'masked_bias'),
)
_FALCON = Names('h.{}.self_attention', out='dense', fused='query_key_value', grouped=_EVERY)
_MPT = Names('blocks.{}.attn', out='out_proj', fused='Wqkv')
_GPT2 = Names(
  'h.{}.attn', out='c_proj', fused='c_attn', transposed=True, beside=('bias', 'masked_bias')
)
_GPTJ = Names('h.{}.attn', out='out_proj', beside=('bias', 'masked_bias', 'embed_positions'))
_PHI3 = Names(fused='qkv_proj')
_BERT = Names(
  'encoder.layer.{}.attention',
  *('self.query', 'self.key', 'self.value', 'output.dense'),
  beside=('output.LayerNorm',),
)
_OPT = Names(out='out_proj')
_MODERNBERT = Names('layers.{}.attn', fused='Wqkv', out='Wo')


def _t5(stack: str, sub: str) -> Names:
  return Names(f'{stack}.block.{{}}.layer.{sub}', 'q', 'k', 'v', 'o')


_T5_TABLE = Table('table', 'relative_attention_bias.weight', 0)
_ENCODER = always(False)
_UNSCALED = always(1.0)


def _t5_parts(table: Table) -> dict[str, Family]:
  common = Family(scale=_UNSCALED)
  own = common._replace(table=table)
  return {
    'encoder': own._replace(names=_t5('encoder', '0.SelfAttention'), causal=_ENCODER),
    'decoder': own._replace(names=_t5('decoder', '0.SelfAttention')),
    'cross': common._replace(names=_t5('decoder', '1.EncDecAttention'), causal=_ENCODER),
  }


_BIASED = flag('attention_bias')
_YES = always(True)
_PLAIN = Family(bias=_BIASED)  # Llama
_RMS = heads_norm('rms_norm_eps')
_QWEN3 = Family(bias=_BIASED, window=where_sliding, norm=_RMS)
_GEMMA2 = Family(
  bias=_BIASED,
  window=where_sliding,
  scale=_inverse_root('query_pre_attn_scalar'),
  logit_cap=positive('attn_logit_softcapping'),
  known=off('use_bidirectional_attention'),
)
_BERT_LIKE = Family(
  _BERT, bias=_YES, causal=_ENCODER, known=off('is_decoder', 'add_cross_attention')
)

_TOGETHER = heads_norm('rms_norm_eps', heads='together')
_PHI_NORM = heads_norm('layer_norm_eps', 'layer', use_bias=True, only='qk_layernorm')
_NONE = always(False)
_GRANITE = _PLAIN._replace(scale=positive('attention_multiplier'))
_LAYER_NORMS = {'query_norm': 'q_layernorm', 'key_norm': 'k_layernorm'}
_PHI = Names(out='dense', **_LAYER_NORMS)
_PERSIMMON = _PHI._replace(fused='query_key_value', grouped=_EVERY)
_ALBERT = Names(
  'encoder.albert_layer_groups.0.albert_layers.0.attention',
  *('query', 'key', 'value', 'dense'),
  beside=('LayerNorm',),
)
_DISTILBERT = Names('transformer.layer.{}.attention', 'q_lin', 'k_lin', 'v_lin', 'out_lin')
_BIGCODE = Names(
  'h.{}.attn',
  **{'out': 'c_proj', 'fused': 'c_attn', 'beside': ('bias', 'masked_bias')},
  grouped=lambda fields: not fields.get('multi_query', bool, True),
)
_GPT_NEO = Names('h.{}.attn.attention', out='out_proj', beside=('bias', 'masked_bias'))
_VIT = Names('layers.{}.attention')


def _llama4_norm(fields: Fields, layer: int) -> Norm | None:
  turning = turns(fields, layer, None)
  return heads_norm('rms_norm_eps', only='use_qk_norm')(fields, layer) if turning else None


def _llama4_chunk(fields: Fields, layer: int) -> int | None:
  is_chunked = type_of(fields, layer) == 'chunked_attention'
  return fields.size('attention_chunk_size') if is_chunked else None


def _bigcode_kv_heads(fields: Fields, layer: int) -> int | None:
  return 1 if fields.get('multi_query', bool, True) else None


def _gpt_neo_window(fields: Fields, layer: int) -> int | None:
  """Layers are global or local; `attention_types` repeats a list of such words."""
  told = fields.get('attention_layers', list[str])
  if told is None:
    types = fields.values.get('attention_types')
    told = [word for words, times in types or () for _ in range(times) for word in words]
  if layer >= len(told):
    raise ValueError(
      f'The configuration needs attention_types of every layer, but got {len(told)} of them.'
    )
  return fields.needed('window_size', fields.size) if told[layer] == 'local' else None


def _bart_parts(no_bias: str = '') -> dict[str, Family]:
  def part(block: str, heads: str, *, causal: bool) -> Family:
    names = Names(block, out='out_proj', no_bias=no_bias)
    return Family(names, bias=_YES, causal=always(causal), embedded=True, heads=heads)

  encoder, decoder = 'encoder_attention_heads', 'decoder_attention_heads'
  return {
    'encoder': part('encoder.layers.{}.self_attn', encoder, causal=False),
    'decoder': part('decoder.layers.{}.self_attn', decoder, causal=True),
    'cross': part('decoder.layers.{}.encoder_attn', decoder, causal=False),
  }


# By model_type. A model of an encoder and a decoder has one family for each part.
FAMILIES: dict[str, Family | dict[str, Family]] = {
  'llama': _PLAIN,
  'mistral': Family(window=everywhere),
  'mixtral': Family(window=everywhere),
  'qwen2': Family(bias=_YES, out_bias=always(False), window=where_sliding),
  'qwen2_moe': Family(bias=flag('qkv_bias'), out_bias=always(False), window=where_sliding),
  'qwen3': _QWEN3,
  'qwen3_moe': _QWEN3._replace(window=everywhere),
  'gemma': _PLAIN._replace(known=off('use_bidirectional_attention')),
  'gemma2': _GEMMA2,
  'gemma3_text': _GEMMA2._replace(
    causal=lambda fields, layer: not fields.get('use_bidirectional_attention', bool),
    **{'window': _gemma3_window, 'norm': _RMS, 'added': 1.0, 'known': ()},
  ),
  'gpt_neox': Family(_NEOX, bias=_BIASED),
  'gpt2': Family(_GPT2, bias=_YES, scale=_gpt2_scale),
  'gptj': Family(_GPTJ),
  'bloom': Family(_FALCON, bias=_YES),
  'falcon': Family(_FALCON, bias=flag('bias'), kv_heads=_falcon_kv_heads),
  'mpt': Family(_MPT, scale=_mpt_scale),
  'opt': Family(_OPT, bias=flag('enable_bias')),
  'phi3': Family(_PHI3, window=everywhere),
  'gpt_oss': Family(bias=_BIASED, window=where_sliding, sinks=True),
  'modernbert': Family(_MODERNBERT, bias=_BIASED, causal=_ENCODER, window=_both_sides),
  **dict.fromkeys(('bert', 'roberta', 'electra', 'camembert', 'xlm-roberta'), _BERT_LIKE),
  **dict.fromkeys(('t5', 'mt5', 'switch_transformers'), _t5_parts(_T5_TABLE)),
  'umt5': _t5_parts(_T5_TABLE._replace(layer=None)),
  'cohere': _PLAIN._replace(
    norm=heads_norm('layer_norm_eps', 'layer', 'apart', only='use_qk_norm')
  ),
  'cohere2': _PLAIN._replace(window=where_sliding),
  'smollm3': _PLAIN._replace(window=where_sliding),
  'exaone4': Family(window=where_sliding, norm=_RMS),
  'llama4_text': _PLAIN._replace(
    norm=_llama4_norm, weightless=True, chunk=_llama4_chunk, names=Names(query_norm='qk_norm')
  ),
  'granite': _GRANITE,
  'granitemoe': _GRANITE,
  'granitemoeshared': _GRANITE,
  'hyperclovax': _GRANITE,
  'olmo': _PLAIN._replace(known=off('clip_qkv')),
  'olmo2': _PLAIN._replace(norm=_TOGETHER),
  'olmo3': _PLAIN._replace(window=where_sliding, norm=_TOGETHER),
  'olmoe': _PLAIN._replace(norm=_TOGETHER, known=off('clip_qkv')),
  'flex_olmo': _PLAIN._replace(norm=_TOGETHER),
  'minimax_m2': Family(norm=_TOGETHER),
  'arcee': _PLAIN,
  'jais2': _PLAIN,
  'phimoe': _PLAIN._replace(window=everywhere),
  'ministral': Family(window=where_sliding),
  'ministral3': Family(window=everywhere),
  'cwm': Family(window=where_sliding),
  'dots1': _QWEN3,
  'glm': _PLAIN._replace(out_bias=_NONE),
  'glm4': _PLAIN._replace(out_bias=_NONE),
  'glm4_moe': _PLAIN._replace(out_bias=_NONE, norm=heads_norm('rms_norm_eps', only='use_qk_norm')),
  'solar_open': _PLAIN._replace(out_bias=_NONE),
  'helium': _PLAIN._replace(out_bias=_NONE),
  'seed_oss': _PLAIN._replace(out_bias=flag('attention_out_bias')),
  'apertus': _PLAIN._replace(norm=_RMS),
  'nemotron': _PLAIN,
  'starcoder2': Family(bias=flag('use_bias'), window=everywhere),
  'stablelm': Family(bias=flag('use_qkv_bias'), out_bias=_NONE, known=off('qk_layernorm')),
  'deepseek_v3': _PLAIN._replace(
    names=Names(query='q_a_proj', key='kv_a_proj_with_mqa'),
    latent=latent.read_latent,
    scale=latent.scale,
  ),
  'persimmon': Family(_PERSIMMON, bias=_YES, norm=_PHI_NORM),
  'phi': Family(_PHI, bias=_YES, norm=_PHI_NORM),
  'ernie4_5': Family(bias=flag('use_bias')),
  'ernie4_5_moe': Family(bias=flag('use_bias')),
  'eurobert': _PLAIN._replace(causal=_ENCODER),
  'nomic_bert': Family(causal=_ENCODER),
  'esm': _BERT_LIKE._replace(
    names=_BERT._replace(beside=('LayerNorm', 'self.rotary_embeddings.inv_freq')),
    known=(*_BERT_LIKE.known, ('position_embedding_type', ('rotary',))),
  ),
  'roformer': _BERT_LIKE._replace(known=(*_BERT_LIKE.known, *off('rotary_value'))),
  'albert': Family(_ALBERT, bias=_YES, causal=_ENCODER),
  'distilbert': Family(_DISTILBERT, bias=_YES, causal=_ENCODER, embedded=True),
  'gpt_bigcode': Family(_BIGCODE, bias=_YES, scale=_gpt2_scale, kv_heads=_bigcode_kv_heads),
  'gpt_neo': Family(_GPT_NEO, out_bias=_YES, scale=_UNSCALED, window=_gpt_neo_window),
  'openai-gpt': Family(_GPT2, bias=_YES),
  'xglm': Family(_OPT, bias=_YES, embedded=True, heads='attention_heads'),
  'biogpt': Family(_OPT, bias=_YES, embedded=True),
  'vit': Family(_VIT, bias=flag('qkv_bias'), out_bias=_YES, causal=_ENCODER, embedded=True),
  **dict.fromkeys(
    ('bart', 'mbart', 'marian', 'pegasus', 'm2m_100', 'blenderbot', 'blenderbot-small', 'plbart'),
    _bart_parts(),
  ),
  'whisper': _bart_parts(no_bias='k_proj'),
}
