"""The three tasks at the least size that trains: `--config=tests/fuzz/small.py:KIND`."""

from ml_collections import ConfigDict

from configs import algorithmic, classification, default

COMMON = {
  'scheme': 'rope',
  'steps': 4,
  'batch_size': 2,
  'log_every': 1,
  'eval_every': 2,
  'checkpoint_every': 2,
  'model.num_layers': 1,
  'model.width': 16,
  'model.num_heads': 2,
  'optimizer.warmup_steps': 1,
}
LANGUAGE = {
  'task.length': 8,
  'task.eval_factors': (1, 2),
  'task.eval_tokens': 64,
  'task.sample_length': 2,
  'task.prompt': 'the ',
  'model.unroll': 1,
}
KINDS = {
  'bytes': (default, LANGUAGE),
  'words': (default, {**LANGUAGE, 'task.tokens': 'words'}),
  'questions': (
    algorithmic,
    {'task.longest': 2, 'task.eval_factors': (1, 2), 'task.eval_examples': 4, 'model.unroll': 1},
  ),
  'labels': (classification, {'task.widths': (8,), 'model.hidden_width': 16}),
}


def get_config(kind: str = 'bytes') -> ConfigDict:
  """One of `KINDS`."""
  module, changes = KINDS[kind]
  config = module.get_config()
  config.update_from_flattened_dict({**COMMON, **changes})
  return config
