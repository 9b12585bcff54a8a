"""A checkpoint is trained further, asked without its folder, and saved."""

import shutil

import pytest

import posjax.experiment
from configs import checkpoint
from posjax import interop
from posjax.experiment.ask import ask
from posjax.experiment.run import train

LLAMA = {
  **{'model_type': 'llama', 'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 1},
  **{'num_attention_heads': 2, 'num_key_value_heads': 1, 'vocab_size': 257, 'rope_theta': 1e4},
  **{'rms_norm_eps': 1e-6, 'max_position_embeddings': 32, 'tie_word_embeddings': True},
}


def config_of(root):
  (root / 'tokens').mkdir()
  interop.byte_level(root / 'tokens')
  interop.save(interop.create(LLAMA), root / 'llama', tokenizer=root / 'tokens')
  (root / 'text').mkdir()
  for name in ('train', 'valid'):
    (root / 'text' / f'{name}.txt').write_text('A line about a river and a mill.\n' * 60)
  config = checkpoint.get_config()
  config.start_from, config.task.data = str(root / 'llama'), f'file:{root / "text"}'
  config.scheme = 'yarn(factor=2.0, original_length=32)'
  config.steps, config.batch_size, config.eval_every, config.checkpoint_every = 2, 2, 2, 2
  config.task.length, config.task.eval_tokens, config.task.sample_length = 32, 64, 3
  config.optimizer.learning_rate, config.optimizer.warmup_steps = 1e-2, 0
  return config


def test_a_checkpoint_is_trained_asked_without_its_folder_and_saved(tmp_path):
  config, place = config_of(tmp_path), tmp_path / 'run'
  before = interop.load(tmp_path / 'llama').embed.table.embedding[...]
  result = train(config, place)
  after = result.model.embed.table.embedding[...]
  assert 0 < abs(after - before).max() < 0.1  # two small steps from the checkpoint's weights
  shutil.rmtree(tmp_path / 'llama')
  assert ask(place, ['A line'])[0].plain.startswith('A line')
  loaded = posjax.experiment.load(place)
  interop.save(loaded.model, tmp_path / 'saved', tokenizer=tmp_path / 'tokens')
  assert repr(interop.load(tmp_path / 'saved').schemes[0]) == config.scheme


def test_no_folder_and_a_pattern_that_does_not_fit_are_refused(tmp_path):
  config = config_of(tmp_path)
  config.start_from = None
  with pytest.raises(ValueError, match='start_from must be the folder of a checkpoint'):
    train(config, tmp_path / 'run')
  config.start_from, config.scheme = str(tmp_path / 'llama'), 'own|own'
  with pytest.raises(ValueError, match='as many as divide the 1 layers, but got 2'):
    train(config, tmp_path / 'run')
