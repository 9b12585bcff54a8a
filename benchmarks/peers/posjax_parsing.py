"""The parts of our parser: encoder, scores of spans, and the chart with its losses.

Sizes are those of configs/gum.py; words have 8 letters each, and nothing is dropped.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import posjax
from benchmarks.peers import compiled
from benchmarks.spec import Built, Parse
from configs import gum
from posjax.experiment.tasks.parsing import chart
from posjax.experiment.tasks.parsing.model import Parser, Sizes
from posjax.models.sentences import Sentences

LETTERS, ALPHABET = 8, 100


def inputs(spec: Parse) -> dict[str, np.ndarray]:
  """Sentences for the model; scores, trees and lengths for the chart."""
  rng = np.random.default_rng(0)
  rows, words = spec.batch, spec.length
  if spec.way in ('encoder', 'scores'):
    return {
      'words': rng.integers(2, spec.vocab, (rows, words), np.int32),
      'segments': np.ones((rows, words), np.int32),
      'characters': rng.integers(2, ALPHABET, (rows, words, LETTERS), np.int32),
    }
  scores = rng.standard_normal((rows, words, words, spec.labels), np.float32)
  lengths = np.full(rows, words, np.int32)
  # Trees that the chart can have: the best ones of other scores.
  gold = jax.jit(chart.best)(rng.standard_normal(scores.shape, np.float32), lengths)[0]
  return {'scores': scores, 'gold': np.asarray(gold), 'lengths': lengths}


def model(spec: Parse, rngs: nnx.Rngs) -> Parser:
  """The parser of configs/gum.py, without dropout."""
  options = gum.get_config().model.to_dict()
  options |= {name: 0.0 for name in options if name.endswith(('_dropout', 'dropout_rate'))}
  sizes = Sizes(spec.vocab, spec.labels, ALPHABET)
  return Parser(sizes, posjax.get(spec.scheme), **options, rngs=rngs)


def build(spec: Parse, given: dict[str, np.ndarray]) -> Built:
  """Compiles a part. `run` returns features, scores, trees with their scores, or gradients.

  Raises:
    Unable: if the machine's memory cannot hold it.
  """
  if spec.way not in ('encoder', 'scores'):
    return compiled.compiled(_of_chart(spec.way), *map(jnp.asarray, given.values()))
  made = model(spec, nnx.Rngs(0))
  count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(made, nnx.Param)))
  graph, state = nnx.split(made)

  def part(state, given):
    parser = nnx.merge(graph, state)
    sentences = Sentences(**given)
    return parser.annotate(sentences) if spec.way == 'encoder' else parser(sentences)

  arrays = jax.tree.map(jnp.asarray, given)
  return compiled.compiled(part, state, arrays)._replace(parameters=count)


def steps(spec: Parse) -> int:
  """How many turns the loops of a compiled part of the chart take, one after the other."""
  given = map(jnp.asarray, inputs(spec).values())
  text = jax.jit(_of_chart(spec.way)).lower(*given).compile().as_text()
  return sum(map(int, re.findall(r'"known_trip_count":\{"n":"(\d+)"\}', text or '')))


def _of_chart(way: str) -> Any:
  """A function of scores, trees and lengths."""
  if way == 'best':
    return lambda scores, gold, lengths: chart.best(scores, lengths)
  loss = {'hinge': chart.hinge, 'nll': chart.nll}[way]
  return jax.grad(lambda scores, gold, lengths: loss(scores, gold, lengths).sum())
