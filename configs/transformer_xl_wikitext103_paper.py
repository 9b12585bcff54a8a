"""Transformer-XL on words of WikiText-103, at the size of the authors' standard model.

  python train.py --config=configs/transformer_xl_wikitext103_paper.py --config.task.data=file:PATH

Dai et al. 2019, https://arxiv.org/abs/1901.02860, table 1 (perplexity 24.0 on the test set, 151 M
parameters), and the scripts of their code: 16 layers of width 410, 200,000 steps of 60 segments of
150 words and a memory of as many; judged in segments of 64 with attention to 640 words, distances
clamped at 400. They have an adaptive softmax over 267,735 words with narrower embeddings of rare
ones; here every word has an embedding of the model's width and a logit, which are fewer parameters
but more work. For an accelerator: not run here.
"""

from ml_collections import ConfigDict

from configs import transformer_xl_text8_paper


def get_config() -> ConfigDict:
  """The paper's text8 config on words, at its other size."""
  c = transformer_xl_text8_paper.get_config()
  c.steps = 200_000
  c.batch_size = 60
  c.task.data = 'file:wikitext103'
  c.task.tokens = 'words'
  c.task.length = 150
  c.task.memory = 150
  c.task.eval_lengths = (150, 300, 640)
  c.task.eval_segment = 64
  c.task.eval_scheme = 'transformer_xl(max_distance=400)'
  c.task.eval_tokens = 192_000
  c.task.prompt = 'the history of'
  c.model.num_layers = 16
  c.model.width = 410
  c.model.num_heads = 10
  c.model.ff_width = 2100
  return c
