"""The contract: what every scheme must satisfy, one of each file, and some chains.

Each test is one line of the contract, and no line knows a scheme by its name; the line on decoding
is a file of its own, `decode_test.py`. A scheme whose constructor needs arguments
declares a line that makes one, `EXAMPLE = 'name(argument=1)'`. Other forms, in which arguments
change what is computed, are among the slow tests (`pytest -m slow` with this file). A line
is run for those schemes alone for which it can fail. A line about code that all schemes share is
run for a few schemes (`few_schemes`) that have every pair of traits; for the others it is slow.
Each scheme runs in one layer with random projections, with grouped heads, under a causal mask.
Parameters are moved off their initial values, since a table of zeros would satisfy everything.

Errors are max|difference| / max|reference|; 1e-5 in float32 unless a line says why not.
"""

import ast
import functools
import importlib
import importlib.util
import inspect
import itertools
import re
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import posjax
from posjax.attention import inputs as operands
from posjax.attention import masks, places
from posjax.attention.blockwise import engine as blockwise
from posjax.attention.blockwise import groups
from posjax.attention.blockwise.engine import in_tiles
from posjax.chain import chain
from posjax.linen import Attention as LinenAttention
from posjax.math.heads import product, ungroup
from posjax.nnx import Attention as NnxAttention
from posjax.scheme import Scheme, Tiled, Values, declares
from tests.support.loops import error
from tests.support.programs import equations

DIMS = posjax.Dims(width=16, num_heads=4, head_dim=8, num_kv_heads=2, vocab=11)
BATCH, LENGTH = 2, 12
TOLERANCE = 1e-5
NEAR, FAR = 7, 2**20  # shifts: within every table, and beyond


class Subject(NamedTuple):
  """What the contract is tested on."""

  scheme: Scheme
  shift_invariant: bool


def module(name):
  return importlib.import_module(f'posjax.schemes.{name}')


def subject(name):
  """A line for `posjax.get`, whose members are files of the folder."""
  files = [module(part.partition('(')[0]) for part in name.split('+')]
  return Subject(posjax.get(name), all(file.SHIFT_INVARIANT for file in files))


LINES = [getattr(module(name), 'EXAMPLE', name) for name in posjax.names()]
CHAINS = ['rope+alibi', 'sinusoidal+rope(values=True)+shaw', 'randomized(max_length=64)+t5']
FORMS = [
  *(
    'alibi(learned=True)',
    'axial_rope(interleaved_axes=True)',
    'complex_order(phases=True, conjugate=False)',
  ),
  *('complex_order(per_word=False)', 'complex_order(per_dimension=False)', "dape('t5')"),
  *('deberta(max_distance=9, buckets=4, normalized=True)', 'deberta(p2c_reversed=True)'),
  *('gaussian(per_head=True)', 'gaussian(trained=False)', 'kerple(power=True)'),
  *('cosine(learned=True)', 'cope(scaled=True)', 'rope(interleaved=True)', 'shaw(per_head=True)'),
  *('t5(bidirectional=True, shared=False)', 'tener(key_term=True, key_minus_query=True)'),
  *('transformer_xl(max_distance=3)', 'transformer_xl(shared=False)', 'xpos(fraction=0.5)'),
  *('tupe(untie_cls=True, num_buckets=8)', 'rope+transformer_xl(max_distance=3)'),
  *('rope(values=True, interleaved=True, fraction=0.5)', 'partial(values=True)'),
  *('ntk(values=True)', 'dynamic_ntk(length=8, original_length=4, values=True)'),
  *('llama3(values=True)', 'axial_rope(values=True)', 'mrope(sections=(1, 2, 1), values=True)'),
  'longrope(8, 4, (1.0, 1.0, 1.0, 1.0), (1.0, 1.5, 2.0, 3.0), values=True)',
]

by_hand = functools.partial(pytest.param, marks=pytest.mark.slow)


def every_scheme_that(applies):
  """Those schemes for which a line of the contract can fail: `applies` says whether it can."""
  often = [name for name in (*LINES, *CHAINS) if applies(subject(name).scheme)]
  seldom = [by_hand(name) for name in FORMS if applies(subject(name).scheme)]
  return pytest.mark.parametrize('name', [*often, *seldom])


every_file = pytest.mark.parametrize('name', posjax.names())
every_scheme = every_scheme_that(lambda _: True)


def is_complex(scheme):
  """Whether queries and keys are complex, as they are after complex embeddings."""
  if not declares(scheme, 'embed'):
    return False
  given = inputs(scheme)
  x = jax.eval_shape(scheme.embed, shapes(scheme), given.x, given.tokens, given.pos)
  return jnp.issubdtype(x.dtype, jnp.complexfloating)


def traits(scheme):
  """What the code that schemes share can see of one: its fields, ids, and the kind of its heads."""
  fields = {field for field in Scheme._fields if declares(scheme, field)}
  tiled, values = scheme.traits.tiled._asdict(), scheme.values._asdict()
  faster = {f'tiled.{field}' for field, form in tiled.items() if form is not None}
  faster |= {
    f'values.{field}' for field, form in values.items() if form != Values()._asdict()[field]
  }
  faster |= {'fixed'} if scheme.traits.fixed else set()
  more = {'several ids': scheme.traits.axes > 1, 'complex heads': is_complex(scheme)}
  found = fields - {'traits', 'values'} | faster | set(scheme.traits.mixes)
  return found | {trait for trait, has_it in more.items() if has_it}


@functools.cache
def few_schemes():
  """Names of schemes, as few as can easily be found, that have all pairs of traits that any has.

  The scheme that has most pairs which the chosen ones lack is chosen next.
  """
  pairs = {}
  for name in (*LINES, *CHAINS):
    found = sorted(traits(subject(name).scheme))
    pairs[name] = set(itertools.combinations_with_replacement(found, 2))
  left, chosen = set().union(*pairs.values()), []
  while left:
    chosen.append(max(pairs, key=lambda name: len(pairs[name] & left)))
    left -= pairs[chosen[-1]]
  return chosen


def few_schemes_and(more=lambda scheme: False, where=lambda scheme: True):
  """For a line about shared code: a few schemes by default, and the others by hand.

  Args:
    more: says of a scheme whether it, too, could break the line.
    where: says of a scheme whether the line holds for it at all.
  """
  names = {name: subject(name).scheme for name in (*LINES, *CHAINS, *FORMS)}
  often = {*few_schemes(), *(name for name in (*LINES, *CHAINS) if more(names[name]))}
  held = [name for name, scheme in names.items() if where(scheme)]
  return pytest.mark.parametrize(
    'name', [name if name in often else by_hand(name) for name in held]
  )


# One layer.


class Inputs(NamedTuple):
  """What a model has: embeddings, tokens, ids, the index in the stream, documents."""

  x: jax.Array
  tokens: jax.Array
  pos: jax.Array
  order: jax.Array
  segments: jax.Array


@functools.cache
def inputs(scheme, dtype=jnp.float32, shift=0):
  """Random embeddings; ids count up by 1; of several axes, by 1 in 4, each 4 tokens, and by 1."""
  draw = np.random.default_rng(0)
  order = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (BATCH, LENGTH))
  several = [order // 4, order % 4, *[order] * scheme.traits.axes][: scheme.traits.axes]
  pos = order if scheme.traits.axes < 2 else np.stack(several, axis=-1)
  return Inputs(
    jnp.asarray(draw.normal(size=(BATCH, LENGTH, DIMS.width)), dtype),
    jnp.asarray(draw.integers(0, DIMS.vocab, (BATCH, LENGTH)), jnp.int32),
    jnp.asarray(pos + shift),
    jnp.asarray(order),
    jnp.ones((BATCH, LENGTH), jnp.int32),
  )


@functools.cache
def parameters(scheme):
  """All of them; the trained ones moved up a little, off zeros and off symmetries."""
  params = jax.jit(lambda key: posjax.init(scheme, key, DIMS))(jax.random.key(1))
  trained, fixed = posjax.split(scheme, params)
  leaves, tree = jax.tree.flatten(trained)
  draw = np.random.default_rng(2).uniform
  moved = [jnp.asarray(leaf + draw(0.1, 0.5, leaf.shape), leaf.dtype) for leaf in leaves]
  return posjax.merge(jax.tree.unflatten(tree, moved), fixed)


def projections(dtype):
  draw = np.random.default_rng(3).normal
  heads = (DIMS.num_heads, DIMS.num_kv_heads, DIMS.num_kv_heads)
  shapes = [(DIMS.width, n, DIMS.head_dim) for n in heads]
  return [jnp.asarray(draw(size=s) * DIMS.width**-0.5, dtype) for s in shapes]


class Stream(NamedTuple):
  """One side of the attention: what a cache holds."""

  pos: jax.Array
  at: jax.Array
  order: jax.Array
  segments: jax.Array


def sides(scheme, params, given, key=None, last=None):
  """q, k, v, the prepared parameters and the stream of one layer."""
  pos = scheme.ids(given.pos, key)
  x = scheme.embed(params, given.x, given.tokens, pos)
  documents = {'segments': given.segments, 'order': given.order}
  ready, at = posjax.prepare(scheme, params, x, pos, last, **documents)
  weights = projections(x.real.dtype)
  q, k, v = (jnp.einsum('btm,mhd->bthd', x, w.astype(x.dtype)) for w in weights)
  return q, k, v, ready, Stream(pos, at, given.order, given.segments)


@functools.cache
def run_sides(scheme):
  """The sides of the layer with its own parameters, compiled once for each scheme."""
  return jax.jit(functools.partial(sides, scheme))(parameters(scheme), inputs(scheme))


def layer(scheme, params, given, key=None, **options):
  """Embed, prepare, project, attend: every place once. [B, T, H, D]."""
  q, k, v, ready, stream = sides(scheme, params, given, key)
  return attend(scheme, ready, q, k, v, stream, stream, **options)


def attend(scheme, ready, q, k, v, q_side, k_side, **options):
  named = {f'q_{field}': value for field, value in q_side._asdict().items()}
  named |= {f'k_{field}': value for field, value in k_side._asdict().items()}
  named |= {'causal': True, 'model_places': True}
  return posjax.attend(q, k, v, scheme, ready, **named | options)


@functools.cache
def run(scheme):
  """The layer, compiled once for each scheme."""
  return jax.jit(functools.partial(layer, scheme))


def cut(tree, start, stop):
  """Tokens start .. stop - 1 of every leaf [B, T, ...]."""
  return jax.tree.map(lambda leaf: leaf[:, start:stop], tree)


EACH = np.random.default_rng(4).normal(size=(BATCH, LENGTH, DIMS.num_heads, DIMS.head_dim))
EACH = EACH.astype(np.float32)


PAIRS = np.random.default_rng(7).normal(size=(2, BATCH, DIMS.num_heads, LENGTH, LENGTH))
PAIRS = PAIRS[0] + 1j * PAIRS[1]


def loss(scheme, params, given, weights):
  """A number that every output moves, by a weight of its own."""
  return (layer(scheme, params, given) * weights).real.sum()


@functools.cache
def gradients(scheme):
  """Of the loss, by the parameters and the inputs."""
  return jax.jit(jax.grad(functools.partial(loss, scheme), argnums=(0, 1), allow_int=True))


@functools.cache
def shapes(scheme):
  return jax.eval_shape(lambda key: posjax.init(scheme, key, DIMS), jax.random.key(1))


def has_parameters(scheme):
  return bool(jax.tree.leaves(shapes(scheme)))


def trains(scheme):
  return bool(jax.tree.leaves(posjax.split(scheme, shapes(scheme))[0]))


def has_own_logits(scheme):
  """Whether tiles compute what this scheme alone has: other schemes share all that they compute."""
  own = declares(scheme, 'logits') or scheme.values.add or scheme.traits.tiled != Tiled()
  return bool(own)


def every_place(scheme, params, given):
  """What each place of the scheme gives in the layer, before any attention, and its faster form."""
  q, k, v, ready, (pos, at, *_) = sides(scheme, params, given)
  turned = scheme.query(ready, q, at), scheme.key(ready, k, at)
  turned += scheme.values.value(ready, v, at), scheme.values.output(ready, q, at)
  logits = jnp.zeros((BATCH, DIMS.num_heads, LENGTH, LENGTH), q.dtype)
  distance = pos[:, :, None] - pos[:, None]
  found = [q, turned, scheme.bias and scheme.bias(ready, distance)]
  for form in (scheme, in_tiles(scheme, 0)):
    found.append(form.logits(ready, logits, q, k, at, at))
    add = form.values.add
    found.append(add and add(ready, logits.real, at, at))
  relative = scheme.traits.tiled.relative
  if relative and not jnp.iscomplexobj(q):
    found += [relative.content(ready, q), relative.heads(ready, q)]
    found.append(relative.vectors(ready, distance[0].reshape(-1)))
  return found


def program(scheme):
  """The program of all places, with the bytes of its constants: equal where all results are.

  Addresses of functions, which a program may print, are cut.
  """
  traced = jax.make_jaxpr(functools.partial(every_place, scheme))(shapes(scheme), inputs(scheme))
  constants = [np.asarray(constant) for constant in traced.consts]
  text = re.sub(r'0x[0-9a-f]+', '', str(traced.jaxpr))
  return text, [(c.shape, c.dtype, c.tobytes()) for c in constants]


# The file.


@every_file
def test_file_declares_whether_a_shift_of_all_ids_matters(name):
  assert isinstance(module(name).SHIFT_INVARIANT, bool)


@every_file
def test_file_names_its_reference(name):
  assert 'Reference:' in module(name).__doc__


@every_file
def test_constructor_has_an_example(name):
  tree = ast.parse(inspect.getsource(module(name)))
  (constructor,) = (n for n in tree.body if getattr(n, 'name', None) == 'scheme')
  assert '>>>' in ast.get_docstring(constructor)


@every_file
def test_file_can_be_made_from_one_line(name):
  file = module(name)
  line = getattr(file, 'EXAMPLE', name)
  assert line.partition('(')[0] == name
  required = [p for p in inspect.signature(file.scheme).parameters.values() if p.default is p.empty]
  assert bool(required) == hasattr(file, 'EXAMPLE')


# The record.


@every_scheme_that(posjax.scheme.places)
def test_every_declared_place_changes_what_it_is_given(name):
  scheme, given = subject(name).scheme, inputs(subject(name).scheme)
  params = parameters(scheme)
  if declares(scheme, 'ids'):
    moved = [scheme.ids(given.pos, key) for key in (None, jax.random.key(0))]
    assert any(error(pos, given.pos) > 1e-3 for pos in moved)

  @jax.jit
  def before_and_after(params, given):
    x = scheme.embed(params, given.x, given.tokens, given.pos)
    q, k, v, ready, (pos, at, *_) = sides(scheme, params, given)
    turned = {'query': (q, scheme.query(ready, q, at)), 'key': (k, scheme.key(ready, k, at))}
    turned |= {'values': (v, scheme.values.value(ready, v, at))}
    logits = jnp.asarray(PAIRS if jnp.iscomplexobj(q) else PAIRS.real, q.dtype)
    # One number for all keys of a query would change nothing.
    centered = lambda logits: logits - logits.mean(-1, keepdims=True)
    found = scheme.logits(ready, logits, q, k, at, at)
    more = {'logits': (centered(logits), centered(found))}
    if scheme.bias:
      more['bias'] = jnp.zeros(()), centered(scheme.bias(ready, pos[:, :, None] - pos[:, None]))
    if scheme.values.add:
      more['values'] = jnp.zeros(()), scheme.values.add(ready, abs(logits), at, at)
    return {'embed': (given.x, x), **turned, **more}

  for place, (before, after) in before_and_after(params, given).items():
    if declares(scheme, place) and before.shape in ((), after.shape):
      assert abs(after - before).max() > 1e-3 * max(abs(before).max(), 1), place


@few_schemes_and(where=posjax.scheme.places)
def test_every_declared_place_is_used(name):
  """By attention, and so felt in its answer."""
  scheme, params = subject(name).scheme, parameters(subject(name).scheme)
  given = inputs(scheme)
  full = run(scheme)(params, given)
  for place in set(posjax.places(scheme)) - {'ids'}:
    try:
      without = run(scheme._replace(**{place: getattr(Scheme(), place)}))(params, given)
    except (TypeError, ValueError):  # one side widened alone, logits left complex: it is needed
      continue
    assert error(without, full) > 1e-3, place


@every_scheme_that(has_parameters)
def test_every_trained_parameter_has_a_gradient_and_every_fixed_one_none(name):
  scheme = subject(name).scheme
  grads, _ = gradients(scheme)(parameters(scheme), inputs(scheme), EACH)
  trained, fixed = posjax.split(scheme, grads)
  for path, grad in jax.tree.leaves_with_path(trained):
    assert abs(grad).max() > 1e-4, path
  for path, grad in jax.tree.leaves_with_path(fixed):
    np.testing.assert_array_equal(grad, 0, err_msg=str(path))


@few_schemes_and(where=trains)
def test_gradients_of_trained_parameters_are_those_of_differences(name):
  """The gradients of the reference, with which those of the engine are compared below."""
  scheme, params = subject(name).scheme, parameters(subject(name).scheme)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    trained, fixed = posjax.split(scheme, wide)
    given = inputs(scheme)
    x = given.x.astype(jnp.float64)
    run = attention_with(with_gradients, scheme, 'dense')
    both = lambda trained: run(posjax.merge(trained, fixed), x, given, BACK)
    leaves, tree = jax.tree.flatten(trained)
    grads = jax.tree.leaves(posjax.split(scheme, both(trained)[0][0])[0])
    draw = np.random.default_rng(5).normal
    for i, grad in enumerate(grads):
      direction = draw(size=grad.shape)
      moved = lambda step: [*leaves[:i], leaves[i] + step * direction, *leaves[i + 1 :]]  # noqa: B023
      value = lambda step: weighted(both(jax.tree.unflatten(tree, moved(step)))[1])  # noqa: B023
      slope = lambda step: (value(step) - value(-step)) / (2 * step)  # noqa: B023
      # Near 1e-3, what a scheme keeps in float32 is wrong by 3e-4 at most; near 1e-6, no kink (of
      # a ReLU) lies between. No wrong gradient agrees with either.
      for step in (1e-3, 1e-6):
        expected = (4 * slope(step / 2) - slope(step)) / 3  # free of the error in step^2
        size = max(abs(expected), np.sqrt(np.square(grad).sum()))
        wrong = abs((grad * direction).sum() - expected) / size
        if wrong <= 2e-3:
          break
      assert wrong <= 2e-3


@few_schemes_and()
def test_chaining_with_the_identity_changes_nothing(name):
  scheme = subject(name).scheme
  given, params = inputs(scheme), parameters(scheme)
  for same in (chain(scheme, Scheme()), chain(Scheme(), scheme)):
    assert posjax.places(same) == posjax.places(scheme)
    np.testing.assert_array_equal(run(same)(params, given), run(scheme)(params, given))


@few_schemes_and()
def test_chaining_is_associative(name):
  scheme = subject(name).scheme
  second, third = posjax.get('forgetting'), posjax.get('unscaled')
  left, right = chain(chain(scheme, second), third), chain(scheme, chain(second, third))
  assert left.parts == right.parts
  mixes = ''.join(sorted({*scheme.traits.mixes, *second.traits.mixes}))
  assert left.traits.mixes == right.traits.mixes == mixes
  assert program(left) == program(right)


# Two instances.


def changed(value):
  """Another value of an argument; None where there is no telling."""
  if isinstance(value, bool):
    return not value
  return {int: lambda n: n + 1, float: lambda x: 2 * x + 0.5}.get(type(value), lambda _: None)(
    value
  )


def variants(line):
  """Arguments of the line, then the same with one argument changed, for each that can be."""
  name, _, rest = line.partition('(')
  call = ast.parse(f'f({rest}' if rest else 'f()', mode='eval').body
  bound = inspect.signature(module(name).scheme).bind(
    *(ast.literal_eval(a) for a in call.args),
    **{k.arg: ast.literal_eval(k.value) for k in call.keywords},
  )
  bound.apply_defaults()
  arguments = dict(bound.arguments)
  others = {argument: changed(value) for argument, value in arguments.items()}
  return arguments, [{**arguments, a: other} for a, other in others.items() if other is not None]


def fresh(name):
  """The file's constructor, loaded anew: with no memory of other instances."""
  spec = importlib.util.spec_from_file_location(f'fresh_{name}', module(name).__file__)
  loaded = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(loaded)
  return loaded.scheme


def programs(make, settings):
  """The program of the layer for each of the arguments in turn; None where it refuses them."""
  found = []
  for arguments in settings:
    try:
      found.append(program(make(**arguments)))
    except ValueError:
      found.append(None)
  return found


@pytest.mark.parametrize(
  'line',
  [line if line in few_schemes() else by_hand(line) for line in LINES if variants(line)[1]],
)
def test_instances_with_different_arguments_do_not_disturb_each_other(line):
  name = line.partition('(')[0]
  arguments, others = variants(line)
  settings = [arguments, *others]
  there = programs(module(name).scheme, settings)
  back = programs(fresh(name), settings[::-1])[::-1]
  assert there[0] is not None
  assert there == back


# Tiles.


@few_schemes_and(has_own_logits)
def test_a_tile_of_the_answer_is_the_answer_for_a_tile_of_queries(name):
  scheme = subject(name).scheme
  q, k, v, ready, stream = run_sides(scheme)
  whole = run(scheme)(parameters(scheme), inputs(scheme))
  tile = jax.jit(lambda q, side: attend(scheme, ready, q, k, v, side, stream))
  for start, stop in ((0, 5), (3, 8), (7, LENGTH)):
    found = tile(q[:, start:stop], cut(stream, start, stop))
    assert error(found, whole[:, start:stop]) <= TOLERANCE


def pieces(scheme, params, given, blocks):
  """Attention over blocks of keys, each alone, put together by their exponentials."""
  q, k, v, ready, stream = sides(scheme, params, given)
  rules = operands.make_rules(q, None, True, None, None, 0.0, None, False)
  q_side, total, mixed, added = operands.make_side('q', q, scheme, *stream), 0, 0, 0
  v = scheme.values.value(ready, v, stream.at)
  for start, stop in blocks:
    k_side = operands.make_side('k', k[:, start:stop], scheme, *cut(stream, start, stop))
    both = q_side, k_side
    seen = masks.visible(*both, rules, None)
    logits = product(*places.query_and_key(scheme, ready, *both)) * rules.scale
    logits = places.logits(scheme, ready, logits, *both, seen)
    logits = places.limited(logits, places.bias(scheme, ready, *both), None, seen, rules)
    # Less one number for all: sums of exponentials then need no running maximum.
    weights = jnp.where(seen, jnp.exp(logits - 4), 0)
    total += weights.sum(-1)
    own = ungroup(v[:, start:stop], DIMS.num_heads)
    mixed += jnp.einsum('bhts,bshe->bthe', weights, own)
    if scheme.values.add:
      added += places.addition(scheme, ready, weights, *both, DIMS.head_dim)
  total = total.swapaxes(1, 2)[..., None]
  return scheme.values.output(ready, mixed / total, stream.at) + added / total


@every_scheme_that(lambda scheme: declares(scheme, 'key') or places.transforms_values(scheme))
def test_a_tile_of_turned_keys_and_values_is_the_turned_tile(name):
  scheme = subject(name).scheme
  _, k, v, ready, stream = run_sides(scheme)
  turned = jax.jit(lambda k, v, at: (scheme.key(ready, k, at), scheme.values.value(ready, v, at)))
  whole = turned(k, v, stream.at)
  for start, stop in ((0, 5), (3, 8), (7, LENGTH)):
    found = turned(*cut((k, v, stream.at), start, stop))
    for tile, all_tokens in zip(found, whole, strict=True):
      assert error(tile, all_tokens[:, start:stop]) <= TOLERANCE


@few_schemes_and(
  lambda scheme: scheme.traits.tiled != Tiled(), where=lambda scheme: 'S' not in scheme.traits.mixes
)
def test_a_tile_of_the_answer_is_the_answer_for_a_tile_of_keys(name):
  """Where the engine calls the places themselves, it gives the reference in tiles of keys, too."""
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  cuts = ((0, 4), (4, 9), (9, LENGTH))
  found = jax.jit(lambda p: pieces(scheme, p, given, cuts))(params)
  assert error(found, run(scheme)(params, given)) <= TOLERANCE


@every_scheme_that(lambda scheme: 'S' in scheme.traits.mixes)
def test_whole_keys_are_declared_only_where_a_tile_of_keys_is_wrong(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  cuts = ((0, 4), (4, 9), (9, LENGTH))
  found = jax.jit(lambda p: pieces(scheme, p, given, cuts))(params)
  assert error(found, run(scheme)(params, given)) > 1e-3


@every_scheme_that(lambda scheme: scheme.traits.tiled.constant_from is not None)
def test_a_bias_is_constant_from_the_distance_that_is_declared(name):
  scheme = subject(name).scheme
  limit = scheme.traits.tiled.constant_from
  far = jnp.array([limit, limit + 1, 2 * limit, 10**6, 2**31 - 1], jnp.int32)
  bias = np.asarray(scheme.bias(run_sides(scheme)[3], far[None]))
  assert bias.any()
  np.testing.assert_array_equal(bias, np.broadcast_to(bias[..., :1], bias.shape))


@few_schemes_and(lambda scheme: 'H' in scheme.traits.mixes or has_own_logits(scheme))
def test_heads_mix_exactly_where_the_scheme_declares_it(name):
  scheme = subject(name).scheme
  q, k, v, ready, stream = run_sides(scheme)
  others = jax.jit(lambda q: attend(scheme, ready, q, k, v, stream, stream)[:, :, 1:])
  moved = error(others(q.at[:, :, 0].multiply(2)), others(q))
  assert moved > 1e-3 if 'H' in scheme.traits.mixes else moved <= 1e-6


def packed_and_padded(scheme, ids):
  """Inputs whose first row holds two documents and whose second begins with padding.

  Args:
    scheme: any scheme.
    ids: 'counting': the ids of each row count up by one, from another number in each. 'irregular':
      they begin again, are repeated, fall, and leave out numbers up to the farthest that the
      scheme's tables have.
  """
  given = inputs(scheme)
  order = np.arange(LENGTH)
  segments = np.stack([np.where(order < 4, 1, 2), order > 2])
  given = given._replace(segments=jnp.asarray(segments, jnp.int32))
  if ids == 'counting':
    begin = jnp.arange(BATCH, dtype=jnp.int32).reshape(BATCH, *(1,) * (given.pos.ndim - 1))
    return given._replace(pos=given.pos + 3 * begin)
  for far in (2**14, 500, 20, 5):
    packed = [0, 1, 2, 3, 0, 1, 1, 2, 5, far - 2, far - 1, far]
    pos = np.array([packed, [7, 7, 7, 4, 4, 3, 5, 0, 0, far, 1, 2]], np.int32)
    if scheme.traits.axes > 1:
      pos = np.stack([np.roll(pos, axis, axis=1) for axis in range(scheme.traits.axes)], axis=-1)
    given = given._replace(pos=jnp.asarray(pos))
    if jnp.isfinite(run(scheme)(parameters(scheme), given)).all():
      return given
  raise ValueError('A scheme should have finite numbers at ids 0 to 5, but has not.')


def unchanged(out):
  return out


def weighted(out):
  """A number that every output moves, by a weight of its own."""
  return (out * EACH).real.sum()


def with_gradients(out):
  """Gradients of the weighted sum of the outputs by the first two arguments, and the outputs."""

  def number(*args):
    found = out(*args)
    return weighted(found), found

  return jax.grad(number, argnums=(0, 1), has_aux=True)


@functools.cache
def attention_with(change, scheme, implementation, **options):
  """A function of (params, x, given, mask): `change` of the layer, with the mask alone by default.

  It is compiled once for all ids and masks. Tiles are of 4 queries and 8 keys of 12 tokens, and of
  one head where it may be: `small_tiles` sees to it.
  """

  def out(params, x, given, mask):
    chosen = {'implementation': implementation, 'causal': False, 'mask': mask, **options}
    return layer(scheme, params, given._replace(x=x), **chosen)

  return jax.jit(change(out))


@pytest.fixture
def small_tiles(monkeypatch):
  """Tiles so small that a test of 12 tokens has several of them."""
  monkeypatch.setattr(blockwise, 'tile_size', lambda t, s, rows, whole, _: (4, s if whole else 8))
  monkeypatch.setattr(groups, 'most_pairs', lambda: 1)


WINDOW = 7
AHEAD = np.ones((LENGTH, LENGTH), bool)
BACK = np.tril(AHEAD)
NEAREST = BACK & ~np.tril(AHEAD, -WINDOW)  # itself and the tokens before it, `WINDOW` in all


def engine_is_the_reference(scheme, ids, mask, **options):
  """Outputs, and all gradients; the engine has `options` in place of the mask, if there are any.

  In float64: float32 rounds sums of other orders to other numbers, some gradients by 1e-5.
  """
  params = parameters(scheme)  # once for all tests, and so in float32
  given = packed_and_padded(scheme, ids)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (params, given.x))
    reference = attention_with(with_gradients, scheme, 'dense')(*wide, given, mask)
    engine = attention_with(with_gradients, scheme, 'blockwise', **options)
    found = engine(*wide, given, None if options else mask)
    for one, other in zip(*map(jax.tree.leaves, (found, reference)), strict=True):
      assert abs(one - other).max() <= 1e-6 * abs(other).max()


@few_schemes_and(has_own_logits)
def test_the_engine_gives_what_the_reference_gives_with_all_gradients(name, small_tiles):
  """Where tokens see ahead, and in a window of the tokens before."""
  scheme = subject(name).scheme
  engine_is_the_reference(scheme, 'counting', AHEAD)
  engine_is_the_reference(scheme, 'counting', NEAREST)


@few_schemes_and(has_own_logits)
def test_the_engine_gives_what_the_reference_gives_for_irregular_ids(name, small_tiles):
  engine_is_the_reference(subject(name).scheme, 'irregular', AHEAD)


@few_schemes_and(where=has_own_logits)
def test_the_engine_gives_what_a_mask_gives_in_a_causal_window(name, small_tiles):
  """By the schedule of its tiles, which leaves out those that no query sees."""
  engine_is_the_reference(subject(name).scheme, 'counting', NEAREST, causal=True, window=WINDOW)


# Complex numbers come in no less than 64 bits.
@few_schemes_and(where=lambda scheme: not is_complex(scheme))
def test_the_engine_gives_what_the_reference_gives_in_bfloat16(name, small_tiles):
  scheme = subject(name).scheme
  given = packed_and_padded(scheme, 'counting')
  narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (parameters(scheme), given.x))
  engine, reference = (
    attention_with(unchanged, scheme, implementation)(*narrow, given, NEAREST)
    for implementation in ('blockwise', 'dense')
  )
  assert error(engine, reference) <= 1e-2


# The reference.


def primitives(jaxpr):
  """The primitives of a program and of the programs in it, in order, with their parameters."""
  return [(equation.primitive.name, equation.params) for equation in equations(jaxpr)]


def is_barrier(params):
  """Whether all branches of a choice compute the sines and cosines of angles, and nothing else.

  Such a choice only keeps XLA from computing them again for each of their readers. Derivatives of
  any order go through it, in both modes.
  """
  chosen = {'slice', 'squeeze', 'eq', 'convert_element_type', 'cond'}
  for branch in params['branches']:
    names = [name for name, _ in primitives(branch.jaxpr)]
    if not {'cos', 'sin'} <= set(names) <= {'cos', 'sin', *chosen}:
      return False
  return True


@few_schemes_and(has_own_logits)
def test_the_reference_is_one_plain_program_at_every_size(name):
  """No size switch, and nothing that has no forward mode or stands for speed alone."""
  scheme = subject(name).scheme

  def program(tokens):
    longer = lambda leaf: jnp.concatenate([leaf] * (tokens // LENGTH), axis=1)
    given = jax.tree.map(longer, inputs(scheme))
    dense = functools.partial(layer, scheme, implementation='dense')
    return primitives(jax.make_jaxpr(dense)(parameters(scheme), given).jaxpr)

  small, large = program(LENGTH), program(20 * LENGTH)  # 288 and 115,200 pairs
  # As sets, since sums by doubling, as of forgetting's gates, take more steps where it is longer.
  assert {name for name, _ in small} == {name for name, _ in large}
  for primitive, params in small:
    assert not primitive.startswith(('custom_vjp', 'remat', 'checkpoint'))
    assert primitive != 'cond' or is_barrier(params)


@few_schemes_and()
def test_the_reference_has_forward_and_second_derivatives_at_every_size(name):
  """Traced alone: no custom rule, as the test before holds, can make their numbers wrong.

  That test, and those of the engine, which differentiate every reference, all but imply this one.
  """
  scheme = subject(name).scheme
  longer = lambda leaf: jnp.concatenate([leaf] * 20, axis=1)
  given = jax.tree.map(longer, inputs(scheme))  # 115,200 pairs
  given = given._replace(order=jnp.arange(20 * LENGTH, dtype=jnp.int32)[None])
  trained, fixed = posjax.split(scheme, shapes(scheme))

  def number(step, trained, fixed, x):
    params = posjax.merge(jax.tree.map(lambda leaf: (1 + step) * leaf, trained), fixed)
    x = (1 + step) * x
    return layer(scheme, params, given._replace(x=x), implementation='dense').real.sum()

  def derivatives(step, *rest):
    of_step = lambda step: number(step, *rest)
    linear = jax.linearize(of_step, step)[1](step)
    return jax.jvp(of_step, (step,), (step,)), linear, jax.hessian(of_step)(step)

  found = jax.eval_shape(derivatives, jnp.float32(0), trained, fixed, given.x)
  assert {leaf.shape for leaf in jax.tree.leaves(found)} == {()}


@pytest.mark.parametrize(
  'name',
  [
    name if name.partition('(')[0] in ('shaw', 'forgetting') else by_hand(name)
    for name in (*LINES, *CHAINS)
  ]
  + list(map(by_hand, FORMS)),
)
def test_the_references_forward_and_second_derivatives_are_those_of_differences(name):
  """Along one direction, in float64: forward as backward, and both differences of the first."""
  scheme = subject(name).scheme
  params = parameters(scheme)
  with jax.enable_x64(True):
    wide = lambda leaf: leaf.astype(jnp.float64)
    trained, fixed = posjax.split(scheme, jax.tree.map(wide, params))
    given = inputs(scheme)._replace(x=wide(inputs(scheme).x))
    draw = np.random.default_rng(6).normal
    direction = jax.tree.map(lambda leaf: draw(size=leaf.shape), (trained, given.x))

    def number(step):
      moved = jax.tree.map(lambda leaf, by: leaf + step * by, (trained, given.x), direction)
      params = posjax.merge(moved[0], fixed)
      out = layer(scheme, params, given._replace(x=moved[1]), implementation='dense')
      return (out * EACH).real.sum()

    def derivatives(step):
      one = jnp.ones(())
      linear = jax.linearize(number, step)[1](one)
      forward = jax.jvp(number, (step,), (one,))[1]
      return jax.grad(number)(step), forward, linear, jax.hessian(number)(step)

    derivatives = jax.jit(derivatives)
    backward, forward, linear, second = derivatives(0.0)
    assert abs(forward - backward) <= 1e-9 * abs(backward)
    assert abs(linear - backward) <= 1e-9 * abs(backward)
    for size in (1e-3, 1e-7):  # as for the first derivatives: rounded inside, or with kinks
      slope = (derivatives(size)[0] - derivatives(-size)[0]) / (2 * size)
      wrong = abs(slope - second) / max(abs(second), abs(backward))
      if wrong <= 1e-3:
        break
    assert wrong <= 1e-3


# Transformations.


class Variants(chex.TestCase):
  """The answer in float32, compiled or not, is that in float64."""

  @chex.variants(with_jit=True, without_jit=True, with_device=True)
  @parameterized.parameters(*few_schemes())
  def test_every_way_to_run_it_gives_the_answer_in_float64(self, name):
    scheme = subject(name).scheme
    params, given = parameters(scheme), inputs(scheme)
    found = self.variant(functools.partial(layer, scheme))(params, given)
    chex.assert_shape(found, (BATCH, LENGTH, DIMS.num_heads, DIMS.head_dim))
    expected = in_float64(scheme)
    chex.assert_trees_all_close(
      np.asarray(found), expected, rtol=0, atol=TOLERANCE * abs(expected).max()
    )


@functools.cache
def in_float64(scheme):
  """The answer of the layer in float64, as an array of NumPy."""
  params, given = parameters(scheme), inputs(scheme)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), (params, given.x))
    return np.asarray(attention_with(unchanged, scheme, 'dense')(*wide, given, BACK))


def nested(function):
  """The function inside a compiled loop, a branch and a checkpoint of JAX at once."""
  branch = lambda x: jax.lax.cond(True, jax.checkpoint(function), function, x)
  return jax.jit(lambda x: jax.lax.scan(lambda carry, x: (carry, branch(x)), None, x[None])[1][0])


@pytest.mark.usefixtures('unchecked')  # the annotations say jax.Array
@few_schemes_and()
def test_arrays_of_numpy_may_number_the_tokens_inside_all_transformations(name):
  """In 64 bits, as NumPy counts; traced alone, so that nothing is compiled."""
  scheme = subject(name).scheme
  q, k, v, ready, stream = run_sides(scheme)
  wide = lambda x: np.asarray(x, np.int64 if jnp.issubdtype(x.dtype, jnp.integer) else np.float64)
  numbers = {field: wide(getattr(stream, field)) for field in ('pos', 'order', 'segments')}
  for implementation in ('dense', 'blockwise'):
    both = functools.partial(attend, scheme, ready, implementation=implementation)
    run = lambda q, both=both: both(q, k, v, *[stream._replace(**numbers)] * 2)
    assert jax.eval_shape(nested(run), q).shape == q.shape


MIXED = ['xpos', 'fire(threshold=4.0, width=8)', 'cope', 'floor_log(floor=4)', 'fourier', 't5']


@pytest.mark.parametrize('name', MIXED)
def test_schemes_that_mix_integers_and_floats_say_so_where_promotion_is_strict(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  with jax.numpy_dtype_promotion('strict'):
    for implementation in ('dense', 'blockwise'):
      run = functools.partial(layer, scheme, implementation=implementation)
      assert jax.eval_shape(run, params, given).dtype == jnp.float32


@few_schemes_and()
def test_mapped_over_rows_gives_the_batch(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  row = lambda one: layer(scheme, params, jax.tree.map(lambda leaf: leaf[None], one))[0]
  assert error(jax.jit(jax.vmap(row))(given), run(scheme)(params, given)) <= TOLERANCE


@pytest.mark.usefixtures('eight_devices')
@few_schemes_and()
def test_eight_devices_give_what_one_gives(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  whole = jnp.tile(run(scheme)(params, given), (8 // BATCH, 1, 1, 1))
  rows = jax.tree.map(lambda leaf: jnp.tile(leaf, (8 // BATCH, *(1,) * (leaf.ndim - 1))), given)
  mesh = jax.make_mesh((8,), ('batch',), axis_types=(AxisType.Auto,))
  spread = jax.device_put(rows, NamedSharding(mesh, PartitionSpec('batch')))
  found = run(scheme)(jax.device_put(params, NamedSharding(mesh, PartitionSpec())), spread)
  assert len(found.sharding.device_set) == 8
  assert error(found, whole) <= TOLERANCE


@every_scheme
def test_new_ids_and_an_equal_line_do_not_trace_again(name):
  scheme = subject(name).scheme
  chex.clear_trace_counter()  # which counts across tests
  once = jax.jit(chex.assert_max_traces(layer, n=1), static_argnums=0)
  for shift in (0, 1, NEAR):
    once.trace(subject(name).scheme, parameters(scheme), inputs(scheme, shift=shift))
  with pytest.raises(AssertionError, match='is traced > 1 times'):
    once.trace(scheme._replace(init=None), parameters(scheme), inputs(scheme))


# Ids.


@every_scheme
def test_a_shift_of_all_ids_changes_the_answer_exactly_where_the_file_says_so(name):
  scheme, invariant = subject(name)
  params = parameters(scheme)
  whole = run(scheme)(params, inputs(scheme))
  shifted = run(scheme)(params, inputs(scheme, shift=NEAR))
  if not invariant:
    assert error(shifted, whole) > 1e-3
  for shift in (NEAR, 1000, FAR)[: 3 * invariant]:
    found = run(scheme)(params, inputs(scheme, shift=shift))
    assert error(found, whole) <= TOLERANCE, shift


def table_ends(scheme):
  """Where a trained table of ids ends, in tokens; None where no member has one.

  By its constructor: an argument `max_length`, beside which something is trained.
  """
  for part in scheme.parts or (scheme,):
    file = inspect.getmodule(part.embed if declares(part, 'embed') else part.query)
    constructor = getattr(file, 'scheme', None)
    arguments = inspect.signature(constructor).parameters if callable(constructor) else {}
    if 'max_length' in arguments and trains(part):
      return arguments['max_length'].default
  return None


@every_scheme
def test_far_and_equal_ids_give_finite_numbers(name):
  scheme = subject(name).scheme
  params = parameters(scheme)
  given = inputs(scheme)
  equal = given._replace(pos=jnp.zeros_like(given.pos))
  assert jnp.isfinite(run(scheme)(params, equal)).all()
  if table_ends(scheme) is None:
    assert jnp.isfinite(run(scheme)(params, inputs(scheme, shift=FAR))).all()


@every_scheme_that(table_ends)
def test_a_trained_table_of_ids_is_nan_beyond_its_ends(name):
  """JAX's own look-up would take the last row instead, and count from the end for negative ids."""
  scheme = subject(name).scheme
  params, last = parameters(scheme), table_ends(scheme) - LENGTH
  seen = lambda shift: jnp.isfinite(run(scheme)(params, inputs(scheme, shift=shift))).all((0, 2, 3))
  assert seen(last).all()
  assert not seen(last + 1)[-1]
  assert not seen(last + LENGTH).any()
  assert not seen(FAR).any()
  assert not seen(-1).any()  # every token sees the first one


@few_schemes_and(has_own_logits)
def test_gradients_are_finite_at_equal_ids_and_zero_from_rows_that_see_nothing(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  equal = given._replace(pos=jnp.zeros_like(given.pos))
  padded = given._replace(segments=given.segments.at[1].set(0).at[0, :3].set(0))
  for one in (given, equal, padded):
    grads, moved = gradients(scheme)(params, one, EACH)
    chex.assert_tree_all_finite((grads, moved.x))
  np.testing.assert_array_equal(run(scheme)(params, padded)[1], 0)
  np.testing.assert_array_equal(run(scheme)(params, padded)[0, :3], 0)
  if not declares(scheme, 'prepare'):  # padding before a document may feed its prepared state
    np.testing.assert_array_equal(moved.x[1], 0)
    np.testing.assert_array_equal(moved.x[0, :3], 0)


# Modules.


@few_schemes_and()
def test_nnx_and_linen_give_what_attend_gives(name):
  scheme, given = subject(name).scheme, inputs(subject(name).scheme)
  params = parameters(scheme)
  names = ('query', 'key', 'value')
  weights = dict(zip(names, projections(jnp.float32), strict=True))
  weights['out'] = weights['query'].transpose(1, 2, 0)

  def fill(path, leaf):
    keys = [entry.key for entry in path]
    if keys[0] in weights:
      return weights[keys[0]]
    if not leaf.size:  # a table of words, of which a layer knows none
      return jnp.zeros(leaf.shape)
    return (params[int(keys[1])] if scheme.parts else params)[keys[-1]]

  pos = scheme.ids(given.pos, None)

  @jax.jit
  def expected():
    q, k, v = (jnp.einsum('btm,mhd->bthd', given.x, weights[name]) for name in names)
    ready, at = posjax.prepare(scheme, params, given.x, pos, segments=given.segments)
    stream = Stream(pos, at, given.order, given.segments)
    out = attend(scheme, ready, q, k, v, stream, stream)
    return jnp.einsum('bthd,hdm->btm', out, weights['out'])

  sizes = (DIMS.width, DIMS.num_heads, scheme)
  options = {'head_dim': DIMS.head_dim, 'num_kv_heads': DIMS.num_kv_heads, 'causal': True}
  options['model_places'] = True  # `embed` acts before the layer, and is not compared here
  call = {'x': given.x, 'pos': pos, 'order': given.order, 'segments': given.segments}

  graph, state = nnx.split(
    nnx.eval_shape(lambda: NnxAttention(*sizes, **options, rngs=nnx.Rngs(0)))
  )
  filled = jax.tree.map_with_path(fill, nnx.to_pure_dict(state))
  nnx.replace_by_pure_dict(state, filled)
  assert error(jax.jit(lambda: nnx.merge(graph, state)(**call))(), expected()) <= TOLERANCE

  module = LinenAttention(*sizes, **options)
  shapes = jax.eval_shape(module.init, jax.random.key(0), given.x, pos, order=given.order)
  held = {collection: jax.tree.map_with_path(fill, tree) for collection, tree in shapes.items()}
  assert error(jax.jit(lambda: module.apply(held, **call))(), expected()) <= TOLERANCE


# Dtypes.


@every_scheme
def test_bfloat16_stays_bfloat16_and_near_float32_at_far_ids(name):
  """The output is rounded to 8 bits, and so are q, k, v and x: 2^-5 is four such roundings."""
  scheme = subject(name).scheme
  params = parameters(scheme)
  for shift in (0, 2**17 - LENGTH):
    low = inputs(scheme, dtype=jnp.bfloat16, shift=shift)
    exact = run(scheme)(params, low._replace(x=low.x.astype(jnp.float32)))
    x = jax.eval_shape(scheme.embed, params, low.x, low.tokens, low.pos)
    assert x.dtype == jnp.bfloat16 or is_complex(scheme)  # complex numbers come in no less than 64
    found = run(scheme)(params, low)
    assert found.dtype == x.dtype
    if jnp.isfinite(exact).all():  # tables end before
      assert error(found, exact) <= 2**-5


@every_scheme
def test_float32_stays_float32(name):
  scheme = subject(name).scheme
  given, params = inputs(scheme), parameters(scheme)
  q, k, _, ready, stream = run_sides(scheme)
  assert jax.eval_shape(functools.partial(layer, scheme), params, given).dtype == q.dtype
  real = q.real
  assert jax.eval_shape(scheme.query, ready, real, stream.at).dtype == real.dtype
  assert jax.eval_shape(scheme.key, ready, k.real, stream.at).dtype == real.dtype
  for turn in (scheme.values.value, scheme.values.output):
    assert jax.eval_shape(turn, ready, real, stream.at).dtype == real.dtype
  leaves = jax.tree.leaves(params)
  assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in leaves)


# Streams.


@every_scheme_that(lambda scheme: declares(scheme, 'prepare'))
def test_an_empty_state_is_no_state(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  prepare = functools.partial(posjax.prepare, scheme, params, given.x, given.pos)
  _, at = prepare(segments=given.segments)
  empty = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[:, 0]), at)
  nothing = jnp.zeros(BATCH, jnp.int32)
  _, again = prepare(empty, segments=given.segments, last_segment=nothing)
  chex.assert_trees_all_equal(at, again)


@few_schemes_and(lambda scheme: declares(scheme, 'prepare'))
def test_left_padding_changes_nothing(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  short = cut(given, 6, LENGTH)._replace(pos=given.pos[:, :6])
  padded = given._replace(
    pos=jnp.concatenate([given.pos[:, :6] * 0, short.pos], axis=1),
    segments=(given.order >= 6).astype(jnp.int32),
  )
  found = run(scheme)(params, padded)
  assert error(found[:, 6:], run(scheme)(params, short)) <= TOLERANCE
  np.testing.assert_array_equal(found[:, :6], 0)


@few_schemes_and(has_own_logits)
def test_packed_documents_are_each_alone(name):
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  first, second = cut(given, 0, 6), cut(given, 6, LENGTH)
  second = second._replace(pos=first.pos)
  packed = given._replace(
    pos=jnp.concatenate([first.pos, second.pos], axis=1),
    segments=1 + (given.order >= 6).astype(jnp.int32),
  )
  found = run(scheme)(params, packed)
  assert error(found[:, :6], run(scheme)(params, first)) <= TOLERANCE
  assert error(found[:, 6:], run(scheme)(params, second)) <= TOLERANCE


@few_schemes_and(has_own_logits)
def test_nothing_flows_back_from_later_tokens(name):
  """Causality by exactly zero gradients, and none but zero before."""
  scheme = subject(name).scheme
  params, given = parameters(scheme), inputs(scheme)
  early = np.where(np.arange(LENGTH)[None, :, None, None] == 5, EACH, 0)
  grad = gradients(scheme)(params, given, early)[1].x
  np.testing.assert_array_equal(grad[:, 6:], 0)
  assert (abs(grad[:, :6]).max((0, 2)) > 1e-6).all()
