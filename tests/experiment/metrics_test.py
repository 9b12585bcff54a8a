"""Means over tokens and their errors, against what can be counted by hand."""

import numpy as np
import pytest

from posjax.experiment.evaluation import add
from posjax.experiment.metrics import (
  answer_accuracy,
  loss_by_position,
  mean_loss,
  sums_of_rows,
  token_accuracy,
  windows,
)

RNG = np.random.default_rng(0)
LOSS = RNG.normal(2.0, 1.0, (6, 20)) + RNG.normal(0, 0.5, (6, 1))
WEIGHTS = (np.arange(20) < np.array([[20], [3], [9], [20], [0], [12]])).astype(np.float64)
BATCH = {'loss': LOSS, 'weights': WEIGHTS, 'correct': (LOSS < 2).astype(np.float64)}


def judged(metric, arrays=BATCH, cut=2):
  """The number and its error, of two batches."""
  halves = [{name: x[rows] for name, x in arrays.items()} for rows in (np.s_[:cut], np.s_[cut:])]
  sums = add(*(metric.update(half, {}) for half in halves))
  return metric.finish(sums), metric.error(sums)


def by_hand(values, weights):
  """The error of a ratio of sums over rows, one row after another."""
  rows = [(v @ w, w.sum()) for v, w in zip(values, weights, strict=True) if w.sum()]
  whole = sum(weight for _, weight in rows)
  mean = sum(value for value, _ in rows) / whole
  spread = sum((value - mean * weight) ** 2 for value, weight in rows)
  return mean, np.sqrt(spread * len(rows) / (len(rows) - 1)) / whole


def test_the_error_of_a_loss_is_that_over_rows_not_over_tokens():
  mean, error = judged(mean_loss('bits', 3.0))
  assert (mean, error) == pytest.approx(3.0 * np.array(by_hand(LOSS, WEIGHTS)))
  # Rows of one weight: the error of the mean of their means.
  even = {**BATCH, 'weights': np.ones_like(WEIGHTS)}
  known = np.std(LOSS.mean(1), ddof=1) / np.sqrt(6)
  assert judged(mean_loss('nats'), even)[1] == pytest.approx(known)
  assert judged(token_accuracy()) == pytest.approx(by_hand(BATCH['correct'], WEIGHTS))


def test_the_interval_of_a_loss_covers_the_truth_as_often_as_it_says():
  rng, covered = np.random.default_rng(1), 0
  for _ in range(200):
    loss = rng.normal(2.0, 1.0, (40, 5)) + rng.normal(0, 1.0, (40, 1))  # rows differ as wholes
    sums = sums_of_rows(loss, np.ones_like(loss))
    covered += abs(sums.mean() - 2) < 1.96 * sums.error()
  assert 0.9 < covered / 200 < 0.985


def test_a_restated_loss_has_the_error_of_what_it_is_restated_as():
  mean, error = judged(mean_loss('nats'))
  assert judged(mean_loss('squared', 1.0, np.square))[1] == pytest.approx(2 * mean * error)


def test_one_row_has_no_error_and_a_share_of_all_is_not_exact():
  one = {name: x[:1] for name, x in BATCH.items()}
  assert np.isnan(mean_loss('nats').error(mean_loss('nats').update(one, {})))
  right = {'correct': np.ones((30, 2)), 'weights': np.ones((30, 2))}
  share, error = judged(answer_accuracy(), right)
  assert share == 1
  assert error == pytest.approx(np.sqrt(32 / 34 * 2 / 34 / 34))


def test_windows_hold_every_position_once_and_double():
  assert windows(3) == [(0, 3)]
  assert windows(4) == [(0, 4)]
  assert windows(20) == [(0, 4), (4, 8), (8, 16), (16, 20)]
  assert [b - a for a, b in windows(256)] == [4, 4, 8, 16, 32, 64, 128]


def test_a_loss_by_position_has_an_error_for_each_window():
  values, errors = judged(loss_by_position('bits', 3.0))
  assert values.shape == (20,)
  expected = [3.0 * by_hand(LOSS[:, a:b], WEIGHTS[:, a:b])[1] for a, b in windows(20)]
  np.testing.assert_allclose(errors, expected)


def test_the_best_constant_answer_costs_the_entropy_of_the_targets_that_count():
  """No other distribution of three letters, the same for every token, costs less."""
  targets = RNG.integers(0, 3, (6, 20)) ** 2  # 0, 1 and 4
  metric = mean_loss('bits', 1 / np.log(2), targets='targets')
  halves = [np.s_[:2], np.s_[2:]]
  sums = [
    metric.update({n: x[rows] for n, x in BATCH.items()}, {'targets': targets[rows]})
    for rows in halves
  ]
  counts = np.array([(targets[WEIGHTS > 0] == letter).sum() for letter in (0, 1, 4)])
  cost = lambda shares: -(counts * np.log2(shares)).sum() / counts.sum()
  constant = metric.constant(add(*sums))
  assert constant == pytest.approx(cost(counts / counts.sum()))
  assert all(constant <= cost(shares) for shares in RNG.dirichlet(counts, 200))
  assert mean_loss('bits').constant is None
