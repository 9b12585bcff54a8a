"""Which model types turn queries and keys in which way, where a configuration does not say."""

# Models whose pairs of dimensions are neighbours, and models whose pairs are half a head apart.
INTERLEAVED = {
  *('codegen', 'cohere', 'cohere2', 'deepseek_v2', 'deepseek_v3', 'ernie4_5', 'glm', 'glm4'),
  *(
    'ernie4_5_moe',
    'glm4_moe_lite',
    'youtu',
    'gptj',
    'helium',
    'llama4_text',
    'mistral4',
    'roformer',
  ),
}
SPLIT = {
  *('apertus', 'arcee', 'cwm', 'dots1', 'esm', 'eurobert', 'exaone4', 'falcon', 'flex_olmo'),
  *('gemma', 'gemma2', 'gemma3_text', 'gemma4_text', 'glm4_moe', 'gpt_neox', 'gpt_oss', 'granite'),
  *('granitemoe', 'granitemoeshared', 'hyperclovax', 'jais2', 'llama', 'minimax_m2', 'ministral'),
  *('ministral3', 'mistral', 'mixtral', 'modernbert', 'nemotron', 'nomic_bert', 'olmo'),
  *('olmo2', 'olmo3', 'olmoe', 'persimmon', 'phi', 'phi3', 'phimoe', 'qwen2', 'qwen2_moe'),
  *('hunyuan_v1_dense', 'hunyuan_v1_moe', 'qwen3_next', 'qwen3_5_text', 'qwen3_5_moe_text'),
  *('qwen3', 'qwen3_moe', 'seed_oss', 'smollm3', 'solar_open', 'stablelm', 'starcoder2'),
  *('aria_text', 'deepseek_ocr2_text', 'emu3_text_model', 'exaone_moe', 'granite4_vision_text'),
  *('internlm3', 'iquestcoder'),
  *('granite_docling_text', 'hy_v3', 'kolibri1', 'lfm2', 'lfm2_moe', 'mellum', 'minicpm3'),
  *('modernbert-decoder', 'paddleocr_vl_text', 'qwen2_5_omni_text', 'qwen3_omni_moe_text'),
  *('qwen3_vl_moe_text', 'vaultgemma', 'voxtral_realtime_text'),
  *('qwen2_vl', 'qwen2_vl_text', 'qwen2_5_vl', 'qwen2_5_vl_text', 'qwen3_vl_text'),
}
# Models whose queries grow with their position, after they have turned.
TEMPERED = {'ministral3', 'mistral4'}
# Models of three ids for each token. The value: whether the ids take frequencies in turn, which
# transformers decides by the model, and not by the configuration.
MULTIMODAL = {
  **dict.fromkeys(('qwen2_vl', 'qwen2_vl_text', 'qwen2_5_vl', 'qwen2_5_vl_text'), False),
  **dict.fromkeys(('qwen2_5_omni_text', 'paddleocr_vl_text'), False),
  **dict.fromkeys(('qwen3_vl_text', 'qwen3_5_text', 'qwen3_5_moe_text'), True),
  **dict.fromkeys(('qwen3_vl_moe_text', 'qwen3_omni_moe_text'), True),
}
# The sections where a configuration has none.
SECTIONS = dict.fromkeys(('qwen3_5_text', 'qwen3_5_moe_text'), (11, 11, 10))
# Models that normalize queries and keys after they have turned.
NORMED = {'hunyuan_v1_dense', 'hunyuan_v1_moe'}
# Vision towers whose pairs are half a head apart, those of the row before those of the column. The
# value: whether the frequencies of the whole head are dealt out to row and column in turn.
AXIAL = {
  **dict.fromkeys(
    (
      *('cohere_compass_vision', 'dots3_note_vision_encoder', 'ernie4_5_vl_moe_vision'),
      *('exaone4_5_vision', 'glm4v_vision', 'glm4v_moe_vision', 'glm5_next_vision'),
      *('glm_ocr_vision', 'lfm3_vl_vision', 'mlcd_vision_model', 'muse_glimmer_vision'),
      *('muse_spark_vision', 'paddleocr_vl_vision', 'qwen2_5_omni_vision_encoder'),
      *('qwen2_5_vl_vision', 'qwen2_vl_vision', 'qwen3_5_vision', 'qwen3_5_moe_vision'),
      *('qwen3_omni_moe_vision_encoder', 'qwen3_vl_vision', 'qwen3_vl_moe_vision'),
      *('qwen4_exp_vision', 'video_llama_3_vision'),
    ),
    False,
  ),
  'pixtral': True,
}
# Models whose base is 10000 where `config.json` has no rope_theta. Cohere and Persimmon are not
# here, because versions of transformers differ about theirs.
BASE_10000 = {
  *('codegen', 'deepseek_v2', 'deepseek_v3', 'esm', 'falcon', 'gemma', 'gemma2', 'glm', 'gptj'),
  'roformer',
  *('gpt_neox', 'llama', 'mistral', 'phi', 'phi3', 'qwen2', 'stablelm'),
}
# The field that has the base of a type of layers, where the entry of that type is null.
LAYER_BASES: dict[str | None, dict[str, str]] = {
  'gemma3_text': {'full_attention': 'rope_theta', 'sliding_attention': 'rope_local_base_freq'}
}
DEFAULTS = {
  'codegen': {'rotary_dim': 64},
  'gemma3_text': {'rope_theta': 1e6, 'rope_local_base_freq': 1e4},
  'glm': {'partial_rotary_factor': 0.5},
  'glm4': {'partial_rotary_factor': 0.5},
  'gpt_neox': {'rotary_pct': 0.25},
  'gptj': {'rotary_dim': 64},
  **{
    kind: {'partial_rotary_factor': 0.25}
    for kind in ('qwen3_next', 'qwen3_5_text', 'qwen3_5_moe_text')
  },
  'nemotron': {'partial_rotary_factor': 0.5},
  'persimmon': {'partial_rotary_factor': 0.5},
  'phi': {'partial_rotary_factor': 0.5},
  'stablelm': {'partial_rotary_factor': 0.25},
}
