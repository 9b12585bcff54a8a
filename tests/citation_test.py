"""`posjax.citation`: every scheme names its papers, once, and as the tables show them."""

import importlib
import re

import pytest

import posjax
from posjax.citation import entries
from tools import schemes_page

NAMES = posjax.names()
ENTRY = re.compile(r'@(article|misc)\{([a-z]+\d{4}[a-z0-9]+),\n((?:  .+\n)+)\}')
FIELD = re.compile(r'  ([a-z]+)=\{(.+?)\},\n(?=  [a-z]+=\{|\Z)', re.S)
WANTED = {'article': {'title', 'author', 'journal', 'year'}, 'misc': {'title', 'author', 'year'}}


def parsed(text):
  """(kind, key, fields) of each entry; every character belongs to one."""
  entries = []
  for block in text.strip('\n').split('\n\n'):
    kind, key, body = ENTRY.fullmatch(block).groups()
    fields = FIELD.findall(body)
    assert ''.join(f'  {name}={{{value}}},\n' for name, value in fields) == body
    for _, value in fields:
      depths = [value[:i].count('{') - value[:i].count('}') for i in range(len(value) + 1)]
      assert min(depths) == 0 == depths[-1], f'The braces of {key} do not match.'
    assert len(fields) == len(dict(fields)), f'{key} has a field twice.'
    entries.append((kind, key, {name: ' '.join(value.split()) for name, value in fields}))
  return entries


def papers(name):
  keys = importlib.import_module(f'posjax.schemes.{name}').PAPERS
  return [entry for key in keys for entry in parsed(entries()[key])]


def surnames(fields):
  """As people write them in a text: without accents and without marks of TeX."""
  plain = re.sub(r"\\['\"~^`v]|[{}]", '', fields['author'])
  return [author.partition(',')[0] for author in plain.split(' and ')]


@pytest.mark.parametrize('name', NAMES)
def test_a_scheme_names_the_paper_of_its_reference_first(name):
  (kind, key, fields), *_ = papers(name)
  assert WANTED[kind] <= set(fields)
  module = importlib.import_module(f'posjax.schemes.{name}')
  shown, link = re.fullmatch(r'\[(.*)\]\((.*)\)', schemes_page.reference(module)).groups()
  people, year = shown.rsplit(' ', 1)
  assert fields['year'] == year
  assert key.startswith(f'{surnames(fields)[0].lower()}{year}')
  if people.endswith(' et al.'):
    assert surnames(fields)[0] == people.removesuffix(' et al.')
    assert len(surnames(fields)) > 3
  else:
    assert surnames(fields) == re.split(', | and ', people)
  # The same paper: its number or address stands in both.
  number = re.sub(r'https://(arxiv\.org/abs/|doi\.org/)?', '', link)
  assert number in ' '.join(fields.values())


def test_every_entry_is_cited_and_one_paper_has_one_key():
  distinct = {(key, tuple(fields.items())) for name in NAMES for _, key, fields in papers(name)}
  assert {key for key, _ in distinct} == set(entries())
  assert len({fields for _, fields in distinct}) == len(distinct)
  numbers = re.findall(r'arXiv:[\d.]+', str(distinct))
  assert len(numbers) == len(set(numbers)) > 40


def test_preprints_are_numbered_as_arxiv_does():
  for name in NAMES:
    for _, _, fields in papers(name):
      if 'arXiv' in fields.get('journal', ''):
        assert re.fullmatch(r'arXiv preprint arXiv:\d{4}\.\d{4,5}', fields['journal'])


def keys(scheme):
  return [key for _, key, _ in parsed(posjax.citation(scheme))]


def test_a_chain_cites_the_papers_of_each_member_once_and_in_order():
  assert keys('rope+alibi') == ['su2021roformer', 'press2022train']
  assert keys('ntk(factor=2.0)+none+dynamic_ntk(length=9, original_length=4)') == [
    *('peng2023yarn', 'haviv2022transformer', 'kazemnejad2023impact')
  ]  # fmt: skip


def test_a_scheme_inside_another_is_cited_too():
  assert keys('dape') == ['zheng2024dape', 'press2022train']
  assert keys("dape(inner='t5(num_buckets=8)')") == ['zheng2024dape', 'raffel2020exploring']
  assert keys("dape('t5', 8)") == ['zheng2024dape', 'raffel2020exploring']


def test_a_scheme_is_cited_by_the_line_that_made_it():
  assert keys(posjax.get('rope+alibi')) == keys('rope+alibi')
  assert keys(posjax.chain(posjax.get('t5'), posjax.get('rope'))) == keys('t5+rope')


def test_a_scheme_of_another_package_brings_its_own_entries(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  code = (
    'import posjax\ndef scheme() -> posjax.Scheme:\n'
    '  return posjax.get("alibi")._replace(embed=None)\n'
  )
  entry = '@misc{me2030one,\n  title={One},\n  author={Me},\n  year={2030},\n}'
  for name, more in (
    ('cited', f'BIBTEX = {entry!r}\n'),
    ('none_of_it', 'BIBTEX = ""\n'),
    ('un', ''),
  ):
    (tmp_path / f'{name}_scheme.py').write_text(code + more)
  assert keys('rope+cited_scheme:scheme') == ['su2021roformer', 'me2030one']
  assert keys('none_of_it_scheme:scheme()+rope') == ['su2021roformer']
  comment = '% un_scheme:scheme is not cited: un_scheme has no BIBTEX.'
  assert posjax.citation('un_scheme:scheme') == comment
  first, second = posjax.citation('rope+un_scheme:scheme').split('\n\n')
  assert parsed(first)[0][1] == 'su2021roformer'
  assert second == comment


@pytest.mark.usefixtures('unchecked')
def test_what_cannot_be_cited_is_refused():
  with pytest.raises(ValueError, match=r"Unknown scheme 'ropee'; did you mean 'rope'"):
    posjax.citation('ropee')
  with pytest.raises(ValueError, match=r'must remember the line .* but got one made by hand'):
    posjax.citation(posjax.Scheme())
  with pytest.raises(TypeError, match=r"must be a line, as 'rope\+alibi', .* but got 3\."):
    posjax.citation(3)
