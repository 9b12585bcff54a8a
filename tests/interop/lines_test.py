"""The code that loads a layer by hand, and in three lines: it loads the same, and is counted."""

import chex
import pytest

from posjax.interop.checkpoint import shapes_of
from tests.support import by_hand
from tests.support.hugging_face import numbers
from tools import interop_table

PREFIXES = {'gpt_neox': 'gpt_neox.', 't5': ''}


@pytest.mark.parametrize('function', by_hand.MODELS, ids=lambda each: each.__name__)
def test_what_is_loaded_by_hand_is_what_three_lines_load(function):
  _, config, part = by_hand.MODELS[function]
  prefix, index = PREFIXES.get(config['model_type'], 'model.'), 1
  shapes = shapes_of(config, index, part=part, prefix=prefix)
  weights = {name: numbers(name, shape) for name, shape in shapes.items()}
  attention, params = function(config, index, weights)
  other, loaded = by_hand.in_three_lines(config, index, weights, part)
  chex.assert_trees_all_equal(params, loaded)
  assert told(attention) == told(other)


def told(attention):
  """What a layer was told beside its scheme, and what follows where it was told nothing."""
  follows = {
    'head_dim': attention.width // attention.num_heads,
    **{'num_kv_heads': attention.num_heads, 'out_bias': attention.use_bias},
  }
  names = set(attention.__dataclass_fields__) - {'scheme', 'parent', 'name'}
  values = {name: getattr(attention, name) for name in names}
  return {name: follows.get(name) if value is None else value for name, value in values.items()}


def test_the_page_of_checkpoints_counts_the_types_that_it_lists():
  page = interop_table.page(
    '9.9',
    [
      ('ours', 'layers', ''),
      ('theirs', 'layers', ''),
      ('half', 'in part', 'One layer is not read'),
      ('scheme', 'positions', ''),
      ('wrong', 'refused', 'A field is missing'),
      ('new', 'refused', "The positions of the model_type 'new'"),
    ],
  )
  assert 'reads 4 of the 6 model types of transformers 9.9,' in page
  for count in ('**layers** (2 types)', '**in part** (1 types)', '**positions** (1 types)'):
    assert count in page
  assert 'The other 2 are refused in one sentence: of 1 no positions are known' in page
  assert '## Layers\n\n`ours`, `theirs`\n' in page
  assert '| `half` | One layer is not read |\n\n## Positions\n\n`scheme`\n' in page
  assert '| `wrong` | A field is missing |\n\n<details>' in page
  assert '</summary>\n\n`new`\n\n</details>' in page


def test_the_lines_of_user_code_are_counted():
  shown = interop_table.TARGET.read_text(encoding='utf-8')
  assert interop_table.lines_table() in shown, 'Out of date; run: python -m tools.interop_table'
  assert interop_table.lines_of(by_hand.in_three_lines) == 3
