"""Writes tests/golden/interop_layers.npz and interop_models.npz: the answers of transformers.

python -m tools.interop_goldens, where transformers and torch are installed. With model types after
it, only theirs are written anew.

The first has those of attention layers, the second those of whole models: logits of a batch with
padding on the left, and what a model says after a prompt.

Weights are not stored: `tests.support.hugging_face.numbers` makes them from their names.
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.support.hugging_face import CASES, TOKENS, greedy, logits_of, model_of, recorded

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


WHOLE = 'gemma3_text', 'gpt_oss'


def models() -> None:
  """Runs small whole models, and stores their names of weights, logits and continuations."""
  arrays, stored = {}, {}
  for kind in WHOLE:
    model, config = model_of(kind, CASES[kind][0], whole=True)
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    tied = config.get('tie_word_embeddings')
    stored[kind] = config, {n: s for n, s in shapes.items() if not (tied and 'lm_head' in n)}
    arrays[f'{kind}.logits'] = logits_of(kind, model)
    arrays[f'{kind}.said'] = greedy(model, TOKENS[1:], 32)
  np.savez_compressed(TARGET.with_name('interop_models.npz'), models=json.dumps(stored), **arrays)


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
  models()
