"""Every interval in RESULTS.md is computed again from the lines that its section links to.

A number with brackets behind it must be the mean and the Student's interval of some runs of these
lines, or of the differences between two of their groups over equal seeds. Which two is not read
from the text: three numbers that agree in their last digit do so by chance hardly ever. The word
behind a difference must be the one that the margin of its metric asks for.
"""

import functools
import itertools
import json
import re
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from posjax.experiment.compare.statistics import EQUAL_LEVEL, interval
from tests.docs.results_test import DIFFERENCE, NUMBER, TEXT, anchor
from tests.support.paths import ROOT

PRINTED = re.compile(rf'({NUMBER})\*?\*?(?: %| bits| BLEU)? \[({NUMBER}), ({NUMBER})\]')
MARGINS = {'bleu': 0.3, 'loss': 0.02}  # as configs have them; of shares of right answers 0.5 points


class Group(NamedTuple):
  """Runs of one scheme and axis value; each number by seed, and without parts of the examples."""

  metric: str
  numbers: dict[int, float]
  step: float
  left_out: dict[int, list[float]]


def sections():
  """Each heading with its text, and the folders of lines that it or a heading above links to."""
  found, above = {}, []
  for part in re.split(r'^(?=#+ )', TEXT, flags=re.MULTILINE)[1:]:
    head, _, text = part.partition('\n')
    depth, heading = len(head.split()[0]), head.lstrip('# ')
    above = [*above[: depth - 1], *[()] * (depth - 1 - len(above)), _folders(text)]
    found[heading] = (text, tuple(itertools.chain(*above)))
  by_anchor = {anchor(heading): folders for heading, (_, folders) in found.items()}
  for heading in ('Short answers', 'Claims'):
    text, _ = found.pop(heading)
    for i, row in enumerate(line for line in text.splitlines() if line.startswith(('| ', '- '))):
      linked = [by_anchor.get(name, ()) for name in re.findall(r'\(#([^)]*)\)', row)]
      found[f'{heading}, row {i}'] = (row, tuple(itertools.chain(*linked)))
  return found


def _folders(text):
  files = re.findall(r'\]\((results/[^)]*\.jsonl)\)', text)
  others = ('metrics', 'h100', 'open_questions')  # no lines of compare
  return tuple(file for file in files if not any(name in file for name in others))


@functools.cache
def groups(folders):
  """All quantities of the lines: by evaluation and metric, of all runs and of those that learned.

  Also means over the evaluations at unseen lengths, and over all values of an axis.
  """
  found = {}
  for folder in folders:
    lines = [json.loads(line) for line in (ROOT / folder).read_text('utf-8').splitlines()]
    for line in map(_as_scores, lines):
      for name, number, step, without in _numbers(line):
        for kind in ('all', *(['learned'] if _learned(line) else [])):
          axes = tuple(sorted((key, str(x)) for key, x in line['axes'].items()))
          key = folder, line['scheme'], axes, name, kind
          group = found.setdefault(key, Group(name[1], {}, step, {}))
          group.numbers[line['seed']] = number
          if without:
            group.left_out[line['seed']] = without
  every = [*found.values(), *_over_axes(found)]
  return list(
    {(group.metric, str(sorted(group.numbers.items()))): group for group in every}.values()
  )


def _as_scores(line):
  """A line of reach.jsonl, which is older than compare, as one of compare's."""
  if 'scores' in line:
    return line
  metric = {'loss': {'scale': 1.0, 'best': None}}
  return {
    **line,
    'axes': {},
    'evaluations': {length: {'role': 'other', 'metrics': metric} for length in line['loss']},
    'scores': {length: {'loss': loss, 'counted': 1} for length, loss in line['loss'].items()},
  }


def _numbers(line):
  """Each number of a line, as shown, with its name, step, and what it is without some examples."""
  unseen = {}
  for evaluation, scores in line['scores'].items():
    about = line['evaluations'][evaluation]
    for metric, said in about['metrics'].items():
      if scores.get(metric) is None:
        continue
      number = said['scale'] * scores[metric]
      step = said['scale'] * said['best'] / scores['counted'] if said['best'] else 0.0
      without = [said['scale'] * x for x in scores.get('left_out', {}).get(metric, ())]
      yield (evaluation, metric), number, step, without
      if about['role'] == 'unseen':
        unseen.setdefault(metric, []).append((number, step))
  for metric, each in unseen.items():
    numbers, steps = zip(*each, strict=True)
    yield ('unseen', metric), np.mean(numbers), np.mean(steps) / len(each), []


def _learned(line):
  """Whether nine tenths of answers are right where there is such a metric, in training rows if any.

  Any other line counts as learned.
  """
  for role in ('training rows', 'trained'):
    for evaluation, about in line['evaluations'].items():
      if about['role'] == role and 'accuracy' in about['metrics']:
        accuracy = line['scores'][evaluation]['accuracy']
        return accuracy is not None and accuracy >= 0.9 * about['metrics']['accuracy']['best']
  return True


def _over_axes(found):
  """Means over all values of one axis, or of more, for the seeds that have them all."""
  wider = {}
  for (folder, scheme, axes, name, kind), group in found.items():
    for count in range(1, len(axes) + 1):
      for gone in itertools.combinations(axes, count):
        kept = tuple(axis for axis in axes if axis not in gone)
        over = tuple(key for key, _ in gone)
        wider.setdefault((folder, scheme, kept, over, name, kind), []).append(group)
  sizes = {}
  for key, members in wider.items():
    short = key[0], key[3]
    sizes[short] = max(sizes.get(short, 0), len(members))
  for key, members in wider.items():
    seeds = set.intersection(*(set(group.numbers) for group in members))
    if len(members) == sizes[key[0], key[3]] and len(seeds) > 1:
      left_out = [group.left_out for group in members]
      parts = {len(each.get(seed, ())) for each in left_out for seed in seeds}
      numbers = _means([group.numbers for group in members], seeds)
      without = _means(left_out, seeds) if len(parts) == 1 and parts != {0} else {}
      without = {seed: list(each) for seed, each in without.items()}
      step = np.mean([group.step for group in members]) / len(members)
      yield Group(members[0].metric, numbers, step, without)


def _means(members, seeds):
  return {seed: np.mean([each[seed] for each in members], 0) for seed in seeds}


@functools.cache
def pool(folders, means):
  """Groups and differences of two whose mean is a printed one, [count, 5], by their mean.

  Columns are the mean, low, high, the half width at the level of equality, and the metric's margin.
  """
  printed = np.array([abs(float(mean)) for mean in means])
  near = np.array([_rounding(mean) for mean in means])
  ends = np.sort(np.stack([printed - near, printed + near], 1), axis=0).T

  def are_printed(found):
    """Whether each number lies in one of the ranges, which may overlap."""
    begun = np.searchsorted(ends[0], abs(found), side='right')
    return begun > np.searchsorted(ends[1], abs(found), side='left')

  over_seeds = _over_seeds(folders)
  known = [over_seeds[are_printed(over_seeds[:, 0])]]
  for found, each, margin in _over_examples(folders):
    wider = [(*_both(*each[i]), margin) for i in np.flatnonzero(are_printed(found))]
    known.append(np.array(wider).reshape(-1, 5))
  known = np.concatenate(known)
  known = known[np.isfinite(known).all(1)]
  known = np.concatenate([known, known[:, [0, 2, 1, 3, 4]] * [-1, -1, -1, 1, 1]])  # "worse by"
  return known[np.argsort(known[:, 0])]


@functools.cache
def _over_seeds(folders):
  """The intervals over seeds, as `pool`."""
  found = [np.zeros((0, 5))]
  for metric, members in _by_metric(folders):
    seeds = sorted({seed for group in members for seed in group.numbers})
    values = np.array([[group.numbers.get(seed, np.nan) for seed in seeds] for group in members])
    steps = np.array([group.step for group in members])
    mine = [_intervals(values, steps), _intervals(values, 0 * steps)]
    for i in range(len(members)):
      differences = values[i + 1 :] - values[i]
      mine += [_intervals(differences, step) for step in {float(steps[i]), 0.0}]
      if metric == 'loss':  # in per cent of the other
        mine.append(_intervals(100 * (values / values[i] - 1), 0.0))
    mine = np.concatenate(mine)
    found.append(np.column_stack([mine, np.full(len(mine), MARGINS.get(metric, 0.5))]))
  return np.concatenate(found)


def _by_metric(folders):
  every = groups(folders)
  for metric in {group.metric for group in every}:
    yield metric, [group for group in every if group.metric == metric]


def _quantiles(level):
  return np.array([np.nan, np.nan, *stats.t.ppf((1 + level) / 2, np.arange(1, 20))])  # by the count


T, NARROW = _quantiles(0.95), _quantiles(EQUAL_LEVEL)


def _intervals(values, steps):
  """Student's intervals of rows in which NaN is missing."""
  count = np.isfinite(values).sum(1)
  with np.errstate(all='ignore'):
    mean = np.nansum(values, 1) / count
    spread = np.sqrt(np.nansum((values - mean[:, None]) ** 2, 1) / (count - 1))
    half = T[count] * np.maximum(spread, steps) / np.sqrt(count)
  return np.stack([mean, mean - half, mean + half, half * NARROW[count] / T[count]], 1)


@functools.cache
def _over_examples(folders):
  """What intervals over seeds and examples, which are wider, are made of; by metric, its margin."""
  found = []
  for metric, members in _by_metric(folders):
    known = [group for group in members if len(group.left_out) == len(group.numbers) > 1]
    each = [(list(x.numbers.values()), x.step, list(x.left_out.values())) for x in known]
    for one, other in itertools.combinations(known, 2):
      seeds = sorted(set(one.left_out) & set(other.left_out))
      if len(seeds) > 1 and len(one.left_out[seeds[0]]) == len(other.left_out[seeds[0]]):
        values = [one.numbers[seed] - other.numbers[seed] for seed in seeds]
        without = [(one.left_out[seed], other.left_out[seed]) for seed in seeds]
        each.append((values, one.step, without))
    if each:
      mean = np.array([sum(values) / len(values) for values, *_ in each])
      found.append((mean, each, MARGINS.get(metric, 0.5)))
  return found


def _both(values, step, without):
  if isinstance(without[0], tuple):
    without = [np.subtract(*pair).tolist() for pair in without]
  wide, narrow = (interval(values, step, level, without) for level in (0.95, EQUAL_LEVEL))
  return *wide[:3], narrow.high - narrow.mean


def missing(text, folders):
  """The intervals of a text that no runs of these lines have."""
  known, found = _pool_of(text, folders), PRINTED.findall(text)
  return ['{} [{}, {}]'.format(*each) for each in found if not len(_entries(each, known))]


def not_equal(text, folders):
  """Differences that are said to be equal, and are not, or that are equal by the margin, unsaid."""
  known, wrong = _pool_of(text, folders), []
  for found in DIFFERENCE.finditer(text):
    there = _entries(PRINTED.match(found[0]).groups(), known)
    equal = abs(there[:, 0]) + there[:, 3] < there[:, 4]
    words = [f'equal within {margin:g}' for margin in there[equal, 4]]
    if found[3] not in words if found[3].startswith('equal') else equal.all():
      wrong.append(found[0])
  return wrong


def _pool_of(text, folders):
  means = {mean for mean, _, _ in PRINTED.findall(text)}
  return pool(tuple(sorted(set(folders))), tuple(sorted(means)))


def _rounding(printed):
  """How far a number may be from what is printed of it."""
  return 0.5001 * 10.0 ** -len(printed.partition('.')[2])


def _entries(printed, known):
  """Those of the pool that are printed so."""
  mean, low, high = map(float, printed)
  near = np.array([_rounding(printed[0]), _rounding(printed[1]), _rounding(printed[1])])
  first, end = np.searchsorted(known[:, 0], [mean - near[0], mean + near[0]])
  there = known[first:end]
  good = np.abs(there[:, :3] - [mean, low, high]) <= near
  good[:, 1] |= (low == 0) & (there[:, 1] < 0)  # cut where such numbers end
  good[:, 2] |= (high == 100) & (there[:, 2] > 100)
  return there[good.all(1)]


HEADINGS = [heading for heading, (text, _) in sections().items() if PRINTED.search(text)]


@pytest.mark.parametrize('heading', HEADINGS)
def test_every_interval_is_that_of_its_lines(heading):
  text, folders = sections()[heading]
  assert missing(text, folders) == []
  assert not_equal(text, folders) == []


def test_an_interval_that_no_lines_have_is_found():
  _, folders = sections()["Complex-order's Table 2"]
  assert missing('81.4 [78.1, 84.6]', folders) == []
  assert missing('81.4 [78.1, 84.7]', folders) == ['81.4 [78.1, 84.7]']
