"""An algorithm at short lengths, tested at longer ones: which encodings find the rule?

  python train.py --config=configs/algorithmic.py --config.task.data=synthetic:copy

Setting after Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466 (a decoder that answers after
the question), at a size for two CPU cores: under three minutes, in which copying without positions
gets 92 % of the answers of length 16 right, and none of 32 (RESULTS.md). The size of that paper is
configs/algorithmic_paper.py.

Algorithms of such papers: copy, copy_repeats, copy_unique, reverse, sort, addition, addition_hints,
summation, parity, dyck, associative_recall, needle_retrieval; those of configs/chomsky.py can be
asked here too.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config() -> ConfigDict:
  """The default, with another task and a model for short rows."""
  c = default.get_config()
  c.scheme = 'none'
  c.steps = 1000
  c.batch_size = 64
  c.task = ConfigDict()
  c.task.name = 'algorithmic'
  c.task.data = 'synthetic:copy'  # or 'file:PATH', questions and answers (configs/scan.py)
  c.task.shortest = placeholder(
    int
  )  # training lengths, as the algorithm counts; the least there is
  c.task.longest = 16
  c.task.eval_factors = (1, 2, 4)  # evaluation lengths, in the longest training length
  c.task.eval_lengths = ()  # or themselves: (16, 17, 20, 64), and no factors: ()
  c.task.eval_examples = 128  # questions per evaluation length
  c.task.greedy = False  # also judge what the decoder says by itself
  c.model.num_layers = 3
  c.model.width = 128
  c.model.num_heads = 4
  c.optimizer.learning_rate = 1e-3
  c.compare.learned = 0.9  # of all answers of the training lengths
  c.compare.margin = 0.5  # points
  c.eval_every = 250
  c.checkpoint_every = 250
  return c
