"""Writes tests/golden/interop_layers.npz: what attention layers of transformers answer.

python -m tools.interop_goldens, where transformers and torch are installed. With model types after
it, only theirs are written anew.

Weights are not stored: `tests.support.hugging_face.numbers` makes them from their names.
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.support.hugging_face import CASES, model_of, recorded

TARGET = Path(__file__).resolve().parent.parent / 'tests' / 'golden' / 'interop_layers.npz'
# One layer for each way to read: fused layouts, norms, windows, NoPE, parts, tables, gates.
STORED: dict[str, list[tuple[str | None, int]]] = {
  'llama': [(None, 0)],
  'qwen3': [(None, 3)],
  'gemma3_text': [(None, 0), (None, 5)],
  'gpt_neox': [(None, 0)],
  'gpt2': [(None, 1)],
  'falcon': [(None, 0)],
  'gpt_oss': [(None, 0)],
  'deepseek_v3': [(None, 0)],
  'modernbert': [(None, 1)],
  'bert': [(None, 0)],
  't5': [('encoder', 1), ('decoder', 0), ('cross', 0)],
  'smollm3': [(None, 3)],
  'qwen3_next': [(None, 3)],
  'qwen3_5_text': [(None, 3)],
  'hunyuan_v1_dense': [(None, 0)],
  'mpnet': [(None, 1)],
  'longt5': [('encoder', 1)],
  'swin': [(None, 1)],
  'swinv2': [(None, 1)],
  'xlnet': [(None, 0)],
  'wav2vec2-conformer': [(None, 0)],
  'mistral4': [(None, 0)],
  'codegen': [(None, 0)],
}


def main(kinds: list[str]) -> None:
  """Runs the small models, and stores the layers named above; of these kinds, or of all."""
  arrays, layers = {}, {}
  if kinds:
    with np.load(TARGET) as before:
      arrays = {name: before[name] for name in before if name != 'layers'}
      layers = json.loads(str(before['layers']))
  for kind in kinds or STORED:
    wanted = STORED[kind]
    model, config = model_of(kind, CASES[kind][0])
    for layer in recorded(kind, model, config):
      if (layer.part, layer.index) in wanted:
        name = '.'.join(map(str, (kind, layer.part or 'layer', layer.index)))
        layers[name] = (config, layer.part, layer.index)
        arrays |= {f'{name}.{what}': getattr(layer, what) for what in ('x', 'x_kv', 'y')}
  np.savez_compressed(TARGET, layers=json.dumps(layers), **arrays)


if __name__ == '__main__':
  main(sys.argv[1:])
