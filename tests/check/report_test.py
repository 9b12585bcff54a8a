"""The advice of a report: what was taken by default, beside what was fastest and what was wrong."""

from posjax.check.cases import cases
from posjax.check.report import Report
from posjax.check.speeds import Speed
from posjax.check.values import Result

FACTS = {'implementations': {'dense': '', 'blockwise': '', 'pallas': '', 'cudnn': 'no GPU'}}


def report(speeds, wrong=()):
  results = [Result(name, cases()[0], 'wrong', 'far off', 1.0) for name in wrong]
  return Report(FACTS, results, speeds, 1.0)


def row(chosen, scheme='rope', length=512, **seconds):
  """Speeds of one scheme and length, with a spread of a twentieth either way."""
  return [
    Speed(name, scheme, length, chosen, (0.95 * s, s, 1.05 * s)) for name, s in seconds.items()
  ]


def test_a_default_that_is_fastest_within_the_spread_stays():
  speeds = row('dense', dense=1.08, blockwise=1.0) + row('pallas', 't5', dense=2.0, pallas=1.0)
  assert 'Nothing needs to be set' in report(speeds).advice()
  assert 'in all 2 comparisons' in report(speeds).advice()


def test_what_is_faster_on_average_is_named_for_the_environment():
  speeds = row('dense', dense=2.0, blockwise=1.0) + row('dense', 't5', dense=1.0, blockwise=1.0)
  advice = report(speeds).advice()
  assert 'not the fastest for rope at 512: set POSJAX_IMPLEMENTATION=blockwise' in advice
  assert 'takes 0.71 of its time on average' in advice


def test_where_nothing_else_is_faster_on_average_nothing_is_set_for_all():
  speeds = row('dense', dense=1.2, blockwise=1.0) + row('dense', 't5', dense=1.0, blockwise=4.0)
  assert 'leave POSJAX_IMPLEMENTATION unset' in report(speeds).advice()


def test_what_is_wrong_is_never_recommended():
  speeds = row('dense', dense=2.0, blockwise=1.5, pallas=1.0)
  assert 'POSJAX_IMPLEMENTATION=blockwise' in report(speeds, wrong=['pallas']).advice()
  speeds = row('pallas', dense=2.0, blockwise=1.5, pallas=1.0)
  advice = report(speeds, wrong=['pallas']).advice()
  assert advice == (
    'pallas, which attention takes by default, had problems: set POSJAX_IMPLEMENTATION=blockwise.'
  )


def test_what_leaves_a_scheme_to_tiles_takes_their_time_there():
  tiles = Speed('pallas', 'shaw', 512, 'blockwise', why='tiles: the scheme has logits')
  speeds = row('dense', dense=2.0, blockwise=2.0, pallas=1.0)
  speeds += [*row('blockwise', 'shaw', blockwise=1.0), tiles]
  assert 'set POSJAX_IMPLEMENTATION=pallas, which takes 0.71' in report(speeds).advice()


def test_without_times_there_is_no_advice():
  assert report([]).advice() == ''
