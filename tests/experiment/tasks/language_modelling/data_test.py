"""`text.read`: what each expression reads, and what it says when it cannot."""

import hashlib
import importlib.util
import sys
from pathlib import Path

import pytest

from posjax.experiment.data.corpus import fingerprint
from posjax.experiment.tasks.language_modelling import files, python_docs
from posjax.experiment.tasks.language_modelling.data import read


@pytest.fixture(scope='module')
def docs():
  return read('python_docs')


def test_python_docs_is_the_same_on_each_call(docs):
  assert read('python_docs') == docs
  assert docs.name == 'python_docs'


def test_python_docs_holds_out_about_one_byte_in_twenty(docs):
  train, held_out = sum(map(len, docs.train)), sum(map(len, docs.held_out))
  assert train + held_out > 4e6
  assert 0.03 < held_out / (train + held_out) < 0.08
  assert all(docs.train + docs.held_out)


def test_python_docs_keeps_documents_apart(docs):
  assert not set(docs.train) & set(docs.held_out)


def test_python_docs_shares_no_paragraph_of_its_topics(docs):
  topics = importlib.import_module('pydoc_data.topics').topics
  encoded = {text.encode() for text in topics.values()}
  paragraphs = [
    {
      plain
      for document in documents
      if document in encoded
      for plain in (b' '.join(part.split()) for part in document.split(b'\n\n'))
      if len(plain) >= 80
    }
    for documents in (docs.train, docs.held_out)
  ]
  assert all(paragraphs)
  assert not paragraphs[0] & paragraphs[1]


def test_python_docs_holds_a_module_and_its_python_twin_on_the_same_side(docs):
  sides = set()
  for module in ('datetime', '_pydatetime') if '_pydatetime' in sys.stdlib_module_names else ():
    content = Path(importlib.util.find_spec(module).origin).read_bytes()
    sides.add(content in docs.train)
    assert content in docs.train + docs.held_out
  assert len(sides) < 2


def test_python_docs_leaves_tests_and_tables_out(docs):
  library = Path(importlib.util.find_spec('json').origin).parent.parent
  documents = set(docs.train + docs.held_out)
  for path in ('encodings/cp037.py', 'pydoc_data/topics.py', 'test/test_json/test_dump.py'):
    if (library / path).exists():
      assert (library / path).read_bytes() not in documents
  assert (library / 'json/decoder.py').read_bytes() in documents


def test_topics_that_share_a_paragraph_also_through_a_third_are_one_group():
  long, other = 'a long paragraph ' * 6, 'another paragraph ' * 6
  topics = {'d': 'short', 'c': other, 'b': f'{long}\n\n{other}', 'a': f'x\n\n{long}', 'e': 'short'}
  assert python_docs.topic_groups(topics) == [['a', 'b', 'c'], ['d'], ['e']]


def test_one_group_in_twenty_is_held_out():
  count = sum(python_docs.is_held_out(f'module:{index}') for index in range(4000))
  assert 150 < count < 250


def test_python_docs_says_when_the_library_has_no_sources(monkeypatch, tmp_path):
  monkeypatch.setattr(python_docs.sysconfig, 'get_path', lambda name: str(tmp_path))
  with pytest.raises(FileNotFoundError, match=f'{tmp_path} holds none: use file:PATH'):
    read('python_docs')


def test_a_file_is_cut_at_its_last_twentieth(tmp_path):
  content = bytes(range(256)) * 5
  (tmp_path / 'book.txt').write_bytes(content)
  text = read(f'file:{tmp_path}/book.txt')
  assert text.train == (content[:1216],)
  assert text.held_out == (content[1216:],)


def test_a_file_of_two_bytes_gives_one_to_each_side(tmp_path):
  (tmp_path / 'book.txt').write_bytes(b'ab')
  assert files.read(str(tmp_path / 'book.txt')) == ((b'a',), (b'b',))


@pytest.mark.parametrize(
  ('train', 'held_out'),
  [
    ('train.txt', 'valid.txt'),
    ('train.bin', 'dev.bin'),
    ('wiki.train.tokens', 'wiki.valid.tokens'),
    ('train.en', 'val.en'),
    ('Train.txt', 'VALIDATION.TXT'),
  ],
)
def test_a_folder_is_read_by_the_names_of_its_files(tmp_path, train, held_out):
  for name in (train, held_out, 'test.txt', 'README.md', 'trainer.txt'):
    (tmp_path / name).write_bytes(f'\xff{name}\r\n'.encode('latin-1'))
  text = read(f'file:{tmp_path}')
  assert text.train == (f'\xff{train}\r\n'.encode('latin-1'),)
  assert text.held_out == (f'\xff{held_out}\r\n'.encode('latin-1'),)


def test_each_of_several_files_is_a_document_in_the_order_of_names(tmp_path):
  for name in ('train.2.txt', 'train.1.txt', 'dev.txt'):
    (tmp_path / name).write_text(name)
  assert files.read(str(tmp_path))[0] == (b'train.1.txt', b'train.2.txt')


def test_nothing_at_a_path_is_an_error_with_the_path(tmp_path):
  with pytest.raises(FileNotFoundError, match=f'but nothing is at {tmp_path}/missing'):
    read(f'file:{tmp_path}/missing')


@pytest.mark.parametrize('name', ['train.txt', 'other.txt', ''])
def test_a_folder_without_one_of_its_sides_is_an_error_with_its_names(tmp_path, name):
  if name:
    (tmp_path / name).write_text('text')
  side = "'dev' or 'val' or 'valid'" if name == 'train.txt' else "'train'"
  with pytest.raises(FileNotFoundError, match=f'{tmp_path} should .* {side}.* {name or "no file"}'):
    read(f'file:{tmp_path}')


def test_empty_and_too_short_files_are_errors_with_the_path(tmp_path):
  (tmp_path / 'train.txt').write_text('text')
  (tmp_path / 'dev.txt').touch()
  with pytest.raises(ValueError, match=r'dev\.txt should hold text, but is empty'):
    read(f'file:{tmp_path}')
  (tmp_path / 'one').write_text('x')
  with pytest.raises(ValueError, match='one is split in two and needs at least 2 bytes'):
    read(f'file:{tmp_path}/one')


@pytest.mark.parametrize(
  ('expression', 'hint'),
  [
    ('python_doc', "did you mean 'python_docs'"),
    ('flie:here', "did you mean 'file:PATH'"),
    ('python_docs:here', "did you mean 'python_docs'"),
    ('file:', "did you mean 'file:PATH'"),
    ('tdfs:lm1b', "did you mean 'tfds:NAME'"),
    ('shakespeare', r'There are: python_docs, file:PATH, tfds:NAME, text8:PATH, enwik8:PATH\.$'),
    ('', 'There are: python_docs'),
  ],
)
def test_an_unknown_text_is_an_error_that_names_what_there_is(expression, hint):
  with pytest.raises(ValueError, match=rf"Unknown text '{expression}'[.;] {hint}"):
    read(expression)


def test_the_fingerprint_sees_bytes_borders_order_and_sides():
  base = [([b'ab', b'c'], [b'd']), ([b'a', b'bc'], [b'd']), ([b'c', b'ab'], [b'd'])]
  base += [([b'ab'], [b'c', b'd']), ([b'ab', b'c'], [b'e']), ([b'ab', b'c', b''], [b'd'])]
  assert len({fingerprint(*sides) for sides in base}) == len(base)
  one = hashlib.sha256(b'train' + (1).to_bytes(8, 'little') + b'a' + b'held_out').hexdigest()
  assert fingerprint([b'a'], []) == one
