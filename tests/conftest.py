"""The strict environment in which every test runs, set up before jax or posjax is imported."""

import os
import sys
from importlib import metadata

if 'posjax' in sys.modules:
  raise RuntimeError('posjax was imported before tests/conftest.py could have it type-checked.')

os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # JAX_PLATFORMS=cuda pytest tests on a GPU instead
# Compiling is most of what the tests cost. To have everything optimized, as users do:
# XLA_FLAGS='--xla_backend_optimization_level=3 --xla_cpu_use_fusion_emitters=true' pytest
# (the later of two equal flags holds).
os.environ['XLA_FLAGS'] = ' '.join(
  [
    '--xla_backend_optimization_level=0',
    '--xla_cpu_parallel_codegen_split_count=1',
    # Later versions do not know this flag, and refuse to start with it.
    '--xla_cpu_use_fusion_emitters=false' if metadata.version('jaxlib') < '0.11' else '',
    os.environ.get('XLA_FLAGS', ''),
    '--xla_force_host_platform_device_count=8',
  ]
)
# Compiled code from another version or machine must not decide a test.
os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
# Matplotlib would look for a display otherwise.
os.environ.setdefault('MPLBACKEND', 'agg')

import jax
import jaxtyping
import pytest

from tests import draws

jax.config.update('jax_numpy_rank_promotion', 'raise')

# Annotations are checked at run time here and only here. The hook is never removed: modules
# such as the schemes are imported when a test first names them.
jaxtyping.install_import_hook('posjax', 'beartype.beartype')


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


@pytest.fixture
def key():
  """A random key, the same in every test."""
  return jax.random.key(0)
