"""Small models of transformers with random weights, and what their attention layers answer.

torch and transformers are needed to run one, and nothing else of this file.
"""

import json
import zlib
from typing import Any, NamedTuple

import numpy as np

from posjax.interop.families import FAMILIES

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
  'gpt_neox': [{**_PLAIN, 'rotary_pct': 0.34}, {**_PLAIN, 'attention_bias': False}],
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
  **dict.fromkeys(('roberta', 'electra', 'camembert', 'xlm-roberta'), [_ROBERTA]),
  **{'t5': [_T5], 'mt5': [_T5], 'umt5': [_T5]},
  'cohere': [{**_PLAIN, 'num_key_value_heads': 2, 'use_qk_norm': True}],
  'cohere2': [{**_GROUPED, 'sliding_window': 4}],
  'smollm3': [{**_GROUPED}],
  'exaone4': [
    {**_GROUPED, 'sliding_window': 4},
    {**_GROUPED, 'sliding_window': None, 'layer_types': ['full_attention'] * 4},
  ],
  'granite': [{**_GROUPED, 'attention_multiplier': 0.3}],
  'olmo': [{**_PLAIN, 'num_key_value_heads': 2}],
  'olmo2': [{**_PLAIN, 'num_key_value_heads': 2}],
  'olmo3': [{**_PLAIN, 'num_key_value_heads': 2, 'sliding_window': 4}],
}


class Recorded(NamedTuple):
  """One layer's attention, as transformers computed it.

  Attributes:
    part: as `posjax.interop.layer` has it.
    index: of the layer.
    x: what asks, [1, T, M].
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
  from transformers import AutoModel, AutoModelForCausalLM
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  config = CONFIG_MAPPING[kind](**sizes)
  # Falcon's eager attention adds ALiBi twice.
  how = 'sdpa' if sizes.get('alibi') else 'eager'
  auto = AutoModelForCausalLM if whole else AutoModel
  model = auto.from_config(config, attn_implementation=how).float().eval()
  with torch.no_grad():
    for name, weight in model.named_parameters():
      weight.copy_(torch.from_numpy(numbers(name, tuple(weight.shape))))
  return model, json.loads(config.to_json_string(use_diff=False))


def recorded(kind: str, model: Any, config: dict[str, Any], length: int = 12) -> list[Recorded]:
  """The attention of every layer, from one run of the model over `length` tokens."""
  import torch

  seen: dict[Any, Any] = {}
  family = FAMILIES[kind]
  parts = family if isinstance(family, dict) else {None: family}
  depths = ('num_hidden_layers', 'n_layer', 'num_layers', 'n_layers')
  depth = next(config[name] for name in depths if name in config)
  for part, each in parts.items():
    for i in range(depth):
      _watch(model, each.names, (part, i), seen)
  tokens = 3 + torch.arange(length)[None] * 7 % 30
  with torch.no_grad():
    given = {} if None in parts else {'decoder_input_ids': tokens[:, : length - 3]}
    model(input_ids=tokens, **given)
  layers = sorted({(part, i) for part, i, _ in seen}, key=str)
  return [Recorded(*at, *(seen[(*at, what)] for what in ('x', 'x_kv', 'y'))) for at in layers]


def _watch(model: Any, names: Any, at: tuple[str | None, int], seen: dict[Any, Any]) -> None:
  """Notes what goes into the projections of a layer, and what comes out of the last one."""
  block = names.block.format(at[1])
  (owner,) = (m for path, m in model.named_modules() if f'.{path}'.endswith(f'.{block}'))

  def note(what, value):
    value = value.detach().numpy()
    seen[(*at, what)] = value.reshape(1, -1, value.shape[-1]).copy()

  def watch(name, what, *, is_input):
    hook = lambda module, given, out: note(what, given[0] if is_input else out)
    owner.get_submodule(name).register_forward_hook(hook)

  children = dict(owner.named_modules())
  is_fused = names.fused in children and bool(names.fused)
  watch(names.fused if is_fused else names.query, 'x', is_input=True)
  watch(names.fused if is_fused else names.key, 'x_kv', is_input=True)
  watch(names.out, 'y', is_input=False)
