"""WikiText-2 with the model that Dai et al. 2019 trained on WikiText-103.

  python train.py --config=configs/wikitext2_paper.py --config.task.data=file:PATH

The 16 layers of the base model of https://arxiv.org/abs/1901.02860 (Transformer-XL), 200,000 steps
of 60 rows of 150 words, Adam at 2.5e-4 to 0 on a cosine; every row on its own, without the memory
of earlier ones that the paper adds. A folder with wiki.train.tokens and wiki.valid.tokens of
WikiText-103 is read as well; the paper has a perplexity of 24.0 there (table 1; with an adaptive
softmax, which is not here). On WikiText-2, 50 times smaller, so large a model overfits: fewer steps
and more dropout. For an accelerator: not run here.
"""

from ml_collections import ConfigDict

from configs import wikitext2


def get_config() -> ConfigDict:
  """The small config at the paper's size."""
  c = wikitext2.get_config()
  c.steps = 200_000
  c.batch_size = 60
  c.task.length = 150
  c.task.eval_factors = (1, 2, 4)
  c.model.num_layers = 16
  c.model.width = 410
  c.model.num_heads = 10
  c.model.ff_width = 2100
  c.model.dropout_rate = 0.1
  c.model.pre_norm = False
  c.model.activation = 'relu'
  c.model.unroll = 1
  c.optimizer.learning_rate = 2.5e-4
  c.optimizer.warmup_steps = 0
  c.optimizer.final_fraction = 0.0
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 0.0
  c.optimizer.clip_norm = 0.25
  c.log_every = 200
  c.eval_every = c.checkpoint_every = 4000
  return c
