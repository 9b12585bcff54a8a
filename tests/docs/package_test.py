"""The commands of the README, and the package that others install."""

import re
import shutil
import stat
import statistics
import subprocess
import sys
import time
import tomllib
import venv

import pytest

from tests.support.paths import ROOT

LIBRARY = ROOT / 'posjax'
TRAIN_COMMAND = "pip install -e '.[train]' && python train.py --config=configs/default.py"
TEST_COMMAND = "pip install -e '.[test]' && pytest"
TRAINING = {'optax', 'orbax', 'grain', 'ml_collections', 'tensorflow_datasets', 'chex'}
ADAPTERS = [m for m in ('linen', 'nnx') if (LIBRARY / f'{m}.py').exists()]


def blocks():
  """The lines inside the README's bash blocks."""
  text = (ROOT / 'README.md').read_text(encoding='utf-8')
  return [line for block in re.findall(r'^```bash\n(.*?)^```', text, re.M | re.S)
          for line in block.splitlines()]  # fmt: skip


def test_readme_holds_the_command_that_trains_and_the_one_that_tests():
  assert TRAIN_COMMAND in blocks()
  assert TEST_COMMAND in blocks()


def test_ci_reads_its_test_command_from_the_readme(tmp_path):
  script = ROOT / '.ci' / 'run'
  assert script.stat().st_mode & stat.S_IXUSR
  assert 'README.md' in script.read_text()
  assert '&& pytest' not in script.read_text()
  # Without the command there is nothing to check, and that is a failure.
  (tmp_path / '.ci').mkdir()
  shutil.copy(script, tmp_path / '.ci' / 'run')
  (tmp_path / 'README.md').write_text(f'Run {TEST_COMMAND}\n```bash\npip install posjax\n```\n')
  result = subprocess.run([tmp_path / '.ci' / 'run'], capture_output=True, text=True)
  assert result.returncode == 1
  assert 'README.md has no bash block' in result.stderr


def test_the_library_depends_on_jax_jaxtyping_and_numpy_alone():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  names = {re.match(r'[\w-]+', line)[0] for line in project['dependencies']}
  assert names == {'jax', 'jaxtyping', 'numpy'}
  assert (LIBRARY / 'py.typed').exists()


BLOCKED = """
import sys

class Blocker:
  def find_spec(self, module, path=None, target=None):
    if module.partition('.')[0] in {blocked!r}:
      raise ModuleNotFoundError(f'No module named {{module!r}}', name=module)

sys.meta_path.insert(0, Blocker())
{code}
"""
NAMES = """
import posjax
assert posjax.names()
assert not {'flax', 'optax', 'beartype'} & set(sys.modules)
"""
LAZY = """
import sys
import posjax
lazy = ['experiment', 'interop', 'linen', 'nnx']
assert set(lazy) <= set(dir(posjax))
assert not [name for name in lazy if f'posjax.{name}' in sys.modules]
assert posjax.interop.from_hf and posjax.schemes.alibi.scheme
for ask in (lambda: posjax.nnx, lambda: posjax.linen, lambda: posjax.experiment.load):
  try:
    ask()
  except ImportError as error:
    print(error)
for owner in (posjax, posjax.schemes):
  assert not hasattr(owner, 'nothing') and not hasattr(owner, '__nothing__')
"""
ADAPTER = """
try:
  import posjax.{adapter}
except ImportError as error:
  print(error)
else:
  raise SystemExit('imported without flax')
"""


def python(executable, code, cwd):
  command = [executable, '-W', 'error', '-c', code]
  result = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
  assert result.returncode == 0, result.stderr
  return result.stdout


def test_library_imports_without_flax_and_the_training_stack():
  blocked = TRAINING | {'flax', 'absl', 'beartype', 'matplotlib'}
  python(sys.executable, BLOCKED.format(blocked=blocked, code=NAMES), ROOT)


def test_a_module_by_attribute_is_imported_when_asked_for_and_names_what_it_needs():
  code = BLOCKED.format(blocked=TRAINING | {'flax', 'absl', 'matplotlib'}, code=LAZY)
  layer, linen, load = python(sys.executable, code, ROOT).splitlines()
  assert layer == "posjax.nnx needs flax, which is not installed: pip install 'posjax[flax]'."
  assert linen == layer.replace('nnx', 'linen')
  assert load.startswith('posjax.experiment.load needs ')
  assert load.endswith(", which is not installed: pip install 'posjax[train]'.")


@pytest.mark.parametrize('adapter', ADAPTERS)
def test_an_adapter_without_flax_says_how_to_install_it(adapter):
  code = BLOCKED.format(blocked={'flax'}, code=ADAPTER.format(adapter=adapter))
  assert 'posjax[flax]' in python(sys.executable, code, ROOT)


LAYERS = """
import importlib.util, jax, jax.numpy as jnp
import flax.nnx, posjax.linen, posjax.nnx
x, pos = jnp.ones((1, 3, 8)), jnp.arange(3)
scheme = posjax.get('rope+alibi')
posjax.nnx.Attention(8, 2, scheme, causal=True, rngs=flax.nnx.Rngs(0))(x, pos)
posjax.linen.Attention(8, 2, scheme, causal=True).init(jax.random.key(0), x, pos)
for name in ('grain', 'matplotlib', 'ml_collections', 'tensorboardX', 'tensorflow_datasets'):
  assert importlib.util.find_spec(name) is None, name
"""


@pytest.mark.slow
def test_wheel_installs_beside_jax_alone(tmp_path):
  """Builds without fetching anything; the empty environment gets jax from the package index."""
  build = [sys.executable, '-m', 'build', '--wheel', '--no-isolation', '--outdir', tmp_path, ROOT]
  subprocess.run(build, check=True, capture_output=True)
  (wheel,) = tmp_path.glob('posjax-*.whl')
  listing = subprocess.run(
    [sys.executable, '-m', 'zipfile', '-l', wheel], check=True, capture_output=True, text=True
  )
  files = {line.split()[0] for line in listing.stdout.splitlines()[1:]}
  assert {top_folder.partition('/')[0] for top_folder in files} == {
    'posjax', f'posjax-{wheel.name.split("-")[1]}.dist-info'
  }  # fmt: skip
  assert 'posjax/py.typed' in files
  sources = (p for p in LIBRARY.rglob('*') if p.suffix in ('.py', '.json', '.bib', '.html'))
  assert {p.relative_to(ROOT).as_posix() for p in sources} <= files

  venv.create(tmp_path / 'venv', with_pip=True)
  fresh = tmp_path / 'venv' / 'bin' / 'python'
  subprocess.run([fresh, '-m', 'pip', 'install', '-q', wheel], check=True, capture_output=True)
  python(fresh, 'import sys' + NAMES, tmp_path)
  for adapter in ADAPTERS:
    assert 'posjax[flax]' in python(fresh, ADAPTER.format(adapter=adapter), tmp_path)
  python(fresh, 'import posjax; assert posjax.__version__', tmp_path)
  subprocess.run([fresh, '-m', 'pip', 'install', '-q', f'{wheel}[flax]'], check=True)
  python(fresh, LAYERS, tmp_path)


@pytest.mark.slow
def test_import_takes_less_than_one_and_a_half_times_the_import_of_jax():
  def seconds(module):
    start = time.perf_counter()
    subprocess.run([sys.executable, '-c', f'import {module}'], check=True, cwd=ROOT)
    return time.perf_counter() - start

  # Interleaved, so that a busy machine slows both alike; the first round warms the disk.
  rounds = [(seconds('jax'), seconds('posjax')) for _ in range(10)][1:]
  jax_alone, with_posjax = (statistics.median(column) for column in zip(*rounds, strict=True))
  assert with_posjax < 1.5 * jax_alone
