"""Writes docs/checkpoints.md: which model types of transformers posjax reads.

python -m tools.interop_table, where transformers is installed
"""

import contextlib
import inspect
import io
import json
import logging
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from posjax import interop
from posjax.interop.bodies import BODIES
from posjax.interop.families import FAMILIES
from tests.support import by_hand

TARGET = Path(__file__).resolve().parent.parent / 'docs' / 'checkpoints.md'
HEAD = """# Checkpoints

`posjax.interop` reads {read} of the {all} model types of transformers {version}, each with the
defaults of its class of configurations:

- **whole models** ({whole} types): `interop.load` reads a folder, and `interop.save` writes one. A
  test compares logits, gradients and what is said with transformers.
- **layers** ({layers} types): `interop.layer` gives the settings of every layer, and
  `interop.load_attention` its weights. A test compares the layers of a small random model with
  those of transformers.
- **in part** ({in part} types): the same holds for some layers, parts or values of a field. What
  is refused of the others, and why, stands beside the type.
- **positions** ({positions} types): `interop.from_hf` gives the scheme alone.

The other {refused} are refused in one sentence: of {unknown} no positions are known, and the rest
stand below with their reasons. A checkpoint may set a field that is refused although its type is
read, and the reverse. Model types without a field for positions, and those that only hold other
models, are not counted. `python -m tools.interop_table` writes this page, and a slow test compares.

## Whole models

{whole_named}

## Layers

{layers_named}

## In part

{in_part_why}

## Positions

{positions_named}

## Refused

{refused_why}

<details>
<summary>The {unknown} model types of which no positions are known</summary>

{unknown_named}

</details>

{lines}
"""
UNKNOWN = 'The positions of the model_type'
# Values of fields, of checkpoints that people have, which are refused where the default is read.
REFUSED_VALUES: dict[str, dict[str, Any]] = {
  'longt5': {'encoder_attention_type': 'transient-global'},
  'wav2vec2-conformer': {'position_embeddings_type': 'rotary'},
}
_SECTIONS = {'rope_theta': 1e6, 'mrope_section': [16, 24, 24]}
_QWEN_VL = {'head_dim': 128, 'rope_parameters': _SECTIONS}
# Values of fields, of all checkpoints, without which the default is refused.
GIVEN_VALUES: dict[str, dict[str, Any]] = {
  **dict.fromkeys(('qwen2_vl_text', 'qwen2_5_vl_text', 'qwen2_5_omni_text'), _QWEN_VL),
  **dict.fromkeys(('qwen3_vl_text', 'qwen3_vl_moe_text', 'qwen3_omni_moe_text'), _QWEN_VL),
  'paddleocr_vl_text': _QWEN_VL,
  'lfm2_moe': {'layer_types': ['full_attention'] * 32},
}
# What a configuration does not say.
IN_PART = {
  **dict.fromkeys(
    ('trocr', 'musicgen_decoder'), 'The decoder alone: its attention to an encoder is not supported'
  ),
  'xlnet': 'One stream of attention, between tokens of one text: the second stream and the bias of '
  'two texts (token types) are not supported',
}
LINES = """## Lines of user code

So many lines make the attention of one layer and load its weights: on the left by hand, with
`interop.from_hf` for the scheme, and on the right with `interop.layer` and
`interop.load_attention`. Both are in
[tests/support/by_hand.py](../tests/support/by_hand.py), whose lines are counted; a test holds their
results against one another.

| model | by hand | in three lines |
| --- | --- | --- |"""
HOW = ('layers', 'in part', 'positions', 'refused')
_DEPTHS = ('num_hidden_layers', 'n_layer', 'num_layers', 'n_layers', 'encoder_layers')
_WORDS = ('rope', 'rotary', 'position', 'alibi', 'relative_attention')


def configurations() -> Iterator[tuple[str, dict[str, Any]]]:
  """Each model type with the dict of its default configuration."""
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  for kind in sorted(CONFIG_MAPPING.keys()):
    with contextlib.suppress(Exception):  # some classes need arguments, or other packages
      config = CONFIG_MAPPING[kind]()
      yield kind, json.loads(config.to_json_string(use_diff=False))


def has_positions(config: dict[str, Any]) -> bool:
  """Whether a configuration has a field for positions, and is no mere pair of others."""
  parts = [name for name in config if name.endswith('_config') and isinstance(config[name], dict)]
  fields = any(word in name for name in config for word in _WORDS)
  return bool(_parts(config['model_type'])) or (fields and not parts)


def row(kind: str, config: dict[str, Any]) -> tuple[str, str, str]:
  """A model type, how much of it is read, and why not all of it."""
  refusals = layers(kind, config)
  refusals += layers(kind, {**config, **GIVEN_VALUES[kind]}) if kind in GIVEN_VALUES else []
  if None in refusals:
    refusals += layers(kind, {**config, **REFUSED_VALUES.get(kind, {})})
    sentence = next((each for each in refusals if each is not None), IN_PART.get(kind))
    return (kind, 'in part', told(sentence)) if sentence else (kind, 'layers', '')
  try:
    interop.from_hf(config, layer=0, length=1)
  except ValueError as error:
    return kind, 'refused', told(str(error))
  return kind, 'positions', ''


def told(sentence: str) -> str:
  """A sentence inside a table, without what it got."""
  for end in (', but got', '. If it turns', '. Known are', '. There are'):
    sentence = sentence.partition(end)[0]
  return sentence.replace('|', '\\|').removesuffix('.')


def layers(kind: str, config: dict[str, Any]) -> list[str | None]:
  """What reading each layer of a model is refused with; None where it is read."""
  parts = _parts(kind) or [None]
  depth = next((config[name] for name in _DEPTHS if isinstance(config.get(name), int)), 1)
  depth = sum(config['depths']) if _parts(kind) and 'depths' in config else depth
  found = []
  for part in parts:
    decodes = part in ('decoder', 'cross')
    depth = config.get('decoder_layers', depth) if decodes else depth
    for index in range(min(depth, 48)):
      try:
        interop.layer(config, index, part=part, length=1)
      except ValueError as error:
        found.append(str(error))
      else:
        found.append(None)
  return found


def _parts(kind: str) -> list[str | None]:
  """The parts of a model whose layers are read; none where they are not."""
  return list(FAMILIES[kind].parts) if kind in FAMILIES else []


def lines_of(function: Any) -> int:
  """The lines of a function's body, its last one included, without empty ones and comments."""
  lines = inspect.getsource(function).splitlines()[1:]
  return sum(bool(line.strip()) and not line.strip().startswith('#') for line in lines)


def lines_table() -> str:
  """How many lines a user writes for one layer, by hand and in three lines."""
  rows = [
    f'| {name} | {lines_of(function)} | {lines_of(by_hand.in_three_lines)} |'
    for function, (name, _, _) in by_hand.MODELS.items()
  ]
  return '\n'.join((LINES, *rows))


def page(version: str, rows: list[tuple[str, str, str]]) -> str:
  """The page: counts, the types that are read, those that are refused, and lines of user code.

  Args:
    version: of transformers.
    rows: what `row` says of each model type.
  """
  unknown = [kind for kind, _, why in rows if why.startswith(UNKNOWN)]
  known = {how: [(k, why) for k, h, why in rows if h == how and k not in unknown] for how in HOW}
  counts = {how: sum(each[1] == how for each in rows) for how in HOW}
  counts |= {'all': len(rows), 'read': len(rows) - counts['refused'], 'unknown': len(unknown)}
  return HEAD.format(
    version=version,
    whole=len(BODIES),
    whole_named=named(sorted(BODIES)),
    layers_named=named(kind for kind, _ in known['layers']),
    positions_named=named(kind for kind, _ in known['positions']),
    unknown_named=named(unknown),
    in_part_why=reasons(known['in part']),
    refused_why=reasons(known['refused']),
    lines=lines_table(),
    **counts,
  )


def named(kinds: Iterable[str]) -> str:
  """Model types as a list in one paragraph."""
  return ', '.join(f'`{kind}`' for kind in kinds)


def reasons(rows: list[tuple[str, str]]) -> str:
  """A table of model types and of why they are refused, in part or as a whole."""
  lines = [('model type', 'why'), ('---', '---'), *((f'`{kind}`', why) for kind, why in rows)]
  return '\n'.join(f'| {kind} | {why} |' for kind, why in lines)


def text() -> str:
  """The page."""
  import transformers

  warnings.simplefilter('ignore')
  logging.disable(logging.WARNING)
  with contextlib.redirect_stderr(io.StringIO()):
    rows = [row(kind, config) for kind, config in configurations() if has_positions(config)]
  return page(transformers.__version__, rows)


if __name__ == '__main__':
  TARGET.write_text(text(), encoding='utf-8')
