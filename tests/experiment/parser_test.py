"""The model that scores spans: the authors' arrays, and what it reads makes the difference."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import posjax
from posjax.experiment.models.parser import Parser, Sentences, Sizes
from tests.experiment.text_made import moved
from tests.loops import error

GOLDEN = np.load(Path(__file__).parents[1] / 'golden' / 'parser.npz')
SIZES = Sizes(words=9, labels=5, characters=7, tags=4)
SMALL = {
  'width': 8,
  'num_heads': 2,
  'num_layers': 2,
  'hidden_width': 12,
  'label_width': 6,
  'pre_norm': False,
  'activation': 'relu',
}
LETTERS = {'characters': 'cnn', 'character_width': 6}


def made(scheme='concatenated', sizes=SIZES, **options):
  schemes = [posjax.get(line) for line in scheme.split('|')]
  return moved(Parser(sizes, schemes, rngs=nnx.Rngs(0), **{**SMALL, **options}))


def drawn(width, letters, lengths):
  """Sentences of these lengths; what stands in the padding is not 0 but for the letters."""
  draw, rows = np.random.default_rng(0).integers, len(lengths)
  segments = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
  count = draw(1, letters + 1, (rows, width, 1))
  characters = np.where(np.arange(letters) < count, draw(1, 7, (rows, width, letters)), 0)
  words, tags = draw(1, 9, (rows, width)), draw(1, 4, (rows, width))
  return Sentences(*map(jnp.asarray, (words, segments, characters, tags)))


def golden(name):
  return jnp.asarray(GOLDEN[name], jnp.float32)


def set_linear(layer, name):
  layer.kernel[...], layer.bias[...] = golden(f'{name}.weight').T, golden(f'{name}.bias')


def set_norm(layer, name):
  layer.scale[...], layer.bias[...] = golden(f'{name}.weight'), golden(f'{name}.bias')


def authors_parser():
  """The parser with the parameters of the authors' encoder, and of their scores of spans."""
  model = made('concatenated(max_length=10)', encoder='partitioned')
  (shared,) = model.embed.shared
  shared.held['table'][...] = golden('encparam_timing.timing_table')
  set_norm(model.norm, 'encparam_timing.norm')
  flat = lambda w: jnp.moveaxis(w, 0, 1).reshape(w.shape[1], -1)  # [h, in, d] to [in, h d]
  for at, block in enumerate(model.encoder.blocks):
    own = f'encparam_layers.{at}'
    for half, c in (('content', 'c'), ('position', 'p')):
      weights = golden(f'{own}.self_attn.w_qkv_{c}')
      for i, name in enumerate(('query', 'key', 'value')):
        getattr(getattr(block.attention, name), half).kernel[...] = flat(weights[:, :, i])
      out = golden(f'{own}.self_attn.w_o_{c}')
      getattr(block.attention.out, half).kernel[...] = out.reshape(-1, out.shape[-1])
      for i, name in ((1, 'up'), (2, 'down')):
        set_linear(getattr(getattr(block.feed_forward, name), half), f'{own}.linear{i}.linear_{c}')
    set_norm(block.norms[0], f'{own}.norm_attn')
    set_norm(block.norms[1], f'{own}.norm_ff')
  set_linear(model.spans.hidden, 'span_f_label_0')
  set_norm(model.spans.norm, 'span_f_label_1')
  set_linear(model.spans.readout, 'span_f_label_3')
  return model


def test_the_factored_encoder_and_the_scores_of_spans_equal_the_authors():
  model, real = authors_parser(), GOLDEN['enc_mask']
  # The last columns of a word's vector are never read: the table of positions replaces them.
  content = jnp.pad(golden('enc_content_in'), ((0, 0), (0, 0), (0, 4)), constant_values=9)
  pos = jnp.broadcast_to(jnp.arange(5), (2, 5))
  graph, state = nnx.split(model)

  @jax.jit
  def run(state, content, segments, annotations):
    model = nnx.merge(graph, state)
    embedded = model.embed.add(content, segments, model.embed.ids(pos), segments)
    embedded = embedded._replace(x=model.norm(embedded.x))
    return embedded.x, model.encoder(embedded).x, model.spans(annotations)

  segments = jnp.asarray(real, jnp.int32)
  timed, out, scores = run(state, content, segments, golden('span_annotations'))
  assert error(timed[real], GOLDEN['enc_after_timing'][real]) < 4e-5  # epsilon is 1e-5 there
  assert error(out[real], GOLDEN['enc_out'][real]) < 2e-5
  first, last = np.triu_indices(5)
  assert error(scores[:, first, last], GOLDEN['span_scores'][:, first, last]) < 3e-6
  np.testing.assert_array_equal(scores[..., 0], 0)
