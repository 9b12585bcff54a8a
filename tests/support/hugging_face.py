"""Small models of transformers with random weights, and what their attention layers answer.

torch and transformers are needed to run one, and nothing else of this file.
"""

import json
import zlib
from typing import Any, NamedTuple

import numpy as np

from posjax.interop.families import FAMILIES
from posjax.interop.family import Layer
from posjax.interop.fields import Fields

_PLAIN = {
  **{'vocab_size': 40, 'hidden_size': 24, 'intermediate_size': 32, 'num_hidden_layers': 4},
  **{'num_attention_heads': 4, 'max_position_embeddings': 64, 'pad_token_id': 0},
  **{'bos_token_id': 1, 'eos_token_id': 2},
}
_GROUPED = {**_PLAIN, 'num_key_value_heads': 2, 'head_dim': 8}
_GPT = {'n_embd': 24, 'n_layer': 2, 'n_head': 4, 'vocab_size': 40, 'n_positions': 64}
_LATE = {'use_sliding_window': True, 'sliding_window': 5, 'max_window_layers': 2}
_EXPERTS = {'num_experts': 2, 'num_experts_per_tok': 1, 'moe_intermediate_size': 16}
_LOCAL_EXPERTS = {'num_local_experts': 2, 'num_experts_per_tok': 1}
_BIASED = {'attention_bias': True}
_T5 = {
  **{'vocab_size': 40, 'd_model': 24, 'd_kv': 6, 'd_ff': 32, 'num_layers': 2, 'num_heads': 4},
  **{'pad_token_id': 0, 'decoder_start_token_id': 0, 'relative_attention_max_distance': 10},
  'relative_attention_num_buckets': 8,
}
_ROBERTA = {**_PLAIN, 'pad_token_id': 1}

_GRANITES = 'granite', 'granitemoe', 'granitemoeshared', 'hyperclovax'
_LLAMAS = 'arcee', 'jais2', 'apertus', 'eurobert'
_BARTS = (
  *('bart', 'mbart', 'marian', 'pegasus', 'm2m_100', 'blenderbot', 'blenderbot-small', 'plbart'),
  *('mvp', 'nllb-moe'),
)
_BART = {
  **{'vocab_size': 40, 'd_model': 24, 'encoder_layers': 2, 'decoder_layers': 2},
  **{'encoder_attention_heads': 2, 'decoder_attention_heads': 4, 'encoder_ffn_dim': 32},
  **{'decoder_ffn_dim': 32, 'max_position_embeddings': 64, 'pad_token_id': 1},
  **{'bos_token_id': 0, 'eos_token_id': 2, 'decoder_start_token_id': 2},
}
BERTS = (
  *('bert-generation', 'ernie', 'rembert', 'roc_bert', 'splinter', 'data2vec-text', 'dpr'),
  *('megatron-bert', 'roberta-prelayernorm', 'xlm-roberta-xl', 'layoutlm', 'markuplm', 'tapas'),
  *('visual_bert', 'chinese_clip_text_model', 'align_text_model', 'clap_text_model'),
  *('altclip_text_model', 'bridgetower_text_model'),
)
_DOCLINGS = 'granite_docling_text', 'granite4_vision_text'
_LATENTS = 'glm4_moe_lite', 'youtu'
_LATENT = {
  **{'num_attention_heads': 5, 'num_key_value_heads': 5, 'q_lora_rank': 10, 'kv_lora_rank': 12},
  **{
    'qk_rope_head_dim': 4,
    'qk_nope_head_dim': 6,
    'v_head_dim': 8,
    'n_routed_experts': 2,
    'n_shared_experts': 1,
  },
  **{'num_experts_per_tok': 1, 'moe_intermediate_size': 16, 'n_group': 1, 'topk_group': 1},
  'rope_parameters': {
    **{'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 8.0, 'mscale': 1.0},
    **{'original_max_position_embeddings': 16, 'mscale_all_dim': 0.7},
  },
}
_QWEN2_VL = 'qwen2_vl_text', 'qwen2_5_vl_text', 'qwen2_5_omni_text'
_QWEN3_VL = 'qwen3_vl_text', 'qwen3_vl_moe_text', 'qwen3_omni_moe_text'
_MROPE = {
  'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e4, 'mrope_section': [1, 1, 1]}
}
CLIPS = (
  *('clip_text_model', 'siglip_text_model', 'siglip2_text_model', 'metaclip_2_text_model'),
  *('owlvit_text_model', 'owlv2_text_model', 'xclip_text_model', 'clipseg_text_model'),
  'groupvit_text_model',
)
_HALF = {**_PLAIN, 'hidden_size': 32, 'partial_rotary_factor': 0.5}
_MIXED = ['full_attention', 'sliding_attention'] * 2
_MINISTRAL = {
  **{'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 8.0, 'beta_fast': 32.0, 'beta_slow': 1.0},
  **{'original_max_position_embeddings': 10, 'llama_4_scaling_beta': 0.1, 'mscale': 1.0},
  'mscale_all_dim': 1.0,
}

_ROPE = {'rope_type': 'default', 'rope_theta': 1e4}
_NEXT = {
  **{**_GROUPED, 'head_dim': 24, 'linear_num_key_heads': 2, 'linear_num_value_heads': 2},
  **{'linear_key_head_dim': 8, 'linear_value_head_dim': 8},
}
_SECTIONS = {
  'rope_parameters': {**_ROPE, 'mrope_section': [1, 1, 1], 'partial_rotary_factor': 0.25}
}
_SWIN = {'image_size': 16, 'patch_size': 2, 'embed_dim': 8, 'window_size': 4}

# Configurations by the model_type, each with all that the family reads in some case.
CASES: dict[str, list[dict[str, Any]]] = {
  'llama': [{**_GROUPED, **_BIASED}, {**_PLAIN, 'num_key_value_heads': 1}],
  'mistral': [{**_GROUPED, 'sliding_window': 5}],
  'mixtral': [{**_GROUPED, 'sliding_window': 5, **_LOCAL_EXPERTS}],
  'qwen2': [{**_GROUPED, **_LATE}],
  'qwen2_moe': [{**_GROUPED, **_EXPERTS, **_LATE, 'shared_expert_intermediate_size': 16}],
  'qwen3': [{**_GROUPED, **_LATE, **_BIASED}],
  'qwen3_moe': [{**_GROUPED, **_EXPERTS}],
  'gemma': [{**_GROUPED}],
  'gemma2': [
    {**_GROUPED, 'sliding_window': 4, 'query_pre_attn_scalar': 20, 'attn_logit_softcapping': 2.0}
  ],
  'gemma3_text': [
    {**_GROUPED, 'sliding_window': 4, 'query_pre_attn_scalar': 20, 'num_hidden_layers': 6},
    {**_GROUPED, 'sliding_window': 4, 'use_bidirectional_attention': True, 'num_hidden_layers': 6},
  ],
  'gpt_neox': [
    {**_PLAIN, 'rotary_pct': 0.34},
    {**_PLAIN, 'rotary_pct': 0.34, 'attention_bias': False},
  ],
  'gpt2': [{**_GPT, 'scale_attn_by_inverse_layer_idx': True}],
  'gptj': [{**_GPT, 'rotary_dim': 4}],
  'bloom': [{'hidden_size': 24, 'n_layer': 2, 'n_head': 6, 'vocab_size': 40}],
  'falcon': [
    {**_PLAIN, 'new_decoder_architecture': True, 'num_kv_heads': 2},
    {**_PLAIN, 'multi_query': True, 'bias': True},
    {**_PLAIN, 'multi_query': False, 'alibi': True},
  ],
  'mpt': [{'d_model': 24, 'n_heads': 6, 'n_layers': 2, 'vocab_size': 40, 'max_seq_len': 64}],
  'opt': [{**_PLAIN, 'ffn_dim': 32, 'word_embed_proj_dim': 24}],
  'phi3': [{**_PLAIN, 'num_key_value_heads': 2, 'sliding_window': 5}],
  'gpt_oss': [{**_GROUPED, 'sliding_window': 5, **_LOCAL_EXPERTS}],
  'modernbert': [{**_PLAIN, 'local_attention': 8, **_BIASED}],
  'bert': [_PLAIN],
  **{'roberta': [_ROBERTA], 'electra': [_ROBERTA], 'camembert': [_ROBERTA]},
  'xlm-roberta': [_ROBERTA],
  **{'t5': [_T5], 'mt5': [_T5], 'umt5': [_T5]},
  'switch_transformers': [{**_T5, 'num_experts': 2}],
  'cohere': [{**_PLAIN, 'num_key_value_heads': 2, 'use_qk_norm': True}],
  'cohere2': [{**_GROUPED, 'sliding_window': 4}],
  'smollm3': [{**_GROUPED}],
  'exaone4': [
    {**_GROUPED, 'sliding_window': 4},
    {**_GROUPED, 'sliding_window': None, 'layer_types': ['full_attention'] * 4},
  ],
  'olmo': [{**_PLAIN, 'num_key_value_heads': 2}],
  'olmo2': [{**_PLAIN, 'num_key_value_heads': 2}],
  'llama4_text': [
    {
      **{**_GROUPED, **_LOCAL_EXPERTS, 'intermediate_size_mlp': 32, 'floor_scale': 4},
      **{'attention_chunk_size': 64, 'moe_layers': []},
    }
  ],
  **{kind: [{**_GROUPED, 'attention_multiplier': 0.3, **_BIASED}] for kind in _GRANITES},
  'olmoe': [{**_PLAIN, 'num_key_value_heads': 2, **_EXPERTS}],
  'flex_olmo': [{**_PLAIN, 'num_key_value_heads': 2, **_EXPERTS}],
  'minimax_m2': [{**_GROUPED, **_LOCAL_EXPERTS}],
  **{kind: [{**_GROUPED, **_BIASED}] for kind in _LLAMAS},
  'phimoe': [{**_PLAIN, 'num_key_value_heads': 2, **_LOCAL_EXPERTS, 'sliding_window': 5}],
  'ministral': [{**_GROUPED, 'sliding_window': 5}],
  'ministral3': [{**_GROUPED, 'sliding_window': 5, 'rope_parameters': _MINISTRAL}],
  'cwm': [{**_GROUPED, 'sliding_window': 5, 'layer_types': _MIXED}],
  'dots1': [
    {
      **{**_GROUPED, 'n_routed_experts': 2, 'n_shared_experts': 1, 'num_experts_per_tok': 1},
      **{'moe_intermediate_size': 16, 'n_group': 1, 'topk_group': 1, **_BIASED},
      **{'sliding_window': 5, 'layer_types': _MIXED},
    }
  ],
  'glm4_moe': [
    {
      **{**_GROUPED, 'n_routed_experts': 2, 'n_shared_experts': 1, 'num_experts_per_tok': 1},
      **{'moe_intermediate_size': 16, 'n_group': 1, 'topk_group': 1, **_BIASED},
      'use_qk_norm': True,
    }
  ],
  'solar_open': [
    {
      **{**_GROUPED, 'n_routed_experts': 2, 'n_shared_experts': 1, 'num_experts_per_tok': 1},
      **{'moe_intermediate_size': 16, 'n_group': 1, 'topk_group': 1, **_BIASED},
    }
  ],
  'helium': [{**_PLAIN, 'num_key_value_heads': 2, 'head_dim': 6, **_BIASED}],
  'seed_oss': [{**_GROUPED, **_BIASED, 'attention_out_bias': False}],
  'starcoder2': [{**_PLAIN, 'num_key_value_heads': 2, 'sliding_window': 5, 'use_bias': True}],
  'stablelm': [{**_HALF, 'num_key_value_heads': 2, 'use_qkv_bias': True}],
  'persimmon': [_HALF],
  'phi': [{**_HALF, 'num_key_value_heads': 2, 'qk_layernorm': True}],
  'nemotron': [{**_HALF, 'num_key_value_heads': 2, **_BIASED}],
  'deepseek_v3': [
    {
      **{**_PLAIN, 'num_key_value_heads': 4, 'q_lora_rank': 10, 'kv_lora_rank': 12},
      **{'qk_rope_head_dim': 4, 'qk_nope_head_dim': 6, 'v_head_dim': 8, **_BIASED},
      **{'n_routed_experts': 2, 'n_shared_experts': 1, 'num_experts_per_tok': 1, 'n_group': 1},
      **{'moe_intermediate_size': 16, 'topk_group': 1, 'first_k_dense_replace': 1},
      'rope_parameters': {
        **{'rope_type': 'yarn', 'rope_theta': 1e4, 'factor': 8.0, 'mscale': 1.0},
        **{'original_max_position_embeddings': 16, 'mscale_all_dim': 0.7},
      },
    }
  ],
  'glm': [{**_GROUPED, **_BIASED}],
  'glm4': [{**_GROUPED, **_BIASED}],
  'ernie4_5': [{**_GROUPED, 'use_bias': True}],
  'ernie4_5_moe': [
    {**_GROUPED, 'use_bias': True, 'moe_num_experts': 2, 'moe_k': 1, 'moe_intermediate_size': 16}
  ],
  'nomic_bert': [_PLAIN],
  'esm': [{**_ROBERTA, 'position_embedding_type': 'rotary'}],
  'roformer': [
    {**_PLAIN, 'embedding_size': 24},
    {**_PLAIN, 'embedding_size': 24, 'rotary_value': True},
  ],
  'albert': [{**_PLAIN, 'embedding_size': 24}],
  'distilbert': [{**_GPT, 'dim': 24, 'n_layers': 2, 'n_heads': 4, 'hidden_dim': 32}],
  'gpt_bigcode': [_GPT, {**_GPT, 'multi_query': False}],
  'gpt_neo': [
    {
      **{'vocab_size': 40, 'hidden_size': 24, 'num_layers': 2, 'num_heads': 4, 'window_size': 4},
      **{'attention_types': [[['global', 'local'], 1]], 'max_position_embeddings': 64},
    }
  ],
  'openai-gpt': [_GPT],
  'xglm': [{**_BART, 'num_layers': 2, 'attention_heads': 4, 'ffn_dim': 32}],
  'biogpt': [_PLAIN],
  'vit': [{**_PLAIN, 'image_size': 6, 'patch_size': 2}],
  **{kind: [_BART] for kind in _BARTS},
  'whisper': [{**_BART, 'num_mel_bins': 8, 'max_source_positions': 12}],
  'olmo3': [{**_PLAIN, 'num_key_value_heads': 2, 'sliding_window': 4}],
  'qwen3_next': [{**_NEXT, **_EXPERTS, 'shared_expert_intermediate_size': 16}],
  'qwen3_5_text': [{**_NEXT, **_SECTIONS}],
  'qwen3_5_moe_text': [
    {**_NEXT, **_EXPERTS, **_SECTIONS, 'shared_expert_intermediate_size': 16, **_BIASED}
  ],
  'hunyuan_v1_dense': [
    {
      **_GROUPED,
      **_BIASED,
      'rope_parameters': {**_ROPE, 'rope_type': 'dynamic', 'alpha': 50.0, 'factor': 1.0},
    },
    _GROUPED,
  ],
  'hunyuan_v1_moe': [{**_GROUPED, 'num_experts': 2, 'moe_topk': 1}],
  'mpnet': [{**_ROBERTA, 'relative_attention_num_buckets': 32}],
  'longt5': [{**_T5, 'local_radius': 3}],
  'swin': [{**_SWIN, 'depths': [2, 1], 'num_heads': [2, 4]}],
  'swinv2': [
    {**_SWIN, 'depths': [2, 1, 1], 'num_heads': [2, 4, 4]},
    {**_SWIN, 'depths': [2, 1], 'num_heads': [2, 4], 'pretrained_window_sizes': [6, 3]},
  ],
  'xlnet': [
    {'vocab_size': 40, 'd_model': 24, 'n_layer': 2, 'n_head': 4, 'd_inner': 32},
    {
      **{'vocab_size': 40, 'd_model': 24, 'n_layer': 2, 'n_head': 4, 'd_inner': 32},
      **{'attn_type': 'uni', 'clamp_len': 5},
    },
  ],
  'wav2vec2-conformer': [
    {
      **{**_PLAIN, 'conv_dim': (8, 8), 'conv_stride': (2, 2), 'conv_kernel': (3, 2)},
      **{'conv_depthwise_kernel_size': 3, 'num_conv_pos_embeddings': 4},
      **{'num_conv_pos_embedding_groups': 2, 'num_hidden_layers': 2, 'max_source_positions': 30},
    }
  ],
  'mistral4': [
    {
      **{**_PLAIN, 'num_key_value_heads': 4, 'q_lora_rank': 10, 'kv_lora_rank': 12},
      **{'qk_rope_head_dim': 4, 'qk_nope_head_dim': 6, 'v_head_dim': 8, **_BIASED},
      **{'n_routed_experts': 2, 'n_shared_experts': 1, 'num_experts_per_tok': 1, 'n_group': 1},
      **{'moe_intermediate_size': 16, 'topk_group': 1, 'first_k_dense_replace': 1},
      'rope_parameters': {**_MINISTRAL, 'original_max_position_embeddings': 8},
    }
  ],
  'codegen': [{**_GPT, 'n_head': 8, 'n_embd': 32, 'rotary_dim': 2}],
  **{kind: [_ROBERTA] for kind in (*BERTS, *CLIPS)},
  'aria_text': [{**_GROUPED, **_BIASED, 'moe_num_experts': 2, 'moe_topk': 1}],
  'emu3_text_model': [_GROUPED],
  'internlm3': [{**_GROUPED, **_BIASED, 'mlp_bias': True}],
  'iquestcoder': [{**_GROUPED, **_BIASED}],
  'deepseek_ocr2_text': [{**_GROUPED, **_BIASED, 'mlp_layer_types': ['dense'] * 4}],
  'fsmt': [{**_BART, 'src_vocab_size': 40, 'tgt_vocab_size': 40, 'langs': ['en', 'de']}],
  'speech_to_text': [
    {**_BART, 'input_feat_per_channel': 8, 'conv_channels': 8, 'max_source_positions': 64}
  ],
  'trocr': [_BART],
  'musicgen_decoder': [{**_PLAIN, 'ffn_dim': 32, 'num_codebooks': 1}],
  'voxtral_realtime_text': [{**_GROUPED, 'sliding_window': 5}],
  'mellum': [{**_GROUPED, **_LOCAL_EXPERTS, **_BIASED, 'sliding_window': 5, 'layer_types': _MIXED}],
  'vaultgemma': [
    {**_GROUPED, 'sliding_window': 4, 'query_pre_attn_scalar': 20, 'attn_logit_softcapping': 2.0}
  ],
  'exaone_moe': [
    {**_GROUPED, **_EXPERTS, 'sliding_window': 4},
  ],
  'kolibri1': [{**_GROUPED, **_LOCAL_EXPERTS, 'sliding_window': 4, 'layer_types': _MIXED}],
  **{kind: [{**_GROUPED, 'attention_multiplier': 0.3, **_BIASED}] for kind in _DOCLINGS},
  'hy_v3': [{**_GROUPED, **_EXPERTS, **_BIASED}],
  'lfm2': [{**_PLAIN, 'num_key_value_heads': 2, 'full_attn_idxs': [1, 3]}],
  'lfm2_moe': [
    {**_PLAIN, **_EXPERTS, 'num_key_value_heads': 2, 'layer_types': ['conv', 'full_attention'] * 2}
  ],
  'modernbert-decoder': [{**_PLAIN, 'local_attention': 8, **_BIASED}],
  **{kind: [{**_PLAIN, **_LATENT, **_BIASED}] for kind in _LATENTS},
  'minicpm3': [
    {**_PLAIN, **_LATENT, **_BIASED, 'num_attention_heads': 4, 'num_key_value_heads': 4}
  ],
  **{kind: [{**_PLAIN, 'num_key_value_heads': 2, **_LATE, **_MROPE}] for kind in _QWEN2_VL},
  **{kind: [{**_PLAIN, 'num_key_value_heads': 2, 'head_dim': 6, **_MROPE}] for kind in _QWEN3_VL},
  'paddleocr_vl_text': [
    {**_PLAIN, 'num_key_value_heads': 2, 'head_dim': 6, 'use_bias': True, **_MROPE}
  ],
  'xmod': [{**_ROBERTA, 'default_language': 'en_XX'}],
}


def _image(side: int) -> Any:
  import torch

  return torch.from_numpy(numbers('pixels', (1, 3, side, side)))


def _sounds(*shape: int) -> Any:
  import torch

  return torch.from_numpy(numbers('sounds', (1, *shape)))


# What a model reads, where it is no text.
_INPUTS = {
  'vit': lambda: _image(6),
  **dict.fromkeys(('swin', 'swinv2'), lambda: _image(16)),
  'whisper': lambda: _sounds(8, 24),
  'speech_to_text': lambda: _sounds(24, 8),
  'wav2vec2-conformer': lambda: _sounds(49),
}


# What a model reads beside its tokens.
_MORE: dict[str, dict[str, Any]] = {
  'voxtral_realtime_text': {'t_cond': lambda: _sounds(24)},
  'fsmt': {'use_cache': lambda: False},  # with a cache, it takes its tokens for one at a time
}
# The class of a model that AutoModel does not make, where its configuration has another name.
_CLASSES = {
  'voxtral_realtime_text': 'VoxtralRealtimeTextModel',
  'qwen2_5_omni_text': 'Qwen2_5OmniThinkerTextModel',
  'qwen3_omni_moe_text': 'Qwen3OmniMoeThinkerTextModel',
  'trocr': 'TrOCRForCausalLM',
  'musicgen_decoder': 'MusicgenModel',
}
# The class of a whole model that is no decoder alone.
_HEADS = {
  't5': 'AutoModelForSeq2SeqLM',
  **dict.fromkeys(('bert', 'modernbert'), 'AutoModelForMaskedLM'),
}
# A batch whose first row has padding on the left.
TOKENS = np.array(
  [[0, 0, 0, 5, 9, 33, 7, 12, 30, 4, 8, 21], [3, 8, 31, 4, 4, 20, 11, 9, 6, 5, 3, 7]]
)
MASK = (TOKENS > 0).astype(np.int32)
POSITIONS = np.maximum(MASK.cumsum(1) - 1, 0)


class Recorded(NamedTuple):
  """One layer's attention, as transformers computed it.

  Attributes:
    part: as `posjax.interop.layer` has it.
    index: of the layer.
    x: what asks, [1, T, M], or [windows, T, M].
    x_kv: what is asked.
    y: the output.
  """

  part: str | None
  index: int
  x: np.ndarray
  x_kv: np.ndarray
  y: np.ndarray


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Numbers in -1/2 .. 1/2 that look random, and are the same everywhere."""
  i = np.arange(np.prod(shape, dtype=int)) + zlib.crc32(name.encode()) % 1000
  return (np.cos(0.7391 * i.astype(np.float64) ** 2) / 2).astype(np.float32).reshape(shape)


def model_of(kind: str, sizes: dict[str, Any], *, whole: bool = False) -> tuple[Any, Any]:
  """A model of transformers with the weights above, and its configuration as a dict."""
  import torch
  import transformers
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  config = CONFIG_MAPPING[kind](**sizes)
  # Falcon's eager attention adds ALiBi twice.
  how = 'sdpa' if sizes.get('alibi') else 'eager'
  auto = getattr(transformers, _HEADS.get(kind, 'AutoModelForCausalLM') if whole else 'AutoModel')
  if not whole and (kind in _CLASSES or type(config) not in transformers.MODEL_MAPPING):
    model = _class_of(config)._from_config(config, attn_implementation=how)
  else:
    model = auto.from_config(config, attn_implementation=how)
  model = model.float().eval()
  with torch.no_grad():
    trained = [each for each in model.named_parameters() if each[1].requires_grad]
    for name, weight in trained:  # sinusoids stay as they are
      weight.copy_(torch.from_numpy(numbers(name, tuple(weight.shape))))
  return model, json.loads(config.to_json_string(use_diff=False))


def logits_of(kind: str, model: Any) -> np.ndarray:
  """What a whole model answers to `TOKENS`; T5 says them without the first four."""
  import torch

  given = {'input_ids': torch.tensor(TOKENS), 'attention_mask': torch.tensor(MASK)}
  if kind == 't5':
    given['decoder_input_ids'] = torch.tensor(TOKENS[:, 4:])
  elif kind not in ('bloom', 'modernbert'):  # which number the tokens by themselves
    given['position_ids'] = torch.tensor(POSITIONS)
  return model(**given).logits.detach().numpy()


def greedy(model: Any, prompt: np.ndarray, length: int) -> np.ndarray:
  """The most likely tokens after a prompt, by the model's caches."""
  import torch

  given = torch.tensor(prompt)
  options = {'max_new_tokens': length, 'do_sample': False, 'eos_token_id': None}
  said = model.generate(given, attention_mask=torch.ones_like(given), **options)
  return said.numpy()[:, prompt.shape[1] :]


def _class_of(config: Any) -> Any:
  """The class of a model that is part of others, which transformers' AutoModel does not make."""
  import importlib

  module = type(config).__module__.replace('.configuration_', '.modeling_')
  usual = type(config).__name__.replace('Config', 'Model')
  return getattr(importlib.import_module(module), _CLASSES.get(config.model_type, usual))


def parts_of(kind: str) -> dict[str | None, Any]:
  """The attention of each part of a model."""
  return {**FAMILIES[kind].parts}


def positions_of(
  config: dict[str, Any], index: int, axes: int, length: int
) -> tuple[np.ndarray, np.ndarray | None]:
  """The ids of the tokens of a layer, and, in windows of an image, which of them see one another.

  Tokens of a window that is shifted over the edge of the image come from its other side. They see
  those that come from there, too, and no others.
  """
  if 'depths' not in config:
    ids = np.arange(length)
    return (ids if axes < 2 else np.stack([ids] * axes, -1)), None
  side = round(length**0.5)
  pos = np.stack(np.divmod(np.arange(length), side), -1)
  ends = np.cumsum(config['depths'])
  stage = int(np.searchsorted(ends, index, side='right'))
  grid = config['image_size'] // config['patch_size'] // 2**stage
  is_odd = (index - (ends[stage] - config['depths'][stage])) % 2
  wrapped = np.arange(grid) + (side // 2 if is_odd and grid > side else 0) >= grid
  segments = 1 + 2 * wrapped[:, None] + wrapped[None]
  count = grid // side
  windows = segments.reshape(count, side, count, side).swapaxes(1, 2)
  return pos, windows.reshape(count**2, length)


def depth_of(config: dict[str, Any]) -> int:
  """How many layers each part of a model has."""
  if 'depths' in config:
    return sum(config['depths'])
  depths = ('num_hidden_layers', 'n_layer', 'num_layers', 'n_layers', 'encoder_layers')
  depths = (*depths, 'decoder_layers')
  return next(config[name] for name in depths if name in config)


def replace_attention(kind: str, model: Any, config: dict[str, Any], answer: Any) -> None:
  """Puts `answer(part, index, x, x_kv)`, of NumPy's arrays, in the place of each attention."""
  import torch

  for part, each in parts_of(kind).items():
    for i in range(depth_of(config)):
      _replace(model, each, config, lambda *x, at=(part, i): torch.tensor(answer(*at, *x)), i)


def _replace(model: Any, family: Any, config: dict[str, Any], answer: Any, index: int) -> None:
  owner, seen, names = _owner(model, family, config, index), {}, family.names
  first = names.fused or names.query
  note = lambda what: lambda module, given, out: seen.update({what: given[0].numpy()})
  owner.get_submodule(first).register_forward_hook(note('x'))
  owner.get_submodule(names.fused or names.key).register_forward_hook(note('x_kv'))
  owner.get_submodule(names.out).register_forward_hook(
    lambda module, given, out: answer(seen['x'], seen['x_kv']).reshape(out.shape)
  )


def _owner(model: Any, family: Any, config: dict[str, Any], index: int) -> Any:
  """The module that holds the attention of a layer; None where the layer has another one."""
  block = family.block(Fields(config), Layer(index))
  found = [m for path, m in model.named_modules() if f'.{path}'.endswith(f'.{block}')]
  (owner,) = found or [None]
  return owner


def recorded(
  kind: str,
  model: Any,
  config: dict[str, Any],
  length: int = 12,
  pos: np.ndarray | None = None,
) -> list[Recorded]:
  """The attention of every layer, from one run of the model over `length` tokens.

  Their ids are `pos`, [length, axes]; None for those that the model takes where none are given.
  """
  import torch

  seen: dict[Any, Any] = {}
  parts = parts_of(kind)
  for part, each in parts.items():
    for i in range(depth_of(config)):
      _watch(model, each, config, (part, i), seen)
  tokens = 3 + torch.arange(length)[None] * 7 % 30
  given = {model.main_input_name: _INPUTS.get(kind, lambda: tokens)()}
  given |= {name: more() for name, more in _MORE.get(kind, {}).items()}
  if pos is not None:
    given['position_ids'] = torch.from_numpy(pos).T[:, None]
  if None not in parts:
    given['decoder_input_ids'] = tokens[:, : length - 3]
  with torch.no_grad():
    model(**given)
  layers = sorted({(part, i) for part, i, _ in seen}, key=str)
  return [Recorded(*at, *(seen[(*at, what)] for what in ('x', 'x_kv', 'y'))) for at in layers]


def _watch(
  model: Any, family: Any, config: dict[str, Any], at: tuple[str | None, int], seen: dict[Any, Any]
) -> None:
  """Notes what goes into the projections of a layer, and what comes out of the last one."""
  owner, names = _owner(model, family, config, at[1]), family.names
  if owner is None:
    return

  def note(what, value):
    value = value.detach().numpy()
    rows = value.shape[0] if 'depths' in config else 1
    seen[(*at, what)] = value.reshape(rows, -1, value.shape[-1]).copy()

  if names.no_weight_suffix:  # XLNet's projections are no modules
    _watch_xlnet(owner, note)
    return

  def watch(name, what, *, is_input):
    hook = lambda module, given, out: note(what, given[0] if is_input else out)
    owner.get_submodule(name).register_forward_hook(hook)

  children = dict(owner.named_modules())
  is_fused = names.fused in children and bool(names.fused)
  watch(names.fused if is_fused else names.query, 'x', is_input=True)
  watch(names.fused if is_fused else names.key, 'x_kv', is_input=True)
  watch(names.out, 'y', is_input=False)


def _watch_xlnet(owner: Any, note: Any) -> None:
  """As `_watch`, of [T, B, M], and before the residual and its norm."""
  import torch

  after = owner.post_attention

  def post_attention(h, attended, residual=True):
    for what, value in (('x', h), ('x_kv', h)):
      note(what, value)
    note('y', torch.einsum('ibnd,hnd->ibh', attended, owner.o))
    return after(h, attended, residual)

  owner.post_attention = post_attention
