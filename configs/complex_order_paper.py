"""Text classification at the size of Wang et al. 2020, https://arxiv.org/abs/1912.12333.

  python train.py --config=configs/complex_order_paper.py --config.task.data=file:PATH \\
    --config.task.vectors=GoogleNews.txt --config.model.encoder=cnn

Section 4.1 there: word2vec vectors of 300 numbers (none for the Transformer), hidden layers of 120
or 128, 64 or 128 filters of sizes 3, 4 and 5; batches of 32, 64 or 128, learning rates of 1e-3 or
1e-4, L2 of 0, 1e-3 or 1e-4. The Transformer: one layer, a norm after each part,
`--config.model.width=256 --config.model.hidden_width=512 --config.model.num_heads=8`. Ten folds for
MR, CR, SUBJ and MPQA, as in configs/classification.py. Here L2 is AdamW's decay, which is not the
same, and what is read of a Transformer and of an LSTM is the last state, as in the authors' code
(iclr-complex-order/complex-order 4c4ec246); the paper does not say. Not run here.
"""

from ml_collections import ConfigDict

from configs import classification


def get_config() -> ConfigDict:
  """The small config at the paper's size."""
  c = classification.get_config()
  c.steps = 6000  # about 20 epochs of MR
  c.batch_size = 32
  c.task.widths = (16, 32, 64, 128)
  c.task.min_count = 1
  c.model.encoder = 'cnn'
  c.model.width = 300
  c.model.hidden_width = 128
  c.model.num_heads = 6  # of 300; 8 of 256
  c.model.pooling = 'last'
  c.model.pre_norm = False
  c.model.dropout_rate = 0.5
  c.optimizer.learning_rate = 1e-3
  c.optimizer.final_fraction = 1.0
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 1e-3
  c.eval_every = c.checkpoint_every = 1000
  return c
