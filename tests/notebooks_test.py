"""The notebooks run from top to bottom, and are small."""

import asyncio
import json
import os
import pathlib
import sys
import warnings

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent.parent / 'notebooks'
NOTEBOOKS = sorted(FOLDER.glob('*.ipynb'))
every_notebook = pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
  """A kernel of the running interpreter, whatever is installed as `python3`; on one CPU device."""
  spec = {
    'argv': [sys.executable, '-m', 'ipykernel_launcher', '-f', '{connection_file}'],
    'display_name': 'posjax',
    'language': 'python',
  }
  folder = tmp_path / 'kernels' / 'posjax_test'
  folder.mkdir(parents=True)
  (folder / 'kernel.json').write_text(json.dumps(spec))
  monkeypatch.setenv('JUPYTER_PATH', str(tmp_path), prepend=os.pathsep)
  monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))  # no one's own startup files
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  monkeypatch.delenv('XLA_FLAGS', raising=False)  # the eight simulated devices of conftest.py
  monkeypatch.delenv('MPLBACKEND', raising=False)  # the kernel draws into the notebook
  return folder.name


def execute(path, kernel):
  """Runs all cells; raises on the first error."""
  with warnings.catch_warnings():
    # The machinery of Jupyter warns of its sockets and loops; the cells run in another process.
    warnings.simplefilter('ignore')
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {'metadata': {'path': str(path.parent)}}
    client = NotebookClient(notebook, kernel_name=kernel, timeout=300, resources=resources)
    return asyncio.run(client.async_execute())


@every_notebook
def test_every_cell_runs(path, kernel):
  executed = execute(path, kernel)
  assert all(cell.execution_count for cell in executed.cells if cell.cell_type == 'code')


@every_notebook
def test_pictures_are_committed_and_files_are_small(path):
  text = path.read_text(encoding='utf-8')
  assert 'image/png' in text
  assert len(text) < 600_000
  cells = json.loads(text)['cells']
  outputs = [o for cell in cells if cell['cell_type'] == 'code' for o in cell['outputs']]
  assert not [o for o in outputs if o['output_type'] == 'error' or o.get('name') == 'stderr']


def test_there_are_three_notebooks():
  assert [path.name[:3] for path in NOTEBOOKS] == ['01_', '02_', '03_']
