"""Where each parameter lives: the axes that models name, and the shapes that devices then hold."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.attention.devices import sharded_axes
from posjax.experiment.sharding import check_context, make_mesh, of_state, put_batch, seen
from posjax.experiment.tasks.classification.model import Classifier
from posjax.models import axes
from posjax.models.encoder_decoder import EncoderDecoder
from posjax.models.recurrent import RecurrentTransformer
from posjax.models.transformer import Transformer
from posjax.nnx import Attention

SIZES = {'num_layers': 2, 'width': 16, 'num_heads': 2, 'rngs': nnx.Rngs(0)}
ROWS = ('data', 'fsdp')
KERNELS = {
  'embedding': ('tensor', 'fsdp'),
  'query': (None, 'fsdp', 'tensor', None),
  'key': (None, 'fsdp', 'tensor', None),
  'value': (None, 'fsdp', 'tensor', None),
  'out': (None, 'tensor', None, 'fsdp'),
  'up': (None, 'fsdp', 'tensor'),
  'gate': (None, 'fsdp', 'tensor'),
  'down': (None, 'tensor', 'fsdp'),
  'readout': ('fsdp', 'tensor'),
}


def specs(tree):
  """{names along the path: how the array is cut}, of a mesh whose axes are all there."""
  leaves = jax.tree.leaves_with_path(of_state(tree, make_mesh()))
  names = lambda path: tuple(re.findall(r'\w+', jax.tree_util.keystr(path).removesuffix('.value')))
  return {names(path): tuple(sharding.spec) for path, sharding in leaves}


def encoder_decoder():
  sizes = {'num_layers': 2, 'width': 16, 'num_heads': 2, 'tied': False, 'gated': True}
  return EncoderDecoder(11, 11, posjax.get('t5'), **sizes, rngs=nnx.Rngs(0))


def complex_decoder():
  return Transformer(11, posjax.get('complex_order'), tied=False, **SIZES)


def complex_classifier():
  sizes = {'hidden_width': 8, 'pre_norm': True, 'activation': 'relu', 'encoder': 'transformer'}
  return Classifier(11, 3, posjax.get('complex_order'), **sizes, **SIZES)


@pytest.mark.parametrize(
  ('make', 'kinds'),
  [
    (encoder_decoder, set(KERNELS)),
    (complex_decoder, set(KERNELS) - {'gate'}),
    (complex_classifier, set(KERNELS) - {'gate'}),
  ],
)
def test_every_kernel_and_the_table_are_cut_as_their_kind_and_nothing_else_is(make, kinds):
  found = set()
  for path, spec in specs(nnx.state(make(), nnx.Param)).items():
    kind = next((name for name in KERNELS if name in path), None)
    if path[-1] in ('kernel', 'embedding'):
      assert kind is not None, path
      assert spec == KERNELS[kind], path
      found.add(kind)
    elif path[-1] in ('bias', 'values') and not any('norm' in name for name in path):
      assert set(spec) & {'fsdp', 'tensor'}, path
  assert found == kinds


HELD = {  # of a chain on 2 x 2 devices: the whole shape, and that of a device
  "shared'][0]['held']['2']['table": ((32, 2), (32, 1)),
  "shared'][0]['held']['3']['u": ((2, 8), (1, 8)),
  "shared'][0]['held']['3']['v": ((2, 8), (1, 8)),
  "scheme_params']['1']['slopes": ((2, 2), (2, 1)),
  "scheme_params']['3']['w_r": ((2, 16, 2, 8), (2, 8, 1, 8)),
  "shared'][0]['held']['4']['table": ((512, 16), (512, 8)),
  "table']['embedding": ((12, 16), (6, 8)),
  "key']['kernel": ((2, 16, 2, 8), (2, 8, 1, 8)),
  "query']['kernel": ((2, 16, 2, 8), (2, 8, 1, 8)),
  "value']['kernel": ((2, 16, 2, 8), (2, 8, 1, 8)),
  "out']['kernel": ((2, 2, 8, 16), (2, 1, 8, 8)),
  "up']['kernel": ((2, 16, 64), (2, 8, 32)),
  "up']['bias": ((2, 64), (2, 32)),
  "down']['kernel": ((2, 64, 16), (2, 32, 8)),
  "down']['bias": ((2, 16), (2, 8)),
}


def test_devices_hold_the_shares_of_every_parameter_that_its_names_say():
  """The parameters of the schemes are cut as the weights are; norms alone are whole."""
  scheme = posjax.get('rope+alibi+t5+transformer_xl+learned')
  make = lambda: Transformer(12, scheme, **{**SIZES, 'rngs': nnx.Rngs(0)})
  state = jax.eval_shape(lambda: nnx.state(make()))
  whole = jax.tree.leaves_with_path(state)
  cut = jax.tree.leaves(of_state(state, make_mesh(fsdp=2, tensor=2)))
  found = {}
  for (path, leaf), sharding in zip(whole, cut, strict=True):
    name = jax.tree_util.keystr(path)
    if 'norm' in name:
      assert tuple(sharding.spec) == ()
      continue
    [kind] = [kind for kind in HELD if name.endswith(f"{kind}'].value")]
    found[kind] = (leaf.shape, sharding.shard_shape(leaf.shape))
  assert found == HELD


def test_what_is_remembered_is_cut_along_the_rows():
  model = RecurrentTransformer(11, posjax.get('transformer_xl'), **SIZES)
  found = specs(jax.eval_shape(lambda: model.init_past(2, 3)))
  assert sorted(found.values(), key=len) == [(ROWS, None), (ROWS, None), (None, ROWS, None, None)]


@pytest.mark.parametrize('line', ['t5', 'transformer_xl', 'deberta', 'complex_order(phases=True)'])
def test_what_layers_share_has_no_name_of_a_table_of_tokens(line):
  model = Transformer(11, posjax.get(line), **SIZES)
  shared = {
    path: spec for path, spec in specs(nnx.state(model, nnx.Param)).items() if 'shared' in path
  }
  assert shared
  for path in shared:
    assert not any('embedding' in name or 'kernel' in name for name in path)  # no weight decay


def test_names_that_a_layer_gives_to_its_axes_are_read_and_wrong_ones_are_refused():
  with nnx.use_eager_sharding(False):
    names = {'sharding': ('tensor', 'fsdp', None), 'rngs': nnx.Rngs(0)}
    layer = Attention(16, 2, posjax.get('t5+alibi'), **names)
    other = Attention(16, 2, sharding=('embed', None, None), rngs=nnx.Rngs(0))
  found = specs({'attention': nnx.state(layer, nnx.Param)})
  cut = {path[-2:]: spec for path, spec in found.items()}
  assert cut['query', 'kernel'] == ('tensor', 'fsdp', None)
  assert cut['out', 'kernel'] == ('fsdp', None, 'tensor')
  assert cut['0', 'table'] == (None, 'fsdp')
  with pytest.raises(
    ValueError, match=r"kernel'.* must name axes of the mesh, .*'data'.*, but got 'embed'"
  ):
    of_state(nnx.state(other), make_mesh())
  longer = {'bias': nnx.Param(jnp.zeros(2), **axes.named('fsdp', None))}
  with pytest.raises(ValueError, match=r"'bias'.* a dimension for each of its axes .* got \(2,\)"):
    of_state(longer, make_mesh())


@pytest.mark.usefixtures('eight_devices')
def test_what_is_traced_sees_a_mesh_of_several_devices():
  """So that attention takes no kernel that XLA would have to cut."""

  def axes(**sizes):
    found, mesh = [], make_mesh(**sizes)

    @jax.jit
    def traced(x):
      with seen(mesh):
        found.extend(sharded_axes())
      return x

    traced(1.0)
    return found

  assert axes(data=2, tensor=2) == ['data', 'tensor']
  assert axes() == []


@pytest.mark.usefixtures('eight_devices')
def test_rows_and_tokens_of_a_batch_are_cut_and_stay_what_they_are():
  batch = {'inputs': np.arange(48).reshape(4, 12), 'labels': np.arange(4), 'odd': np.ones((4, 3))}
  put = put_batch(batch, make_mesh(data=2, fsdp=2, context=2))
  for name, value in batch.items():
    np.testing.assert_array_equal(put[name], value)
  shapes = {name: array.sharding.shard_shape(array.shape) for name, array in put.items()}
  assert shapes == {'inputs': (1, 6), 'labels': (1,), 'odd': (1, 3)}


def test_a_mesh_that_does_not_fit_is_refused_in_a_sentence():
  with pytest.raises(ValueError, match=r"mesh\.context must be 1 unless .*'ring'.* 2 with 'dense'"):
    check_context(make_mesh(context=2), 'dense')
  check_context(make_mesh(context=2), 'ring')
  mesh = jax.make_mesh((2,), ('data',))  # with explicit axes, as JAX makes them
  with pytest.raises(ValueError, match=r'axis_types=\(AxisType.Auto, ..\) of jax.make_mesh'):
    seen(mesh)
