"""The benchmarks' processes: how they are run in turns, and what is told of them."""

import json
import math
import mmap
import os
import pathlib
import shutil
from typing import ClassVar

import pytest

from benchmarks import (
  attention,
  checkouts,
  command,
  interleave,
  memory,
  parsing,
  report,
  sentence_pairs,
  train_step,
)
from benchmarks.interleave import Case, Found, Gone
from benchmarks.spec import Absent, Attention, Pairs, Step, Unable

TINY = Attention('t5', 'dense', 64, heads=2, width=8)


def found(label, cpu, wall=(1.0,), spec=TINY, **rest):
  numbers = {'peak': 3 * 2**20, 'building': 0, 'temporary': None, 'parameters': 7} | rest
  return Found(Case(label, 'file', spec), tuple(cpu), tuple(wall), **numbers)


# One real process.


def test_a_process_runs_once_for_each_round_and_the_others_say_why_not():
  cases = [
    Case('ours', 'posjax_attend', TINY),
    Case('unknown', 'no_such_file', TINY),
    Case('refused', 'jax_nn', TINY._replace(way='cudnn')),
  ]
  ours, unknown, refused = interleave.measure(cases, rounds=3)
  assert len(ours.cpu) == len(ours.wall) == 3
  assert min(ours.cpu + ours.wall) > 0
  assert ours.peak > 0
  assert ours.building > 2**20
  assert ours.temporary > 0
  assert unknown == Gone(cases[1], 'its process exited with code 1', failed=True)
  assert refused == Gone(cases[2], 'cuDNN needs a GPU', failed=False, absent=True)


@pytest.mark.slow
def test_two_checkouts_run_in_the_same_rounds_each_with_its_own_library(tmp_path, capsys):
  other = tmp_path / 'other'
  shutil.copytree(interleave.ROOT / 'benchmarks', other / 'benchmarks')
  shutil.copytree(interleave.ROOT / 'posjax', other / 'posjax')
  broken = other / 'posjax' / 'attention' / 'dispatch.py'
  sizes = ['--attention=64', '--schemes=t5', '--steps=', '--rounds=2']
  checkouts.main([str(other), *sizes])
  line = capsys.readouterr().out.splitlines()[-1].split()
  assert line[:3] == ['attention', '64', 't5']
  assert float(line[-4]) == 1  # the same program needs the same temporary memory
  broken.write_text('raise ValueError("this checkout is broken")\n')
  with pytest.raises(SystemExit, match='other does not run'):
    checkouts.main([str(other), *sizes])


def test_ratios_are_of_medians_and_of_each_round():
  r = checkouts.ratios(found('new', [2.0, 3.0, 9.0]), found('old', [1.0, 4.0, 3.0]))
  assert r[:4] == (1.0, 2.0, 0.75, 3.0)
  new, old = found('new', [1.0], pages=(5, 9, 7)), found('old', [1.0], pages=(2,))
  assert checkouts.ratios(new, old).pages == (7, 2)


# Rounds, with processes that are none.


class Fake:
  """Counts in place of a process."""

  log: ClassVar[list] = []

  def __init__(self, case, cores=None):
    self.case, self.runs, self.gone, self.closed = case, 0, None, False
    self.log.append(('start', case))

  def run(self):
    self.runs += 1
    self.log.append(('run', self.case))

  def found(self, first):
    return self.case, list(range(first, self.runs))

  def close(self):
    self.log.append(('close', self.case))


@pytest.fixture
def log(monkeypatch):
  monkeypatch.setattr(interleave, 'Process', Fake)
  monkeypatch.setattr(Fake, 'log', [])
  return Fake.log


def test_each_round_runs_every_case_and_the_baseline_and_the_first_does_not_count(log):
  baseline = Fake('base')
  baseline.runs = 10  # from the table's other lines
  results = interleave.measure(['a', 'b', 'c'], rounds=4, baseline=baseline)
  assert results[0] == ('base', [11, 12, 13, 14])
  assert results[1:] == [(case, [1, 2, 3, 4]) for case in 'abc']
  order = [case for what, case in log if what == 'run']
  rounds = [order[i : i + 4] for i in range(0, len(order), 4)]
  assert [sorted(one) for one in rounds] == [['a', 'b', 'base', 'c']] * 5
  assert len({tuple(one) for one in rounds}) > 1
  assert [case for what, case in log if what == 'close'] == ['a', 'b', 'c']


def test_processes_end_when_another_cannot_start(log, monkeypatch):
  def start(case, cores=None):
    if case == 'b':
      raise OSError('no more processes')
    return Fake(case)

  monkeypatch.setattr(interleave, 'Process', start)
  with pytest.raises(OSError, match='no more processes'):
    interleave.measure(['a', 'b'], rounds=1)
  assert log == [('start', 'a'), ('close', 'a')]


def test_there_is_at_least_one_round():
  with pytest.raises(ValueError, match='at least 1 round, but got 0'):
    interleave.measure([], rounds=0)


# Memory.


@pytest.mark.skipif(not pathlib.Path('/proc/self/stat').exists(), reason='needs /proc')
def test_pages_count_what_is_written_to_for_the_first_time():
  held = mmap.mmap(-1, 2**24)  # new memory, where an array may take pages that are there already
  before = memory.pages(os.getpid())
  held.write(b'1' * 2**24)  # 4,096 pages of 4 KiB, or 8 of 2 MiB
  assert 8 <= memory.pages(os.getpid()) - before < 10_000
  assert memory.pages(2**30) == 0  # no such process


def test_the_peak_is_what_was_held_since_the_level():
  floor = memory.level()
  block = bytearray(b'1') * 2**26
  del block
  # The system counts in batches of some pages for each processor.
  assert 0.98 * 2**26 <= memory.peak() - floor < 1.5 * 2**26
  assert memory.level() - floor < 2**25


def test_what_does_not_fit_is_refused():
  memory.require(1)
  with pytest.raises(Unable, match=r'needs 931322574.6 GiB of memory, of which \d+\.\d are free'):
    memory.require(10**18)


# What is told.


def test_a_row_holds_medians_with_their_range_and_ratios_of_medians():
  base = found('base', [0.1, 0.4, 0.2], [0.5])
  row = report.attention_row(found('ours', [0.5, 0.3, 9.0], [1.0], temporary=2**21), base)
  assert row[:4] == ['t5', 'ours', '0.500 (0.300-9.00)', '2.50']
  assert row[4:6] + row[7:] == ['1.00 (1.00-1.00)', '2.00', '3', '2']
  # Seven products of half the pairs, in one second.
  flops = 7 * 2 * TINY.heads * TINY.width * TINY.length**2 / 2
  assert math.isclose(float(row[6]), flops / 1e12, rel_tol=0.01)
  assert len(row) == len(report.ATTENTION.split('|'))


def test_a_step_is_told_in_tokens_per_second():
  spec = Step('rope', '', 512)
  base = found('base', [1.0], [2.0], spec)
  row = report.step_row(found('ours', [0.5, 2.0, 4.0], [1.0], spec), base)
  assert row == [
    *('rope', 'ours', '7', '256 (128-1024)', '0.50', '512 (512-512)', '2.00', '3', ''),
  ]  # fmt: skip
  assert len(row) == len(report.STEP.split('|'))


def test_pairs_are_told_in_pairs_per_second():
  spec = Pairs('gaussian', 'small', 16, batch=8)
  base = found('base', [1.0], [2.0], spec)
  row = report.pairs_row(found('ours', [0.5, 0.25, 0.25], [1.0], spec), base)
  assert row == [
    *('ours', 'gaussian', '7', '32.0 (16.0-32.0)', '4.00', '8.00 (8.00-8.00)', '2.00', '3', ''),
  ]  # fmt: skip
  assert len(row) == len(report.PAIRS.split('|'))


def test_a_table_says_what_is_missing_and_the_file_keeps_every_number(capsys, tmp_path):
  base = found('base', [1.0])
  gone = Gone(Case('torch', 'torch_sdpa', TINY), 'torch is not installed', False, absent=True)
  failed = Gone(Case('jax.nn', 'jax_nn', TINY), 'ValueError: x', failed=True)
  lines = [report.Line(one, base) for one in (base, gone, failed)]
  path = tmp_path / 'numbers.jsonl'
  tables = [('title', lines)]
  assert report.publish(tables, report.ATTENTION, report.attention_row, path) == 1
  printed = capsys.readouterr().out
  assert '| t5 | base | 1.00 (1.00-1.00) | 1.00 |' in printed
  assert '- Not run: torch is not installed: torch.' in printed
  assert '- Failed: ValueError: x: jax.nn t5.' in printed
  kept = [json.loads(line) for line in path.read_text().splitlines()]
  assert [one['by'] for one in kept] == ['base', 'torch', 'jax.nn']
  assert kept[0]['cpu'] == [1.0]
  assert kept[0]['scheme'] == 't5'
  assert kept[0]['baseline'] == {'by': 'base', 'cpu': [1.0], 'wall': [1.0]}
  assert kept[1]['why'] == 'torch is not installed'
  assert report.publish([('title', lines[:2])], report.ATTENTION, report.attention_row, None) == 0


def test_a_peer_that_is_absent_is_started_once(log, monkeypatch):
  def lost(cases, rounds, **rest):
    cases = list(cases)
    log.extend(case.label for case in cases)
    return [found('base', [1.0])] + [Gone(case, 'missing', False, absent=True) for case in cases]

  monkeypatch.setattr(command, 'measure', lost)
  given = attention.arguments(['--schemes=none|t5', '--by=torch,jax.nn', '--rounds=1'])
  make = lambda scheme, way: TINY._replace(scheme=scheme, way=way)
  base = Fake(Case('base', 'posjax_attend', TINY))
  told = list(command.lines(given, attention.PEERS, make, base))
  assert log[1:] == ['torch', 'jax.nn']
  assert [line.found.case.label for line in told] == ['base', 'torch', 'jax.nn']


@pytest.mark.parametrize(
  ('main', 'argument', 'message'),
  [
    (attention.main, '--by=torhc', "but got ['torhc']"),
    (attention.main, '--baseline=x', "but got ['x']"),
    (attention.main, '--passes=back', "but got ['back']"),
    (sentence_pairs.main, '--passes=back', "but got ['back']"),
    (parsing.main, '--batches=0', 'must be at least 1'),
    (train_step.main, '--rounds=0', 'at least 1 round, but got 0'),
  ],
)
def test_an_unknown_name_ends_the_command(main, argument, message, capsys):
  with pytest.raises(SystemExit):
    main([argument])
  assert message in capsys.readouterr().err


def test_every_implementation_of_ours_has_its_line():
  assert {'posjax blockwise', 'posjax dense'} <= set(attention.PEERS)
  for peers in (attention.PEERS, train_step.PEERS, sentence_pairs.PEERS, parsing.PEERS):
    for peer in peers.values():
      assert (interleave.ROOT / 'benchmarks' / 'peers' / f'{peer.file}.py').exists()


def test_what_is_absent_is_a_way_of_being_unable():
  assert issubclass(Absent, Unable)
