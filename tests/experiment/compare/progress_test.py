"""The lines that a comparison prints while it runs."""

from posjax.experiment.compare.progress import outcome
from posjax.experiment.compare.summary import judge
from tests.experiment.compare.made import LOSS, RULES, result


def test_a_line_says_the_number_that_is_compared():
  line = result([100, 60, 40])
  assert outcome(line, 0, RULES) == (
    '50.0 % of answers right unseen, 100.0 % of answers right trained, in 3 s'
  )
  tokens = RULES._replace(quality='token_accuracy')
  assert judge(line, 0, tokens).unseen == 75
  assert outcome(line, 0, tokens).startswith('75.0 % of tokens right unseen')


def test_a_line_says_what_has_not_learned_failed_or_has_no_number():
  assert outcome(result([30, None], why='too long'), 0, RULES) == (
    'no number unseen, 30.0 % of answers right trained, has not learned what it was trained on, '
    'in 3 s'
  )
  assert outcome({'error': 'no room'}, 0, RULES) == 'failed: no room'
  assert outcome(result([2.0], exact=False), 0, LOSS) == '2.000 bits per byte, in 3 s'
  lost = outcome(result([9]), 0, RULES._replace(quality='bleu'))
  assert lost.startswith('ended in 3 s, and cannot be judged: compare.quality must be one of')
