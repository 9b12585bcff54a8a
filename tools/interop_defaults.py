"""Writes posjax/interop/defaults.json: what transformers takes where a configuration says nothing.

python tools/interop_defaults.py, where transformers is installed

Of each family that `posjax.interop.layer` reads, this takes the defaults of the fields whose names
stand in the code of posjax/interop; and of each whose folders `posjax.interop.load` reads, those of
all other fields but `HARMLESS`. Fields of RoPE are left out: `from_hf` knows theirs, which
differ between versions of transformers, and asks for the others.
"""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / 'posjax' / 'interop'
TARGET = FOLDER / 'defaults.json'
# Fields that change nothing in what a trained model computes: tokens, training, losses, caches.
HARMLESS = {
  *('bos_token_id', 'eos_token_id', 'pad_token_id', 'sep_token_id', 'cls_token_id'),
  *('decoder_start_token_id', 'initializer_range', 'initializer_cutoff_factor'),
  *('initializer_factor', 'use_cache', 'dtype', 'torch_dtype', 'attention_dropout'),
  *('hidden_dropout', 'hidden_dropout_prob', 'attention_probs_dropout_prob', 'dropout_rate'),
  *('resid_pdrop', 'embd_pdrop', 'attn_pdrop', 'classifier_dropout', 'embedding_dropout'),
  *('mlp_dropout', 'router_aux_loss_coef', 'output_router_logits', 'label_smoothing'),
  *('classifier_pooling', 'problem_type', 'summary_type', 'summary_use_proj'),
  *('summary_activation', 'summary_proj_to_labels', 'summary_first_dropout', 'architectures'),
  *('chunk_size_feed_forward', 'is_encoder_decoder', 'return_dict', 'output_hidden_states'),
  *('output_attentions', 'id2label', 'label2id', 'transformers_version', 'pretraining_tp'),
  *('slow_but_exact', 'reorder_and_upcast_attn', 'deterministic_flash_attn'),
  *('sparse_prediction', 'sparse_pred_ignore_index', 'reference_compile', 'repad_logits_with_grad'),
  *('boi_token_id', 'eoi_token_id', 'n_ctx'),
}
LEFT_OUT = ('rope', 'rotary', 'theta', 'model_type')


def names_in_the_code() -> set[str]:
  """All strings of the code that reads configurations."""
  found = set()
  for path in FOLDER.glob('*.py'):
    nodes = ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    found |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
  return found


def defaults(kind: str, names: set[str]) -> dict[str, Any]:
  """The plain defaults of one class of configurations that are not null."""
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  fields = dataclasses.fields(CONFIG_MAPPING[kind])
  plain = {field.name: field.default for field in fields if field.name in names}
  turns = any(field.name == 'rope_parameters' for field in fields)
  left_out = (*LEFT_OUT, 'position') if turns else LEFT_OUT
  apart = lambda name: any(word in name for word in left_out)
  # The sizes of stages are tuples of integers, which a file has as lists.
  plain = {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}
  return {
    name: value
    for name, value in sorted(plain.items())
    if isinstance(value, bool | int | float | str | list) and not apart(name)
  }


def unread(kind: str, names: set[str]) -> dict[str, Any]:
  """The plain defaults of the fields that nothing here reads, and that may matter."""
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  fields = dataclasses.fields(CONFIG_MAPPING[kind])
  plain = {field.name: field.default for field in fields if field.name not in names | HARMLESS}
  return {
    name: value
    for name, value in sorted(plain.items())
    if value is None or isinstance(value, bool | int | float | str)
  }


def text() -> str:
  """The file: a line for each model type, and the version of transformers."""
  import transformers

  from posjax.interop.bodies import BODIES
  from posjax.interop.families import FAMILIES

  names = names_in_the_code()
  tables = {
    'defaults': {kind: defaults(kind, names) for kind in sorted(FAMILIES) if FAMILIES[kind].parts},
    'unread': {kind: unread(kind, names) for kind in sorted(BODIES)},
  }
  parts = [f'  "transformers": "{transformers.__version__}"']
  for title, table in tables.items():
    lines = [f'    {json.dumps(kind)}: {json.dumps(found)}' for kind, found in table.items()]
    parts.append(f'  "{title}": {{\n' + ',\n'.join(lines) + '\n  }')
  return '{\n' + ',\n'.join(parts) + '\n}\n'


if __name__ == '__main__':
  TARGET.write_text(text(), encoding='utf-8')
