"""cuDNN's way: what it refuses, what it asks of the ids, and that jax.nn is asked the right thing.

cuDNN itself runs on a GPU only; here jax.nn's own XLA implementation stands for it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.attention import cudnn
from posjax.attention.devices import KNOWN
from posjax.models.transformer import Transformer
from tests.support.draws import DRAW
from tests.support.loops import error
from tests.support.programs import equations

HEADS, WIDTH, LENGTH = 4, 16, 11


@pytest.fixture
def pretended(monkeypatch):
  """A machine that has cuDNN, in float32, and counts how often it is called."""
  calls = []

  def by_index(q, k, v, rules, implementation, lengths=(None, None)):
    whole = lengths[0] is None
    jax.debug.callback(lambda: calls.append(implementation if whole else 'lengths'))
    out = original(q, k, v, rules, 'xla', lengths)
    if whole:
      return out
    index = jnp.arange(q.shape[1])[None, :, None, None]
    # What is behind the end of a row is anything.
    return jnp.where(index < lengths[0][:, None, None, None], out, jnp.nan)

  original = cudnn.by_index
  monkeypatch.setattr(cudnn, 'by_index', by_index)
  monkeypatch.setattr(cudnn, '_HALVES', {jnp.dtype(jnp.float32)})
  monkeypatch.setattr(cudnn, 'here', lambda: KNOWN['hopper'])
  return calls


def both(line='rope', known=True, **options):
  """The way through cuDNN, and the dense reference, with gradients of q, k and v.

  Where segments are not `known`, they are arguments of the compiled program.
  """
  scheme = posjax.get(line)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(64, HEADS, WIDTH, 2))
  normal = lambda heads: jnp.asarray(DRAW.normal(size=(2, LENGTH, heads, WIDTH)), jnp.float32)
  q, k, v, weights = normal(HEADS), normal(2), normal(2), normal(HEADS)
  options = {'q_pos': jnp.arange(LENGTH) + 5, 'k_pos': jnp.arange(LENGTH) + 5, **options}

  traced = {} if known else {name: options.pop(name) for name in ('q_segments', 'k_segments')}

  def number(implementation, q, k, v, traced):
    given = {'implementation': implementation, **options, **traced}
    out = posjax.attend(q, k, v, scheme, params, **given)
    return (out * weights).sum(), out

  grad = jax.value_and_grad(number, argnums=(1, 2, 3), has_aux=True)
  grad = jax.jit(grad, static_argnums=0)
  found = [jax.tree.leaves(grad(way, q, k, v, traced)) for way in ('cudnn', 'dense')]
  jax.effects_barrier()
  return found


@pytest.mark.parametrize('options', [
  {}, {'causal': True}, {'causal': True, 'window': 4}, {'window': (3, 0)}, {'window': (None, 0)},
  {'scale': 0.7}, {'line': 'transformer_xl'},
], ids=str)  # fmt: skip
def test_it_is_asked_for_the_same_attention(pretended, options):
  for one, other in zip(*both(**options), strict=True):
    assert error(one, other) <= 1e-5
  assert set(pretended) == {'cudnn'}


ROWS = jnp.array([[3] * 7 + [0] * 4, [1] * LENGTH])
PADDED = {
  'both sides': {'q_segments': ROWS, 'k_segments': ROWS},
  'causal': {'q_segments': ROWS, 'k_segments': ROWS, 'causal': True},
  'a window': {'q_segments': ROWS, 'k_segments': ROWS, 'window': (3, 0)},
  'keys alone': {'q_segments': jnp.array([[3] * LENGTH, [1] * LENGTH]), 'k_segments': ROWS},
  'one row for all': {'q_segments': ROWS[:1], 'k_segments': ROWS[:1]},
}


@pytest.mark.parametrize('known', [True, False])
@pytest.mark.parametrize('options', PADDED.values(), ids=PADDED)
def test_rows_that_are_padded_behind_are_given_by_their_lengths(pretended, options, known):
  """Also where the segments are known only when the program runs."""
  for one, other in zip(*both(known=known, **options), strict=True):
    assert error(one, other) <= 1e-5
  assert set(pretended) == {'lengths'}


SEGMENTS = jnp.asarray(np.repeat([1, 2], [5, 6]))
SHUFFLED = jnp.asarray(np.random.default_rng(3).permutation(LENGTH))
REFUSED = {
  'other ids': {'causal': True, 'q_pos': SHUFFLED, 'k_pos': SHUFFLED},
  'queries that are not the keys': {'causal': True, 'q_pos': jnp.arange(LENGTH) + 9},
  'documents': {'q_segments': SEGMENTS, 'k_segments': SEGMENTS},
  'a row of padding': {'q_segments': SEGMENTS * 0, 'k_segments': SEGMENTS * 0},
  'padding before': {'q_segments': ROWS[:, ::-1], 'k_segments': ROWS[:, ::-1]},
  'padding within': {'q_segments': ROWS[1:], 'k_segments': jnp.arange(LENGTH) % 2},
  'an order that falls behind': {'causal': True, 'q_order': -SHUFFLED, 'k_order': -SHUFFLED},
  'a cap': {'logit_cap': 3.0},
  'a mask': {'mask': jnp.tri(LENGTH, dtype=bool)},
  'sinks': {'sinks': jnp.ones(HEADS)},
  'a bias of the call': {'bias': jnp.tri(LENGTH)},
  'a window ahead': {'window': 3},
  'no end on the left': {'window': (None, 2)},
  'a bias': {'line': 't5'},
  'values': {'line': 'shaw'},
}


@pytest.mark.parametrize('options', REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_do_is_done_in_tiles(pretended, options):
  most = 1e-5 if jax.devices()[0].platform == 'cpu' else 3e-5  # a GPU sums in another order
  for one, other in zip(*both(**options), strict=True):
    assert error(one, other) <= most
  assert not pretended


def test_heads_whose_products_cudnn_would_take_for_hidden_pairs_give_nan(pretended):
  pos, x = jnp.arange(3), jnp.ones((1, 3, 1, 8))
  ids = {'q_pos': pos, 'k_pos': pos, 'causal': True, 'implementation': 'cudnn'}
  run = lambda size: posjax.attend(size * x, x, x, 'rope', {}, **ids)
  np.testing.assert_allclose(run(1e14), 1)
  assert jnp.isnan(run(1e16)).all()


def names(program):
  """The primitives of a program, in order."""
  return [equation.primitive.name for equation in equations(program)]


def test_a_decoder_of_one_document_has_no_second_way_in_its_program(pretended):
  """Its ids are data, but the order of its tokens is known while JAX traces it."""
  sizes = {'num_layers': 1, 'width': 16, 'num_heads': 2, 'implementation': 'cudnn'}
  model = Transformer(7, [posjax.get('rope')], **sizes, rngs=nnx.Rngs(0))
  tokens = jnp.ones((2, LENGTH), jnp.int32)
  program = jax.make_jaxpr(lambda *args: model(*args))(tokens, jnp.arange(LENGTH)).jaxpr
  assert names(program).count('debug_callback') == 1  # of `pretended`
  choices = [each for each in equations(program) if each.primitive.name == 'cond']
  branches = [names(branch.jaxpr) for each in choices for branch in each.params['branches']]
  assert all('dot_general' not in branch for branch in branches)


def test_heads_of_any_widths_are_filled_up(pretended):
  q, v = (jnp.asarray(DRAW.normal(size=(1, 5, 2, width)), jnp.float32) for width in (6, 10))
  pos = jnp.arange(5)
  run = lambda way: posjax.attend(
    q, q, v, 'rope', {}, q_pos=pos, k_pos=pos, causal=True, implementation=way
  )
  assert error(run('cudnn'), run('dense')) <= 1e-5


@pytest.mark.skipif(jax.default_backend() != 'gpu', reason='cuDNN needs an NVIDIA GPU')
@pytest.mark.parametrize('lengths', [(256, 256), (256, 130)])
@pytest.mark.parametrize('causal', [False, True])
def test_cudnn_is_the_reference(causal, lengths):
  """Values, and the gradients of q, k and v, also of rows with padding behind them."""
  scheme, pos = posjax.get('rope'), jnp.arange(256)
  q, k, v, weights = jax.random.normal(jax.random.key(0), (4, 2, 256, 4, 64), jnp.bfloat16)
  segments = (pos[None] < jnp.array(lengths)[:, None]).astype(jnp.int32)
  options = {'q_pos': pos, 'k_pos': pos, 'causal': causal}
  options |= {'q_segments': segments, 'k_segments': segments}

  def run(way):
    def number(q, k, v):
      out = posjax.attend(q, k, v, scheme, {}, implementation=way, **options)
      return (out * weights).astype(jnp.float32).sum(), out

    grads, out = jax.grad(number, (0, 1, 2), has_aux=True)(q, k, v)
    return [x.astype(jnp.float32) for x in (out, *grads)]

  for one, other in zip(run('cudnn'), run('dense'), strict=True):
    assert error(one, other) <= 2e-2
