"""Weibo NER (persons, places and organizations in Chinese posts) by a small TENER.

  python train.py --config=configs/weibo_ner.py --config.task.data=file:PATH

PATH is a folder with train.* and dev.* of lines `letter<TAB>tag` (Peng and Dredze 2015,
https://aclanthology.org/D15-1064). As the authors of TENER (Yan et al. 2019,
https://arxiv.org/abs/1911.04474) have it, one layer where Resume has two, at half their width.
Table 2 of the paper on these two data sets, `rope` and `tener(even=True)` beside it:

  XLA_FLAGS=--xla_cpu_multi_thread_eigen=false python -m posjax.experiment.compare \\
    --config=configs/weibo_ner.py --config.task.data=file:PATH --seeds=5 --baseline=tener \\
    --schemes='tener,tener(scaled=True),tener(even=True),sinusoidal,shaw,rope'

and with configs/resume_ner.py likewise. The BiLSTM is --config.model.encoder=lstm --schemes=none;
--config.model.hidden_width=40 (68 for Resume) gives it about as many parameters.
"""

from ml_collections import ConfigDict

from configs import resume_ner


def get_config() -> ConfigDict:
  """`resume_ner`, for shorter training and a smaller model."""
  c = resume_ner.get_config()
  c.steps = 4250  # 50 epochs
  c.task.data = 'file:weibo_ner'
  c.model.width = 64
  c.model.hidden_width = 128
  c.model.num_layers = 1
  c.eval_every = c.checkpoint_every = 850
  return c
