"""Schemes of a package outside this repository, by the line `module:function(arguments)`."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax import expression, foreign
from posjax.scheme import Scheme

MODULE = """
import jax.numpy as jnp
import posjax
from posjax.arguments import checked

FIXED = 7


def scheme(width=4, *, steep=1.0) -> posjax.Scheme:
  rates = steep * jnp.arange(1.0, width + 1)
  return posjax.Scheme(
    init=lambda key, dims: {'rate': rates[: dims.num_heads]},
    bias=lambda params, distance: -jnp.multiply.outer(params['rate'], abs(distance)),
  )


@checked
def strict(width: int = 4) -> posjax.Scheme:
  return scheme(width)


def alias() -> 'posjax.Scheme':
  return posjax.get('rope(base=2.0)')


def wrong() -> posjax.Scheme:
  return 'rope'


def raises(width) -> posjax.Scheme:
  if width > 3:
    raise ValueError(f'The width is {width},\\n which is too wide.')
  return scheme(width)


def leaves() -> posjax.Scheme:
  raise SystemExit(0)


@checked
def unannotated(width: int = 4):
  return scheme(width)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
  """A package `outside` with modules that are right, broken, and in need of what is not there."""
  place = tmp_path / 'outside' / 'inner'
  place.mkdir(parents=True)
  (tmp_path / 'outside' / '__init__.py').touch()
  (place / '__init__.py').touch()
  (place / 'mine.py').write_text(MODULE)
  (place / 'broken.py').write_text('# A comment.\n\nx = 1 / 0\n')
  (place / 'unfinished.py').write_text('def scheme(:\n')
  (place / 'needy.py').write_text('import no_such_library\n')
  (place / 'leaving.py').write_text('import sys\nsys.exit(3)\n')
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setattr(expression, '_SHARED', {})
  expression._read.cache_clear()
  yield place
  expression._read.cache_clear()
  for name in [name for name in sys.modules if name.partition('.')[0] == 'outside']:
    del sys.modules[name]


def bias(scheme, heads=2):
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(8, heads, 4))
  return np.asarray(scheme.bias(params, jnp.arange(3)))


def test_a_function_of_another_package_is_a_scheme_alone_and_in_a_chain(package):
  mine = posjax.get('outside.inner.mine:scheme(width=8, steep=2.0)')
  np.testing.assert_array_equal(bias(mine), [[0, -2, -4], [0, -4, -8]])
  assert repr(mine) == 'outside.inner.mine:scheme(width=8, steep=2.0)'
  both = posjax.get('rope+outside.inner.mine:scheme+outside.inner.mine:strict(5)+alibi')
  assert [posjax.places(part) for part in both.parts] == [('query', 'key'), *[('bias',)] * 3]
  assert repr(both) == 'rope+outside.inner.mine:scheme+outside.inner.mine:strict(width=5)+alibi'
  assert posjax.get(repr(both)) is both
  assert posjax.get('outside.inner.mine:strict(4)') is posjax.get('outside.inner.mine:strict()')
  nested = posjax.get("dape('outside.inner.mine:scheme(width=8)')")
  assert repr(nested) == "dape(inner='outside.inner.mine:scheme(width=8)')"
  assert posjax.get(repr(nested)) is nested
  assert posjax.get('outside.inner.mine:unannotated(3)').line == f'{MINE}:unannotated(width=3)'


def test_an_alias_is_shown_as_it_was_named_and_leaves_the_other_as_it_is(package):
  alias, rope = posjax.get('outside.inner.mine:alias'), posjax.get('rope(base=2.0)')
  assert alias == rope
  assert (repr(alias), repr(rope)) == ('outside.inner.mine:alias', 'rope(base=2.0)')


def test_a_scheme_first_read_inside_a_compiled_program_is_of_use_outside(package):
  line = 'outside.inner.mine:scheme(width=2)'
  jax.jit(lambda x: x + len(posjax.get(line).parts))(1)
  np.testing.assert_array_equal(bias(posjax.get(line)), [[0, -1, -2], [0, -2, -4]])


def test_colons_elsewhere_are_no_modules(package):
  with pytest.raises(ValueError, match=r"has no argument 'kind'"):
    posjax.get("rope(kind={True:False, 'a:b': 'outside.inner.broken:x'})")
  assert 'outside' not in sys.modules


MINE = 'outside.inner.mine'


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('nowhere.mine:f', r"^The scheme 'nowhere\.mine:f' must name a module that Python finds, but "
     r"there is no 'nowhere': start in the folder that holds it, or set PYTHONPATH\.$"),
    (f'{MINE}.deeper:f', rf"there is no '{MINE}\.deeper'"),
    ('outside.missing:f(1)', r"^The scheme 'outside\.missing:f' .* no 'outside\.missing': "),
    (f'{MINE}:shceme', rf"must name a function of the module '{MINE}', but there is no 'shceme'; "
     r"did you mean 'scheme'\?$"),
    (f'{MINE}:zzz', r"but there is no 'zzz'\.$"),
    (f'{MINE}:FIXED', r"must name a function that is annotated to return a scheme, as in 'def FIXED"
     r"\(\.\.\.\) -> posjax\.Scheme:', since nothing else is called, but got 7\.$"),
    ('sys:exit(0)', r'nothing else is called, but got <built-in function exit>\.$'),
    ("os:system('exit 1')", r'nothing else is called, but got <built-in function system>\.$'),
    ("builtins:eval('1')", r'nothing else is called, but got <built-in function eval>\.$'),
    (f'{MINE}:leaves', r'could not be made: SystemExit: 0 \(.*mine\.py, line 37\)\.$'),
    (f'{MINE}:wrong', rf"^The scheme '{MINE}:wrong' must return a posjax\.Scheme, but got 'rope'"),
    (f'rope+{MINE}:scheme(widht=1)', rf"^The scheme '{MINE}:scheme' could not be made: TypeError: "
     r".*unexpected keyword argument 'widht'\. It takes \(width=4, \*, steep=1\.0\)\.$"),
    (f'{MINE}:raises(9)', rf"^The scheme '{MINE}:raises' could not be made: ValueError: The width "
     r'is 9, which is too wide \(.*mine\.py, line 32\)\.$'),
    (f'{MINE}:strict(width=0.5)', r"made: TypeError: mine's width must be an integer, but got 0\."),
    ('outside.inner.broken:f', r"^The module 'outside\.inner\.broken' of the scheme "
     r"'outside\.inner\.broken:f' could not be imported: ZeroDivisionError: division by zero "
     r'\(.*broken\.py, line 3\)\.$'),
    ('outside.inner.unfinished:f', r'imported: SyntaxError: .* \(.*unfinished\.py, line 1\)\.$'),
    ('outside.inner.needy:f', r"imported: ModuleNotFoundError: No module named 'no_such_library' "
     r'\(.*needy\.py, line 1\)\.$'),
    ('outside.inner.leaving:f', r'imported: SystemExit: 3 \(.*leaving\.py, line 2\)\.$'),
    (f'{MINE}:scheme.more', r"must be a name, .*One of your own must read like 'my_package\."),
    (f'{MINE}:scheme:more', r"must be a name, .*One of your own must read like 'my_package\."),
    (f'{MINE}.scheme(8)', r"must be a name, .*One of your own must read like 'my_package\."),
    (f'{MINE} : scheme', r'^A scheme must read like'),
    (f'{MINE}:scheme(width=len)', r"must be literals, but got 'len'"),
    (f'{MINE}:scheme(**{{"a": 1}})', r'takes no \*\* arguments'),
    (f'{MINE}:scheme(steep=1, steep=2)', r'must be given once'),
  ],
)  # fmt: skip
def test_an_error_names_the_module_the_function_and_what_was_found(
  line, message, package, unchecked
):
  with pytest.raises(ValueError, match=message) as refusal:
    posjax.get(line)
  assert '\n' not in str(refusal.value)


def test_a_failed_import_is_tried_again(package):
  with pytest.raises(ValueError, match='could not be imported'):
    posjax.get('outside.inner.broken:scheme')
  (package / 'broken.py').write_text(
    'import posjax\ndef scheme() -> posjax.Scheme:\n  return posjax.Scheme(embed=None)\n'
  )
  assert posjax.get('outside.inner.broken:scheme') == Scheme(embed=None)


@pytest.mark.parametrize('line', ['outside', 'outside.inner.mine', 'outside.inner.mine.scheme()'])
def test_nothing_is_imported_for_a_line_without_a_colon(line, package):
  with pytest.raises(ValueError, match=r'Unknown scheme|must be a name'):
    posjax.get(line)
  assert 'outside' not in sys.modules


@pytest.mark.parametrize('line', [f'{MINE}:scheme', f"rope+dape('{MINE}:scheme')"])
def test_a_line_from_a_file_imports_nothing_unless_that_is_allowed(line, package, unchecked):
  """Also after the person has read the same line: what was read then is not handed out."""
  for _ in range(2):
    with (
      foreign.imports(allowed=False),
      pytest.raises(
        ValueError, match=rf"^The scheme '{MINE}:scheme' .* import the module '{MINE}'"
      ),
    ):
      posjax.get(line)
    with foreign.imports(allowed=True):
      assert posjax.get(line) is posjax.get(line)
  with foreign.imports(allowed=False):
    assert posjax.get('posjax.schemes.rope:scheme+alibi')  # posjax's own modules need no permission
