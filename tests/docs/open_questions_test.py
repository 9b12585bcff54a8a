"""`tools/open_questions.py` on constructed codes, tables and networks whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import posjax
from posjax.experiment.loading import Loaded, layers_of
from posjax.models.transformer import Transformer
from tools import open_questions

PLACE = np.arange(24)


def test_what_the_distance_explains_is_all_of_a_function_of_it_and_none_of_chance():
  distance = PLACE[:, None] - PLACE
  assert open_questions.explained(np.cos(distance / 3) + distance) == pytest.approx(1)
  draws = [np.random.default_rng(i).normal(size=(24, 24)) for i in range(40)]
  assert abs(np.mean([open_questions.explained(each) for each in draws])) < 0.02
  both = [np.cos(distance) / np.cos(distance).std() + each / each.std() for each in draws]
  assert np.mean([open_questions.explained(each) for each in both]) == pytest.approx(0.5, abs=0.02)
  by_distance = open_questions.by_distance(2.0 * distance)
  np.testing.assert_allclose(by_distance, 2.0 * np.arange(-23, 24))


def test_one_orthogonal_matrix_for_queries_and_keys_keeps_the_products_of_codes():
  """Summed over the heads; and with other matrices it does not."""
  sizes = {'num_layers': 1, 'width': 16, 'num_heads': 2, 'ff_width': 16}
  scheme = posjax.get('sinusoidal')
  rows = {}
  for query_key in ('joint', 'free'):
    model = Transformer(5, scheme, query_key=query_key, **sizes, rngs=nnx.Rngs(0))
    nothing: dict = {'config': None, 'task': None}
    loaded = Loaded(model, layers_of(model), **nothing)
    rows[query_key] = list(open_questions.pattern(loaded, 24))
  angle = PLACE[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
  codes = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(24, 16)
  centred = codes - codes.mean(1, keepdims=True)
  expected = open_questions.by_distance(centred @ centred.T) / np.sqrt(8)
  kept = open_questions.explained(centred @ centred.T, causal=True)  # the norm costs a part
  assert [row['head'] for row in rows['joint']] == [0, 1, 'sum', 'codes alone']
  np.testing.assert_allclose(rows['joint'][2]['by_distance'], expected, atol=1e-5)
  np.testing.assert_allclose(rows['joint'][3]['explained'], 1, atol=1e-9)
  assert rows['joint'][2]['explained'] == pytest.approx(kept, abs=1e-5)
  assert rows['free'][2]['explained'] < kept - 0.1
  assert abs(rows['joint'][2]['shuffled']) < kept / 3  # a shuffle keeps the distance 0


def test_sinusoids_are_shifted_by_one_matrix_and_random_rows_by_none():
  angle = PLACE[:, None] * np.array([1.0, 0.4, 0.15])
  wave = open_questions.table(np.concatenate([np.sin(angle), np.cos(angle)], 1))
  drawn = open_questions.table(np.random.default_rng(0).normal(size=(24, 32)))
  assert min(wave['shift'].values()) > 0.98
  assert max(drawn['shift'].values()) < 0.3
  assert wave['smooth'] < 0.5
  assert drawn['smooth'] == pytest.approx(1, abs=0.1)
  assert abs(drawn['explained']) < 0.1 < 0.8 < wave['explained']
  assert wave['directions'] <= 6 < 10 < drawn['directions']
  assert sum(wave['spectrum']) == pytest.approx(1)
  line = open_questions.table(PLACE[:, None] * np.ones((1, 4)))
  assert line['straight'] == pytest.approx(1)
  assert line['directions'] == pytest.approx(1)


def test_the_gradient_of_a_decaying_sum_decays_with_the_distance():
  decay = 0.8 ** jnp.maximum(PLACE[:, None] - PLACE, 0) * (PLACE[:, None] >= PLACE)
  run = lambda x: 3.0 * jnp.einsum('ts,bsm->btm', decay, x)
  last = jnp.array([23, 15])
  found = open_questions.by_distance_of(run, jnp.ones((2, 24, 7)), last, jax.random.key(0), 512)
  np.testing.assert_allclose(found, 3.0 * 0.8 ** np.arange(16) * np.sqrt(7), rtol=0.05)


def test_a_word_has_the_class_of_its_most_frequent_tag(tmp_path):
  trees = tmp_path / 'a.trees'
  trees.write_text('(TOP (S (NN Walk) (VB walk)))\n(TOP (VP (VBD walk) (MD can) (. .)))\n')
  assert open_questions.classes(trees) == {'walk': 'verb', 'can': 'function word', '.': 'sign'}


def test_texts_with_a_gap_begin_with_their_label(tmp_path):
  open_questions.gaps(tmp_path, gap=5, texts=30)
  rows = [line.split('\t') for line in (tmp_path / 'train.tsv').read_text().splitlines()]
  assert len(rows) == 30
  assert {label for label, _ in rows} == {'yes', 'no'}
  assert all(text.split()[0] == label and len(text.split()) == 6 for label, text in rows)
