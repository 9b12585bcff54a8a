"""What a grid says, with numbers worked out by hand."""

import itertools
import math
import re

import pytest

from posjax.experiment import colours
from posjax.experiment.compare import plots
from posjax.experiment.compare.summary import summarize, summarize_lines
from posjax.experiment.compare.table import captions, print_tables
from tests.experiment.compare.made import LOSS, RULES, grid, result, with_training_rows


def summary(by_scheme, baseline='none', seeds=3, rules=RULES):
  """A grid with these lines by scheme, one for each seed; None has not ended."""
  cells = grid(list(by_scheme), seeds)
  lines = {scheme: iter(rows) for scheme, rows in by_scheme.items()}
  ended = {cell.id: next(lines[cell.scheme]) for cell in cells}
  ended = {name: row for name, row in ended.items() if row}
  return summarize(cells, ended, baseline, rules)


def test_the_paired_difference_and_its_interval_are_those_worked_out_by_hand():
  # Unseen means: none 10, 20, 30; rope 22, 30, 44: differences 12, 10, 14, of mean 12 and s 2.
  none = [result([100, 10 + d, 10 - d + 10 * i * 2]) for i, d in enumerate((0, 5, 2))]
  rope = [result([95, 20, 24]), result([95, 30, 30]), result([95, 40, 48])]
  found = summary({'none': none, 'rope': rope})
  base, row = found.rows
  assert base.unseen.mean == pytest.approx(20)
  assert row.unseen.mean == pytest.approx(32)
  half = 4.303 * 2 / math.sqrt(3)
  assert row.difference[:3] == pytest.approx((12, 12 - half, 12 + half), rel=1e-3)
  assert row.verdict == 'better'
  assert base.difference is None
  assert row.by_length[32].mean == pytest.approx(34)


def test_seeds_are_paired_so_that_what_they_share_cancels():
  shared = (0.0, 30.0, 60.0)
  base = [result([100, 10 + s]) for s in shared]
  better = [result([100, 15 + s + d]) for s, d in zip(shared, (0.0, 0.5, -0.5), strict=True)]
  row = summary({'none': base, 'rope': better}).rows[1]
  assert row.unseen[1:3] == (0, 100)  # alone, nothing could be said
  assert row.verdict == 'better'


def test_lower_losses_are_better_and_higher_ones_worse_in_the_tables(capsys):
  lines = {
    name: [result([2.0, unseen + 0.01 * i], exact=False) for i in range(3)]
    for name, unseen in (('none', 3.0), ('rope', 2.5), ('alibi', 3.5))
  }
  lines['rope'][1] = result([2.0, 2.52], exact=False)
  found = summary(lines, rules=LOSS)
  assert [row.verdict for row in found.rows] == ['', 'better', 'worse']
  assert found.rows[1].difference.mean == pytest.approx(-0.5, abs=0.01)
  print_tables(found)
  printed = capsys.readouterr().out
  assert re.search(r'rope .*-0\.50 \[.* better', printed)
  assert re.search(r'alibi .*\+0\.50 \[.* worse', printed)
  assert 'on that side of 0 (lower is better)' in ' '.join(printed.split())


def test_a_run_that_has_not_learned_is_marked_and_compares_to_nothing(capsys):
  lines = {
    'none': [result([100, 50]), result([95, 40]), result([92, 60])],
    'rope': [result([89, 99]), result([100, 60]), result([100, 52])],
    'alibi': [result([20, 99])] * 3,
  }
  found = summary(lines)
  base, some, nothing = found.rows
  assert (base.learned, some.learned, nothing.learned) == (3, 2, 0)
  assert some.unseen.mean == pytest.approx(56)  # without the 99
  assert some.difference.count == 2
  assert some.difference.mean == pytest.approx((20 - 8) / 2)
  assert nothing.unseen is None
  assert nothing.difference is None
  assert nothing.verdict == ''
  assert nothing.trained.mean == pytest.approx(20)  # told, so that one sees how far it is
  print_tables(found)
  shown = capsys.readouterr().out
  assert '2/3*' in shown
  assert '0/3*' in shown
  assert nothing.shown_unseen.mean == nothing.shown_by_evaluation['length 16'].mean == 99
  assert some.shown_unseen == some.unseen
  (line,) = (line for line in shown.splitlines() if '0/3*' in line)
  assert '99.0*' in line
  assert 'has not learned what it was trained on' in shown
  assert 'at least 90 % of answers right' in shown


def test_tokens_are_judged_where_the_rules_say_so():
  # As made: 80 % of the answers are right at the trained length, and 90 % of the tokens.
  lines = {'none': [result([80, 40])] * 3, 'rope': [result([100, 60])] * 3}
  base, row = summary(lines).rows
  assert base.learned == 0
  assert row.verdict == ''
  found = summary(lines, rules=RULES._replace(quality='token_accuracy'))
  base, row = found.rows
  assert base.learned == 3
  assert base.unseen.mean == pytest.approx(70)
  assert row.difference.mean == pytest.approx(10)
  assert found.unit == '% of tokens right'


def test_a_quality_that_no_run_has_is_refused_with_those_that_there_are():
  lines = {'none': [result([100, 50])] * 3}
  message = "must be one of accuracy, token_accuracy, loss, or nothing, but got 'f1'"
  with pytest.raises(ValueError, match=message):
    summary(lines, rules=RULES._replace(quality='f1'))


def test_any_metric_of_the_lines_can_be_the_quality():
  """Lower is better, and half of the best constant answer's must be gone."""
  lines = {'none': [result([100, 50])] * 3, 'rope': [result([100, 50], constant=1.9)] * 3}
  found = summary(lines, rules=LOSS._replace(quality='loss'))
  assert (found.unit, found.measure.higher) == ('nats per answer token', False)
  assert [row.learned for row in found.rows] == [3, 0]
  assert found.rows[0].trained.mean == 1.0
  for score in lines['rope'][0]['scores'].values():
    del score['constant']
  found = summary(dict(reversed(lines.items())), rules=LOSS._replace(quality='loss'))
  assert found.learned.startswith("every run, since 'loss' has no best number")
  assert [row.learned for row in found.rows] == [3, 3]


def test_what_has_learned_may_be_told_by_another_metric_than_the_quality():
  lines = {
    'none': [result([40, 30], constant=2.5)] * 3,
    'rope': [result([99, 50], constant=1.9)] * 3,
  }
  found = summary(lines, rules=LOSS._replace(learned_by='loss'))
  assert found.unit == '% of answers right'
  assert [row.learned for row in found.rows] == [3, 0]
  gone = 'at least 50 % of the loss of the best constant answer gone in evaluations like'
  assert found.learned.startswith(gone)
  message = "learned_by must be one of accuracy, loss, token_accuracy, or nothing, but got 'f1'"
  with pytest.raises(ValueError, match=message):
    summary(lines, rules=LOSS._replace(learned_by='f1'))


def test_an_evaluation_of_the_right_next_token_tells_what_a_translation_has_learned():
  """BLEU has no constant answer; where no other evaluation has the loss, the first 'other' does."""

  def line(loss):
    made = with_training_rows(result([30, 30]), 0.3)
    del made['evaluations']['length 8']['metrics']['loss']
    metrics = {'loss': {'unit': 'nats', 'higher': False, 'best': None, 'scale': 1.0}}
    for name, number in (('right tokens', loss), ('own tokens', 9.0)):
      made['evaluations'][name] = {'role': 'other', 'length': None, 'metrics': metrics}
      score = {'loss': number, 'counted': 9, 'why': '', 'constant': {'loss': 6.0}}
      made['scores'][name] = score
    return made

  lines = {'none': [line(2.9)] * 3, 'rope': [line(3.1)] * 3}
  found = summary(lines, rules=LOSS._replace(learned_by='loss'))
  assert [row.learned for row in found.rows] == [3, 0]
  assert found.learned.endswith("of the best constant answer gone in 'right tokens'")


def test_a_metric_of_any_scale_is_judged_by_its_best_number_and_its_direction():
  """BLEU of up to 100, on test sets that have no length."""
  bleu = {'unit': 'BLEU', 'higher': True, 'best': 100.0, 'scale': 1.0}

  def line(trained, unseen):
    made = result([1.0], exact=False)
    metrics = {'metrics': {'bleu': bleu}, 'length': None}
    evaluations = {
      'valid': {'role': 'trained', **metrics},
      'news': {'role': 'unseen', **metrics},
      'sampled': {'role': 'other', **metrics},
    }
    numbers = {'valid': trained, 'news': unseen, 'sampled': 99.0}
    scores = {name: {'bleu': x, 'counted': 50, 'why': ''} for name, x in numbers.items()}
    return {**made, 'evaluations': evaluations, 'scores': scores}

  lines = {
    'none': [line(30.0, 20.0), line(31.0, 22.0), line(29.0, 21.0)],
    'rope': [line(30.0, 30.0), line(31.0, 31.0), line(29.0, 32.0)],
  }
  found = summary(lines, rules=RULES._replace(learned=0.3))
  assert found.unit == 'BLEU'
  assert [row.learned for row in found.rows] == [2, 2]
  assert found.rows[1].unseen.mean == pytest.approx(30.5)
  assert found.rows[1].step == 100 / 50
  assert list(found.evaluations) == ['valid', 'news']
  assert found.rows[0].by_length == {}
  assert found.learned == 'at least 30 BLEU in evaluations like the training data'


def test_a_loss_has_learned_when_half_of_the_best_constant_answers_is_gone():
  lines = {
    'none': [result([3.9, 4.0], exact=False)],
    'rope': [result([4.1, 4.0], exact=False)],
  }
  assert [row.learned for row in summary(lines, seeds=1, rules=LOSS).rows] == [1, 0]


def test_a_baseline_that_has_not_learned_compares_to_nothing():
  found = summary({'none': [result([10, 0])] * 3, 'rope': [result([100, 50])] * 3})
  assert found.rows[1].verdict == ''
  assert 'the baseline has no run' in found.rows[1].note


def test_one_seed_resolves_nothing():
  found = summary({'none': [result([100, 0])], 'rope': [result([100, 100])]}, seeds=1)
  assert found.rows[1].difference.mean == pytest.approx(100)
  assert found.rows[1].verdict == 'unresolved'
  assert not [text for text in captions(found) if 'uncorrected' in text]


def test_it_is_said_how_many_intervals_stand_uncorrected_beside_each_other():
  lines = {
    'none': [result([100, 50]), result([100, 51])],
    'rope': [result([100, 60]), result([100, 62])],
    'alibi': [result([100, 60]), result([100, 66])],
    't5': [result([100, 60]), result([20, 62])],  # one seed has learned: no interval
    'shaw': [result([20, 60]), result([20, 62])],  # none has: no difference
  }
  found = summary(lines, seeds=2)
  assert found.uncorrected == 2
  sentences = [text for text in captions(found) if 'uncorrected: 2.' in text]
  assert len(sentences) == 1
  assert 'a chance of 5 %, so 0.1 of them do on average' in sentences[0]


def test_numbers_of_one_seed_are_drawn_hollow_and_named(tmp_path):
  one = [result([100, 50, 40]), result([10, 50, 40])]  # the second has not learned
  found = summary({'none': [result([100, 60, 50])] * 2, 'rope': one}, seeds=2)
  plots.draw(tmp_path, found)
  styles = colours.styles(['none', 'rope'])
  for name in ('quality_by_length', 'quality_by_seed'):
    drawn = (tmp_path / f'{name}.svg').read_text()
    hollow = re.findall('fill: #ffffff; stroke: (#[0-9a-f]{6})', drawn)
    assert styles['rope'].colour in hollow
    assert styles['none'].colour not in hollow
    assert drawn.count('<!-- hollow: n = 1 -->') == 1


def test_one_answer_more_in_every_seed_resolves_nothing():
  base, more = result([100, 50.0], answers=100), result([100, 51.0], answers=100)
  found = summary({'none': [base] * 2, 'rope': [more] * 2}, seeds=2)
  assert found.rows[1].verdict == 'unresolved'


def test_a_length_without_an_answer_leaves_no_mean_over_unseen_ones():
  lines = {
    'none': [result([100, 50, 50])] * 2,
    'learned(max_length=9)': [result([100, 70, None], why='beyond its table')] * 2,
  }
  row = summary(lines, seeds=2).rows[1]
  assert row.unseen is None
  assert row.by_length[16].mean == pytest.approx(70)
  assert row.by_length[32] is None
  assert row.note == 'no answer at 32: beyond its table'


def test_seeds_that_were_judged_by_other_evaluations_have_no_mean_there():
  """As where a grid goes on with other lengths: what all seeds have is shown, the rest is not."""
  rows = [result([100, 50, 40]), result([100, 60]), result([100, 70, 60])]
  (row,) = summary({'none': rows}).rows
  assert row.by_evaluation['length 16'].mean == pytest.approx(60)
  assert row.by_evaluation['length 32'] is None
  assert list(row.by_length) == [8, 16, 32]


def test_axes_are_compared_within_their_values_only():
  cells = grid(['none', 'rope'], 2, axes=[('model.num_layers', (2, 4))])
  quality = {('none', 2): 10, ('none', 4): 60, ('rope', 2): 30, ('rope', 4): 50}
  ended = {
    cell.id: result([100, quality[cell.scheme, cell.axes['model.num_layers']] + cell.seed])
    for cell in cells
  }
  rows = summarize(cells, ended, 'none', RULES).rows
  assert [row.label for row in rows[2:]] == ['rope, num_layers=2', 'rope, num_layers=4']
  assert [row.difference.mean for row in rows[2:]] == pytest.approx([20, -10])
  assert [row.verdict for row in rows[2:]] == ['better', 'worse']


def test_failed_and_missing_runs_are_told(capsys):
  lines = {'none': [result([100, 50]), None, None], 'rope': [{'error': 'too [odd]'}] * 3}
  found = summary(lines)
  assert found.rows[0].missing == 2
  assert found.rows[1].failed == {0: 'too [odd]', 1: 'too [odd]', 2: 'too [odd]'}
  print_tables(found)
  shown = capsys.readouterr().out
  assert 'failed: rope, seed 2: too [odd]' in shown
  assert '1/1, 2 to do' in shown
  assert '0/0, 3 failed' in shown


def test_nothing_finished_is_no_summary():
  assert summary({'none': [None] * 3, 'rope': [{'error': 'x'}] * 3}) is None


@pytest.mark.parametrize('learned', [100, 10])
def test_pictures_are_drawn_with_and_without_anything_learned(tmp_path, learned):
  found = summary({'none': [result([learned, 50, 40])] * 3, 'rope': [None] * 3})
  for path in itertools.chain(*plots.draw(tmp_path, found).values()):
    start = path.read_bytes()[:200]
    assert start.startswith(b'\x89PNG') if path.suffix == '.png' else b'<?xml' in start
  assert len(list(tmp_path.iterdir())) == 8


def test_pictures_of_evaluations_without_lengths_are_by_evaluation(tmp_path):
  def nameless(line):
    for each in line['evaluations'].values():
      each['length'] = None
    return line

  found = summary({'none': [nameless(result([100, 50]))] * 3})
  plots.draw(tmp_path, found)
  drawn = (tmp_path / 'quality_by_length.svg').read_text()
  assert '<!-- length 16 -->' in drawn
  assert '<!-- by evaluation -->' in drawn


def test_each_axis_value_has_a_panel_and_each_scheme_one_colour(tmp_path):
  cells = grid(['none', 'rope'], 2, axes=[('model.num_layers', (2, 4))])
  found = summarize(cells, {cell.id: result([100, 50]) for cell in cells}, 'none', RULES)
  plots.draw(tmp_path, found)
  drawn = (tmp_path / 'quality_by_length.svg').read_text()
  comments = re.findall('<!-- (.*?) -->', drawn)  # matplotlib names each text that it draws
  assert [text for text in comments if text.startswith('num_layers')] == [
    f'num_layers={n}' for n in (2, 4)
  ]
  assert comments.count('none') == comments.count('rope') == 1


def test_lines_alone_tell_what_the_grid_tells():
  cells = grid(['none', 'rope'], 3, axes=[('model.num_layers', (2, 4))])
  ended = {
    cell.id: {
      'id': cell.id, 'scheme': cell.scheme, 'axes': cell.axes, 'seed': cell.seed,
      **result([100, 40 + cell.seed + 9 * (cell.scheme == 'rope')]),
    }
    for cell in cells
  }  # fmt: skip
  told = summarize_lines(dict(reversed(ended.items())), 'none', RULES)
  assert sorted(row.label for row in told.rows) == sorted({row.label for row in told.rows})
  by_label = {row.label: row for row in summarize(cells, ended, 'none', RULES).rows}
  for row in told.rows:
    assert row.unseen == by_label[row.label].unseen
    assert row.difference == by_label[row.label].difference


def test_a_curve_is_the_mean_over_seeds_where_all_have_a_point():
  one, two = result([100, 1]), result([100, 1])
  one['curve'], two['curve'] = [[1, 4.0], [2, 3.0], [3, 9.0]], [[1, 2.0], [2, 1.0]]
  found = summary({'none': [one, two]}, seeds=2)
  assert plots.mean_curve(found.rows[0].cells, 'curve') == [(1, 3.0, 2.0, 4.0), (2, 2.0, 1.0, 3.0)]


def test_training_texts_say_what_has_learned_where_they_are_asked():
  def judged(held_out, training):
    return with_training_rows(result([held_out]), training)

  lines = {
    'none': [judged(70, 0.95), judged(72, 0.93), judged(71, 0.9)],
    'rope': [judged(95, 0.89), judged(80, 0.99), judged(82, 0.91)],
  }
  found = summary(lines)
  assert [row.learned for row in found.rows] == [3, 2]
  assert found.learned == 'at least 90 % of answers right in rows of the training data'
  none, rope = found.rows
  assert none.unseen.mean == pytest.approx(71)  # of held-out texts
  assert rope.trained.mean == pytest.approx((95 + 80 + 82) / 3)
  assert rope.difference.mean == pytest.approx((8 + 11) / 2)


def with_data(line, sha256, **more):
  return {**line, 'facts': {'data': 'made up', 'sha256': sha256}, **more}


def test_runs_on_different_data_are_not_averaged_unless_that_is_allowed_and_told(capsys):
  cells = grid(['none', 'rope'], 2)
  assert [(cell.scheme, cell.seed) for cell in cells][-1] == ('rope', 1)
  data = ['a' * 64] * 3 + ['b' * 64]
  rows = {c.id: with_data(result([100, 50]), d) for c, d in zip(cells, data, strict=True)}
  message = f'rope, seed 1 had data {"b" * 64}, not {"a" * 64}'
  with pytest.raises(ValueError, match=message):
    summarize(cells, rows, 'none', RULES)
  found = summarize(cells, rows, 'none', RULES, allow_changed_data=True)
  print_tables(found)
  assert message in ' '.join(capsys.readouterr().out.split())
  assert message in captions(found)[-1]
  same = {cell.id: with_data(result([100, 50]), 'a' * 64) for cell in cells}
  assert summarize(cells, same, 'none', RULES).data == ''
  # A run may also have seen two of them by itself; and an earlier version did not say.
  changed = {**same, cells[0].id: with_data(result([100, 50]), 'a' * 64, changed='It changed.')}
  with pytest.raises(ValueError, match=r'none, seed 0: It changed\. Take the lines'):
    summarize(cells, changed, 'none', RULES)
  assert summarize(cells, {**same, cells[0].id: result([100, 50])}, 'none', RULES).data == ''


def test_runs_whose_examples_are_spelled_otherwise_are_not_paired():
  """The same files, read by another version of what spells them, are other examples."""
  cells = grid(['none', 'rope'], 2)
  read = [{'examples': f'{cell.seed}' * 64, 'vocabulary': 'v' * 64} for cell in cells]
  line = lambda one: {**with_data(result([100, 50]), 'a' * 64), 'read': one}
  rows = lambda read: {cell.id: line(one) for cell, one in zip(cells, read, strict=True)}
  assert summarize(cells, rows(read), 'none', RULES).data == ''
  last = cells[-1]
  for name, what in (('examples', 'spelled examples'), ('vocabulary', 'a vocabulary')):
    other = [*read[:-1], {**read[-1], name: 'x' * 64}]
    message = f'{last.scheme}, seed {last.seed} had {what} {"x" * 64}, not {read[-1][name]}'
    with pytest.raises(ValueError, match=message):
      summarize(cells, rows(other), 'none', RULES)
    assert message in summarize(cells, rows(other), 'none', RULES, allow_changed_data=True).data


def test_other_axis_values_may_have_other_data():
  cells = grid(['none'], 2, [('task.data', ('one', 'other'))])
  rows = {cell.id: with_data(result([100, 50]), cell.axes['task.data'] * 16) for cell in cells}
  assert summarize(cells, rows, 'none', RULES).data == ''
