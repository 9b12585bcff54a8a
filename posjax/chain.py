"""`chain`: several schemes as one.

Each field of the record is composed only if some member uses it, so that a chain declares no
place that none of its members has. Parameters and traits are the exception.
"""

from collections.abc import Callable
from typing import Any

import jax

from posjax.scheme import At, Relative, Scheme, Tiled, Traits, Values, check_is_scheme, declares


def chain(*schemes: Scheme) -> Scheme:
  """Composes schemes: most places in order, `values.output` in reverse; biases are summed.

  The last member to transform the values is the first to transform their sum.

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
  parts = tuple(p for s in schemes for p in (s.parts or (s,)) if not _does_nothing(p))
  if len(parts) < 2:
    return parts[0] if parts else next(iter(schemes), Scheme())
  fields = {name: compose(parts) for name, compose in _ALWAYS.items()}
  for name, compose in _WHERE_USED.items():
    if any(declares(part, name) for part in parts):
      fields[name] = compose(parts)
  made = Scheme(**fields)
  lines = [scheme.line for scheme in schemes if not _does_nothing(scheme)]
  return made.with_line(None if None in lines else '+'.join(filter(None, lines)))


def _does_nothing(scheme: Scheme) -> bool:
  return scheme in (Scheme(), Scheme(traits=Traits(axes=0)))


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
  def prepare(params, x, pos, last, starts):
    lasts = (None,) * len(parts) if last is None else last
    members = zip(parts, params, lasts, strict=True)
    both = [part.prepare(p, x, pos, one, starts) for part, p, one in members]
    return tuple(p for p, _ in both), tuple(at for _, at in both)

  return prepare


def _chain_heads(of: Callable[[Scheme], Any], reverse: bool = False):
  """Composes functions of heads; `of` gives that of a member."""

  def chained(parts):
    def composed(params, x, at):
      members = list(zip(parts, params, _each(parts, at), strict=True))
      for part, p, one in reversed(members) if reverse else members:
        x = of(part)(p, x, one)
      return x

    return composed

  return chained


def _chain_logits(parts, tiled: bool = False):
  """The logits of all members, or their faster forms in tiles."""

  def logits(params, logits, q, k, q_at, k_at):
    sides = zip(parts, params, _each(parts, q_at), _each(parts, k_at), strict=True)
    for part, p, q_one, k_one in sides:
      function = (part.traits.tiled.logits if tiled else None) or part.logits
      logits = function(p, logits, q, k, q_one, k_one)
    return logits

  return logits


def _chain_bias(parts):
  def bias(params, distance):
    members = zip(parts, params, strict=True)
    return sum(part.bias(p, distance) for part, p in members if part.bias)

  return bias


def _chain_values(parts) -> Values:
  value, output = (lambda part: part.values.value), (lambda part: part.values.output)
  used = lambda function: any(function(p) != function(Scheme()) for p in parts)
  composed = {'value': _chain_heads(value)(parts)} if used(value) else {}
  composed |= {'output': _chain_heads(output, reverse=True)(parts)} if used(output) else {}
  return Values(**composed, add=_chain_add(parts))


def _chain_add(parts, tiled: bool = False) -> Any:
  """The sum of the members' additions, or of their faster forms in tiles; None if all are None."""
  added = [((part.traits.tiled.add if tiled else None) or part.values.add) for part in parts]
  if not any(added):
    return None

  def add(params, weights, q_at, k_at):
    sides = zip(added, params, _each(parts, q_at), _each(parts, k_at), strict=True)
    return sum(one(p, weights, q_one, k_one) for one, p, q_one, k_one in sides if one)

  return add


def _chain_traits(parts) -> Traits:
  axes = sorted({part.traits.axes for part in parts} - {0})
  if len(axes) > 1:
    raise ValueError(f'Chained schemes must agree on the ids per token, but they want {axes}.')
  mixes = ''.join(sorted({letter for part in parts for letter in part.traits.mixes}))
  return Traits(max(axes, default=0), mixes, tiled=_chain_tiled(parts), parts=parts)


def _chain_tiled(parts) -> Tiled:
  """Members in their faster forms, each where no other member stands in its way."""
  faster = [part.traits.tiled for part in parts]
  return Tiled(
    logits=_chain_logits(parts, tiled=True) if any(form.logits for form in faster) else None,
    add=_chain_add(parts, tiled=True) if any(form.add for form in faster) else None,
    relative=_chain_relative(parts),
    cut_heads=_chain_cut_heads(parts),
    constant_from=_chain_constant_from(parts),
  )


def _chain_relative(parts):
  """That of the only member with place 2: others would transform what it adds to the heads."""
  movers = [i for i, p in enumerate(parts) if declares(p, 'query') or declares(p, 'key')]
  if len(movers) != 1 or parts[movers[0]].traits.tiled.relative is None:
    return None
  i = movers[0]
  member = parts[i].traits.tiled.relative
  return Relative(
    content=lambda params, q: member.content(params[i], q),
    heads=lambda params, q: member.heads(params[i], q),
    vectors=lambda params, distance: member.vectors(params[i], distance),
  )


def _chain_constant_from(parts):
  limits = [part.traits.tiled.constant_from for part in parts if part.bias is not None]
  return max(limits) if limits and None not in limits else None


def _chain_cut_heads(parts):
  """Cuts every member that tiles call; None if one of them cannot be cut."""
  inside = [p for p in parts if declares(p, 'logits') or p.values.add]
  if not inside or not all(p.traits.tiled.cut_heads for p in inside):
    return None

  def cut_heads(params, first, count, shared):
    members = zip(parts, params, strict=True)
    cut = lambda part, own: part.traits.tiled.cut_heads(own, first, count, shared)
    return tuple(cut(part, own) if part.traits.tiled.cut_heads else own for part, own in members)

  return cut_heads


# Each makes a field of the chain of those of the members.
_ALWAYS: dict[str, Callable[[tuple[Scheme, ...]], Any]] = {
  'init_model': _chain_init('init_model'),
  'init': _chain_init('init'),
  'traits': _chain_traits,
}
_WHERE_USED: dict[str, Callable[[tuple[Scheme, ...]], Any]] = {
  'ids': _chain_ids,
  'embed': _chain_embed,
  'prepare': _chain_prepare,
  'query': _chain_heads(lambda part: part.query),
  'key': _chain_heads(lambda part: part.key),
  'logits': _chain_logits,
  'bias': _chain_bias,
  'values': _chain_values,
}
