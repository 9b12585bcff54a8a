"""Parameters and prepared sides that are not those of the scheme: refused by their shapes.

Most tests call the comparison alone, as `attend` calls it, so that nothing is computed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from posjax.attention import parameters
from posjax.scheme import Dims, Scheme, declares

pytestmark = pytest.mark.usefixtures('unchecked')

DIMS = Dims(width=48, num_heads=4, head_dim=8, num_kv_heads=2, vocab=11)
Q, K = jnp.ones((1, 3, 4, 8)), jnp.ones((1, 3, 2, 8))
POS = jnp.arange(3)
LINES = [
  'alibi', 'deberta', 'fire(8.0)', 'forgetting', 'rope', 'rope+alibi', 'shaw', 't5', 'tener',
]  # fmt: skip


def made(line, dims=DIMS):
  """The scheme, its parameters as `attend` wants them, and a prepared side or None."""
  scheme = posjax.get(line) if isinstance(line, str) else line
  params = posjax.init(scheme, jax.random.key(0), dims)
  if not declares(scheme, 'prepare'):
    return scheme, params, None
  return scheme, *posjax.prepare(scheme, params, jnp.ones((1, 3, dims.width)), POS[None])


def compared(scheme, params, q_at=None, k_at=...):
  """The parameters, if `attend` would take them and both sides."""
  k_at = q_at if k_at is ... else k_at
  return parameters.check(scheme, params, Q, K, POS, q_at, k_at)


def leaves(tree):
  return jax.tree_util.tree_flatten_with_path(tree)[0]


def replaced(tree, path, new):
  """The tree with another leaf at the path; without it, where the new one is `...`."""
  if not path:
    return new
  name = getattr(path[0], 'key', getattr(path[0], 'idx', None))
  if isinstance(tree, tuple):
    return tuple(replaced(x, path[1:], new) if i == name else x for i, x in enumerate(tree))
  rest = {n: x for n, x in tree.items() if n != name}
  return rest if new is ... else rest | {name: replaced(tree[name], path[1:], new)}


def wrong(tree):
  """Trees with one leaf of another shape, or without it."""
  for path, x in leaves(tree):
    yield from (replaced(tree, path, new) for new in (..., None, 0.5, 'x', [0.5], x[None]))
    for axis in range(x.ndim):
      if x.shape[axis] not in (1, DIMS.width):  # the width of the model is free
        yield replaced(tree, path, jnp.take(x, jnp.array([0]), axis))
    if x.ndim > 1 and x.shape != x.T.shape:
      yield replaced(tree, path, x.T)


@pytest.mark.parametrize('line', LINES)
def test_no_tree_but_that_of_the_scheme_is_taken(line):
  scheme, params, at = made(line)
  assert compared(scheme, params, at) is params
  trees = [*wrong(params), ({}, params), [params], 'x', jnp.ones(4)]
  trees += [made(other)[1] for other in ('alibi', 'pope', 'rope+alibi') if other != line]
  trees.append((*params[1:], {}) if scheme.parts else params | {'more': jnp.ones(4)})
  for tree in trees:
    with pytest.raises((ValueError, TypeError), match='but got'):
      compared(scheme, tree, at)


@pytest.mark.parametrize('line', ['forgetting', 'forgetting+deberta'])
def test_no_prepared_side_but_that_of_the_scheme_is_taken(line):
  scheme, params, at = made(line)
  for tree in (
    'x',
    5,
    [],
    {},
    {'x': jnp.ones((1, 3))},
    jnp.ones((1, 3, 4, 8)),
    jnp.ones((1, 4)),
  ):
    for sides in ((tree, at), (at, tree)):
      with pytest.raises((ValueError, TypeError), match='but got'):
        compared(scheme, params, *sides)


def test_a_side_may_be_any_tree_whatever_the_order_of_its_names():
  kinds = {'b': jnp.ones((1, 3, 2)), 'a': (jnp.ones((1, 3)), jnp.ones((1, 3, 5)))}
  opaque = jax.tree_util.Partial(len, kinds['b'])  # a container that JAX alone can look into
  for at in (kinds, dict(reversed(kinds.items())), opaque):
    cut = lambda leaf: jnp.ones((1, 1, *leaf.shape[2:]))
    like = jax.tree.map(cut, at)
    scheme = Scheme(prepare=lambda params, x, pos, last, starts, like=like: (params, like))
    assert compared(scheme, {}, at) == {}


def test_the_sentence_names_the_parameter_what_it_should_be_and_what_it_is():
  scheme, params, _ = made('rope+alibi')
  expected = (
    r"^params\[1\]\['slopes'\] must have shape \[4\] for 4 heads of width 8, 2 key heads, but got "
    r'\[1\]\.$'
  )
  with pytest.raises(ValueError, match=expected):
    compared(scheme, ({}, {'slopes': params[1]['slopes'][:1]}))
  with pytest.raises(TypeError, match=r"^params\['slopes'\] must be an array, but got float\.$"):
    compared(posjax.get('alibi'), {'slopes': 0.5})
  named = (
    r"but got params\['slopes'\] missing and params\['table'\], which the scheme does not make"
  )
  with pytest.raises(ValueError, match=named):
    compared(posjax.get('alibi'), {'table': jnp.ones(4)})
  scheme, _, at = made('deberta')
  with pytest.raises(ValueError, match=r'must be as from .*, and its prepare, but got'):
    compared(scheme, posjax.init(scheme, jax.random.key(0), DIMS), at)


def test_wrong_parameters_are_refused_under_every_transformation():
  call = lambda slopes: posjax.attend(
    Q, K, K, 'alibi(learned=True)', {'slopes': slopes}, q_pos=POS, k_pos=POS
  )
  for change in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
    with pytest.raises(ValueError, match=r'must have shape \[4\] .* but got \[1\]\.'):
      change(call)(jnp.ones((2, 1)) if change is jax.vmap else jnp.ones(1))
  assert jax.eval_shape(jax.vmap(call), jnp.ones((2, 4))).shape == (2, *Q.shape)


@pytest.mark.parametrize('width', [1, 7, 1000])
def test_sizes_that_the_heads_do_not_decide_are_free(width):
  def init(key, dims):
    return {'half': jnp.ones(dims.width // 2), 'rows': jnp.ones((dims.width, dims.num_heads))}

  scheme = Scheme(init=init, init_model=lambda key, dims: {'words': jnp.ones((dims.vocab, 1))})
  params = posjax.init(scheme, jax.random.key(0), DIMS._replace(width=width))
  assert compared(scheme, params) is params
  for name, other in (('rows', (width, 1)), ('words', (11, 2))):
    with pytest.raises(ValueError, match=rf"^params\['{name}'\] must have shape .* but got"):
      compared(scheme, params | {name: jnp.ones(other)})


def test_a_scheme_whose_init_cannot_be_traced_is_taken_as_it_is():
  drawn = Scheme(init=lambda key, dims: {'x': jnp.ones(int(jax.random.randint(key, (), 1, 9)))})
  params = {'x': jnp.ones(7)}
  assert compared(drawn, params) is params


def test_parameters_of_numpy_and_of_other_precisions_are_taken():
  scheme, params, _ = made('t5')
  table = params['table']
  outs = [
    posjax.attend(Q, K, K, scheme, {'table': x}, q_pos=POS, k_pos=np.arange(3))
    for x in (table, np.asarray(table))
  ]
  np.testing.assert_array_equal(*outs)
  compared(scheme, {'table': table.astype(jnp.bfloat16)})
