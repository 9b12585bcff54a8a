"""The NNX layer in both of NNX's modes, under every transformation: the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import posjax
from posjax.nnx import Attention
from tests.support.loops import error
from tests.support.toy_schemes import TOYS

BATCH, LENGTH, WIDTH = 4, 6, 16
TOLERANCE = 1e-5
POS = jnp.arange(LENGTH)
CHAINED = posjax.chain(TOYS['forgetful'], posjax.get('alibi'), TOYS['shared_table'])


def layer(**kwargs):
  kwargs = {'num_kv_heads': 2, 'causal': True, 'rngs': nnx.Rngs(0)} | kwargs
  return Attention(WIDTH, 4, CHAINED, **kwargs)


@pytest.fixture
def x():
  return jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))


@pytest.fixture(params=['graph', 'tree'])
def mode(request):
  """Runs the test in each of NNX's modes, and restores the one there was."""
  with (
    nnx.set_graph_mode(request.param == 'graph'),
    nnx.set_graph_updates(request.param == 'graph'),
  ):
    yield request.param


def test_training_moves_parameters_and_leaves_constants(mode, x):
  one = layer(sinks=True)
  before = nnx.to_pure_dict(nnx.state(nnx.clone(one)))
  graph, params, rest = nnx.split(one, nnx.Param, ...)

  def loss(params):
    return jnp.square(nnx.merge(graph, params, rest)(x, POS) - x).mean()

  optimizer = nnx.Optimizer(one, optax.adamw(0.1, weight_decay=0.5), wrt=nnx.Param)
  optimizer.update(one, jax.jit(jax.grad(loss))(params))
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, nnx.to_pure_dict(nnx.state(one)))
  assert not moved['scheme_params'].pop('1')['slopes']
  assert all(jax.tree.leaves(moved))


def test_every_transformation_gives_the_same(mode, x):
  one = layer()
  graph, state = nnx.split(one)
  call = lambda state, x: nnx.merge(graph, state)(x, POS)
  expected = jax.jit(call)(state, x)
  assert error(jax.jit(lambda one, x: one(x, POS))(one, x), expected) < TOLERANCE
  assert error(nnx.jit(lambda one, x: one(x, POS))(one, x), expected) < TOLERANCE
  halves = x.reshape(2, BATCH // 2, LENGTH, WIDTH)
  found = jax.jit(jax.vmap(call, in_axes=(None, 0)))(state, halves)
  assert error(found.reshape(x.shape), expected) < TOLERANCE


def test_rematerialized_gradients_are_the_gradients(mode, x):
  graph, params, rest = nnx.split(layer(), nnx.Param, ...)

  def loss(params, x):
    return jnp.square(nnx.merge(graph, params, rest)(x, POS)).sum()

  expected = jax.jit(jax.grad(loss))(params, x)
  found = jax.jit(jax.grad(jax.checkpoint(loss)))(params, x)
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert error(a, b) < TOLERANCE


def test_stacked_layers_are_scanned_and_their_weights_are_stacked(mode, x):
  make = lambda rngs: layer(rngs=rngs)
  stack = nnx.split_rngs(splits=3)(nnx.vmap(make, in_axes=(0,), out_axes=0))(nnx.Rngs(5))
  graph, state = nnx.split(stack)

  def one(x, state):
    y, weights = nnx.merge(graph, state)(x, POS, return_weights=True)
    return x + y, weights

  @jax.jit
  def both(x, state):
    found, each = jax.lax.scan(one, x, state), []
    for i in range(3):
      x, weights = one(x, jax.tree.map(lambda leaf, i=i: leaf[i], state))
      each.append(weights)
    return found, (x, jnp.stack(each))

  found, expected = both(x, state)
  assert found[1].shape == (3, BATCH, 4, LENGTH, LENGTH)
  for one_of_two, other in zip(found, expected, strict=True):
    assert error(one_of_two, other) < TOLERANCE


@pytest.mark.slow
def test_nnx_scan_stacks_the_weights_too(x):
  stack = nnx.split_rngs(splits=2)(nnx.vmap(lambda rngs: layer(rngs=rngs)))(nnx.Rngs(5))

  @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
  def forward(x, one):
    y, weights = one(x, POS, return_weights=True)
    return x + y, weights

  _, weights = forward(x, stack)
  assert weights.shape == (2, BATCH, 4, LENGTH, LENGTH)
  first = nnx.merge(nnx.graphdef(stack), jax.tree.map(lambda leaf: leaf[0], nnx.state(stack)))
  assert error(weights[0], first(x, POS, return_weights=True)[1]) < TOLERANCE


def test_layers_and_their_caches_are_scanned_together(mode, x):
  make = lambda rngs: layer(rngs=rngs)
  stack = nnx.split_rngs(splits=2)(nnx.vmap(make, in_axes=(0,), out_axes=0))(nnx.Rngs(5))
  graph, state = nnx.split(stack)
  empty = layer().init_cache(BATCH, LENGTH)
  caches = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), empty)

  def decode(x, both):
    y, cache = nnx.merge(graph, both[0]).extend(x, both[1], POS)
    return x + y, cache

  one = lambda x, state: (x + nnx.merge(graph, state)(x, POS), None)

  @jax.jit
  def both(x, caches):
    return jax.lax.scan(decode, x, (state, caches)), jax.lax.scan(one, x, state)[0]

  (found, caches), expected = both(x, caches)
  assert error(found, expected) < TOLERANCE
  np.testing.assert_array_equal(caches.length, [LENGTH, LENGTH])


def test_a_checkpoint_restores_parameters_and_constants(mode, x, tmp_path):
  one = layer()
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / 'state', nnx.to_pure_dict(nnx.state(one)))
    checkpointer.wait_until_finished()
    other = layer(rngs=nnx.Rngs(1))
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.to_pure_dict(nnx.state(other)))
    restored = checkpointer.restore(tmp_path / 'state', abstract)
  state = nnx.state(other)
  nnx.replace_by_pure_dict(state, restored)
  nnx.update(other, state)
  outputs = [jax.jit(lambda x, layer=layer: layer(x, POS))(x) for layer in (other, one)]
  assert error(*outputs) == 0
