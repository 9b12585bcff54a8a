"""Plans of whole models, from their configurations."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from posjax.arguments import Size, read, shown
from posjax.expression import get
from posjax.interop import bodies
from posjax.interop.bodies import Body
from posjax.interop.families import scheme_of
from posjax.interop.family import Options
from posjax.interop.fields import Fields
from posjax.interop.replacement import Given, replaced
from posjax.interop.settings import Settings, check_read, layer, layers_in, with_defaults
from posjax.models import pretrained as models
from posjax.models.plans import (
  BlockPlan,
  EmbeddingPlan,
  Experts,
  FeedForwardPlan,
  Plan,
  ReadoutPlan,
  Source,
  Where,
)
from posjax.scheme import Scheme, places


class Whole(NamedTuple):
  """A configuration, as a whole model needs it.

  Attributes:
    config: the contents of `config.json`, or of its `text_config`.
    fields: the same, with the defaults of transformers.
    inside: the name under which the text model is in a model of several parts; '' for others.
  """

  config: Mapping[str, Any]
  fields: Fields
  inside: str = ''

  @property
  def parts(self) -> tuple[str | None, ...]:
    """The parts of the model: encoder and decoder, or one without a name."""
    return ('encoder', 'decoder') if self.kind == 't5' else (None,)

  @property
  def kind(self) -> str:
    """The model type."""
    return self.fields.get('model_type', str) or ''

  def body(self, part: str | None) -> Body:
    """The part around its attention."""
    return bodies.BODIES[self.kind](self.fields, part)

  def depth(self, part: str | None) -> int:
    """The number of layers of a part."""
    return self.fields.needed('the number of its layers', lambda _: layers_in(self.fields, part))


class Planned(NamedTuple):
  """A model without weights.

  Attributes:
    whole: its configuration.
    plans: of its parts.
    own: the family's own scheme of each layer of each part.
  """

  whole: Whole
  plans: dict[str | None, Plan]
  own: dict[str | None, list[Scheme]]

  def make(self, making: models.Making, source: Source | None, rngs: Any) -> Any:
    """The model with random weights."""
    if None in self.plans:
      return models.Pretrained(self.plans[None], making, source=source, rngs=rngs)
    encoder, decoder = self.plans['encoder'], self.plans['decoder']
    return models.PretrainedEncoderDecoder(encoder, decoder, making, source=source, rngs=rngs)


def whole_of(config: Mapping[str, Any]) -> Whole:
  """The configuration of a whole model.

  Raises:
    ValueError: if whole models of its type are not read, or it asks for something that is not.
  """
  inside = ''
  if isinstance(config.get('text_config'), Mapping):
    quantized = config.get('quantization_config')
    config = {'quantization_config': quantized, **config['text_config']}
    inside = 'text_config'
  fields = with_defaults(Fields(config))
  kind = fields.get('model_type', str) or ''
  if kind not in bodies.BODIES:
    raise ValueError(
      f'Whole models are read of the model types {", ".join(sorted(bodies.BODIES))}, but got '
      f'{kind!r}; posjax.interop.layer reads the attention of more.'
    )
  quantized = fields.section('quantization_config').values
  if quantized and not (kind == 'gpt_oss' and quantized.get('quant_method') == 'mxfp4'):
    raise ValueError(
      'The weights must not be quantized, unless in MXFP4 as those of gpt-oss, but the '
      f"configuration's quantization_config has {shown(dict(quantized))}."
    )
  check_read(fields)
  whole = Whole(config, fields, inside)
  for part in whole.parts:
    for name, values in whole.body(part).supported:
      if fields.values.get(name) not in values:
        raise fields.refuse(name, f'{values[0]!r}, because other values are not supported')
  return whole


def plan(
  whole: Whole, scheme: Given = None, *, length: int | None = None, names: Sequence[str] = ()
) -> Planned:
  """The plan of a model, from its configuration.

  Args:
    whole: the configuration.
    scheme: see `load`.
    length: see `load`.
    names: those of the folder's weights, which say whether there is a readout; without any, the
      configuration does.
  """
  length = read(length, Size | None, 'length')
  own = {part: own_schemes(whole, part, length) for part in whole.parts}
  layers = [each for schemes in own.values() for each in schemes]
  used = iter(replaced(scheme, layers, [not places(each) for each in layers]))
  plans = {}
  for part, schemes in own.items():
    plans[part] = _plan(whole, part, [next(used) for _ in schemes], length, names)
  return Planned(whole, plans, own)


def planned_of(whole: Whole, plans: dict[str | None, Plan], length: int | None) -> Planned:
  """As `plan`, of a model that has its plans already."""
  return Planned(whole, plans, {part: own_schemes(whole, part, length) for part in plans})


def own_schemes(whole: Whole, part: str | None, length: int | None) -> list[Scheme]:
  """The scheme of each layer, with what it adds to the embeddings; equal ones are one object."""
  options = Options(length=length, bidirectional=part == 'encoder')
  indices = range(whole.depth(part))
  found = [scheme_of(whole.fields, options._replace(layer=index)) for index in indices]
  return [each if each.line is None else get(each.line) for each in found]


def _plan(
  whole: Whole,
  part: str | None,
  schemes: Sequence[Scheme],
  length: int | None,
  names: Sequence[str],
) -> Plan:
  fields, body = whole.fields, whole.body(part)
  kind = fields.get('model_type', str)

  def block(index: int, scheme: Scheme) -> BlockPlan:
    settings = layer(whole.config, index, part=part, length=length)
    if settings.chunk is not None:
      raise ValueError(f'Layers of {kind} that see chunks are not read as whole models.')
    around, cross = body.layer(index), None
    if part == 'decoder':
      cross = _items(layer(whole.config, index, part='cross'))
    inner = around.inner
    experts = None if inner.experts is None else Experts(*inner.experts)
    return BlockPlan(
      _items(settings._replace(scheme=scheme)),
      FeedForwardPlan(inner.width, inner.activation, inner.gated, inner.use_bias, experts),
      body.norm,
      _where(around.attention_norms),
      _where(around.inner_norms, shared=around.parallel),
      cross,
      around.parallel,
    )

  blocks = tuple(block(index, scheme) for index, scheme in enumerate(schemes))
  types = fields.size('type_vocab_size') if body.types else None
  embedding = EmbeddingPlan(body.scale, body.norm if body.embedding_norm else None, types or 0)
  width = dict(blocks[0].attention)['width']
  return Plan(
    fields.needed('vocab_size', fields.size),
    width,
    blocks,
    embedding,
    body.norm if body.final_norm else None,
    _readout(body, part, names),
  )


def _readout(body: Body, part: str | None, names: Sequence[str]) -> ReadoutPlan | None:
  if part == 'encoder':
    return None
  if not body.needs_head and names and f'{body.transform}.weight' not in names:
    return None
  tied = body.tied
  if names:
    there = f'{body.head}.weight' in names
    if not there and not tied and not body.transform:
      raise ValueError(
        f'The checkpoint must have {body.head}.weight, since its tie_word_embeddings is false, but '
        'has none of that name.'
      )
    tied = not there
  return ReadoutPlan(
    tied,
    body.head_scale,
    body.cap,
    bool(body.head_bias),
    body.transform_activation if body.transform else None,
    body.norm if body.transform_norm else None,
    body.transform_bias,
  )


def _items(settings: Settings) -> tuple[tuple[str, Any], ...]:
  return tuple(settings.arguments().items())


def _where(norms: bodies.Places, *, shared: bool = False) -> Where:
  if not norms:
    return 'shared' if shared else 'none'
  return 'around' if len(norms) == 2 else next(iter(norms))  # type: ignore
