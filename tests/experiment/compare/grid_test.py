"""What a command line says, and the runs that it makes."""

import pytest

from configs import algorithmic, default, translation
from posjax.experiment.compare.grid import cells, read_axis, read_schemes, split


@pytest.mark.parametrize(
  ('text', 'parts'),
  [
    ('rope', ['rope']),
    ('rope, alibi', ['rope', 'alibi']),
    ('alibi,randomized(max_length=64)+rope', ['alibi', 'randomized(max_length=64)+rope']),
    ('rope(base=5e5),rope(1e4, 2)|none', ['rope(base=5e5)', 'rope(1e4, 2)|none']),
    ("(1, 2), [3, [4, 5]], 'a,b'", ['(1, 2)', '[3, [4, 5]]', "'a,b'"]),
    ("')', x", ["')'", 'x']),
  ],
)
def test_commas_within_brackets_and_quotes_belong_to_arguments(text, parts):
  assert list(split(text)) == parts


@pytest.mark.parametrize('text', ['', 'a,', 'a,,b', 'a(1,b', 'a),(b', "a('b"])
def test_a_list_with_an_open_bracket_or_an_empty_part_is_refused(text):
  with pytest.raises(ValueError, match='must read like'):
    split(text)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('none,ropee', "Unknown scheme 'ropee'; did you mean 'rope'"),
    ('none|alibii', "did you mean 'alibi'"),
    ('rope(bse=3)', 'It takes'),
    ('rope,alibi,rope', "given once, but got 'rope' twice"),
  ],
)
def test_schemes_are_made_before_anything_runs(text, message):
  with pytest.raises(ValueError, match=message):
    read_schemes(text)


@pytest.mark.parametrize(
  ('text', 'values'),
  [
    ('model.num_layers=2,4', [2, 4]),
    ('optimizer.learning_rate=1e-3,1', [1e-3, 1.0]),
    ('model.norm=LayerNorm,RMSNorm', ['LayerNorm', 'RMSNorm']),
    ('task.data=synthetic:copy,synthetic:sort', ['synthetic:copy', 'synthetic:sort']),
    ('task.eval_factors=(1,2),(1,4)', [(1, 2), (1, 4)]),
    ('model.num_kv_heads=None,2', [None, 2]),
    ('model.gated=True,False', [True, False]),
  ],
)
def test_an_axis_holds_values_of_the_configs_types(text, values):
  key, read = read_axis(text, algorithmic.get_config())
  assert key == text.partition('=')[0]
  assert list(read) == values
  assert [type(value) for value in read] == [type(value) for value in values]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('model.num_layer=2,4', "no key 'model.num_layer'; did you mean 'model.num_layers'"),
    ('model.num_layers=2,four', "must be of type int, but got 'four'"),
    ('model.num_layers=2,2.5', "must be of type int, but got '2.5'"),
    ('model.num_layers=2,2', 'given once, but got 2 twice'),
    ('model.num_layers', 'must read like'),
    ('scheme=rope', 'there are --schemes and --seeds'),
    ('seed=1,2', 'there are --schemes and --seeds'),
    ('model=2', "no key 'model'"),
    ('model.cross_scheme=rope,none', "no key 'model.cross_scheme'"),  # a decoder takes none
  ],
)
def test_an_axis_that_the_config_does_not_have_is_refused(text, message):
  with pytest.raises(ValueError, match=message):
    read_axis(text, default.get_config())


def test_an_axis_may_be_a_key_of_the_model_that_the_config_does_not_list():
  config = translation.get_config()
  axis = read_axis('model.norm=LayerNorm,RMSNorm', config)
  grid = cells(config, ['rope'], [axis], seeds=1)
  assert [cell.config.model.norm for cell in grid] == ['LayerNorm', 'RMSNorm']


def test_a_grid_is_every_scheme_with_every_value_and_seed_and_seeds_come_last():
  config = default.get_config()
  config.seed = 5
  axes = [('model.num_layers', (2, 4)), ('optimizer.learning_rate', (1e-3, 3e-3))]
  grid = cells(config, ['rope', 'none'], axes, seeds=3)
  assert len(grid) == len({cell.id for cell in grid}) == 2 * 2 * 2 * 3
  assert [cell.seed for cell in grid] == [5] * 8 + [6] * 8 + [7] * 8
  for cell in grid:
    assert cell.config.scheme == cell.scheme
    assert cell.config.seed == cell.seed
    assert cell.config.model.num_layers == cell.axes['model.num_layers']
    assert cell.config.optimizer.learning_rate == cell.axes['optimizer.learning_rate']
  assert config.scheme == default.get_config().scheme  # the given one is left as it was


def test_a_run_keeps_its_name_in_a_larger_grid_and_changes_it_with_its_config():
  few = cells(default.get_config(), ['rope'], [('steps', (10,))], seeds=1)
  many = cells(default.get_config(), ['none', 'rope'], [('steps', (5, 10))], seeds=2)
  assert {cell.id for cell in few} < {cell.id for cell in many}
  changed = default.get_config()
  changed.batch_size += 1
  other = cells(changed, ['rope'], [('steps', (10,))], seeds=1)
  assert not {cell.id for cell in other} & {cell.id for cell in few}


def test_a_name_is_a_folders_name_on_any_system():
  line = 'randomized(max_length=2048)+rope(base=5e5)|none'
  (cell,) = cells(default.get_config(), [line], [('task.data', ('file:a/b',))], seeds=1)
  assert not set(cell.id) & set('/\\:*?"<>|() ')
  assert len(cell.id) < 100


def test_a_grid_without_seeds_or_with_one_axis_twice_is_refused():
  config = default.get_config()
  with pytest.raises(ValueError, match='--seeds must be at least 1, but got 0'):
    cells(config, ['rope'], [], seeds=0)
  with pytest.raises(ValueError, match="given once, but got 'steps' twice"):
    cells(config, ['rope'], [('steps', (1,)), ('steps', (2,))], seeds=1)
