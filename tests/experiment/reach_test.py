"""How far checkpoints read: their losses, the numbers that they find, and a folder that goes on."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.stats import t as student

from posjax import interop
from posjax.experiment import needles, reach, reach_models, reach_report, reach_scores
from posjax.experiment.compare.statistics import ratio_interval
from posjax.experiment.reach_scores import Settings, scored
from posjax.experiment.tasks.language_modelling import data as texts
from tests.support.paths import ROOT

YARN = 'yarn(factor=4.0, original_length=16)'
LLAMA = {
  **{'model_type': 'llama', 'hidden_size': 16, 'intermediate_size': 32, 'num_hidden_layers': 1},
  **{'num_attention_heads': 2, 'vocab_size': 257, 'max_position_embeddings': 16},
  'tie_word_embeddings': True,
}
SMALL = Settings((16, 32), tokens=128, trials=0)


def checkpoint(folder, config):
  interop.byte_level(folder / 'tokenizer')
  interop.save(interop.create(config, length=16), folder / 'model', tokenizer=folder / 'tokenizer')
  return folder / 'model'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return checkpoint(tmp_path_factory.mktemp('llama'), LLAMA)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """Three documents of unequal lengths."""
  place = tmp_path_factory.mktemp('text')
  (place / 'train.txt').write_text('A text to learn from. ' * 9)
  for i, words in enumerate(('The first one is short. ', 'Größer, but odd! ', 'abc def\n')):
    (place / f'valid.{i}.txt').write_text(words * (4 + 3 * i))
  return f'file:{place}'


def command(*arguments):
  """The exit code of the command, or its error; 0 where it ends well."""
  try:
    reach.main(arguments)
  except SystemExit as end:
    return end.code
  return 0


def by_hand(folder, data, length, window, scheme=None):
  """Losses [windows, longest] by NumPy from the model's logits, and each target's document."""
  model, made = interop.load(folder, scheme, length=length), interop.tokenizer(folder)
  ids = [made.encode(each.decode(), special=False) for each in texts.read(data).held_out]
  gap = made.encode('\n\n', special=False)
  stream = np.array([token for each in ids[:-1] for token in (*each, *gap)] + ids[-1])
  starts = np.linspace(0, len(stream) - 1 - window, SMALL.tokens // window).astype(int)
  first = (starts[:, None] + np.arange(0, window, length)).ravel()
  tokens = stream[first[:, None] + np.arange(length + 1)]
  logits = jax.jit(model)(jnp.asarray(tokens[:, :-1], jnp.int32), jnp.arange(length))
  logits = np.asarray(logits, np.float64)
  whole = np.log(np.exp(logits).sum(-1))
  losses = whole - np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
  ends = np.cumsum([len(each) + len(gap) for each in ids])
  places = starts[:, None] + 1 + np.arange(window)
  return np.reshape(losses, (-1, window)), np.searchsorted(ends, places, side='right')


def test_loss_is_that_of_the_logits_at_each_length(folder, data):
  (reader,), made = reach_models.readers_of(folder, [YARN], SMALL)
  text = scored(data, made, SMALL)
  read = reach_models.compiled(reader.load(32), 3)
  for length in (16, 32):
    line = {'name': YARN, **reach_scores.measure(read, text, length, SMALL)}
    found = reach_scores.summarized(line, line)
    losses, document = by_hand(folder, data, length, 32, YARN)
    sums = np.bincount(document.ravel(), losses.ravel())
    np.testing.assert_allclose(line['losses'], sums, rtol=1e-5)
    assert line['counts'] == np.bincount(document.ravel()).tolist()
    assert found['nats']['mean'] == pytest.approx(losses.mean(), rel=1e-5)
    bits = losses.sum() / math.log(2) / sum(line['bytes'])
    assert found['bits_per_byte']['mean'] == pytest.approx(bits, rel=1e-5)
  np.testing.assert_allclose(line['positions'], losses.mean(0), rtol=1e-5)
  assert line['parts'] == 'documents'
  assert sum(line['counts']) == SMALL.tokens


def test_the_bytes_of_text_are_counted_and_not_its_tokens(folder, data, tmp_path):
  """Of bytes that are whole characters, each token spells one byte."""
  (tmp_path / 'train.txt').write_text('none')
  (tmp_path / 'valid.txt').write_text('only letters ' * 20)
  text = scored(f'file:{tmp_path}', interop.tokenizer(folder), SMALL)
  assert text.sizes.tolist() == [32] * 4
  assert text.parts == 'windows'  # of one document
  assert text.part.tolist() == [[i] * 32 for i in range(4)]


def test_an_interval_is_that_of_a_jackknife_by_hand():
  rng = np.random.default_rng(0)
  tokens = rng.integers(1, 50, 7)
  nats = tokens * rng.uniform(1, 3, 7)
  ratio = lambda chosen: nats[chosen].sum() / tokens[chosen].sum()
  without = np.array([ratio([j for j in range(7) if j != i]) for i in range(7)])
  error = np.sqrt(6 * without.var())
  found = ratio_interval(nats.tolist(), tokens.tolist())
  assert found.mean == pytest.approx(nats.sum() / tokens.sum())
  assert found.high - found.mean == pytest.approx(student.ppf(0.975, 6) * error)
  assert found.mean - found.low == pytest.approx(student.ppf(0.975, 6) * error)
  pseudo = 7 * found.mean - 6 * without  # and the spread of pseudo-values is the same
  assert error == pytest.approx(pseudo.std(ddof=1) / 7**0.5)


def test_an_interval_of_one_part_has_no_ends():
  assert math.isnan(ratio_interval([3.0], [2.0]).low)
  with pytest.raises(ValueError, match='denominators above 0'):
    ratio_interval([1.0, 2.0], [1.0, 0.0])


def line_of(name, losses, counts=(100, 100, 100)):
  return {'name': name, 'losses': losses, 'counts': list(counts), 'bytes': list(counts)}


def test_differences_are_paired_by_document():
  """A scheme that is a little better on each of very unequal documents is better."""
  nats = [100.0, 300.0, 500.0]
  first, better = line_of('own', nats), line_of('a', [90.0, 289.0, 488.0])
  compared = lambda *lines: reach_scores.summarized(*lines)['difference']
  assert compared(better, first)['mean'] == pytest.approx(-33 / 300)
  assert (compared(better, first)['to'], compared(better, first)['verdict']) == ('own', 'better')
  assert compared(first, better)['verdict'] == 'worse'
  assert compared(line_of('b', [130.0, 260.0, 505.0]), first)['verdict'] == 'unresolved'
  assert compared(first, first) is None
  beyond = reach_scores.summarized(line_of('c', None), first)
  assert beyond['nats'] is beyond['bits_per_byte'] is beyond['difference'] is None
  with pytest.raises(ValueError, match='the same tokens'):
    compared(line_of('d', nats, (1, 2, 3)), first)


@pytest.mark.parametrize('path', sorted((ROOT / 'results/reach_checkpoint').glob('*.jsonl')))
def test_published_lines_say_what_their_losses_say(path):
  known = reach.read_lines(path)
  for (_, length), line in known.items():
    plain = {name: line[name] for name in line.keys() - {'nats', 'bits_per_byte', 'difference'}}
    assert reach_scores.summarized(plain, known['own', length]) == line
    assert line['nats']['mean'] == pytest.approx(sum(line['losses']) / sum(line['counts']))
  headings, rows = reach_report.sheet(list(known.values()))
  assert headings[-2:] == ['passkey', 'needle']
  assert len(rows) == len(known) >= 4


HAYSTACK = np.frombuffer(
  b'It was a day like any other. Nobody came, and nobody left! ' * 40, np.uint8
)


@pytest.mark.parametrize('name', ['passkey', 'needle'])
def test_a_prompt_has_its_length_and_its_number_once_at_its_depth(folder, name):
  made, wording = interop.tokenizer(folder), needles.WORDINGS[name]
  for length in (256, 613):
    for depth in (0.0, 0.25, 0.5, 1.0):
      rng = np.random.default_rng([length])
      one = needles.make(wording, made, HAYSTACK, length, depth, rng)
      words = made.decode(one.tokens)
      assert len(one.tokens) == length
      assert words.endswith(f'{wording.question} {one.number}')
      assert one.answer == len(f' {one.number}')
      before = words.removesuffix(one.number)
      assert before.count(one.number) == 1
      assert before.count(f'{wording.before} {one.number}{wording.after}') == 1
      start = before.index(wording.before)
      assert start == one.place
      hay = length - len(wording.start + wording.before + wording.after + wording.question) - 12
      assert abs(start - len(wording.start) - depth * hay) <= needles.NEAR
      assert (
        start == len(wording.start) or words[start - 1] in '.!?\n' or start == len(hay_end(one))
      )
  assert needles.make(wording, made, HAYSTACK, 64, 0.5, np.random.default_rng(0)) is None


def hay_end(one):
  """The tokens before the sentence where it stands last."""
  return one.tokens[: one.place]


class Copies(nnx.Module):
  """Says the token that followed the last six tokens where they stood before."""

  def __init__(self, wrong=0):
    self.wrong = wrong

  def __call__(self, tokens, pos):
    same = jnp.ones((*tokens.shape, tokens.shape[1]), bool)
    for back in range(6):
      shifted = jnp.roll(tokens, back, 1)
      same &= shifted[:, :, None] == shifted[:, None, :]
    earlier = same & (pos[:, None] > pos[None, :])[None] & (pos >= 5)[None, None]
    first = jnp.argmax(earlier, -1)
    said = jnp.take_along_axis(tokens, jnp.minimum(first + 1, tokens.shape[1] - 1), 1)
    return 9 * jax.nn.one_hot(said + self.wrong, 257)


def found_by(model, folder, **options):
  asked = {'length': 256, 'depths': 3, 'trials': 2, 'seed': 0, **options}
  read = reach_models.compiled(model, 4)
  return needles.retrieval(read, interop.tokenizer(folder), HAYSTACK, **asked)


def test_a_model_that_copies_finds_every_number_and_another_finds_none(folder):
  for found in found_by(Copies(), folder).values():
    assert found['depth'] == [0.0, 0.5, 1.0]
    assert found['share'] == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(found['nats'], np.log1p(256 * np.exp(-9)), rtol=1e-4)
  for found in found_by(Copies(wrong=1), folder).values():
    assert found['share'] == [0.0, 0.0, 0.0]
    assert min(found['nats']) > 8
  for found in found_by(Copies(), folder, length=32).values():
    assert found['share'] == found['nats'] == [None, None, None]  # no room


def test_a_folder_goes_on_and_measures_nothing_twice(folder, data, tmp_path, monkeypatch):
  out, said = tmp_path / 'out', []
  options = {'workdir': out, 'checkpoint': folder, 'say': said.append}
  first = reach.reach(data, SMALL, **options)
  assert len(said) == 2
  assert (out / 'reach.png').stat().st_size > 10_000
  monkeypatch.setattr(reach_report, 'draw', lambda *_: None)
  whole = (out / 'results.jsonl').read_bytes()
  (out / 'results.jsonl').write_bytes(whole[: whole.index(b'\n') + 20])  # killed while it wrote
  reach.reach(data, SMALL, **options)
  assert said[2:] == said[1:2]
  lines = reach.reach(data, SMALL, **options, schemes=['own', YARN])
  assert [line['name'] for line in lines] == ['own', 'own', YARN, YARN]
  assert [line['length'] for line in lines] == [16, 32, 16, 32]
  assert len(said) == 5
  monkeypatch.setattr(reach, 'compiled', None)  # nothing is computed any more
  turned = reach.reach(data, SMALL, **options, schemes=[YARN, 'own'])
  assert turned[2]['nats'] == first[0]['nats']
  assert turned[2]['difference']['mean'] == pytest.approx(-lines[2]['difference']['mean'])
  assert turned[0]['difference'] is None
  stored = [json.loads(line) for line in (out / 'results.jsonl').read_text().splitlines()]
  assert all(line['versions']['posjax'] and line['sha256'] for line in stored)
  for settings, what in (
    (SMALL._replace(seed=1), 'another seed'),
    (SMALL._replace(lengths=(16, 64)), 'another longest'),
  ):
    with pytest.raises(ValueError, match=f'holds measurements of {what}; give another --workdir'):
      reach.reach(data, settings, **options)
  other = texts.read(data)._replace(sha256='0' * 64)
  monkeypatch.setattr(texts, 'read', lambda _: other)
  with pytest.raises(ValueError, match='holds measurements of data with the sha256'):
    reach.reach(data, SMALL, **options)
  (out / 'results.jsonl').write_text('{}\n')
  with pytest.raises(ValueError, match='line 1, should be a measurement of reach'):
    reach.reach(data, SMALL, **options)


def test_changed_weights_are_refused(folder, tmp_path):
  origin = {'sha256': '1', 'scored': '2', **SMALL.asked()}
  (own,), _ = reach_models.readers_of(folder, ['own'], SMALL)
  check = lambda line: reach._check_known(tmp_path, {('own', 16): line}, [own], origin, SMALL)
  check({**origin, 'weights': own.sha256})
  for changed, words in (
    ({'weights': '0'}, 'of other weights of own'),
    ({'scored': '0'}, 'of other tokens'),
  ):
    with pytest.raises(ValueError, match=words):
      check({**origin, 'weights': own.sha256, **changed})


def test_the_command_prints_plain_text_in_a_pipe(folder, data, tmp_path, monkeypatch, capsys):
  arguments = [f'--checkpoint={folder}', f'--data={data}', '--lengths=32,16', '--tokens=128']
  arguments += ['--no-retrieval', f'--workdir={tmp_path / "out"}']
  assert command(*arguments) == 0
  printed, said = capsys.readouterr()
  first, *rows = printed.splitlines()
  assert first.split('  ')[0] == 'scheme'
  assert [row.split()[:2] for row in rows[:2]] == [['own', '16'], ['own', '32']]
  assert 'over 3 documents' in printed
  assert len(said.splitlines()) == 2

  def stop(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(reach, 'measure', stop)
  assert command(*arguments, f'--schemes=own,{YARN}') == 130
  assert len((tmp_path / 'out/results.jsonl').read_text().splitlines()) == 2


@pytest.mark.parametrize(
  ('changed', 'words'),
  [
    (['--schemes=yarm'], "Unknown scheme 'yarm'; did you mean 'yarn'"),
    (['--schemes=own,own'], "given once, but got 'own' twice"),
    (['--lengths=16,24,32'], 'must divide the longest, 32, but got 24'),
    (['--lengths=16;32'], "must read like 256,512,1024, but got '16;32'"),
    (['--tokens=16'], 'tokens must be at least the longest length, 32, but got 16'),
    (['--lengths=4096', '--tokens=4096'], 'A window of 4096 tokens needs a text of at least 4097'),
    (['--checkpoint=nowhere'], 'The folder nowhere does not exist'),
    (['--data=file:nowhere'], 'nothing is at nowhere'),
    (['--runs=nowhere'], 'nowhere is no folder'),
    (['--depths=0'], 'depths must be an integer of at least 1'),
    (['--dtype=float8'], "dtype must be one of float16, bfloat16, float32, but got 'float8'"),
  ],
)
def test_refusals_are_one_sentence(folder, data, tmp_path, changed, words):
  known = [f'--checkpoint={folder}', f'--data={data}', '--lengths=16,32', '--tokens=128']
  said = command(*known, f'--workdir={tmp_path / "out"}', *changed)
  assert said.startswith('reach: error: ')
  assert words in said
  assert '\n' not in said
  assert not (tmp_path / 'out').exists()


def test_a_folder_without_tokenizer_a_foreign_one_and_an_encoder_are_refused(folder, tmp_path):
  bare = tmp_path / 'bare'
  bare.mkdir()
  for name in ('config.json', 'model.safetensors'):
    (bare / name).write_bytes((folder / name).read_bytes())
  with pytest.raises(FileNotFoundError, match=r'needs tokenizer\.json, but .* has none'):
    reach_models.readers_of(bare, ['own'], SMALL)
  (tmp_path / 'foreign').mkdir()
  foreign = checkpoint(tmp_path / 'foreign', {**LLAMA, 'vocab_size': 200})
  with pytest.raises(ValueError, match='is the folder of another model'):
    reach_models.readers_of(foreign, ['own'], SMALL)
  (tmp_path / 'bert').mkdir()
  bert = {**LLAMA, 'model_type': 'bert'}
  with pytest.raises(ValueError, match='must be a causal decoder, but got bert'):
    reach_models.readers_of(checkpoint(tmp_path / 'bert', bert), ['own'], SMALL)


def test_the_own_scheme_is_made_anew_where_it_depends_on_the_length(data, tmp_path):
  scaling = {'rope_type': 'dynamic', 'factor': 2.0}
  place = checkpoint(tmp_path, {**LLAMA, 'rope_parameters': {**scaling, 'rope_theta': 1e4}})
  (own,), _ = reach_models.readers_of(place, ['own'], SMALL)
  assert [len(own.schemes(length)) for length in (16, 32)] == [1, 1]
  assert 'length=16' in own.schemes(16)[0]
  assert 'length=32' in own.schemes(32)[0]
  (line, longer) = reach.reach(data, SMALL, workdir=tmp_path / 'out', checkpoint=place)
  assert (line['schemes'], longer['schemes']) == (list(own.schemes(16)), list(own.schemes(32)))
  losses, _ = by_hand(place, data, 32, 32)
  assert longer['nats']['mean'] == pytest.approx(losses.mean(), rel=1e-5)


def test_a_table_of_positions_ends(data, tmp_path):
  gpt = {'model_type': 'gpt2', 'n_embd': 16, 'n_head': 2, 'n_layer': 1, 'vocab_size': 257}
  place = checkpoint(tmp_path, {**gpt, 'n_positions': 16})
  lines = reach.reach(data, SMALL, workdir=tmp_path / 'out', checkpoint=place)
  assert [line['nats'] is None for line in lines] == [False, True]
  _, rows = reach_report.sheet(lines)
  assert [row[2] for row in rows][1] == 'beyond its table'
  assert 'NaN' not in (tmp_path / 'out/results.jsonl').read_text()


@pytest.mark.slow
def test_a_tuned_run_stands_beside_the_checkpoint(folder, data, tmp_path):
  from configs import checkpoint as configs
  from train import train

  config = configs.get_config()
  changes = {'start_from': str(folder), 'scheme': YARN, 'steps': 2, 'batch_size': 2}
  changes |= {'optimizer.warmup_steps': 1, 'checkpoint_every': 1, 'eval_every': 2}
  changes |= {'task.data': data, 'task.length': 16, 'task.eval_tokens': 32, 'task.sample_length': 2}
  config.update_from_flattened_dict(changes)
  result = train(config, tmp_path / 'run')
  options = {'checkpoint': folder, 'schemes': [YARN], 'runs': [tmp_path / 'run']}
  lines = reach.reach(data, SMALL, workdir=tmp_path / 'out', **options)
  assert lines[2]['name'] == f'{YARN}, tuned 2 steps'
  assert lines[2]['difference']['to'] == YARN
  (_, made) = reach_models.reader_of_run(tmp_path / 'run')
  text = scored(data, made, SMALL)
  line = reach_scores.measure(reach_models.compiled(result.model, 2), text, 16, SMALL)
  np.testing.assert_allclose(line['losses'], lines[2]['losses'], rtol=1e-5)
  assert np.abs(np.subtract(line['losses'], lines[0]['losses'])).max() > 1e-3


@pytest.mark.slow
def test_the_picture_has_maps_of_retrieval(folder, data, tmp_path):
  settings = Settings((64, 256), tokens=256, depths=3, trials=1)
  lines = reach.reach(data, settings, workdir=tmp_path / 'out', checkpoint=folder)
  assert lines[0]['retrieval']['passkey']['nats'] == [None] * 3
  assert None not in lines[1]['retrieval']['passkey']['nats']
  plain = reach.reach(
    data, settings._replace(trials=0), workdir=tmp_path / 'none', checkpoint=folder
  )
  assert 'retrieval' not in plain[0]
  reach_report.draw(tmp_path / 'part.png', lines[1:])
  reach_report.draw(tmp_path / 'part.png', [*lines, {**lines[0], 'name': 'unfinished'}])
  sizes = [(tmp_path / name / 'reach.png').stat().st_size for name in ('out', 'none')]
  assert sizes[0] > sizes[1]
