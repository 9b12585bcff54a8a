"""Everything that was found, and the advice that follows from it."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from posjax.check.collectives import Collective
from posjax.check.speeds import Speed
from posjax.check.values import Result

DEFAULT = 'POSJAX_IMPLEMENTATION'


class Report(NamedTuple):
  """Everything that a check found.

  Attributes:
    facts: of `worker.Answers.facts`.
    results: of the first part.
    speeds: of the second part; none where it was not asked for.
    seconds: that the check took.
    collectives: between several devices.
    no_collectives: why there are none; '' where nothing went wrong.
  """

  facts: dict[str, Any]
  results: list[Result]
  speeds: list[Speed]
  seconds: float
  collectives: Sequence[Collective] = ()
  no_collectives: str = ''

  @property
  def absent(self) -> dict[str, str]:
    """The implementations that compute nothing on this device, and why."""
    return {name: why for name, why in self.facts['implementations'].items() if why}

  @property
  def present(self) -> list[str]:
    """The other implementations."""
    return [name for name, why in self.facts['implementations'].items() if not why]

  @property
  def problems(self) -> list[str]:
    """A line for everything that is wrong, or gave no answer."""
    lines = [
      f'{x.implementation}, {x.case.title}: {"" if x.status == "ended" else "wrong: "}{x.detail}'
      for x in self.results
      if x.status in ('wrong', 'ended')
    ]
    lines += [f'collectives: {self.no_collectives}'] * bool(self.no_collectives)
    return lines + [
      f'{x.implementation}, {x.scheme} at {x.length:,} tokens: {x.why}'
      for x in self.speeds
      if x.ended
    ]

  def row(self, speed: Speed) -> list[Speed]:
    """All speeds of the same scheme and length that have seconds."""
    same = lambda x: (x.scheme, x.length) == (speed.scheme, speed.length)
    return [x for x in self.speeds if same(x) and x.seconds]

  def taken(self) -> list[Speed]:
    """The speeds of what attention takes by default, where they were measured."""
    return [x for x in self.speeds if x.seconds and x.implementation == x.chosen]

  def faster(self, taken: Speed) -> Speed | None:
    """The fastest, if the default was slower by more than the spread of the rounds."""
    best = min(self.row(taken), key=lambda x: x.median)
    return None if min(taken.seconds) <= max(best.seconds) else best

  def advice(self) -> str:
    """The setting for this device, in one line; '' where nothing was compared in time."""
    broken = {x.implementation for x in self.results if x.status in ('wrong', 'ended')}
    broken |= {x.implementation for x in self.speeds if x.ended}
    sound = [name for name in self.present if name not in broken]
    taken = self.taken()
    if hit := sorted(broken & {x.chosen for x in self.speeds}):
      best = next((name for name in ('blockwise', *sound) if name in sound), None)
      instead = f'set {DEFAULT}={best}' if best else 'no implementation is right here'
      return f'{" and ".join(hit)}, which attention takes by default, had problems: {instead}.'
    if not taken:
      return ''
    slower = [x for x in taken if self.faster(x)]
    if not slower:
      return (
        f'Nothing needs to be set: the default was the fastest, within the spread, in all '
        f'{len(taken)} comparisons.'
      )
    calls = ', '.join(f'{x.scheme} at {x.length:,}' for x in slower)
    share, best = min((self._share(name, taken), name) for name in sound)
    if share < 1:
      return (
        f'The default was not the fastest for {calls}: set {DEFAULT}={best}, which takes '
        f'{share:.2f} of its time on average over these schemes and lengths.'
      )
    return (
      f'The default was not the fastest for {calls}, but no other is faster on average: leave '
      f'{DEFAULT} unset, and name an implementation in those calls.'
    )

  def _share(self, name: str, taken: list[Speed]) -> float:
    """The geometric mean of an implementation's time over the default's; inf if unknown."""
    logs = []
    for default in taken:
      medians = {x.implementation: x.median for x in self.row(default)}
      in_tiles = any(
        (x.implementation, x.scheme) == (name, default.scheme) and x.why.startswith('tiles')
        for x in self.speeds
      )
      seconds = medians.get('blockwise' if in_tiles else name, math.inf)
      logs.append(math.log(seconds / default.median))
    return math.exp(sum(logs) / len(logs))

  def as_json(self) -> dict[str, Any]:
    """All of it, in plain numbers and words."""
    results = [
      {'implementation': x.implementation, **x.case.kind._asdict(), 'width': x.case.width}
      | {'dtype': x.case.dtype, 'status': x.status, 'detail': x.detail}
      | {'error': _finite(x.error), 'bound': x.case.bound}
      for x in self.results
    ]
    return {
      **self.facts,
      'results': results,
      'speeds': [x._asdict() for x in self.speeds],
      'collectives': [x._asdict() for x in self.collectives],
      'problems': self.problems,
      'advice': self.advice(),
      'seconds': self.seconds,
    }


def _finite(error: float | None) -> float | str | None:
  """JSON has no infinity."""
  return error if error is None or math.isfinite(error) else 'infinite'
