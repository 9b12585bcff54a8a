"""report.html: one page with everything in it, which needs no network."""

import base64
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from posjax.experiment import colours
from posjax.experiment.compare import plots
from posjax.experiment.compare.origin import Origin, provenance, short
from posjax.experiment.compare.summary import Row, Summary
from posjax.experiment.compare.table import Sheet, captions, sheets


def write(
  path: Path, summary: Summary, made: Origin | None = None, more: Sequence[Sheet] = ()
) -> list[Path]:
  """Writes the page and its pictures; a page that is interrupted leaves the one before in place.

  Args:
    path: of the page.
    summary: of the comparison.
    made: where its numbers come from.
    more: tables that follow those of the summary.

  Returns:
    The paths of the pictures.
  """
  template = resources.files('posjax.experiment.compare').joinpath('page.html').read_text('utf-8')
  pictures = plots.draw(path.parent, summary)
  ink = {
    scheme: style.colour
    for scheme, style in colours.styles(row.scheme for row in summary.rows).items()
  }
  quality, *others = (_table(sheet, ink) for sheet in (*sheets(summary), *more))
  panels = plots.panels(summary)
  page = Template(template).substitute(
    short=escape(short(summary, made)),
    quality=quality,
    captions=_paragraphs(captions(summary)),
    advice=_paragraphs([advice(rows, summary, made) for rows in panels.values()], 'advice'),
    pictures='\n'.join(_picture(title, paths) for title, paths in pictures.items())
    + _paragraphs([text for name, rows in panels.items() for text in _alike(name, rows)]),
    sheets='\n'.join(others),
    made='\n'.join(
      f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in provenance(summary, made)
    ),
  )
  partial = path.with_name(path.name + '.partial')
  partial.write_text(page, encoding='utf-8')
  os.replace(partial, path)
  return [each for paths in pictures.values() for each in paths]


def _paragraphs(texts: Sequence[str], kind: str = '') -> str:
  return '\n'.join(f'<p class="{kind}">{escape(text)}</p>' for text in texts if text)


def _table(sheet: Sheet, ink: dict[str, str]) -> str:
  head = ''.join(f'<th scope="col">{escape(name)}</th>' for name in sheet.headings)
  rows = '\n'.join(
    f'<tr><td><i style="background: {ink[row[0]]}"></i>{escape(row[0])}</td>'
    + ''.join(
      f'<td class="{_kind(name, cell)}">{escape(cell)}</td>'
      for name, cell in zip(sheet.headings[1:], row[1:], strict=True)
    )
    + '</tr>'
    for row in sheet.rows
  )
  table = f'<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
  return f'<h2>{escape(sheet.title)}</h2><div class="scroll">{table}</div>'


def _kind(heading: str, cell: str) -> str:
  if heading == 'verdict':
    return cell if cell in ('better', 'worse') else ''
  return 'note' if heading == 'note' else ''


def _picture(title: str, paths: Sequence[Path]) -> str:
  (svg,) = (path for path in paths if path.suffix == '.svg')
  data = base64.b64encode(svg.read_bytes()).decode()
  image = f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'
  return f'<h3>{escape(title)}</h3>{image}'


def _alike(panel: str, rows: Sequence[Row]) -> list[str]:
  """Sentences about costs that are not drawn."""
  texts = []
  for key, (unit, scale) in plots.COSTS.items():
    values = plots.cost_values(rows, key)
    if values and plots.alike(rows, key):
      middle = sum(values) / len(values) / scale
      shown = f'{middle:,.0f}' if middle >= 10 else f'{middle:.2g}'
      where = f' at {panel}' if panel else ''
      texts.append(f'Not drawn, as all schemes{where} have the same to within 1 %: {shown} {unit}.')
  return texts


def advice(rows: Sequence[Row], summary: Summary, made: Origin | None = None) -> str:
  """A few sentences about the schemes of which no run has learned; '' where there is none."""
  grey = [row for row in rows if row.unlearned]
  if not grey:
    return ''
  names = ', '.join(row.label for row in grey)
  everything = len(grey) == sum(bool(row.cells) for row in rows)
  whose = 'any scheme' if everything else names
  steps = None if made is None else made.config.get('steps')
  longer = '--config.steps' if steps is None else f'--config.steps={2 * steps} (it was {steps})'
  return (
    f'No run of {whose} has learned what it was trained on ({summary.learned}), so the curves in '
    f'grey say nothing about positions. Train longer with {longer}, try another '
    '--config.optimizer.learning_rate, or say with --config.compare.learned what is enough for you.'
  )
