"""What train.py refuses: in one sentence, and before anything is written."""

import pytest
from flax import nnx

from posjax.experiment import checkpoint
from tests.experiment.runs import small, start
from train import setup, train

WRONG = [
  ({'scheme': 'ropee'}, ValueError, "Unknown scheme 'ropee'; did you mean 'rope'"),
  ({'scheme': 'rope(bse=3)'}, ValueError, "Wrong arguments for scheme 'rope'.*'bse'.*It takes"),
  ({'model.num_heads': 5}, ValueError, 'num_heads must divide the width 32, but got 5'),
  ({'model.num_kv_heads': 3}, ValueError, 'key heads must divide the query heads'),
  ({'scheme': 'rope', 'model.num_heads': 32}, ValueError, 'RoPE turns pairs'),
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
  ({'optimizer.warmup_steps': 12}, ValueError, r'warmup_steps must be in \[0, 12\)'),
  ({'log_every': 0}, ValueError, 'log_every must be at least 1'),
  ({'model.window': 0}, ValueError, 'window must be at least 1'),
]


@pytest.mark.parametrize(('changes', 'error', 'message'), WRONG)
def test_a_wrong_config_is_refused_before_anything_is_written(
  tmp_path, changes, error, message, unchecked
):
  with pytest.raises(error, match=message):
    train(small(**changes), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


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


def test_how_a_grid_is_reported_does_not_make_another_run(tmp_path):
  config = small(steps=3)
  train(config, tmp_path)
  setup(small(**{'steps': 3, 'compare.quality': 'tokens'}), tmp_path)


def test_a_folder_of_another_run_is_refused_and_kept(tmp_path):
  train(small(steps=3), tmp_path)
  kept = (tmp_path / 'metrics.jsonl').read_bytes()
  with pytest.raises(ValueError, match='holds a run with another scheme, steps'):
    train(small(steps=4, scheme='rope'), tmp_path)
  assert (tmp_path / 'metrics.jsonl').read_bytes() == kept


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
  wild = {'optimizer.learning_rate': 1e30, 'optimizer.warmup_steps': 0}
  with pytest.raises(FloatingPointError, match=r'after step .* or the learning rate is too high'):
    train(small(**wild), tmp_path)


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--config.schme=rope', 'schme'),
    ('--config.steps=many', 'many'),
    ('--config=configs/nowhere.py', 'nowhere'),
    ('--config.scheme=ropee', "did you mean 'rope'"),
  ],
)
def test_the_command_line_says_one_sentence_and_no_traceback(tmp_path, flag, message):
  process = start(tmp_path / 'run', tmp_path / 'cache', flag)
  error = process.communicate(timeout=120)[1]
  assert process.returncode != 0
  assert message in error
  assert 'Traceback' not in error
  assert not (tmp_path / 'run').exists()
