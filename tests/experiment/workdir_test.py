"""Faults of a work folder: told in one sentence before anything is written, and nothing is lost."""

import json
import os
import re
import resource
import shutil
import subprocess
import threading
import time

import pytest

from posjax.experiment import locks, report, run, trained
from posjax.experiment import workdir as workdirs
from posjax.experiment.compare.cell import run_cell, steps_done
from tests.experiment.support.faults import (
  POINTS,
  after,
  at_each_step,
  contents,
  copied,
  line,
  stopped_run,
)
from tests.experiment.support.runs import ROOT
from train import setup, train

HASH = r'[0-9a-f]{64}'


@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
  """A run that can go on; tests copy it."""
  with pytest.MonkeyPatch.context() as patched:
    return stopped_run(tmp_path_factory.mktemp('stopped') / 'made', patched)


@pytest.fixture
def folder(stopped, tmp_path):
  return copied(stopped, tmp_path / 'run')


@pytest.fixture
def config(stopped):
  return line(stopped.parent / 'points.txt')


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)


def refused(config, folder, error, message):
  """One sentence, before anything is written."""
  before = contents(folder)
  with pytest.raises(error, match=message) as told:
    setup(config, folder)
  assert contents(folder) == before
  assert '\n' not in str(told.value)


def steps_of(result):
  return [row['step'] for row in result.history if 'loss' in row]


# Two runs in one folder.


def test_a_second_run_is_refused_and_told_which_process_holds_the_folder(
  folder, config, monkeypatch
):
  monkeypatch.setattr(locks, 'PATIENCE', 0.1)
  begun = setup(config, folder)  # before the other one took the folder
  holder = rf'is in use by process {os.getpid()} on \S+, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d;'
  with workdirs.held(folder):
    refused(config, folder, locks.Busy, holder)
    before = contents(folder)
    with pytest.raises(locks.Busy, match=holder):
      run.run(begun)
    assert contents(folder) == before
  setup(config, folder)


def test_what_another_run_did_between_setup_and_run_is_seen(folder, config, tmp_path):
  begun = setup(config, tmp_path / 'new')
  copied(folder, tmp_path / 'new')
  (tmp_path / 'new' / 'config.json').write_text(line('other', seed=7).to_json_best_effort())
  with pytest.raises(ValueError, match='holds a run with another seed, task'):
    run.run(begun)


@pytest.mark.parametrize('replaced', [True, False])
@pytest.mark.parametrize('when', ['in training', 'at the end'])
def test_a_folder_that_is_deleted_or_replaced_ends_its_run_and_the_new_one_is_left_alone(
  when, replaced, stopped, config, tmp_path, monkeypatch
):
  place = tmp_path / 'run'

  def happen(*_):
    place.rename(tmp_path / 'away')
    if replaced:
      copied(stopped, place)

  if when == 'in training':
    at_each_step(monkeypatch, after(3, lambda: wait_for(place / 'checkpoints' / '2') or happen()))
  else:
    monkeypatch.setattr(report, 'draw', happen)
  with pytest.raises(locks.Gone, match=r'run, or \.lock in it, was deleted, moved or replaced'):
    train(config, place)
  assert (contents(place) == contents(stopped)) if replaced else not place.exists()


# Other data than before.


def test_changed_data_are_refused_with_both_hashes_or_allowed_and_told(folder, tmp_path, capsys):
  points = tmp_path / 'points.txt'
  points.write_text(POINTS)
  config = line(points)
  text = (folder / 'config.json').read_text()
  (folder / 'config.json').write_text(config.to_json_best_effort())
  assert text != config.to_json_best_effort()
  old = json.loads((folder / 'data.json').read_text())['seen']
  points.write_text(POINTS + '5 11\n')
  refused(config, folder, ValueError, rf'sha256 {old[0]["sha256"]}, but the data now have {HASH}:')
  result = train(config, folder, allow_changed_data=True)
  new = json.loads((folder / 'results.json').read_text())['seen']
  assert new == result.data_history == [*old, {'sha256': new[1]['sha256'], 'from_step': 5}]
  assert new[1]['sha256'] != new[0]['sha256']
  told = f'their sha256 was {old[0]["sha256"]} after step 0, {new[1]["sha256"]} after step 5.'
  assert capsys.readouterr().out.count(told) == 2  # where it goes on, and in the report
  setup(config, folder)  # from here on, these are the data of the run


def test_a_cell_on_other_data_than_those_it_is_compared_with_is_refused(config, tmp_path):
  with pytest.raises(ValueError, match=f'This run would have data {HASH}, not {"0" * 64}, by'):
    run_cell(config, tmp_path / 'cell', data={'data': '0' * 64})
  assert not (tmp_path / 'cell').exists()


def test_a_folder_of_a_version_without_hashes_goes_on_and_says_so(folder, config, capsys):
  (folder / 'data.json').unlink()
  train(config, folder)
  assert 'the hash of the data was not noted' in capsys.readouterr().out
  assert len(json.loads((folder / 'data.json').read_text())['seen']) == 1


# Files that are something else.


@pytest.mark.parametrize('name', [*workdirs.FILES, *workdirs.FOLDERS])
def test_a_file_where_a_folder_belongs_or_the_other_way_is_refused(name, folder, config):
  path = folder / name
  if name in workdirs.FOLDERS:
    shutil.rmtree(path, ignore_errors=True)
    path.write_text('')
  else:
    path.unlink(missing_ok=True)
    path.mkdir()
  refused(config, folder, OSError, f'{re.escape(str(path))} .*is no')


@pytest.mark.parametrize('place', ['file', 'file/below/it', '/dev/null', '/dev/null/below'])
def test_a_work_folder_that_cannot_be_one_is_refused(place, config, tmp_path):
  (tmp_path / 'file').write_text('mine')
  with pytest.raises(NotADirectoryError, match=r'should be the folder of a run, but \S+ is no fo'):
    setup(config, tmp_path / place)
  assert contents(tmp_path) == {'file': b'mine'}


def protected(folder, yes):
  """Takes the right to write into a folder, or gives it back; root needs another means."""
  if os.getuid():
    folder.chmod(0o500 if yes else 0o700)
  elif subprocess.run(['chattr', '+i' if yes else '-i', folder], capture_output=True).returncode:
    pytest.skip('root may write everywhere, and this file system knows no chattr')


@pytest.mark.parametrize('below', ['', 'run'])
def test_a_folder_that_cannot_be_written_to_is_refused(below, config, tmp_path):
  protected(tmp_path, True)
  try:
    with pytest.raises(PermissionError, match='cannot be written to'):
      setup(config, tmp_path / below)
  finally:
    protected(tmp_path, False)


BAD = [b'[]', b'null', b'{"seed": 0, "st', b'', b'\xff\xfe', b'[' * 100_000, b'7']


@pytest.mark.parametrize('content', BAD, ids=lambda content: repr(content)[:12])
def test_a_json_file_that_holds_something_else_is_refused(content, folder, config):
  for name in ('config.json', 'data.json', 'vocabulary.json'):
    whole = (folder / name).read_bytes() if (folder / name).exists() else None
    (folder / name).write_bytes(content)
    refused(config, folder, ValueError, f'{name} should hold .* as JSON, but holds')
    if name == 'config.json':
      with pytest.raises(ValueError, match=r'config\.json should hold'):
        trained.read_config(folder)
    if whole:
      (folder / name).write_bytes(whole)


def test_json_of_another_form_is_refused(folder, config):
  whole = json.loads((folder / 'config.json').read_text())
  for key in ('optimizer', 'steps', 'seed'):
    (folder / 'config.json').write_text(json.dumps({**whole, key: None}))
    refused(config, folder, ValueError, f'holds a run with another {key}')
  with pytest.raises(ValueError, match=r'config\.json: seed must be .* but got None'):
    trained.read_config(folder)
  (folder / 'config.json').write_text(json.dumps(whole))
  (folder / 'data.json').write_text('{"seen": [3]}')
  refused(config, folder, ValueError, r'hashes of the data of a run under "seen", but holds \[3\]')


def test_a_folder_without_its_config_is_refused(folder, config, tmp_path):
  (folder / 'config.json').unlink()
  refused(config, folder, ValueError, r'should hold config\.json beside data\.json, metrics')
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'results.json').write_text('mine')
  refused(config, tmp_path / 'other', ValueError, r'beside results\.json, but has none')


LINES = ['[]', 'null', '{"loss": 1}', '{"step": "1"}', '{"step": 1, "loss": "x"}', '{"st', '\xff']


@pytest.mark.parametrize('bad', LINES)
def test_a_bad_line_of_the_losses_is_named_before_anything_is_written(bad, folder, config):
  path = folder / 'metrics.jsonl'
  first, *rest = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b''.join([first, bad.encode('latin-1'), b'\n', *rest]))
  refused(config, folder, ValueError, r'metrics\.jsonl, line 2, should be the losses after a step')
  assert steps_done(folder) == 0  # a comparison goes on with its other runs


@pytest.mark.parametrize(
  ('kept', 'told'),
  [
    (None, 'metrics.jsonl holds no row, or was taken away, while the checkpoint is one after ste'),
    (3, 'metrics.jsonl ends after step 3, while the checkpoint is one after step 5: the losses'),
  ],
)
def test_lost_losses_are_told_and_the_run_goes_on(kept, told, folder, config, capsys):
  path = folder / 'metrics.jsonl'
  rows = [json.loads(row) for row in path.read_text().splitlines()]
  if kept:
    path.write_text(''.join(f'{json.dumps(row)}\n' for row in rows if row['step'] <= kept))
  else:
    path.unlink()
  result = train(config, folder)
  assert told in capsys.readouterr().out
  assert steps_of(result) == [*range(1, (kept or 0) + 1), 6]


def test_lost_checkpoints_are_told_and_training_begins_again(folder, config, capsys):
  shutil.rmtree(folder / 'checkpoints')
  result = train(config, folder)
  assert 'there is no checkpoint to go on from, so training begins' in capsys.readouterr().out
  assert steps_of(result) == [1, 2, 3, 4, 5, 6]


# Steps that are made already.


@pytest.mark.parametrize('steps', [3, 5])
def test_steps_that_are_reached_make_a_report_and_change_nothing_else(
  steps, folder, stopped, capsys
):
  before = contents(folder)
  result = train(line(stopped.parent / 'points.txt', steps=steps), folder)
  told = f'step {steps} is reached: the checkpoint is one after step 5, and none is left'
  assert told in capsys.readouterr().out
  assert result.scores['all points'].values['loss'] > 0
  now = contents(folder)
  assert [name for name in before if now.get(name) != before[name]] == []
  whole = train(line(stopped.parent / 'points.txt'), folder)  # and the run can still be ended
  assert steps_of(whole) == [1, 2, 3, 4, 5, 6]


def test_other_steps_that_are_not_reached_are_another_run(folder, stopped):
  for steps, told in {7: 'holds a run with another steps', 0: 'steps must be .* but got 0'}.items():
    refused(line(stopped.parent / 'points.txt', steps=steps), folder, ValueError, told)


# A folder that becomes unwritable.


def ends(config, folder) -> BaseException:
  """The error with which a run ends, within a minute."""
  found = []

  def work():
    try:
      train(config, folder)
    except BaseException as error:
      found.append(error)

  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  thread.join(60)
  assert not thread.is_alive(), 'the run hangs'
  return found[0]


def wait_for(path):
  """Checkpoints are written while the next steps are made."""
  deadline = time.monotonic() + 30
  while not path.exists() and time.monotonic() < deadline:
    time.sleep(0.01)


def steps_saved(folder):
  return sorted(path.name for path in folder.iterdir() if path.name.isdigit())


def test_checkpoints_that_become_a_file_end_the_run_in_one_sentence(
  config, tmp_path, monkeypatch, caplog
):
  saved = tmp_path / 'run' / 'checkpoints'

  def replace():
    wait_for(saved / '2')
    saved.rename(tmp_path / 'away')
    saved.write_text('')

  at_each_step(monkeypatch, after(3, replace))
  error = ends(config, tmp_path / 'run')
  assert isinstance(error, workdirs.Unwritten)
  assert re.search(r'could not be written to .*Not a directory.*what was saved before', str(error))
  assert not caplog.records  # Orbax would log a traceback
  assert steps_saved(tmp_path / 'away') == ['2']
  saved.unlink()
  (tmp_path / 'away').rename(saved)
  at_each_step(monkeypatch, after(7, first=3))
  result = train(config, tmp_path / 'run')
  assert steps_of(result) == [1, 2, 3, 4, 5, 6]


def test_permission_that_is_lost_ends_the_run_in_one_sentence(config, tmp_path, monkeypatch):
  saved = tmp_path / 'run' / 'checkpoints'

  def protect():
    wait_for(saved / '2')
    protected(saved, True)

  at_each_step(monkeypatch, after(3, protect))
  try:
    error = ends(config, tmp_path / 'run')
  finally:
    protected(saved, False)
  assert isinstance(error, workdirs.Unwritten)
  assert 'what was saved before stays' in str(error)
  assert steps_saved(saved) == ['2']


def wait_until_nothing_is_written(folder):
  """Threads of a write that failed may go on in this process, which does not end as a run does."""
  before = None
  while (now := sorted(folder.rglob('*'))) != before:
    before = now
    time.sleep(0.2)


@pytest.mark.parametrize('room', [10, 1100])
def test_a_full_disk_ends_the_run_in_one_sentence_and_leaves_what_was_saved(
  room, config, tmp_path, monkeypatch
):
  """A real limit of the size of files: for the losses, and for the next checkpoint."""
  metrics = tmp_path / 'run' / 'metrics.jsonl'
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

  def fill():
    wait_for(metrics.parent / 'checkpoints' / '2')
    limit = metrics.stat().st_size + room
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

  at_each_step(monkeypatch, after(3, fill))
  try:
    error = ends(config, tmp_path / 'run')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert isinstance(error, workdirs.Unwritten)
  assert 'File too large' in str(error)
  assert 'what was saved' in str(error)
  assert steps_saved(tmp_path / 'run' / 'checkpoints') == ['2']
  wait_until_nothing_is_written(tmp_path / 'run')
  at_each_step(monkeypatch, after(7, first=3))
  result = train(config, tmp_path / 'run')
  assert steps_of(result) == [1, 2, 3, 4, 5, 6]


def test_each_fault_of_the_table_has_a_test_of_that_name():
  lines = (ROOT / 'docs' / 'faults.md').read_text().splitlines()
  rows = [line for line in lines if line.startswith('|')][2:]
  files = [path.read_text() for path in (ROOT / 'tests' / 'experiment').rglob('*_test.py')]
  there = set(re.findall(r'^def (test_\w+)', '\n'.join(files), re.MULTILINE))
  assert len(rows) > 20
  for row in rows:
    named = re.findall(r'`(test_\w+)`', row.split('|')[3])
    assert named, row
    assert set(named) <= there, row
