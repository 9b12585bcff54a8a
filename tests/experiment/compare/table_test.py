"""How numbers are shown in the tables of a comparison."""

from posjax.experiment.compare.statistics import interval
from posjax.experiment.compare.table import shown


def test_a_number_of_one_seed_says_so_and_does_not_look_exact():
  assert shown(interval([1.0])) == '1.00 (n = 1)'
  assert shown(interval([23.64]), signed=True) == '+23.6 (n = 1)'


def test_a_mean_stands_with_its_interval_and_nothing_is_a_dash():
  assert shown(interval([1.0, 2.0, 3.0]), signed=True) == '+2.00 [-0.48, +4.48]'
  assert shown(None) == '-'
