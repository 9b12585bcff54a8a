"""What holds the house together: who may import whom, who may name whom, how a file looks."""

import ast
import re
import sys

import pytest

from tests.support.paths import ROOT

LIBRARY = ROOT / 'posjax'
FILES = sorted(LIBRARY.rglob('*.py'))
SCHEMES = sorted(p.stem for p in (LIBRARY / 'schemes').glob('*.py') if p.stem != '__init__')
# Names of schemes that are words of English, or of the trade: code may use them in another sense.
# A call in a string, 'learned(max_length=512)', is found nevertheless, and so is an import.
ENGLISH = {
  *('absolute', 'additive', 'axial', 'cape', 'complex', 'concatenated', 'cosine', 'dynamic'),
  *('factored', 'fire', 'forgetting', 'fourier', 'gaussian', 'general', 'grid', 'grouped'),
  *('learned', 'linear', 'none', 'partial', 'pope', 'random', 'randomized', 'relative', 'sandwich'),
  *('shape', 'shift', 'shifted', 'swin', 'time', 'tree', 'triangular', 'unscaled', 'window'),
}
DEFINED = (ast.FunctionDef, ast.ClassDef)
STANDARD = set(sys.stdlib_module_names)
ADAPTERS = {'posjax/linen.py', 'posjax/nnx.py'}
PURE = {'jax', 'numpy', 'jaxtyping'}
# Of the extra `checkpoints`: imported in the functions of these files alone.
OPTIONAL = {
  'posjax/interop/chat.py': {'jinja2'},
  'posjax/interop/folder.py': {'safetensors'},
  'posjax/interop/tokenizer.py': {'tokenizers'},
}
FOREIGN = {'optax', 'orbax', 'grain', 'ml_collections', 'tensorflow_datasets', 'chex'}


def name(path):
  return path.relative_to(ROOT).as_posix()


def knows_flax(path):
  return name(path) in ADAPTERS or name(path).startswith('posjax/models/')


def tree(path):
  return ast.parse(path.read_text(encoding='utf-8'))


def imports(path):
  """Dotted names that a file imports, inside functions too; `from a import b` gives a and a.b."""
  found = set()
  for node in ast.walk(tree(path)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      module = '.' * node.level + (node.module or '')
      # The version is no module.
      names = {alias.name for alias in node.names} - {'__version__'}
      members = {f'{module}.{name}' for name in names}
      # `from posjax import scheme` imports posjax.scheme; posjax alone says nothing.
      found |= members if module == 'posjax' else {module} | members
  return found


def within(module, allowed):
  return any(module == a or module.startswith(a + '.') for a in allowed)


def strays(path, allowed):
  """Imports of posjax modules that are not among `allowed`."""
  return {m for m in imports(path) if within(m, {'posjax'}) and not within(m, allowed)}


def top(module):
  return module.partition('.')[0]


def foreign(path):
  """Top-level packages that a file imports, beyond the standard library and posjax."""
  return {top(m) for m in imports(path)} - STANDARD - {'posjax'}


def each(*rows):
  """One test for all of these arguments, a file first, which names those that fail."""

  def decorate(test):
    def run():
      wrong = []
      for row in rows:
        try:
          test(*row)
        except AssertionError as error:
          wrong.append(f'{name(row[0])}: {error}')
      assert not wrong, '\n'.join(wrong)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run

  return decorate


def each_of(paths):
  return each(*((path,) for path in paths))


def group(*patterns):
  """Files of the library by pattern; a part that is not written yet has none."""
  return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


# Who may import whom. Each room names those that it may import; arrows point downward only.

RECORD = {'posjax.scheme', 'posjax.arguments'}
ROOMS = {
  'posjax/line.py': set(),
  'posjax/keys.py': {'posjax.arguments'},
  'posjax/arguments.py': {'posjax.line'},
  'posjax/known.py': set(),
  'posjax/token_order.py': {'posjax.known'},
  'posjax/scheme.py': {'posjax.arguments', 'posjax.token_order'},
  'posjax/positions.py': {'posjax.arguments'},
  'posjax/chain.py': RECORD,
  'posjax/math/*.py': RECORD,
  # `posjax.expression` serves a scheme that adapts another one, which it is given as a line.
  'posjax/schemes/*.py': {*RECORD, 'posjax.math', 'posjax.expression'},
  'posjax/foreign.py': RECORD,
  'posjax/expression.py': {
    *(*RECORD, 'posjax.line', 'posjax.chain', 'posjax.foreign', 'posjax.schemes'),
  },
  'posjax/citation.py': {*RECORD, 'posjax.expression'},
  # `attend` takes a scheme as a line, too.
  'posjax/attention/**/*.py': {
    *(*RECORD, 'posjax.known', 'posjax.token_order', 'posjax.math', 'posjax.expression'),
  },
  'posjax/layers/*.py': {*RECORD, 'posjax.known', 'posjax.math', 'posjax.attention'},
  'posjax/nnx.py': {*RECORD, 'posjax.layers'},
  'posjax/linen.py': {*RECORD, 'posjax.layers'},
  'posjax/check/*.py': {
    *(*RECORD, 'posjax.positions', 'posjax.expression', 'posjax.attention'),
  },
  'posjax/interop/*.py': {
    *(*RECORD, 'posjax.math', 'posjax.chain', 'posjax.schemes'),
    'posjax.layers',  # the norms of a checkpoint's queries and keys
    *('posjax.expression', 'posjax.models'),  # whole models, with other schemes than their own
  },
  'posjax/models/**/*.py': {
    *(*RECORD, 'posjax.known', 'posjax.keys', 'posjax.math', 'posjax.chain'),
    'posjax.expression',
    *('posjax.attention', 'posjax.layers', 'posjax.nnx'),
  },
}
IN_ROOMS = [(path, room) for room in ROOMS for path in group(room)]


@each(*IN_ROOMS)
def test_a_room_imports_its_neighbours_and_the_rooms_below_it(path, room):
  folder = room.partition('*')[0].rstrip('/').removesuffix('.py').replace('/', '.')
  inside = {folder} if '*' in room and folder != 'posjax.schemes' else set()
  assert not strays(path, ROOMS[room] | inside)
  flax = {'flax'} if knows_flax(path) else set()
  assert foreign(path) <= PURE | flax | OPTIONAL.get(name(path), set())


@each(*((ROOT / path, libraries) for path, libraries in OPTIONAL.items()))
def test_an_optional_library_is_imported_where_it_is_used(path, libraries):
  module = tree(path)
  functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
  inside = {id(node) for function in functions for node in ast.walk(function)}
  for node in ast.walk(module):
    if id(node) not in inside and isinstance(node, ast.Import | ast.ImportFrom):
      named = [getattr(node, 'module', None), *(alias.name for alias in node.names)]
      assert not {top(each) for each in named if each} & libraries


def test_every_file_of_the_library_is_in_a_room():
  library = {path for path in FILES if 'experiment' not in path.parts}
  assert library - {path for path, _ in IN_ROOMS} == {LIBRARY / '__init__.py'}


def test_no_two_rooms_import_one_another():
  """No circle but one: `expression` reads the folder of schemes, one of which adapts another."""
  module = lambda room: room.partition('*')[0].rstrip('/').removesuffix('.py').replace('/', '.')
  allowed = {module(room): set(others) for room, others in ROOMS.items()}
  allowed['posjax.schemes'].remove('posjax.expression')
  for room, below in allowed.items():
    while further := set().union(*(allowed[other] for other in below)) - below:
      below |= further
    assert room not in below


def test_each_folder_says_what_belongs_there():
  folders = {path.parent for path in FILES if 'experiment' not in path.parts} - {LIBRARY}
  for folder in folders:
    words = ast.get_docstring(tree(folder / '__init__.py'))
    listed = {path.stem for path in folder.glob('*.py')} - {'__init__'}
    listed |= {path.name for path in folder.iterdir() if (path / '__init__.py').exists()}
    if folder.name not in ('schemes', 'encoders'):  # registries
      missing = sorted(module for module in listed if not re.search(rf'\b{module}\b', words))
      assert not missing, f'{name(folder)} does not list {missing}'
    assert len(words) > 40


@each_of([p for p in FILES if not name(p).startswith('posjax/experiment/')])
def test_the_library_does_not_import_the_experiment_or_its_stack(path):
  assert not {m for m in imports(path) if within(m, {'posjax.experiment'})}
  assert not {top(m) for m in imports(path)} & FOREIGN
  if not knows_flax(path):
    assert 'flax' not in {top(m) for m in imports(path)}


def test_chex_is_imported_in_tests_only():
  users = [
    name(p) for p in FILES + group('*.py', 'configs/**/*.py') if 'chex' in map(top, imports(p))
  ]
  assert users == []


# Who may name whom.


def docstrings(module):
  """Ids of the constants that are docstrings, or strings that stand alone as a statement."""
  return {id(n.value) for n in ast.walk(module) if isinstance(n, ast.Expr)}


def named_schemes(path):
  """Schemes that code names: as an expression in a string, an import, or a call of a scheme.

  A string names a scheme if it is one expression of `posjax.get`, such as 'rope' or
  'rope(base=5e5)+alibi'. An identifier does if it contains the name as a whole word between
  underscores, unless the name is also an English word.
  """
  module = tree(path)
  skip = docstrings(module)
  words = '|'.join(map(re.escape, SCHEMES))
  expression = re.compile(rf'\s*(?:{words})(?:\(.*|\s*)', re.DOTALL)
  identifiers = set(SCHEMES) - ENGLISH
  found = set()
  for node in ast.walk(module):
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip:
      parts = node.value.split('+')
      if any(expression.fullmatch(part) and part.strip() not in ENGLISH for part in parts):
        found.add(node.value)
    texts = (getattr(node, field, None) for field in ('id', 'attr', 'name', 'arg'))
    for text in filter(lambda text: isinstance(text, str), texts):
      pieces = f'_{text.lower()}_'
      found |= {text for scheme in identifiers if f'_{scheme}_' in pieces}
  imported = {m for m in imports(path) if m.startswith('posjax.schemes.')}
  return found | imported


@each_of(
  group(
    'train.py',
    'posjax/attention/**/*.py',
    'posjax/layers/*.py',
    'posjax/models/**/*.py',
    'posjax/experiment/**/*.py',
  )
)
def test_nothing_but_a_scheme_and_a_config_names_a_scheme(path):
  assert named_schemes(path) == set()


@pytest.mark.parametrize(
  ('code', 'expected'),
  [
    ("x = 'none'", set()),
    ('"""Uses alibi."""\n# alibi', set()),
    ("x = 'alibi'", {'alibi'}),
    ("x = 'none(a=1)'", {'none(a=1)'}),
    ("x = 'window+alibi(a=1)'", {'window+alibi(a=1)'}),
    ("x = 'an alibi for it'", set()),
    ('def make_alibi(): pass', {'make_alibi'}),
    ('from posjax.schemes import none', {'posjax.schemes.none'}),
  ],
)
def test_a_name_of_a_scheme_is_found_in_code_and_not_in_prose(
  code, expected, tmp_path, monkeypatch
):
  monkeypatch.setattr(sys.modules[__name__], 'SCHEMES', ['alibi', 'none'])
  path = tmp_path / 'code.py'
  path.write_text(code)
  assert named_schemes(path) == expected


@each_of(group('benchmarks/**/*.py', 'tools/*.py', 'configs/*.py', 'train.py'))
def test_users_of_the_library_read_no_private_name_of_it(path):
  """Names with a leading underscore: of attributes, but one's own, and of what is imported."""
  # `_exit` is a documented function of os, and the last of these is transformers'.
  public = {'_replace', '_asdict', '_fields', '_field_defaults', '_exit', '_attn_implementation'}
  nodes = list(ast.walk(tree(path)))
  owned = lambda node: isinstance(node.value, ast.Name) and node.value.id == 'self'
  attributes = [node for node in nodes if isinstance(node, ast.Attribute) and not owned(node)]
  names = {node.attr for node in attributes}
  members = [
    n.names for n in nodes if isinstance(n, ast.ImportFrom) and within(n.module, {'posjax'})
  ]
  names |= {alias.name for aliases in members for alias in aliases}
  private = {n for n in names - public if n.startswith('_') and not n.startswith('__')}
  assert not private


# How a file looks.


@each_of(FILES)
def test_a_file_is_named_for_what_it_holds(path):
  assert path.stem not in {'utils', 'util', 'common', 'base', 'helpers', 'misc', '_src'}
  assert '_src' not in path.parts


# Names that the field has other words for: attend, dropout mask, online-softmax step, cos_sin,
# correct, dimensions, positioned.
PRIVATE_WORDS = {'meet', 'meets', 'kept', 'soften', 'waves', 'right', 'numbers', 'placed'}


@each_of(FILES)
def test_functions_arguments_and_fields_have_the_names_of_the_field(path):
  named = set()
  for node in ast.walk(tree(path)):
    if isinstance(node, DEFINED):
      named.add(node.name)
    if isinstance(node, ast.arg):
      named.add(node.arg)
    if isinstance(node, ast.ClassDef):
      fields = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
      named |= {field.id for field in fields if isinstance(field, ast.Name)}
  assert not {word.strip('_') for word in named} & PRIVATE_WORDS


@each_of(FILES)
def test_no_docstring_begins_as_an_answer_to_a_question_that_nobody_asked(path):
  """A docstring says what something is or does: 'The tiles of a side', not 'What of a side ..'."""
  nodes = [n for n in ast.walk(tree(path)) if isinstance(n, (*DEFINED, ast.Module))]
  first_words = {(ast.get_docstring(node) or '-').split()[0] for node in nodes}
  assert not first_words & {'What', 'Of'}


@each_of(FILES)
def test_the_library_raises_and_does_not_assert(path):
  assert not [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]


@each_of(FILES + group('train.py', 'configs/**/*.py', 'tests/**/*.py'))
def test_annotations_are_evaluated(path):
  """Postponed ones are strings, which jaxtyping's run-time checks and flax dataclasses mistake."""
  assert '__future__.annotations' not in imports(path)


def exported():
  """Functions that `posjax/__init__.py` re-exports, as (module, name)."""
  init = [n for n in tree(LIBRARY / '__init__.py').body if isinstance(n, ast.ImportFrom)]
  return {(node.module, alias.name) for node in init for alias in node.names}


@each_of([p for p in FILES if 'experiment' not in p.parts])
def test_public_functions_have_docstrings_and_annotations(path):
  module = name(path).removesuffix('.py').replace('/', '.')
  whole = group('posjax/schemes/*.py', 'posjax/math/*.py', 'posjax/positions.py')
  missing = []
  for node in tree(path).body:
    public = path in whole or (isinstance(node, DEFINED) and (module, node.name) in exported())
    if not isinstance(node, DEFINED) or node.name.startswith('_') or not public:
      continue
    missing += [] if ast.get_docstring(node) else [f'{node.name}: docstring']
    if isinstance(node, ast.FunctionDef):
      arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
      missing += [f'{node.name}({a.arg})' for a in arguments if a.annotation is None]
      missing += [f'{node.name} -> ?'] if node.returns is None else []
  assert missing == []
