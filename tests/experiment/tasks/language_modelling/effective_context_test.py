"""Relative effective context length, on numbers that one can work out by hand."""

import numpy as np
import pytest

from posjax.experiment.tasks.language_modelling.effective_context import (
  relative_effective_context_length,
  relative_gain,
)


def nats(*perplexities):
  return np.log(np.array(perplexities, float))


# Two tokens. Baseline at 10: min(16, 8) = 8 and min(4, 9) = 4.
A = {10: nats(16, 4), 20: nats(2, 4), 30: nats(2, 4), 40: nats(1, 1)}
B = {10: nats(8, 9), 20: nats(8, 1), 30: nats(1, 1), 40: nats(1, 1)}


def test_only_what_is_better_than_the_best_short_model_counts():
  # f(10, 10) = log sqrt(32); a: sqrt(2 * 4), b: sqrt(8 * 1), both sqrt(8): a gain of one half.
  assert relative_gain({'a': A, 'b': B}, 10, 20) == pytest.approx({'a': 0.5, 'b': 0.5})
  # Alone, b improves from sqrt(72) to sqrt(8), more, because the other's 4 is not its baseline.
  assert relative_gain({'b': B}, 10, 20)['b'] == pytest.approx(1 - (8 / 72) ** 0.5)


def test_to_catch_up_with_the_best_short_model_is_no_gain():
  late = {10: nats(16, 16), 20: nats(10, 4)}  # of a baseline of 8 and 4
  assert relative_gain({'late': late, 'b': B, 'a': A}, 10, 20)['late'] == pytest.approx(0)


def test_a_loss_that_grows_with_context_counts_as_no_gain():
  worse = {1: nats(2, 3), 2: nats(50, 60)}
  assert relative_gain({'a': worse}, 1, 2)['a'] == pytest.approx(0, abs=1e-12)


def test_the_hardest_share_of_tokens_is_that_of_the_baseline():
  # The first token has baseline 8: a gets it down to 2, b not at all.
  assert relative_gain({'a': A, 'b': B}, 10, 20, share=0.5) == pytest.approx({'a': 0.75, 'b': 0})


def test_the_length_is_the_first_whose_successor_gains_less_than_a_percent():
  # From 20 on the baseline is (2, 1): a gains nothing to 30, and to 40 does not matter any more.
  assert relative_effective_context_length({'a': A, 'b': B}) == {'a': 20, 'b': 30}
  assert relative_effective_context_length({'a': A, 'b': B}, share=0.5)['b'] == 10
  alone = relative_effective_context_length({'a': A})
  assert alone == {'a': 20}


def test_the_threshold_is_a_share_of_the_perplexity():
  just = {1: nats(100), 2: nats(98.9), 3: nats(98.0), 4: nats(98.0)}
  assert relative_effective_context_length({'a': just}) == {'a': 2}  # 1.1 %, then 0.91 %
  assert relative_effective_context_length({'a': just}, threshold=0.005) == {'a': 3}
  assert relative_effective_context_length({'a': {1: nats(9), 2: nats(3)}}) == {'a': 2}


@pytest.mark.parametrize(
  ('group', 'changes', 'message'),
  [
    ({'a': {1: nats(2)}}, {}, 'two context lengths'),
    ({'a': {1: nats(2), 2: nats(2)}, 'b': {1: nats(2)}}, {}, r"length 2, but \['b'\] have none"),
    ({'a': {1: nats(2), 2: nats(2)}, 'b': {1: nats(2, 3), 2: nats(2)}}, {}, 'same tokens'),
    ({'a': {1: np.array([np.nan]), 2: nats(2)}}, {}, 'must be numbers'),
    ({'a': {1: nats(2), 2: nats(2)}}, {'share': 0.0}, r'in \(0, 1\], but got 0'),
  ],
)
def test_what_cannot_be_compared_is_refused(group, changes, message):
  with pytest.raises(ValueError, match=message):
    relative_effective_context_length(group, **changes)
