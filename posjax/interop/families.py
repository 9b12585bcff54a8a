"""How each family of models attends: the names of its weights, and what its layers do."""

from typing import Any

from posjax.interop import latent, stages, tables
from posjax.interop.family import (
  Family,
  Names,
  Reader,
  always,
  everywhere,
  flag,
  heads_norm,
  never,
  off,
  positive,
  where_sliding,
)
from posjax.interop.fields import Fields
from posjax.interop.layers import turns, type_of
from posjax.interop.tables import Table
from posjax.layers.projections import Norm


def _both_sides(fields: Fields, layer: int) -> int | None:
  """ModernBERT's window: half of local_attention before a token, half after it."""
  if type_of(fields, layer) != 'sliding_attention':
    return None
  return fields.needed('local_attention', fields.size) // 2 + 1


def _half_window(fields: Fields, layer: int) -> int | None:
  """ModernBERT's decoder sees the half of local_attention that lies before a token."""
  if type_of(fields, layer) != 'sliding_attention':
    return None
  return fields.needed('local_attention', fields.size) // 2


def _gemma3_window(fields: Fields, layer: int) -> int | None:
  """Looking both ways, half of the window lies before a token, and half after it."""
  window = where_sliding(fields, layer)
  both = window is not None and fields.get('use_bidirectional_attention', bool)
  return window // 2 + 1 if both and window else window


def _internlm3_bias(fields: Fields, layer: int) -> bool:
  """Files of the model's own code call it qkv_bias."""
  return any(fields.get(name, bool) for name in ('attention_bias', 'qkv_bias'))


def _inverse_root(name: str) -> Reader:
  return lambda fields, layer: fields.needed(name, fields.positive) ** -0.5


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


_T5_TABLE = 'relative_attention_bias.weight'
_ENCODER = always(False)
_UNSCALED = always(1.0)


def _t5_parts(attention: str = 'SelfAttention', *, shared: bool = True) -> dict[str, Family]:
  """T5's parts; `attention` is what the encoder calls its own."""

  def part(stack: str, sub: str, **options: Any) -> Family:
    names = _t5(stack, sub)
    first = names.block.format(0) if shared else ''
    return Family(names, scale=_UNSCALED, tables=(Table('table', _T5_TABLE, first),), **options)

  cross = part('decoder', '1.EncDecAttention', causal=_ENCODER)._replace(tables=())
  return {
    'encoder': part('encoder', f'0.{attention}', causal=_ENCODER),
    'decoder': part('decoder', '0.SelfAttention'),
    'cross': cross,
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
_BERTS = (  # which differ in nothing that the attention does
  *(
    'bert',
    'roberta',
    'electra',
    'camembert',
    'xlm-roberta',
    'bert-generation',
    'ernie',
    'rembert',
  ),
  *('roc_bert', 'splinter', 'data2vec-text', 'dpr', 'xmod'),
  *('chinese_clip_text_model', 'align_text_model', 'clap_text_model', 'bridgetower_text_model'),
)
# Their block begins with the norm of its input.
_BERT_FIRST = _BERT_LIKE._replace(
  names=_BERT._replace(beside=('LayerNorm', 'ln', 'self_attn_layer_norm'))
)
# Their embeddings know more than the ids of tokens: boxes on a page, cells, regions of an image.
_BERT_OF_PLACES = _BERT_LIKE._replace(
  embedded=True, known=(*_BERT_LIKE.known, ('position_embedding_type', ('absolute', None)))
)
_ALTCLIP = _BERT_LIKE._replace(
  names=_BERT._replace(block=_BERT.block.replace('layer.', 'layers.', 1))
)
_CLIP = Family(Names('encoder.layers.{}.self_attn', out='out_proj'), bias=_YES, embedded=True)
_CLIPS = (
  *('clip_text_model', 'metaclip_2_text_model', 'owlvit_text_model', 'owlv2_text_model'),
  *('xclip_text_model', 'clipseg_text_model', 'groupvit_text_model'),
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
_HUNYUAN = Family(  # its norms come after RoPE, so that they are members of the scheme
  bias=flag('attention_bias'),
  tables=(
    Table('1.query', 'query_layernorm.weight'),
    Table('1.key', 'key_layernorm.weight'),
  ),
)
_QWEN2 = Family(bias=_YES, out_bias=_NONE, window=where_sliding)
_DEEPSEEK = _PLAIN._replace(
  names=Names(query='q_a_proj', key='kv_a_proj_with_mqa'),
  latent=latent.read_latent,
  scale=latent.scale,
)
_LFM2 = Family(Names(out='out_proj', **_LAYER_NORMS), norm=heads_norm('norm_eps'))
_QWEN3_NEXT = Family(
  **{'bias': flag('attention_bias'), 'norm': heads_norm('rms_norm_eps'), 'added': 1.0},
  gated=True,
)
_MPNET = Names('encoder.layer.{}.attention.attn', 'q', 'k', 'v', 'o')
_MPNET_TABLE = Table('table', 'relative_attention_bias.weight', 'encoder')
_CODEGEN = Names(
  **{'block': 'h.{}.attn', 'out': 'out_proj', 'fused': 'qkv_proj', 'shards': 4},
  order=('query', 'value', 'key'),
  beside=('bias', 'causal_mask', 'embed_positions'),
)
_XLNET = Names(
  *('layer.{}.rel_attn', 'q', 'k', 'v', 'o'), bare=True, beside=('layer_norm', 'r_s_bias', 'seg_em')
)
_CONFORMER = Names(
  'encoder.layers.{}.self_attn', *('linear_q', 'linear_k', 'linear_v', 'linear_out')
)
_SWIN = Names('encoder.layers.{}.blocks.{}.attention', beside=('relative_position_index',))
_SWIN_TABLE = Table(
  'table', 'relative_position_bias.relative_position_bias_table', form=tables.FLAT
)
_SWINV2 = Names(
  'encoder.layers.{}.blocks.{}.attention',
  *('self.query', 'self.key', 'self.value', 'output.dense'),
  no_bias='self.key',
  beside=('self.relative_coords_table', 'self.relative_position_index'),
)
_SWINV2_MLP = 'self.continuous_position_bias_mlp'
_SWINV2_TABLES = (
  Table('0.log_strength', 'self.logit_scale', form=tables.COLUMN),
  Table('1.kernel', f'{_SWINV2_MLP}.0.weight', form=tables.TRANSPOSED),
  Table('1.offset', f'{_SWINV2_MLP}.0.bias'),
  Table('1.out_kernel', f'{_SWINV2_MLP}.2.weight', form=tables.TRANSPOSED),
)
_SWIN_LIKE = Family(
  _SWIN,
  **{'bias': flag('qkv_bias'), 'out_bias': _YES, 'causal': _ENCODER},
  **{'place': stages.place, 'sizes': stages.sizes, 'known': off('use_absolute_embeddings')},
)
_CONFORMER_TABLES = (
  Table('u', 'pos_bias_u'),
  Table('v', 'pos_bias_v'),
  Table('w_r', 'linear_pos.weight', form=tables.OF_CODES),
)


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


def _longt5_parts() -> dict[str, Family]:
  """The encoder sees as far as `local_radius` on both sides of a token, in blocks or not."""
  parts = _t5_parts('LocalSelfAttention')
  window: Reader = lambda fields, layer: fields.needed('local_radius', fields.size) + 1
  local = (('encoder_attention_type', ('local',)),)
  return {**parts, 'encoder': parts['encoder']._replace(window=window, known=local)}


def _xlnet_causal(fields: Fields, layer: int) -> bool:
  return fields.get('attn_type', str, 'bi') == 'uni'


def _bart_parts(no_bias: str = '', cross: str = 'encoder_attn') -> dict[str, Family]:
  def part(block: str, heads: str, *, causal: bool) -> Family:
    names = Names(block, out='out_proj', no_bias=no_bias)
    return Family(names, bias=_YES, causal=always(causal), embedded=True, heads=heads)

  encoder, decoder = 'encoder_attention_heads', 'decoder_attention_heads'
  return {
    'encoder': part('encoder.layers.{}.self_attn', encoder, causal=False),
    'decoder': part('decoder.layers.{}.self_attn', decoder, causal=True),
    'cross': part(f'decoder.layers.{{}}.{cross}', decoder, causal=False),
  }


# By model_type. A model of an encoder and a decoder has one family for each part.
FAMILIES: dict[str, Family | dict[str, Family]] = {
  **dict.fromkeys(('llama', 'aria_text', 'emu3_text_model', 'deepseek_ocr2_text'), _PLAIN),
  'iquestcoder': _PLAIN._replace(known=off('clip_qkv', 'use_sliding_window')),
  'internlm3': _PLAIN._replace(bias=_internlm3_bias),
  **dict.fromkeys(('mistral', 'voxtral_realtime_text'), Family(window=everywhere)),
  'mixtral': Family(window=everywhere),
  **dict.fromkeys(('qwen2', 'qwen2_vl_text', 'qwen2_5_vl_text', 'qwen2_5_omni_text'), _QWEN2),
  'qwen2_moe': Family(bias=flag('qkv_bias'), out_bias=always(False), window=where_sliding),
  **dict.fromkeys(('qwen3', 'mellum'), _QWEN3),
  **dict.fromkeys(
    ('qwen3_vl_text', 'qwen3_vl_moe_text', 'qwen3_omni_moe_text'), _QWEN3._replace(window=never)
  ),
  'qwen3_moe': _QWEN3._replace(window=everywhere),
  'gemma': _PLAIN._replace(known=off('use_bidirectional_attention')),
  'gemma2': _GEMMA2,
  'vaultgemma': _GEMMA2._replace(known=()),
  'gemma3_text': _GEMMA2._replace(
    causal=lambda fields, layer: not fields.get('use_bidirectional_attention', bool),
    **{'window': _gemma3_window, 'norm': _RMS, 'added': 1.0, 'known': ()},
  ),
  'gpt_neox': Family(_NEOX, bias=_BIASED),
  'gpt2': Family(_GPT2, bias=_YES, scale=_gpt2_scale),
  'gptj': Family(_GPTJ),
  'bloom': Family(_FALCON, bias=_YES),
  'falcon': Family(_FALCON, bias=flag('bias'), kv_heads=_falcon_kv_heads),
  'mpt': Family(_MPT, scale=_mpt_scale, known=off('attn_config.clip_qkv')),
  'opt': Family(_OPT, bias=flag('enable_bias')),
  'phi3': Family(_PHI3, window=everywhere),
  'gpt_oss': Family(bias=_BIASED, window=where_sliding, sinks=True),
  'modernbert': Family(_MODERNBERT, bias=_BIASED, causal=_ENCODER, window=_both_sides),
  'modernbert-decoder': Family(_MODERNBERT._replace(fused=''), bias=_BIASED, window=_half_window),
  **dict.fromkeys(_BERTS, _BERT_LIKE),
  **dict.fromkeys(('roberta-prelayernorm', 'megatron-bert', 'xlm-roberta-xl'), _BERT_FIRST),
  **dict.fromkeys(('tapas', 'layoutlm', 'markuplm', 'visual_bert'), _BERT_OF_PLACES),
  'altclip_text_model': _ALTCLIP,
  **dict.fromkeys(_CLIPS, _CLIP),
  **dict.fromkeys(('siglip_text_model', 'siglip2_text_model'), _CLIP._replace(causal=_ENCODER)),
  **dict.fromkeys(('t5', 'mt5', 'switch_transformers'), _t5_parts()),
  'umt5': _t5_parts(shared=False),
  'longt5': _longt5_parts(),
  'mpnet': Family(_MPNET, bias=_YES, causal=_ENCODER, tables=(_MPNET_TABLE,)),
  'cohere': _PLAIN._replace(
    norm=heads_norm('layer_norm_eps', 'layer', 'apart', only='use_qk_norm')
  ),
  'cohere2': _PLAIN._replace(window=where_sliding),
  'smollm3': _PLAIN._replace(window=where_sliding),
  **dict.fromkeys(('exaone4', 'exaone_moe', 'kolibri1'), Family(window=where_sliding, norm=_RMS)),
  'llama4_text': _PLAIN._replace(
    norm=_llama4_norm, weightless=True, chunk=_llama4_chunk, names=Names(query_norm='qk_norm')
  ),
  **dict.fromkeys(('granite', 'granitemoe', 'granitemoeshared', 'hyperclovax'), _GRANITE),
  **dict.fromkeys(('granite_docling_text', 'granite4_vision_text'), _GRANITE),
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
  **dict.fromkeys(('apertus', 'hy_v3'), _PLAIN._replace(norm=_RMS)),
  **dict.fromkeys(('lfm2', 'lfm2_moe'), _LFM2),
  'nemotron': _PLAIN,
  'starcoder2': Family(bias=flag('use_bias'), window=everywhere),
  'stablelm': Family(bias=flag('use_qkv_bias'), out_bias=_NONE, known=off('qk_layernorm')),
  **dict.fromkeys(('deepseek_v3', 'mistral4', 'glm4_moe_lite', 'youtu', 'minicpm3'), _DEEPSEEK),
  'persimmon': Family(_PERSIMMON, bias=_YES, norm=_PHI_NORM),
  'phi': Family(_PHI, bias=_YES, norm=_PHI_NORM),
  **dict.fromkeys(('ernie4_5', 'ernie4_5_moe', 'paddleocr_vl_text'), Family(bias=flag('use_bias'))),
  'eurobert': _PLAIN._replace(causal=_ENCODER),
  'nomic_bert': Family(causal=_ENCODER, known=off('causal', 'qkv_proj_bias')),
  'esm': _BERT_LIKE._replace(
    names=_BERT._replace(beside=('LayerNorm', 'self.rotary_embeddings.inv_freq')),
    known=(*_BERT_LIKE.known, ('position_embedding_type', ('rotary',))),
  ),
  'roformer': _BERT_LIKE,
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
  **dict.fromkeys(('speech_to_text', 'fsmt'), _bart_parts()),
  'mvp': {part: family._replace(known=off('use_prompt')) for part, family in _bart_parts().items()},
  'nllb-moe': _bart_parts(cross='cross_attention'),
  'trocr': _bart_parts()['decoder'],
  'musicgen_decoder': _bart_parts()['decoder']._replace(bias=never, heads=''),
  'whisper': _bart_parts(no_bias='k_proj'),
  **dict.fromkeys(('qwen3_next', 'qwen3_5_text', 'qwen3_5_moe_text'), _QWEN3_NEXT),
  **dict.fromkeys(('hunyuan_v1_dense', 'hunyuan_v1_moe'), _HUNYUAN),
  'codegen': Family(_CODEGEN),
  'xlnet': Family(
    _XLNET,
    **{'causal': _xlnet_causal, 'known': off('bi_data', 'same_length')},
    tables=(Table('u', 'r_w_bias'), Table('v', 'r_r_bias'), Table('w_r', 'r')),
  ),
  'wav2vec2-conformer': Family(_CONFORMER, bias=_YES, causal=_ENCODER, tables=_CONFORMER_TABLES),
  'swin': _SWIN_LIKE._replace(tables=(_SWIN_TABLE,)),
  'swinv2': _SWIN_LIKE._replace(names=_SWINV2, tables=_SWINV2_TABLES),
}
