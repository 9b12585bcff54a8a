"""A checkpoint of another library, trained further, with its own positions or with others.

  python train.py --config=configs/checkpoint.py --config.start_from=FOLDER \
    --config.scheme='yarn(factor=8.0, original_length=4096)' --config.task.data=file:TEXT

The folder has `config.json`, safetensors and `tokenizer.json`, as `hf download` makes it. The keys
that are not here are those of configs/default.py.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  c = default.get_config()
  c.scheme = 'own'  # or a line, which gets its base from the checkpoint; 'own|none' repeats
  c.steps = 40
  c.batch_size = 4
  c.eval_every = 40
  c.checkpoint_every = 20

  c.task = ConfigDict()
  c.task.name = 'checkpoint'
  c.task.data = 'python_docs'
  c.task.length = 2048  # tokens per row
  c.task.eval_factors = (1,)  # evaluation lengths, in training lengths
  c.task.eval_tokens = 32_768
  c.task.prompt = 'def '
  c.task.sample_length = 100

  c.model = ConfigDict()  # all else is what the checkpoint says
  c.model.dtype = 'float32'  # or 'bfloat16': of products; parameters are float32 either way
  c.model.dropout_rate = 0.0
  c.model.remat = False
  c.model.remat_policy = placeholder(str)
  c.model.length = placeholder(int)  # the longest text, for dynamic_ntk and longrope

  c.optimizer.learning_rate = 2e-5
  c.optimizer.warmup_steps = 5
  c.optimizer.weight_decay = 0.0
  return c
