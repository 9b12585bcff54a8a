"""Tokenizers of folders: ids that are known, conversations, and what is refused."""

import functools
import json
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from posjax import interop
from posjax.interop import chat
from posjax.interop.tokenizer import byte_level
from tests.support import tokenizer_folders
from tests.support.tokenizer_folders import CHATML, GEMMA, LLAMA3, byte_pairs, pieces, word_pieces

TEXTS = [
  *(
    'the cat sat',
    ' the  dog<|eot|>\n',
    'unbelievable cats, the cat!',
    '猫 🐈',
    '',
    '  \t\r\n the',
  ),
  *(
    '<unk>the</s>',
    '[MASK] cats',
    '<image>the<extra>',
    'na\u00efve e\u0301 \u200d👩‍🚀',
    '我们 the 猫',
  ),
]
MESSAGES = [
  {'role': 'user', 'content': ' the cat '},
  {'role': 'assistant', 'content': '<think>x</think>\n\nsat', 'tool_calls': None},
  {'role': 'user', 'content': '猫 🐈 on'},
]
SYSTEM = [{'role': 'system', 'content': ' the log'}, *MESSAGES]
MAKERS = (byte_pairs, word_pieces, pieces)
TEMPLATES = {'llama3': LLAMA3, 'chatml': CHATML, 'gemma': GEMMA}


@pytest.fixture(scope='module')
def read(tmp_path_factory):
  """The tokenizer of a folder that a function makes; read once."""

  @functools.cache
  def made(make, *args):
    return interop.tokenizer(make(tmp_path_factory.mktemp('folder'), *args))

  return made


@pytest.mark.parametrize(
  ('make', 'text', 'ids', 'plain'),
  [
    (byte_pairs, 'the cat sat', [0, 263, 274, 269], 'the cat sat'),
    (byte_pairs, ' the  dog<|eot|>\n', [0, 267, 225, 275, 3, 203], ' the  dog\n'),
    (byte_pairs, '猫 🐈', [0, 168, 239, 109, 225, 177, 258, 243, 235], '猫 🐈'),
    (byte_pairs, '', [0], ''),
    # Also: what the file says of truncation and padding is not for us.
    (word_pieces, 'Unbelievable cats, the cat!', [2, 9, 10, 11, 6, 7, 12, 5, 6, 14, 3], None),
    (word_pieces, '[MASK] 猫 dog', [2, 4, 15, 1, 3], '猫'),
    (pieces, 'the cat sat', [4, 5, 11, 1], 'the cat sat'),
    (pieces, ' cats', [5, 8, 1], 'cats'),
    (pieces, '猫 🐈', [3, 12, 3, 253, 172, 157, 149, 1], '猫 🐈'),
    # Special tokens that tokenizer_config.json adds.
    (pieces, '<image>the<extra>', [269, 4, 270, 1], 'the'),
  ],
)
def test_texts_have_the_ids_that_are_known(read, make, text, ids, plain):
  found = read(make)
  assert found.encode(text) == ids
  assert found.decode(ids) == (text.lower() if plain is None else plain)
  assert found.decode(np.array([*ids, -1, -1])) == found.decode(ids)


def test_special_tokens_are_added_and_shown_where_one_asks_for_them(read):
  found = read(byte_pairs)
  assert found.encode('the<|eot|>', special=False) == [263, 3]
  assert found.decode([0, 263, -1, 3], special=True) == '<|begin|>the<|eot|>'
  assert read(word_pieces).decode([2, 6, 7, 14, 3], special=True) == '[CLS] cats! [SEP]'


@pytest.mark.parametrize(
  ('make', 'size', 'bos', 'eos', 'pad', 'stop'),
  [
    (byte_pairs, 278, 0, 3, 4, (3,)),
    (word_pieces, 17, None, None, 0, ()),
    (pieces, 271, None, 1, 0, (1,)),
  ],
)
def test_what_is_known_of_special_tokens(read, make, size, bos, eos, pad, stop):
  found = read(make)
  assert (found.vocab_size, found.bos, found.eos, found.pad_id) == (size, bos, eos, pad)
  assert found.stop == stop


@pytest.mark.parametrize(
  ('files', 'stop', 'bos'),
  [
    ({'generation_config': {'eos_token_id': [3, 2, 3]}, 'config': {'eos_token_id': 1}}, (3, 2), 0),
    ({'generation_config': {'eos_token_id': 2}}, (2,), 0),
    ({'generation_config': {'eos_token_id': None}, 'config': {'eos_token_id': 1}}, (1,), 0),
    ({'config': {'text_config': {'eos_token_id': [1, 2]}}}, (1, 2), 0),
    ({'config': {'eos_token_id': -1}}, (3,), 0),
    ({'tokenizer_config': {}, 'config': {'eos_token_id': 1, 'bos_token_id': 2}}, (1,), 2),
    ({'tokenizer_config': {'bos_token': None}, 'config': {'bos_token_id': 2}}, (), None),
    (
      {'tokenizer_config': {}, 'special_tokens_map': {'eos_token': {'content': '<|end|>'}}},
      (2,),
      None,
    ),
    (
      # Newer configurations hold everything, and the map says nothing.
      {
        'tokenizer_config': {'added_tokens_decoder': {}, 'eos_token': '<|eot|>'},
        'special_tokens_map': {'eos_token': '<|end|>'},
      },
      (3,),
      None,
    ),
  ],
)
def test_the_tokens_that_end_a_text(tmp_path, files, stop, bos):
  found = interop.tokenizer(byte_pairs(tmp_path, **files))
  assert (found.stop, found.bos) == (stop, bos)


def test_a_batch_is_padded_on_the_left(read):
  found = read(byte_pairs)
  tokens, lengths = found.pad(['the cat sat', 'on', [5]])
  assert tokens.tolist() == [[0, 263, 274, 269], [4, 4, 0, 265], [4, 4, 4, 5]]
  assert lengths.tolist() == [4, 2, 1]
  assert (tokens.dtype, lengths.dtype) == (np.int32, np.int32)


def test_a_batch_without_a_padding_token_is_padded_with_0(tmp_path):
  byte_level(tmp_path, special=())
  found = interop.tokenizer(tmp_path)
  assert (found.pad_id, found.eos, found.vocab_size) == (None, None, 256)
  assert found.pad(['a', 'bc'])[0].tolist() == [[0, 97], [98, 99]]


# Conversations.


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    (
      'llama3',
      '<|begin|><|start|>system<|end|>\n\nBe brief.<|eot|>'
      '<|start|>user<|end|>\n\nthe cat<|eot|>'
      '<|start|>assistant<|end|>\n\n<think>x</think>\n\nsat<|eot|>'
      '<|start|>user<|end|>\n\n猫 🐈 on<|eot|><|start|>assistant<|end|>\n\n',
    ),
    (
      'chatml',
      '<|start|>user\n the cat <|eot|>\n<|start|>assistant\nsat<|eot|>\n'
      '<|start|>user\n猫 🐈 on<|eot|>\n<|start|>assistant\n',
    ),
    (
      'gemma',
      '<|begin|>    <|start|>user\nthe cat<|eot|>\n'
      '    <|start|>model\n<think>x</think>\n\nsat<|eot|>\n'
      '    <|start|>user\n猫 🐈 on<|eot|>\n    <|start|>model\n\n',
    ),
  ],
)
def test_a_conversation_is_written_as_its_template_says(read, name, text):
  found = read(byte_pairs, TEMPLATES[name])
  ids = found.chat(MESSAGES)
  assert found.decode(ids, special=True) == text
  assert ids == found.encode(text, special=False)
  assert ids.count(0) == (name != 'chatml')  # what begins a text is there at most once


def test_variables_reach_the_template(read):
  llama, qwen = read(byte_pairs, LLAMA3), read(byte_pairs, CHATML)
  shown = lambda found, **given: found.decode(found.chat(SYSTEM, **given), special=True)
  assert shown(qwen, enable_thinking=False).endswith('assistant\n<think>\n\n</think>\n\n')
  assert shown(qwen, add_generation_prompt=False).endswith(' on<|eot|>\n')
  tools = [{'name': "l'été", 'size': np.float64(1.5)}]
  expected = 'the log\nTools: [\n  {\n    "name": "l\'été",\n    "size": 1.5\n  }\n]<|eot|>'
  assert expected in shown(llama, tools=tools)


def test_a_file_of_the_template_goes_before_the_configuration(tmp_path):
  byte_pairs(tmp_path, 'the dog')
  message = [{'role': 'user'}]
  shown = lambda **given: (lambda t: t.decode(t.chat(message, **given)))(
    interop.tokenizer(tmp_path)
  )
  assert shown() == 'the dog'
  (tmp_path / 'chat_template.jinja').write_text('the log\n')
  assert shown() == 'the log'
  (tmp_path / 'additional_chat_templates').mkdir()
  (tmp_path / 'additional_chat_templates' / 'tool_use.jinja').write_text('{{ tools[0] }}')
  assert (shown(), shown(tools=['mat'])) == ('the log', 'mat')


def test_templates_have_names_in_a_list_and_a_file_of_their_own(tmp_path):
  named = [{'name': name, 'template': name} for name in ('default', 'tool_use')]
  found = interop.tokenizer(byte_pairs(tmp_path / 'list', named))
  assert found.decode(found.chat([{}])) == 'default'
  assert found.decode(found.chat([{}], tools=[])) == 'tool_use'
  found = interop.tokenizer(byte_pairs(tmp_path / 'file', chat_template={'chat_template': 'own'}))
  assert found.decode(found.chat([{}])) == 'own'


def test_the_day_is_known_to_a_template():
  assert len(chat.render("{{ strftime_now('%Y-%m-%d') }}", {})) == 10


@pytest.mark.parametrize(
  ('template', 'message'),
  [
    ("{{ ''.__class__.__mro__ }}", "attribute '__class__' of 'str' object is unsafe"),
    ("{{ messages.__init__.__globals__['os'] }}", 'is unsafe'),
    ("{{ '{0.__class__.__mro__}'.format(1) }}", 'is unsafe'),
    ('{{ raise_exception.__globals__.x }}', 'is unsafe'),
    ("{{ ['']|map(attribute='__class__.__mro__')|list }}", 'is unsafe'),
    ('{{ dict.__base__.x }}', "has no attribute '__base__'"),
    ('{{ namespace.__mro__.x }}', 'is unsafe'),
    ('{% set ns = namespace() %}{% set ns.__call__ = 1 %}', "the name '__call__' in a namespace"),
    ('{{ namespace(_a=1) }}', "the name '_a' in a namespace"),
    ('{{ messages.append(1) }}', "'append' of 'list' object is unsafe"),
    ("{% include '/etc/passwd' %}", 'no loader for this environment'),
    ('{% for x in range(1000000) %}{% endfor %}', 'Range too big'),
    ('{{ raise_exception("Roles must\nalternate") }}', 'failed: Roles must alternate$'),
    ('{{ nothing.of_this }}', "'nothing' is undefined"),
    ('{% if %}', 'Expected an expression'),
    ('{{ 1 / 0 }}', 'failed: ZeroDivisionError: division by zero'),
    ('{{ 1 | tojson(indent="x" + 1) }}', 'failed: TypeError'),
    ('{{ (messages | first) + 1 }}', 'failed: TypeError'),
  ],
)
def test_a_template_that_fails_is_one_sentence(tmp_path, template, message):
  found = interop.tokenizer(byte_pairs(tmp_path, template))
  with pytest.raises(ValueError, match=message) as caught:
    found.chat(MESSAGES)
  words = str(caught.value)
  assert words.startswith(f'The chat template of {tmp_path} failed: ')
  assert '\n' not in words


def test_a_filter_that_reaches_for_internals_finds_nothing():
  assert chat.render("{{ ''|attr('__class__')|attr('__mro__') }}", {}) == ''


def test_a_template_changes_no_message_of_the_caller(read):
  class Loud(str):
    def strip(self, *args):
      raise AssertionError('A template sees copies of plain texts.')

  messages = [{'role': 'user', 'content': Loud(' the cat ')}]
  assert read(byte_pairs, GEMMA).chat(messages) == read(byte_pairs, GEMMA).chat([MESSAGES[0]])


@pytest.mark.parametrize(
  ('messages', 'error', 'message'),
  [
    ('the cat', TypeError, "must be a list of dicts, but got 'the cat'"),
    ([MESSAGES], TypeError, 'must be a list of dicts'),
    ([], ValueError, 'at least one message, but got none'),
    ([{'content': open}], TypeError, 'must be texts, numbers, and lists and dicts of them'),
    ([{1: 'a'}], TypeError, 'must be texts, numbers'),
    ([{'content': '\ud800'}], ValueError, 'must be Unicode text'),
    ([functools.reduce(lambda inner, _: {'x': inner}, range(2000), {})], ValueError, '100 deep'),
  ],
)
def test_messages_that_are_none_are_refused(read, messages, error, message, unchecked):
  with pytest.raises(error, match=message):
    read(byte_pairs, '{% for m in messages %}{{ m.content }}{% endfor %}').chat(messages)


def test_a_conversation_needs_a_template(tmp_path, read):
  with pytest.raises(ValueError, match='has none'):
    read(byte_pairs).chat(MESSAGES)
  found = interop.tokenizer(byte_pairs(tmp_path, [{'name': 'rag', 'template': ''}]))
  with pytest.raises(ValueError, match='has those named rag alone'):
    found.chat(MESSAGES)


def test_a_jinja2_whose_sandbox_can_be_left_is_refused(monkeypatch):
  chat._environment.cache_clear()
  monkeypatch.setattr('importlib.metadata.version', lambda name: '3.1.5')
  with pytest.raises(ImportError, match=r'jinja2 3.1.6 or later, .* but found 3.1.5'):
    chat.render('', {})


# What is refused.


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('org/name-7B.v1', 'run `hf download org/name-7B.v1 --local-dir FOLDER` and read'),
    ('/nowhere', "but there is no folder '/nowhere'.$"),
    ('gpt2', "no folder 'gpt2'. posjax downloads nothing: .* `hf download gpt2 "),
    ('./org', "but there is no folder './org'.$"),
    (__file__, 'is a file.$'),
    ('a\0b', 'there is no folder'),
  ],
)
def test_a_folder_that_is_not_there_is_refused(name, message):
  with pytest.raises(FileNotFoundError, match=message):
    interop.tokenizer(name)


def test_what_is_no_path_is_refused(unchecked):
  with pytest.raises(TypeError, match='must be a path, but got 3'):
    interop.tokenizer(3)
  with pytest.raises(TypeError, match='must be a path, but got None'):
    byte_level(None)


@pytest.mark.parametrize('names', [['tokenizer.model'], ['vocab.json', 'merges.txt']])
def test_a_tokenizer_in_another_form_is_refused_with_what_to_do(tmp_path, names):
  for name in names:
    (tmp_path / name).touch()
  expected = f'{", ".join(names)}: AutoTokenizer.from_pretrained.folder..save_pretrained.folder.'
  with pytest.raises(FileNotFoundError, match=expected):
    interop.tokenizer(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'A tokenizer needs tokenizer.json, but .* has none'):
    interop.tokenizer(tmp_path)


BROKEN = ['', '{', 'null', '[]', '{}', '\0', '{"model": {}}', '{"added_tokens": 3}']


@pytest.mark.parametrize('content', BROKEN)
def test_a_broken_tokenizer_is_refused(tmp_path, content):
  (tmp_path / 'tokenizer.json').write_text(content)
  with pytest.raises(ValueError, match=r'tokenizer.json must be what tokenizers 0') as e:
    interop.tokenizer(tmp_path)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
  ('make', 'section', 'changes', 'message'),
  [
    (byte_pairs, 'post_processor', {'special_tokens': {}}, 'must encode texts, but: no entry'),
    (word_pieces, 'model', {'unk_token': 'x'}, 'must encode texts, but: WordPiece error: Missing'),
  ],
)
def test_a_tokenizer_that_fails_at_a_text_is_refused_then(
  tmp_path, make, section, changes, message
):
  make(tmp_path)
  path = tmp_path / 'tokenizer.json'
  contents = json.loads(path.read_text('utf-8'))
  contents[section] |= changes
  path.write_text(json.dumps(contents), 'utf-8')
  with pytest.raises(ValueError, match=message):
    interop.tokenizer(tmp_path).encode('a dog')


@pytest.mark.parametrize(
  'name', ['tokenizer_config', 'special_tokens_map', 'config', 'generation_config']
)
@pytest.mark.parametrize('content', ['', '{"a', '3', b'\xff', '[' * 100_000])
def test_a_broken_file_beside_it_is_refused(tmp_path_factory, name, content):
  folder = tmp_path_factory.mktemp('broken')
  byte_level(folder)
  (folder / 'tokenizer_config.json').write_text('{}')
  path = folder / f'{name}.json'
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(ValueError, match=f'{path} should hold an object as JSON, but') as caught:
    interop.tokenizer(folder)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  ('files', 'message'),
  [
    ({'config': {'eos_token_id': 'x'}}, 'eos_token_id in .*/config.json must be '),
    ({'generation_config': {'eos_token_id': [1.5]}}, 'eos_token_id in .*/generation_config.json'),
    ({'config': {'pad_token_id': True}}, 'pad_token_id in .*/config.json must be '),
    ({'tokenizer_config': {'chat_template': 3}}, 'chat_template in .* must be a template, or'),
    ({'tokenizer_config': {'chat_template': [{'name': 'a'}]}}, 'must be a template, or a list'),
  ],
)
def test_a_wrong_field_is_refused(tmp_path, files, message):
  with pytest.raises(ValueError, match=message):
    interop.tokenizer(byte_pairs(tmp_path, **files))


def test_fields_of_odd_types_that_nothing_needs_are_ignored(tmp_path):
  odd = {'eos_token': 3, 'added_tokens_decoder': {'x': 1, '2': 5}, 'extra_special_tokens': [7, {}]}
  odd |= {'auto_map': {'AutoTokenizer': ['no.module', None]}, 'tokenizer_class': 'NoSuchClass'}
  found = interop.tokenizer(byte_pairs(tmp_path, tokenizer_config=odd))
  assert (found.eos, found.vocab_size) == (None, 278)


@pytest.mark.parametrize('text', [3, None, b'the', ['the']])
def test_a_text_that_is_no_string_is_refused(read, text, unchecked):
  with pytest.raises(TypeError, match='The text must be a string, but got'):
    read(byte_pairs).encode(text)


def test_a_lone_surrogate_is_refused(read):
  with pytest.raises(ValueError, match='The text must be Unicode text'):
    read(byte_pairs).encode('\ud800')


@pytest.mark.parametrize(
  ('ids', 'error', 'message'),
  [
    ([-2], ValueError, 'must be ids of at least -1, but got -2'),
    (np.zeros((1, 2), int), ValueError, r'must be a list of ids, but got an array int64\[1, 2\]'),
    ([1.5], TypeError, r'ids(\[0\])? must be '),
    (np.zeros(2), TypeError, r'ids(\[0\])? must be '),
    (3, TypeError, r'ids(\[0\])? must be '),
  ],
)
def test_ids_that_are_none_are_refused(read, ids, error, message, unchecked):
  with pytest.raises(error, match=message):
    read(byte_pairs).decode(ids)


@pytest.mark.parametrize(
  ('texts', 'error', 'message'),
  [
    ('the cat', TypeError, "must be a list of texts or of ids, but got 'the cat'"),
    (3, TypeError, 'must be a list of texts or of ids'),
    ([], ValueError, 'but there is no text'),
    ([[1], []], ValueError, r'but texts \[1\] have none'),
    ([[1], 3], TypeError, r'texts\[1\] must be '),
    ([[-1]], ValueError, r'texts\[0\] must be ids of at least 0, but got -1'),
  ],
)
def test_texts_that_make_no_batch_are_refused(read, texts, error, message, unchecked):
  with pytest.raises(error, match=message):
    read(byte_pairs).pad(texts)


def test_the_tokenizer_of_another_model_is_refused(tmp_path):
  found = interop.tokenizer(byte_pairs(tmp_path))
  found.check(278)
  found.check(300)  # tables may have rows to spare
  with pytest.raises(ValueError, match='ids up to 277, but the model knows 277 tokens'):
    found.check(277)


def test_an_added_token_that_a_model_lacks_is_refused_in_texts_alone(tmp_path):
  """As Gemma 3's token of images, which its models of texts have no row for."""
  found = interop.tokenizer(pieces(tmp_path))
  found.check(269)
  assert found.encode('the') == [4, 1]
  expected = "has the token '<extra>' of id 270, but the model knows 269 tokens"
  with pytest.raises(ValueError, match=expected):
    found.encode('the <extra>')
  found.check(271)
  assert 270 in found.encode('the <extra>')
  byte_level(tmp_path)
  with pytest.raises(ValueError, match='ids up to 256, but the model knows 256 tokens'):
    interop.tokenizer(tmp_path).check(256)  # the token that ends texts is needed


@pytest.mark.parametrize('library', ['tokenizers', 'jinja2'])
def test_without_its_library_a_tokenizer_says_what_to_install(tmp_path, monkeypatch, library):
  byte_pairs(tmp_path, CHATML)
  chat._environment.cache_clear()
  monkeypatch.setitem(sys.modules, library, None)
  with pytest.raises(ImportError, match=r"pip install 'posjax\[checkpoints\]'"):
    interop.tokenizer(tmp_path).chat(MESSAGES)


# Bytes.


@pytest.fixture(scope='module')
def bytewise(tmp_path_factory):
  folder = tmp_path_factory.mktemp('bytes')
  byte_level(folder, special=('<|endoftext|>', '<|pad|>'))
  return interop.tokenizer(folder)


def test_the_id_of_a_byte_is_the_byte(bytewise):
  # Each byte that can be in UTF-8 is in one of these characters.
  text = ''.join(map(chr, [*range(0x800), *range(0x800, 0x110000, 0x777)])).replace('\ud8f0', '')
  text = text.encode('utf-8', 'ignore').decode()
  assert bytewise.encode(text) == list(text.encode())
  assert len({*text.encode()}) == 256 - 13  # 0xC0, 0xC1 and 0xF5 to 0xFF are in no text
  vocabulary = bytewise._backend.get_vocab()
  assert sorted(vocabulary.values()) == list(range(258))
  assert (bytewise.eos, bytewise.stop, bytewise.pad_id) == (256, (256,), 256)


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(strategies.text())
def test_every_text_comes_back_from_its_bytes(bytewise, text):
  ids = bytewise.encode(text)
  assert ids == list(text.encode())
  assert bytewise.decode([*ids, 256, -1]) == text
  assert bytewise.decode(ids, special=True) == text


def test_special_tokens_of_bytes_come_back(bytewise):
  text = ' a<|pad|> <|endoftext|>\n'
  assert bytewise.encode(text) == [*b' a', 257, *b' ', 256, *b'\n']
  assert bytewise.decode(bytewise.encode(text), special=True) == text
  assert bytewise.decode([0xE7, 0x8C]) == '\ufffd'  # a part of a character


@pytest.mark.parametrize('special', [('a', 'a'), ('',)])
def test_special_tokens_must_be_different_texts(tmp_path, special):
  with pytest.raises(ValueError, match='special must be different tokens, none empty'):
    byte_level(tmp_path, special=special)


# Beside transformers.


@pytest.mark.slow
@pytest.mark.parametrize('make', [*MAKERS, byte_level], ids=lambda make: make.__name__)
def test_ids_and_texts_are_those_of_transformers(tmp_path, make):
  transformers = pytest.importorskip('transformers', reason='This compares with transformers.')
  make(tmp_path)
  theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
  found = interop.tokenizer(tmp_path)
  assert (found.bos, found.eos, found.pad_id) == (
    *(theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id),
  )
  assert found.vocab_size == len(theirs)
  for text in TEXTS:
    for special in (True, False):
      ids = theirs.encode(text, add_special_tokens=special)
      assert found.encode(text, special=special) == ids
      for shown in (True, False):
        expected = theirs.decode(ids, skip_special_tokens=not shown)
        assert found.decode(ids, special=shown) == expected


@pytest.mark.slow
@pytest.mark.parametrize('name', TEMPLATES)
def test_conversations_are_those_of_transformers(tmp_path, name):
  transformers = pytest.importorskip('transformers', reason='This compares with transformers.')
  byte_pairs(tmp_path, TEMPLATES[name])
  theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
  found = interop.tokenizer(tmp_path)
  tools = [{'type': 'function', 'function': {'name': "l'été <b>", 'n': [1, 2.5, None, True]}}]
  given = [{}, {'enable_thinking': False}, {'tools': tools}, {'add_generation_prompt': False}]
  for variables in given:
    for messages in (MESSAGES, SYSTEM) if name != 'gemma' else (MESSAGES,):
      asked = {'add_generation_prompt': True, **variables}
      expected = theirs.apply_chat_template(messages, **asked, return_dict=False)
      assert found.chat(messages, **variables) == expected


@pytest.mark.slow
def test_files_that_transformers_writes_are_read_alike(tmp_path):
  """Legacy files and tokens that only the configuration knows, saved again by transformers."""
  transformers = pytest.importorskip('transformers', reason='This compares with transformers.')
  folder = byte_pairs(tmp_path / 'first', CHATML)
  config = json.loads((folder / 'tokenizer_config.json').read_text())
  config['added_tokens_decoder'] = {
    '279': {'content': '<second>', 'special': True},
    '278': {'content': '<first>', 'special': False, 'lstrip': True, 'normalized': False},
  }
  config['additional_special_tokens'] = ['<third>', '<first>']
  tokenizer_folders.write(folder, tokenizer_config=config)
  theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
  theirs.save_pretrained(tmp_path / 'again')
  text = 'the <first> cat<second><third> '
  ids = theirs.encode(text)
  assert {278, 279, 280} < {*ids}
  for found in map(interop.tokenizer, (folder, tmp_path / 'again')):
    assert found.encode(text) == ids
    assert found.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert found.chat(MESSAGES) == theirs.apply_chat_template(
      MESSAGES, add_generation_prompt=True, return_dict=False
    )
