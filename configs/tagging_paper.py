"""CoNLL 2003 at the size of TENER (Yan et al. 2019, https://arxiv.org/abs/1911.04474).

  python train.py --config=configs/tagging_paper.py --config.task.data=file:PATH \\
    --config.task.vectors=glove.6B.100d.txt

The sizes are those of the authors' code (fastNLP/TENER): 14 heads of 128, 2 layers, letters by a
convolution, SGD with momentum, batches of 16, 100 epochs, a warmup of 1 % and a linear decay to 0,
gradients cut to 5. For OntoNotes in English they have 8 heads of 96, letters by a Transformer, and
a learning rate of 7e-4. The checkpoint that is best on the held-out data is the one that is scored,
as theirs is. This was not run here.
"""

from ml_collections import ConfigDict

from configs import tagging


def as_authors(steps: int, warmup: int) -> ConfigDict:
  """`tagging` with what the authors' runs have in common: batches, dropout and the optimizer."""
  c = tagging.get_config()
  c.steps = steps
  c.batch_size = 16
  c.task.zero_digits = True
  c.model.dropout_rate = 0.15
  c.model.vector_dropout = 0.5
  c.model.readout_dropout = 0.4
  c.optimizer.name = 'sgd'
  c.optimizer.momentum = 0.9
  c.optimizer.schedule = 'linear'
  c.optimizer.warmup_steps = warmup
  c.optimizer.final_fraction = 0.0
  c.optimizer.clip_norm = None
  c.optimizer.clip_value = 5.0
  return c


def get_config() -> ConfigDict:
  """The small config at the paper's size."""
  c = as_authors(steps=87_800, warmup=878)  # 100 epochs of 14,041 sentences
  c.task.data = 'file:conll2003'
  c.task.widths = (16, 32, 64, 128)
  c.task.min_count = 1
  c.model.width = 14 * 128
  c.model.num_heads = 14
  c.model.hidden_width = 2 * 14 * 128
  c.model.word_width = 100
  c.model.characters = 'cnn'
  c.model.character_dropout = 0.3
  c.optimizer.learning_rate = 9e-4
  c.checkpoint.use = 'best'
  c.eval_every = c.checkpoint_every = 878
  return c
