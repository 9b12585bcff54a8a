"""Batches of algorithmic questions."""

import itertools

import numpy as np
import pytest

from posjax.experiment.tasks.algorithmic import framing, synthetic

LENGTHS = (3, 5, 6)
WIDTH = 41  # of addition_hints at length 6, and 2 more


def take(dataset, count):
  return list(itertools.islice(dataset, count))


def same(first, second):
  return all(np.array_equal(first[name], second[name]) for name in first)


def make(name='copy', **changes):
  arguments = {'lengths': LENGTHS, 'batch_size': 4, 'seed': 0, 'width': WIDTH}
  return synthetic.examples(name, **(arguments | changes))


@pytest.mark.parametrize('name', synthetic.names())
def test_a_row_holds_the_framed_question_and_weighs_its_answer_alone(name):
  for batch in take(make(name), 5):
    for row in range(4):
      used = batch['segments'][row].astype(bool)
      size = used.sum()
      tokens = [*batch['inputs'][row][used], batch['targets'][row][size - 1]]
      middle = tokens.index(synthetic.SEP)
      assert tokens[0] == synthetic.BOS
      assert tokens[-1] == synthetic.EOS
      assert batch['targets'][row][used].tolist() == tokens[1:]
      assert batch['targets'][row][batch['weights'][row] > 0].tolist() == tokens[middle + 1 :]
      assert size <= synthetic.required_width(name, int(batch['lengths'][row]))
      np.testing.assert_array_equal(used, np.arange(WIDTH) < size)
      np.testing.assert_array_equal(batch['positions'][row], np.arange(WIDTH) * used)
      assert not batch['inputs'][row][~used].any()
      assert not batch['targets'][row][~used].any()


@pytest.mark.parametrize('name', synthetic.names())
def test_the_answer_in_a_row_is_the_algorithms_own(name):
  words = synthetic.vocabulary(name)
  batch = take(make(name, seed=3), 1)[0]
  rng = np.random.default_rng((3, 2))  # row 2 of the stream
  length = LENGTHS[rng.integers(3)]
  prompt, answer = synthetic.get(name).generate(rng, length)
  alphabet = synthetic.get(name).alphabet
  framed = ['<bos>', *(alphabet[s] for s in prompt), '<sep>', *(alphabet[s] for s in answer)]
  used = batch['segments'][2].astype(bool)
  assert [words[token] for token in batch['inputs'][2][used]] == framed
  assert batch['lengths'][2] == length


@pytest.mark.parametrize('name', synthetic.names())
def test_an_encoder_reads_the_prompt_and_says_the_answer_in_empty_places(name):
  algorithm, rng = synthetic.get(name), np.random.default_rng((3, 2))
  batch = take(make(name, seed=3, form=framing.ENCODER), 1)[0]
  length = LENGTHS[rng.integers(3)]
  prompt, answer = algorithm.generate(rng, length)
  words = [*synthetic.MARKS, *algorithm.alphabet]
  places = algorithm.answer_symbols(length) + algorithm.varies
  used = batch['segments'][2].astype(bool)
  said = [words[token] for token in batch['inputs'][2][used]]
  assert said == [algorithm.alphabet[s] for s in prompt] + ['<sep>'] * places
  right = [algorithm.alphabet[s] for s in answer] + ['<eos>'] * algorithm.varies
  judged = batch['weights'][2] > 0
  assert [words[token] for token in batch['targets'][2][judged]] == right
  assert np.flatnonzero(judged).tolist() == list(range(len(prompt), len(prompt) + len(right)))
  np.testing.assert_array_equal(batch['positions'][2], np.arange(WIDTH) * used)
  assert len(said) <= synthetic.required_width(name, length, framing.ENCODER)


@pytest.mark.parametrize('name', synthetic.names())
def test_empty_places_tell_nothing_of_the_answer(name):
  for batch in take(make(name, form=framing.ENCODER), 5):
    blanks = (batch['inputs'] == synthetic.SEP).sum(1)
    for length in LENGTHS:
      assert len(set(blanks[batch['lengths'] == length].tolist())) <= 1


def test_arrays_have_the_stated_types():
  batch = take(make(), 1)[0]
  assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
    'inputs': ('int32', (4, WIDTH)),
    'targets': ('int32', (4, WIDTH)),
    'segments': ('int32', (4, WIDTH)),
    'positions': ('int32', (4, WIDTH)),
    'weights': ('float32', (4, WIDTH)),
    'lengths': ('int32', (4,)),
  }


def test_lengths_are_drawn_uniformly():
  lengths = np.concatenate([batch['lengths'] for batch in take(make(batch_size=100), 12)])
  counts = [(lengths == length).sum() for length in LENGTHS]
  assert sum(counts) == 1200
  assert min(counts) > 340  # four standard deviations below 400


def test_a_seed_is_a_stream():
  first, again, other = (take(make(seed=seed), 3) for seed in (0, 0, 1))
  assert all(map(same, first, again))
  assert not any(map(same, first, other))
  assert not same(first[0], first[1])


def test_a_saved_state_goes_on_exactly():
  iterator = iter(make('dyck'))
  next(iterator)
  state = iterator.get_state()
  expected = [next(iterator) for _ in range(3)]
  fresh = iter(make('dyck'))
  fresh.set_state(state)
  assert all(map(same, expected, [next(fresh) for _ in range(3)]))


def test_shards_share_out_the_rows_of_one_stream():
  whole = np.concatenate([batch['inputs'] for batch in take(make(), 4)])
  for shard in range(2):
    part = take(make(shard_index=shard, shard_count=2), 2)
    np.testing.assert_array_equal(
      np.concatenate([batch['inputs'] for batch in part]), whole[shard::2]
    )


def test_the_required_width_is_enough_and_one_less_is_refused():
  make('addition', lengths=(9,), width=31)
  with pytest.raises(ValueError, match=r'addition of length 9 needs rows of 31 .* width is 30'):
    make('addition', lengths=(9,), width=30)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'lengths': ()}, 'lengths of copy should be one or more numbers from 1'),
    ({'lengths': (0, 1)}, r'but is \(0, 1\)'),
    ({'name': 'solve_equation', 'lengths': (2, 5)}, r'numbers from 3, but is \(2, 5\)'),
    ({'batch_size': 0}, 'batch_size should be at least 1, but is 0'),
    ({'seed': -1}, 'seed should be at least 0, but is -1'),
    ({'shard_index': 2, 'shard_count': 2}, r'shard_index should be in \[0, 2\), but is 2'),
    ({'name': 'associative_recall', 'lengths': (129,), 'width': 300}, 'too few for 129 pairs'),
    ({'name': 'sorted'}, "Unknown algorithm 'sorted'; did you mean 'sort'.* parity_check, reverse"),
  ],
)
def test_what_cannot_be_made_is_refused_at_once(changes, message):
  with pytest.raises(ValueError, match=message):
    make(**changes)


def test_the_hash_of_generated_questions_tells_arguments_version_and_algorithm(monkeypatch):
  from posjax.experiment.tasks.algorithmic import data as questions

  def told(name='copy', seed=0, longest=5, factors=(1, 2)):
    sizes = {'shortest': None, 'longest': longest, 'eval_factors': factors, 'eval_lengths': ()}
    return questions.read(f'synthetic:{name}', framing.DECODER, seed=seed, **sizes).facts['sha256']

  first = told()
  assert len(first) == 64
  assert told(seed=1) == first  # seeds of a comparison are averaged
  assert len({first, told('reverse'), told(longest=6), told(factors=(1, 4))}) == 4
  with monkeypatch.context() as patched:
    patched.setattr(synthetic, 'VERSION', synthetic.VERSION + 1)
    assert told() != first
  algorithm = synthetic.get('copy')
  changed = algorithm._replace(generate=lambda rng, length: ([0] * length, [0] * length))
  monkeypatch.setattr(synthetic, 'get', lambda name: changed)
  assert told() != first
