"""`posjax.nnx.Attention`, `posjax.linen.Attention`, their caches, and the function for Flax."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import posjax
from posjax.layers.projections import Latent, Norm
from posjax.scheme import declares
from tests.fuzz import oracle
from tests.fuzz.areas.subjects import DIMS, lines, subject
from tests.fuzz.case import Case, line, normal, refused

NAN, INF = float('nan'), float('inf')
T, M, H = 6, DIMS.width, DIMS.num_heads
X = jnp.asarray(normal(2, T, M))
POS = jnp.arange(T)
SIZES = {'num_heads': H, 'head_dim': DIMS.head_dim, 'num_kv_heads': DIMS.num_kv_heads}

CONSTRUCTED: dict[str, list[Any]] = {
  'width': [0, -1, 1.5, '16', None, [16], NAN, 2**40 + 0.5],
  'num_heads': [0, -2, 3, 1.5, '4', None, [4]],
  'head_dim': [0, -1, 1.5, '8', [8], NAN],
  'num_kv_heads': [0, -1, 3, 1.5, '2', [2]],
  'scheme': [None, 3, 'no_such_scheme', {}, posjax.Scheme, ()],
  'causal': ['no', 'False', 2, 0.5, [], NAN],
  'window': [0, -1, 1.5, NAN, '3', [3], 2**31],
  'logit_cap': [0, -1.0, NAN, INF, '5', [5.0]],
  'sinks': ['no', 2, 0.5, []],
  'use_bias': ['False', 2, 0.5, []],
  'dropout_rate': [-0.1, 1.0, NAN, '0.1', None, [0.1]],
  'scale': [NAN, INF, '1', [1.0]],
  'implementation': ['fast', 1, '', []],
  'model_params': ['False', 2, []],
  'value_dim': [0, -1, 1.5, '8', [8], NAN, True],
  'qk_norm': [
    *(
      'no_such',
      3,
      [],
      {},
      True,
      '',
      Norm,
      Norm(kind='no_such'),
      Norm(epsilon=0),
      Norm(epsilon=NAN),
    ),
    *(Norm(epsilon='x'), Norm(heads='no_such'), Norm(use_bias='no'), Norm(kind=3), ('rms',)),
  ],
  'latent': [
    *('no_such', 3, [], {}, True, Latent, Latent(0), Latent(-1), Latent(1.5), Latent('4')),
    *(Latent(4, shared=-1), Latent(4, shared=DIMS.head_dim), Latent(4, shared=1.5), (4, 0)),
    *(Latent(4, query_rank=0), Latent(4, query_rank='4'), Latent(4, epsilon=0), Latent(None)),
    *(Latent(4, epsilon=NAN), Latent(4, shared='2'), Latent(True), Latent(2**70)),
  ],
  'out_bias': ['no', 2, 0.5, []],
  'deterministic': ['no', 2, 0.5, [], None],
  'kernel_init': [None, 3, 'x', []],
  'bias_init': [None, 3, 'x', []],
  'sharding': ['model', 3, ('model',), (None,) * 4, {}, True, (3, None, None), ([], None, None)],
  'dtype': ['x', 3, 'int32', bool, []],
  'param_dtype': ['x', 3, 'int32', bool, None, []],
}
WINDOWS = [
  *((), (1,), (1, 2, 3), (-1, 0), (0, -1), (1.5, 0), ('1', 0), (NAN, 0), (True, 0), {}),
  *((2**31, 0), (0, 2**31), ([], 0), {'left': 1}, (1, (2,))),
]
CALLED: dict[str, list[Any]] = {
  'x': [None, 'x', X[0], X[..., :3], X[None], np.asarray(X).tolist(), X[:, :0]],
  'pos': [None, 'x', POS[:-1], POS[None, :, None, None], jnp.zeros((3, T), int), POS.astype(bool)],
  'segments': ['x', jnp.ones(T), jnp.ones(T - 1, int), jnp.ones((3, T), int), 3],
  'order': ['x', jnp.ones(T - 1, int), jnp.full(T, NAN), jnp.ones(T, bool), 3],
  'mask': ['x', jnp.ones((T, T)), jnp.ones((T, T), int), jnp.ones((T, T + 1), bool), 1],
  'x_kv': ['x', X[..., :3], X[0]],
  'kv_pos': [POS, 'x'],
  'kv_segments': [jnp.ones(T, int)],
  'past': ['x', 3, X],
  'model_params': [3, 'x', {'nothing': jnp.ones(3)}],
  'bias': [
    *('x', 1, [], jnp.ones((T, T + 1)), jnp.ones((3, 1, T, T)), jnp.ones((2, 3, T, T))),
    *(jnp.ones((T, T), int), jnp.ones((T, T), bool), jnp.ones((T, T), complex), jnp.ones((1,) * 5)),
  ],
  'kv_order': [jnp.arange(T), 'x'],
  'deterministic': ['no', 2, 0.5, []],
  'return_weights': ['no', 2, 0.5, []],
  'dropout_key': ['x', 3, jnp.ones(3), []],
}
KINDS = ('rope', 't5', 'alibi')


def cases() -> list[Case]:
  """All cases of this file."""
  return [*constructed(), *called(), *agreeing(), *special(), *caches(), *hooks(), *shaped()]


def make(kind: str, **named: Any) -> Any:
  """A layer, with its weights: a function of a call's arguments."""
  settings = {'width': M, **SIZES, **named}
  if kind == 'nnx':
    from posjax.nnx import Attention

    return Attention(**settings, rngs=nnx.Rngs(0))
  from posjax.linen import Attention

  layer = Attention(**settings)
  variables = layer.init(jax.random.key(0), X, POS)
  return functools.partial(layer.apply, variables)


made = functools.cache(lambda kind, name, **named: make(kind, scheme=posjax.get(name), **named))


def constructed() -> Iterator[Case]:
  """Constructors with one wrong argument. Linen's checks come with `init`."""
  for kind in ('nnx', 'linen'):
    for name in ('rope', 't5'):
      for argument, values in CONSTRUCTED.items():
        for value in values:
          named = {'scheme': posjax.get(name), argument: value}
          title = line(f'{kind}.Attention', name, **{argument: value})
          call = functools.partial(lambda kind, named: make(kind, **named)(X, POS), kind, named)
          yield Case(title, call, refused)


def called() -> Iterator[Case]:
  """Calls with one wrong argument."""
  for kind in ('nnx', 'linen'):
    for name in KINDS:
      for argument, values in CALLED.items():
        for value in values:
          named = {'x': X, 'pos': POS, argument: value}
          if argument == 'kv_pos' and value is not POS:
            named['x_kv'] = X
          call = lambda kind=kind, name=name, named=named: made(kind, name, causal=True)(**named)
          empty = argument == 'x' and getattr(value, 'size', 1) == 0
          check = (lambda out: '') if empty else refused
          yield Case(line(f'{kind}.Attention({name!r})', **{argument: value}), call, check)


def agreeing() -> Iterator[Case]:
  """A layer of each scheme, against the oracle between its own projections."""
  for name in lines():
    for options in ({'causal': True}, {'causal': True, 'window': 2, 'logit_cap': 5.0}):
      call = functools.partial(outputs, name, options)
      title = line('nnx.Attention', name, **options)
      # A scheme of places 0 and 1 may ask who calls them.
      model = any(declares(posjax.get(name), place) for place in ('ids', 'embed'))
      yield Case(title, call, same_outputs, valid=not model)


def outputs(name: str, options: dict[str, Any]) -> tuple[Any, Any]:
  """What a layer gives, and what the oracle gives between its projections."""
  one = subject(name)
  layer = make('nnx', scheme=one.scheme, **options)
  pos, order = one.k_side['pos'], jnp.arange(T)
  out = layer(X, pos, order=order)
  params = scheme_params(layer)
  at = None
  if declares(one.scheme, 'prepare'):
    params, at = posjax.prepare(one.scheme, params, X, jnp.broadcast_to(pos, (2, *pos.shape)))
  sides = {'q_pos': pos, 'k_pos': pos, 'q_at': at, 'k_at': at, 'q_order': order, 'k_order': order}
  heads = layer.query(X), layer.key(X), layer.value(X)
  inner = oracle.attention(*heads, one.scheme, params, **sides, **options)
  return out, np.asarray(layer.out(jnp.asarray(inner, jnp.float32)), np.float64)


def scheme_params(layer: Any) -> Any:
  """All parameters of a layer's scheme: its own, and those that all layers share."""
  scheme = layer.layer.scheme
  state = nnx.to_pure_dict(nnx.state(layer))
  own, shared = (state.get(name) or {} for name in ('scheme_params', 'model_params'))
  member = lambda tree, i: tree.get(str(i), tree.get(i, {}))
  if scheme.parts:
    return tuple({**member(shared, i), **member(own, i)} for i in range(len(scheme.parts)))
  return {**shared, **own}


def same_outputs(both: tuple[Any, Any]) -> str:
  return oracle.difference(both[0], both[1])


def special() -> Iterator[Case]:
  """What a layer must not do in silence."""
  for kind in ('nnx', 'linen'):
    for name in ('sinusoidal', 'learned', 'fourier', 'rope'):
      call = lambda kind=kind, name=name: make(kind, scheme=posjax.get(name))
      title = f'{kind}.Attention({name!r}), where nobody calls place 1'
      yield Case(title, functools.partial(sees_order, call), order_fault, valid=name == 'rope')
    for rate in (0.1, 0.5):
      dropping = lambda kind=kind, rate=rate: make(kind, dropout_rate=rate)(X, POS)
      yield Case(f'{kind}.Attention(dropout_rate={rate}) without a key', dropping, refused)
    keyed = lambda kind=kind: make(kind)(X, POS, dropout_key=jax.random.key(0))
    yield Case(f'{kind}.Attention()(dropout_key=key) without a rate', keyed)
    for line_ in ('alibi', 'sandwich', 'alibi+t5'):
      call = lambda kind=kind, line_=line_: make(kind, scheme=posjax.get(line_))(X, POS)
      check = lambda out: '' if jnp.isfinite(out).all() else 'not finite'
      yield Case(f'{kind}.Attention({line_!r})', call, check, valid=True)
  for name in ('alibi', 'sandwich', 'alibi+t5'):
    yield Case(
      f'linen.Attention({name!r}), params alone',
      functools.partial(params_alone, name),
      lambda fault: fault,
      valid=True,
    )
    yield Case(
      f'linen: nn.remat(Attention)({name!r})',
      functools.partial(rematerialized, name),
      lambda fault: fault,
      valid=True,
    )


def sees_order(call: Any) -> tuple[Any, Any]:
  """Outputs, and those of the permuted tokens, permuted back."""
  layer, order = call(), np.array([3, 1, 0, 5, 4, 2])
  return layer(X, POS), layer(X[:, order], POS)[:, np.argsort(order)]


def order_fault(both: tuple[Any, Any]) -> str:
  return 'permuting tokens permutes outputs' if np.allclose(*both, atol=1e-5) else ''


def params_alone(name: str) -> str:
  """Whether a layer works with `variables['params']` alone, as most training programs have it."""
  from posjax.linen import Attention

  layer = Attention(M, H, posjax.get(name))
  variables = layer.init(jax.random.key(0), X, POS)
  whole = layer.apply(variables, X, POS)
  alone = layer.apply({'params': variables.get('params', {})}, X, POS)
  return '' if np.allclose(whole, alone) else 'the output differs'


def rematerialized(name: str) -> str:
  from flax import linen as nn

  from posjax.linen import Attention

  layer = nn.remat(Attention)(M, H, posjax.get(name))
  variables = layer.init(jax.random.key(0), X, POS)
  return '' if jnp.isfinite(layer.apply(variables, X, POS)).all() else 'not finite'


def caches() -> Iterator[Case]:
  """Caches with wrong sizes, and decoding token by token for every scheme."""
  wrong = [
    *({'batch': value} for value in (0, -1, 1.5, '1', None)),
    *({'capacity': value} for value in (0, -1, 1.5, '9', None, [9])),
    *({'dtype': value} for value in ('x', 3, 'int32')),
    *({'pos_dtype': value} for value in ('x', 3, 'bool')),
    *({'axes': value} for value in (-1, 1.5, '1')),
  ]
  for changes in wrong:
    settings = {'batch': 1, 'capacity': 9, **changes}
    call = lambda settings=settings: made('nnx', 'rope', causal=True).init_cache(**settings)
    yield Case(line('init_cache', **settings), call, refused)
  yield Case(
    'extend(full cache)', lambda: extended(made('nnx', 'rope', causal=True), 3, T), refused
  )
  yield Case('init_cache(not causal)', lambda: make('nnx').init_cache(1, 3), refused)
  for name in lines():
    if any(declares(posjax.get(name), place) for place in ('ids', 'embed')):
      continue
    yield Case(
      f'nnx.Attention({name!r}): extend, one token after the other',
      functools.partial(decoded, name),
      lambda both: oracle.difference(both[0], np.asarray(both[1], np.float64), 'the whole call'),
    )


def extended(layer: Any, capacity: int, tokens: int) -> Any:
  return layer.extend(X[:1, :tokens], layer.init_cache(1, capacity), POS[:tokens])


def decoded(name: str) -> tuple[Any, Any]:
  """Outputs token by token from a cache, and those of one call."""
  one = subject(name)
  layer = make('nnx', scheme=one.scheme, causal=True)
  pos, cache = one.k_side['pos'], layer.init_cache(2, T)
  outs = []
  for i in range(0, T, 2):
    out, cache = layer.extend(X[:, i : i + 2], cache, pos[i : i + 2])
    outs.append(out)
  return jnp.concatenate(outs, 1), layer(X, pos, order=jnp.arange(T))


def hooks() -> Iterator[Case]:
  """`posjax.attention_fn`, alone and inside Flax's modules."""
  rope, t5 = posjax.get('rope'), posjax.get('t5')
  bound = [
    *({'scheme': value} for value in (None, 'no_such_scheme', 3, posjax.get('deberta'))),
    *({'params': value} for value in (None, 3, {}, {'table': jnp.ones(3)})),
    *({'q_pos': value} for value in (None, 'x', POS[:-1], 3)),
    *({'causal': value} for value in ('no', 2)),
    *({'window': value} for value in (0, 1.5, NAN, '3', (1,), (-1, 1))),
    *({'implementation': value} for value in ('fast', 3)),
  ]
  q = jnp.asarray(normal(2, T, H, DIMS.head_dim))
  for changes in bound:
    params = subject('t5').params
    arguments = {'scheme': t5, 'params': params, 'q_pos': POS, **changes}
    call = lambda arguments=arguments: posjax.attention_fn(**arguments)(q, q, q)
    yield Case(line('attention_fn', 't5', **changes), call, refused)
  given = [
    *({'bias': value} for value in (jnp.ones((T, T + 1)), jnp.ones((T, T), bool), 'x')),
    *({'mask': value} for value in ('x', jnp.full((T, T), 0.5), jnp.ones((T, T + 1), bool), {})),
    *(
      {'dropout_rate': value, 'deterministic': False, 'broadcast_dropout': False}
      for value in (0.5, NAN, -1.0, 'x', 1.0)
    ),
    *({name: 3} for name in ('precision', 'module', 'qk_attn_weights_einsum')),
    {'dtype': 'bfloat16'},
    {'dtype': 'x'},
    {'is_causal': 'no'},
  ]
  for named in given:
    call = lambda named=named: posjax.attention_fn(rope, {}, q_pos=POS)(q, q, q, **named)
    yield Case(line('attention_fn(rope)', **named), call, refused)
  for kind in ('float32', 'int32', 'bool', 'bfloat16'):
    mask = jnp.tril(jnp.ones((T, T))).astype(kind)[None, None]
    # Flax's own functions make masks of 0 and 1; a layer of ours takes True and False alone.
    hook = lambda mask: posjax.attention_fn(rope, {}, q_pos=POS)(q, q, q, mask=mask)
    as_booleans = functools.partial(equal, hook, mask, mask.astype(bool))
    yield Case(f'attention_fn, a mask in {kind}', as_booleans, lambda fault: fault, valid=True)
    layer = lambda mask=mask: made('nnx', 'rope')(X, POS, mask=mask)
    if kind == 'bool':
      yield Case('a layer, a mask in bool', layer, valid=True)
    else:
      yield Case(f'a layer, a mask in {kind}', layer, refused)


def equal(call: Any, one: Any, other: Any) -> str:
  """How what a call makes of two arguments differs; '' if it does not."""
  return '' if np.array_equal(call(one), call(other)) else 'the results differ'


SHAPES: list[dict[str, Any]] = [
  {'value_dim': 5},
  {'qk_norm': 'rms'},
  {'qk_norm': Norm('layer', heads='apart', use_bias=True), 'use_bias': True, 'out_bias': False},
  {'qk_norm': Norm(heads='together'), 'value_dim': 3},
  {'latent': Latent(4, shared=2)},
  {'latent': Latent(4, query_rank=3), 'value_dim': 6},
  {'window': (2, 1), 'causal': False},
  {'window': (None, 0), 'causal': False},
  {'window': [1, None], 'causal': False},
  {'window': (1, None), 'causal': True},
]


def shaped() -> Iterator[Case]:
  """Windows of two ends; and norms, widths of values, latent heads and biases, in both layers."""
  for kind in ('nnx', 'linen'):
    for window in WINDOWS:
      for causal in (False, True):
        named = {'scheme': posjax.get('rope'), 'window': window, 'causal': causal}
        call = functools.partial(lambda kind, named: make(kind, **named)(X, POS), kind, named)
        yield Case(line(f'{kind}.Attention', 'rope', window=window, causal=causal), call, refused)
    ahead = {'scheme': posjax.get('rope'), 'window': (2, 1), 'causal': True}
    call = functools.partial(lambda kind, named: make(kind, **named)(X, POS), kind, ahead)
    yield Case(f'{kind}.Attention(causal, a window to the right)', call, refused)
  for options in SHAPES:
    yield Case(
      line('nnx.Attention', 'alibi', **options),
      functools.partial(between, options),
      same_outputs,
      valid=True,
    )
    yield Case(
      line('linen.Attention', 'alibi', **options),
      functools.partial(both_layers, options),
      same_outputs,
      valid=True,
    )
  wrong = [
    {'latent': Latent(4), 'num_kv_heads': 1},
    {'latent': Latent(4), 'qk_norm': 'rms'},
    {'qk_norm': 'rms', 'value_dim': 0},
  ]
  for options in wrong:
    for kind in ('nnx', 'linen'):
      call = functools.partial(lambda kind, named: make(kind, **named)(X, POS), kind, options)
      check = refused if 'value_dim' in options else lambda out: ''
      yield Case(line(f'{kind}.Attention', **options), call, check)


def full(options: dict[str, Any]) -> dict[str, Any]:
  """The arguments of a layer; latent heads have a key head each."""
  more = {'num_kv_heads': H} if 'latent' in options else {}
  return {'scheme': posjax.get('alibi'), **more, **options}


def between(options: dict[str, Any]) -> tuple[Any, Any]:
  """A layer's output with a bias, and that of the oracle between the layer's own projections."""
  layer = make('nnx', **full(options))
  bias = jnp.asarray(normal(1, H, T, T))
  q, k, v = layer._heads(X, X)
  rules = {name: options[name] for name in ('causal', 'window') if name in options}
  window, rules['mask'] = rules.pop('window', None), None
  if window is not None:
    left, right = (T if end is None else end for end in window)
    distance = POS[:, None] - POS
    rules['mask'] = (distance <= left) & (distance >= -right)
  sides = {'q_pos': POS, 'k_pos': POS}
  inner = oracle.attention(
    q, k, v, posjax.get('alibi'), scheme_params(layer), **sides, **rules, bias=bias
  )
  expected = layer.out(jnp.asarray(inner, jnp.float32))
  return layer(X, POS, bias=bias), np.asarray(expected, np.float64)


def both_layers(options: dict[str, Any]) -> tuple[Any, Any]:
  """The output of the layer of linen, and that of nnx, with the same weights."""
  from posjax.linen import Attention

  one = make('nnx', **full(options))
  other = Attention(**{'width': M, **SIZES, **full(options)})
  params = nnx.to_pure_dict(nnx.state(one, nnx.Param))
  return other.apply({'params': params}, X, POS), np.asarray(one(X, POS), np.float64)
