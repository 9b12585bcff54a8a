"""An algorithm at short lengths, tested at longer ones: which encodings find the rule?

  python train.py --config=configs/algorithmic.py --config.task.data=synthetic:copy
  python train.py --config=configs/algorithmic.py:paper --config.scheme=none

Setting after Kazemnejad et al. 2023, https://arxiv.org/abs/2305.19466 (a decoder that answers after
the question), at a size for two CPU cores: under three minutes, in which copying without positions
gets 92 % of the answers of length 16 right, and none of 32 (RESULTS.md). `:paper` is the size of
that paper, for an accelerator: 12 layers of width 768, 40,000 steps of 64 questions of lengths 1 to
20, every length to 40 tested.

Algorithms of such papers: copy, copy_repeats, copy_unique, reverse, sort, addition, addition_hints,
summation, parity, dyck, associative_recall, needle_retrieval; those of configs/chomsky.py can be
asked here too.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import default


def get_config(size: str = 'small') -> ConfigDict:
  """The default, with another task and a model for short rows; `size` is 'small' or 'paper'."""
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
  c.task.eval_lengths = placeholder(object)  # or themselves: (16, 17, .., 64), with factors None
  c.task.eval_examples = 128  # questions per evaluation length
  c.task.greedy = False  # also judge what the decoder says by itself
  c.model.num_layers = 3
  c.model.width = 128
  c.model.num_heads = 4
  c.optimizer.learning_rate = 1e-3
  c.eval_every = 250
  c.checkpoint_every = 250
  sizes = {'small': lambda c: c, 'paper': _paper}
  if size not in sizes:
    raise ValueError(f'The size must be one of {", ".join(sizes)}, but got {size!r}.')
  return sizes[size](c)


def judge(c: ConfigDict, *, eval_lengths: tuple[int, ...] | None) -> None:
  """Tests at these lengths instead of factors; None: at all that a file has."""
  with c.ignore_type():
    c.task.eval_factors = None
    c.task.eval_lengths = eval_lengths


def _paper(c: ConfigDict) -> ConfigDict:
  """Kazemnejad et al. 2023, section 3 and appendix D."""
  c.steps = 40_000
  c.task.longest = 20
  judge(c, eval_lengths=tuple(range(20, 41)))
  c.task.eval_examples = 512
  c.model.num_layers = 12
  c.model.width = 768
  c.model.num_heads = 12
  c.model.dropout_rate = 0.1
  c.optimizer.learning_rate = 3e-5
  c.optimizer.warmup_steps = 2400  # 6 % of the steps
  c.optimizer.final_fraction = 0.0
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 0.05
  c.eval_every = c.checkpoint_every = 2000
  return c
