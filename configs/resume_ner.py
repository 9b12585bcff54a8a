"""Resume NER (names, schools, titles in Chinese resumes) by TENER at half its width.

  python train.py --config=configs/resume_ner.py --config.task.data=file:PATH

PATH is a folder with train.* and dev.* of lines `letter<TAB>tag` (Zhang and Yang 2018,
https://arxiv.org/abs/1805.02023). Sizes and dropout are those of the authors of TENER (Yan et al.
2019, https://arxiv.org/abs/1911.04474; fastNLP/TENER), but for heads half as wide, and for their
vectors of letters and bigrams: give them as task.vectors and task.bigram_vectors if you have them.
They train by SGD with momentum. AdamW reached a higher F1 on a cut of the training file (RESULTS,
"Tagging"), so this config takes it.
"""

from ml_collections import ConfigDict

from configs.tagging_paper import as_authors


def get_config() -> ConfigDict:
  """`tagging`, for Chinese letters."""
  c = as_authors(steps=12_000, warmup=200)  # 50 epochs, as theirs
  c.task.data = 'file:resume_ner'
  c.task.widths = (16, 32, 64, 128, 192)
  c.model.width = 128
  c.model.hidden_width = 256
  c.model.word_width = 50
  c.model.bigram_width = 50
  c.optimizer.name = 'adamw'
  c.optimizer.momentum = None
  c.optimizer.learning_rate = 1e-3
  c.optimizer.schedule = 'cosine'
  c.optimizer.final_fraction = 0.02
  c.optimizer.clip_value = None
  c.optimizer.clip_norm = 1.0
  c.log_every = 100
  c.eval_every = 1200
  c.checkpoint_every = 1200
  return c
