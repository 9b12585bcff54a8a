"""How far does a language model reach? Train at L = 256, test at L to 16 L, with a sliding window.

  python train.py --config=configs/length_generalization.py --config.scheme=rope

The default, evaluated further. Each length is scored twice: with all tokens in sight, and with the
same weights and every layer attending to the last 256 tokens only. A scheme that reaches further
scores better than its window; one that breaks, worse. The loss by position is in results.json.
"""

from configs import default


def get_config():
  """The default, with longer tests and the window beside them."""
  c = default.get_config()
  c.task.eval_factors = (1, 2, 4, 8, 16)
  c.task.eval_window = True
  return c
