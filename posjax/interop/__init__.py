"""Hugging Face checkpoints: the scheme of a `config.json`, and weights from and to its layout.

`from_hf` reads the configuration as a plain dict; transformers is not needed. Numbers that a
`config.json` leaves out have the defaults of transformers, where they are known here. What is not
known is refused, by name. `kernel` and `weight` turn projections into ours and back;
`rope.to_split` and `rope.to_interleaved`, applied to a kernel, change the pairs that turn.

What a scheme cannot say is the caller's: T5 does not scale q . k (`attend(..., scale=1.0)`),
DeepSeek scales it by more than 1/sqrt(D) and turns only a part of its heads that it keeps apart,
for which the scheme is.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num, Shaped

from posjax.chain import chain
from posjax.interop.rope import Config, first, rotary
from posjax.scheme import Scheme
from posjax.schemes import alibi, deberta, learned, shaw, t5

_T5 = {'t5', 'mt5', 'umt5', 'switch_transformers'}
_BERT = {'bert', 'albert', 'electra', 'roberta', 'xlm-roberta', 'camembert'}
_LEARNED = {'gpt2', 'openai-gpt', 'gpt_neo', 'gpt_bigcode', 'opt', 'bart', 'mbart'}
_PADDED = {'roberta', 'xlm-roberta', 'camembert'}  # they number tokens from pad_token_id + 1


def from_hf(
  config: Config,
  *,
  layer_type: str | None = None,
  length: int | None = None,
  bidirectional: bool = False,
  interleaved: bool | None = None,
) -> Scheme:
  """The scheme of a Hugging Face configuration.

  Args:
    config: what `config.json` holds; of a model of several parts, its `text_config`.
    layer_type: 'full_attention', 'sliding_attention', ...: where layers differ in their positions.
    length: of the longest text, in tokens, for dynamic NTK and LongRoPE: they depend on it.
    bidirectional: for T5, whose encoder and decoder share one configuration: True for the encoder.
    interleaved: which numbers of a head turn together, for a model_type that is not known here;
      its configuration must then tell its base, and the share of each head that turns.

  Returns:
    A scheme. Its parameters, if it has any, are to be filled with the checkpoint's: a learned
    table with the last `max_length` rows of theirs, T5's with its own, relative keys through
    `relative_keys`, DeBERTa's table with `rel_embeddings` and each layer's `w_k`, `w_q` and `b_q`
    with its pos_key_proj and pos_query_proj (or, of share_att_key, its key_proj and query_proj).

  Raises:
    ValueError: if something in the configuration is not known, or an argument is missing.

  Example:
    >>> from posjax.scheme import places
    >>> places(from_hf({'model_type': 'llama', 'rope_theta': 500000.0}))
    ('query', 'key')
    >>> places(from_hf({'model_type': 'bloom'}))
    ('bias',)
  """
  if 'text_config' in config:
    raise ValueError("The model has several parts; its positions are in config['text_config'].")
  kind = config.get('model_type')
  if kind in _T5:
    return _t5(config, bidirectional)
  if kind in ('bloom', 'mpt') or (kind == 'falcon' and config.get('alibi')):
    return _alibi(config)
  if kind == 'wav2vec2-bert' or kind in _BERT:
    return _bert(config)
  if kind in ('deberta', 'deberta-v2'):
    return _deberta(config)
  if kind in _LEARNED:
    return _table(config)
  return rotary(config, layer_type, length, interleaved)


def kernel(weight: Shaped[Array, 'rows *M'], num_heads: int) -> Shaped[Array, '*M H D']:
  """A projection's weight [H D, M] as our kernel [M, H, D], or its bias [H D] as [H, D].

  Args:
    weight: as `torch.nn.Linear` holds it, of queries, keys or values.
    num_heads: heads of this projection.

  Raises:
    ValueError: if the heads do not divide the rows.

  Example:
    >>> kernel(jnp.arange(6), 2)
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    >>> kernel(jnp.zeros((6, 5)), 2).shape
    (5, 2, 3)
  """
  if num_heads < 1 or weight.shape[0] % num_heads:
    raise ValueError(f'{num_heads} heads must divide the rows, but got {weight.shape[0]}.')
  heads = weight.reshape(num_heads, -1, *weight.shape[1:])
  return jnp.moveaxis(heads, (0, 1), (-2, -1))


def weight(kernel: Shaped[Array, '*M H D']) -> Shaped[Array, 'rows *M']:
  """Our kernel [M, H, D] as a projection's weight [H D, M], or our bias [H, D] as [H D].

  Example:
    >>> weight(jnp.array([[0, 1, 2], [3, 4, 5]]))
    Array([0, 1, 2, 3, 4, 5], dtype=int32)
  """
  heads = jnp.moveaxis(kernel, (-2, -1), (0, 1))
  return heads.reshape(-1, *heads.shape[2:])


def relative_keys(table: Num[Array, 'N D'], config: Config) -> Num[Array, 'Rows D']:
  """A `distance_embedding` as the parameter `keys` of our scheme.

  BERT's rows go by q_pos - k_pos, so that they turn round. Wav2Vec2-BERT's go by k_pos - q_pos, as
  ours, but may reach further back than forward: the last row then stands for all that is farther.

  Args:
    table: theirs.
    config: as for `from_hf`.

  Example:
    >>> config = {'model_type': 'bert', 'position_embedding_type': 'relative_key'}
    >>> relative_keys(jnp.array([[1.0], [2.0], [3.0]]), config)[:, 0]
    Array([3., 2., 1.], dtype=float32)
  """
  if config.get('model_type') in _BERT:
    return table[::-1]
  left, right = _reach(config)
  farthest = max(left, right)
  return table[np.clip(np.arange(-farthest, farthest + 1), -left, right) + left]


# Positions that do not turn.


def _t5(config: Config, bidirectional: bool) -> Scheme:
  return t5.scheme(
    num_buckets=config.get('relative_attention_num_buckets', 32),
    max_distance=config.get('relative_attention_max_distance', 128),
    bidirectional=bidirectional,
    shared=config['model_type'] != 'umt5',
  )


def _alibi(config: Config) -> Scheme:
  made = alibi.scheme()
  if config['model_type'] == 'bloom':
    return made
  if config['model_type'] == 'mpt':
    told = config.get('attn_config') or {}
    if not told.get('alibi', True) or told.get('alibi_bias_max', 8) != 8:
      raise ValueError(f'MPT is known with ALiBi up to a slope of 2^-8 only, but got {told}.')
    return made

  def init(key, dims):  # Falcon's logits are scaled after its biases
    return {'slopes': made.init(key, dims)['slopes'] * dims.head_dim**-0.5}

  return made._replace(init=init)


def _bert(config: Config) -> Scheme:
  wave = config['model_type'] == 'wav2vec2-bert'
  named = 'position_embeddings_type' if wave else 'position_embedding_type'
  found = config.get(named, 'relative_key' if wave else 'absolute')
  if found == 'relative_key':
    return shaw.scheme(max_distance=max(_reach(config)), values=False)
  if found == 'absolute' and not wave:
    return _table(config)
  raise ValueError(f"There is no scheme for {config['model_type']}'s {named} {found!r}.")


def _deberta(config: Config) -> Scheme:
  """Both versions; the third says of itself that it is the second."""
  absolute = [_table(config)] if config.get('position_biased_input', True) else []
  if not config.get('relative_attention', False):
    return chain(*absolute)
  terms = config.get('pos_att_type') or ()
  terms = set(terms.lower().split('|') if isinstance(terms, str) else terms)
  if terms - {'c2p', 'p2c'}:
    raise ValueError(f"DeBERTa's pos_att_type is known to hold c2p and p2c, but got {terms}.")
  farthest, buckets = config.get('max_relative_positions', -1), config.get('position_buckets', -1)
  relative = deberta.scheme(
    max_distance=config.get('max_position_embeddings', 512) if farthest < 1 else farthest,
    buckets=None if buckets < 1 else buckets,
    c2p='c2p' in terms,
    p2c='p2c' in terms,
    normalized='layer_norm' in config.get('norm_rel_ebd', 'none').lower().split('|'),
  )
  return chain(*absolute, relative)


def _reach(config: Config) -> tuple[int, int]:
  """The offsets that a table of relative keys holds, backward and forward."""
  if config['model_type'] == 'wav2vec2-bert':
    left = config.get('left_max_position_embeddings', 64)
    return left, config.get('right_max_position_embeddings', 8)
  return (config.get('max_position_embeddings', 512) - 1,) * 2


def _table(config: Config) -> Scheme:
  length = first(config, 'n_positions', 'max_position_embeddings')
  if length is None:
    raise ValueError('A learned table needs n_positions or max_position_embeddings.')
  unused = config.get('pad_token_id', 1) + 1 if config['model_type'] in _PADDED else 0
  return learned.scheme(max_length=length - unused)
