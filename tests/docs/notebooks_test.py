"""The notebooks run from top to bottom, and are small."""

import json
import os
import subprocess
import sys

import pytest

import posjax
from tests.support.paths import ROOT

FOLDER = ROOT / 'notebooks'
NOTEBOOKS = sorted(FOLDER.glob('*.ipynb'))
every_notebook = pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)

# In a process of its own: Jupyter's sockets and loops warn, and warnings are errors here.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, kernel_name=sys.argv[2], timeout=300).execute()
assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == 'code')
"""


@pytest.fixture
def environment(tmp_path):
  """Where `posjax_test` is a kernel of the running interpreter, on one CPU device."""
  spec = {
    'argv': [sys.executable, '-m', 'ipykernel_launcher', '-f', '{connection_file}'],
    'display_name': 'posjax',
    'language': 'python',
  }
  folder = tmp_path / 'kernels' / 'posjax_test'
  folder.mkdir(parents=True)
  (folder / 'kernel.json').write_text(json.dumps(spec))
  # Without what conftest.py sets: eight simulated devices, and pictures that go nowhere.
  kept = {k: v for k, v in os.environ.items() if k not in ('XLA_FLAGS', 'MPLBACKEND')}
  ours = {'JUPYTER_PATH': tmp_path, 'IPYTHONDIR': tmp_path / 'ipython', 'JAX_PLATFORMS': 'cpu'}
  return {**kept, **{name: str(value) for name, value in ours.items()}}


@pytest.mark.slow
@every_notebook
def test_every_cell_runs(path, environment):
  command = [sys.executable, '-c', EXECUTE, path.name, 'posjax_test']
  result = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True)
  assert result.returncode == 0, result.stderr


@every_notebook
def test_pictures_are_committed_and_files_are_small(path):
  text = path.read_text(encoding='utf-8')
  assert 'image/png' in text
  assert len(text) < 1_000_000
  cells = json.loads(text)['cells']
  outputs = [o for cell in cells if cell['cell_type'] == 'code' for o in cell['outputs']]
  assert not [o for o in outputs if o['output_type'] == 'error' or o.get('name') == 'stderr']


def test_there_are_seven_notebooks():
  assert [path.name[:3] for path in NOTEBOOKS] == [f'0{i}_' for i in range(1, 8)]


def test_what_a_longer_context_needs_is_the_first_section_of_the_third_notebook():
  cells = json.loads(NOTEBOOKS[2].read_text(encoding='utf-8'))['cells']
  first = next(text for cell in cells if (text := ''.join(cell['source'])).startswith('## '))
  assert first.startswith('## What YaRN needs for 4096 to 32768')
  for key in ('rope_type', 'factor', 'original_max_position_embeddings', 'from_hf', '400 steps'):
    assert key in first


def test_the_gallery_shows_every_scheme_of_the_folder():
  text = next(path for path in NOTEBOOKS if 'gallery' in path.name).read_text(encoding='utf-8')
  printed = [
    word
    for cell in json.loads(text)['cells']
    for output in cell.get('outputs', ())
    for line in output.get('text', ())
    for word in line.split()
  ]
  assert set(posjax.names()) <= set(printed), 'The gallery is out of date; run it again.'
