"""Hugging Face checkpoints: the scheme of a `config.json`, and weights from and to its layout.

`from_hf` reads the configuration as a plain dict; transformers is not needed. Numbers that a
`config.json` leaves out have the defaults of transformers, where these are known here. A key or a
model type that is not known is refused by its name. `kernel` converts the weights of a projection
to the layout of posjax, and `weight` converts them back. `rope.to_split` and `rope.to_interleaved`,
applied to a kernel, change which dimensions form a pair. `fields` reads the fields of a
configuration, and `layers` refuses models whose layers differ in a way that is not read.

The scheme does not contain everything that a model does with its logits. T5 does not scale q . k:
use `attend(..., scale=1.0)`. DeepSeek scales it by more than 1/sqrt(D), and keeps the dimensions
that are rotated apart from the others: the scheme is for the rotated ones alone.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num, Shaped

from posjax.arguments import Size, Whole, read, shown
from posjax.chain import chain
from posjax.interop.fields import Config, Fields, read_config
from posjax.interop.rope import rotary
from posjax.scheme import Scheme
from posjax.schemes import alibi, deberta, learned, shaw, t5

_T5 = {'t5', 'mt5', 'umt5', 'switch_transformers'}
_BERT = {'bert', 'albert', 'electra', 'roberta', 'xlm-roberta', 'camembert'}
_LEARNED = {'gpt2', 'openai-gpt', 'gpt_neo', 'gpt_bigcode', 'opt', 'bart', 'mbart'}
_PADDED = {'roberta', 'xlm-roberta', 'camembert'}  # these count positions from pad_token_id + 1


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
    config: the contents of `config.json`, or of its `text_config` for a model of several parts.
    layer_type: the type of a layer, such as 'full_attention' or 'sliding_attention', for models
      whose layers differ in their positions.
    length: the length of the longest text, in tokens, for dynamic NTK and LongRoPE, which depend on
      it.
    bidirectional: for T5, whose encoder and decoder share one configuration: True for the encoder.
    interleaved: whether pairs of dimensions are neighbours, for a model_type that is not known
      here. The configuration must then have the base, and the share of each head that is rotated.

  Returns:
    A scheme. If it has parameters, fill them from the checkpoint: a learned table with the last
    `max_length` rows of the checkpoint's; T5's table with T5's; relative keys by `relative_keys`;
    DeBERTa's table with `rel_embeddings`, and `w_k`, `w_q` and `b_q` of each layer with its
    pos_key_proj and pos_query_proj (or with its key_proj and query_proj for share_att_key).

  Raises:
    ValueError: if the configuration has something that is not known or not of its type, or an
      argument is missing.
    TypeError: if the configuration is no dict, or another argument not of its type.

  Example:
    >>> from posjax.scheme import places
    >>> places(from_hf({'model_type': 'llama', 'rope_theta': 500000.0}))
    ('query', 'key')
    >>> places(from_hf({'model_type': 'bloom'}))
    ('bias',)
  """
  fields = read_config(config)
  layer_type = read(layer_type, str | None, 'layer_type')
  length = read(length, Size | None, 'length')
  bidirectional = read(bidirectional, bool, 'bidirectional')
  interleaved = read(interleaved, bool | None, 'interleaved')
  if 'text_config' in config:
    raise ValueError("The model has several parts; its positions are in config['text_config'].")
  kind = fields.get('model_type', str)
  if kind in _T5:
    return _t5(fields, bidirectional)
  if kind in ('bloom', 'mpt') or (kind == 'falcon' and fields.get('alibi', bool)):
    return _alibi(fields)
  if kind == 'wav2vec2-bert' or kind in _BERT:
    return _bert(fields)
  if kind in ('deberta', 'deberta-v2'):
    return _deberta(fields)
  if kind in _LEARNED:
    return _table(fields)
  return rotary(fields, layer_type, length, interleaved)


def kernel(weight: Shaped[Array, 'rows *M'], num_heads: int) -> Shaped[Array, '*M H D']:
  """The weight [H D, M] of a projection as a kernel [M, H, D], or its bias [H D] as [H, D].

  Args:
    weight: the weight of the projection of queries, keys or values, in the layout of
      `torch.nn.Linear`.
    num_heads: the number of heads of this projection.

  Raises:
    ValueError: if the heads do not divide the rows.
    TypeError: if the weight is no array, or the number of heads no integer.

  Example:
    >>> kernel(jnp.arange(6), 2)
    Array([[0, 1, 2],
           [3, 4, 5]], dtype=int32)
    >>> kernel(jnp.zeros((6, 5)), 2).shape
    (5, 2, 3)
  """
  num_heads = read(num_heads, Size, 'The number of heads')
  _check_array(weight, 'The weight of a projection', 1)
  if weight.shape[0] % num_heads:
    raise ValueError(f'{num_heads} heads must divide the rows, but got {weight.shape[0]}.')
  heads = weight.reshape(num_heads, -1, *weight.shape[1:])
  return jnp.moveaxis(heads, (0, 1), (-2, -1))


def weight(kernel: Shaped[Array, '*M H D']) -> Shaped[Array, 'rows *M']:
  """A kernel [M, H, D] as the weight [H D, M] of a projection, or a bias [H, D] as [H D].

  Raises:
    TypeError: if the kernel is no array.
    ValueError: if it has less than two axes.

  Example:
    >>> weight(jnp.array([[0, 1, 2], [3, 4, 5]]))
    Array([0, 1, 2, 3, 4, 5], dtype=int32)
  """
  _check_array(kernel, 'A kernel', 2)
  heads = jnp.moveaxis(kernel, (-2, -1), (0, 1))
  return heads.reshape(-1, *heads.shape[2:])


def relative_keys(table: Num[Array, 'N D'], config: Config) -> Num[Array, 'Rows D']:
  """The table `distance_embedding` of a checkpoint as the parameter `keys` of the scheme `shaw`.

  BERT's rows are sorted by q_pos - k_pos, so that their order is reversed. Wav2Vec2-BERT's rows are
  sorted by k_pos - q_pos, as those of `shaw`, but may reach further back than forward. The last row
  is then repeated for all farther distances.

  Args:
    table: the table of the checkpoint.
    config: see `from_hf`.

  Raises:
    ValueError: if the configuration is not that of a model with relative keys, or the table has
      another number of rows.
    TypeError: if the table is no array, or the configuration no dict.

  Example:
    >>> config = {'model_type': 'bert', 'position_embedding_type': 'relative_key'}
    >>> config['max_position_embeddings'] = 2
    >>> relative_keys(jnp.array([[1.0], [2.0], [3.0]]), config)[:, 0]
    Array([3., 2., 1.], dtype=float32)
  """
  fields = read_config(config)
  kind = fields.get('model_type', str)
  if kind != 'wav2vec2-bert' and kind not in _BERT:
    raise ValueError(f'Relative keys are those of BERT and of wav2vec2-bert, but got {kind!r}.')
  left, right = _reach(fields)
  _check_array(table, 'A table of relative keys', 2)
  if table.shape[0] != left + right + 1:
    raise ValueError(
      f'A table of relative keys must have {left + right + 1} rows, as its configuration says, but '
      f'got shape {table.shape}.'
    )
  if kind in _BERT:
    return table[::-1]
  farthest = max(left, right)
  return table[np.clip(np.arange(-farthest, farthest + 1), -left, right) + left]


def _check_array(x: Array, name: str, axes: int) -> None:
  if not hasattr(x, 'shape') or not hasattr(x, 'reshape'):
    raise TypeError(f'{name} must be an array, but got {shown(x)}.')
  if len(x.shape) < axes:
    raise ValueError(f'{name} must have at least {axes} axes, but got shape {x.shape}.')


# Schemes that do not rotate queries and keys.


def _t5(fields: Fields, bidirectional: bool) -> Scheme:
  return t5.scheme(
    num_buckets=fields.get('relative_attention_num_buckets', Size, 32),
    max_distance=fields.get('relative_attention_max_distance', Size, 128),
    bidirectional=bidirectional,
    shared=fields.values['model_type'] != 'umt5',
  )


def _alibi(fields: Fields) -> Scheme:
  standard = alibi.scheme()
  if fields.values['model_type'] == 'bloom':
    return standard
  if fields.values['model_type'] == 'mpt':
    told = fields.section('attn_config')
    if not told.get('alibi', bool, True) or told.get('alibi_bias_max', float, 8.0) != 8:
      got = shown(dict(told.values))
      raise ValueError(f'MPT is known with ALiBi up to a slope of 2^-8 only, but got {got}.')
    return standard

  def init(key, dims):  # Falcon scales its logits after it has added the biases
    return {'slopes': standard.init(key, dims)['slopes'] * dims.head_dim**-0.5}

  return standard._replace(init=init)


def _bert(fields: Fields) -> Scheme:
  kind = fields.values['model_type']
  is_wave = kind == 'wav2vec2-bert'
  named = 'position_embeddings_type' if is_wave else 'position_embedding_type'
  embedding = fields.get(named, str, 'relative_key' if is_wave else 'absolute')
  if embedding == 'relative_key':
    return shaw.scheme(max_distance=max(_reach(fields)), values=False)
  if embedding == 'absolute' and not is_wave:
    return _table(fields)
  raise ValueError(f"There is no scheme for {kind}'s {named} {embedding!r}.")


def _deberta(fields: Fields) -> Scheme:
  """DeBERTa's versions 1 and 2; the model_type of version 3 is that of version 2."""
  absolute = [_table(fields)] if fields.get('position_biased_input', bool, True) else []
  if not fields.get('relative_attention', bool, False):
    return chain(*absolute)
  terms = fields.get('pos_att_type', str | list[str]) or ()
  terms = set(terms.lower().split('|') if isinstance(terms, str) else terms)
  if terms - {'c2p', 'p2c'}:
    raise ValueError(f"DeBERTa's pos_att_type is known to hold c2p and p2c, but got {terms}.")
  farthest = fields.get('max_relative_positions', int, -1)
  buckets = fields.get('position_buckets', int, -1)
  normalized = fields.get('norm_rel_ebd', str, 'none').lower().split('|')
  relative = deberta.scheme(
    max_distance=fields.get('max_position_embeddings', Size, 512) if farthest < 1 else farthest,
    buckets=None if buckets < 1 else buckets,
    c2p='c2p' in terms,
    p2c='p2c' in terms,
    normalized='layer_norm' in normalized,
  )
  return chain(*absolute, relative)


def _reach(fields: Fields) -> tuple[int, int]:
  """The largest distances that a table of relative keys has a row for, backward and forward."""
  if fields.values['model_type'] == 'wav2vec2-bert':
    left = fields.get('left_max_position_embeddings', Whole, 64)
    return left, fields.get('right_max_position_embeddings', Whole, 8)
  return (fields.get('max_position_embeddings', Size, 512) - 1,) * 2


def _table(fields: Fields) -> Scheme:
  length = fields.size('n_positions', 'max_position_embeddings')
  if length is None:
    raise ValueError('A learned table needs n_positions or max_position_embeddings.')
  is_padded = fields.values['model_type'] in _PADDED
  unused = fields.get('pad_token_id', Whole, 1) + 1 if is_padded else 0
  if length <= unused:
    raise ValueError(
      f'A learned table needs more than its {unused} rows of padding, but got {length} rows.'
    )
  return learned.scheme(max_length=length - unused)
