"""The strict environment in which every test runs, set up before jax or posjax is imported."""

import gc
import os
import sys
from pathlib import Path

if 'posjax' in sys.modules:
  raise RuntimeError('posjax was imported before tests/conftest.py could have it type-checked.')

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # JAX_PLATFORMS=cuda pytest tests on a GPU instead
# Compiling is most of what the tests cost: without optimization it takes a third of the time.
# `XLA_FLAGS= pytest` compiles as users do.
os.environ.setdefault(
  'XLA_FLAGS',
  '--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 '
  '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters '
  '--xla_llvm_disable_expensive_passes=true',
)
os.environ['XLA_FLAGS'] += ' --xla_force_host_platform_device_count=8'
# Compiled code from another version or machine must not decide a test.
os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
# Matplotlib would look for a display otherwise.
os.environ.setdefault('MPLBACKEND', 'agg')

import jax
import jaxtyping
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import draws

jax.config.update('jax_numpy_rank_promotion', 'raise')
# Tracing makes so many objects that Python's own pace of collecting garbage costs 5 % of the time.
gc.set_threshold(100_000, 50, 100)

# Annotations are checked at run time here and only here. The hook is never removed: modules
# such as the schemes are imported when a test first names them.
jaxtyping.install_import_hook('posjax', 'beartype.beartype')


class SharedPrograms(LoadScopeScheduling):
  """Tests that share what they compile or train run in one process, one after the other.

  These are the tests of one file; in the contract, which tests every scheme alone, those of one
  scheme.
  """

  def _split_scope(self, nodeid):
    file, _, test = nodeid.partition('::')
    return f'{file}[{test.partition("[")[2]}' if file.endswith('contract/schemes_test.py') else file


def pytest_xdist_make_scheduler(config, log):
  return SharedPrograms(config, log)


def pytest_collection_modifyitems(items):
  """Marks the cases of tests/slow_cases.txt as slow."""
  listed = Path(__file__).with_name('slow_cases.txt').read_text().splitlines()
  slow = {line for line in listed if not line.startswith('#')}
  for item in items:
    if item.nodeid in slow:
      item.add_marker(pytest.mark.slow)


@pytest.fixture
def unchecked():
  """As users run it: without annotation checks, so that the library's own errors are seen."""
  jaxtyping.config.update('jaxtyping_disable', True)
  yield
  jaxtyping.config.update('jaxtyping_disable', False)


@pytest.fixture(autouse=True)
def same_draws():
  """What a test draws does not depend on which tests its process ran before."""
  draws.start_again()


@pytest.fixture(autouse=True, scope='module')
def programs_of_one_file():
  """The compiled programs of a file are freed after it: they took a worker gigabytes."""
  yield
  jax.clear_caches()


@pytest.fixture
def eight_devices():
  """The CPU pretends to be eight; a machine with one GPU has no more."""
  if jax.device_count() < 8:
    pytest.skip(f'needs 8 devices, and there are {jax.device_count()}')


@pytest.fixture
def key():
  """A random key, the same in every test."""
  return jax.random.key(0)
