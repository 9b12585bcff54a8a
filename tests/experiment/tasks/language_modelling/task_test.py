"""Language models over any tokens: what is scored, in which unit, and what is wrong with a text."""

import importlib
import json
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from configs import default
from posjax.experiment.metrics import Rows
from posjax.experiment.report import results, stated
from posjax.experiment.task import get_task
from posjax.experiment.tasks.language_modelling import files
from tests.experiment.support import judged

L = 8
SENTENCES = ['the café is old\n', 'a new bar , an old bar .\n', '\n', 'is the old bar a café ?\n']
MODEL = {'num_layers': 1, 'width': 16, 'num_heads': 2}


def write(folder, train=None, valid=None):
  """A folder with a text of few words; é is two bytes."""
  random = np.random.default_rng(0)
  text = [''.join(SENTENCES[i] for i in random.integers(4, size=n)) for n in (60, 30)]
  (folder / 'train.txt').write_bytes(text[0].encode() if train is None else train)
  (folder / 'valid.txt').write_bytes(text[1].encode() if valid is None else valid)
  return f'file:{folder}'


def make(data, tokens='words', scheme='rope', **changes):
  arguments = {
    'seed': 0,
    'batch_size': 4,
    'data': data,
    'length': L,
    'eval_factors': (1, 2),
    'eval_tokens': 10_000,
    'prompt': 'the old bar',
    'sample_length': 5,
    'tokens': tokens,
  }
  return get_task('language_modelling')(posjax.get(scheme), MODEL, **{**arguments, **changes})


def score(task, length=L):
  return judged.scored(task, task.model(nnx.Rngs(0)), length)


def others(task):
  """The metrics that restate the loss, by name."""
  metrics = task.evaluations[0].metrics
  return set(metrics) - {'loss', 'accuracy', 'loss_by_position'}


def scored_targets(task, length=L):
  return np.concatenate([batch['targets'].ravel() for batch in judged.batches(task, length)])


def loop_nats(task):
  """Nats of each scored target, one window at a time, and the softmax written out."""
  graph, state = nnx.split(task.model(nnx.Rngs(0)))
  read = jax.jit(lambda inputs: nnx.merge(graph, state)(inputs, jnp.arange(L)))
  found = []
  for batch in judged.batches(task, L):
    for inputs, targets in zip(batch['inputs'], batch['targets'], strict=True):
      logits = np.asarray(read(jnp.asarray(inputs)[None]), np.float64)[0]
      for row, target in zip(logits, targets, strict=True):
        found.append(math.log(sum(math.exp(x - row.max()) for x in row)) + row.max() - row[target])
  return np.array(found)


def test_perplexity_and_bits_of_words_are_those_of_a_loop(tmp_path):
  """The text of the targets is written by hand from the file: single spaces, its ends of lines."""
  task = make(write(tmp_path), eval_tokens=64)
  nats, measured = loop_nats(task), score(task)
  assert measured.counted == len(nats) == 64
  assert task.unit.name == 'nats per word'
  assert measured.values['loss'] == pytest.approx(nats.mean(), rel=1e-5)
  assert measured.values['perplexity'] == pytest.approx(np.exp(nats.sum() / 64), rel=1e-4)
  assert measured.values['perplexity'] > 2
  types = task.vocabulary['types']
  words = [types[i] for i in scored_targets(task)]
  lines = ' '.join(words).replace('<eos>', '\n').split('\n')
  text = '\n'.join(line.strip() for line in lines)
  assert measured.values['bits per character'] == pytest.approx(
    nats.sum() / math.log(2) / len(text), rel=1e-5
  )
  assert measured.values['bits per byte'] == pytest.approx(
    nats.sum() / math.log(2) / len(text.encode()), rel=1e-5
  )
  assert len(text) < len(text.encode())


def test_the_first_words_scored_are_those_of_the_file_after_its_first(tmp_path):
  data = write(tmp_path)
  task = make(data)
  lines = (tmp_path / 'valid.txt').read_text().splitlines()
  words = [word for line in lines for word in (*line.split(), '<eos>')]
  said = [task.vocabulary['types'][i] for i in scored_targets(task)]
  assert said == words[1 : len(said) + 1]
  assert len(words) - 2 * L <= len(said) < len(words)
  assert task.facts['held-out words'] == f'{len(words):,}'
  assert task.facts['scored'] == f'{len(said):,} of them'


@pytest.mark.parametrize('tokens', ['characters', 'sentencepiece'])
def test_bits_per_byte_divide_all_nats_by_the_bytes_that_the_targets_spell(tmp_path, tokens):
  size = 280 if tokens == 'sentencepiece' else None
  task = make(write(tmp_path), tokens, vocab_size=size, eval_factors=(1,))
  nats, measured = loop_nats(task), score(task)
  held_out = (tmp_path / 'valid.txt').read_bytes()
  # All but the first token, and what fills no window at the end, at most L tokens of a few bytes.
  spelled = nats.sum() / math.log(2) / measured.values['bits per byte']
  assert spelled == pytest.approx(round(spelled), abs=1e-2)
  assert len(held_out) - 20 * L < spelled < len(held_out)
  if tokens == 'characters':
    assert task.unit.name == 'bits per character'
    assert measured.values['loss'] == pytest.approx(nats.mean() / math.log(2), rel=1e-5)
    targets = held_out.decode()[1 : len(nats) + 1]
    assert round(spelled) == len(targets.encode())
    assert others(task) == {'bits per byte'}
  else:
    assert others(task) == {'perplexity', 'bits per character', 'bits per byte'}


def test_bytes_are_in_bits_per_byte_alone(tmp_path):
  task = make(write(tmp_path), 'bytes', eval_tokens=64)
  assert (task.unit.name, others(task)) == ('bits per byte', set())
  assert score(task).values['loss'] == pytest.approx(loop_nats(task).mean() / math.log(2), rel=1e-5)


def test_where_words_are_cut_only_perplexity_is_told_and_how_many_are_unknown(tmp_path):
  task = make(write(tmp_path), vocab_size=6, prompt='bar')
  assert others(task) == {'perplexity'}
  unknown = (scored_targets(task) == task.vocabulary['types'].index('<unk>')).mean()
  assert 0.2 < unknown < 0.9
  assert f'{100 * unknown:.2g} % of which are <unk>' in task.facts['scored']


def test_results_and_lines_state_the_other_units(tmp_path):
  task = make(write(tmp_path), eval_tokens=64)
  measured = score(task)
  task = task._replace(evaluations=task.evaluations[:1])
  row = results(task, {'length 8': measured}, '')['scores']['length 8']
  assert row.items() >= {**measured.values, 'counted': 64, 'why': ''}.items()
  assert set(row['constant']) == {'loss'} | others(task)
  assert json.dumps(row)
  headline = task.evaluations[0]
  line = stated(headline, measured._replace(values={'loss': 2.0, 'perplexity': math.exp(2)}))
  assert line == 'length 8: 2.000 nats per word, 7.389 perplexity'
  finish = headline.metrics['perplexity'].finish
  of_one_token = lambda nats: finish((Rows(nats, 1.0, nats**2, nats, 1.0, 1), Counter()))
  assert of_one_token(1e6) == math.inf
  assert math.isnan(of_one_token(math.nan))
  assert of_one_token(2.0) == pytest.approx(7.389, abs=1e-3)


def test_each_length_scores_the_same_tokens(tmp_path):
  task = make(write(tmp_path))
  np.testing.assert_array_equal(scored_targets(task, L), scored_targets(task, 2 * L))
  model = task.model(nnx.Rngs(0))
  assert model(jnp.zeros((1, 2), jnp.int32), jnp.arange(2)).shape[-1] == len(
    task.vocabulary['types']
  )


def test_every_document_ends_its_last_line(tmp_path):
  """Sentences of lm1b have no end of a line: a model should learn where they end."""
  (tmp_path / 'a.train.txt').write_text('the old bar')
  task = make(write(tmp_path))
  end = task.vocabulary['types'].index('<eos>')
  first = next(iter(task.train_batches(0, 1)))
  assert (first['targets'] == end).sum() > 0
  lines = (tmp_path / 'train.txt').read_text()
  assert task.facts['training words'] == str(3 + 1 + len(lines.split()) + lines.count('\n'))


def test_a_stored_vocabulary_is_used_in_place_of_the_text(tmp_path):
  data = write(tmp_path)
  stored = make(data).vocabulary
  turned = {**stored, 'types': [*stored['types'][:1], *stored['types'][:0:-1]]}
  task = make(data, vocabulary=turned)
  assert task.vocabulary == turned
  types = turned['types']
  assert [types[i] for i in scored_targets(task)] == [
    stored['types'][i] for i in scored_targets(make(data))
  ]


def say(task, model, text, key=None):
  (answer,) = task.ask.answer(model, [text], jax.random.key(0) if key is None else key)
  return answer.plain


def test_texts_are_continued_together_as_each_would_be_in_its_place(tmp_path):
  """Prompts of several lengths are padded; the first text draws what it draws alone."""
  task = make(write(tmp_path))
  model, texts = task.model(nnx.Rngs(0)), ['the old bar', 'is a new', 'café']
  together = task.ask.answer(model, texts, jax.random.key(0))
  assert together[0].plain == say(task, model, texts[0])
  again = task.ask.answer(model, ['old', 'is a new', 'the'], jax.random.key(0))
  assert again[1].plain == together[1].plain
  for text, answer in zip(texts, together, strict=True):
    assert answer.plain.startswith(text)
    assert answer.styled.plain == answer.plain
    assert len(answer.plain.replace('\n', ' <eos> ').split()) == len(text.split()) + 5


def test_a_sample_continues_the_prompt_in_its_tokens(tmp_path):
  task = make(write(tmp_path))
  model = task.model(nnx.Rngs(0))
  said = say(task, model, task.ask.examples[0].text)
  assert said.startswith('the old bar')
  assert said == say(task, model, 'the  old\tbar')
  assert said != say(task, model, 'the old bar', jax.random.key(1))
  words = said.replace('\n', ' <eos> ').split(' ')
  assert len([word for word in words if word]) == 3 + 5


def test_beyond_a_table_a_sample_ends_and_says_why(tmp_path):
  task = make(write(tmp_path), 'bytes', scheme='learned(max_length=12)', eval_factors=(1,))
  said = say(task, task.model(nnx.Rngs(0)), '0123456789')
  assert said.startswith('0123456789')
  assert said.endswith('\n(Further positions lie beyond a table of the scheme.)')


@pytest.mark.parametrize(
  ('tokens', 'train', 'valid', 'message'),
  [
    ('characters', b'ab\n\xff', b'ab', r'train\.txt: line 2 is not UTF-8 \(byte 0xff\)'),
    ('words', b'a b\n' * 9, b'a\na c', r"valid\.txt: line 2 has the word 'c', which the training"),
    ('words', b'a b\n' * 99, b'a\n', r'file:.*: A window of 16 tokens needs a text of at least 17'),
    ('words', b'', b'a\n', r'train\.txt should hold text, but is empty'),
    ('sentencepiece', b'a b c\n' * 9, b'\xe9', r'cannot learn 300 pieces here'),
    ('characters', None, None, r"The text 'the BAR' cannot be continued: line 1 .* character 'B'"),
  ],
)
def test_what_is_wrong_with_a_text_is_told_with_its_file_and_line(
  tmp_path, tokens, train, valid, message
):
  data = write(tmp_path, train, valid)
  changes = {'vocab_size': 300} if tokens == 'sentencepiece' else {}
  with pytest.raises(ValueError, match=message):
    make(data, tokens, prompt='the BAR' if train is None else 'a', **changes)


def test_a_text_without_a_target_is_told_by_its_name(tmp_path):
  task = make(write(tmp_path, train=b'a'), 'bytes', prompt='a')
  with pytest.raises(ValueError, match=r'file:.*: Shard 0 of 1 should have text'):
    task.train_batches(0, 1)


@pytest.mark.parametrize('kind', ['text8', 'enwik8'])
def test_whole_files_are_split_90_to_5_to_5_and_the_test_stays_unread(tmp_path, kind, monkeypatch):
  monkeypatch.setattr(files, '_MILLION', 10)
  content = bytes(97 + i * i % 26 for i in range(1000))
  (tmp_path / kind).write_bytes(content)
  train, held_out = getattr(files, f'read_{kind}')(f'{tmp_path}/{kind}')
  assert train == (content[:900],)
  assert held_out == (content[900:950],)


def test_a_part_of_text8_or_another_file_is_refused_as_the_whole(tmp_path, monkeypatch):
  (tmp_path / 'text8').write_bytes(b'a' * 999)
  with pytest.raises(ValueError, match='whole file of 100,000,000 bytes, but has 999'):
    files.read_text8(f'{tmp_path}/text8')
  with pytest.raises(FileNotFoundError, match=r'100 million bytes is expected at .*/none'):
    files.read_enwik8(f'{tmp_path}/none')
  monkeypatch.setattr(files, '_MILLION', 10)
  (tmp_path / 'text8').write_bytes(b'a' * 500 + b'B' + b'a' * 499)
  with pytest.raises(ValueError, match=r'is not text8: .* but it has 0x42'):
    files.read_text8(f'{tmp_path}/text8')
  assert files.read_enwik8(f'{tmp_path}/text8')[0][0][500:501] == b'B'


def test_a_single_file_is_not_cut_inside_a_character(tmp_path):
  for shift in range(4):
    (tmp_path / 'text').write_text('a' * shift + '漢' * 40)
    (train,), (held_out,) = files.read(f'{tmp_path}/text')
    assert train.decode() + held_out.decode() == 'a' * shift + '漢' * 40
    assert 2 <= len(held_out.decode()) <= 3


@pytest.mark.parametrize('name', ['lm1b', 'wiki40b/en'])
@pytest.mark.parametrize('tokens', ['words', 'characters'])
def test_sets_of_tensorflow_datasets_are_read_in_any_tokens(name, tokens):
  library = pytest.importorskip('tensorflow_datasets')
  importlib.import_module('tensorflow_datasets.text')
  with library.testing.mock_data(num_examples=30):
    task = make(f'tfds:{name}', tokens, vocab_size=20 if tokens == 'words' else 9, prompt='a')
  assert task.vocabulary['tokens'] == tokens
  assert len(scored_targets(task)) >= 2 * L


@pytest.mark.parametrize('name', ['text8', 'text8_paper', 'wikitext2', 'wikitext2_paper'])
def test_configs_have_the_keys_of_the_default_and_sizes_that_fit(name):
  config, plain = importlib.import_module(f'configs.{name}').get_config(), default.get_config()
  for part in ('task', 'model', 'optimizer'):
    assert config[part].keys() == plain[part].keys()
  assert config.model.width % config.model.num_heads == 0
  assert config.optimizer.warmup_steps < config.steps
  assert config.task.tokens == ('characters' if name.startswith('text8') else 'words')
