"""The engine in tiles: what options, shapes and lengths ask of it, whatever the scheme.

That it gives what the reference gives for every scheme is a line of the contract.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention.blockwise import engine as blockwise
from posjax.attention.blockwise import groups
from tests.support.draws import DRAW
from tests.support.loops import error

HEADS, KV_HEADS, WIDTH = 4, 2, 8


by_hand = functools.partial(pytest.param, marks=pytest.mark.slow)


def sizes(tall, wide):
  """In place of `blockwise.tile_size`."""

  def tile_size(queries, keys, rows, whole, grouped):
    return min(tall, queries), keys if whole else min(wide, keys)

  return tile_size


@pytest.fixture(autouse=True)
def small_tiles_of_one_head(monkeypatch):
  monkeypatch.setattr(blockwise, 'tile_size', sizes(4, 8))
  monkeypatch.setattr(groups, 'most_pairs', lambda: 1)


class Case:
  """Random heads, values and cotangents; the queries are the last of the keys' tokens."""

  def __init__(self, line='none', queries=21, keys=29, batch=(2,), dtype=jnp.float32):
    self.scheme = posjax.get(line)
    dims = posjax.Dims(16, HEADS, WIDTH, KV_HEADS)
    self.params = posjax.init(self.scheme, jax.random.key(0), dims)
    normal = lambda *shape: jnp.asarray(DRAW.normal(size=(*batch, *shape)), dtype)
    self.q = normal(queries, HEADS, WIDTH)
    self.k, self.v = normal(keys, KV_HEADS, WIDTH), normal(keys, KV_HEADS, WIDTH)
    self.cotangent = normal(queries, HEADS, WIDTH).astype(jnp.float32)
    self.pos = jnp.arange(keys)
    self.compiled = {}

  def out(self, implementation, q, k, v, params, **options):
    side = {'q_pos': self.pos[-self.q.shape[-3] :], 'k_pos': self.pos, **options}
    options = {'implementation': implementation, 'model_places': True}
    return posjax.attend(q, k, v, self.scheme, params, **options, **side)

  def answer(self, implementation, **options):
    """The output, and the gradients of q, k, v, parameters, sinks and a bias."""
    added = {name: options.pop(name, None) for name in ('sinks', 'bias')}
    arrays = {name: x for name, x in options.items() if isinstance(x, jax.Array)}
    rest = {name: x for name, x in options.items() if name not in arrays}

    def number(args, arrays):
      *args, added = args
      out = self.out(implementation, *args, **added, **arrays, **rest).astype(jnp.float32)
      return (out * self.cotangent).sum(), out

    asked = implementation, *sorted(rest.items())  # compiled once for all arrays of equal shapes
    if asked not in self.compiled:
      self.compiled[asked] = jax.jit(jax.grad(number, has_aux=True))
    args = (self.q, self.k, self.v, self.params, added)
    grads, out = self.compiled[asked](args, arrays)
    return [out, *jax.tree.leaves(grads)]


def same(case, tolerance=1e-5, **options):
  """Each array to its own largest number; or, where it is small, to a tenth of that of all."""
  found, expected = (case.answer(way, **options) for way in ('blockwise', 'dense'))
  most = max(float(abs(x).max()) for x in expected)
  for one, other in zip(found, expected, strict=True):
    assert abs(one - other).max() <= tolerance * max(float(abs(other).max()), most / 10)


# The contract has more of them in every run, at sizes of two tiles.
LINES = [by_hand('none'), by_hand('rope+alibi(learned=True)'), by_hand('t5')]
LINES += [by_hand('shaw(max_distance=4)')]
# The cheaper form of the first member would miss how the second one scales the queries.
LINES += ['transformer_xl+t5', 'transformer_xl+unscaled']


@pytest.mark.parametrize('line', LINES)
@pytest.mark.parametrize('causal', [False, True])
def test_it_is_the_reference_with_and_without_a_causal_mask(line, causal):
  same(Case(line), causal=causal)


@pytest.mark.parametrize(
  ('queries', 'keys'), [(1, 1), (1, 40), (9, 33), (3, 5), by_hand(7, 7), by_hand(8, 16)]
)
def test_any_number_of_queries_and_keys_will_do(queries, keys):
  same(Case('alibi(learned=True)', queries, keys), causal=True)


@pytest.mark.parametrize('window', [1, 5, by_hand(100)])
@pytest.mark.parametrize('causal', [False, True])
def test_windows_are_the_references(window, causal):
  same(Case('t5(bidirectional=True)'), window=window, causal=causal)


def test_caps_and_sinks_with_their_gradients_are_the_references():
  same(Case('alibi'), causal=True, sinks=jnp.array([1.0, -2.0, 0.0, 9.0]), logit_cap=2.0)


@pytest.mark.parametrize('shape', [(21, 29), (2, 1, 21, 29), (2, 4, 21, 29), (1, 4, 21, 29)])
def test_masks_are_the_references(shape):
  same(Case('alibi(learned=True)'), mask=jnp.asarray(DRAW.random(shape) > 0.6))


def documents(*lengths):
  segments = jnp.repeat(jnp.arange(1, 1 + len(lengths)), jnp.array(lengths))
  return {'q_segments': segments[-21:], 'k_segments': segments}


@pytest.mark.slow
@pytest.mark.parametrize('pair', [(0, 6), (None, 2), (5, None), (100, 100)])
def test_windows_of_two_ends_over_packed_documents_are_the_references(pair):
  same(Case('t5(bidirectional=True)'), window=pair, **documents(12, 17))


PACKED = {'window': (3, 1), **documents(12, 17)}
# What rows and heads have of their own is in groups_test; by hand, what else a tile may compute.
BIASED = [
  ('shaw(max_distance=4)', (1, 4, 1, 29), {'logit_cap': 2.0, **PACKED}),
  by_hand('t5(bidirectional=True)', (2, 1, 21, 29), PACKED),
  by_hand('rope', (21, 29), {'causal': True}),
  by_hand('none', (2, 4, 21, 1), {'logit_cap': 2.0}),
  by_hand('cope', (4, 21, 29), {'causal': True}),
  by_hand('transformer_xl', (2, 4, 21, 29), {}),
  by_hand('alibi(learned=True)', (1, 1, 21, 29), {'causal': True}),
]


@pytest.mark.parametrize(('line', 'shape', 'options'), BIASED)
def test_a_bias_of_the_call_and_its_gradient_are_the_references(line, shape, options):
  bias = jnp.asarray(DRAW.normal(size=shape), jnp.float32)
  case, options = Case(line), {'sinks': jnp.array([1.0, -2.0, 0.0, 9.0]), **options}
  same(case, bias=bias, **options)
  hidden = jnp.asarray(DRAW.random(shape) > 0.6).at[..., 3:5, :].set(True)
  same(case, bias=jnp.where(hidden, -jnp.inf, bias), **options)


def test_rows_that_see_nothing_give_zeros_and_zero_gradients():
  case = Case('alibi(learned=True)')
  mask = jnp.ones((21, 29), bool).at[3].set(False)
  out, d_q, *_ = case.answer('blockwise', mask=mask)
  np.testing.assert_array_equal(out[:, 3], 0)
  np.testing.assert_array_equal(d_q[:, 3], 0)
  same(case, mask=mask)


def test_segments_and_padding_are_the_references():
  segments = jnp.asarray(np.repeat([[0, 1, 2], [1, 2, 0]], [9, 11, 9], axis=1))
  same(
    Case('shaw(max_distance=4)'),
    causal=True,
    q_segments=segments[:, -21:],
    k_segments=segments,
  )


def test_dropout_is_the_references_whatever_the_tiles():
  same(Case('t5'), causal=True, dropout_rate=0.3, dropout_key=jax.random.key(5))


@pytest.mark.parametrize('line', ['alibi(learned=True)', 'rope', 'transformer_xl+t5'])
def test_ids_that_do_not_count_up_are_the_references(line):
  case = Case(line)
  shuffled = jnp.asarray(DRAW.permutation(29))
  for rows in (jnp.stack([shuffled, shuffled]), jnp.stack([case.pos, shuffled])):
    same(case, causal=True, q_pos=rows[:, -21:], k_pos=rows)


@pytest.mark.parametrize('line', ['t5', 'transformer_xl'])
def test_rows_that_begin_elsewhere_are_the_references(line):
  case = Case(line)
  rows = jnp.stack([case.pos, case.pos + 1000])
  same(case, causal=True, q_pos=rows[:, -21:], k_pos=rows)
  same(case, causal=True, q_pos=rows[:, -21:], k_pos=rows - jnp.array([[0], [7]]))


@pytest.mark.slow
@pytest.mark.parametrize(('tall', 'wide'), [(2, 8), by_hand(64, 8), by_hand(8, 8), by_hand(8, 64)])
def test_any_tiles_will_do(tall, wide, monkeypatch):
  monkeypatch.setattr(blockwise, 'tile_size', sizes(tall, wide))
  same(Case('transformer_xl+t5'), window=9)


def test_fractions_and_their_gradients_are_the_references():
  case = Case('rope+alibi')

  def slope(implementation):
    def number(pos):
      order = {'q_order': case.pos[-21:], 'k_order': case.pos}
      side = {'q_pos': pos[-21:], 'k_pos': pos, 'causal': True, **order}
      out = case.out(implementation, case.q, case.k, case.v, case.params, **side)
      return (out * case.cotangent).sum()

    return jax.jit(jax.grad(number))(1.5 * case.pos)

  assert error(slope('blockwise'), slope('dense')) <= 1e-5


@pytest.mark.slow
def test_several_leading_axes_and_none_are_the_references():
  same(Case('alibi(learned=True)', batch=(2, 3)), causal=True)
  same(Case('alibi(learned=True)', batch=()), causal=True)


@pytest.mark.slow
def test_bfloat16_is_summed_in_float32():
  case = Case('alibi', 60, 60, dtype=jnp.bfloat16)
  same(case, tolerance=1e-2, causal=True)


@pytest.mark.parametrize('line', ['complex_vanilla', 'transformer_xl+complex_vanilla'])
def test_complex_heads_are_the_references_and_so_are_their_gradients(line):
  scheme = posjax.get(line)
  params = posjax.init(scheme, jax.random.key(0), posjax.Dims(16, 2, WIDTH, vocab=3))
  draw = np.random.default_rng(0).normal(size=(4, 2, 29, 2, WIDTH)).astype(np.float32)
  q, k, v = (jnp.asarray(draw[i] + 1j * draw[i + 1]) for i in range(3))
  pos = jnp.arange(29)

  def number(args, how):
    params, q, k, v = args
    side = {'q_pos': pos[-21:], 'k_pos': pos, 'causal': True, 'implementation': how}
    out = posjax.attend(q, k, v, scheme, params, model_places=True, **side)
    return (out.real * draw[3, :, -21:]).sum() + (out.imag * draw[0, :, -21:]).sum()

  args = params, q[:, -21:], k, v
  found, expected = (
    jax.jit(jax.value_and_grad(number), static_argnums=1)(args, how)
    for how in ('blockwise', 'dense')
  )
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert error(one, other) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('line', ['t5', 'transformer_xl'])
def test_mapped_and_recomputed_it_is_the_same(line):
  case = Case(line)
  whole = case.out('blockwise', case.q, case.k, case.v, case.params, causal=True)
  row = lambda q, k, v: case.out('blockwise', q, k, v, case.params, causal=True)
  assert error(jax.vmap(row)(case.q, case.k, case.v), whole) <= 1e-6
  number = lambda f: lambda q: (f(q, case.k, case.v) * case.cotangent).sum()
  plain, again = (jax.grad(number(f))(case.q) for f in (row, jax.checkpoint(row)))
  assert error(again, plain) <= 1e-6


@pytest.mark.parametrize('line', ['alibi(learned=True)', 'shaw', 't5', 'rope', 'transformer_xl'])
def test_no_array_is_as_large_as_all_pairs(line):
  case = Case(line, 64, 64, batch=(1,))

  def number(args):
    return (case.out('blockwise', *args, causal=True) * case.cotangent).sum()

  traced = jax.make_jaxpr(jax.grad(number))((case.q, case.k, case.v, case.params))
  assert largest(traced.jaxpr) < 64 * 64 * HEADS


def test_no_array_is_larger_than_the_bias_of_the_call():
  case = Case('rope', 64, 64, batch=(2,))
  bias = jnp.zeros((1, 1, 64, 64))

  def number(args, bias):
    return (case.out('blockwise', *args, bias=bias, causal=True) * case.cotangent).sum()

  args = case.q, case.k, case.v, case.params
  traced = jax.make_jaxpr(jax.grad(number, (0, 1)))(args, bias)
  assert largest(traced.jaxpr) < 2 * bias.size


def largest(jaxpr):
  """Numbers of the largest array that a program makes, inner programs included."""
  sizes = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars]
  inner = [p for equation in jaxpr.eqns for p in jax.tree.leaves(list(equation.params.values()))]
  programs = [getattr(p, 'jaxpr', p) for p in inner]
  return max(sizes + [largest(p) for p in programs if hasattr(p, 'eqns')], default=0)


def test_memory_grows_with_the_length_not_its_square(monkeypatch):
  monkeypatch.setattr(blockwise, 'tile_size', sizes(128, 128))

  def held(length):
    case = Case('alibi(learned=True)', length, length, batch=(1,))
    number = lambda args: (case.out('blockwise', *args, causal=True) * case.cotangent).sum()
    args = (case.q, case.k, case.v, case.params)
    compiled = jax.jit(jax.grad(number)).lower(args).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  assert held(2048) <= 2.2 * held(1024)


def test_tiles_that_cannot_meet_are_not_computed():
  """A tile of the future would meet a NaN."""
  case = Case('none', 24, 24)

  def poisoned(params, logits, q, k, q_at, k_at):
    return jnp.where((k_at > q_at.max() + 8).any(), jnp.nan, 1.0) * logits

  scheme = posjax.Scheme(logits=poisoned)
  pos = jnp.arange(24)
  out = posjax.attend(
    case.q, case.k, case.v, scheme, {}, q_pos=pos, k_pos=pos, causal=True,
    implementation='blockwise',
  )  # fmt: skip
  assert jnp.isfinite(out).all()


def test_an_unknown_way_is_refused():
  case = Case(queries=3, keys=3)
  with pytest.raises(
    ValueError, match=r"'blockwise', 'cudnn', 'dense', 'mosaic', 'pallas', 'ring'], but got 'fast'"
  ):
    case.out('fast', case.q, case.k, case.v, {})
