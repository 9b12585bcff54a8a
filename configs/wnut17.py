"""WNUT-17 (names of new and rare things in tweets and posts) by TENER over words and letters.

  python train.py --config=configs/wnut17.py --config.task.data=file:PATH

PATH is a folder with train.* and dev.* of lines `word<TAB>tag` (Derczynski et al. 2017,
https://aclanthology.org/W17-4418). The model is that of configs/resume_ner.py with letters for
bigrams, as the paper reads English; give vectors of words as task.vectors if you have them. Table 3
of Yan et al. 2019 (https://arxiv.org/abs/1911.04474) compares what reads the letters:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/wnut17.py --config.task.data=file:PATH --seeds=3 --schemes=tener \\
    --axes=model.characters=cnn,transformer,lstm,none

wikigold takes the same config, `--config.steps=1480`.
"""

from ml_collections import ConfigDict

from configs import resume_ner


def get_config() -> ConfigDict:
  """`resume_ner`, for English words."""
  c = resume_ner.get_config()
  c.steps = 4260  # 20 epochs
  c.task.data = 'file:wnut17'
  c.task.widths = (16, 32, 64)
  c.model.word_width = 100
  c.model.bigram_width = None
  c.model.characters = 'cnn'
  c.model.character_dropout = 0.3
  c.eval_every = c.checkpoint_every = 852
  return c
