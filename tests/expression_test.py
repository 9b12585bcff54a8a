"""One line of text to a scheme, and the folder that is the registry."""

import pathlib
import types

import pytest

import posjax
from posjax import expression, schemes
from posjax.arguments import checked
from posjax.scheme import Scheme, Traits, places

FOLDER = pathlib.Path(schemes.__path__[0])


@pytest.fixture
def folder(monkeypatch):
  """Constructors of our own in place of the folder's: what `get` hands them is what we see."""
  made = []

  def file(constructor):
    def scheme(*args, **kwargs):
      made.append((args, kwargs))
      return constructor(*args, **kwargs)

    return types.SimpleNamespace(scheme=scheme)

  @checked
  def scaled(base: float = 1.0, axes: int = 1) -> Scheme:
    return Scheme(traits=Traits(axes=axes))

  @checked
  def sized(length: int) -> Scheme:
    return Scheme(bias=lambda params, distance: distance)

  files = {
    'plain': file(lambda: Scheme(query=lambda params, x, at: x)),
    'tuned': file(lambda base=1.0, axes=1, kind=None: Scheme(init=lambda *_: {})),
    'sized': types.SimpleNamespace(scheme=sized),
    'scaled': types.SimpleNamespace(scheme=scaled),
  }
  monkeypatch.setattr(expression, 'names', lambda: tuple(sorted(files)))
  load = lambda name: files[name.rpartition('.')[2]]
  monkeypatch.setattr(expression.importlib, 'import_module', load)
  monkeypatch.setattr(expression, '_SHARED', {})
  expression._read.cache_clear()
  yield made
  expression._read.cache_clear()


def test_names_are_the_files_of_the_folder():
  files = sorted(p.stem for p in FOLDER.glob('*.py') if p.stem != '__init__')
  assert posjax.names() == tuple(files)
  assert 'none' in files


@pytest.mark.parametrize(
  ('line', 'call'),
  [
    ('tuned', ((), {})),
    ('tuned()', ((), {})),
    ('tuned(5e5)', ((5e5,), {})),
    (' tuned( base = 2.0, axes=2 ) ', ((), {'base': 2.0, 'axes': 2})),
    ('tuned(-1, kind=(1, [2, None], {"a": True}))', ((-1,), {'kind': (1, [2, None], {'a': True})})),
    ("tuned(kind='a+b(c)')", ((), {'kind': 'a+b(c)'})),
  ],
)
def test_arguments_are_literals_and_arrive_as_written(line, call, folder):
  expression.get(line)
  assert folder == [call]


def test_a_line_with_plus_is_a_chain_in_its_order(folder):
  scheme = expression.get('plain+sized(length=3)+tuned(2.0)')
  assert folder == [((), {}), ((2.0,), {})]
  assert len(scheme.parts) == 3
  assert [places(part) for part in scheme.parts] == [('query',), ('bias',), ()]


def test_equal_lines_are_one_object(folder):
  assert expression.get('plain+tuned(2.0)') is expression.get('plain+tuned(2.0)')
  assert len(folder) == 2


def test_the_identity_vanishes_from_a_chain():
  assert posjax.get('none') == Scheme(traits=Traits(axes=0))
  assert posjax.get('none+alibi').parts == ()
  assert posjax.get('none+alibi+none+rope').parts[0].bias is not None


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('tunde', r"^Unknown scheme 'tunde'; did you mean 'tuned'\? There are: plain, "),
    ('TUNED', r"^Unknown scheme 'TUNED'; did you mean 'tuned'\?"),
    ('zzz', r"^Unknown scheme 'zzz'\. There are: plain, scaled, sized, tuned\.$"),
    ('zzz+plain', r"^Unknown scheme 'zzz'"),
    ('scaled(bas=3)', r"no argument 'bas'; did you mean 'base'\? It takes \(base=1\.0, ax"),
    ('scaled(1, 2, 3)', r"has 2 arguments, but got 3\. It takes \(base=1\.0, axes=1\)\.$"),
    ('scaled(1, base=2)', r"'s base must be given once, but got two values\.$"),
    ("scaled(base='x')", r"'s base must be a finite number, but got 'x'\.$"),
    ('scaled(axes=2.0)', r"'s axes must be an integer, but got 2\.0\.$"),
    ('sized', r"needs length, but got no value\. It takes \(length\)\.$"),
    ('tuned(1, base=2, base=3)', r"given once, but got 'tuned\(1, base=2, base=3\)'\.$"),
    ('tuned(kind={[]: 1})', r"must be literals, but got '\{\[\]: 1\}' in"),
    ('tuned(kind=base)', r"arguments must be literals, but got 'base' in 'tuned\(kind=base\)'\.$"),
    ('tuned(open("x"))', r"must be literals, but got 'open\('x'\)' in"),
    ('tuned(*(1, 2))', r'must be literals, but got '),
    ('tuned(**{"base": 1})', r'takes no \*\* arguments, but got '),
    ('tuned(', r"^A scheme must read like 'rope\(base=5e5\)\+alibi', but got 'tuned\('\.$"),
    ('', r"must read like .*, but got ''\.$"),
    ('plain tuned', r"must read like .*, but got 'plain tuned'\.$"),
    ('plain-tuned', r"must be a name, with or without arguments, but got 'plain - tuned' in "),
    ('os.path', r"must be a name, .* but got 'os\.path' in 'os\.path'\. One of your own must r"),
    ('a.b(1)', r"must be a name, with or without arguments, but got 'a\.b\(1\)'"),
    ('3', r"must be a name, with or without arguments, but got '3'"),
    ('plain()()', r'must be a name, with or without arguments, but got'),
    ('plain#+tuned', r"^A scheme takes no comment after '#', but got 'plain#\+tuned'\.$"),
    ('plain;tuned', r"must read like .*, but got 'plain;tuned'\.$"),
    ('(plain\n+tuned)', r"must be one line of printable ASCII, but got '\(plain\\n\+tuned\)'\.$"),
    ('plain\ud800', r"must be Unicode text, but got 'plain\\ud800'\.$"),
    ('+'.join(['plain'] * 5000), r'that is not deeply nested, .* but got .*\.$'),
    (f'tuned({"-" * 3000}1)', r'not deeply nested|must be literals'),
    ('(' * 300 + 'plain' + ')' * 300, r'must read like .*, but got'),
  ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_refused_with_its_reason(line, message, folder, unchecked):
  with pytest.raises(ValueError, match=message):
    expression.get(line)
  assert folder == []


@pytest.mark.parametrize('line', [None, 5, b'rope', ['rope'], {}, Scheme()])
def test_a_line_is_a_string(line, unchecked):
  with pytest.raises(TypeError, match=r'^The line of a scheme must be a string, but got .*\.$'):
    posjax.get(line)


def test_no_sentence_repeats_a_line_of_any_length(unchecked):
  for line in ('x' * 10**5, '+'.join(['rope'] * 5000), f'rope({"1" * 10**5})'):
    with pytest.raises(ValueError, match=r'but got|There are') as refusal:
      posjax.get(line)
    assert len(str(refusal.value)) < 1000


def test_nothing_but_literals_is_evaluated(folder, tmp_path):
  path = tmp_path / 'made'
  with pytest.raises(ValueError, match='literals'):
    expression.get(f'tuned(open({str(path)!r}, "w"))')
  assert not path.exists()


def test_a_misspelt_name_of_the_real_folder_is_corrected():
  with pytest.raises(
    ValueError, match=r"Unknown scheme 'ropee'; did you mean 'rope'\? There are: "
  ):
    posjax.get('ropee')
