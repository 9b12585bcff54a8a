"""Words of users that look like markup, emoji or formulas, in tables and in pictures."""

import io

from matplotlib import cbook
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.progress import Progress

from posjax.experiment import ask, plain
from posjax.experiment.compare import plots, progress
from posjax.experiment.compare.summary import summarize
from posjax.experiment.compare.table import print_tables
from posjax.experiment.task import Answer
from posjax.experiment.tasks import supervised
from tests.experiment.compare.made import RULES, grid, result

ODD = 'a$_$b [/b] [bold] :smile:'


def texts(figure: Figure) -> list[str]:
  """What a picture says; only the ticks of Matplotlib itself are formulas."""
  figure.draw_without_rendering()
  found = [text.get_text() for text in figure.findobj(Text)]
  formulas = [text for text in found if cbook.is_math_text(text)]
  assert all(text.startswith('$\\mathdefault{') for text in formulas)
  return [text.replace('\\$', '$') for text in found]


def summary():
  axes = [('task.prompt', (ODD, 'b'))]
  cells = grid(['none', 'rope'], 2, axes)
  line = result([100, 50 + 0.0, 40])
  for each in line['evaluations'].values():
    each['metrics']['accuracy'] = {**each['metrics']['accuracy'], 'unit': f'% {ODD}'}
  return summarize(cells, {cell.id: {**line, 'unit': ODD} for cell in cells}, 'none', RULES)


def test_a_comparison_draws_and_prints_the_values_of_an_axis_as_they_are(capsys):
  found = summary()
  for draw in (plots._by_length, plots._by_step, plots._by_seed, plots._by_cost):
    assert any(ODD in text for text in texts(draw(found)))
  print_tables(found)
  shown = capsys.readouterr().out
  assert shown.count(ODD) >= 6  # two schemes in three tables
  assert f'Quality: % {ODD}' in shown


def test_the_bars_of_runs_and_comparisons_show_what_looks_like_markup(tmp_path):
  cells = grid(['none'], 1, [('task.prompt', (ODD,))])
  with progress.Grid(cells, tmp_path, 0, RULES) as shown:
    shown.lively = True
    shown.tick(cells)
    assert ODD in said(shown.bar)


def said(bar: Progress) -> str:
  terminal = plain.console(file=io.StringIO(), width=300)
  terminal.print(bar.get_renderable())
  return terminal.file.getvalue()


def test_pictures_of_answers_show_labels_and_texts_as_they_are(monkeypatch):
  drawn = []
  monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **options: drawn.append(figure))
  answer = supervised.ranked((ODD, 'b'), [0.75, 0.25])
  assert isinstance(answer, Answer)
  ask.draw('labels.png', [(ODD, answer)])
  found = texts(drawn[0])
  assert f'probabilities: {ODD}' in found
  assert ODD in found
