"""One run, from its config to its report: what train.py does, and each cell of a comparison."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from ml_collections import ConfigDict

import posjax
from posjax.experiment import (
  checkpoint,
  evaluation,
  optimizer,
  plain,
  report,
  settings,
  sharding,
  training,
  unreadable,
)
from posjax.experiment import workdir as work_folder
from posjax.experiment.evaluation import Score, higher
from posjax.experiment.interrupt import interrupts
from posjax.experiment.record import Bar, Record, lost_rows, read
from posjax.experiment.task import Ask, Evaluation, Task, count_tokens, get_task


class Setup(NamedTuple):
  """A run before its first step: everything is checked, and nothing written."""

  config: ConfigDict
  workdir: Path
  task: Task
  mesh: jax.sharding.Mesh
  graph: Any
  state: training.State
  step: Any
  data: Any
  last: int  # the step after which to end; that of the config, or an earlier one
  changed_data: bool  # whether to go on though the data are others than those of the folder


class Result(NamedTuple):
  """The end of a run: its model, and how good it is."""

  workdir: Path
  model: nnx.Module
  history: list[dict[str, Any]]  # metrics.jsonl
  scores: dict[str, Score]  # by evaluation
  sample: str  # what it said to the task's examples
  seen: work_folder.Seen  # the data that it was trained on


def train(
  config: ConfigDict,
  workdir: str | Path,
  schemes: Sequence[posjax.Scheme] = (),
  allow_changed_data: bool = False,
) -> Result | None:
  """Trains, or goes on training, and reports. None if it was interrupted (and saved).

  Args:
    config: as in configs/default.py.
    workdir: the folder of the run.
    schemes: of your own, repeated over the layers; config.scheme is then only their name.
    allow_changed_data: whether a run goes on though its data changed since it began.
  """
  return run(setup(config, workdir, schemes, allow_changed_data))


def setup(
  config: ConfigDict,
  workdir: str | Path,
  schemes: Sequence[posjax.Scheme] = (),
  allow_changed_data: bool = False,
) -> Setup:
  """Builds the run. Raises ValueError, TypeError or OSError for whatever the config gets wrong.

  The folder is checked, too: whatever in it cannot be read is told before anything is written.
  """
  workdir = Path(workdir)
  settings.check(config)
  last = config.steps
  work_folder.check_place(workdir)
  config = config_there(config, workdir)
  read(workdir / work_folder.METRICS)
  mesh = sharding.make_mesh(**config.mesh)
  sharding.check_batch(config.batch_size, mesh)
  transform = optimizer.make(config.steps, **config.optimizer)
  task = make_task(config, workdir, schemes)
  check_data(task, workdir, allow_changed_data)
  evaluation.check(task)
  checkpoint.choose(config, higher(task))  # refuses what it cannot do before anything is trained
  graph, state = training.create(task, transform, mesh, config.seed)
  reached = checkpoint.check(workdir / work_folder.CHECKPOINTS, state)
  if last != config.steps and not 0 < last <= reached:
    raise work_folder.another(workdir, ['steps'])
  training.check_batch(task, config.batch_size, config.model.get('width', 1), mesh)
  step = training.make_step(task, graph, transform, config.seed, mesh)
  data = iter(task.train_batches(jax.process_index(), jax.process_count()))
  first = next(iter(task.train_batches(jax.process_index(), jax.process_count())))
  evaluation.check_first(task, graph, nnx.merge_state(state.params, state.rest), first, mesh)
  changed = allow_changed_data
  return Setup(config, workdir, task, mesh, graph, state, step, data, last, changed)


def config_there(config: ConfigDict, workdir: Path) -> ConfigDict:
  """The config, with the `steps` of the run in the folder: they shape its learning rate.

  Raises:
    ValueError: if the folder holds a run with another config.
  """
  there = work_folder.check_config(json.loads(config.to_json_best_effort()), workdir)
  if there is None or there['steps'] == config.steps:
    return config
  config = config.copy_and_resolve_references()
  config.steps = there['steps']
  return config


def check_data(task: Task, workdir: Path, allow: bool) -> work_folder.Seen:
  """The data that the folder's run has seen; refuses other ones, unless they are allowed."""
  seen = work_folder.seen_data(workdir)
  work_folder.check_data([] if allow else seen, task.facts.get('sha256'), workdir)
  return seen


def make_task(config: ConfigDict, workdir: Path, schemes: Sequence[posjax.Scheme] = ()) -> Task:
  """The task of a config, with the vocabulary that the work folder keeps, if it keeps one.

  Raises:
    ValueError: if the config gets something wrong, or that vocabulary is not the one with which the
      folder's run began.
  """
  schemes = tuple(schemes) or [posjax.get(line) for line in config.scheme.split('|')]
  arguments = {'seed': config.seed, 'batch_size': config.batch_size, **config.task.to_dict()}
  stored = work_folder.stored_vocabulary(workdir)
  if stored is not None:
    arguments['vocabulary'] = stored
  task = get_task(arguments.pop('name'))(schemes, config.model.to_dict(), **arguments)
  work_folder.check_vocabulary(task.vocabulary, workdir)
  return task


def run(prepared: Setup) -> Result | None:
  """Steps, records, evaluates and saves, from wherever the work folder stands to the end.

  Raises:
    Busy: if another run works in the folder.
    Gone: if the folder is deleted, moved or replaced meanwhile.
    Unwritten: if the folder cannot be written to any more.
  """
  workdir = prepared.workdir
  with work_folder.held(workdir) as check, work_folder.explained(workdir, check):
    # Another run may have been at work since `setup` looked.
    config_there(prepared.config, workdir)
    seen = check_data(prepared.task, workdir, prepared.changed_data)
    describe(prepared)
    state, seen = learn(prepared, seen, check)
    return None if state is None else finish(prepared, state, seen, check)


def describe(prepared: Setup) -> None:
  """Writes and says what is about to be trained."""
  config, workdir, task = prepared.config, prepared.workdir, prepared.task
  if work_folder.is_first():
    if task.vocabulary is not None:
      work_folder.write_json(workdir / work_folder.VOCABULARY, task.vocabulary)
    work_folder.write_json(workdir / work_folder.CONFIG, json.loads(config.to_json_best_effort()))
  report.introduce(task, config.scheme, prepared.state.params, workdir)


def learn(
  prepared: Setup, seen: work_folder.Seen, check_folder: Callable[[], None]
) -> tuple[training.State | None, work_folder.Seen]:
  """Trains from the last checkpoint on; the state that is scored, None if it was interrupted.

  Args:
    prepared: the run, whose folder is held.
    seen: the data of earlier processes.
    check_folder: of `work_folder.held`.
  """
  config, workdir, task, mesh, _, state, step_fn, data, last, _ = prepared
  folder = workdir / work_folder.CHECKPOINTS
  choice = checkpoint.choose(config, higher(task))
  unreadable.set_aside(folder)
  with checkpoint.manager(folder, choice) as checkpoints, interrupts() as stopped:
    start, state = checkpoint.restore(checkpoints, state, data)
    told = lost_rows(read(workdir / work_folder.METRICS), start, config.log_every)
    if start and not seen and 'sha256' in task.facts:
      print('the hash of the data was not noted when this run began, so they are taken as they are')
    sha256 = task.facts.get('sha256')
    seen = work_folder.note_data(workdir, seen, sha256, start, task.vocabulary)
    with (
      Record(workdir, start, work_folder.is_first(), check_folder) as record,
      Bar(start, last, task.unit.name) as bar,
    ):
      for line in filter(None, (told, started(start, last), work_folder.told_data(seen))):
        bar.say(line)
      clock, tokens = time.monotonic(), 0
      for done in range(start + 1, last + 1):
        batch = next(data)
        state, loss = step_fn(state, sharding.put_batch(batch, mesh), done)
        tokens += count_tokens(batch) * jax.process_count()
        if done % config.log_every == 0 or done == config.steps:
          values = {'loss': training.finite(loss, done) * task.unit.factor}
          values['tokens_per_second'] = tokens / (time.monotonic() - clock)
          record.write(done, **values)
          bar.update(done, values)
          checkpoint.check_saved(checkpoints)
          clock, tokens = time.monotonic(), 0
        scores: dict[str, Score] = {}
        if done % config.eval_every == 0 and done < config.steps:
          scores = judge_during(prepared, state)
          record.write(done, **recorded(task, scores))
          for each in task.evaluations:
            if each.name in scores:
              bar.say(f'step {done:>6}: {report.stated(each, scores[each.name])}')
          clock, tokens = time.monotonic(), 0
        stopping = stopped()  # read once a step: a signal may come at any moment
        if stopping or choice.is_regular(done):
          metrics = None
          if choice.needs_metrics(done):
            scores = scores or judge_during(prepared, state)
            metrics = evaluation.measured(task, scores)
            clock, tokens = time.monotonic(), 0
          check_folder()
          checkpoint.save(checkpoints, done, state, data, metrics)
        if stopping and done < config.steps:
          checkpoint.wait(checkpoints)
          bar.say(f'stopped after step {done}, and saved: the same command resumes')
          return None, seen
  if choice.use != 'last':  # that one is in memory
    state, name = checkpoint.chosen(folder, state, choice)
    print(f'scored and asked: {name}')
  return state, seen


def started(start: int, last: int) -> str:
  """A sentence about where a run goes on; '' for one that begins."""
  if start >= last:
    return f'step {last} is reached: the checkpoint is one after step {start}, and none is left'
  return f'resuming after step {start}' if start else ''


def judge(prepared: Setup, state: training.State, each: Evaluation) -> Score:
  """Scores a model by one of its task's evaluations; ids are drawn alike in all of them."""
  key = jax.random.key(prepared.config.seed)
  both = nnx.merge_state(state.params, state.rest)
  return evaluation.evaluate(each, prepared.graph, both, prepared.mesh, key)


def judge_during(prepared: Setup, state: training.State) -> dict[str, Score]:
  """Scores a model by the evaluations that run during training."""
  during = [each for each in prepared.task.evaluations if each.during]
  return {each.name: judge(prepared, state, each) for each in during}


def recorded(task: Task, scores: Mapping[str, Score]) -> dict[str, float]:
  """Numbers as metrics.jsonl calls them: 'eval_loss' of the headline, else 'EVALUATION/loss'."""
  numbers = evaluation.measured(task, scores)
  return {name if '/' in name else f'eval_{name}': value for name, value in numbers.items()}


def finish(
  prepared: Setup,
  state: training.State,
  seen: work_folder.Seen,
  check_folder: Callable[[], None],
) -> Result:
  """Runs every evaluation, and writes and prints what was learned.

  The scores are on the disk before the examples are asked and the picture is drawn, and neither of
  these can end the run: what could not be done is told in its place.
  """
  workdir, task = prepared.workdir, prepared.task
  scores = {each.name: judge(prepared, state, each) for each in task.evaluations}
  check_folder()
  _write_results(prepared, scores, '', seen)
  model = nnx.merge(prepared.graph, state.params, state.rest)
  sample = ask_examples(task.ask, model, prepared.config.seed) if task.ask else ''
  history = read(workdir / work_folder.METRICS)
  kind = prepared.config.task
  title = f'{prepared.config.scheme}: {kind.get("data", kind.name)}'
  check_folder()
  _write_results(prepared, scores, sample, seen)
  if work_folder.is_first():
    try:
      report.draw(workdir / 'report.png', task, history, scores, title, prepared.config.scheme)
    except OSError:
      raise  # the disk's errors are told as such
    except Exception as error:  # of Matplotlib, or of a task's metrics: the training is worth more
      print(f'report.png could not be drawn: {plain.sentence(error)}')
  check_folder()  # what is listed below is there
  report.print_table(task, scores, title)
  for line in filter(None, (work_folder.told_data(seen), f'\n{sample}\n')):
    print(line)
  for name, what in report.FILES.items():
    print(f'{what:>16}  {workdir / name}')
  return Result(workdir, model, history, scores, sample, seen)


def _write_results(
  prepared: Setup, scores: Mapping[str, Score], sample: str, seen: work_folder.Seen
) -> None:
  """Writes results.json; the first process of a distributed run does it for all."""
  if work_folder.is_first():
    results = {**report.results(prepared.task, scores, sample), 'seen': seen}
    work_folder.write_json(prepared.workdir / work_folder.RESULTS, results)


def ask_examples(ask: Ask, model: nnx.Module, seed: int) -> str:
  """Asks a model its task's examples, and puts the right answers beside, where there are some."""
  if not ask.examples:
    return ''
  texts = [example.text for example in ask.examples]
  try:
    answers = ask.answer(model, texts, jax.random.key(seed))
  except Exception as error:  # a length beyond the scheme's, no memory: the training is worth more
    return f'(no answer to the examples: {plain.sentence(error)})'
  return '\n'.join(
    answer.plain
    if example.correct is None
    else f'asked    {example.text}\nanswer   {answer.plain}\nright    {example.correct}'
    for example, answer in zip(ask.examples, answers, strict=True)
  )
