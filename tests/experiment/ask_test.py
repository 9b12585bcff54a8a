"""What a trained model says, in a process of its own; and a vocabulary that outlives a kill."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys

import chex
import numpy as np
import pytest
from flax import nnx
from rich.console import Console
from rich.text import Text

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT))

import posjax.experiment
from configs import algorithmic, classification, default
from posjax.experiment import interrupt, report, run, trained
from posjax.experiment.ask import ask, batches, draw, load, main, separated, show
from posjax.experiment.task import Answer, get_task
from train import train

TINY = {
  'steps': 4,
  'batch_size': 4,
  'checkpoint_every': 2,
  'model.num_layers': 1,
  'model.width': 16,
  'model.num_heads': 2,
  'optimizer.warmup_steps': 1,
}
WORDS = {
  'task.tokens': 'words',
  'task.length': 16,
  'task.eval_factors': (1,),
  'task.eval_tokens': 64,
  'task.prompt': 'the old',
  'task.sample_length': 5,
}


def text(folder):
  folder.mkdir()
  (folder / 'train.txt').write_text('the old bar is a new bar\nis the new bar old ?\n' * 50)
  (folder / 'valid.txt').write_text('a new old bar is a bar\n' * 20)
  return f'file:{folder}'


def words(data, **changes):
  config = default.get_config()
  config.update_from_flattened_dict({**TINY, **WORDS, 'task.data': data, **changes})
  return config


@pytest.fixture(scope='module')
def spoken(tmp_path_factory):
  """A folder of a language model on words."""
  folder = tmp_path_factory.mktemp('spoken')
  train(words(text(folder / 'text')), folder / 'run')
  return folder / 'run'


def said(workdir, text, **options):
  """The plain answer to one text."""
  (answer,) = ask(workdir, [text], **options)
  return answer.plain


def command(*arguments, entered=''):
  """A real second process: what it says, or the error that it ends with."""
  done = subprocess.run(
    [sys.executable, '-m', 'posjax.experiment.ask', *arguments],
    input=entered,
    cwd=ROOT,
    env={**os.environ, 'XLA_FLAGS': ''},
    text=True,
    capture_output=True,
    timeout=300,
  )
  return done.stdout if done.returncode == 0 else done.stderr


@pytest.mark.slow
def test_a_second_process_says_what_the_model_in_this_one_says(spoken):
  here = said(spoken, 'the new bar', seed=3, length=4)
  assert command(f'--workdir={spoken}', '--seed=3', '--length=4', 'the new bar') == here + '\n'
  assert here.startswith('the new bar')
  assert len(here.replace('\n', ' <eos> ').split()) == 3 + 4


def test_it_is_the_trained_model_that_speaks(spoken):
  """The sample at the end of the run had the seed of the config, and the config's length."""
  sample = json.loads((spoken / 'results.json').read_text())['sample']
  assert said(spoken, 'the old', seed=0) == sample
  assert said(spoken, 'the old', seed=1) != sample


def test_the_run_is_loaded_as_it_was_trained(spoken):
  """Its model is the one that is asked, and its layers are those of the config."""
  model, layers, config, _ = posjax.experiment.load(spoken)
  assert [(layer.name, repr(layer.scheme)) for layer in layers] == [('stack.0.attention', 'alibi')]
  np.testing.assert_array_equal(layers[0].params['slopes'], [1 / 16, 1 / 256])
  assert config.task.prompt == 'the old'
  asked = nnx.state(load(spoken).model)
  chex.assert_trees_all_equal(nnx.state(model), asked)


@pytest.mark.slow
def test_a_run_is_loaded_as_it_was_after_a_step(spoken, tmp_path):
  """Before training it is what the seed makes of it, and half-way neither this nor the last."""
  begun = run.setup(trained.read_config(spoken), tmp_path / 'begun')
  before = nnx.state(posjax.experiment.load(spoken, step=0).model, nnx.Param)
  chex.assert_trees_all_equal(before, begun.state.params)
  table = lambda model: np.asarray(model.embed.table.embedding[...])
  half = posjax.experiment.load(spoken, step=2).model
  moved = abs(table(half) - np.asarray(before.embed.table.embedding[...])).max()
  assert 0 < moved < abs(table(load(spoken).model) - np.asarray(before.embed.table.embedding)).max()
  with pytest.raises(FileNotFoundError, match=r'no checkpoint after step 3: .* after 2, 4'):
    posjax.experiment.load(spoken, step=3)


@pytest.mark.slow
def test_lines_of_the_standard_input_are_asked_together_and_a_dash_takes_it_whole(spoken):
  texts = ['is the', 'a new bar', 'the']
  here = ''.join(answer.plain + '\n' for answer in ask(spoken, texts, length=3))
  flags = f'--workdir={spoken}', '--length=3'
  assert command(*flags, entered='\n'.join(texts) + '\n') == here
  given = command(*flags, *texts).split('==> ')[
    1:
  ]  # answers of several lines have their text above
  plain = [answer.plain for answer in ask(spoken, texts, length=3)]
  assert any('\n' in each for each in plain)
  for part, asked, answer in zip(given, texts, plain, strict=True):
    assert part.rstrip('\n') == f'{asked!r} <==\n{answer}'.rstrip('\n')
  whole = said(spoken, 'is the\nnew bar', length=3)
  assert whole.startswith('is the\nnew bar')
  assert command(*flags, '-', entered='is the\nnew bar\n') == whole + '\n'
  assert 'Line 2 of the standard input is empty' in command(*flags, entered='the\n\nbar\n')


class Entered(io.TextIOWrapper):
  """A standard input, of a terminal or a pipe."""

  def __init__(self, text, terminal):
    super().__init__(io.BytesIO(text.encode()))
    self.terminal = terminal

  def isatty(self):
    return self.terminal


def test_lines_of_a_pipe_come_in_batches_and_those_of_a_terminal_one_by_one():
  text = ''.join(f'text {i}\n' for i in range(100))
  piped = list(batches([], Entered(text, False)))
  assert [len(batch) for batch in piped] == [64, 36]
  typed = list(batches([], Entered(text, True)))
  assert [len(batch) for batch in typed] == [1] * 100
  for found in (piped, typed):
    assert [text for batch in found for text in batch] == [f'text {i}' for i in range(100)]
  for entered, message in (('', 'There is no text'), ('a\n' * 70 + '\n', 'Line 71 of')):
    with pytest.raises(ValueError, match=message):
      list(batches([], Entered(entered, False)))


def test_a_terminal_gets_styled_text_and_a_pipe_plain_text(capsys):
  answer = Answer('a b', Text.assemble(('a', 'bold'), ' b'))
  terminal = Console(file=io.StringIO(), force_terminal=True, color_system='standard')
  show(answer, terminal)
  assert terminal.file.getvalue() == '\x1b[1ma\x1b[0m b\n'
  assert capsys.readouterr().out == ''
  show(answer, Console(file=io.StringIO(), force_terminal=False))
  show(Answer('[bold]c'), terminal)  # without styled text, and no markup
  assert capsys.readouterr().out == 'a b\n[bold]c\n'


def test_answers_of_several_lines_have_their_text_above_and_those_of_one_line_do_not():
  long, short = Answer('a\nb'), Answer('c')
  above = lambda *found: [line for line, _ in separated(found)]
  assert above(('x', long), ('y\n', short)) == ["==> 'x' <==", "\n==> 'y\\n' <=="]
  assert above(('x', short), ('y', short)) == ['', '']
  assert above(('x', long)) == ['']


def test_pictures_are_drawn_a_row_for_each_answer_that_has_some(tmp_path):
  drawn = []

  def picture(name):
    def on(figure):
      drawn.append(name)
      figure.subplots().plot([1, 2])

    return on

  answers = [
    Answer('x', pictures={'one': picture('x one'), 'two': picture('x two')}),
    Answer('y'),
    Answer('z', pictures={'one': picture('z one')}),
  ]
  asked = list(zip(['a', 'b', 'c'], answers, strict=True))
  draw(tmp_path / 'plot.png', asked)
  assert drawn == ['x one', 'x two', 'z one']
  assert (tmp_path / 'plot.png').read_bytes().startswith(b'\x89PNG')
  with pytest.raises(ValueError, match='--plot needs a task whose answers have pictures'):
    draw(tmp_path / 'none.png', asked[1:2])
  assert not (tmp_path / 'none.png').exists()


def test_a_wrong_folder_is_one_sentence(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['ask', f'--workdir={tmp_path}/none', 'a'])
  with pytest.raises(SystemExit) as ended:  # Python prints it, and exits with status 1
    main()
  assert ended.value.code == (f'ask: error: {tmp_path}/none is no folder: there is no config.json.')


def copied(spoken, tmp_path):
  shutil.copytree(spoken, tmp_path / 'run')
  return tmp_path / 'run'


def test_what_is_missing_in_a_folder_is_told(spoken, tmp_path):
  with pytest.raises(FileNotFoundError, match=r'holds no run of train\.py: there is no config\.j'):
    load(tmp_path)
  folder = copied(spoken, tmp_path)
  shutil.rmtree(folder / 'checkpoints')
  with pytest.raises(FileNotFoundError, match='There is no checkpoint yet'):
    load(folder)
  assert not (folder / 'checkpoints').exists()
  (folder / 'checkpoints').mkdir()
  with pytest.raises(FileNotFoundError, match=r'There is no checkpoint yet in .*/checkpoints'):
    load(folder)


def test_other_data_than_those_of_the_run_are_told_before_words_get_other_numbers(tmp_path):
  (tmp_path / 'data.tsv').write_text(''.join(f'{"ab"[i % 2]}\tone two{i}\n' for i in range(40)))
  config = classification.get_config()
  config.task.data, config.task.min_count = f'file:{tmp_path}/data.tsv', 1
  (tmp_path / 'config.json').write_text(config.to_json_best_effort())
  note = lambda sha256: (tmp_path / 'data.json').write_text(
    json.dumps({'seen': [{'sha256': sha256, 'from_step': 0}]})
  )
  note('0' * 64)
  with pytest.raises(ValueError, match=f'data with the sha256 {"0" * 64}, .* now have ') as told:
    load(tmp_path)
  note(str(told.value).partition('now have ')[2][:64])
  with pytest.raises(FileNotFoundError, match='There is no checkpoint yet'):
    load(tmp_path)


def test_a_config_of_another_model_is_told(spoken, tmp_path):
  folder = copied(spoken, tmp_path)
  config = json.loads((folder / 'config.json').read_text())
  config['model']['width'] = 32
  (folder / 'config.json').write_text(json.dumps(config))
  with pytest.raises(
    ValueError,
    match=r'another model than config\.json makes, or .*: \S+ should have shape .*but has',
  ):
    load(folder)
  config['scheme'] = 'nothing_of_the_kind'
  (folder / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match='nothing_of_the_kind'):
    load(folder)


@pytest.mark.parametrize(
  'changes', [{'scheme': 'mine:f|rope'}, {'task': {'eval_scheme': 'mine:f'}}]
)
def test_a_config_of_somebody_else_imports_nothing_unless_that_is_allowed(
  changes, spoken, tmp_path, monkeypatch
):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'mine.py').write_text('raise OSError("it was imported")')
  folder = copied(spoken, tmp_path)
  config = json.loads((folder / 'config.json').read_text())
  config.update(
    {key: {**config[key], **value} if key == 'task' else value for key, value in changes.items()}
  )
  (folder / 'config.json').write_text(json.dumps(config))
  for read in (load, posjax.experiment.load):
    with pytest.raises(
      ValueError, match=r"'mine:f' comes from .* import the module 'mine', .*allow"
    ):
      read(folder)
    with pytest.raises(ValueError, match='OSError: it was imported'):
      read(folder, allow_imports=True)


@pytest.mark.parametrize(
  ('asked', 'length', 'message'),
  [
    ('', None, 'A text to ask is empty'),
    (' \t', None, "The text ' .*' cannot be continued: it has no word"),
    ('the zebra', None, "'the zebra' cannot be continued: line 1 has the word 'zebra'"),
    ('the', 0, 'length must be an integer from 1 to 100,000, but got 0'),
    ('the', 10**8, 'length must be an integer from 1 to 100,000, but got 100000000'),
    ('the \udcff', None, 'A text to ask must be Unicode text'),
  ],
)
def test_what_cannot_be_asked_is_told(spoken, asked, length, message):
  with pytest.raises(ValueError, match=message):
    ask(spoken, [asked], length=length)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('null', r'config\.json should hold the config of a run as JSON, but holds None'),
    ('{"steps": 3, "mod', r'should hold the config .* but holds no JSON \(Unterminated string'),
    ('[' * 100_000, 'should hold the config of a run as JSON, but holds brackets within brackets'),
    ('{"steps": 3}', r"config\.json: The config must have the key 'scheme', but it is missing"),
  ],
)
def test_a_config_that_is_cut_or_foreign_is_told(tmp_path, unchecked, content, message):
  (tmp_path / 'config.json').write_text(content)
  with pytest.raises(ValueError, match=message):
    load(tmp_path)


def test_a_config_with_a_value_of_another_type_is_told_with_the_file(spoken, tmp_path):
  config = json.loads((spoken / 'config.json').read_text())
  config['model']['width'] = 'wide'
  (tmp_path / 'config.json').write_text(json.dumps(config))
  with pytest.raises(ValueError, match=r"config\.json: model\.width must be .* but got 'wide'"):
    load(tmp_path)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'tokens': 'nope'}, "must name its tokens, one of bytes, .*, but has 'nope'"),
    ({'tokens': 'characters'}, 'must have different characters .* longer texts among them'),
    ({'tokens': 'sentencepiece', 'model': 'AAAA'}, 'must have the model of sentencepiece'),
    ({'types': None}, 'must have different words as its types, but has no list of texts'),
    ({'types': ['<eos>', 'the', 'the']}, 'but has one of them twice'),
    ({'types': ['the', 'old']}, 'but has no <eos>'),
    ({'cut': True}, 'but has "cut" True next to them'),
  ],
)
def test_a_foreign_vocabulary_is_told(spoken, tmp_path, changes, message):
  stored = json.loads((spoken / 'vocabulary.json').read_text())
  shutil.copy(spoken / 'config.json', tmp_path)
  (tmp_path / 'vocabulary.json').write_text(json.dumps({**stored, **changes}))
  with pytest.raises(ValueError, match=f'vocabulary.json of the work folder: .*{message}'):
    load(tmp_path)


def test_a_swapped_vocabulary_is_refused_where_a_run_goes_on_and_where_it_is_asked(
  spoken, tmp_path
):
  """Two words have each other's numbers, which the shapes of the checkpoint do not tell."""
  folder = copied(spoken, tmp_path)
  stored = json.loads((folder / 'vocabulary.json').read_text())
  (folder / 'vocabulary.json').write_text(json.dumps(stored, sort_keys=True, indent=4))
  config = words(f'file:{spoken.parent / "text"}')
  run.make_task(config, folder)  # the same vocabulary, laid out in another way
  *first, last = stored['types']
  (folder / 'vocabulary.json').write_text(
    json.dumps({**stored, 'types': [*first[:-1], last, first[-1]]})
  )
  for read in (load, posjax.experiment.load, lambda folder: run.setup(config, folder)):
    with pytest.raises(
      ValueError, match=r'whose vocabulary has the sha256 .* is now .*: put back the '
    ):
      read(folder)


def test_a_huge_seed_and_bytes_that_are_no_text_are_told(tmp_path):
  for seed in (-1, 2**32, 10**40):
    with pytest.raises(ValueError, match='seed must be an integer of at least 0 and below'):
      ask(tmp_path, ['a'], seed=seed)
  entered = io.TextIOWrapper(io.BytesIO(b'ab\xff'), encoding='utf-8')
  with pytest.raises(ValueError, match=r'standard input must be text in utf-8, but .* 0xff'):
    list(batches(['-'], entered))


def test_what_ask_refuses_on_its_command_line_is_one_line_and_status_2(capsys, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['ask', '--seed=x', '--workdir=a', 'b'])
  with pytest.raises(SystemExit) as ended:
    main()
  assert ended.value.code == 2
  error = capsys.readouterr().err
  assert error == "ask: error: argument --seed: invalid int value: 'x' (--help says more).\n"


def test_a_task_that_says_nothing_is_told(spoken, monkeypatch):
  real = get_task('language_modelling')
  silent = lambda *schemes, **arguments: real(*schemes, **arguments)._replace(ask=None)
  monkeypatch.setattr(run, 'get_task', lambda name: silent)
  with pytest.raises(ValueError, match='of the task language_modelling cannot be asked'):
    load(spoken)


@pytest.mark.slow
def test_a_decoder_answers_a_question_of_its_algorithm(tmp_path):
  config = algorithmic.get_config()
  short = {'task.longest': 3, 'task.eval_factors': (1,), 'task.eval_examples': 8}
  config.update_from_flattened_dict({**TINY, **short, 'steps': 2})
  result = train(config, tmp_path)
  lines = dict(line.split(maxsplit=1) for line in result.sample.splitlines())
  assert list(lines) == ['asked', 'answer', 'right']
  assert said(tmp_path, lines['asked']) == lines['answer']
  assert lines['right'] == lines['asked']  # a copy
  both = ask(tmp_path, [lines['asked'], 'a b'])
  assert [answer.plain for answer in both] == [lines['answer'], said(tmp_path, 'a b')]
  with pytest.raises(ValueError, match=r"symbols with spaces between them, of .* but got '\?'"):
    ask(tmp_path, ['?'])
  with pytest.raises(ValueError, match='The task algorithmic says as much as it has to'):
    ask(tmp_path, ['a'], length=3)


@pytest.mark.slow
def test_an_encoder_can_be_asked_too(tmp_path):
  config = algorithmic.get_config()
  short = {'task.longest': 3, 'task.eval_factors': (1,), 'task.eval_examples': 8}
  config.update_from_flattened_dict({**TINY, **short, 'steps': 2, 'model.causal': False})
  result = train(config, tmp_path)
  lines = dict(line.split(maxsplit=1) for line in result.sample.splitlines())
  assert said(tmp_path, lines['asked']) == lines['answer']
  assert len(lines['answer'].split()) == len(lines['asked'].split()) == 3


@pytest.mark.slow
def test_a_resumed_run_keeps_the_vocabulary_that_it_stored(tmp_path, monkeypatch):
  """Stopped at step 2; the stored words are put in another order, which a new one never has.

  The folder is then like one of an earlier version, which did not note the vocabulary's hash.
  """
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  config = words(text(tmp_path / 'text'), log_every=1)
  folder = tmp_path / 'run'
  prepared = run.setup(config, folder)
  calls = []

  def stopped():
    calls.append(len(calls))
    return len(calls) > 1  # it is asked once a step

  monkeypatch.setattr(run, 'interrupts', lambda: _always(stopped))
  assert run.run(prepared) is None
  stored = json.loads((folder / 'vocabulary.json').read_text())
  assert stored == prepared.task.vocabulary
  turned = {**stored, 'types': [stored['types'][0], *stored['types'][:0:-1]]}
  (folder / 'vocabulary.json').write_text(json.dumps(turned))
  noted = json.loads((folder / 'data.json').read_text())
  (folder / 'data.json').write_text(json.dumps({'seen': noted['seen']}))
  monkeypatch.setattr(run, 'interrupts', interrupt.interrupts)
  result = train(config, folder)
  assert [row['step'] for row in result.history if 'loss' in row] == [1, 2, 3, 4]
  assert json.loads((folder / 'vocabulary.json').read_text()) == turned
  assert run.make_task(config, folder).vocabulary == turned
  assert json.loads((folder / 'data.json').read_text())['vocabulary'] != noted['vocabulary']


class _always:
  """`interrupts`, with another answer."""

  def __init__(self, stopped):
    self.stopped = stopped

  def __enter__(self):
    return self.stopped

  def __exit__(self, *error):
    pass


@pytest.mark.slow
def test_a_killed_run_with_pieces_resumes_with_the_stored_ones_bit_for_bit(tmp_path):
  """A real kill -9 in training; the text is then changed, so that new pieces would differ."""
  data = text(tmp_path / 'text')
  flags = [f'--config.{key}={value}' for key, value in {**TINY, **WORDS}.items()]
  flags += [f'--config.task.data={data}', '--config.task.tokens=sentencepiece']
  flags += ['--config.task.vocab_size=275', '--config.log_every=1', '--config.steps=400']

  def start(folder):
    return subprocess.Popen(
      [sys.executable, 'train.py', f'--workdir={folder}', *flags],
      cwd=ROOT,
      env={**os.environ, 'XLA_FLAGS': ''},
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
    )

  process = start(tmp_path / 'killed')
  for line in process.stdout:
    if line.startswith('step     50/'):
      break
  os.kill(process.pid, signal.SIGKILL)
  process.communicate()
  stored = (tmp_path / 'killed' / 'vocabulary.json').read_bytes()
  for name in ('killed', 'whole'):
    process = start(tmp_path / name)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
  losses = [
    [json.loads(line) for line in (tmp_path / name / 'metrics.jsonl').read_text().splitlines()]
    for name in ('killed', 'whole')
  ]
  one, two = ([(row['step'], row.get('loss')) for row in rows] for rows in losses)
  assert one == two
  assert (tmp_path / 'killed' / 'vocabulary.json').read_bytes() == stored


def test_empty_lines_are_texts_where_a_task_answers_them():
  lines = io.StringIO('one\n\ntwo\n')
  assert list(batches([], lines, empty=True)) == [['one', '', 'two']]
  assert list(batches([''], io.StringIO(), empty=True)) == [['']]
  with pytest.raises(ValueError, match=r'Line 2 of the standard input is empty'):
    list(batches([], io.StringIO('one\n\ntwo\n')))
  with pytest.raises(ValueError, match=r'There is no text to ask'):
    list(batches([], io.StringIO(''), empty=True))
