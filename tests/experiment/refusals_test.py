"""What train.py refuses: in one sentence, and before anything is written."""

import functools

import pytest
from flax import nnx

from posjax.experiment import checkpoint, report, training
from tests.experiment.support.faults import POINTS, contents, line
from tests.experiment.support.runs import small, start
from train import setup, train

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

WRONG = [
  ({'scheme': 'ropee'}, ValueError, "Unknown scheme 'ropee'; did you mean 'rope'"),
  ({'scheme': 'rope(bse=3)'}, ValueError, "has no argument 'bse'; did you mean 'base'.*It takes"),
  ({'model.num_heads': 5}, ValueError, 'num_heads must divide the width 32, but got 5'),
  ({'model.num_kv_heads': 3}, ValueError, 'key heads must divide the query heads'),
  ({'scheme': 'rope', 'model.num_heads': 32}, ValueError, 'RoPE rotates pairs'),
  ({'scheme': 'randomized(max_length=16)'}, ValueError, '32 tokens may need more than the 16'),
  ({'scheme': 'learned(max_length=16)'}, ValueError, 'positions beyond a table of the scheme'),
  ({'task.data': 'file:nowhere'}, FileNotFoundError, 'nowhere'),
  ({'task.data': 'python_doc'}, ValueError, "did you mean 'python_docs'"),
  ({'task.name': 'translating'}, ValueError, "Unknown task 'translating'"),
  ({'task.length': 1_000_000}, ValueError, 'eval_tokens must hold the longest evaluation'),
  ({'task.eval_factors': (2, 4)}, ValueError, 'eval_factors must begin with 1'),
  ({'mesh.data': 3}, ValueError, 'batch_size must be a multiple of 3'),
  ({'mesh.data': 64}, ValueError, 'needs 64 devices, but there are 8'),
  ({'mesh.tensor': 8}, ValueError, 'cannot be divided over 8 devices of the tensor axis'),
  ({'optimizer.warmup_steps': 12}, ValueError, 'warmup_steps must be below steps, which are 12'),
  ({'log_every': 0}, ValueError, 'log_every must be an integer of at least 1 .* but got 0'),
  ({'model.window': 0}, ValueError, r'model\.window must be an integer of at least 1'),
  ({'task.length': 0}, ValueError, r'task\.length must be an integer of at least 1'),
  ({'model.width': 0}, ValueError, r'model\.width must be an integer of at least 1'),
  ({'model.num_heads': 0}, ValueError, r'model\.num_heads must be an integer of at least 1'),
  (
    {'seed': 2**32},
    ValueError,
    r'seed must be .* of at least 0 and below 2\^31, but got 4294967296',
  ),
  ({'task.sample_length': 0}, ValueError, r'task\.sample_length must be .* from 1 to 100,000'),
  ({'task.sample_length': -1}, ValueError, r'sample_length must be .*, but got -1\.'),
  ({'task.sample_length': 10**8}, ValueError, r'sample_length must be .*, but got 100000000\.'),
  ({'model.causal': False}, ValueError, r'A language model must be causal.* model\.causal=False'),
  (
    {'optimizer.b1': 2},
    ValueError,
    r'optimizer\.b1 must be a finite number of at least 0 and below 1',
  ),
  ({'optimizer.clip_norm': 0}, ValueError, r'optimizer\.clip_norm must be a finite number above 0'),
  ({'model.activation': 'one_hot'}, ValueError, "turn an array into another .* got 'one_hot'"),
  ({'model.activation': 'gelo'}, ValueError, "name in jax.nn, but got 'gelo'; did you mean 'gelu'"),
  ({'model.norm': 'Linear'}, ValueError, r"model\.norm must be one of .* but got 'Linear'"),
  ({'model.dtype': 'float16'}, ValueError, r"model\.dtype must be one of 'float32', 'bfloat16'"),
  ({'attention.implementation': 'fast'}, ValueError, "implementation must be .* but got 'fast'"),
  (
    {'scheme': 'complex_order', 'model.dtype': 'bfloat16'},
    ValueError,
    'complex embeddings, of two',
  ),
  ({'model.width': 2**30}, ValueError, 'should fit into the .* GB of a device'),
  (
    {'task.prompt': 'a\udcff'},
    ValueError,
    r"task\.prompt must be Unicode text, but got 'a\\udcff'",
  ),
]


@pytest.mark.parametrize(('changes', 'error', 'message'), WRONG)
def test_a_wrong_config_is_refused_before_anything_is_written(
  tmp_path, changes, error, message, unchecked
):
  with pytest.raises(error, match=message):
    train(small(**changes), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_a_batch_that_no_memory_holds_is_refused_before_it_is_made(
  tmp_path, monkeypatch, unchecked
):
  monkeypatch.setattr(training, '_memory', lambda device: 10**9)
  with pytest.raises(ValueError, match=r'10,000,000 rows of 32 tokens .* need 41\.0 GB'):
    setup(small(batch_size=10**7), tmp_path / 'run')


def test_an_empty_file_is_refused(tmp_path, unchecked):
  (tmp_path / 'empty.txt').touch()
  with pytest.raises(ValueError, match=r'empty\.txt'):
    train(small(**{'task.data': f'file:{tmp_path}/empty.txt'}), tmp_path / 'run')


def test_checkpoints_of_an_earlier_versions_model_are_refused_before_training(tmp_path):
  """Its arrays have the same shapes, and other names."""
  config = small(steps=3)
  prepared = setup(config, tmp_path)
  params = nnx.to_pure_dict(prepared.state.params)
  params['words'] = params.pop('embed')
  earlier = prepared.state._replace(params=params)
  (tmp_path / 'config.json').write_text(config.to_json_best_effort())
  choice = checkpoint.choose(config, {'loss': False})
  with checkpoint.manager(tmp_path / 'checkpoints', choice) as checkpoints:
    checkpoint.save(checkpoints, 3, earlier, prepared.data)
  with pytest.raises(ValueError, match=r'another model .*embed/table.* \(256, 32\), but has none'):
    setup(config, tmp_path)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The folder of a run of a toy task that is over, and its points."""
  folder = tmp_path_factory.mktemp('trained')
  (folder / 'points.txt').write_text(POINTS)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, 'draw', lambda *arguments: None)
    train(line(folder / 'points.txt'), folder / 'run')
  return folder


def test_how_a_grid_is_reported_does_not_make_another_run(trained):
  setup(line(trained / 'points.txt', **{'compare.quality': 'tokens'}), trained / 'run')


def test_a_folder_of_another_run_is_refused_and_kept(trained):
  before = contents(trained / 'run')
  with pytest.raises(ValueError, match='holds a run with another scheme, steps'):
    train(line(trained / 'points.txt', steps=7, scheme='rope'), trained / 'run')
  assert contents(trained / 'run') == before


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
  wild = {'optimizer.learning_rate': 1e30, 'optimizer.warmup_steps': 0}
  with pytest.raises(FloatingPointError, match=r'after step .* or the learning rate is too high'):
    train(small(**wild), tmp_path)


@pytest.mark.parametrize(
  ('flag', 'status', 'message'),
  [
    slow('--config.schme=rope', 2, "The config has no such key: 'schme'. Did you mean"),
    slow('--config.steps=many', 2, 'flag --config.steps=many: invalid literal'),
    slow('--config=configs/nowhere.py', 1, "but got 'configs/nowhere.py'."),
    ('--config.scheme=ropee', 1, "did you mean 'rope'"),
  ],
)
def test_the_command_line_says_one_sentence_and_no_traceback(tmp_path, flag, status, message):
  process = start(tmp_path / 'run', tmp_path / 'cache', flag)
  error = process.communicate(timeout=120)[1]
  assert process.returncode == status
  assert message in error
  assert error.startswith('train.py: error: ')
  assert error.count('\n') == 1
  assert not (tmp_path / 'run').exists()
