"""The fifteen tasks of the Chomsky hierarchy, with an encoder that fills in empty places.

  python train.py --config=configs/chomsky.py --config.task.data=synthetic:bucket_sort
  python train.py --config=configs/chomsky.py:paper --config.task.data=synthetic:bucket_sort

After Ruoss et al. 2023, https://arxiv.org/abs/2305.16843, whose score is the mean of
`token_accuracy` over the unseen lengths (`unseen` in results.json), at a size for two CPU cores.
`:paper` is the size of that paper, for an accelerator: five layers of width 64, batches of 128,
lengths 1 to 40, tested at 41 to 500. There a batch has one length; here, rows of one batch differ.

Regular: even_pairs, modular_arithmetic, parity_check, cycle_navigation. Deterministic context-free:
stack_manipulation, reverse_string, modular_arithmetic_brackets, solve_equation. Context-sensitive:
duplicate_string, missing_duplicate, odds_first, binary_addition, binary_multiplication,
compute_sqrt, bucket_sort.
"""

from ml_collections import ConfigDict

from configs import algorithmic


def get_config(size: str = 'small') -> ConfigDict:
  """The algorithmic config as an encoder; `size` is 'small' or 'paper'."""
  c = algorithmic.get_config()
  c.scheme = 'randomized(max_length=256)+rope'
  c.task.data = 'synthetic:bucket_sort'
  c.task.longest = 10
  algorithmic.judge(c, eval_lengths=tuple(range(10, 31)))
  c.model.causal = False
  c.model.width = 64
  c.model.num_heads = 4
  c.optimizer.weight_decay = 0.0
  sizes = {'small': lambda c: c, 'paper': _paper}
  if size not in sizes:
    raise ValueError(f'The size must be one of {", ".join(sizes)}, but got {size!r}.')
  return sizes[size](c)


def _paper(c: ConfigDict) -> ConfigDict:
  """Ruoss et al. 2023, section 4 and DeepMind's experiments/example.py."""
  c.scheme = 'randomized(max_length=2048)+rope'
  c.steps = 2_000_000
  c.batch_size = 128
  c.task.longest = 40
  algorithmic.judge(c, eval_lengths=tuple(range(40, 501)))
  c.task.eval_examples = 512
  c.model.num_layers = 5
  c.model.num_heads = 8
  c.model.activation = 'relu'
  c.model.pre_norm = False
  c.model.dropout_rate = 0.1
  c.model.tied = False
  c.optimizer.learning_rate = 1e-3
  c.optimizer.warmup_steps = 0
  c.optimizer.final_fraction = 1.0
  c.optimizer.b2 = 0.999
  c.eval_every = c.checkpoint_every = 20_000
  return c
