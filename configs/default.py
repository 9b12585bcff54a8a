"""A small decoder on the text that every Python installation carries: learn, then extrapolate.

  python train.py --config=configs/default.py

Five minutes on two CPU cores, to 2.23 bits per byte on held-out modules (RESULTS.md). Every key of
a language model is here: another config is `default.get_config()` and the lines that differ.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """Every key, with its meaning."""
  c = ConfigDict()
  c.scheme = 'alibi'  # as posjax.get reads it; 'rope|rope|none' repeats over the layers
  c.seed = 0  # of parameters, data order, dropout and ids
  c.steps = 350  # updates
  c.batch_size = 16  # rows per update, all devices together
  c.accumulate = 1  # parts of a batch whose gradients are added up one after the other
  c.start_from = placeholder(str)  # folder of a run whose weights this one begins with
  c.skip_not_finite = 0  # updates with a loss or gradient that is not finite that a run may skip

  c.task = ConfigDict()
  c.task.name = 'language_modelling'  # a file in posjax/experiment/tasks
  c.task.data = 'python_docs'  # or 'file:PATH', 'tfds:NAME', 'text8:PATH', ..
  c.task.tokens = 'bytes'  # or 'characters', 'words', 'sentencepiece'
  c.task.vocab_size = placeholder(int)  # of the last three: all there are, if not set
  c.task.length = 256  # tokens per row
  c.task.eval_factors = (1, 2, 4, 8)  # evaluation lengths, in training lengths
  c.task.eval_tokens = 32_768  # held-out tokens per evaluation length
  c.task.eval_window = False  # also score each length with every layer seeing task.length tokens
  c.task.memory = 0  # tokens that each layer remembers of earlier segments, in training; 0: none
  c.task.eval_lengths = ()  # with a memory, instead of eval_factors: what a token sees in a layer
  c.task.eval_segment = placeholder(int)  # with a memory: tokens read at once; task.length if unset
  c.task.eval_scheme = placeholder(str)  # with a memory: another scheme of the same parameters
  c.task.prompt = 'def '  # what the sample at the end continues
  c.task.sample_length = 200  # tokens of it

  c.model = ConfigDict()
  c.model.num_layers = 4
  c.model.width = 192
  c.model.num_heads = 6
  c.model.num_kv_heads = placeholder(int)  # fewer than num_heads: grouped-query attention
  c.model.ff_width = placeholder(int)  # 4 x width unless set
  c.model.causal = True
  c.model.window = placeholder(object)  # sliding window in tokens; a tuple repeats over layers
  c.model.norm = 'LayerNorm'  # or 'RMSNorm', 'BatchNorm'
  c.model.pre_norm = True
  c.model.activation = 'gelu'  # a name in jax.nn
  c.model.gated = False  # True with 'silu': SwiGLU
  c.model.dropout_rate = 0.0
  c.model.tied = True  # the readout is the embedding
  c.model.query_key = 'free'  # or one orthogonal matrix: of each head 'heads', of all 'joint'
  c.model.remat = False  # recompute activations in the backward pass
  c.model.remat_policy = placeholder(str)  # what remat keeps: 'dots_saveable', ..; or nothing
  c.model.dtype = 'float32'  # or 'bfloat16': of products; parameters are float32 either way
  c.model.unroll = 4  # layers compiled as one: faster on a CPU; 1 for deep models, and for remat

  c.attention = ConfigDict()
  c.attention.implementation = placeholder(str)  # as posjax.attend takes it; it chooses unless set

  c.optimizer = ConfigDict()
  c.optimizer.name = 'adamw'  # or 'sgd'
  c.optimizer.schedule = 'cosine'  # or 'linear', 'constant', 'vaswani' (inverse square root)
  c.optimizer.learning_rate = 3e-3  # at the end of the warmup
  c.optimizer.warmup_steps = 50  # linear
  c.optimizer.final_fraction = 0.1  # of the learning rate, at the last step of cosine and linear
  c.optimizer.b1 = 0.9  # of adamw
  c.optimizer.b2 = 0.99  # of adamw
  c.optimizer.momentum = placeholder(float)  # of sgd; none unless set
  c.optimizer.weight_decay = 0.1
  c.optimizer.clip_norm = 1.0  # of all gradients together; None, or inf in a command: no limit
  c.optimizer.clip_value = placeholder(float)  # of each number of a gradient; no limit unless set

  c.checkpoint = ConfigDict()
  c.checkpoint.keep = 2  # the last so many, every checkpoint_every steps, stay on the disk
  c.checkpoint.use = 'last'  # the model that is scored at the end and asked; or 'best', 'mean'
  c.checkpoint.metric = placeholder(str)  # of 'best'; the headline's first metric unless set
  c.checkpoint.mean_of = placeholder(int)  # of 'mean': averages the parameters of the last so many

  c.mesh = ConfigDict()  # devices: the product of these
  c.mesh.data = 1
  c.mesh.fsdp = 1
  c.mesh.tensor = 1
  c.mesh.context = 1  # more with attention.implementation='ring' or 'all_gather'

  c.compare = ConfigDict()  # for comparisons alone
  c.compare.quality = ''  # a metric, as 'loss' or 'accuracy'; '' is the task's first one
  c.compare.learned_by = ''  # the metric by which a run has learned; '' is quality
  c.compare.learned = 0.5  # of the way from the loss of the best constant answer to 0
  c.compare.margin = 0.02  # bits: two schemes that differ by less are equal

  c.log_every = 10  # steps
  c.profile = 0  # steps that jax.profiler traces into the work folder
  c.eval_every = 100
  c.checkpoint_every = 100
  return c
