"""Folders of checkpoints: what safetensors and transformers write is read, and the other way."""

import json
import os
import struct
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from posjax.interop import load_attention
from posjax.interop.folder import read_folder, write_folder
from tests.support.draws import DRAW

CONFIG = {'model_type': 'llama', 'hidden_size': 8, 'auto_map': {'AutoModel': 'evil.py'}}
DTYPES = {
  **{'F64': 'float64', 'F32': 'float32', 'F16': 'float16', 'BF16': 'bfloat16', 'I64': 'int64'},
  **{'I32': 'int32', 'I16': 'int16', 'I8': 'int8', 'U8': 'uint8', 'BOOL': 'bool'},
  **{'F8_E4M3': 'float8_e4m3fn', 'F8_E5M2': 'float8_e5m2', 'F8_E8M0': 'float8_e8m0fnu'},
  **{'U64': 'uint64', 'U32': 'uint32', 'U16': 'uint16', 'C64': 'complex64'},
}


def of_all_dtypes():
  weights = {each: DRAW.integers(0, 2, (3, 5)).astype(each) for each in DTYPES.values()}
  weights |= {'a scalar': np.array(2.5, np.float32), 'empty': np.zeros((0, 3), np.float16)}
  return weights


def write_config(folder, config=CONFIG):
  (folder / 'config.json').write_text(json.dumps(config))


def write_single(folder, weights):
  write_config(folder)
  safetensors.numpy.save_file(weights, folder / 'model.safetensors')


def write_shards(folder, shards, index):
  """Shards by their files, and an index of names to files."""
  write_config(folder)
  for file, weights in shards.items():
    safetensors.numpy.save_file(weights, folder / file)
  (folder / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': index}))


def write_bytes(folder, header, data=b''):
  """A file of a header and data, whatever they hold."""
  write_config(folder)
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)  # as most writers align the data
  (folder / 'model.safetensors').write_bytes(struct.pack('<Q', len(text)) + text + data)


def equal(found, expected):
  assert set(found) == set(expected)
  for name, array in expected.items():
    assert found[name].dtype == array.dtype
    assert found[name].shape == array.shape
    assert found[name].tobytes() == array.tobytes()


def refused(folder, error, *words):
  """Reading is refused in one line with these words."""
  with pytest.raises(error) as caught:
    read_folder(folder)
  assert_one_line(caught, words)


def assert_one_line(caught, words):
  message = str(caught.value)
  assert '\n' not in message
  for word in words:
    assert word in message, message


# Reading.


def test_every_dtype_is_read_as_safetensors_wrote_it(tmp_path):
  weights = of_all_dtypes()
  write_single(tmp_path, weights)
  checkpoint = read_folder(str(tmp_path))
  equal(checkpoint.weights, weights)
  assert checkpoint.config == CONFIG
  assert checkpoint.path == tmp_path
  assert checkpoint.files == (tmp_path / 'model.safetensors',)
  assert len(repr(checkpoint)) < 500
  assert 'absent' not in checkpoint.weights


def test_an_array_may_begin_at_any_byte(tmp_path):
  x, y = np.array([1.5, -2.0], jnp.bfloat16), np.array([3.25], np.float32)
  header = {
    '__metadata__': {'format': 'pt'},
    'u': {'dtype': 'U8', 'shape': [1], 'data_offsets': [0, 1]},
    'x': {'dtype': 'BF16', 'shape': [2], 'data_offsets': [1, 5]},
    'y': {'dtype': 'F32', 'shape': [1], 'data_offsets': [5, 9]},
  }
  write_bytes(tmp_path, header, b'\7' + x.tobytes() + y.tobytes())
  weights = read_folder(tmp_path).weights
  assert list(weights) == ['u', 'x', 'y']
  assert not weights['x'].flags.aligned
  equal(weights, {'u': np.array([7], np.uint8), 'x': x, 'y': y})
  assert (weights['x'] + weights['x']).tolist() == [3.0, -4.0]
  assert jnp.asarray(weights['x']).tolist() == [1.5, -2.0]
  assert jnp.asarray(weights['y']).tolist() == [3.25]


def test_weights_are_read_only_views_of_memory_maps(tmp_path):
  write_single(tmp_path, {'w': np.ones((2, 3), np.float32)})
  weight = read_folder(tmp_path).weights['w']
  assert isinstance(weight.base, np.memmap)
  with pytest.raises(ValueError, match='read-only'):
    weight[0, 0] = 2


@pytest.mark.skipif(sys.platform != 'linux', reason='Resident memory is read from /proc.')
def test_reading_a_folder_reads_no_weights(tmp_path):
  size = 200 * 2**20
  header = {
    'large': {'dtype': 'U8', 'shape': [size - 4], 'data_offsets': [0, size - 4]},
    'small': {'dtype': 'F32', 'shape': [1], 'data_offsets': [size - 4, size]},
  }
  write_bytes(tmp_path, header)
  with open(tmp_path / 'model.safetensors', 'r+b') as opened:  # no byte of it is on disk
    opened.seek(0, 2)
    opened.truncate(opened.tell() + size)
  before = resident()
  weights = read_folder(tmp_path).weights
  assert weights['small'].item() == 0
  assert weights['large'].shape == (size - 4,)
  assert resident() - before < size / 20
  assert not weights['large'].any()  # this reads it all
  assert resident() - before > size / 2


def resident():
  """The bytes of this process that are in memory."""
  return int(Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def test_shards_are_read_by_their_index(tmp_path):
  a, b, c = np.ones((2, 3), np.float32), np.zeros(4, jnp.bfloat16), np.arange(5)
  shards = {'one.safetensors': {'a': a, 'c': c}, 'two.safetensors': {'b': b, 'a': a + 1, 'd': c}}
  write_shards(tmp_path, shards, {'b': 'two.safetensors', 'a': 'one.safetensors'})
  checkpoint = read_folder(tmp_path)
  equal(checkpoint.weights, {'a': a, 'b': b})  # not the other `a`, and no `c` and `d`
  assert list(checkpoint.weights) == ['b', 'a']
  assert checkpoint.files == tuple(tmp_path / file for file in shards)


def test_the_single_file_comes_before_an_index_as_in_transformers(tmp_path):
  write_shards(tmp_path, {'one.safetensors': {'a': np.ones(2)}}, {'a': 'one.safetensors'})
  write_single(tmp_path, {'a': np.zeros(2)})
  assert read_folder(tmp_path).weights['a'].tolist() == [0, 0]


def test_files_may_be_links_as_in_the_cache_of_the_hub(tmp_path):
  blobs, folder = tmp_path / 'blobs', tmp_path / 'snapshots' / 'main'
  blobs.mkdir(), folder.mkdir(parents=True)
  write_shards(blobs, {'one.safetensors': {'a': np.ones(2)}}, {'a': 'one.safetensors'})
  for path in blobs.iterdir():
    (folder / path.name).symlink_to(path)
  assert read_folder(folder).weights['a'].tolist() == [1, 1]


def test_the_weights_of_a_folder_are_what_load_attention_reads(tmp_path):
  names = [f'model.layers.0.self_attn.{each}_proj.weight' for each in 'qkvo']
  write_single(tmp_path, {name: DRAW.normal(size=(8, 8)).astype(jnp.bfloat16) for name in names})
  config = {**CONFIG, 'num_attention_heads': 2, 'num_key_value_heads': 2}
  weights = read_folder(tmp_path).weights
  loaded = load_attention(config, 0, weights)
  query = np.asarray(weights[names[0]]).T.reshape(8, 2, 4)
  assert np.array_equal(loaded['query']['kernel'], query)


# What is refused.


@pytest.mark.parametrize('name', ['meta-llama/Llama-3.1-8B', 'gpt2'])
def test_a_name_of_the_hub_is_answered_with_the_command_that_fetches_it(
  name, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  command = f'`hf download {name} --local-dir FOLDER`'
  refused(name, FileNotFoundError, 'does not exist', 'downloads nothing', command)


def test_a_path_that_is_no_folder_of_a_checkpoint_is_refused(tmp_path):
  missing = tmp_path / 'absent'
  refused(missing, FileNotFoundError, str(missing), 'does not exist')
  with pytest.raises(FileNotFoundError) as caught:
    read_folder(missing)
  assert 'hf download' not in str(caught.value)
  refused('a' * 5000 + '/' * 2, FileNotFoundError, 'does not exist')
  refused(tmp_path, FileNotFoundError, str(tmp_path), 'config.json')
  write_single(tmp_path, {'a': np.ones(2)})
  refused(tmp_path / 'model.safetensors', ValueError, 'folder', 'is a file')


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (b'{', 'no JSON'),
    (b'', 'no JSON'),
    (b'\xff\xfe\xff', 'no JSON'),
    (b'[' * 100_000, 'holds'),
    (b'[1, 2]', '[1, 2]'),
    (b'null', 'None'),
  ],
)
def test_json_that_is_no_object_is_refused(content, words, tmp_path):
  write_shards(tmp_path, {'one.safetensors': {'a': np.ones(2)}}, {'a': 'one.safetensors'})
  path = tmp_path / 'model.safetensors.index.json'
  path.write_bytes(content)
  refused(tmp_path, ValueError, str(path), 'an object as JSON', words)
  path = tmp_path / 'config.json'
  path.write_bytes(content)
  refused(tmp_path, ValueError, str(path), 'an object as JSON', words)


@pytest.mark.parametrize(
  'file', ['pytorch_model.bin', 'pytorch_model-00001-of-00002.bin', 'm.pt', 'm.pth', 'm.ckpt']
)
def test_pickles_are_named_and_never_opened(file, tmp_path, monkeypatch):
  write_config(tmp_path)
  (tmp_path / file).write_bytes(b'not a pickle')
  (tmp_path / file).chmod(0)
  monkeypatch.setattr('pickle.Unpickler', None)
  monkeypatch.setattr('pickle.load', None)
  refused(tmp_path, ValueError, file, 'pickles', 'run code', 'save_pretrained')


@pytest.mark.parametrize('file', ['tf_model.h5', 'flax_model.msgpack', 'llama-Q4_K_M.gguf'])
def test_other_formats_are_refused_by_name(file, tmp_path):
  write_config(tmp_path)
  (tmp_path / file).touch()
  refused(tmp_path, ValueError, file, 'model.safetensors', 'save_pretrained')


def test_a_folder_without_weights_is_refused(tmp_path):
  write_config(tmp_path)
  refused(tmp_path, FileNotFoundError, 'no weights', 'model.safetensors.index.json')
  for i in range(5):
    (tmp_path / f'model-0000{i}-of-00005.safetensors').touch()
  refused(tmp_path, FileNotFoundError, 'model-00000-of-00005.safetensors', 'and 2 more')


def test_files_without_a_weight_are_refused(tmp_path):
  write_shards(tmp_path, {}, {})
  refused(tmp_path, ValueError, 'index.json', 'no weights')
  write_single(tmp_path, {})
  refused(tmp_path, ValueError, 'model.safetensors', 'no weights')


def test_missing_shards_are_counted_and_the_first_named(tmp_path):
  files = {name: f'{name}.safetensors' for name in 'abc'}
  write_shards(tmp_path, {'b.safetensors': {'b': np.ones(2)}}, files)
  refused(tmp_path, FileNotFoundError, '2 of the 3 files', "'a.safetensors'")


def test_a_weight_that_its_shard_lacks_is_refused(tmp_path):
  write_shards(
    tmp_path, {'one.safetensors': {'a': np.ones(2)}}, dict.fromkeys('ab', 'one.safetensors')
  )
  refused(tmp_path, ValueError, "'b'", 'one.safetensors', 'no such weight')


@pytest.mark.parametrize(
  'file',
  [
    *('../one.safetensors', '/one.safetensors', 'sub/one.safetensors', '..\\one.safetensors'),
    *('C:one.safetensors', './one.safetensors', 'one.bin', '..', '', 'config.json'),
  ],
)
def test_an_index_names_safetensors_of_its_own_folder_alone(file, tmp_path):
  folder = tmp_path / 'model'
  folder.mkdir()
  safetensors.numpy.save_file({'a': np.ones(2)}, tmp_path / 'one.safetensors')
  write_shards(folder, {}, {'a': file})
  refused(folder, ValueError, 'its own folder', repr(file))


@pytest.mark.parametrize('where', [None, [], {'a': 1}, 'one.safetensors'])
def test_an_index_without_a_map_of_files_is_refused(where, tmp_path):
  write_shards(tmp_path, {}, where)
  refused(tmp_path, ValueError, 'index.json', 'weight_map')


@pytest.mark.parametrize('length', [0, 5, 8, 60, -4, -1])
def test_a_truncated_file_is_refused(length, tmp_path):
  write_single(tmp_path, {'a': np.ones((4, 4))})
  path = tmp_path / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:length])
  refused(tmp_path, ValueError, str(path), 'no complete safetensors file')


ENTRY = {'dtype': 'U8', 'shape': [8], 'data_offsets': [0, 8]}


@pytest.mark.parametrize(
  'header',
  [
    b'garbage',
    b'[]',
    b'{"a": 1}',
    b'\xff' * 20,
    {'a': {**ENTRY, 'shape': [9]}},
    {'a': {**ENTRY, 'shape': [-8]}},
    {'a': {**ENTRY, 'dtype': 'Q8'}},
    {'a': {**ENTRY, 'data_offsets': [0, 2**60]}},
    {'a': ENTRY, 'b': ENTRY},
    {'a': {**ENTRY, 'shape': [7], 'data_offsets': [0, 7]}},
  ],
)
def test_a_broken_header_is_refused(header, tmp_path):
  write_bytes(tmp_path, header, bytes(8))
  refused(tmp_path, ValueError, 'model.safetensors', 'no complete safetensors file')


def test_a_pointer_of_git_lfs_is_called_that(tmp_path):
  write_config(tmp_path)
  text = 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n'
  (tmp_path / 'model.safetensors').write_text(text)
  refused(tmp_path, ValueError, 'model.safetensors', 'Git LFS')


def test_a_dtype_that_numpy_lacks_is_refused_by_name(tmp_path):
  write_bytes(tmp_path, {'a': {'dtype': 'F4', 'shape': [16], 'data_offsets': [0, 8]}}, bytes(8))
  refused(tmp_path, ValueError, 'F4', 'BF16')


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
  write_single(tmp_path, {'a': np.ones(2)})
  monkeypatch.setitem(sys.modules, 'safetensors', None)
  refused(tmp_path, ImportError, "pip install 'posjax[checkpoints]'")
  with pytest.raises(ImportError, match='checkpoints'):
    write_folder(tmp_path / 'new', CONFIG, {'a': np.ones(2)})


@pytest.mark.usefixtures('unchecked')
def test_a_folder_is_a_path():
  refused(3, TypeError, 'folder', '3')


# Writing.


def test_what_is_written_safetensors_and_read_folder_read(tmp_path):
  weights, folder = of_all_dtypes(), tmp_path / 'of' / 'a model'
  config = {'b': 1, 'a': [None, 'ä', 1e-5], **CONFIG}
  write_folder(folder, config, weights)
  assert sorted(path.name for path in folder.iterdir()) == ['config.json', 'model.safetensors']
  text = (folder / 'config.json').read_text(encoding='utf-8')
  assert text.startswith('{\n  "b": 1,\n  "a": [\n')
  assert text.endswith('}\n')
  checkpoint = read_folder(folder)
  assert checkpoint.config == config
  equal(checkpoint.weights, weights)
  with safetensors.safe_open(folder / 'model.safetensors', 'numpy') as opened:
    assert opened.metadata() == {'format': 'pt'}
    written = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    assert {written[dtype]: dtype for dtype in DTYPES.values()} == DTYPES
    assert np.array_equal(opened.get_tensor('float32'), weights['float32'])
    assert np.array_equal(opened.get_tensor('bool'), weights['bool'])


def test_arrays_of_any_memory_layout_are_written_as_they_are(tmp_path):
  x = DRAW.normal(size=(4, 6)).astype(np.float32)
  weights = {
    **{
      'transposed': x.T,
      'columns': x[:, ::2],
      'backwards': x[::-1],
      'Fortran': np.asfortranarray(x),
    },
    **{'broadcast': np.broadcast_to(x[0], (3, 6)), 'big-endian': x.astype('>f4')},
    **{'bfloat16': x.astype(jnp.bfloat16).T, 'of JAX': jnp.asarray(x, jnp.bfloat16)},
  }
  write_folder(tmp_path, CONFIG, weights)
  loaded = safetensors.numpy.load_file(tmp_path / 'model.safetensors')
  assert set(loaded) == set(weights)
  for name, array in weights.items():
    assert loaded[name].dtype == np.asarray(array).dtype.newbyteorder('=')
    assert np.array_equal(loaded[name], array)


def test_a_folder_that_was_read_is_written_again(tmp_path):
  write_single(tmp_path, of_all_dtypes())
  first = read_folder(tmp_path)
  write_folder(tmp_path / 'again', first.config, first.weights)
  equal(read_folder(tmp_path / 'again').weights, first.weights)


def test_large_weights_are_written_in_shards_with_an_index(tmp_path):
  weights = {name: np.full(10, i, np.float32) for i, name in enumerate('abcd')}
  weights = {'large': np.zeros(100, np.float32), **weights, 'e': np.zeros(1, np.float32)}
  write_folder(tmp_path, CONFIG, weights, shard_bytes=83)
  files = [f'model-0000{i}-of-00004.safetensors' for i in (1, 2, 3, 4)]
  index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
  expected = {'large': 0, 'a': 1, 'b': 1, 'c': 2, 'd': 2, 'e': 3}
  assert index['weight_map'] == {name: files[i] for name, i in expected.items()}
  assert index['metadata'] == {'total_size': 400 + 4 * 40 + 4}
  sizes = [sum(a.nbytes for a in safetensors.numpy.load_file(tmp_path / f).values()) for f in files]
  assert sizes == [400, 80, 80, 4]
  checkpoint = read_folder(tmp_path)
  equal(checkpoint.weights, weights)
  assert checkpoint.files == tuple(tmp_path / file for file in files)
  assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize('shard_bytes', [80, 10**12])
def test_what_fits_one_file_is_written_without_an_index(shard_bytes, tmp_path):
  write_folder(tmp_path, CONFIG, {'a': np.zeros(10)}, shard_bytes=shard_bytes)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['config.json', 'model.safetensors']


@pytest.mark.parametrize('done', [0, 1, 2, 3])
def test_an_interrupted_call_leaves_no_checkpoint(done, tmp_path, monkeypatch):
  weights = {name: np.zeros(10) for name in 'ab'}
  replace, moved = os.replace, []

  def interrupted(source, target):
    if len(moved) == done:
      raise KeyboardInterrupt
    moved.append(Path(target).name)
    replace(source, target)

  with monkeypatch.context() as patched:
    patched.setattr(os, 'replace', interrupted)
    with pytest.raises(KeyboardInterrupt):
      write_folder(tmp_path, CONFIG, weights, shard_bytes=80)
  assert sorted(path.name for path in tmp_path.iterdir()) == sorted(moved)
  refused(tmp_path, FileNotFoundError, 'config.json')
  if done:
    with pytest.raises(ValueError, match='model-00001-of-00002'):
      write_folder(tmp_path, CONFIG, weights)
  else:
    write_folder(tmp_path, CONFIG, weights)
    assert len(read_folder(tmp_path).weights) == 2


@pytest.mark.parametrize(
  'file', ['config.json', 'any.safetensors', 'model.safetensors', 'model.safetensors.index.json']
)
def test_no_checkpoint_is_overwritten(file, tmp_path):
  (tmp_path / file).write_text('old')
  (tmp_path / 'README.md').write_text('old')
  with pytest.raises(ValueError, match='without one') as caught:
    write_folder(tmp_path, CONFIG, {'a': np.ones(2)})
  assert_one_line(caught, [str(tmp_path), file])
  (tmp_path / file).unlink()
  (tmp_path / '.partial-killed').mkdir()  # what a call leaves that was killed
  (tmp_path / '.partial-killed' / file).touch()
  write_folder(tmp_path, CONFIG, {'a': np.ones(2)})
  assert (tmp_path / 'README.md').read_text() == 'old'
  assert read_folder(tmp_path).weights['a'].tolist() == [1, 1]


@pytest.mark.usefixtures('unchecked')
@pytest.mark.parametrize(
  ('config', 'weights', 'error', 'words'),
  [
    (CONFIG, {}, ValueError, 'at least one array'),
    (CONFIG, [np.ones(2)], TypeError, 'a mapping'),
    (CONFIG, {1: np.ones(2)}, TypeError, 'strings'),
    (CONFIG, {'__metadata__': np.ones(2)}, ValueError, '__metadata__'),
    (CONFIG, {'a': [1.0]}, TypeError, "'a'"),
    (CONFIG, {'a': np.ones(2, np.complex128)}, TypeError, 'complex128'),
    (CONFIG, {'a': np.array(['x'])}, TypeError, 'BF16'),
    (CONFIG, {'a': np.ones(2, 'float4_e2m1fn')}, TypeError, 'float4_e2m1fn'),
    ({'a': jnp.float32}, {'a': np.ones(2)}, ValueError, 'JSON'),
    ([], {'a': np.ones(2)}, TypeError, 'config'),
  ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
  config, weights, error, words, tmp_path
):
  with pytest.raises(error) as caught:
    write_folder(tmp_path / 'new', config, weights)
  assert_one_line(caught, [words])
  assert not (tmp_path / 'new').exists()


def test_what_the_library_cannot_write_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
  def full(*_, **__):
    raise safetensors.SafetensorError('I/O error:\nno space left')

  monkeypatch.setattr(safetensors.numpy, 'save_file', full)
  with pytest.raises(ValueError, match='no space left') as caught:
    write_folder(tmp_path, CONFIG, {'a': np.ones(2)})
  assert_one_line(caught, ['model.safetensors'])
  assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures('unchecked')
def test_sizes_and_paths_are_checked(tmp_path):
  (tmp_path / 'file').touch()
  for folder, shard_bytes, error, words in [
    (tmp_path, 0, ValueError, 'shard_bytes'),
    (tmp_path, 1.5, TypeError, 'shard_bytes'),
    (tmp_path / 'file', 10, ValueError, 'is a file'),
    (None, 10, TypeError, 'folder'),
  ]:
    with pytest.raises(error) as caught:
      write_folder(folder, CONFIG, {'a': np.ones(2)}, shard_bytes=shard_bytes)
    assert_one_line(caught, [words])


@pytest.mark.slow
def test_torch_reads_what_is_written(tmp_path):
  torch = pytest.importorskip('torch', reason='This compares with torch.')
  import safetensors.torch

  weights = of_all_dtypes()
  weights['bfloat16 transposed'] = DRAW.normal(size=(3, 5)).astype(jnp.bfloat16).T
  write_folder(tmp_path, CONFIG, weights)
  loaded = safetensors.torch.load_file(tmp_path / 'model.safetensors')
  assert set(loaded) == set(weights)
  assert loaded['bfloat16'].dtype == torch.bfloat16
  for name, array in weights.items():
    assert loaded[name].shape == array.shape
    if 'float8' in name:
      assert loaded[name].view(torch.uint8).numpy().tobytes() == array.tobytes()
    else:
      x = loaded[name].to(torch.complex64 if 'complex' in name else torch.float32)
      assert np.array_equal(x.numpy(), array.astype(x.numpy().dtype))


@pytest.mark.slow
@pytest.mark.parametrize('shard_bytes', [10_000, 10**9])
def test_transformers_reads_what_is_written_and_writes_what_is_read(shard_bytes, tmp_path):
  transformers = pytest.importorskip('transformers', reason='This compares with transformers.')
  torch = pytest.importorskip('torch', reason='This compares with torch.')
  config = transformers.LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=50
  )
  model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
  first = tmp_path / 'first'
  model.save_pretrained(first, max_shard_size=shard_bytes)
  checkpoint = read_folder(first)
  assert (len(checkpoint.files) > 1) == (shard_bytes == 10_000)
  state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
  assert set(checkpoint.weights) == set(state)
  for name, array in checkpoint.weights.items():
    assert array.dtype == jnp.bfloat16
    assert np.array_equal(array.astype(np.float32), state[name])
  write_folder(tmp_path / 'again', checkpoint.config, checkpoint.weights, shard_bytes=shard_bytes)
  again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'again')
  assert again.dtype == torch.bfloat16
  for name, tensor in again.state_dict().items():
    assert np.array_equal(tensor.float().numpy(), state[name])
