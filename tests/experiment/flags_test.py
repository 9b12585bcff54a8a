"""Command lines and config files that are wrong: one sentence each, and a status."""

import sys

import pytest
from absl import flags

from posjax.experiment.flags import find_packages_here, parse
from tests.support.paths import ROOT

DEFAULT = ROOT / 'configs' / 'default.py'
START = 'from configs import default\ndef get_config():\n  c = default.get_config()\n'


@pytest.fixture
def ended(monkeypatch, capsys):
  """`(*arguments) -> (status, what was said)` of a command line that is refused."""
  before = set(flags.FLAGS)

  def call(*arguments):
    argv = ['train.py', *arguments]
    monkeypatch.setattr(sys, 'argv', argv)  # from which ml_collections reads the keys
    try:
      with pytest.raises(SystemExit) as caught:
        parse(argv, DEFAULT)
    finally:
      for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)
    error = capsys.readouterr().err
    assert error.startswith('train.py: error: ')
    assert error.count('\n') == 1
    return caught.value.code, error.removeprefix('train.py: error: ').strip()

  yield call
  flags.FLAGS.unparse_flags()


FILES = {
  'def get_config(:\n  pass\n': ', line 1: SyntaxError: invalid syntax',
  START + '  return undefined\n': ", line 4: NameError: name 'undefined' is not defined",
  START + '  c.steps = "a"\n': ", line 4: TypeError: Could not override field 'steps'",
  START + '  c.task.lenght.x = 3\n': 'Did you mean "length" instead of "lenght"?',
  START: ': get_config() must return a ConfigDict, but it returned NoneType.',
  'x = 3\n': ": AttributeError: module 'config' has no attribute 'get_config'",
  'import nothing_there\n': ", line 1: ModuleNotFoundError: No module named 'nothing_there'",
  'def get_config():\n  raise ValueError("a\\nb")\n': ', line 2: ValueError: a b',
  'import sys\nsys.exit(3)\n': ', line 2: SystemExit: 3',
  '\0': ': SyntaxError: source code string cannot contain null bytes',
}


def test_a_config_file_with_an_error_is_told_with_its_line(ended, tmp_path):
  path = tmp_path / 'mine.py'
  for content, message in FILES.items():
    path.write_text(content)
    status, said = ended(f'--config={path}')
    assert status == 1
    assert said.startswith(str(path))
    assert message in said, said
  assert ended('--config=')[1].endswith("with a function get_config, but got ''.")
  assert ended('--config=a.py', '--config', 'b.py')[1].endswith("but got 'b.py'.")  # the last one


@pytest.mark.filterwarnings('ignore:the load_module')  # ml_collections' own
def test_a_command_line_that_cannot_be_read_is_told_with_status_2(ended):
  for arguments, message in {
    ('--config.schme=rope',): 'no such key: \'schme\'. Did you mean "scheme" instead of "schme"?',
    ('--config.task=3',): "flag --config.task=3: Failed to parse '3' as a ConfigDict",
    ('--config.steps=1.5',): 'flag --config.steps=1.5: invalid literal for int()',
    ('--config.optimizer.b1=x',): "b1=x: could not convert string to float: 'x'",
    ('--config.model.tied=maybe',): "tied=maybe: ('Non-boolean argument to boolean flag', 'maybe')",
    ('--config.task.eval_factors=(1,',): 'Error while parsing string: (1, as tuple',
    ('--confg=x',): "Unknown command line flag 'confg'. Did you mean: config",
    ('--workdir',): 'Missing value for flag --workdir',
    ('extra',): "after train.py come flags alone, as --workdir=FOLDER, but got 'extra'.",
    (f'--config={DEFAULT}', '--config', str(DEFAULT), 'extra'): "but got 'extra'.",
    ('--config.steps=3', f'--config={DEFAULT}', 'extra'): "but got 'extra'.",
    ('--config.model.nope.x=1',): "The config has no such key: 'nope'",
    ('--', '--config=b.py'): 'config',
  }.items():
    status, said = ended(*arguments)
    assert status == 2
    assert message in said, said


def test_a_command_sets_keys_of_the_model_that_the_config_does_not_list(monkeypatch):
  before = set(flags.FLAGS)
  argv = ['train.py', f'--config={ROOT}/configs/translation.py', '--noconfig.model.tied']
  argv += ['--config.model.query_key=joint', '--config.model.decoder_layers', '3']
  argv += ['--config.model.window=(4,None)', '--config.model.remat', '--config.model.norm=RMSNorm']
  monkeypatch.setattr(sys, 'argv', argv)
  try:
    model = parse(argv, DEFAULT).config.model.to_dict()
  finally:
    for name in set(flags.FLAGS) - before:
      delattr(flags.FLAGS, name)
    flags.FLAGS.unparse_flags()
  assert model['num_layers'] == 2  # as the config has it
  expected = {'tied': False, 'query_key': 'joint', 'decoder_layers': 3, 'window': (4, None)}
  expected |= {'remat': True, 'norm': 'RMSNorm'}
  assert {key: model[key] for key in expected} == expected


def test_help_lists_every_flag_of_the_command_and_ends_well(monkeypatch, capsys):
  before = set(flags.FLAGS)
  try:
    seeds = flags.DEFINE_integer('seeds', 3, 'Runs of each.')
    with pytest.raises(SystemExit) as caught:
      parse(['compare', '--config=nowhere.py', '--help'], DEFAULT, [seeds])
  finally:
    for name in set(flags.FLAGS) - before:
      delattr(flags.FLAGS, name)
  assert caught.value.code == 0
  listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith('  --')]
  assert [line.strip() for line in listed] == [
    *('--config=FILE', '--config.KEY=VALUE', '--workdir=STRING', '--allow_changed_data'),
    *('--seeds=INT', '--helpfull'),
  ]


def test_packages_of_the_current_folder_are_found_after_those_beside_the_script(
  monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', ['of the script', 'installed'])
  find_packages_here()
  find_packages_here()
  assert sys.path == ['of the script', str(tmp_path), 'installed']
