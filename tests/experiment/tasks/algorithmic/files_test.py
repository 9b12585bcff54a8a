"""Questions and answers read from a file."""

import pytest

from posjax.experiment.tasks.algorithmic import files as pairs

SCAN = 'walk\tI_WALK\nrun twice\tI_RUN I_RUN\nwalk  twice\tI_WALK I_WALK\n'


def test_a_file_is_read_word_by_word(tmp_path):
  (tmp_path / 'scan.tsv').write_text(SCAN)
  data = pairs.read(f'{tmp_path}/scan.tsv')
  assert data.alphabet == ('I_RUN', 'I_WALK', 'run', 'twice', 'walk')
  lines = [
    tuple(' '.join(data.alphabet[s] for s in part) for part in (pair.prompt, pair.answer))
    for pair in data.pairs
  ]
  assert lines == [
    ('walk', 'I_WALK'),
    ('run twice', 'I_RUN I_RUN'),
    ('walk twice', 'I_WALK I_WALK'),
  ]
  assert data.lengths() == (1, 2)
  assert data.most_prompt() == 2
  assert len(data.sha256) == 64


def test_a_folder_is_all_its_tsv_files_in_the_order_of_their_names(tmp_path):
  (tmp_path / 'b.tsv').write_text('run\tR\n')
  (tmp_path / 'a.tsv').write_text('walk\tW\n')
  (tmp_path / 'readme.txt').write_text('no pairs')
  data = pairs.read(str(tmp_path))
  assert [data.alphabet[pair.prompt[0]] for pair in data.pairs] == ['walk', 'run']


def test_a_twentieth_is_held_out_the_same_questions_whatever_else_there_is(tmp_path):
  lines = [f'say {n}\t{"la " * (n % 7 + 1)}\n' for n in range(2000)]
  (tmp_path / 'all.tsv').write_text(''.join(lines))
  (tmp_path / 'half.tsv').write_text(''.join(lines[::2]))

  def held_out(name):
    data = pairs.read(f'{tmp_path}/{name}.tsv')
    return {data.alphabet[pair.prompt[1]] for pair in data.pairs if pair.held_out}

  whole = held_out('all')
  assert 60 < len(whole) < 140  # four standard deviations around 100
  assert held_out('half') == {n for n in whole if int(n) % 2 == 0}


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    ('walk\tW\nrun\n', "line 2 should be a question, a tab and an answer, but is 'run'"),
    ('walk\tW\tW\n', 'line 1 should be'),
    ('walk\t\n', 'line 1 should be'),
    ('walk\tW\n\nrun\tR\n', 'line 2 should be'),
    (b'walk\tW\nr\xffn\tR\n', 'line 2 should be UTF-8, but invalid start byte at byte 1'),
    ('', 'should hold questions and answers, but is empty'),
  ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path, content, message):
  content = content if isinstance(content, bytes) else content.encode()
  (tmp_path / 'wrong.tsv').write_bytes(content)
  with pytest.raises(ValueError, match=message):
    pairs.read(f'{tmp_path}/wrong.tsv')


def test_only_a_line_feed_ends_a_line(tmp_path):
  (tmp_path / 'odd.tsv').write_bytes('\ufeffwalk\u2028left\tW\x0bL\r\nrun\tR'.encode())
  data = pairs.read(f'{tmp_path}/odd.tsv')
  assert data.alphabet == ('L', 'R', 'W', 'left', 'run', 'walk')
  assert len(data.pairs) == 2


def test_what_is_not_there_is_said(tmp_path):
  with pytest.raises(FileNotFoundError, match=r'but nothing is at .*nowhere'):
    pairs.read(f'{tmp_path}/nowhere')
  with pytest.raises(FileNotFoundError, match=r'no \.tsv file is in the folder'):
    pairs.read(str(tmp_path))
