"""One line of text to a scheme, and the folder that is the registry."""

import pathlib
import types

import pytest

import posjax
from posjax import expression, schemes
from posjax.scheme import Scheme, places

FOLDER = pathlib.Path(schemes.__path__[0])


@pytest.fixture
def folder(monkeypatch):
  """Constructors of our own in place of the folder's: what `get` hands them is what we see."""
  made = []

  def file(constructor):
    def scheme(*args, **kwargs):
      made.append((args, kwargs))
      return constructor(*args, **kwargs)

    scheme.__wrapped__ = constructor  # so that the signature is that of the constructor
    return types.SimpleNamespace(scheme=scheme)

  files = {
    'plain': file(lambda: Scheme(query=lambda params, x, at: x)),
    'tuned': file(lambda base=1.0, axes=1, kind=None: Scheme(axes=axes)),
    'sized': file(lambda length: Scheme(bias=lambda params, distance: distance)),
  }
  monkeypatch.setattr(expression, 'names', lambda: tuple(sorted(files)))
  load = lambda name: files[name.rpartition('.')[2]]
  monkeypatch.setattr(expression.importlib, 'import_module', load)
  expression.get.cache_clear()
  yield made
  expression.get.cache_clear()


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
    ('sized(64)', ((64,), {})),
  ],
)
def test_arguments_are_literals_and_arrive_as_written(line, call, folder):
  expression.get(line)
  assert folder == [call]


def test_a_line_with_plus_is_a_chain_in_its_order(folder):
  scheme = expression.get('plain+sized(length=3)+tuned(2.0)')
  assert folder == [((), {}), ((), {'length': 3}), ((2.0,), {})]
  assert len(scheme.parts) == 3
  assert [places(part) for part in scheme.parts] == [('query',), ('bias',), ()]


def test_equal_lines_are_one_object(folder):
  assert expression.get('plain+tuned(2.0)') is expression.get('plain+tuned(2.0)')
  assert len(folder) == 2


def test_the_identity_vanishes_from_a_chain():
  assert posjax.get('none') == Scheme()
  assert posjax.get('none+alibi').parts == ()
  assert posjax.get('none+alibi+none+rope').parts[0].bias is not None


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('tunde', r"^Unknown scheme 'tunde'; did you mean 'tuned'\? There are: plain, sized, tuned\.$"),
    ('zzz', r"^Unknown scheme 'zzz'\. There are: plain, sized, tuned\.$"),
    ('zzz+plain', r"^Unknown scheme 'zzz'"),
    ('tuned(size=3)', r"^Wrong arguments for scheme 'tuned': got an unexpected keyword argument "
                      r"'size'\. It takes \(base=1\.0, axes=1, kind=None\)\.$"),
    ('tuned(1, 2, 3, 4)', r"scheme 'tuned': too many positional arguments\. It takes \(base=1"),
    ('tuned(1, base=2)', r"scheme 'tuned': multiple values for argument 'base'"),
    ('sized', r"scheme 'sized': missing a required argument: 'length'\. It takes \(length\)\.$"),
    ('tuned(1, base=2, base=3)', r"given once, but got 'tuned\(1, base=2, base=3\)'\.$"),
    ('tuned(kind={[]: 1})', r"must be literals, but got '\{\[\]: 1\}' in"),
    ('plain(1)', r"scheme 'plain': too many positional arguments\. It takes none\.$"),
    ('tuned(kind=base)', r"arguments must be literals, but got 'base' in 'tuned\(kind=base\)'\.$"),
    ('tuned(open("x"))', r"must be literals, but got 'open\('x'\)' in"),
    ('tuned(*(1, 2))', r'must be literals, but got '),
    ('tuned(**{"base": 1})', r'takes no \*\* arguments, but got '),
    ('tuned(', r"^A scheme must read like 'rope\(base=5e5\)\+alibi', but got 'tuned\('\.$"),
    ('', r"must read like .*, but got ''\.$"),
    ('plain tuned', r"must read like .*, but got 'plain tuned'\.$"),
    ('plain-tuned', r"must be a name, with or without arguments, but got 'plain - tuned' in "),
    ('os.path', r"must be a name, with or without arguments, but got 'os\.path' in 'os\.path'\.$"),
    ('a.b(1)', r"must be a name, with or without arguments, but got 'a\.b\(1\)'"),
    ('3', r"must be a name, with or without arguments, but got '3'"),
    ('plain()()', r'must be a name, with or without arguments, but got'),
  ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_refused_with_its_reason(line, message, folder, unchecked):
  with pytest.raises(ValueError, match=message):
    expression.get(line)
  assert folder == []


def test_an_argument_of_the_wrong_type_names_the_scheme_and_what_it_takes(unchecked):
  with pytest.raises(
    ValueError, match=r"Wrong arguments for scheme 'rope': '>' not .* It takes \("
  ):
    posjax.get("rope(base='x')")


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
