"""Vision models of several stages, as Swin has them: each stage has a width, heads and a window."""

from typing import NamedTuple

from posjax.arguments import Size, Whole, shown
from posjax.chain import chain
from posjax.interop.family import Family, Layer, Options
from posjax.interop.fields import Fields
from posjax.scheme import Scheme
from posjax.schemes import cosine, swin, swin_continuous


class Stage(NamedTuple):
  """The stage of a layer.

  Attributes:
    index: of the stage.
    block: the index of the layer in its stage.
  """

  index: int
  block: int


def place(fields: Fields, layer: Layer) -> Stage:
  """The stage of a layer, whose index counts through all stages.

  Raises:
    ValueError: if there is no such layer.

  Example:
    >>> place(Fields({'depths': [2, 2, 6, 2]}), Layer(5))
    Stage(index=2, block=1)
  """
  depths = fields.needed('depths', lambda name: fields.get(name, list[Size]))
  block = layer.index
  for index, depth in enumerate(depths):
    if block < depth:
      return Stage(index, block)
    block -= depth
  raise ValueError(
    f'The index must be that of one of the {sum(depths)} layers, but got {layer.index}.'
  )


def sizes(fields: Fields, layer: Layer) -> tuple[int, int, int, int]:
  """The width of a layer, its heads, its key heads, and the width of a head."""
  stage = place(fields, layer).index
  heads = fields.needed('num_heads', lambda name: fields.get(name, list[Size]))
  width = fields.needed('embed_dim', fields.size) * 2**stage
  if stage >= len(heads) or width % heads[stage]:
    raise fields.refuse('num_heads', f'a divisor of the width of each stage, {width} in {stage}')
  return width, heads[stage], heads[stage], width // heads[stage]


def swin_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """Swin's table of biases, whose ids are the row and the column of a token in its window."""
  window = fields.needed('window_size', fields.size)
  return swin.scheme(window, window)


def swinv2_scheme(family: Family, fields: Fields, options: Options) -> Scheme:
  """Swin V2's cosines and biases of a network; the ids are as in Swin.

  Raises:
    ValueError: if stages differ and no layer is given, or a window has one token.
  """
  depths = fields.needed('depths', lambda name: fields.get(name, list[Size]))
  of_stages = [_trained_window(fields, stage) for stage in range(len(depths))]
  if options.layer is None and len(set(of_stages)) > 1:
    raise ValueError(
      f'The stages of swinv2 were trained with the windows {of_stages}: give layer, the index of '
      'one, but got None.'
    )
  window = of_stages[0 if options.layer is None else place(fields, Layer(options.layer)).index]
  if window < 2:
    raise ValueError(
      f'The windows of Swin V2 must have at least 2 x 2 tokens, but got {window} of '
      f'{shown(dict(fields.values))}.'
    )
  return chain(cosine.scheme(0.1, learned=True), swin_continuous.scheme(window, window))


def _trained_window(fields: Fields, stage: int) -> int:
  """The window of training of a stage; its own window, which is no larger than its image."""
  trained = fields.get('pretrained_window_sizes', list[Whole]) or ()
  if stage < len(trained) and trained[stage]:
    return trained[stage]
  image, patch = (
    fields.needed(name, lambda name: fields.get(name, Size))
    for name in ('image_size', 'patch_size')
  )
  return min(image // patch // 2**stage, fields.needed('window_size', fields.size))
