"""How far a checkpoint reads: losses, intervals, and numbers that are asked for."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from posjax import interop
from posjax.experiment import needles, reach
from posjax.experiment.compare.statistics import ratio_interval
from posjax.interop.tokenizer import tokenizer

LLAMA = {
  **{'model_type': 'llama', 'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 1},
  **{'num_attention_heads': 2, 'num_key_value_heads': 1, 'vocab_size': 257, 'rope_theta': 1e4},
  **{'rms_norm_eps': 1e-6, 'max_position_embeddings': 32, 'tie_word_embeddings': True},
}


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  root = tmp_path_factory.mktemp('reach')
  (root / 'tokens').mkdir()
  interop.byte_level(root / 'tokens')
  interop.save(interop.create(LLAMA), root / 'llama', tokenizer=root / 'tokens')
  words = 'A long line about a river and a mill, number {}.\n'
  (root / 'text').mkdir()
  for i in range(12):
    body = ''.join(words.format(i * j) for j in range(40))
    (root / 'text' / f'{i}.{"valid" if i % 2 else "train"}.txt').write_text(body)
  return root


def command(place, *more):
  return [
    *(f'--checkpoint={place / "llama"}', f'--data=file:{place / "text"}', '--lengths=32,64'),
    *('--tokens=512', '--depths=2', '--trials=1', f'--workdir={place / "out"}', *more),
  ]


def test_a_command_measures_draws_and_goes_on(place, capsys):
  schemes = '--schemes=own,yarn(factor=2.0, original_length=32)'
  reach.main(command(place, schemes))
  shown, told = capsys.readouterr()
  lines = shown.splitlines()
  assert lines[0].split('\t') == list(reach.HEADS)
  assert len(lines) == 6
  assert told.count('nats per token') == 4
  assert (place / 'out' / 'reach.png').stat().st_size > 10_000
  reach.main(command(place, schemes))  # nothing is measured twice
  again, told = capsys.readouterr()
  assert again == shown
  assert told == ''
  stored = [json.loads(x) for x in (place / 'out' / 'results.jsonl').read_text().splitlines()]
  assert [(x['name'][:4], x['length']) for x in stored] == [
    *(('own', 32), ('own', 64), ('yarn', 32), ('yarn', 64))
  ]
  assert {sum(x['counts']) for x in stored} == {512}
  with pytest.raises(SystemExit, match='has lines with tokens 512, but this command has 1024'):
    reach.main(command(place, '--tokens=1024'))


def test_a_loss_is_that_of_the_formula(place):
  model = interop.load(place / 'llama')
  random = np.random.default_rng(0)
  inputs, targets = random.integers(0, 256, (2, 5, 16))
  loss, correct = reach.read_by(model, 32)(inputs, targets)
  logits = np.asarray(model(jnp.asarray(inputs), jnp.arange(16)), np.float64)
  exact = (
    np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
  )
  np.testing.assert_allclose(loss, exact, rtol=1e-5)
  np.testing.assert_array_equal(correct, logits.argmax(-1) == targets)


def test_an_interval_is_the_jackknife_over_documents():
  losses, tokens = np.array([3.0, 8.0, 2.0, 9.0]), np.array([2, 4, 1, 3])
  without = [(losses.sum() - losses[i]) / (tokens.sum() - tokens[i]) for i in range(4)]
  error = math.sqrt(3 / 4 * sum((x - np.mean(without)) ** 2 for x in without))
  found = ratio_interval(losses, tokens)
  assert found.mean == pytest.approx(2.2)
  assert found.high - found.mean == pytest.approx(3.182446 * error, rel=1e-5)


@pytest.mark.parametrize('name', needles.WORDINGS)
@pytest.mark.parametrize('depth', [0.0, 0.5, 1.0])
def test_a_prompt_has_its_length_and_its_number_once_before_the_question(place, name, depth):
  made = tokenizer(place / 'llama')
  haystack = np.frombuffer(b'Some text. ' * 200, np.uint8)
  rng = np.random.default_rng(1)
  prompt = needles.make(needles.WORDINGS[name], made, haystack, 512, depth, rng)
  text = made.decode(prompt.tokens.tolist())
  assert prompt.tokens.shape == (512,)
  assert text.endswith(prompt.number)
  assert text.count(prompt.number) == 2
  assert abs(prompt.place / 512 - 0.1 - 0.75 * depth) < 0.25


def test_who_looks_the_number_up_is_right_and_who_does_not_is_wrong(place):
  made = tokenizer(place / 'llama')
  haystack = np.frombuffer(b'Some text. ' * 200, np.uint8)
  sizes = {'length': 400, 'depths': 3, 'trials': 2, 'seed': 0}

  def knows(inputs, targets):
    return np.zeros(inputs.shape), np.ones(inputs.shape, bool)

  def knows_all_but_the_last(inputs, targets):
    loss, right = knows(inputs, targets)
    right[:, -2] = False
    return loss + 1.5, right

  found = needles.retrieval(knows, made, haystack, **sizes)
  assert found['passkey']['share'] == found['needle']['share'] == [1.0] * 3
  found = needles.retrieval(knows_all_but_the_last, made, haystack, **sizes)
  assert found['passkey']['share'] == [0.0] * 3
  assert found['passkey']['nats'] == [1.5] * 3
  assert (
    needles.retrieval(knows, made, haystack, **{**sizes, 'length': 40})['needle']['share']
    == [None] * 3
  )


@pytest.mark.parametrize(
  ('more', 'words'),
  [
    (['--lengths=64,48'], 'must rise and divide'),
    (['--schemes=nothing'], "Unknown scheme 'nothing'"),
    (['--tokens=32'], 'eval_tokens must hold the longest'),
    (['--checkpoint=org/name'], 'posjax downloads nothing'),
  ],
)
def test_a_command_that_cannot_be_done_ends_in_one_sentence(place, more, words):
  with pytest.raises(SystemExit, match=words):
    reach.main(command(place, f'--workdir={place / "other"}', *more))
