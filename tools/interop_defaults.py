"""Writes posjax/interop/defaults.json: what transformers takes where a configuration says nothing.

python tools/interop_defaults.py, where transformers is installed

Of each family that `posjax.interop.layer` reads, this takes the defaults of the fields whose names
stand in the code of posjax/interop. Fields of RoPE are left out: `from_hf` knows theirs, which
differ between versions of transformers, and asks for the others.
"""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / 'posjax' / 'interop'
TARGET = FOLDER / 'defaults.json'
LEFT_OUT = ('rope', 'rotary', 'theta', 'model_type')


def names_in_the_code() -> set[str]:
  """All strings of the code that reads configurations."""
  found = set()
  for path in FOLDER.glob('*.py'):
    nodes = ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    found |= {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
  return found


def defaults(kind: str, names: set[str]) -> dict[str, Any]:
  """The plain defaults of one class of configurations that are not null."""
  from transformers.models.auto.configuration_auto import CONFIG_MAPPING

  fields = dataclasses.fields(CONFIG_MAPPING[kind])
  plain = {field.name: field.default for field in fields if field.name in names}
  turns = any(field.name == 'rope_parameters' for field in fields)
  left_out = (*LEFT_OUT, 'position') if turns else LEFT_OUT
  apart = lambda name: any(word in name for word in left_out)
  # The sizes of stages are tuples of integers, which a file has as lists.
  plain = {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}
  return {
    name: value
    for name, value in sorted(plain.items())
    if isinstance(value, bool | int | float | str | list) and not apart(name)
  }


def text() -> str:
  """The file: a line for each model type, and the version of transformers."""
  import transformers

  from posjax.interop.families import FAMILIES

  names = names_in_the_code()
  table = {kind: defaults(kind, names) for kind in sorted(FAMILIES) if FAMILIES[kind].parts}
  lines = [f'    {json.dumps(kind)}: {json.dumps(found)}' for kind, found in table.items()]
  head = f'{{\n  "transformers": "{transformers.__version__}",\n  "defaults": {{\n'
  return head + ',\n'.join(lines) + '\n  }\n}\n'


if __name__ == '__main__':
  TARGET.write_text(text(), encoding='utf-8')
