"""Every task at the least size that trains: `--config=tests/fuzz/small.py:KIND`."""

from ml_collections import ConfigDict

from configs import (
  algorithmic,
  classification,
  default,
  parsing,
  sentence_pairs,
  tagging,
  translation,
  translation_recurrent,
)

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
TRANSLATION = {
  'task.source': 'de',
  'task.target': 'en',
  'task.widths': (8,),
  'task.beams': 2,
  'task.extra_length': 2,
}
RECURRENT = {**TRANSLATION, 'scheme': 'none', 'model.hidden_width': 16}
TAGGING = {
  'scheme': 'tener',
  'task.widths': (8,),
  'task.min_count': 1,
  'model.word_width': 16,
  'model.hidden_width': 16,
}
PAIRS = {
  'scheme': 'gaussian',
  'task.widths': (8,),
  'model.word_width': 16,
  'model.char_width': 8,
  'model.ff_width': 16,
  'model.hidden_width': 16,
}
PARSING = {
  'task.widths': (8, 12),
  'task.min_count': 1,
  'model.label_width': 16,
  'model.hidden_width': 16,
}
KINDS = {
  'bytes': (default, LANGUAGE),
  'words': (default, {**LANGUAGE, 'task.tokens': 'words'}),
  'questions': (
    algorithmic,
    {'task.longest': 2, 'task.eval_factors': (1, 2), 'task.eval_examples': 4, 'model.unroll': 1},
  ),
  'labels': (classification, {'task.widths': (8,), 'model.hidden_width': 16}),
  'translation': (
    translation,
    {**TRANSLATION, 'scheme': 'sinusoidal', 'model.ff_width': 16, 'model.unroll': 1},
  ),
  'recurrent': (translation_recurrent, RECURRENT),
  'tagging': (tagging, TAGGING),
  'tagging_lstm': (tagging, {**TAGGING, 'scheme': 'none', 'model.encoder': 'lstm'}),
  'pairs': (sentence_pairs, PAIRS),
  'esim': (sentence_pairs, {**PAIRS, 'scheme': 'none', 'task.architecture': 'esim'}),
  'one_row': (sentence_pairs, {**PAIRS, 'scheme': 'rope', 'task.architecture': 'one_row'}),
  'parsing': (parsing, {**PARSING, 'scheme': 'concatenated'}),
  'parsing_joined': (parsing, {**PARSING, 'scheme': 'rope', 'model.encoder': 'transformer'}),
}


def get_config(kind: str = 'bytes') -> ConfigDict:
  """One of `KINDS`."""
  module, changes = KINDS[kind]
  config = module.get_config()
  common = {key: value for key, value in COMMON.items() if not _is_absent(config, key)}
  config.update_from_flattened_dict({**common, **changes})
  return config


def _is_absent(config: ConfigDict, key: str) -> bool:
  """Whether a model has no such key: recurrent ones have no heads."""
  section, _, name = key.rpartition('.')
  return section == 'model' and name not in config.model
