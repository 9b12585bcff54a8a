"""A new task is its file, and no edit elsewhere: two toys, trained, resumed, compared and asked.

One stands in a folder that is added to the registry, the other in a module of its own that the
config names by its path.
"""

import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

import posjax
from configs import default
from posjax.experiment import ask, interrupt, record, report, run, task, tasks
from posjax.experiment.compare import page, results
from posjax.experiment.compare.cell import run_cell
from posjax.experiment.compare.grid import cells
from posjax.experiment.compare.summary import summarize
from posjax.experiment.compare.table import print_tables
from posjax.experiment.evaluation import add, check
from posjax.experiment.settings import Rules
from tests.experiment.support import judged
from tests.experiment.toys import chain, spelling
from tests.support.paths import ROOT

TOYS = ROOT / 'tests' / 'experiment' / 'toys'


@pytest.fixture(scope='module')
def outside(tmp_path_factory):
  """A folder with `spelling/task.py`, in the registry; and a package `mine` on Python's path."""
  place = tmp_path_factory.mktemp('outside')
  (place / 'folder' / 'spelling').mkdir(parents=True)
  (place / 'folder' / 'spelling' / '__init__.py').touch()
  shutil.copy(TOYS / 'spelling.py', place / 'folder' / 'spelling' / 'task.py')
  (place / 'mine').mkdir()
  (place / 'mine' / '__init__.py').touch()
  shutil.copy(TOYS / 'chain.py', place / 'mine')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tasks, '__path__', [*tasks.__path__, str(place / 'folder')])
    patch.syspath_prepend(str(place))
    yield place
  spelling_names = 'posjax.experiment.tasks.spelling', 'posjax.experiment.tasks.spelling.task'
  for name in ('mine', 'mine.chain', *spelling_names):
    sys.modules.pop(name, None)


@pytest.fixture(scope='module')
def trained(outside):
  """What each task learned, by its name, as it was printed, too."""
  shown = io.StringIO()
  with contextlib.redirect_stdout(shown):
    return {
      name: run.train(config(name), outside / 'runs' / name) for name in ('spelling', 'mine.chain')
    }, shown


def config(name, **changes):
  """The default, with another task and model: a file of configs/ would say the same."""
  c = default.get_config()
  own = {
    'spelling': {'data': 'random words', 'held_out': 40},
    'mine.chain': {'length': 4, 'held_out': 28},
  }
  c.task = ConfigDict({'name': name, **own[name]})
  c.model = ConfigDict({'width': 32})
  c.scheme = 'rope'
  small = {
    'steps': 200,
    'batch_size': 16,
    'log_every': 1,
    'eval_every': 50,
    'checkpoint_every': 40,
    'optimizer.warmup_steps': 2,
    'optimizer.learning_rate': 3e-2,
  }
  c.update_from_flattened_dict({**small, **changes})
  return c


# Either runs once by default: the other one's training is in the fixture.
SPELLING, CHAIN = (
  pytest.mark.parametrize(
    'name',
    [
      name if name == often else pytest.param(name, marks=pytest.mark.slow)
      for name in ('spelling', 'mine.chain')
    ],
  )
  for often in ('spelling', 'mine.chain')
)


@SPELLING
def test_a_task_from_outside_trains_and_resumes_to_the_same_losses_and_scores(
  name, trained, tmp_path, monkeypatch
):
  whole = trained[0][name]
  assert whole.history[-1]['loss'] < 0.8 * whole.history[0]['loss']
  calls = itertools.count(1)

  @contextlib.contextmanager
  def stopping():
    yield lambda: next(calls) == 37

  monkeypatch.setattr(run, 'interrupts', stopping)
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  assert run.train(config(name), tmp_path / 'again') is None
  monkeypatch.setattr(run, 'interrupts', interrupt.interrupts)
  resumed = run.train(config(name), tmp_path / 'again')
  losses = [[row.get('loss') for row in one.history] for one in (whole, resumed)]
  assert losses[0] == losses[1]
  assert resumed.scores == whole.scores
  assert resumed.sample == whole.sample


def test_a_metric_of_the_corpus_sees_every_sentence_once_at_the_end_alone(trained):
  result = trained[0]['spelling']
  assert not [row for row in result.history if 'eval_corpus' in row]
  assert [row['step'] for row in result.history if 'forced/loss' in row] == [50, 100, 150]
  # By hand: each held-out word on its own, and letters counted over all of them.
  held = spelling.words(1, 40)
  read = jax.jit(lambda source: result.model(source))
  said = [
    spelling.text(np.asarray(read(spelling.numbers(word, spelling.SOURCE)[None]))[0].argmax(-1))
    for word in held
  ]
  true = [''.join(c for c in word[::-1] if c in 'bcd')[:4] for word in held]
  right = sum(
    min(Counter(s)[c], Counter(t)[c]) for s, t in zip(said, true, strict=True) for c in 'abcde'
  )
  total, wanted = len(''.join(said)), len(''.join(true))
  score = result.scores['held out']
  assert score.values['corpus'] == pytest.approx(100 * right / total * min(1, total / wanted))
  assert 0 < score.values['corpus'] < 100
  assert score.counted == 40
  written = json.loads((result.workdir / 'results.json').read_text())
  known = {**score.values, 'counted': 40, 'why': ''}
  assert written['scores']['held out'].items() >= known.items()


def test_batches_of_two_shapes_say_their_own_tokens():
  rows = spelling.batch(['badce', 'ee'])
  assert task.count_tokens(rows) == 5 + 3 + 2 + 0
  assert task.count_tokens({'short': np.zeros((2, 1)), 'inputs': np.zeros((2, 7))}) == 14


def test_the_loss_of_a_row_is_that_of_all_its_sequences_of_tags():
  """Against all 81 sequences of four tags, in float64."""
  rng = np.random.default_rng(0)
  scores, follows = rng.normal(size=(2, 4, 3)), rng.normal(size=(3, 3))
  right = np.array([[0, 2, 1, 1], [2, 2, 0, 1]])
  score = lambda row, tags: (
    sum(scores[row, t, tag] for t, tag in enumerate(tags))
    + sum(follows[a, b] for a, b in itertools.pairwise(tags))
  )
  every = list(itertools.product(range(3), repeat=4))
  arrays = jnp.asarray(scores, jnp.float32), jnp.asarray(follows, jnp.float32)
  losses = chain.row_losses(*arrays, jnp.asarray(right))
  best = chain.best_tags(*arrays)
  for row in range(2):
    all_scores = np.array([score(row, tags) for tags in every])
    expected = np.log(np.exp(all_scores).sum()) - score(row, right[row])
    assert losses[row] == pytest.approx(expected, rel=1e-5)
    assert tuple(best[row].tolist()) == every[all_scores.argmax()]


def test_a_loss_of_whole_rows_learns_and_its_scores_are_those_of_rows_one_by_one(trained):
  result = trained[0]['mine.chain']
  read = jax.jit(lambda inputs: result.model(inputs))
  best_tags, row_losses = jax.jit(chain.best_tags), jax.jit(chain.row_losses)
  assert result.scores['4 words'].values['rows'] > 0.9
  for width in (4, 8):
    right, nats = [], []
    for i in range(4):
      rows = chain.batch((1, i), 7, width)
      scores, follows = read(rows['inputs'])
      found = best_tags(scores, follows)
      right += (np.asarray(found) == rows['tags']).all(1).tolist()
      nats += row_losses(scores, follows, jnp.asarray(rows['tags'])).tolist()
    numbers = result.scores[f'{width} words'].values
    assert numbers['rows'] == pytest.approx(np.mean(right))
    assert numbers['nats'] == pytest.approx(np.mean(nats), rel=1e-4)
  shown = trained[1].getvalue()
  assert '% of rows right' in shown
  assert '2x' in shown
  evaluated = [row for row in result.history if 'eval_rows' in row]
  assert [row['step'] for row in evaluated] == [50, 100, 150]
  assert evaluated[1].keys() == {'step', 'eval_rows', 'eval_nats'}


@pytest.mark.slow
def test_a_task_from_outside_is_asked_in_batches_with_styled_text_and_a_picture(
  trained, tmp_path, monkeypatch, capsys
):
  result = trained[0]['mine.chain']
  texts = ['0 3 3 1', '2 1 1 2']
  with pytest.raises(
    ValueError, match=r"The task 'mine\.chain' comes from .* module 'mine\.chain'"
  ):
    ask.load(result.workdir)
  asked, model = ask.load(result.workdir, allow_imports=True)
  answers = asked.answer(model, texts, jax.random.key(0))
  assert answers[0].plain == result.sample
  alone = [asked.answer(model, [text], jax.random.key(0))[0].plain for text in texts]
  assert [answer.plain for answer in answers] == alone
  assert [len(answer.styled.spans) for answer in answers] == [4, 4]
  capsys.readouterr()
  command = ['ask', f'--workdir={result.workdir}', '--allow-imports']
  monkeypatch.setattr(sys, 'argv', [*command, f'--plot={tmp_path}/tags.png', *texts])
  ask.main()
  assert capsys.readouterr().out.splitlines() == alone
  assert (tmp_path / 'tags.png').read_bytes().startswith(b'\x89PNG')
  monkeypatch.setattr(sys, 'argv', [*command, '0 9', '1'])
  with pytest.raises(SystemExit, match=r'ask: error: Texts should be as long as one another'):
    ask.main()


def test_without_pictures_plot_is_refused_in_one_sentence(trained, tmp_path, monkeypatch):
  result = trained[0]['spelling']
  assert result.sample.splitlines()[0] == 'asked    badce'
  assert result.sample.splitlines()[2] == 'right    cdb'
  command = ['ask', f'--workdir={result.workdir}', f'--plot={tmp_path}/no.png', 'badce']
  monkeypatch.setattr(sys, 'argv', command)
  with pytest.raises(SystemExit, match='--plot needs a task whose answers have pictures'):
    ask.main()


@CHAIN
def test_a_task_from_outside_is_compared_by_its_own_metrics(
  name, outside, tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  plain = config(name, steps=30, eval_every=20)
  with plain.unlocked():
    del plain['compare']
  grid = cells(plain, ['none', 'rope'], [], seeds=1)
  for cell in grid:
    row = {'id': cell.id, 'scheme': cell.scheme, 'axes': {}, 'seed': cell.seed}
    row |= run_cell(cell.config, tmp_path / cell.id)
    record.append(tmp_path / 'results.jsonl', row)
  there = results.read(tmp_path)
  headline, other, best = {
    'spelling': ('corpus', None, 100.0),
    'mine.chain': ('rows', 'nats', 100.0),
  }[name]
  found = summarize(grid, there, 'none', Rules('', '', 0.01, 0.0))
  assert (found.measure.name, found.measure.best) == (headline, best)
  first = next(iter(there[grid[0].id]['evaluations']))
  scale = found.measure.scale
  expected = np.mean([there[cell.id]['scores'][first][headline] * scale for cell in grid[:1]])
  assert found.rows[0].trained.mean == pytest.approx(expected)
  print_tables(found)
  assert found.unit in capsys.readouterr().out
  page.write(tmp_path / 'report.html', found)
  if other:
    by_loss = summarize(grid, there, 'none', Rules(other, '', 0.9, 0.0))
    assert by_loss.measure.higher is False
    assert by_loss.rows[0].learned == 1


@pytest.mark.slow
def test_the_commands_find_a_task_by_the_path_of_its_module(outside, tmp_path):
  """Real processes, which know of the task what the config says: about 40 seconds."""
  lines = [
    'from ml_collections import ConfigDict',
    'from configs import default',
    'def get_config():',
    '  c = default.get_config()',
    "  c.task = ConfigDict({'name': 'mine.chain', 'length': 4, 'held_out': 28})",
    "  c.model = ConfigDict({'width': 16})",
    '  c.steps, c.batch_size, c.optimizer.warmup_steps = 20, 16, 2',
    '  return c',
  ]
  path = tmp_path / 'tagging.py'
  path.write_text('\n'.join(lines) + '\n')
  env = {**os.environ, 'PYTHONPATH': f'{outside}{os.pathsep}{ROOT}', 'XLA_FLAGS': ''}

  def command(*arguments):
    done = subprocess.run(
      [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  folder = tmp_path / 'compared'
  shown = command(
    '-m', 'posjax.experiment.compare', f'--config={path}', f'--workdir={folder}',
    '--schemes=none,rope', '--seeds=1',
  )  # fmt: skip
  assert 'Quality: % of rows right' in shown
  shown = command('train.py', f'--config={path}', f'--workdir={tmp_path}/run')
  assert 'nats per row' in shown
  answer = command(
    '-m', 'posjax.experiment.ask', f'--workdir={tmp_path}/run', '--allow-imports', '0 3 3 1'
  )
  assert len(answer.split()) == 4


def test_a_task_is_named_by_a_folder_of_tasks_or_by_the_path_of_a_module(outside):
  assert 'spelling' in task.names()
  assert task.get_task('spelling').__module__ == 'posjax.experiment.tasks.spelling.task'
  assert task.get_task('mine.chain').__module__ == 'mine.chain'
  (outside / 'mine' / 'empty.py').touch()
  (outside / 'mine' / 'broken.py').write_text('import nothing_of_the_kind\n')
  for name, message in (
    ('speling', "Unknown task 'speling'; did you mean 'spelling'"),
    ('yours.chain', "'yours.chain' should be a module that Python finds, .* no 'yours'"),
    ('mine.chains', "'mine.chains' should be a module that Python finds, .* no 'mine.chains'"),
    ('mine.empty', "'mine.empty' should have a function `task`, but it has none"),
  ):
    with pytest.raises(ValueError, match=message):
      task.get_task(name)
  with pytest.raises(ModuleNotFoundError, match='nothing_of_the_kind'):
    task.get_task('mine.broken')


def test_sums_are_added_part_by_part_or_by_their_own_addition():
  one = {'text': ['a'], 'count': (1, 2.0), 'all': Counter(x=1), 'array': np.array([1, 2])}
  two = {'text': ['b'], 'count': (3, 0.5), 'all': Counter(y=2), 'array': np.array([10, 20])}
  total = add(one, two)
  assert total['text'] == ['a', 'b']
  assert total['count'] == (4, 2.5)
  assert total['all'] == Counter(x=1, y=2)
  assert total['array'].tolist() == [11, 22]


def toy():
  arguments = {'seed': 0, 'batch_size': 4, 'length': 4, 'held_out': 7}
  return chain.task([posjax.get('rope')], {'width': 8}, **arguments)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda e: (), 'evaluations with different names, but got none'),
    (lambda e: (e[0], e[0]), "different names, but got '4 words' twice"),
    (lambda e: e[::-1], "should have the role 'trained', but '8 words' has 'unseen'"),
    (
      lambda e: (e[0], e[1]._replace(role='longer')),
      "The role of '8 words' should be one of trained, unseen, training rows, other, but is 'long",
    ),
    (lambda e: (e[0]._replace(metrics={}),), "first metric of '4 words' .* a number, but got 'non"),
    (
      lambda e: (e[0]._replace(metrics={'rows': e[0].metrics['rows']._replace(array=True)}),),
      "should be a number, but got 'rows'",
    ),
    (
      lambda e: (e[0]._replace(metrics={'why': e[0].metrics['rows']}),),
      "should not be called counted, why, .* but '4 words' has 'why'",
    ),
  ],
)
def test_what_a_task_says_wrongly_of_its_evaluations_is_one_sentence(change, message, unchecked):
  task = toy()
  with pytest.raises(ValueError, match=message) as error:
    check(task._replace(evaluations=change(task.evaluations)))
  assert '\n' not in str(error.value)


def test_a_prediction_needs_a_row_for_each_row_of_its_batch():
  task = toy()
  short = lambda model, batch, state, key: ({'found': batch['tags'][:3]}, state)
  wrong = task.evaluations[0]._replace(predict=short)
  with pytest.raises(ValueError, match=r'a row for each of the 7 rows .* an array of shape \(3, 4'):
    judged.score(wrong, task.model(nnx.Rngs(0)))
