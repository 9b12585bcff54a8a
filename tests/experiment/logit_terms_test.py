"""The terms of logits, on attention whose terms are known."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ml_collections import ConfigDict

import posjax
from posjax.experiment import checkpoint, evaluation, logit_terms, run
from posjax.experiment import workdir as workdirs
from posjax.experiment.loading import Loaded, layers_of
from posjax.models.transformer import Transformer
from tests.experiment.support import runs

TOKENS, ROWS, WORDS = 12, 400, 30


def loaded(scheme, same_words=False, **sizes):
  """A decoder on random words, which with `same_words` all have one vector: no content."""
  sizes = {'num_layers': 1, 'width': 16, 'num_heads': 2, 'ff_width': 16, **sizes}
  model = Transformer(WORDS, posjax.get(scheme), causal=True, rngs=nnx.Rngs(0), **sizes)
  if same_words:
    table = model.embed.table.embedding
    table[...] = jnp.broadcast_to(table[0], table.shape)
  words = np.random.default_rng(0).integers(0, WORDS, (4, ROWS // 4, TOKENS))
  batches = [{'inputs': each, 'segments': np.ones_like(each)} for each in words]

  def loss(model, batch, *_):
    return model(batch['inputs'], jnp.arange(TOKENS), segments=batch['segments']), None

  task = SimpleNamespace(train_batches=lambda shard, shards: iter(batches), loss=loss)
  return Loaded(model, layers_of(model), ConfigDict(), task), words.reshape(ROWS, TOKENS)


def test_a_head_with_rope_that_sees_no_content_is_all_distance():
  (found,) = logit_terms.terms(loaded('rope', same_words=True)[0], rows=ROWS)
  assert found.layer == 'stack.0.attention'
  assert (found.total > 1e-4).all()
  np.testing.assert_allclose(found.position, found.total, rtol=1e-4)
  np.testing.assert_allclose(found.distance, found.total, rtol=1e-4)
  for name, share in found.shares().items():
    np.testing.assert_allclose(share, float(name == 'position'), atol=1e-4)
  assert np.isnan(found.by_distance[:, : TOKENS - 1]).all()  # what comes later is not seen
  assert np.isfinite(found.by_distance[:, TOKENS - 1 :]).all()


def test_heads_without_positions_have_none():
  for found in logit_terms.terms(loaded('none', num_layers=2)[0], rows=ROWS):
    nothing = 1e-9 * found.total.max()
    np.testing.assert_allclose(found.content_position, 0, atol=nothing)
    np.testing.assert_allclose(found.position, 0, atol=nothing)
    np.testing.assert_allclose(found.content + found.carried, found.total, rtol=1e-6)
    assert (found.carried < 0.2 * found.content).all()  # a token is like itself


def test_a_bias_by_distance_is_its_own_variance_and_adds_to_content():
  with_bias, _ = loaded('t5')
  table = with_bias.model.embed.shared[0].held['table']
  table[...] = jnp.linspace(-1, 2, table.size).reshape(table.shape)
  (found,) = logit_terms.terms(with_bias, rows=ROWS)
  pos = jnp.arange(TOKENS)
  distance = pos[:, None] - pos[None]
  bias = with_bias.layers[0].scheme.bias({'table': table[...]}, distance)
  bias = np.asarray(bias, np.float64)
  own = variance(np.broadcast_to(bias, (ROWS, 2, TOKENS, TOKENS)))
  np.testing.assert_allclose(found.by_parameter['table'], own, rtol=1e-4)
  np.testing.assert_allclose(found.position, own, rtol=1e-4)
  np.testing.assert_allclose(found.content_position, 0, atol=1e-6)


def variance(logits):
  """Over texts and over pairs of which the key is not later, less the mean of each query's keys."""
  squares, count = 0.0, 0
  for query in range(1, TOKENS):
    seen = logits[:, :, query, : query + 1]
    squares = squares + ((seen - seen.mean(-1, keepdims=True)) ** 2).sum((0, 2))
    count += seen.shape[0] * seen.shape[2]
  return squares / count


def test_the_four_terms_of_transformer_xl_are_those_of_the_paper():
  made, words = loaded('transformer_xl')
  model = made.model
  rng = np.random.default_rng(1)
  attention, shared = model.stack.periods[0].attention, model.embed.shared[0].held
  for name in ('u', 'v'):
    shared[name][...] = jnp.asarray(rng.normal(size=(2, 8)), jnp.float32)
  w_r = attention.scheme_params['w_r']
  w_r[...] = jnp.asarray(rng.normal(size=w_r.shape) / 4, jnp.float32)
  (found,) = logit_terms.terms(made, rows=ROWS)

  plain = lambda x: np.asarray(x, np.float64)
  x = plain(model.embed.table.embedding[...])[words] * 16**0.5
  norm = model.stack.periods[0].norms[0]
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + norm.epsilon)
  x = x * plain(norm.scale[...])[0] + plain(norm.bias[...])[0]
  kernel = lambda name: plain(getattr(attention, name).kernel[...])[0].reshape(16, 2, 8)
  q, k = (np.einsum('btm,mhd->bthd', x, kernel(name)) for name in ('query', 'key'))
  u, v, w_r = plain(shared['u'][...]), plain(shared['v'][...]), plain(w_r[...])[0]
  place = np.arange(TOKENS)
  angle = (place[:, None] - place)[..., None] * 10000.0 ** (-np.arange(8) / 8)
  r = np.einsum(
    'ijm,mhd->ijhd', np.concatenate([np.sin(angle), np.cos(angle)], axis=-1), w_r
  )  # as in section 3.3
  content = np.einsum('bihd,bjhd->bhij', q, k) / 8**0.5
  of_u = np.broadcast_to(np.einsum('hd,bjhd->bhj', u, k)[:, :, None], content.shape) / 8**0.5
  both = np.einsum('bihd,ijhd->bhij', q, r) / 8**0.5
  of_v = np.broadcast_to(np.einsum('hd,ijhd->hij', v, r), content.shape) / 8**0.5
  np.testing.assert_allclose(found.total, variance(content + of_u + both + of_v), rtol=1e-3)
  np.testing.assert_allclose(found.by_parameter['u'], variance(of_u), rtol=1e-3)
  np.testing.assert_allclose(found.by_parameter['v'], variance(of_v), rtol=1e-3)
  np.testing.assert_allclose(found.by_parameter['w_r'], variance(both + of_v), rtol=1e-3)
  mean = both.mean(0, keepdims=True)  # of the drawn texts
  np.testing.assert_allclose(found.position, variance(of_v + mean), rtol=0.02)
  np.testing.assert_allclose(found.content_position, variance(both - mean), rtol=0.02)
  np.testing.assert_allclose(found.content + found.carried, variance(content + of_u), rtol=1e-3)


def test_added_positions_have_cross_terms_in_the_first_layer_and_the_token_before_is_seen():
  made, _ = loaded('learned(max_length=12)', num_layers=2, width=32)
  model = made.model
  model.embed.shared[0].held['table'][...] = 12 * jnp.eye(32)[:TOKENS]
  # The first head of the first layer: a place asks for the code of the one before it.
  asks = {'query': 4 * jnp.roll(jnp.eye(32), -1, axis=1)[:, :16], 'key': jnp.eye(32)[:, :16]}
  for name, of_head in asks.items():
    kernel = getattr(model.stack.periods[0].attention, name).kernel
    heads = kernel[...].reshape(2, 32, 2, 16)  # layers, width, heads, head
    kernel[...] = heads.at[0, :, 0].set(of_head).reshape(kernel.shape)
  one, two = logit_terms.terms(made, rows=ROWS)
  assert one.previous[0] > 0.5 > one.previous[1]
  assert one.shares()['position'][0] > 0.9
  assert (one.content_position > 1e-3).all()
  np.testing.assert_allclose(
    two.content_position, 0, atol=1e-6
  )  # in its tokens, position is content


@pytest.mark.slow
def test_a_run_is_read_and_written_as_lines(tmp_path, monkeypatch, capsys):
  config = runs.small(scheme='shaw')
  (tmp_path / 'run').mkdir()
  prepared = run.setup(config, tmp_path / 'run')
  run.write_header(prepared)
  choice = checkpoint.choose(config, evaluation.higher(prepared.task))
  with checkpoint.manager(tmp_path / 'run' / workdirs.CHECKPOINTS, choice) as checkpoints:
    checkpoint.save(checkpoints, 1, prepared.state, prepared.data, None)
    checkpoint.wait(checkpoints)
  lines = tmp_path / 'terms.jsonl'
  arguments = ['logit_terms', str(tmp_path / 'run'), '--rows=8', f'--lines={lines}']
  monkeypatch.setattr('sys.argv', arguments)
  logit_terms.main()
  found = [json.loads(line) for line in lines.read_text('utf-8').splitlines()]
  names = [layer.name for layer in posjax.experiment.load(tmp_path / 'run').layers]
  assert [line['layer'] for line in found] == names
  assert all(line['scheme'] == 'shaw' and line['texts'] >= 4 for line in found)
  assert all(set(line['by_parameter']) == {'keys'} for line in found)
  assert 'stack.1' in capsys.readouterr().out


def test_what_has_no_attention_or_too_few_rows_is_refused():
  made, _ = loaded('none')
  with pytest.raises(ValueError, match='rows must be as many as there are of one length'):
    logit_terms.terms(made, rows=ROWS + 1)
  task = SimpleNamespace(train_batches=made.task.train_batches, loss=lambda *_: None)
  with pytest.raises(ValueError, match='Linear has no stack of attention layers'):
    logit_terms.terms(made._replace(model=nnx.Linear(2, 2, rngs=nnx.Rngs(0)), task=task), rows=8)
