"""The cases, by area. Each module has a function `cases()`, whose list is the same at each run.

library      calls of functions, constructors and layers, over every scheme:
  attention  `attend` with one wrong argument, and with many that fit
  extremes   numbers at the ends of what is represented, and what padding hides
  trees      parameters of another form, shape or scheme
  schemes    constructors, `Dims`, `init`, `split`, `chain`, `get`, `positions`
  layers     `posjax.nnx`, `posjax.linen` and the function for Flax's modules
  interop    `from_hf` with configurations of every kind that it knows
  loading    `layer` and `load_attention`, with configurations and with weights
configs      keys and flags of a run, in one process
tasks        translation, tagging, sentence pairs, parsing: their keys, data, work folders
commands     train.py, ask and compare as commands
files        what lies in work folders, and data
checkpoints  each file of a real checkpoint, spoiled
"""

import importlib

from tests.fuzz.case import Case, numbered

AREAS = {
  'library': ('attention', 'extremes', 'trees', 'schemes', 'layers', 'interop', 'loading'),
  'configs': ('configs',),
  'tasks': ('tasks',),
  'commands': ('commands',),
  'files': ('files',),
  'checkpoints': ('checkpoints',),
}


def cases(area: str) -> list[Case]:
  """All cases of an area; a case's number is its index."""
  modules = [importlib.import_module(f'tests.fuzz.areas.{name}') for name in AREAS[area]]
  return numbered(module.cases() for module in modules)
