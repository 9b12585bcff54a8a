"""One run, from its config to its report: what train.py does, and each cell of a comparison."""

import contextlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from ml_collections import ConfigDict

import posjax
from posjax.attention.choice import OVER_DEVICES, noted
from posjax.experiment import (
  checkpoint,
  cluster,
  evaluation,
  flops,
  optimizer,
  plain,
  report,
  settings,
  sharding,
  training,
  unreadable,
  warm_start,
)
from posjax.experiment import workdir as workdirs
from posjax.experiment.evaluation import Score, higher
from posjax.experiment.interrupt import interrupts
from posjax.experiment.record import Bar, Record, lost_rows, read
from posjax.experiment.shards import Rows
from posjax.experiment.task import Ask, Batch, Evaluation, Task, count_tokens, get_task
from posjax.experiment.workdir import CHECKPOINTS, CONFIG, METRICS, RESULTS, VOCABULARY, DataHistory

MEASURED = 10.0  # seconds of training, of less than which a speed says nothing
PROFILED_AFTER = 2  # steps, of which the first compiles


class Setup(NamedTuple):
  """A run before its first step: everything is checked, and nothing written."""

  config: ConfigDict
  folder: Path
  task: Task
  mesh: jax.sharding.Mesh
  graph: Any  # the structure of the model
  state: training.State
  step: Any  # of `training.make_step`
  data: Rows
  choice: checkpoint.Choice
  last: int  # the step after which to end; that of the config, or an earlier one
  allow_changed_data: bool
  computing: dict[str, Any]  # of `computing`
  started_from: str = ''  # which weights were taken from another run, in a sentence


class Result(NamedTuple):
  """The end of a run: its model, and how good it is."""

  workdir: Path
  model: nnx.Module
  history: list[dict[str, Any]]  # metrics.jsonl
  scores: dict[str, Score]  # by evaluation
  sample: str  # its answers to the task's examples
  data_history: DataHistory


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

  The folder is checked, too, before anything is written.
  """
  folder = Path(workdir)
  settings.check(config)
  config = settings.with_defaults(config)
  last = config.steps
  workdirs.check_place(folder)
  config = _with_stored_steps(config, folder)
  read(folder / METRICS)
  mesh = sharding.make_mesh(**config.mesh)
  sharding.check_batch(config.batch_size, mesh, config.accumulate)
  transform = optimizer.make(config.steps, **config.optimizer)
  task = make_task(config, folder, schemes)
  _check_data(task, folder, allow_changed_data)
  evaluation.check(task)
  choice = checkpoint.choose(config, higher(task))
  sharding.check_context(mesh, settings.attention_of(config).get('implementation'))
  graph, state = training.create(task, transform, mesh, config.seed, config.skip_not_finite)
  training.check_accumulation(task, state, config.accumulate)
  reached = checkpoint.check(folder / CHECKPOINTS, state)
  started_from = ''
  if config.start_from is not None and not reached:
    state, started_from = warm_start.begin(Path(config.start_from), state, task)
  if last != config.steps and not 0 < last <= reached:
    raise workdirs.another(folder, ['steps'])
  _check_alike(config, task, reached)
  training.check_batch(task, config.batch_size, config.model.get('width', 1), mesh)
  options = {'accumulate': config.accumulate, 'skip_not_finite': config.skip_not_finite}
  if task.any_order and settings.attention_of(config).get('implementation') == 'ring':
    options['zigzag'] = mesh.shape['context']  # so that no device waits for another
  step = training.make_step(task, graph, transform, config.seed, mesh, **options)
  rows = Rows(task.train_batches, mesh)
  both = nnx.merge_state(state.params, state.rest)
  with noted() as implementations:
    evaluation.check_first(task, graph, both, next(Rows(task.train_batches, mesh)), mesh)
  return Setup(
    config,
    folder,
    task,
    mesh,
    graph,
    state,
    step,
    rows,
    choice,
    last,
    allow_changed_data,
    computing(config, implementations),
    started_from,
  )


def computing(config: ConfigDict, implementations: Iterable[str]) -> dict[str, Any]:
  """The dtype and the attention of a run, as JSON for its results.

  Args:
    config: of the run.
    implementations: of attention, those that the first training batch takes.

  Returns:
    `dtype`, in which the layers of a Transformer compute, and `attention`: the implementation that
    was 'asked' for, None where it is left to posjax, and those that were 'chosen', none for a model
    without attention.
  """
  asked = settings.attention_of(config).get('implementation')
  return {
    'dtype': config.model.get('dtype', 'float32'),
    'attention': {'asked': asked, 'chosen': sorted(implementations)},
  }


def _with_stored_steps(config: ConfigDict, folder: Path) -> ConfigDict:
  """The config, with the `steps` of the run in the folder: they shape its learning rate."""
  asked = json.loads(config.to_json_best_effort())
  stored = workdirs.check_config(asked, folder, settings.DEFAULTS)
  if stored is None or stored['steps'] == config.steps:
    return config
  config = config.copy_and_resolve_references()
  config.steps = stored['steps']
  return config


def _check_alike(config: ConfigDict, task: Task, reached: int) -> None:
  """Refuses processes of one run that have other configs, data or work folders than the first."""
  vocabulary = '' if task.vocabulary is None else workdirs.vocabulary_hash(task.vocabulary)
  cluster.check_alike(
    {
      'config': config.to_json_best_effort(sort_keys=True),
      'data (by their sha256)': str(task.facts.get('sha256')),
      'vocabulary': vocabulary,
      'newest checkpoint, in a work folder that all can reach': str(reached),
      'versions of posjax and jax': f'{posjax.__version__} {jax.__version__}',
    }
  )


def _check_data(task: Task, folder: Path, allow: bool) -> DataHistory:
  """The data that the folder's run has seen; refuses other data, unless they are allowed."""
  history = workdirs.data_history(folder)
  workdirs.check_data([] if allow else history, task.facts.get('sha256'), folder)
  return history


def make_task(config: ConfigDict, workdir: Path, schemes: Sequence[posjax.Scheme] = ()) -> Task:
  """The task of a config, with the vocabulary that the work folder keeps, if it keeps one.

  Raises:
    ValueError: if the config gets something wrong, or that vocabulary is not the one with which the
      folder's run began.
  """
  constructor, lines = get_task(config.task.name), config.scheme.split('|')
  if not schemes:
    schemes = lines if settings.takes_lines(constructor) else [posjax.get(line) for line in lines]
  arguments = {'seed': config.seed, 'batch_size': config.batch_size, **config.task.to_dict()}
  if 'start_from' in inspect.signature(constructor).parameters:
    arguments['start_from'] = config.start_from
  model = {**config.model.to_dict(), **settings.attention_of(config)}
  stored = workdirs.stored_vocabulary(workdir)
  if stored is not None:
    arguments['vocabulary'] = stored
  del arguments['name']
  task = constructor(schemes, model, **arguments)
  workdirs.check_vocabulary(task.vocabulary, workdir)
  return task


def run(prepared: Setup) -> Result | None:
  """Steps, records, evaluates and saves, from wherever the work folder stands to the end.

  Raises:
    Busy: if another run works in the folder.
    Gone: if the folder is deleted, moved or replaced meanwhile.
    Unwritten: if the folder cannot be written to any more.
  """
  folder = prepared.folder
  with workdirs.held(folder) as check_folder, workdirs.explained(folder, check_folder):
    # Another run may have been at work since `setup` looked.
    _with_stored_steps(prepared.config, folder)
    history = _check_data(prepared.task, folder, prepared.allow_changed_data)
    write_header(prepared)
    state, history = train_loop(prepared, history, check_folder)
    return None if state is None else finalize(prepared, state, history, check_folder)


def write_header(prepared: Setup) -> None:
  """Writes config and vocabulary, and prints what is about to be trained."""
  config, folder, task = prepared.config, prepared.folder, prepared.task
  if workdirs.is_first():
    if task.vocabulary is not None:
      workdirs.write_json(folder / VOCABULARY, task.vocabulary)
    workdirs.write_json(folder / CONFIG, json.loads(config.to_json_best_effort()))
  report.introduce(task, config.scheme, prepared.state.params, prepared.computing, folder)


def train_loop(
  prepared: Setup, history: DataHistory, check_folder: Callable[[], None]
) -> tuple[training.State | None, DataHistory]:
  """Trains from the last checkpoint on.

  Args:
    prepared: the run, whose folder is held.
    history: the data of earlier processes.
    check_folder: of `workdir.held`.

  Returns:
    The state that is scored, None if the run was interrupted; and all data that it has seen.
  """
  config, choice, last = prepared.config, prepared.choice, prepared.last
  folder = prepared.folder / CHECKPOINTS
  unreadable.quarantine_corrupt(folder)
  with checkpoint.manager(folder, choice) as checkpoints, interrupts() as stopped:
    start, state = checkpoint.restore(checkpoints, prepared.state, prepared.data)
    rows = read(prepared.folder / METRICS)
    history = _note_data(prepared, history, start)
    with (
      Record(prepared.folder, start, workdirs.is_first(), check_folder) as record,
      Bar(start, last, prepared.task.unit.name) as bar,
    ):
      lost = lost_rows(rows, start, config.log_every)
      from_other = '' if start else prepared.started_from
      changes = workdirs.data_changes(history)
      for line in filter(None, (lost, from_other, _started(start, last), changes)):
        bar.say(line)
      with contextlib.closing(Loop(prepared, checkpoints, record, bar, check_folder)) as loop:
        for step in range(start + 1, last + 1):
          batch = next(prepared.data)
          state, loss = prepared.step(state, sharding.put_batch(batch, prepared.mesh), step)
          loop.count(step, batch)
          if step % config.log_every == 0 or step == config.steps:
            loop.log(step, loss, state)
          scores: dict[str, Score] = {}
          if step % config.eval_every == 0 and step < config.steps:
            scores = loop.evaluate(step, state)
          stop = stopped() or cluster.reached_stop(step)  # once a step: it may come at any moment
          if stop or choice.is_regular(step):
            loop.save(step, state, scores)
          loop.profile(step - start, loss)
          if stop and step < config.steps:
            checkpoint.wait(checkpoints)
            bar.say(f'stopped after step {step}, and saved: the same command resumes')
            return None, history
        loop.tell_speed()
  if choice.use != 'last':  # that one is in memory
    state, name = checkpoint.chosen(folder, state, choice)
    print(f'scored and asked: {name}')
  return state, history


class Loop:
  """The training loop beside its steps: it logs, evaluates and saves."""

  def __init__(
    self,
    prepared: Setup,
    checkpoints: ocp.CheckpointManager,
    record: Record,
    bar: Bar,
    check_folder: Callable[[], None],
  ):
    self.prepared, self.checkpoints, self.record, self.bar = prepared, checkpoints, record, bar
    self.check_folder = check_folder
    self.unseen: dict[int, Batch] = {}  # by step, since the skipped updates were last counted
    self.speeds: list[float] = []  # of all processes, in tokens per second
    self.seconds = 0.0  # of training, which the speeds are of
    self.tracing = False
    self._restart_clock()

  def _restart_clock(self) -> None:
    """Speeds are of training alone."""
    self.begun, self.tokens = time.monotonic(), 0

  def count(self, step: int, batch: Batch) -> None:
    """Counts the tokens of this process's rows of a batch."""
    self.tokens += count_tokens(batch)
    if self.prepared.config.skip_not_finite:
      self.unseen[step] = batch

  def log(self, step: int, loss: jax.Array, state: training.State) -> None:
    """Records the loss and the speed since the last time, and how many updates were skipped."""
    skipped = self._skipped(state)
    number = float(loss) if skipped else training.finite(loss, step)
    values = {'loss': number * self.prepared.task.unit.factor}
    seconds = time.monotonic() - self.begun
    values['tokens_per_second'] = self.tokens / self.prepared.data.share() / seconds
    self.speeds.append(values['tokens_per_second'])
    self.seconds += seconds
    values |= {'skipped': float(skipped)} if skipped else {}
    self.record.write(step, **values)
    self.bar.update(step, values)
    checkpoint.check_saved(self.checkpoints)
    self._restart_clock()

  def tell_speed(self) -> None:
    """Says what the model computed per second, of training that was long enough to measure."""
    if self.seconds < MEASURED or len(self.speeds) < 3:
      return
    prepared, mesh = self.prepared, self.prepared.mesh
    batch = next(prepared.data)
    tokens = count_tokens(batch) / prepared.data.share()
    per_token = flops.of_step(prepared.task, sharding.put_batch(batch, mesh)) / tokens
    kind = mesh.devices.flat[0].device_kind
    rate = per_token * median(self.speeds)
    self.bar.say(flops.stated(rate, mesh.size, kind, prepared.computing['dtype']))

  def profile(self, done: int, loss: jax.Array) -> None:
    """Begins or ends the trace of the first process, which has done so many steps."""
    asked = self.prepared.config.profile if workdirs.is_first() else 0
    if asked and done == PROFILED_AFTER:
      self.check_folder()
      jax.block_until_ready(loss)
      jax.profiler.start_trace(self.prepared.folder / workdirs.PROFILE)
      self.tracing = True
    elif asked and done == PROFILED_AFTER + asked:
      jax.block_until_ready(loss)
      self.close()

  def close(self) -> None:
    """Ends the trace, if one has begun."""
    if self.tracing:
      jax.profiler.stop_trace()
      self.tracing = False
      self.bar.say(f'traced by jax.profiler: {self.prepared.folder / workdirs.PROFILE}')

  def _skipped(self, state: training.State) -> int:
    """How many updates were skipped so far.

    Raises:
      FloatingPointError: if there were more than may be. The state and the batch are saved then.
    """
    limit = self.prepared.config.skip_not_finite
    if not limit:
      return 0
    skipped, last = map(int, np.asarray(state.optimizer.skipped))
    if skipped > limit:
      self.check_folder()
      batch = self.unseen[last]
      place = self.prepared.folder / workdirs.NOT_FINITE / str(last)
      checkpoint.save_to_look_into(place, state, batch)
      raise FloatingPointError(
        f'The loss or a gradient of step {last} is not finite, as it was {limit} times before it, '
        f'and skip_not_finite allows no more: {place} holds the state before that step, and its '
        f'batch, whose sha256 is {checkpoint.batch_hash(batch)}.'
      )
    self.unseen.clear()
    return skipped

  def evaluate(self, step: int, state: training.State) -> dict[str, Score]:
    """Runs the evaluations that run during training, and records their scores."""
    task = self.prepared.task
    scores = _evaluate_during(self.prepared, state)
    numbers = evaluation.measured(task, scores)
    # 'eval_loss' of the headline, 'EVALUATION/loss' of the others
    named = {name if '/' in name else f'eval_{name}': value for name, value in numbers.items()}
    self.record.write(step, **named)
    for each in task.evaluations:
      if each.name in scores:
        self.bar.say(f'step {step:>6}: {report.stated(each, scores[each.name])}')
    self._restart_clock()
    return scores

  def save(self, step: int, state: training.State, scores: Mapping[str, Score]) -> None:
    """Saves a checkpoint, with its metrics where the best one is wanted."""
    self._skipped(state)
    metrics = None
    if self.prepared.choice.needs_metrics(step):
      scores = scores or _evaluate_during(self.prepared, state)
      metrics = evaluation.measured(self.prepared.task, scores)
      self._restart_clock()
    self.check_folder()
    checkpoint.save(self.checkpoints, step, state, self.prepared.data, metrics)


def _note_data(prepared: Setup, history: DataHistory, start: int) -> DataHistory:
  task = prepared.task
  if start and not history and 'sha256' in task.facts:
    print('the hash of the data was not noted when this run began, so they are taken as they are')
  sha256 = task.facts.get('sha256')
  return workdirs.note_data(prepared.folder, history, sha256, start, task.vocabulary)


def _started(start: int, last: int) -> str:
  """A sentence about where a run goes on; '' for one that begins."""
  if start >= last:
    return f'step {last} is reached: the checkpoint is one after step {start}, and none is left'
  return f'resuming after step {start}' if start else ''


def evaluate(
  prepared: Setup, state: training.State, each: Evaluation, leave_out: bool = False
) -> Score:
  """Scores a model by one of its task's evaluations; ids are drawn alike in all of them."""
  key = jax.random.key(prepared.config.seed)
  both = nnx.merge_state(state.params, state.rest)
  return evaluation.evaluate(each, prepared.graph, both, prepared.mesh, key, leave_out)


def _evaluate_during(prepared: Setup, state: training.State) -> dict[str, Score]:
  during = [each for each in prepared.task.evaluations if each.during]
  return {each.name: evaluate(prepared, state, each) for each in during}


def finalize(
  prepared: Setup,
  state: training.State,
  history: DataHistory,
  check_folder: Callable[[], None],
) -> Result:
  """Runs every evaluation, and writes and prints the results.

  The scores are on the disk before the examples are asked and the picture is drawn, and neither of
  these can end the run: a sentence says what could not be done.
  """
  folder, task = prepared.folder, prepared.task
  judged = ('trained', 'unseen')  # by which schemes are compared
  scores = {
    each.name: evaluate(prepared, state, each, leave_out=each.role in judged)
    for each in task.evaluations
  }
  check_folder()
  _write_results(prepared, scores, '', history)
  model = nnx.merge(prepared.graph, state.params, state.rest)
  if prepared.computing['attention']['asked'] in OVER_DEVICES:
    sharding.compute_attention_by(model, None)  # a text that is asked is on no mesh
  sample = ask_examples(task.ask, model, prepared.config.seed) if task.ask else ''
  rows = read(folder / METRICS)
  kind = prepared.config.task
  title = f'{prepared.config.scheme}: {kind.get("data", kind.name)}'
  title += f' ({report.computed(prepared.computing)})'
  check_folder()
  _write_results(prepared, scores, sample, history)
  if workdirs.is_first():
    try:
      report.draw(folder / 'report.png', task, rows, scores, title, prepared.config.scheme)
    except OSError:
      raise  # the run ends with the disk's errors
    except Exception as error:  # of Matplotlib, or of a task's metrics: the training is worth more
      print(f'report.png could not be drawn: {plain.sentence(error)}')
  check_folder()  # what is listed below is there
  report.print_table(task, scores, title)
  for line in filter(None, (workdirs.data_changes(history), f'\n{sample}\n')):
    print(line)
  for name, what in report.FILES.items():
    print(f'{what:>16}  {folder / name}')
  return Result(folder, model, rows, scores, sample, history)


def _write_results(
  prepared: Setup, scores: Mapping[str, Score], sample: str, history: DataHistory
) -> None:
  """Writes results.json; the first process of a distributed run does it for all."""
  if workdirs.is_first():
    results = report.results(prepared.task, scores, sample)
    results |= {**prepared.computing, 'seen': history}
    workdirs.write_json(prepared.folder / RESULTS, results)


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
