"""The task of tagging: what it reads, scores and says, and that it learns."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from matplotlib.figure import Figure

import posjax
from configs import resume_ner, tagging, tagging_paper
from posjax.experiment import settings
from posjax.experiment.run import train
from posjax.experiment.task import get_task
from posjax.experiment.tasks.tagging.direction import BEST_F1
from posjax.experiment.tasks.tagging.tags import spans
from tests.experiment.support import judged
from tests.models.text_made import moved

KEY = jax.random.key(0)
TRAIN = [
  [('Ada', 'B-PER'), ('King', 'I-PER'), ('wrote', 'O'), ('1843', 'O')],
  [('to', 'O'), ('London', 'B-LOC'), ('in', 'O'), ('1842', 'O'), ('London', 'O')],
] * 3
HELD_OUT = [
  [('Ada', 'B-PER'), ('in', 'O'), ('Paris', 'B-LOC')],
  [('London', 'B-LOC'), ('King', 'I-LOC'), ('wrote', 'O'), ('to', 'O'), ('Ada', 'B-PER')],
]
LETTERS = [
  [(letter, tag) for letter, tag in zip('在北京住', ('O', 'B-LOC', 'I-LOC', 'O'), strict=True)]
]


def lines(sentences):
  return '\n'.join(''.join(f'{word}\t{tag}\n' for word, tag in one) for one in sentences)


def written(folder, train=TRAIN, held_out=HELD_OUT):
  (folder / 'train.conll').write_text(lines(train), encoding='utf-8')
  (folder / 'dev.conll').write_text(lines(held_out), encoding='utf-8')
  return f'file:{folder}'


def configured(config, data, **changes):
  config.task.data = data
  small = {'width': 8, 'word_width': 8, 'num_layers': 1, 'num_heads': 2, 'hidden_width': 8}
  small = {f'model.{name}': size for name, size in small.items()}
  small |= {'task.widths': (4, 8), 'task.longest_word': 5}
  config.update_from_flattened_dict(small | changes)
  return config


def made(data, scheme='tener', config=tagging, **changes):
  config = configured(config.get_config(), data, **changes)
  arguments = config.task.to_dict()
  name = arguments.pop('name')
  shared = {'seed': 0, 'batch_size': 2}
  return get_task(name)([posjax.get(scheme)], config.model.to_dict(), **shared, **arguments)


def test_it_says_what_it_read_and_what_it_knows(tmp_path):
  changes = {'task.zero_digits': True, 'model.characters': 'cnn', 'model.bigram_width': 4}
  facts = made(written(tmp_path), **changes).facts
  assert facts['sentences'] == '6 in training, 2 held out (as given)'
  assert facts['notation'] == 'IOB2, read as BIOES'
  # ada, king, wrote, 0000, to, london, in; of the 8 held-out tokens, Paris is unknown.
  assert facts['words'] == '7 known'
  assert facts['unknown words'] == '0.0% in training, 12.5% held out'
  assert facts['letters'] == '14 known; of 7 tokens with more than 5, only the first are read'
  assert facts['bigrams'].startswith('9 known')
  assert facts['questions'] == 'are cut at their spaces'
  assert facts['left out'].startswith('0 training sentences of more than 8')
  # Said are Ada twice, which is right, King alone, and London alone, where B-LOC and O are equal.
  assert facts['baseline'].startswith('F1 50.0% ')
  assert facts['vectors'] == 'words: drawn; bigrams: drawn'
  assert len(facts['sha256']) == 64


def test_facts_count_entities_and_illegal_tags(tmp_path):
  (tmp_path / 'train.conll').write_text('a\tB-X\nb\tI-X\n\nc\tO\nd\tI-X\n\ne\tB-X\nf\tI-Y\n')
  (tmp_path / 'valid.conll').write_text('g\tI-Y\nh\tI-Y\n\nk\tB-Y\n')
  facts = made(f'file:{tmp_path}', **{'task.notation': 'IOB2', 'task.min_count': 1}).facts
  assert facts['repaired'].startswith('3 sentences')
  assert facts['repaired'].endswith(f'the first at {tmp_path}/train.conll, line 4')
  assert facts['entities'] == '4 in training, 2 held out (X 3 and 0, Y 1 and 2)'
  assert facts['tokens'] == '6 in training, 3 held out'


def test_longer_training_sentences_are_left_out_and_held_out_ones_are_not(tmp_path):
  task = made(written(tmp_path), **{'task.widths': (2, 4)})
  assert task.facts['left out'].startswith('3 training sentences of more than 4')
  stream = iter(task.train_batches(0, 1))
  assert {row % 2 for _ in range(6) for row in next(stream)['row'].tolist()} == {0}
  shapes = [batch['inputs'].shape for batch in task.evaluations[0].batches()]
  assert shapes == [(2, 4), (2, 8)]


def test_every_held_out_sentence_is_scored_once_by_its_whole_entities_and_its_loss(tmp_path):
  task = made(written(tmp_path, held_out=[*HELD_OUT, HELD_OUT[0]]), **{'task.widths': (8,)})
  model = moved(task.model(nnx.Rngs(3)))
  score = judged.score(task.evaluations[0], model)
  texts = [' '.join(word for word, _ in one) for one in [*HELD_OUT, HELD_OUT[0]]]
  said = task.ask.answer(model, texts, KEY)
  found, there = [], []
  for number, (answer, one) in enumerate(zip(said, [*HELD_OUT, HELD_OUT[0]], strict=True)):
    at = 0
    for label, words in re.findall(r'\[(\S+) ([^]]*)\]|\S+', answer.plain):
      count = len(words.split()) if label else 1
      found += [(number, label, at, at + count - 1)] if label else []
      at += count
    there += [(number, *span) for span in spans([tag for _, tag in one])]
  right = len(set(found) & set(there))
  assert found, 'an untrained model that says nothing would show nothing'
  np.testing.assert_allclose(score.values['precision'], right / len(found))
  np.testing.assert_allclose(score.values['recall'], right / len(there))
  np.testing.assert_allclose(score.values['f1'], 2 * right / (len(found) + len(there)))
  assert score.counted == 11
  assert [each.role for each in task.evaluations] == ['trained', 'training rows']
  # The loss is the mean over sentences, of which each counts once, whatever fills the batches.
  graph, state = nnx.split(model)
  loss = jax.jit(lambda state, batch: task.loss(nnx.merge(graph, state), batch, None, None, None))
  losses = [
    float(loss(state, {name: array[row : row + 1] for name, array in batch.items()})[0])
    for batch in task.evaluations[0].batches()
    for row in np.flatnonzero(batch['row'] >= 0)
  ]
  assert len(losses) == 3
  np.testing.assert_allclose(score.values['loss'], np.mean(losses), rtol=1e-5)


class _Said:
  """A model that says given tags."""

  attends = False

  def __init__(self, tags, known):
    self.tags = np.array([[known.index(tag) for tag in tags]], np.int32)
    self.field = self

  def __call__(self, sentences, ids_key):
    return jnp.zeros((1, 1, 1))

  def decode(self, emissions, lengths):
    return self.tags, np.zeros(1)


def test_entities_stand_in_brackets_or_in_the_colours_of_their_types(tmp_path):
  task = made(written(tmp_path))
  known = ('O', *(f'{letter}-{name}' for name in ('LOC', 'PER') for letter in 'BIES'))
  tags = ('S-PER', 'O', 'O', 'B-LOC', 'E-LOC', 'S-LOC')
  (answer,) = task.ask.answer(_Said(tags, known), ['Ada  went to New York Paris'], KEY)
  assert answer.plain == '[PER Ada] went to [LOC New York] [LOC Paris]'
  assert answer.styled.plain == 'Ada PER went to New York LOC Paris LOC'
  colours = {
    answer.styled.plain[span.start : span.end]: span.style.split()[1]
    for span in answer.styled.spans
  }
  assert colours['Ada'] == colours[' PER'] != colours['New York']
  assert colours['New York'] == colours['Paris'] == colours[' LOC']
  assert answer.pictures == {}


def test_where_training_tokens_are_letters_a_text_is_cut_into_letters(tmp_path):
  task = made(written(tmp_path, LETTERS * 4, LETTERS), config=resume_ner)
  assert task.facts['questions'].startswith('are cut into letters')
  known = ('O', 'B-LOC', 'I-LOC', 'E-LOC', 'S-LOC')
  said = _Said(('O', 'B-LOC', 'E-LOC', 'O'), known)
  (answer,) = task.ask.answer(said, ['在 北京住'], KEY)
  assert answer.plain == '在[LOC 北京]住'
  assert answer.styled.plain == '在北京 LOC住'
  assert [example.correct for example in task.ask.examples] == ['在[LOC 北京]住']
  assert task.ask.examples[0].text == '在北京住'


def test_a_text_without_words_is_refused_and_one_beyond_a_table_has_no_tags(tmp_path):
  task = made(written(tmp_path), 'learned(max_length=4)')
  model = task.model(nnx.Rngs(0))
  with pytest.raises(ValueError, match="should have a word or more, but has none: ' '"):
    task.ask.answer(model, ['Ada', ' '], KEY)
  said = task.ask.answer(model, ['Ada wrote', 'Ada in London in 1843'], KEY)
  assert 'beyond' not in said[0].plain
  assert said[1].plain == '(no tags: positions lie beyond a table of the scheme)'


@pytest.mark.slow
def test_its_picture_is_of_the_attention_between_the_words(tmp_path):
  task, figure = made(written(tmp_path)), Figure()
  (answer,) = task.ask.answer(task.model(nnx.Rngs(0)), ['Ada in London'], KEY)
  answer.pictures['attention'](figure)
  assert len(figure.axes) == 1 * 2
  names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
  assert names == ['Ada', 'in', 'London']
  for axes in figure.axes:
    np.testing.assert_allclose(axes.images[0].get_array().sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
  ('text', 'told'),
  [
    ('Ada\tB-PER\nKing\n', r'train\.conll, line 2 .*'),
    ('Ada\tB-PER\nKing\tX-PER\n', r"train\.conll, line 2 .* has 'X-PER'"),
  ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path, text, told):
  data = written(tmp_path)
  (tmp_path / 'train.conll').write_text(text)
  with pytest.raises(ValueError, match=told):
    made(data)


def test_vectors_are_those_of_the_file_and_must_have_the_models_width(tmp_path):
  data, path = written(tmp_path), tmp_path / 'vectors.txt'
  row = np.arange(1.0, 9.0)
  path.write_text(f'ada {" ".join(map(str, row))}\n')
  task = made(data, **{'task.vectors': str(path)})
  assert task.facts['vectors'] == f'1 words have one in {path}'
  assert task.facts['sha256'] != made(data).facts['sha256']
  table = np.asarray(task.model(nnx.Rngs(0)).words.table.embedding[...])
  factors = table[5] / row  # after london, the most frequent word, 1842 and 1843
  np.testing.assert_allclose(factors, factors[0], rtol=1e-5)
  with pytest.raises(ValueError, match=r'vectors\.txt, line 1 .* 4 numbers, .* has 8'):
    made(data, **{'task.vectors': str(path), 'model.word_width': 4})
  with pytest.raises(ValueError, match=r'task\.bigram_vectors needs a model that reads bigrams'):
    made(data, **{'task.bigram_vectors': str(path)})


def test_a_name_that_is_none_is_refused(tmp_path):
  names = {'model.encoder': 'cnn', 'model.characters': 'rnn', 'task.notation': 'IO'}
  for key, value in names.items():
    config = configured(tagging.get_config(), written(tmp_path), **{key: value})
    with pytest.raises(ValueError, match=f'{key} .*{value!r}'):
      settings.check(config)


def test_the_config_of_the_paper_makes_its_model(tmp_path):
  config = tagging_paper.get_config()
  sizes = {f'model.{name}': value for name, value in config.model.items()}
  task = made(written(tmp_path), **sizes, **{'task.min_count': 1})
  shapes = nnx.state(nnx.eval_shape(lambda: task.model(nnx.Rngs(0))), nnx.Param)
  found = sum(leaf.size for leaf in jax.tree.leaves(shapes['encoder']))
  width = 14 * 128
  # Queries, keys and values; the feed-forward layer; two norms; u and v. No output projection.
  layer = 3 * width**2 + (4 * width + 3) * width + 4 * width + 2 * width
  assert found == 2 * layer


@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['tener', 'shaw', 'transformer_xl', 'tener(even=True)'])
def test_a_direction_is_learned_but_by_an_even_scheme(tmp_path, scheme):
  config = tagging.get_config()
  config.scheme, config.task.widths = scheme, (12,)
  result = train(config, tmp_path)
  found = result.scores['held out'].values
  if 'even' in scheme:
    assert found['f1'] <= BEST_F1 + 1e-6
  else:
    assert found['f1'] > 0.95
    assert result.scores['training sentences'].values['f1'] > 0.95
  saved = json.loads((tmp_path / 'results.json').read_text())
  assert saved['scores']['held out']['f1'] == found['f1']
