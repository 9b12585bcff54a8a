"""The second part: seconds and memory of causal attention with its gradients, by length.

All implementations run in turns, so that noise of the machine is shared among them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from posjax.check.process import Budget, Ended, OutOfTime, Worker

# One scheme for each kind of call between which attention chooses.
SCHEMES = ('rope', 't5', 'shaw')
LENGTHS = tuple(512 * 2**n for n in range(9))
_ROUNDS = 5
_LIMIT = 60.0  # seconds of one answer


class Speed(NamedTuple):
  """Time and memory of one implementation, for one scheme at one length.

  Attributes:
    implementation: who computes.
    scheme: a line of `posjax.get`.
    length: tokens.
    chosen: the implementation that attention takes by default; '' where that is not known.
    seconds: of each round; none where `why` says why not.
    temporary: bytes held beside arguments and results, by the compiler's account.
    why: there are no seconds.
    ended: whether a process gave no answer, though there was memory.
  """

  implementation: str
  scheme: str
  length: int
  chosen: str = ''
  seconds: tuple[float, ...] = ()
  temporary: int | None = None
  why: str = ''
  ended: bool = False

  @property
  def median(self) -> float:
    """Seconds."""
    return statistics.median(self.seconds)


class _Track:
  """One implementation with one scheme, length after length, until one cannot be measured."""

  def __init__(self, worker: Worker, scheme: str):
    self._worker, self._scheme = worker, scheme
    self.over = False
    self._expected = 0.0  # seconds of the next length: compilation and all rounds

  def build(self, length: int, budget: Budget) -> Speed:
    """Compiles it; without `why`, it can be run."""
    speed = Speed(self._worker.implementation, self._scheme, length)
    if self._expected > budget.left():
      return self._stop(speed._replace(why='no time'))
    begun = time.monotonic()
    try:
      answer = self._worker.ask(budget, _LIMIT, 'build', scheme=self._scheme, length=length)
    except (Ended, OutOfTime) as error:
      return self._gone(speed, error)
    speed = speed._replace(chosen=answer['chosen'], temporary=answer.get('temporary'))
    if 'tiles' in answer:
      return self._stop(speed._replace(why=f'tiles: {answer["tiles"]}'))
    if 'needs' in answer:
      return self._stop(speed._replace(why='no memory'))
    # Twice the tokens take up to four times as long, and so did the two runs just now.
    self._expected = time.monotonic() - begun + 4 * (_ROUNDS + 2) * answer['seconds']
    return speed

  def run(self, speed: Speed, budget: Budget) -> Speed:
    """One more round."""
    try:
      seconds = self._worker.ask(budget, _LIMIT, 'run')['seconds']
    except (Ended, OutOfTime) as error:
      return self._gone(speed._replace(seconds=()), error)
    return speed._replace(seconds=(*speed.seconds, seconds))

  def _stop(self, speed: Speed) -> Speed:
    self.over = True
    return speed

  def _gone(self, speed: Speed, error: Exception) -> Speed:
    if isinstance(error, OutOfTime):
      return self._stop(speed._replace(why='no time'))
    if 'RESOURCE_EXHAUSTED' in str(error):
      return self._stop(speed._replace(why='no memory'))
    return self._stop(speed._replace(why=str(error), ended=True))


def measure(
  workers: Sequence[Worker], budget: Budget, one_at_a_time: bool, say: Callable[[str], None]
) -> list[Speed]:
  """Times of every implementation at growing lengths, as far as time and memory allow.

  Args:
    workers: one for each implementation.
    budget: of all.
    one_at_a_time: whether the device serves one process only; there are no turns then.
    say: is told what comes next.
  """
  if not one_at_a_time:
    return _by_length(workers, budget, say)
  found = []
  for i, worker in enumerate(workers):
    found += _by_length([worker], Budget(budget.left() / (len(workers) - i)), say)
    worker.close()
  return found


def _by_length(
  workers: Sequence[Worker], budget: Budget, say: Callable[[str], None]
) -> list[Speed]:
  tracks = {scheme: [_Track(worker, scheme) for worker in workers] for scheme in SCHEMES}
  found = []
  for length in LENGTHS:
    for scheme, every in tracks.items():
      say(f'speed: {scheme}, {length:,} tokens')
      found += _in_turns([track for track in every if not track.over], length, budget)
  return found


def _in_turns(tracks: Sequence[_Track], length: int, budget: Budget) -> list[Speed]:
  speeds = [track.build(length, budget) for track in tracks]
  for turn in range(_ROUNDS):
    for i in range(len(tracks)):
      n = (i + turn) % len(tracks)
      if not speeds[n].why:
        speeds[n] = tracks[n].run(speeds[n], budget)
  return speeds
