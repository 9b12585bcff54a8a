"""Whole models around their attention: norms, feed-forward layers, embeddings, readouts.

One entry of `BODIES` for each model type whose folders `posjax.interop.load` reads: a function of
the configuration that returns a `Body`. The attention itself is that of `families`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from posjax.interop.fields import Fields
from posjax.layers.projections import Norm

# Activations by the names that configurations have for them.
_ACTIVATIONS = {
  **dict.fromkeys(('silu', 'swish'), 'silu'),
  **dict.fromkeys(('gelu_new', 'gelu_pytorch_tanh', 'gelu_fast', 'gelu_python_tanh'), 'gelu_tanh'),
  **{'relu': 'relu', 'gelu': 'gelu'},
}
Places = Mapping[str, str]  # of a part's norms, 'before', 'after' or 'outside': their names


class Inner(NamedTuple):
  """A feed-forward layer.

  Attributes:
    width: F.
    activation: as in `posjax.models.pretrained`.
    up: the name of the map from M to F; of both maps, where `gate` is '' and `gated` is set.
    down: the name of the map back.
    gate: the name of the gate, where it has a map of its own.
    gated: whether there is a gate.
    order: of both in one map.
    use_bias: whether maps have biases.
    transposed: whether weights are [inputs, outputs].
    experts: the number of experts, of active ones, and the limit; None for one layer. The maps are
      then those of the experts, and `router` is that of the router.
    router: see `experts`.
  """

  width: int
  activation: str
  up: str
  down: str
  gate: str = ''
  gated: bool = False
  order: tuple[str, str] = ('gate', 'up')
  use_bias: bool = False
  transposed: bool = False
  experts: tuple[int, int, float] | None = None
  router: str = ''


class Around(NamedTuple):
  """A layer around its attention.

  Attributes:
    block: where the layer is after the prefix.
    inner: its feed-forward layer.
    attention_norms: the names of the norms of attention, by their places.
    inner_norms: of the feed-forward layer.
    cross_norms: of cross-attention.
    parallel: whether both parts read the layer's input.
  """

  block: str
  inner: Inner
  attention_norms: Places
  inner_norms: Places
  cross_norms: Places = MappingProxyType({})
  parallel: bool = False


class Body(NamedTuple):
  """A model around its attention. Names come after the prefix, but for those of the readout.

  Attributes:
    layer: of a layer by its index.
    norm: all norms of the model.
    embedding: the table of the tokens.
    prefixes: what may be before the names.
    scale: of the embeddings.
    embedding_norm: the name of the norm of the embeddings; '' for none.
    types: the table of the types of tokens; '' for none.
    final_norm: the name; '' for none.
    head: the readout's weight; '' for none.
    tied: whether the readout is the table, where the folder has no weight of its own.
    head_scale: of the readout's input.
    cap: of the logits.
    head_bias: the name of the bias of the logits; '' for none.
    transform: the name of the dense layer before the readout; '' for none.
    transform_norm: of that.
    transform_activation: of that.
    transform_bias: whether that has a bias.
    needs_head: whether a folder without the weights of the readout is not whole.
    ignored: beginnings of names, after any prefix, that the model does not need.
    supported: the values of fields whose others are refused.
  """

  layer: Callable[[int], Around]
  norm: Norm
  embedding: str = 'embed_tokens'
  prefixes: tuple[str, ...] = ('model.', '', 'language_model.model.', 'model.language_model.')
  scale: float = 1.0
  embedding_norm: str = ''
  types: str = ''
  final_norm: str = 'norm'
  head: str = 'lm_head'
  tied: bool = True
  head_scale: float = 1.0
  cap: float | None = None
  head_bias: str = ''
  transform: str = ''
  transform_norm: str = ''
  transform_activation: str | None = None
  transform_bias: bool = True
  needs_head: bool = True
  ignored: tuple[str, ...] = ()
  supported: tuple[tuple[str, tuple[Any, ...]], ...] = ()


BodyReader = Callable[[Fields, str | None], Body]


def _activation(fields: Fields, name: str) -> str:
  value = fields.get(name, str)
  if value not in _ACTIVATIONS:
    known = ', '.join(_ACTIVATIONS)
    raise ValueError(f"The configuration's {name} must be one of {known}, but got {value!r}.")
  return _ACTIVATIONS[value]


def _size(fields: Fields, name: str) -> int:
  return fields.needed(name, fields.size)


def _epsilon(fields: Fields, name: str) -> float:
  return fields.needed(name, fields.positive)


def _tied(fields: Fields) -> bool:
  return bool(fields.get('tie_word_embeddings', bool))


_BEFORE = {'before': 'input_layernorm'}, {'before': 'post_attention_layernorm'}
_AROUND = (
  {'before': 'input_layernorm', 'after': 'post_attention_layernorm'},
  {'before': 'pre_feedforward_layernorm', 'after': 'post_feedforward_layernorm'},
)
_AFTER = {'after': 'post_attention_layernorm'}, {'after': 'post_feedforward_layernorm'}


def _llama(
  norms: tuple[Places, Places] = _BEFORE,
  activation: str = 'hidden_act',
  fused: bool = False,
  offset: float = 0.0,
  **more: Callable[[Fields], Any],
) -> BodyReader:
  """Llama, and what differs from it in one thing or two; `more` reads fields of the body."""

  def read(fields: Fields, part: str | None) -> Body:
    names: dict[str, Any] = {'up': 'mlp.up_proj', 'gate': 'mlp.gate_proj'}
    names = {'up': 'mlp.gate_up_proj'} if fused else names
    inner = Inner(
      _size(fields, 'intermediate_size'),
      _activation(fields, activation),
      **names,
      down='mlp.down_proj',
      gated=True,
      use_bias=bool(fields.get('mlp_bias', bool)),
    )
    return Body(
      lambda index: Around(f'layers.{index}', inner, *norms),
      Norm('rms', _epsilon(fields, 'rms_norm_eps'), offset=offset),
      tied=_tied(fields),
      ignored=('rotary_emb.inv_freq',),
      **{name: reader(fields) for name, reader in more.items()},
    )

  return read


def _gemma() -> BodyReader:
  return _llama(
    _AROUND,
    'hidden_activation',
    offset=1.0,
    scale=lambda fields: _size(fields, 'hidden_size') ** 0.5,
    cap=lambda fields: fields.positive('final_logit_softcapping'),
  )


def _gpt_oss(fields: Fields, part: str | None) -> Body:
  experts = _size(fields, 'num_local_experts'), _size(fields, 'num_experts_per_tok')
  limit = fields.get('swiglu_limit', float, 7.0)
  inner = Inner(
    _size(fields, 'intermediate_size'),
    'silu',
    'mlp.experts.gate_up_proj',
    'mlp.experts.down_proj',
    gated=True,
    use_bias=True,
    experts=(*experts, limit),
    router='mlp.router',
  )
  return Body(
    lambda index: Around(f'layers.{index}', inner, *_BEFORE),
    Norm('rms', _epsilon(fields, 'rms_norm_eps')),
    tied=_tied(fields),
    supported=(('hidden_act', ('silu',)), ('swiglu_alpha', (1.702, None))),
  )


def _gpt_neox(fields: Fields, part: str | None) -> Body:
  inner = Inner(
    _size(fields, 'intermediate_size'),
    _activation(fields, 'hidden_act'),
    'mlp.dense_h_to_4h',
    'mlp.dense_4h_to_h',
    use_bias=True,
  )
  parallel = bool(fields.get('use_parallel_residual', bool, True))
  return Body(
    lambda index: Around(f'layers.{index}', inner, *_BEFORE, parallel=parallel),
    Norm('layer', _epsilon(fields, 'layer_norm_eps'), use_bias=True),
    'embed_in',
    ('gpt_neox.', ''),
    final_norm='final_layer_norm',
    head='embed_out',
    tied=_tied(fields),
  )


def _gpt2(fields: Fields, part: str | None) -> Body:
  width = fields.size('n_inner') or 4 * _size(fields, 'n_embd')
  activation = _activation(fields, 'activation_function')
  inner = Inner(width, activation, 'mlp.c_fc', 'mlp.c_proj', use_bias=True, transposed=True)
  norms = {'before': 'ln_1'}, {'before': 'ln_2'}
  return Body(
    lambda index: Around(f'h.{index}', inner, *norms),
    Norm('layer', _epsilon(fields, 'layer_norm_epsilon'), use_bias=True),
    'wte',
    ('transformer.', ''),
    final_norm='ln_f',
    tied=_tied(fields),
    supported=(('add_cross_attention', (False, None)),),
  )


def _bloom(fields: Fields, part: str | None) -> Body:
  width = 4 * _size(fields, 'hidden_size')
  inner = Inner(width, 'gelu_tanh', 'mlp.dense_h_to_4h', 'mlp.dense_4h_to_h', use_bias=True)
  return Body(
    lambda index: Around(f'h.{index}', inner, *_BEFORE),
    Norm('layer', _epsilon(fields, 'layer_norm_epsilon'), use_bias=True),
    'word_embeddings',
    ('transformer.', ''),
    embedding_norm='word_embeddings_layernorm',
    final_norm='ln_f',
    tied=_tied(fields),
    supported=(('apply_residual_connection_post_layernorm', (False, None)),),
  )


def _falcon(fields: Fields, part: str | None) -> Body:
  inner = Inner(
    fields.size('ffn_hidden_size') or 4 * _size(fields, 'hidden_size'),
    _activation(fields, 'activation'),
    'mlp.dense_h_to_4h',
    'mlp.dense_4h_to_h',
    use_bias=bool(fields.get('bias', bool)),
  )
  new = bool(fields.get('new_decoder_architecture', bool))
  parallel = bool(fields.get('parallel_attn', bool, True))
  if new and not parallel:
    raise fields.refuse('new_decoder_architecture', 'false, since parallel_attn is false')
  two = (fields.size('num_ln_in_parallel_attn') or (2 if new else 1)) == 2
  norms = ({'before': 'ln_attn'}, {'before': 'ln_mlp'}) if two else (_BEFORE[0], {})
  norms = norms if parallel else _BEFORE
  return Body(
    lambda index: Around(f'h.{index}', inner, *norms, parallel=parallel),
    Norm('layer', _epsilon(fields, 'layer_norm_epsilon'), use_bias=True),
    'word_embeddings',
    ('transformer.', ''),
    final_norm='ln_f',
    tied=_tied(fields),
  )


def _bert(fields: Fields, part: str | None) -> Body:
  activation = _activation(fields, 'hidden_act')
  width = _size(fields, 'intermediate_size')
  inner = Inner(width, activation, 'intermediate.dense', 'output.dense', use_bias=True)
  norms = {'outside': 'attention.output.LayerNorm'}, {'outside': 'output.LayerNorm'}
  return Body(
    lambda index: Around(f'encoder.layer.{index}', inner, *norms),
    Norm('layer', _epsilon(fields, 'layer_norm_eps'), use_bias=True),
    'embeddings.word_embeddings',
    ('bert.', ''),
    embedding_norm='embeddings.LayerNorm',
    types='embeddings.token_type_embeddings',
    final_norm='',
    head='cls.predictions.decoder',
    tied=_tied(fields),
    head_bias='cls.predictions.bias',
    transform='cls.predictions.transform.dense',
    transform_norm='cls.predictions.transform.LayerNorm',
    transform_activation=activation,
    needs_head=False,
    ignored=(
      *('pooler.', 'embeddings.position_ids', 'embeddings.token_type_ids'),
      *('cls.seq_relationship.', 'cls.predictions.decoder.bias'),
    ),
  )


def _modernbert(fields: Fields, part: str | None) -> Body:
  inner = Inner(
    _size(fields, 'intermediate_size'),
    _activation(fields, 'hidden_activation'),
    'mlp.Wi',
    'mlp.Wo',
    gated=True,
    use_bias=bool(fields.get('mlp_bias', bool)),
  )
  norms = {'before': 'attn_norm'}, {'before': 'mlp_norm'}
  has_bias = bool(fields.get('decoder_bias', bool, True))
  return Body(
    # The first layer's attention reads the embeddings, whose norm is the last thing before it.
    lambda index: Around(f'layers.{index}', inner, norms[0] if index else {}, norms[1]),
    Norm('layer', _epsilon(fields, 'norm_eps'), use_bias=bool(fields.get('norm_bias', bool))),
    'embeddings.tok_embeddings',
    ('model.', ''),
    embedding_norm='embeddings.norm',
    final_norm='final_norm',
    head='decoder',
    tied=_tied(fields),
    head_bias='decoder.bias' if has_bias else '',
    transform='head.dense',
    transform_norm='head.norm',
    transform_activation=_activation(fields, 'classifier_activation'),
    transform_bias=bool(fields.get('classifier_bias', bool)),
    needs_head=False,
  )


def _t5(fields: Fields, part: str | None) -> Body:
  kind = fields.get('feed_forward_proj', str, 'relu')
  gated, _, name = kind.rpartition('-')
  name = 'gelu_new' if kind == 'gated-gelu' else name
  if gated not in ('', 'gated') or name not in _ACTIVATIONS:
    raise fields.refuse('feed_forward_proj', 'relu, gated-gelu, or another known activation')
  last = 2 if part == 'decoder' else 1
  inside = f'layer.{last}.DenseReluDense'
  two: dict[str, Any] = {'up': f'{inside}.wi_1', 'gate': f'{inside}.wi_0'}
  names = two if gated else {'up': f'{inside}.wi'}
  inner = Inner(
    _size(fields, 'd_ff'),
    _ACTIVATIONS[name],
    **names,
    down=f'{inside}.wo',
    gated=bool(gated),
  )
  place = lambda number: {'before': f'layer.{number}.layer_norm'}
  crosses = place(1) if part == 'decoder' else {}
  # What a configuration leaves out is tied, and scaled.
  tied = fields.get('tie_word_embeddings', bool) is not False
  return Body(
    lambda index: Around(f'{part}.block.{index}', inner, place(0), place(last), crosses),
    Norm('rms', _epsilon(fields, 'layer_norm_epsilon')),
    'shared',
    ('',),
    final_norm=f'{part}.final_layer_norm',
    tied=tied,
    head_scale=_size(fields, 'd_model') ** -0.5 if tied else 1.0,
    ignored=(
      *('encoder.embed_tokens.', 'decoder.embed_tokens.'),
      'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.',
    ),
  )


BODIES: Mapping[str, BodyReader] = {
  **dict.fromkeys(('llama', 'mistral', 'qwen2', 'qwen3', 'smollm3'), _llama()),
  **dict.fromkeys(('gemma2', 'gemma3_text'), _gemma()),
  'phi3': _llama(fused=True),
  'olmo2': _llama(_AFTER),
  'gpt_oss': _gpt_oss,
  'gpt_neox': _gpt_neox,
  'gpt2': _gpt2,
  'bloom': _bloom,
  'falcon': _falcon,
  'bert': _bert,
  'modernbert': _modernbert,
  't5': _t5,
}
