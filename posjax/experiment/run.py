"""One run, from its config to its report: what train.py does, and each cell of a comparison."""

import json
import time
from collections.abc import Mapping, Sequence
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
)
from posjax.experiment.evaluation import Score, higher
from posjax.experiment.interrupt import interrupts
from posjax.experiment.record import (
  VOCABULARY,
  Bar,
  Record,
  check_workdir,
  read,
  stored_vocabulary,
  write_json,
)
from posjax.experiment.tasks import Ask, Evaluation, Task, count_tokens, get_task


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


class Result(NamedTuple):
  """The end of a run: its model, and how good it is."""

  workdir: Path
  model: nnx.Module
  history: list[dict[str, Any]]  # metrics.jsonl
  scores: dict[str, Score]  # by evaluation
  sample: str  # what it said to the task's examples


def train(
  config: ConfigDict, workdir: str | Path, schemes: Sequence[posjax.Scheme] = ()
) -> Result | None:
  """Trains, or goes on training, and reports. None if it was interrupted (and saved).

  Args:
    config: as in configs/default.py.
    workdir: the folder of the run.
    schemes: of your own, repeated over the layers; config.scheme is then only their name.
  """
  return run(setup(config, workdir, schemes))


def setup(config: ConfigDict, workdir: str | Path, schemes: Sequence[posjax.Scheme] = ()) -> Setup:
  """Builds the run. Raises ValueError, TypeError or OSError for whatever the config gets wrong."""
  workdir = Path(workdir)
  settings.check(config)
  check_workdir(config.to_json_best_effort(), workdir)
  mesh = sharding.make_mesh(**config.mesh)
  sharding.check_batch(config.batch_size, mesh)
  transform = optimizer.make(config.steps, **config.optimizer)
  task = make_task(config, workdir, schemes)
  evaluation.check(task)
  checkpoint.choose(config, higher(task))  # refuses what it cannot do before anything is trained
  graph, state = training.create(task, transform, mesh, config.seed)
  checkpoint.check(workdir / 'checkpoints', state)
  step = training.make_step(task, graph, transform, config.seed, mesh)
  data = iter(task.train_batches(jax.process_index(), jax.process_count()))
  first = next(iter(task.train_batches(jax.process_index(), jax.process_count())))
  evaluation.check_first(task, graph, nnx.merge_state(state.params, state.rest), first, mesh)
  return Setup(config, workdir, task, mesh, graph, state, step, data)


def make_task(config: ConfigDict, workdir: Path, schemes: Sequence[posjax.Scheme] = ()) -> Task:
  """The task of a config, with the vocabulary that the work folder keeps, if it keeps one."""
  schemes = tuple(schemes) or [posjax.get(line) for line in config.scheme.split('|')]
  arguments = {'seed': config.seed, 'batch_size': config.batch_size, **config.task.to_dict()}
  stored = stored_vocabulary(workdir)
  if stored is not None:
    arguments['vocabulary'] = stored
  return get_task(arguments.pop('name'))(schemes, config.model.to_dict(), **arguments)


def run(prepared: Setup) -> Result | None:
  """Steps, records, evaluates and saves, from wherever the work folder stands to the end."""
  config, workdir, task, mesh, _, state, step_fn, data = prepared
  workdir.mkdir(parents=True, exist_ok=True)
  if task.vocabulary is not None:
    write_json(workdir / VOCABULARY, task.vocabulary)
  write_json(workdir / 'config.json', json.loads(config.to_json_best_effort()))
  report.introduce(task, config.scheme, state.params, workdir)
  choice = checkpoint.choose(config, higher(task))
  with checkpoint.manager(workdir / 'checkpoints', choice) as checkpoints, interrupts() as stopped:
    start, state = checkpoint.restore(checkpoints, state, data)
    with Record(workdir, start) as record, Bar(start, config.steps, task.unit.name) as bar:
      if start:
        bar.say(f'resuming after step {start}')
      clock, tokens = time.monotonic(), 0
      for done in range(start + 1, config.steps + 1):
        batch = next(data)
        state, loss = step_fn(state, sharding.put_batch(batch, mesh), done)
        tokens += count_tokens(batch) * jax.process_count()
        if done % config.log_every == 0 or done == config.steps:
          values = {'loss': training.finite(loss, done) * task.unit.factor}
          values['tokens_per_second'] = tokens / (time.monotonic() - clock)
          record.write(done, **values)
          bar.update(done, values)
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
          checkpoint.save(checkpoints, done, state, data, metrics)
        if stopping and done < config.steps:
          checkpoints.wait_until_finished()
          bar.say(f'stopped after step {done}, and saved: the same command resumes')
          return None
  if choice.use != 'last':  # that one is in memory
    state, name = checkpoint.chosen(workdir / 'checkpoints', state, choice)
    print(f'scored and asked: {name}')
  return finish(prepared, state)


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


def finish(prepared: Setup, state: training.State) -> Result:
  """Runs every evaluation, and writes and prints what was learned.

  The scores are on the disk before the examples are asked and the picture is drawn, and neither of
  these can end the run: what could not be done is told in its place.
  """
  workdir, task = prepared.workdir, prepared.task
  scores = {each.name: judge(prepared, state, each) for each in task.evaluations}
  write_json(workdir / 'results.json', report.results(task, scores, ''))
  model = nnx.merge(prepared.graph, state.params, state.rest)
  sample = ask_examples(task.ask, model, prepared.config.seed) if task.ask else ''
  history = read(workdir / 'metrics.jsonl')
  write_json(workdir / 'results.json', report.results(task, scores, sample))
  kind = prepared.config.task
  title = f'{prepared.config.scheme}: {kind.get("data", kind.name)}'
  try:
    report.draw(workdir / 'report.png', task, history, scores, title)
  except OSError:
    raise  # the disk's errors are told as such
  except Exception as error:  # of Matplotlib, or of a task's metrics: the training is worth more
    print(f'report.png could not be drawn: {plain.sentence(error)}')
  report.print_table(task, scores, title)
  print(f'\n{sample}\n')
  for name, what in report.FILES.items():
    print(f'{what:>16}  {workdir / name}')
  return Result(workdir, model, history, scores, sample)


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
