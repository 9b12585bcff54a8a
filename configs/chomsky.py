"""The fifteen tasks of the Chomsky hierarchy, with an encoder that fills in empty places.

  python train.py --config=configs/chomsky.py --config.task.data=synthetic:bucket_sort

After Ruoss et al. 2023, https://arxiv.org/abs/2305.16843, whose score is the mean of
`token_accuracy` over the unseen lengths (`unseen` in results.json), at a size for two CPU cores:
under two minutes. The size of that paper is configs/chomsky_paper.py. There a batch has one
length; here, rows of one batch differ.

Regular: even_pairs, modular_arithmetic, parity_check, cycle_navigation. Deterministic context-free:
stack_manipulation, reverse_string, modular_arithmetic_brackets, solve_equation. Context-sensitive:
duplicate_string, missing_duplicate, odds_first, binary_addition, binary_multiplication,
compute_sqrt, bucket_sort.
"""

from ml_collections import ConfigDict

from configs import algorithmic


def get_config() -> ConfigDict:
  """The algorithmic config as an encoder."""
  c = algorithmic.get_config()
  c.scheme = 'randomized(max_length=256)+rope'
  c.task.data = 'synthetic:bucket_sort'
  c.task.longest = 10
  c.task.eval_factors = ()
  c.task.eval_lengths = tuple(range(10, 31))
  c.model.causal = False
  c.model.width = 64
  c.model.num_heads = 4
  c.optimizer.weight_decay = 0.0
  c.compare.quality = 'token_accuracy'
  return c
