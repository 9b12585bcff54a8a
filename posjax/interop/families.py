"""The families of models: one entry of the table at the end is all that is known of one.

To add a family, add an entry: the model types of transformers that are alike, and the `Family`.
What its record cannot say by its values is a function of the configuration's fields: readers of
one family are here, those of several in `family`, those of schemes in `rope` and `positions`.
"""

from typing import Any

from posjax.interop import embeddings, latent, layers, positions, rope, stages, tables
from posjax.interop.embeddings import Embedded, embedded
from posjax.interop.family import (
  Attention,
  Family,
  Layer,
  Names,
  Options,
  Parts,
  Reader,
  Rotary,
  TypeReader,
  always,
  everywhere,
  flag,
  heads_norm,
  off,
  positive,
  where_sliding,
)
from posjax.interop.fields import Fields
from posjax.interop.layers import full_every
from posjax.interop.tables import Table
from posjax.layers.projections import Norm
from posjax.scheme import Scheme


def family_of(fields: Fields) -> Family:
  """The family of a configuration's model_type; an empty one for an unknown type.

  Raises:
    ValueError: if the model_type is no string.

  Example:
    >>> family_of(Fields({'model_type': 'gptj'})).rotary.interleaved
    True
  """
  return FAMILIES.get(fields.get('model_type', str) or '', Family())


def scheme_of(fields: Fields, options: Options) -> Scheme:
  """The scheme of a model, or of one of its layers; for the options see `interop.from_hf`.

  Raises:
    ValueError: if the configuration has something that is not supported, or an option is missing.
  """
  family = family_of(fields)
  if family.scheme is not None:
    return family.scheme(family, fields, options)
  if family.embedded is not None:
    return embedded(family.embedded, fields, encoder=options.bidirectional)
  return rope.rotary(family, fields, options)


# What a field, or several, say of a layer.


def _half_window(more: int) -> Reader:
  """ModernBERT: a half of local_attention lies before a token, and so many tokens more are seen."""

  def read(fields: Fields, layer: Layer) -> int | None:
    window = fields.needed('local_attention', fields.size) if layer.slides else None
    return None if window is None else window // 2 + more

  return read


def _gemma3_causal(fields: Fields, layer: Layer) -> bool:
  return not fields.get('use_bidirectional_attention', bool)


def _gemma3_window(fields: Fields, layer: Layer) -> int | None:
  """Looking both ways, half of the window lies before a token, and half after it."""
  window = where_sliding(fields, layer)
  both = window is not None and fields.get('use_bidirectional_attention', bool)
  return window // 2 + 1 if both and window else window


def _internlm3_bias(fields: Fields, layer: Layer) -> bool:
  """Files of the model's own code call it qkv_bias."""
  return any(fields.get(name, bool) for name in ('attention_bias', 'qkv_bias'))


def _falcon_kv_heads(fields: Fields, layer: Layer) -> int | None:
  if fields.get('new_decoder_architecture', bool):
    return fields.size('num_kv_heads')
  return 1 if fields.get('multi_query', bool) else None


def _gpt2_scale(fields: Fields, layer: Layer) -> float | None:
  width, heads = fields.size('n_embd', 'hidden_size'), fields.size('n_head', 'num_attention_heads')
  scaled = fields.get('scale_attn_weights', bool, True)
  scale = (width // heads) ** -0.5 if scaled and width and heads else 1.0
  by_layer = fields.get('scale_attn_by_inverse_layer_idx', bool, False)
  return scale / (layer.index + 1) if by_layer else scale


def _llama4_norm(fields: Fields, layer: Layer) -> Norm | None:
  rotates = layers.llama4_rotates(fields, layer.index)
  return heads_norm('rms_norm_eps', only='use_qk_norm')(fields, layer) if rotates else None


def _llama4_chunk(fields: Fields, layer: Layer) -> int | None:
  return fields.size('attention_chunk_size') if layer.type == 'chunked_attention' else None


def _bigcode_kv_heads(fields: Fields, layer: Layer) -> int | None:
  return 1 if fields.get('multi_query', bool, True) else None


def _gpt_neo_window(fields: Fields, layer: Layer) -> int | None:
  """Layers are global or local; `attention_types` repeats a list of such words."""
  words = fields.get('attention_layers', list[str])
  if words is None:
    types = fields.values.get('attention_types')
    words = [word for each, times in types or () for _ in range(times) for word in each]
  if layer.index >= len(words):
    raise ValueError(
      f'The configuration needs attention_types of every layer, but got {len(words)} of them.'
    )
  return fields.needed('window_size', fields.size) if words[layer.index] == 'local' else None


# How layers attend, where several families or parts share it, or it is long.

_YES, _ENCODER, _UNSCALED = always(True), always(False), always(1.0)
_RMS = heads_norm('rms_norm_eps')
_RMS_TOGETHER = heads_norm('rms_norm_eps', heads='together')
_ONE_WAY = off('use_bidirectional_attention')
_EVERY = lambda fields: True
_BUFFERS = 'bias', 'masked_bias'
_QKV = 'q_proj', 'k_proj', 'v_proj'
_LAYER_NORMS = {'query_norm': 'q_layernorm', 'key_norm': 'k_layernorm'}

_NO_BIAS = Attention()
_LLAMA = Attention(bias=flag('attention_bias'))
_NO_OUT_BIAS = _LLAMA._replace(out_bias=always(False))
_OLMO2 = _LLAMA._replace(norm=_RMS_TOGETHER)
_MISTRAL = Attention(window=everywhere)
_EXAONE = Attention(window=where_sliding, norm=_RMS)
_QWEN2 = Attention(bias=_YES, out_bias=always(False), window=where_sliding)
_QWEN3 = _LLAMA._replace(window=where_sliding, norm=_RMS)
_RMS_FROM_0 = heads_norm('rms_norm_eps', offset=1.0)
_QWEN3_NEXT = _LLAMA._replace(norm=_RMS_FROM_0, gated=True)
_GEMMA2 = _LLAMA._replace(
  window=where_sliding,
  scale=lambda fields, _: fields.needed('query_pre_attn_scalar', fields.positive) ** -0.5,
  logit_cap=positive('attn_logit_softcapping'),
)
_DEEPSEEK = _LLAMA._replace(
  names=Names(query='q_a_proj', key='kv_a_proj_with_mqa'),
  **{'latent': latent.read_latent, 'scale': latent.scale},
)
_LFM2 = Attention(Names(out='out_proj', **_LAYER_NORMS), norm=heads_norm('norm_eps'))
_PHI = Attention(
  Names(out='dense', **_LAYER_NORMS),
  bias=_YES,
  norm=heads_norm('layer_norm_eps', 'layer', use_bias=True, only='qk_layernorm'),
)
_GPT = Attention(
  Names('h.{}.attn', *_QKV, 'c_proj', 'c_attn', transposed=True, ignored=_BUFFERS), bias=_YES
)
_OPT = Attention(Names(out='out_proj'), bias=_YES)
_BLOOM = Attention(
  Names('h.{}.self_attention', *_QKV, 'dense', 'query_key_value', _EVERY), bias=_YES
)
_MPT = Attention(
  Names('blocks.{}.attn', out='out_proj', fused='Wqkv'),
  scale=lambda fields, _: fields.section('attn_config').positive('softmax_scale'),
  supported=off('attn_config.clip_qkv'),
)
_MODERNBERT = _LLAMA._replace(names=Names('layers.{}.attn', fused='Wqkv', out='Wo'))
_ENCODING = Attention(bias=_YES, causal=_ENCODER)
_QKV_OUT = 'self.query', 'self.key', 'self.value', 'output.dense'
_BERT = _ENCODING._replace(
  names=Names('encoder.layer.{}.attention', *_QKV_OUT, ignored=('output.LayerNorm',)),
  supported=off('is_decoder', 'add_cross_attention'),
)
_BERT_ABSOLUTE = _BERT._replace(
  supported=(*_BERT.supported, ('position_embedding_type', ('absolute', None)))
)
_BERT_FIRST = _BERT_ABSOLUTE._replace(  # the block begins with the norm of its input
  names=_BERT.names._replace(ignored=('LayerNorm', 'ln', 'self_attn_layer_norm'))
)
_ALBERT = _ENCODING._replace(
  names=Names(
    'encoder.albert_layer_groups.0.albert_layers.0.attention',
    *('query', 'key', 'value', 'dense'),
    ignored=('LayerNorm',),
  )
)
_MPNET = _ENCODING._replace(
  names=Names('encoder.layer.{}.attention.attn', 'q', 'k', 'v', 'o'),
  tables=(Table('table', 'relative_attention_bias.weight', 'encoder'),),
)
_CLIP = Attention(Names('encoder.layers.{}.self_attn', out='out_proj'), bias=_YES)
_XLNET = Attention(
  Names(
    *('layer.{}.rel_attn', 'q', 'k', 'v', 'o'),
    no_weight_suffix=True,
    ignored=('layer_norm', 'r_s_bias', 'seg_em'),
  ),
  causal=lambda fields, _: fields.get('attn_type', str, 'bi') == 'uni',
  supported=off('bi_data', 'same_length'),
  tables=(Table('u', 'r_w_bias'), Table('v', 'r_r_bias'), Table('w_r', 'r')),
)
_CONFORMER = _ENCODING._replace(
  names=Names('encoder.layers.{}.self_attn', *('linear_q', 'linear_k', 'linear_v', 'linear_out')),
  tables=(
    *(Table('u', 'pos_bias_u'), Table('v', 'pos_bias_v')),
    Table('w_r', 'linear_pos.weight', form=tables.OF_CODES),
  ),
)
_SWIN_BLOCK = 'encoder.layers.{}.blocks.{}.attention'
_SWIN = Attention(
  Names(_SWIN_BLOCK, ignored=('relative_position_index',)),
  **{'bias': flag('qkv_bias'), 'out_bias': _YES, 'causal': _ENCODER},
  **{'sizes': stages.sizes, 'place': stages.place, 'supported': off('use_absolute_embeddings')},
  tables=(Table('table', 'relative_position_bias.relative_position_bias_table', form=tables.FLAT),),
)
_SWINV2_MLP = 'self.continuous_position_bias_mlp'
_SWINV2 = _SWIN._replace(
  names=Names(
    *(_SWIN_BLOCK, *_QKV_OUT),
    no_bias='self.key',
    ignored=('self.relative_coords_table', 'self.relative_position_index'),
  ),
  tables=(
    Table('0.log_strength', 'self.logit_scale', form=tables.COLUMN),
    Table('1.kernel', f'{_SWINV2_MLP}.0.weight', form=tables.TRANSPOSED),
    Table('1.offset', f'{_SWINV2_MLP}.0.bias'),
    Table('1.out_kernel', f'{_SWINV2_MLP}.2.weight', form=tables.TRANSPOSED),
  ),
)


def _t5_parts(attention: str = 'SelfAttention', *, shared: bool = True) -> Parts:
  """T5's parts; `attention` is what the encoder calls its own."""

  def part(stack: str, sub: str, **options: Any) -> Attention:
    names = Names(f'{stack}.block.{{}}.layer.{sub}', 'q', 'k', 'v', 'o')
    first = names.block.format(0) if shared else ''
    table = Table('table', 'relative_attention_bias.weight', first)
    return Attention(names, scale=_UNSCALED, tables=(table,))._replace(**options)

  return {
    'encoder': part('encoder', f'0.{attention}', causal=_ENCODER),
    'decoder': part('decoder', '0.SelfAttention'),
    'cross': part('decoder', '1.EncDecAttention', causal=_ENCODER, tables=()),
  }


def _longt5_parts() -> Parts:
  """The encoder sees as far as `local_radius` on both sides of a token, in blocks or not."""
  parts = _t5_parts('LocalSelfAttention')
  window: Reader = lambda fields, layer: fields.needed('local_radius', fields.size) + 1
  local = (('encoder_attention_type', ('local',)),)
  return {**parts, 'encoder': parts['encoder']._replace(window=window, supported=local)}


def _bart_parts(no_bias: str = '', cross: str = 'encoder_attn', **more: Any) -> Parts:
  def part(block: str, heads: str, *, causal: bool) -> Attention:
    names = Names(block, out='out_proj', no_bias=no_bias)
    return Attention(names, bias=_YES, causal=always(causal), heads=heads, **more)

  encoder, decoder = 'encoder_attention_heads', 'decoder_attention_heads'
  return {
    'encoder': part('encoder.layers.{}.self_attn', encoder, causal=False),
    'decoder': part('decoder.layers.{}.self_attn', decoder, causal=True),
    'cross': part(f'decoder.layers.{{}}.{cross}', decoder, causal=False),
  }


_BART = _bart_parts()

# How queries and keys are rotated. Cohere and Persimmon have no base here, because versions of
# transformers differ about theirs.

_SPLIT, _PAIRS = Rotary(interleaved=False), Rotary(interleaved=True)
_SPLIT_SLIDING = _SPLIT._replace(rotates=layers.where_sliding_rotates)
_SPLIT_10K, _PAIRS_10K = (each._replace(base=1e4) for each in (_SPLIT, _PAIRS))
_QUARTER, _HALF = {'partial_rotary_factor': 0.25}, {'partial_rotary_factor': 0.5}
_SPLIT_HALF = _SPLIT._replace(defaults=_HALF)
_PAIRS_64 = _PAIRS_10K._replace(defaults={'rotary_dim': 64})
_MROPE, _MROPE_IN_TURN = (_SPLIT._replace(in_turn=in_turn) for in_turn in (False, True))


def _tempered(rotary: Rotary) -> Rotary:
  """With queries that grow with their position, as in Ministral 3."""
  return rotary._replace(renamed=rope.ministral_fields, finished=rope.ministral_finished)


def _rotary(
  rotary: Rotary, attention: Attention, layer_type: TypeReader | None = None, **changed: Any
) -> Family:
  """A family that rotates queries and keys; `changed` are fields of its attention."""
  return Family({None: attention._replace(**changed)}, rotary, layer_type=layer_type)


def _embedded(embedded: Embedded | None, attention: Attention, **changed: Any) -> Family:
  """A family that adds positions to its embeddings; None where these are not known."""
  return Family({None: attention._replace(**changed)}, embedded=embedded)


def _bert(embedded: Embedded, attention: Attention) -> Family:
  """A family that may have a table of keys by distance instead of positions in its embeddings."""
  keys = positions.BERT_KEYS
  scheme = positions.relative_scheme(keys, embedded)
  return Family({None: attention}, None, embedded, scheme, relative_keys=keys)


# By the model types of transformers, with spaces between them.
_ENTRIES: dict[str, Family] = {
  # Llama, and decoders that differ from it in one thing or two.
  'llama': _rotary(_SPLIT_10K, _LLAMA),
  'aria_text emu3_text_model deepseek_ocr2_text arcee jais2': _rotary(_SPLIT, _LLAMA),
  'iquestcoder': _rotary(_SPLIT, _LLAMA, supported=off('clip_qkv', 'use_sliding_window')),
  'internlm3': _rotary(_SPLIT, _LLAMA, bias=_internlm3_bias),
  'eurobert': _rotary(_SPLIT, _LLAMA, causal=_ENCODER),
  'granite granitemoe granitemoeshared hyperclovax granite_docling_text granite4_vision_text': (
    _rotary(_SPLIT, _LLAMA, scale=positive('attention_multiplier'))
  ),
  'apertus hy_v3': _rotary(_SPLIT, _LLAMA, norm=_RMS),
  'seed_oss': _rotary(_SPLIT, _LLAMA, out_bias=flag('attention_out_bias')),
  'nemotron': _rotary(_SPLIT_HALF, _LLAMA),
  'phimoe': _rotary(_SPLIT, _LLAMA, window=everywhere),
  'gpt_oss': _rotary(_SPLIT, _LLAMA, full_every('', 2), window=where_sliding, sinks=True),
  'starcoder2': _rotary(_SPLIT, _MISTRAL, bias=flag('use_bias')),
  'stablelm': _rotary(
    *(_SPLIT_10K._replace(defaults=_QUARTER), _NO_OUT_BIAS),
    **{'bias': flag('use_qkv_bias'), 'supported': off('qk_layernorm')},
  ),
  'ernie4_5 ernie4_5_moe': _rotary(_PAIRS, _LLAMA, bias=flag('use_bias')),
  'paddleocr_vl_text': _rotary(_MROPE, _LLAMA, bias=flag('use_bias')),
  'minimax_m2': _rotary(_SPLIT, _NO_BIAS, norm=_RMS_TOGETHER),
  'llama4_text': _rotary(
    _PAIRS._replace(rotates=layers.llama4_rotates, unrotated=rope.llama4_temperature),
    *(_LLAMA, layers.llama4_type),
    **{'names': Names(query_norm='qk_norm'), 'norm': _llama4_norm, 'norm_has_weights': False},
    chunk=_llama4_chunk,
  ),
  'smollm3': _rotary(
    *(_SPLIT._replace(rotates=layers.smollm3_rotates), _LLAMA, layers.smollm3_type),
    window=where_sliding,
  ),
  # Mistral.
  'mistral': _rotary(_SPLIT_10K, _MISTRAL),
  'mixtral voxtral_realtime_text': _rotary(_SPLIT, _MISTRAL),
  'ministral cwm': _rotary(_SPLIT, _NO_BIAS, window=where_sliding),
  'ministral3': _rotary(_tempered(_SPLIT), _MISTRAL),
  # Qwen.
  'qwen2': _rotary(_SPLIT_10K, _QWEN2, layers.sliding_from),
  'qwen2_moe': _rotary(_SPLIT, _QWEN2, layers.sliding_from, bias=flag('qkv_bias')),
  'qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text': _rotary(_MROPE, _QWEN2, layers.sliding_from),
  'qwen2_vl qwen2_5_vl': Family(rotary=_MROPE),
  'qwen3': _rotary(_SPLIT, _QWEN3, layers.sliding_from),
  'qwen3_moe': _rotary(_SPLIT, _QWEN3, window=everywhere),
  'qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text': _rotary(_MROPE_IN_TURN, _LLAMA, norm=_RMS),
  'qwen3_next': _rotary(_SPLIT._replace(defaults=_QUARTER), _QWEN3_NEXT, layers.softmax_every),
  'qwen3_5_text qwen3_5_moe_text': _rotary(
    _MROPE_IN_TURN._replace(defaults=_QUARTER, sections=(11, 11, 10)),
    *(_QWEN3_NEXT, layers.softmax_every),
  ),
  'dots1': _rotary(_SPLIT, _QWEN3),
  'mellum': _rotary(_SPLIT, _QWEN3, layers.needs_types),
  # Gemma.
  'gemma': _rotary(_SPLIT_10K, _LLAMA, supported=_ONE_WAY),
  'gemma2': _rotary(_SPLIT_10K, _GEMMA2, full_every('', 2), supported=_ONE_WAY),
  'vaultgemma': _rotary(_SPLIT, _GEMMA2, full_every('', 2)),
  'gemma3_text': _rotary(
    _SPLIT._replace(
      defaults={'rope_theta': 1e6, 'rope_local_base_freq': 1e4},
      layer_bases={'full_attention': 'rope_theta', 'sliding_attention': 'rope_local_base_freq'},
    ),
    *(_GEMMA2, full_every('sliding_window_pattern', 6)),
    **{'causal': _gemma3_causal, 'window': _gemma3_window, 'norm': _RMS_FROM_0},
  ),
  'gemma4_text': Family(rotary=_SPLIT),
  # Cohere and Exaone, whose layers without a window do not rotate.
  'cohere': _rotary(
    _PAIRS, _LLAMA, norm=heads_norm('layer_norm_eps', 'layer', 'apart', only='use_qk_norm')
  ),
  'cohere2': _rotary(
    *(_PAIRS._replace(rotates=layers.where_sliding_rotates), _LLAMA),
    *(full_every('sliding_window_pattern', 4),),
    window=where_sliding,
  ),
  'exaone4': _rotary(_SPLIT._replace(rotates=layers.exaone4_rotates), _EXAONE, layers.exaone4_type),
  'exaone_moe': _rotary(_SPLIT_SLIDING, _EXAONE, full_every('sliding_window_pattern', 4)),
  'kolibri1': _rotary(_SPLIT_SLIDING, _EXAONE, layers.needs_types),
  # OLMo.
  'olmo': _rotary(_SPLIT, _LLAMA, supported=off('clip_qkv')),
  'olmo2 flex_olmo': _rotary(_SPLIT, _OLMO2),
  'olmo3': _rotary(_SPLIT, _OLMO2, full_every('', 4), window=where_sliding),
  'olmoe': _rotary(_SPLIT, _OLMO2, supported=off('clip_qkv')),
  # GLM.
  'glm': _rotary(_PAIRS_10K._replace(defaults=_HALF), _NO_OUT_BIAS),
  'glm4': _rotary(_PAIRS._replace(defaults=_HALF), _NO_OUT_BIAS),
  'glm4_moe': _rotary(_SPLIT, _NO_OUT_BIAS, norm=heads_norm('rms_norm_eps', only='use_qk_norm')),
  'solar_open': _rotary(_SPLIT, _NO_OUT_BIAS),
  'helium': _rotary(_PAIRS, _NO_OUT_BIAS),
  # DeepSeek's latent attention.
  'deepseek_v3': _rotary(_PAIRS_10K, _DEEPSEEK),
  'glm4_moe_lite youtu': _rotary(_PAIRS, _DEEPSEEK),
  'minicpm3': _rotary(_SPLIT, _DEEPSEEK),
  'mistral4': _rotary(_tempered(_PAIRS), _DEEPSEEK),
  'deepseek_v2': Family(rotary=_PAIRS_10K),
  # LFM2, some of whose layers are no attention.
  'lfm2': _rotary(_SPLIT, _LFM2, layers.full_where_listed),
  'lfm2_moe': _rotary(_SPLIT, _LFM2, layers.needs_types),
  # Phi, and HunYuan, whose norms come after RoPE, so that they are members of the scheme.
  'phi': _rotary(_SPLIT_HALF._replace(base=1e4), _PHI),
  'persimmon': _rotary(
    _SPLIT_HALF, _PHI, names=_PHI.names._replace(fused='query_key_value', grouped=_EVERY)
  ),
  'phi3': _rotary(_SPLIT_10K, _MISTRAL, names=Names(fused='qkv_proj')),
  'hunyuan_v1_dense hunyuan_v1_moe': _rotary(
    *(_SPLIT._replace(has_alpha=True, finished=rope.hunyuan_finished), _LLAMA),
    tables=(Table('1.query', 'query_layernorm.weight'), Table('1.key', 'key_layernorm.weight')),
  ),
  # GPT.
  'gpt_neox': _rotary(
    *(_SPLIT_10K._replace(defaults={'rotary_pct': 0.25}, renamed=rope.gpt_neox_fields), _LLAMA),
    names=Names(
      *('layers.{}.attention', *_QKV, 'dense', 'query_key_value', _EVERY),
      ignored=('rotary_emb.inv_freq', *_BUFFERS),
    ),
  ),
  'gptj': _rotary(
    *(_PAIRS_64, _NO_BIAS),
    names=Names('h.{}.attn', out='out_proj', ignored=(*_BUFFERS, 'embed_positions')),
  ),
  'codegen': _rotary(
    *(_PAIRS_64, _NO_BIAS),
    names=Names(
      *('h.{}.attn', *_QKV, 'out_proj', 'qkv_proj'),
      **{'order': ('query', 'value', 'key'), 'shards': 4},
      ignored=('bias', 'causal_mask', 'embed_positions'),
    ),
  ),
  'gpt2': _embedded(embeddings.GPT2, _GPT, scale=_gpt2_scale),
  'gpt_bigcode': _embedded(
    *(embeddings.GPT2, _GPT),
    names=_GPT.names._replace(
      transposed=False, grouped=lambda fields: not fields.get('multi_query', bool, True)
    ),
    **{'scale': _gpt2_scale, 'kv_heads': _bigcode_kv_heads},
  ),
  'gpt_neo': _embedded(
    *(embeddings.GPT2, _NO_BIAS),
    names=Names('h.{}.attn.attention', out='out_proj', ignored=_BUFFERS),
    **{'out_bias': _YES, 'scale': _UNSCALED, 'window': _gpt_neo_window},
  ),
  'openai-gpt': _embedded(embeddings.GPT, _GPT),
  'opt': _embedded(embeddings.OPT, _OPT, bias=flag('enable_bias')),
  'xglm': _embedded(embeddings.XGLM, _OPT, heads='attention_heads'),
  'biogpt': _embedded(embeddings.BIOGPT, _OPT),
  # ALiBi.
  'bloom': Family({None: _BLOOM}, scheme=positions.bloom_scheme),
  'falcon': Family(
    {None: _BLOOM._replace(bias=flag('bias'), kv_heads=_falcon_kv_heads)},
    *(_SPLIT_10K, None, positions.falcon_scheme),
  ),
  'mpt': Family({None: _MPT}, scheme=positions.mpt_scheme),
  # BERT.
  'bert electra': _bert(embeddings.BERT, _BERT),
  'roberta camembert xlm-roberta': _bert(embeddings.ROBERTA, _BERT),
  'albert': _bert(embeddings.BERT, _ALBERT),
  'bert-generation ernie rembert roc_bert splinter dpr chinese_clip_text_model align_text_model': (
    _embedded(embeddings.BERT, _BERT_ABSOLUTE)
  ),
  'data2vec-text xmod clap_text_model bridgetower_text_model': _embedded(
    embeddings.ROBERTA, _BERT_ABSOLUTE
  ),
  'altclip_text_model': _embedded(
    *(embeddings.ROBERTA, _BERT_ABSOLUTE),
    names=_BERT.names._replace(block='encoder.layers.{}.attention'),
  ),
  'megatron-bert': _embedded(embeddings.BERT, _BERT_FIRST),
  'roberta-prelayernorm xlm-roberta-xl': _embedded(embeddings.ROBERTA, _BERT_FIRST),
  # Their embeddings know more than the ids of tokens: boxes on a page, cells, regions of an image.
  'tapas layoutlm markuplm visual_bert': _embedded(None, _BERT_ABSOLUTE),
  'distilbert': _embedded(
    *(embeddings.BERT, _ENCODING),
    names=Names('transformer.layer.{}.attention', 'q_lin', 'k_lin', 'v_lin', 'out_lin'),
  ),
  'mpnet': Family({None: _MPNET}, None, embeddings.MPNET, positions.mpnet_scheme),
  'deberta deberta-v2': Family(embedded=embeddings.BERT, scheme=positions.deberta_scheme),
  'esm': _rotary(
    *(_SPLIT_10K._replace(renamed=rope.esm_fields), _BERT),
    names=_BERT.names._replace(ignored=('LayerNorm', 'self.rotary_embeddings.inv_freq')),
    supported=(*_BERT.supported, ('position_embedding_type', ('rotary',))),
  ),
  'roformer': _rotary(_PAIRS_10K._replace(finished=rope.roformer_finished), _BERT),
  'nomic_bert': _rotary(
    *(_SPLIT._replace(renamed=rope.nomic_bert_fields), _NO_BIAS),
    **{'causal': _ENCODER, 'supported': off('causal', 'qkv_proj_bias')},
  ),
  'modernbert': _rotary(
    *(_SPLIT, _MODERNBERT, layers.full_first), causal=_ENCODER, window=_half_window(1)
  ),
  'modernbert-decoder': _rotary(
    *(_SPLIT, _MODERNBERT, layers.full_first),
    **{'names': _MODERNBERT.names._replace(fused=''), 'window': _half_window(0)},
  ),
  # The text towers of CLIP.
  'clip_text_model metaclip_2_text_model owlvit_text_model owlv2_text_model xclip_text_model '
  'clipseg_text_model groupvit_text_model': _embedded(embeddings.CLIP, _CLIP),
  'siglip_text_model siglip2_text_model': _embedded(embeddings.CLIP, _CLIP, causal=_ENCODER),
  # Encoders and decoders.
  't5 mt5 switch_transformers': Family(_t5_parts(), scheme=positions.t5_scheme()),
  'umt5': Family(_t5_parts(shared=False), scheme=positions.t5_scheme(shared=False)),
  'longt5': Family(_longt5_parts(), scheme=positions.t5_scheme()),
  'bart mbart plbart': Family(_BART, embedded=embeddings.BART),
  'mvp': Family(_bart_parts(supported=off('use_prompt')), embedded=embeddings.BART),
  'blenderbot blenderbot-small': Family(_BART, embedded=embeddings.BLENDERBOT),
  'marian pegasus': Family(_BART, embedded=embeddings.SINUSOIDS),
  'm2m_100 speech_to_text fsmt': Family(_BART, embedded=embeddings.FAIRSEQ_SINUSOIDS),
  'nllb-moe': Family(_bart_parts(cross='cross_attention'), embedded=embeddings.FAIRSEQ_SINUSOIDS),
  'whisper': Family(_bart_parts(no_bias='k_proj'), embedded=embeddings.WHISPER),
  'trocr': _embedded(embeddings.TROCR, _BART['decoder']),
  'musicgen_decoder': _embedded(None, _NO_BIAS, names=_BART['decoder'].names),
  # Relative attention.
  'xlnet': Family({None: _XLNET}, scheme=positions.xlnet_scheme),
  'wav2vec2-conformer': Family({None: _CONFORMER}, scheme=positions.conformer_scheme),
  'wav2vec2-bert': Family(
    scheme=positions.relative_scheme(positions.WAV2VEC2_BERT_KEYS, None),
    relative_keys=positions.WAV2VEC2_BERT_KEYS,
  ),
  # Vision.
  'vit': _embedded(
    *(embeddings.VIT, _ENCODING),
    **{'names': Names('layers.{}.attention'), 'bias': flag('qkv_bias'), 'out_bias': _YES},
  ),
  'swin': Family({None: _SWIN}, scheme=stages.swin_scheme),
  'swinv2': Family({None: _SWINV2}, scheme=stages.swinv2_scheme),
  'pixtral': Family(scheme=rope.axial(interleaved_axes=True)),
  'cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision '
  'glm4v_vision glm4v_moe_vision glm5_next_vision glm_ocr_vision lfm3_vl_vision mlcd_vision_model '
  'muse_glimmer_vision muse_spark_vision paddleocr_vl_vision qwen2_5_omni_vision_encoder '
  'qwen2_5_vl_vision qwen2_vl_vision qwen3_5_vision qwen3_5_moe_vision '
  'qwen3_omni_moe_vision_encoder qwen3_vl_vision qwen3_vl_moe_vision qwen4_exp_vision '
  'video_llama_3_vision': Family(scheme=rope.axial(interleaved_axes=False)),
  # Some layers have no RoPE, or scale queries by their position, by default (transformers 5), and
  # which ones is not known here.
  'afmoe cohere2_moe cohere_compass_text exaone4_5 flint glm5_next granite_swa granitemoe_swa '
  'granitemoehybrid jamba kimi_linear mistral_large4_text muse_glimmer_text muse_spark_text '
  'nemotron_h olmo_hybrid zamba zamba2': Family(scheme=layers.differing),
}
FAMILIES: dict[str, Family] = {
  kind: family for kinds, family in _ENTRIES.items() for kind in kinds.split()
}
