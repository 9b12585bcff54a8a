"""The fuzzer finds what it must find; and a sample of its cases, with all of them by hand."""

import re
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import posjax
from tests.fuzz import areas, commands, oracle, table
from tests.fuzz.case import Case, draw, refused
from tests.fuzz.commands import Ended
from tests.fuzz.judge import FAULTS, ROOT, judge
from tests.fuzz.table import Row

LEAST = {
  'library': 1500,
  'configs': 150,
  'tasks': 400,
  'commands': 40,
  'files': 200,
  'checkpoints': 50,
}


def fuzz(*arguments: str, out: Path) -> tuple[int, str]:
  """The exit code and the report of the fuzzer, in a process without the checks of the tests."""
  command = [sys.executable, '-m', 'tests.fuzz', f'--out={out}', *arguments]
  process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  return process.returncode, out.read_text() if out.exists() else process.stderr


@pytest.mark.slow
def test_a_sample_of_the_fuzzers_cases_finds_no_fault(tmp_path):
  code, report = fuzz('--quick', out=tmp_path / 'fuzz.md')
  assert code == 0, report
  cases = int(re.search(r'\| all \| (\d+) \|', report)[1])
  assert cases > 15


@pytest.mark.slow
def test_the_whole_fuzzer_finds_no_fault_in_45_minutes(tmp_path):
  code, report = fuzz(out=tmp_path / 'fuzz.md')
  assert code == 0, report
  for area, least in LEAST.items():
    assert int(re.search(rf'\| {area} \| (\d+) \|', report)[1]) >= least
  assert float(re.search(r'([\d.]+) CPU minutes', report)[1]) <= 45


WHOLE = 'A sentence says what is wrong, what was expected, and that it got 3.'


@pytest.mark.parametrize(
  ('call', 'check', 'valid', 'kind'),
  [
    (lambda: posjax.get('nope'), refused, False, 'refused'),
    (lambda: posjax.get('rope'), lambda scheme: '', True, 'correct'),
    (lambda: posjax.get('rope'), refused, False, 'wrong'),
    (lambda: posjax.get('nope'), lambda scheme: '', True, 'wrong'),
    (lambda: {}['key'], refused, False, 'refused'),
    (lambda: Path('/nowhere/at/all').read_text(), refused, False, 'refused'),
    (lambda: time.sleep(9), refused, False, 'hang'),
    (lambda: Ended('ask', 0, 'x', ''), refused, False, 'wrong'),
    (lambda: Ended('ask', 1, '', f'ask: error: {WHOLE}'), refused, False, 'refused'),
    (lambda: Ended('ask', 1, '', f'ask: error: {WHOLE}\nand more\n'), refused, False, 'raw'),
    (lambda: Ended('ask', 1, '', f'Traceback: {WHOLE}'), refused, False, 'raw'),
    (lambda: Ended('ask', 7, '', f'ask: error: {WHOLE}'), refused, False, 'raw'),
    (lambda: Ended('ask', 1, '', WHOLE), refused, False, 'raw'),
  ],
)
def test_each_class_is_found(call, check, valid, kind):
  assert judge(Case('a call', call, check, valid, seconds=1)).kind == kind


def test_the_oracle_gives_what_a_hand_computes():
  """Two keys with logits 0 and ln 3: weights 1/4 and 3/4; a sink of ln 4 halves them."""
  q, k = np.ones((1, 1, 1, 1)), np.array([0, np.log(3)]).reshape(1, 2, 1, 1)
  v = np.array([4.0, 8.0]).reshape(1, 2, 1, 1)
  sides = {'q_pos': np.array([1]), 'k_pos': np.array([0, 1]), 'scale': 1.0}
  attend = lambda **more: oracle.attention(q, k, v, posjax.Scheme(), {}, **sides, **more).item()
  assert np.isclose(attend(), 7)
  assert np.isclose(attend(sinks=np.log([4.0])), 3.5)
  assert np.isclose(attend(mask=np.array([[True, False]])), 4)
  assert attend(mask=np.array([[False, False]])) == 0
  assert np.isclose(attend(window=1), 8)
  assert np.isclose(attend(causal=True, q_order=np.array([0]), k_order=np.array([0, 1])), 4)
  both = {'q_segments': np.array([2]), 'k_segments': np.array([0, 2])}
  assert np.isclose(attend(**both), 8)
  weights = np.exp([0, 2 * np.tanh(np.log(3) / 2)])
  assert np.isclose(attend(logit_cap=2.0), weights @ [4, 8] / weights.sum())


def test_a_difference_to_the_oracle_is_a_fault():
  expected = np.ones((1, 2))
  assert oracle.difference(jnp.ones((1, 2)), expected) == ''
  assert 'differs' in oracle.difference(jnp.ones((1, 2)) * 1.001, expected)
  assert 'not finite' in oracle.difference(jnp.full((1, 2), jnp.nan), expected)
  assert 'shape' in oracle.difference(jnp.ones((2, 1)), expected)


def test_the_table_counts_and_lists():
  rows = [
    Row('files', 0, 'a', 'refused', ''),
    Row('files', 1, 'b', 'raw', 'KeyError (posjax/x.py:3)'),
    Row('configs', 7, 'c', 'wrong', 'the losses differ'),
  ]
  assert '| files | 2 | 1 | 0 | 1 | 0 | 0 |' in table.counts(rows)
  assert '| all | 3 | 1 | 0 | 1 | 1 | 0 |' in table.counts(rows)
  assert 'files:1' in table.faults(rows)
  assert 'configs:7' in table.faults(rows)
  assert 'files:0' not in table.faults(rows)


def test_cases_are_drawn_alike_each_time():
  from hypothesis import strategies as st

  once, again = (draw(st.lists(st.integers(), max_size=4), 20) for _ in range(2))
  assert len(once) == 20
  assert once == again


def test_every_area_names_modules_that_there_are():
  for modules in areas.AREAS.values():
    for name in modules:
      assert (Path(areas.__file__).parent / f'{name}.py').exists()
  assert set(LEAST) == set(areas.AREAS)
  assert set(FAULTS) < set(table.NAMES)
  assert commands.COMMANDS.keys() == {'train.py', 'ask', 'compare'}
