"""Small schemes written for the tests alone: one for each mechanism of the record.

Fixtures for the tests of chains, caches, layers and borders: their first parameters are large, so
that what is lost shows, and none changes when a real scheme does. `TOYS` names them all, and
toy_schemes_test.py holds each against a float64 loop.
"""

import jax
import jax.numpy as jnp
import numpy as np

from posjax.math.angles import angles, frequencies
from posjax.scheme import Scheme, Traits, Values

REACH = 4  # tables of distances hold -REACH .. REACH


def dot(q, k):
  """q . k in float32 for grouped heads, [B, H, T, S]."""
  k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)
  return jnp.einsum('bthd,bshd->bhts', q.astype(jnp.float32), k.astype(jnp.float32))


def bucket(q_at, k_at):
  """Index of each pair's clipped distance, [B, T, S]."""
  return jnp.clip(q_at[:, :, None] - k_at[:, None], -REACH, REACH) + REACH


def pick(scores, index):
  """Scores [B, T, H, N] of each row's table entries at index [B, T, S]: [B, H, T, S]."""
  scores = jnp.moveaxis(scores, 2, 1)
  index = jnp.broadcast_to(index[:, None], (*scores.shape[:3], index.shape[-1]))
  return jnp.take_along_axis(scores, index, axis=-1)


def cosine():
  """Replaces the logits: the cosine of q and k, times a temperature for each head."""

  def unit(x):
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)

  def logits(params, logits, q, k, q_at, k_at):
    return params['temperature'][None, :, None, None] * dot(unit(q), unit(k))

  def init(key, dims):
    return {'temperature': 1.0 + jnp.arange(dims.num_heads)}

  return Scheme(init=init, logits=logits)


def counted(num_counts=5):
  """Whole rows: sigmoid gates, summed from each key up to the query, place a fractional id."""

  def logits(params, logits, q, k, q_at, k_at):
    gates = jax.nn.sigmoid(logits)
    count = jnp.minimum(jnp.cumsum(gates[..., ::-1], axis=-1)[..., ::-1], num_counts - 1)
    low = jnp.floor(count).astype(jnp.int32)
    high = jnp.minimum(low + 1, num_counts - 1)
    scores = jnp.einsum('bthd,nd->bhtn', q.astype(jnp.float32), params['table'])
    below, above = (jnp.take_along_axis(scores, i, axis=-1) for i in (low, high))
    return logits + below + (count - low) * (above - below)

  def init(key, dims):
    return {'table': jax.random.normal(key, (num_counts, dims.head_dim))}

  return Scheme(init=init, logits=logits, traits=Traits(axes=0, mixes='S'))


def wide():
  """Widens the heads: (q + u) . k + (q + v) . W [sin, cos](distance), as one dot product."""

  def query(params, q, at):
    q = q.astype(jnp.float32)
    angle = angles(at, frequencies(q.shape[-1], 100.0))[:, :, None]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    u, v = params['u'][None, None], params['v'][None, None]
    ws, wc = jnp.split(jnp.einsum('bthd,hde->bthe', q + v, params['w']), 2, axis=-1)
    return jnp.concatenate([q + u, ws * sin + wc * cos, wc * sin - ws * cos], axis=-1)

  def key(params, k, at):
    angle = angles(at, frequencies(k.shape[-1], 100.0))[:, :, None]
    code = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)
    return jnp.concatenate([k, jnp.broadcast_to(code, k.shape)], axis=-1)

  def init_model(key, dims):
    u, v = jax.random.normal(key, (2, dims.num_heads, dims.head_dim))
    return {'u': u, 'v': v}

  def init(key, dims):
    return {'w': jax.random.normal(key, (dims.num_heads, dims.head_dim, dims.head_dim))}

  return Scheme(init_model=init_model, init=init, query=query, key=key)


def forgetful():
  """A prepared side with a state: the sum of log gates up to each token; distance by sums."""

  def prepare(params, x, pos, last, starts):
    gates = jax.nn.log_sigmoid(jnp.einsum('btm,mh->bth', x.real.astype(jnp.float32), params['w']))
    total = jnp.cumsum(gates, axis=1)
    return params, {'total': total if last is None else total + last['total'][:, None]}

  def logits(params, logits, q, k, q_at, k_at):
    return logits + jnp.moveaxis(q_at['total'][:, :, None] - k_at['total'][:, None], -1, 1)

  def init(key, dims):
    return {'w': jax.random.normal(key, (dims.width, dims.num_heads))}

  return Scheme(init=init, prepare=prepare, logits=logits)


def convolved():
  """A short convolution within each document: how much a key weighs depends on three tokens."""

  def prepare(params, x, pos, last, starts):
    y = jnp.einsum('btm,mh->bth', x.real.astype(jnp.float32), params['w'])
    state = jnp.zeros((y.shape[0], 2, y.shape[2])) if last is None else last['near']
    stream = jnp.concatenate([state[:, ::-1], y], axis=1)
    starts = starts[..., None]
    after_start = jnp.pad(starts[:, :-1], ((0, 0), (1, 0), (0, 0)))
    first = jnp.where(starts, 0, stream[:, 1:-1])
    second = jnp.where(starts | after_start, 0, stream[:, :-2])
    return params, {'weight': y + 2 * first - 3 * second, 'near': jnp.stack([y, first], axis=2)}

  def logits(params, logits, q, k, q_at, k_at):
    return logits + jnp.moveaxis(k_at['weight'], -1, 1)[:, :, None]

  def init(key, dims):
    return {'w': jax.random.normal(key, (dims.width, dims.num_heads))}

  return Scheme(init=init, prepare=prepare, logits=logits, traits=Traits(axes=0))


def streets():
  """Two ids per token: a slope for each head and axis, on |dy| and |dx|."""

  def bias(params, distance):
    return -jnp.einsum('ha,...a->h...', params['slopes'], abs(distance).astype(jnp.float32))

  def init(key, dims):
    return {'slopes': jax.random.uniform(key, (dims.num_heads, 2))}

  return Scheme(init=init, bias=bias, traits=Traits(axes=2))


def shared_table():
  """A table for all layers, projections of each layer, multiplied once in `prepare`."""

  def prepare(params, x, pos, last, starts):
    names = {'content': 'w_k', 'position': 'w_q'}
    project = lambda w: jnp.einsum('nm,mhd->nhd', params['table'], w)
    return {name: project(params[w]) for name, w in names.items()}, pos

  def logits(params, logits, q, k, q_at, k_at):
    q = q.astype(jnp.float32)
    k = jnp.repeat(k, q.shape[2] // k.shape[2], axis=2).astype(jnp.float32)
    index = bucket(q_at, k_at)
    content = pick(jnp.einsum('bthd,nhd->bthn', q, params['content']), index)
    position = pick(jnp.einsum('bshd,nhd->bshn', k, params['position']), index.swapaxes(1, 2))
    return logits + q.shape[-1] ** -0.5 * (content + position.swapaxes(2, 3))

  def init_model(key, dims):
    return {'table': jax.random.normal(key, (2 * REACH + 1, dims.width))}

  def init(key, dims):
    w = jax.random.normal(key, (2, dims.width, dims.num_heads, dims.head_dim))
    return {'w_q': w[0] * dims.width**-0.5, 'w_k': w[1] * dims.width**-0.5}

  return Scheme(init_model=init_model, init=init, prepare=prepare, logits=logits)


def waves():
  """Complex embeddings, x e^(i pos frequency[token]), and logits made real by their modulus."""

  def embed(params, x, tokens, pos):
    phase = pos[..., None].astype(jnp.float32) * params['frequency'][tokens]
    return x * jnp.exp(1j * phase)

  def logits(params, logits, q, k, q_at, k_at):
    return jnp.sqrt(jnp.square(logits.real) + jnp.square(logits.imag) + 1e-12)

  def init_model(key, dims):
    return {'frequency': jax.random.uniform(key, (dims.vocab, dims.width))}

  return Scheme(init_model=init_model, embed=embed, logits=logits)


def mixing(width=3):
  """Mixes heads: a small network over the logits of all heads of a pair."""

  def logits(params, logits, q, k, q_at, k_at):
    hidden = jnp.tanh(jnp.einsum('bhts,hw->bwts', logits, params['inner']))
    return logits + jnp.einsum('bwts,wh->bhts', hidden, params['outer'])

  def init(key, dims):
    inner, outer = jax.random.normal(key, (2, dims.num_heads, width))
    return {'inner': inner, 'outer': outer.T}

  return Scheme(init=init, logits=logits, traits=Traits(axes=0, mixes='H'))


def two_tables():
  """A key table and a value table by clipped distance."""

  def logits(params, logits, q, k, q_at, k_at):
    scores = jnp.einsum('bthd,nd->bthn', q.astype(jnp.float32), params['keys'])
    return logits + q.shape[-1] ** -0.5 * pick(scores, bucket(q_at, k_at))

  def values(params, weights, q_at, k_at):
    one_hot = jax.nn.one_hot(bucket(q_at, k_at), 2 * REACH + 1, dtype=weights.dtype)
    return jnp.einsum('bhts,btsn,nd->bthd', weights, one_hot, params['values'])

  def init(key, dims):
    keys, values = jax.random.normal(key, (2, 2 * REACH + 1, dims.head_dim))
    return {'keys': keys, 'values': values}

  return Scheme(init=init, logits=logits, values=Values(add=values))


def stretched(most=4):
  """Random ids, with a bias that shows them: each row stretched and moved by whole numbers."""

  def ids(pos, key):
    if key is None:
      return pos
    stretch, move = jax.random.randint(key, (2, pos.shape[0], 1), 1, most + 1)
    return pos * (1 + stretch) + move

  def bias(params, distance):
    slopes = jax.lax.stop_gradient(params['slopes']).reshape(-1, *(1,) * distance.ndim)
    return -slopes * abs(distance)[None].astype(jnp.float32)

  def init(key, dims):
    return {'slopes': jnp.asarray(np.linspace(0.1, 1.0, dims.num_heads), jnp.float32)}

  return Scheme(ids=ids, init=init, bias=bias, traits=Traits(fixed=('slopes',)))


TOYS = {
  'cosine': cosine(),
  'counted': counted(),
  'wide': wide(),
  'forgetful': forgetful(),
  'convolved': convolved(),
  'streets': streets(),
  'shared_table': shared_table(),
  'waves': waves(),
  'mixing': mixing(),
  'two_tables': two_tables(),
  'stretched': stretched(),
}
