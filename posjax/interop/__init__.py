"""Hugging Face checkpoints: whole models, layers, weights, schemes and tokenizers.

Configurations are read as plain dicts; transformers is not needed. Numbers that a `config.json`
leaves out have the defaults of transformers, where these are known here. What is not supported
is refused by its name.

- `load` (in `pretrained`) returns the model in a folder, with its own positions or with others
  (`replacement`), `create` a new one, and `save` (in `saving`) writes one. `planning` makes plans
  of configurations, with what `bodies` has of models around their attention, and `reading` finds
  the weights. They need flax.
- `families` is the table of all that is known of each family of models: one entry for models that
  are alike. Its records are in `family`, what their readers share in `fields`.
- `from_hf` returns the scheme of a model, which `rope`, `embeddings` or `positions` read; `layers`
  has how its layers differ, and `stages` the towers of Swin.
- `layer` (in `settings`) returns all that a layer's attention does besides its scheme, as the
  arguments of `posjax.nnx.Attention` and `posjax.linen.Attention`. `defaults.json` has what
  transformers takes where a configuration says nothing; `tools/interop_defaults.py` writes it.
- `load_attention` (in `checkpoint`) returns the weights of a layer, as those layers hold them, and
  `load_positions` the table that a model adds to its embeddings. `latent` serves both for
  DeepSeek's attention, and `tables` has what schemes learn.
- `tokenizer` returns the tokenizer of a folder, with its chat template, which `chat` renders in a
  sandbox; `byte_level` writes one of bytes.
- `kernel`, `weight` and `relative_keys` (in `weights`) convert single weights. `rope.to_split` and
  `rope.to_interleaved` of `posjax.schemes`, applied to a kernel, change which dimensions form a
  pair.
- `folder` reads the folder of a checkpoint, its weights memory-mapped, and writes one; `mxfp4` has
  the weights of gpt-oss' experts, of four bits a number.

The layers of a checkpoint in three lines:

    options = interop.layer(config, 0).arguments()
    attention = posjax.linen.Attention(**options)
    y = attention.apply({'params': interop.load_attention(config, 0, weights)}, x, pos)

The scheme alone does not contain all that a model does with its logits. T5 does not scale q . k,
and DeepSeek scales it by more than 1/sqrt(D): `layer` says so.
"""

import importlib
from typing import TYPE_CHECKING, Any

from posjax.arguments import Size, Whole, read
from posjax.interop.checkpoint import load_attention as load_attention
from posjax.interop.checkpoint import load_positions as load_positions
from posjax.interop.families import scheme_of
from posjax.interop.family import Options
from posjax.interop.fields import Config, read_config
from posjax.interop.settings import Settings as Settings
from posjax.interop.settings import layer as layer
from posjax.interop.tokenizer import Tokenizer as Tokenizer
from posjax.interop.tokenizer import byte_level as byte_level
from posjax.interop.tokenizer import tokenizer as tokenizer
from posjax.interop.weights import kernel as kernel
from posjax.interop.weights import relative_keys as relative_keys
from posjax.interop.weights import weight as weight
from posjax.scheme import Scheme

if TYPE_CHECKING:
  from posjax.interop.pretrained import create as create
  from posjax.interop.pretrained import load as load
  from posjax.interop.saving import save as save

_WITH_FLAX = {
  'load': 'pretrained',
  'create': 'pretrained',
  'save': 'saving',
}  # imported when they are first used


def __getattr__(name: str) -> Any:
  if name not in _WITH_FLAX:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_WITH_FLAX[name]}'), name)


def from_hf(
  config: Config,
  *,
  layer: int | None = None,
  layer_type: str | None = None,
  length: int | None = None,
  bidirectional: bool = False,
  interleaved: bool | None = None,
) -> Scheme:
  """The scheme of a Hugging Face configuration.

  Args:
    config: the contents of `config.json`, or of its `text_config` for a model of several parts.
    layer: the index of a layer, from 0, for models whose layers differ in their positions.
    layer_type: the type of a layer, such as 'full_attention' or 'sliding_attention', instead of its
      index.
    length: the length of the longest text, in tokens, for dynamic NTK and LongRoPE, which depend on
      it.
    bidirectional: for T5 and Whisper, whose encoder and decoder share one configuration: True for
      the encoder.
    interleaved: whether pairs of dimensions are neighbours, for a model_type that is unknown
      here. The configuration must then have the base, and the share of each head that is rotated.

  Returns:
    A scheme. If it has parameters, fill them from the checkpoint: a learned table by
    `load_positions`; T5's table with T5's; relative keys by `relative_keys`;
    DeBERTa's table with `rel_embeddings`, and `w_k`, `w_q` and `b_q` of each layer with its
    pos_key_proj and pos_query_proj (or with its key_proj and query_proj for share_att_key).

  Raises:
    ValueError: if the configuration has something that is not supported or not of its type, or an
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
  layer = read(layer, Whole | None, 'layer')
  return scheme_of(fields, Options(layer, layer_type, length, bidirectional, interleaved))
