"""`chain`: several schemes as one.

Each field of the record is composed only if some member uses it, so that a chain declares no
place that none of its members has. Parameters are the exception: always a tuple.
"""

from collections.abc import Callable
from typing import Any

import jax

from posjax.scheme import At, Relative, Scheme, Tiled, check_is_scheme, declares, in_tiles


def chain(*schemes: Scheme) -> Scheme:
  """Composes schemes: most places in order, `output` in reverse; bias and values are summed.

  What the last member does to the values last, its `output` is the first to undo.

  Associative, with identity `Scheme()`. Parameters, and `at` where a member prepares its own,
  become tuples with one entry per member.

  Args:
    *schemes: schemes or chains, in the order in which they act.

  Returns:
    One scheme; `parts` holds the members, flat. Its `repr` is theirs, joined by `+`.

  Raises:
    ValueError: if members ask for different numbers of ids per token.
    TypeError: if a member is no scheme.
  """
  for scheme in schemes:
    check_is_scheme(scheme)
  parts = tuple(p for s in schemes for p in (s.parts or (s,)) if p != Scheme())
  if len(parts) < 2:
    return parts[0] if parts else next(iter(schemes), Scheme())
  axes = sorted({p.axes for p in parts} - {0})
  if len(axes) > 1:
    raise ValueError(f'Chained schemes must agree on the ids per token, but they want {axes}.')
  used = [f for f in _CHAINED if f.startswith('init') or any(declares(p, f) for p in parts)]
  fields = {field: _CHAINED[field](parts) for field in used}
  whole = ''.join(sorted({letter for p in parts for letter in p.whole}))
  documents = any(p.documents for p in parts)
  if documents:
    fields['prepare'] = _chain_prepare_documents(parts)
  axes_of_all = max(axes, default=0)
  made = Scheme(**fields, axes=axes_of_all, whole=whole, documents=documents, parts=parts)
  lines = [scheme.line for scheme in schemes if scheme != Scheme()]
  return made.with_line(None if None in lines else '+'.join(filter(None, lines)))


def _each(parts: tuple[Scheme, ...], at: At) -> tuple[At, ...]:
  """One `at` per member: the ids for all of them, unless some member prepares its own."""
  return at if any(declares(p, 'prepare') for p in parts) else (at,) * len(parts)


def _chain_ids(parts):
  def ids(pos, key):
    for i, part in enumerate(parts):
      pos = part.ids(pos, None if key is None else jax.random.fold_in(key, i))
    return pos

  return ids


def _chain_init(field: str):
  def chained(parts):
    def init(key, dims):
      keys = jax.random.split(key, len(parts))
      return tuple(getattr(part, field)(k, dims) for part, k in zip(parts, keys, strict=True))

    return init

  return chained


def _chain_embed(parts):
  def embed(params, x, tokens, pos):
    for part, p in zip(parts, params, strict=True):
      x = part.embed(p, x, tokens, pos)
    return x

  return embed


def _chain_prepare(parts):
  return lambda params, x, pos, last: _prepare_each(parts, params, x, pos, last, ())


def _chain_prepare_documents(parts):
  return lambda params, x, pos, last, starts: _prepare_each(parts, params, x, pos, last, (starts,))


def _prepare_each(parts, params, x, pos, last, starts):
  lasts = (None,) * len(parts) if last is None else last
  both = [
    part.prepare(p, x, pos, one, *starts[: part.documents])
    for part, p, one in zip(parts, params, lasts, strict=True)
  ]
  return tuple(p for p, _ in both), tuple(at for _, at in both)


def _chain_turn(field: str, reverse: bool = False):
  def chained(parts):
    def turn(params, x, at):
      members = list(zip(parts, params, _each(parts, at), strict=True))
      for part, p, one in reversed(members) if reverse else members:
        x = getattr(part, field)(p, x, one)
      return x

    return turn

  return chained


def _chain_logits(parts):
  def logits(params, logits, q, k, q_at, k_at):
    sides = zip(parts, params, _each(parts, q_at), _each(parts, k_at), strict=True)
    for part, p, q_one, k_one in sides:
      logits = part.logits(p, logits, q, k, q_one, k_one)
    return logits

  return logits


def _chain_bias(parts):
  def bias(params, distance):
    members = zip(parts, params, strict=True)
    return sum(part.bias(p, distance) for part, p in members if part.bias)

  return bias


def _chain_values(parts):
  def values(params, weights, q_at, k_at):
    sides = zip(parts, params, _each(parts, q_at), _each(parts, k_at), strict=True)
    return sum(s.values(p, weights, q_one, k_one) for s, p, q_one, k_one in sides if s.values)

  return values


def _chain_tiled(parts) -> Tiled:
  """Members in their faster forms, each where no other member stands in its way."""
  faster = tuple(in_tiles(part) for part in parts)
  values: Any = _chain_values(faster)
  return Tiled(
    logits=_chain_logits(faster) if any(p.tiled.logits for p in parts) else None,
    values=values if any(p.tiled.values for p in parts) else None,
    relative=_chain_relative(parts),
    cut_heads=_chain_cut_heads(parts),
  )


def _chain_relative(parts):
  """That of the only member with place 2: others would turn what it adds to the heads."""
  turning = [i for i, p in enumerate(parts) if declares(p, 'query') or declares(p, 'key')]
  if len(turning) != 1 or parts[turning[0]].tiled.relative is None:
    return None
  i = turning[0]
  member = parts[i].tiled.relative
  return Relative(
    content=lambda params, q: member.content(params[i], q),
    heads=lambda params, q: member.heads(params[i], q),
    vectors=lambda params, distance: member.vectors(params[i], distance),
  )


def _chain_cut_heads(parts):
  """Cuts every member that tiles call; None if one of them cannot be cut."""
  inside = [p for p in parts if declares(p, 'logits') or declares(p, 'values')]
  if not inside or not all(p.tiled.cut_heads for p in inside):
    return None

  def cut_heads(params, first, count, shared):
    members = zip(parts, params, strict=True)
    cut = lambda part, own: part.tiled.cut_heads(own, first, count, shared)
    return tuple(cut(part, own) if part.tiled.cut_heads else own for part, own in members)

  return cut_heads


_CHAINED: dict[str, Callable[[tuple[Scheme, ...]], Any]] = {
  'ids': _chain_ids,
  'init_model': _chain_init('init_model'),
  'init': _chain_init('init'),
  'embed': _chain_embed,
  'prepare': _chain_prepare,
  'query': _chain_turn('query'),
  'key': _chain_turn('key'),
  'value': _chain_turn('value'),
  'logits': _chain_logits,
  'bias': _chain_bias,
  'output': _chain_turn('output', reverse=True),
  'values': _chain_values,
  'tiled': _chain_tiled,
}
