"""The commit of the code, in real checkouts."""

import subprocess

from posjax.experiment.compare.origin import of_checkout

GIT = ('git', '-c', 'user.name=a', '-c', 'user.email=a@b.c', '-c', 'init.defaultBranch=main')


def test_the_commit_is_that_of_the_checkout_that_tracks_the_code(tmp_path):
  code, other = tmp_path / 'code', tmp_path / 'environment'
  for folder in (code, other):
    folder.mkdir()
    (folder / 'a.py').write_text('1\n')
  assert of_checkout(code) == ''
  git = lambda *words: subprocess.run(
    [*GIT, *words], cwd=tmp_path, check=True, capture_output=True, text=True
  ).stdout.strip()
  git('init')
  git('add', 'code')
  git('commit', '-m', 'first')
  head = git('rev-parse', '--short=12', 'HEAD')
  assert of_checkout(code) == head
  assert of_checkout(other) == '', 'it only lies there'
  (code / 'a.py').write_text('2\n')
  assert of_checkout(code) == f'{head}, with changes'
