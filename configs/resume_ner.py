"""Resume NER (names, schools, titles in Chinese resumes) by TENER at half its width.

  python train.py --config=configs/resume_ner.py --config.task.data=file:PATH

PATH is a folder with train.* and dev.* of lines `letter<TAB>tag` (Zhang and Yang 2018,
https://arxiv.org/abs/1805.02023). Sizes, dropout and optimizer are those of the authors of TENER
(Yan et al. 2019, https://arxiv.org/abs/1911.04474; fastNLP/TENER), but for heads half as wide, and
for their vectors of letters and bigrams: give them as task.vectors and task.bigram_vectors if you
have them. Weibo has one layer, `--config.model.width=64 --config.model.hidden_width=128
--config.model.num_layers=1 --config.optimizer.learning_rate=1e-3`.
"""

from ml_collections import ConfigDict

from configs.tagging_paper import as_authors


def get_config() -> ConfigDict:
  """`tagging`, for Chinese letters."""
  c = as_authors(steps=4800, warmup=48)  # 20 epochs; the authors have 50
  c.task.data = 'file:resume_ner'
  c.task.widths = (16, 32, 64, 128, 192)
  c.model.width = 128
  c.model.hidden_width = 256
  c.model.word_width = 50
  c.model.bigram_width = 50
  c.optimizer.learning_rate = 7e-4
  c.log_every = 100
  c.eval_every = 600
  c.checkpoint_every = 600
  return c
