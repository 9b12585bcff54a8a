"""What the benchmarks time is right, and what they say of it is what was measured."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from benchmarks import angles, attention, crf, spec, train_step
from benchmarks.peers import (
  compiled,
  jax_nn,
  posjax_attend,
  posjax_decoder,
  posjax_pairs,
  posjax_parsing,
)
from benchmarks.spec import Absent, Attention, Pairs, Parse, Step, Unable
from posjax.math.heads import product
from tests.support.loops import error

HEADS, WIDTH, LENGTH = 2, 8, 64
SIZES = {'length': LENGTH, 'heads': HEADS, 'width': WIDTH}
OURS = ['blockwise', 'dense']  # fused kernels need a device
LIBRARIES = {'torch_sdpa': 'torch', 'tokamax_attention': 'tokamax'}
STEPS = train_step.SCHEMES.split('|')
each_way = pytest.mark.parametrize('way', OURS)


def peer_file(name):
  """A file of a peer whose library may be missing."""
  pytest.importorskip(LIBRARIES.get(name, 'torch'), reason='of the extra `peers`')
  return pytest.importorskip(f'benchmarks.peers.{name}')


# What is timed, against the formulas in float64.


def turned(x, angle):
  """RoPE, pairs (k, k + D/2)."""
  one, two = np.split(x, 2, axis=-1)
  cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
  return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)


def integer_bucket(distance):
  """The greatest j of T5's far buckets with 16 8^(j/16) <= distance, in integers."""
  if distance < 16:
    return distance
  return 16 + max(j for j in range(16) if 16**16 * 8**j <= distance**16)


BUCKETS = np.array([[integer_bucket(max(t - s, 0)) for s in range(LENGTH)] for t in range(LENGTH)])


def expected(scheme, table):
  """Output and gradients, by the derivative of the softmax."""
  q, k, v, d_out = (x.astype(np.float64) for x in spec.heads(Attention(scheme, '', **SIZES)))
  distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
  angle = np.arange(LENGTH)[:, None] * 10000.0 ** (-2 * np.arange(WIDTH // 2) / WIDTH)
  turn = (lambda x, sign: turned(x, sign * angle)) if scheme == 'rope' else lambda x, sign: x
  bias = np.zeros((HEADS, 1, 1))
  if scheme == 'alibi':
    bias = -np.array([2.0**-4, 2.0**-8])[:, None, None] * distance
  if scheme == 't5':
    bias = table.astype(np.float64)[BUCKETS].transpose(2, 0, 1)
  q, k = turn(q, 1), turn(k, 1)
  logits = np.einsum('bthd,bshd->bhts', q, k) / math.sqrt(WIDTH) + bias
  weights = np.exp(np.where(distance >= 0, logits, -np.inf))
  weights /= weights.sum(-1, keepdims=True)
  d_weights = np.einsum('bthd,bshd->bhts', d_out, v)
  d_logits = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
  d_table = np.zeros((32, HEADS))
  np.add.at(d_table, BUCKETS, d_logits.sum(0).transpose(1, 2, 0))
  return {
    'out': np.einsum('bhts,bshd->bthd', weights, v),
    'q': turn(np.einsum('bhts,bshd->bthd', d_logits, k), -1) / math.sqrt(WIDTH),
    'k': turn(np.einsum('bhts,bthd->bshd', d_logits, q), -1) / math.sqrt(WIDTH),
    'v': np.einsum('bhts,bthd->bshd', weights, d_out),
    'params': {'table': d_table} if scheme == 't5' else {},
  }


def test_angles_in_bfloat16_lose_the_position_and_exact_ones_do_not():
  near, far = angles.logit_errors(0), angles.logit_errors(32_000)
  assert near['exact'] < 2e-6
  assert far['exact'] < 2e-6
  assert 1e-4 < far['float32'] < 1e-2
  assert far['bfloat16'] > 2 * near['bfloat16'] > 0.2


def check(file, scheme, way):
  one = Attention(scheme, way, **SIZES)
  built = file.build(one, file.inputs(one))
  built.run()
  found = built.run()  # no run adds to what another left
  ours = not file.__name__.endswith('torch_sdpa')
  table = compiled.parameters(one)[1].get('table') if ours else spec.table(HEADS)
  want = expected(scheme, None if table is None else np.asarray(table))
  assert jax.tree.structure(found) == jax.tree.structure(want)
  for name in ('out', 'q', 'k', 'v'):
    assert error(found[name], want[name]) < 5e-6, name
  for name, value in want['params'].items():
    assert error(found['params'][name], value) < 5e-6, name


each_scheme = pytest.mark.parametrize('scheme', ['none', 'rope', 'alibi', 't5'])


@each_scheme
@each_way
def test_ours_is_the_formula(way, scheme):
  check(posjax_attend, scheme, way)


@each_scheme
def test_that_of_jax_nn_is_the_formula(scheme):
  check(jax_nn, scheme, 'xla')


@each_scheme
def test_that_of_tokamax_is_the_formula(scheme, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['pytest'])  # it reads flags from the command line
  # Compiled without optimization, as tests are, tokamax 0.0.12 with a bias has infinite gradients.
  options = {'xla_backend_optimization_level': 3}
  compile_plainly = jax.stages.Lowered.compile
  optimized = lambda lowered: compile_plainly(lowered, compiler_options=options)
  monkeypatch.setattr(jax.stages.Lowered, 'compile', optimized)
  check(peer_file('tokamax_attention'), scheme, '')


@pytest.mark.parametrize('scheme', ['none', 'alibi', 't5'])
def test_that_of_torch_is_the_formula(scheme):
  check(peer_file('torch_sdpa'), scheme, '')


@pytest.mark.parametrize(
  'scheme',
  [
    pytest.param(s, marks=() if s == 'gaussian' else pytest.mark.slow)
    for s in attention.SCHEMES.split('|')[4:]
  ],
)
def test_the_other_schemes_are_as_in_float64_and_their_own_tests_hold_the_formulas(
  scheme, monkeypatch
):
  wide = Attention(scheme, 'dense', **SIZES, dtype='float64')
  drawn = compiled.parameters(wide)  # in float64, other numbers could be drawn
  monkeypatch.setattr(compiled, 'parameters', lambda spec: drawn)
  with jax.enable_x64(True):
    want = jax.tree.map(np.asarray, posjax_attend.build(wide, posjax_attend.inputs(wide)).run())
    terms = largest_sum_of_sizes(*drawn, *spec.heads(wide), want['out'])
  assert want['out'].dtype == 'float64'
  for way in OURS:
    one = Attention(scheme, way, **SIZES)
    found = posjax_attend.build(one, posjax_attend.inputs(one)).run()
    for name in ('out', 'q', 'k', 'v'):
      assert error(found[name], want[name]) < 5e-6, name
    # Sums over all pairs, whose terms nearly cancel: what one rounding of each term can add up to.
    same = jax.tree.map(
      lambda mine, other: abs(mine - other).max(), found['params'], want['params']
    )
    assert max(jax.tree.leaves(same), default=0) < 2**-24 * terms


def largest_sum_of_sizes(scheme, params, q, k, v, d_out, out):
  """The largest gradient of a parameter if the terms of its sum did not cancel, in float64.

  The cotangent of a logit is w (d . v - d . out), in which d . out is the mean of d . v over the
  keys, and that of place 4 is d. Here they are summed with the absolute values of all products.
  """
  q, k, v, d_out = (jnp.asarray(x, 'float64') for x in (q, k, v, d_out))
  trained, fixed = posjax.split(scheme, params)
  trained = jax.tree.map(lambda leaf: leaf.astype('float64'), trained)
  pos, seen = jnp.arange(LENGTH)[None], jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))

  def logits(trained):
    params = posjax.merge(trained, fixed)
    x = product(scheme.query(params, q, pos), scheme.key(params, k, pos)) / math.sqrt(WIDTH)
    x = scheme.logits(params, x, q, k, pos, pos) if scheme.logits else x
    if scheme.bias is None:
      return x
    return x + jnp.moveaxis(scheme.bias(params, pos[:, :, None] - pos[:, None]), 0, 1)

  def values(trained):
    return scheme.values.add(posjax.merge(trained, fixed), weights, pos, pos)

  x, back = jax.vjp(logits, trained)
  weights = jax.nn.softmax(jnp.where(seen, x, -jnp.inf))
  means = (abs(d_out) * abs(out)).sum(-1).swapaxes(1, 2)[..., None]
  sums = [back(weights * (product(abs(d_out), abs(v)) + means))]
  if scheme.values.add:
    sums.append(jax.vjp(values, trained)[1](abs(d_out)))
  return max((float(abs(leaf).max()) for leaf in jax.tree.leaves(sums)), default=0)


def test_a_forward_pass_is_the_output_alone_in_the_dtype_asked_for():
  one = Attention('alibi', 'dense', **SIZES, dtype='bfloat16', backward=False)
  found = posjax_attend.build(one, posjax_attend.inputs(one)).run()
  assert found.keys() == {'out'}
  assert found['out'].dtype == 'bfloat16'
  assert error(found['out'].astype('float32'), expected('alibi', None)['out']) < 0.02


def test_the_buckets_given_to_torch_are_t5s():
  distance = np.arange(2000)
  assert spec.buckets(2000).tolist() == [integer_bucket(int(n)) for n in distance]


@pytest.mark.parametrize(
  ('scheme', 'why'),
  [('shaw', 'logits and values'), ('tener', 'widens'), ('forgetting', 'prepare')],
)
def test_jax_nn_is_not_given_what_it_cannot_do(scheme, why):
  one = Attention(scheme, 'xla', **SIZES)
  with pytest.raises(Unable, match=why):
    jax_nn.build(one, jax_nn.inputs(one))


# A training step.

SMALL = Step('rope', '', 16, layers=2, heads=2, width=16, ff_width=24, vocab=11)


def falls(file, scheme, way=''):
  """Steps on one row: the first loss is that of an untrained model, and it falls."""
  one = SMALL._replace(scheme=scheme, way=way)
  built = file.build(one, file.inputs(one))
  losses = [float(built.run()) for _ in range(9)]
  assert abs(losses[0] - math.log(11)) < 1
  assert losses[-1] < losses[0] - 0.02
  return built


@pytest.mark.parametrize(
  'scheme', [pytest.param(s, marks=() if s == 't5' else pytest.mark.slow) for s in STEPS]
)
def test_our_step_trains(scheme):
  built = falls(posjax_decoder, scheme)
  assert built.temporary > 0
  block = 4 * 16 * 16 + 2 * 16 * 24 + 24 + 16 + 4 * 16  # heads, network with biases, two norms
  shared = 11 * 16 + 2 * 16 + (32 * 2 if scheme == 't5' else 0)
  assert built.parameters == our_count(scheme) == 2 * block + shared


def our_count(scheme):
  """How many numbers our model trains."""
  model = nnx.eval_shape(lambda: posjax_decoder.model(SMALL._replace(scheme=scheme), nnx.Rngs(0)))
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.slow
def test_the_step_on_jax_nn_is_ours_without_positions():
  losses = []
  for way in ('', 'jax.nn xla'):
    one = SMALL._replace(scheme='none', way=way, batch=3, layers=1)
    built = posjax_decoder.build(one, posjax_decoder.inputs(one))
    losses.append([float(built.run()) for _ in range(3)])
  np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.slow
def test_a_step_in_bfloat16_computes_in_it_and_trains_float32():
  one = SMALL._replace(dtype='bfloat16', layers=1)
  batch = posjax_decoder.inputs(one)
  wide = posjax_decoder.build(one._replace(dtype='float32'), batch)
  narrow = posjax_decoder.build(one, batch)
  first = [float(built.run()) for built in (wide, narrow)]
  assert 0 < abs(first[1] - first[0]) < 2**-7 * first[0]
  assert narrow.parameters == wide.parameters


def test_jax_nn_computes_no_scheme_and_cudnn_no_float32():
  for scheme, way, refused in (('rope', 'jax.nn xla', Unable), ('none', 'jax.nn cudnn', Absent)):
    one = SMALL._replace(scheme=scheme, way=way)
    with pytest.raises(refused):
      posjax_decoder.build(one, posjax_decoder.inputs(one))


@pytest.mark.parametrize(
  ('scheme', 'way'),
  [('rope', ''), ('rope', 'flash'), ('alibi', ''), ('alibi', 'flash'), ('t5', '')],
)
def test_the_step_of_x_transformers_trains_as_many_parameters(scheme, way):
  pytest.importorskip('x_transformers', reason='of the extra `peers`')
  count = falls(peer_file('x_transformers_decoder'), scheme, way).parameters
  assert abs(count - our_count(scheme)) < 0.03 * count


def test_the_step_of_gpt_neox_trains_as_many_parameters():
  pytest.importorskip('transformers', reason='of the extra `peers`')
  count = falls(peer_file('gpt_neox'), 'rope').parameters
  assert abs(count - our_count('rope')) < 0.05 * count


def test_x_transformers_has_no_t5_with_flash():
  pytest.importorskip('x_transformers', reason='of the extra `peers`')
  file, one = peer_file('x_transformers_decoder'), SMALL._replace(scheme='t5', way='flash')
  with pytest.raises(Unable, match='no T5'):
    file.build(one, file.inputs(one))


def pairs_of(way, **sizes):
  return Pairs('none' if way == 'esim' else 'sinusoidal+gaussian', way, 4, batch=2, **sizes)


@pytest.mark.slow
def test_models_of_sentence_pairs_have_the_sizes_that_their_file_states():
  count = {}
  for way in posjax_pairs.SIZES:
    make = lambda way=way: posjax_pairs.model(pairs_of(way), nnx.Rngs(0))
    params = nnx.state(nnx.eval_shape(make), nnx.Param)
    count[way] = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
  lstms = 2 * 2 * 4 * (2 * 300 * 300 + 300)  # two layers, in two directions, of four gates
  assert count['esim'] == lstms + 2 * (2400 * 300 + 300) + 300 * 3 + 3
  assert abs(count['equal'] / count['esim'] - 1) < 0.01
  assert count['small'] < count['esim'] / 4


@pytest.mark.slow
@pytest.mark.parametrize('way', ['esim', 'small'])
def test_a_step_on_sentence_pairs_trains_and_inference_gives_logits(way):
  spec = pairs_of(way, vocab=20)
  batch = posjax_pairs.inputs(spec)
  built = posjax_pairs.build(spec, batch)
  losses = [float(built.run()) for _ in range(12)]
  assert losses[-1] < losses[0]
  asked = posjax_pairs.build(spec._replace(training=False), batch)
  logits = np.asarray(asked.run())
  assert logits.shape == (2, 3)
  assert np.isfinite(logits).all()
  assert asked.parameters == built.parameters


def test_two_ways_of_a_crf_are_timed_only_where_they_agree(monkeypatch):
  one = crf.case(3, 2, 'forward', 2)
  assert len(one.runs) == len(one.held) == len(crf.WAYS)
  rounds = [((1e-3, 3e-3), (4e-3, 6e-3)), ((2e-3, 4e-3), (6e-3, 8e-3)), ((3e-3, 5e-3), (8e-3, 1.0))]
  assert crf.row(one._replace(held=(2**20, 2**19)), rounds) == (
    '| 3 | 2 | forward | 2.00 | 6.00 | 3.0 | 4.00 | 8.00 | 2.0 | 1.0 | 0.5 |'
  )
  right = crf.log_partition
  wrong = lambda *given, parallel: right(*given, parallel=parallel) + 0.01 * parallel
  monkeypatch.setattr(crf, 'log_partition', wrong)
  with pytest.raises(SystemExit, match='3 tokens, 2 tags, forward: the two ways differ by'):
    crf.case(3, 2, 'forward', 2)


@pytest.mark.slow
def test_the_parts_of_a_parser_give_what_their_names_say():
  spec = Parse('concatenated', 'encoder', 5, batch=2, vocab=30, labels=4)
  shapes = {'encoder': (2, 7, 256), 'scores': (2, 5, 5, 4)}
  shapes |= {'hinge': (2, 5, 5, 4), 'nll': (2, 5, 5, 4)}
  for way, shape in shapes.items():
    one = spec._replace(way=way)
    found = np.asarray(posjax_parsing.build(one, posjax_parsing.inputs(one)).run())
    assert found.shape == shape
    assert np.isfinite(found).all()
    assert np.abs(found).max() > 0
  best = spec._replace(way='best')
  labels, values = posjax_parsing.build(best, posjax_parsing.inputs(best)).run()
  assert labels.shape == (2, 5, 5)
  assert values.shape == (2,)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:.*arg_constraints')
def test_the_chart_of_benepar_gives_what_ours_gives():
  pytest.importorskip('benepar', reason='pip install --no-deps benepar torch-struct')
  from benchmarks.peers import benepar_parsing

  spec = Parse('', 'best', 9, batch=3, labels=7)
  run = lambda peer, spec: peer.build(spec, posjax_parsing.inputs(spec)).run()
  ours, theirs = (run(peer, spec) for peer in (posjax_parsing, benepar_parsing))
  np.testing.assert_array_equal(ours[0], theirs)
  spec = spec._replace(way='hinge')
  ours, theirs = (np.asarray(run(peer, spec)) for peer in (posjax_parsing, benepar_parsing))
  assert np.abs(ours).sum() > 10
  np.testing.assert_array_equal(ours[..., 1:], theirs[..., 1:])  # label 0 is fixed in ours
  with pytest.raises(Unable, match='benepar has no nll'):
    benepar_parsing.build(spec._replace(way='nll'), {})


@pytest.mark.slow
def test_a_chart_takes_two_steps_more_for_each_word():
  steps = [posjax_parsing.steps(Parse('', 'best', length)) for length in (12, 14)]
  # The search for the nodes of a tree, in 12^2 or 14^2 cells, takes eight steps in both.
  assert steps[1] - steps[0] == 4
  assert steps[0] >= 2 * 11
