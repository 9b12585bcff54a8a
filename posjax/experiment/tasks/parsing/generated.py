"""Generated sentences whose trees follow from their words: `synthetic:brackets`.

They are of a small English: 'the king sees a dog of the queen with a stick .' A phrase with `of`
belongs to the noun before it, and one with `with` or `in` to the verb before it, so that words
alone tell where constituents begin and end, if their order is known. Sentences have trees with more
than two children in a node, words that are constituents by themselves, and chains of constituents
(a command is an S of a VP alone).
"""

import functools

import numpy as np

from posjax.experiment.tasks.parsing.tree import Leaf, Node, Tree

_WORDS = {
  'DT': ('the', 'a', 'every'),
  'NN': ('king', 'queen', 'dog', 'cat', 'house', 'stick', 'tree', 'river'),
  'PRP': ('she', 'he', 'it'),
  'VBZ': ('sees', 'likes', 'takes', 'finds'),
  'VB': ('see', 'like', 'take', 'find'),
  'RB': ('now', 'often'),
}
_SAYS = ('says', 'knows')
_COUNTS = (512, 128)  # training and held-out sentences
_LONGEST = 24  # words


@functools.cache
def trees() -> tuple[tuple[tuple[Tree, str], ...], tuple[tuple[Tree, str], ...]]:
  """The same trees every time: 512 training ones and 128 held-out ones, no two equal."""
  rng = np.random.default_rng(0)
  made: dict[Tree, None] = {}
  while len(made) < sum(_COUNTS):
    tree = Node('TOP', (_sentence(rng),))
    if _length(tree) <= _LONGEST:
      made[tree] = None
  placed = tuple(
    (tree, f'synthetic:brackets, sentence {number}') for number, tree in enumerate(made, start=1)
  )
  return placed[: _COUNTS[0]], placed[_COUNTS[0] :]


def _length(tree: Tree) -> int:
  return 1 if isinstance(tree, Leaf) else sum(map(_length, tree.children))


def _sentence(rng: np.random.Generator) -> Node:
  if rng.random() < 0.2:
    return Node('S', (_predicate(rng, 'VB'), Leaf('.', '.')))
  return Node('S', (*_clause(rng, 0).children, Leaf('.', '.')))


def _clause(rng: np.random.Generator, depth: int) -> Node:
  """A subject and what it does; a clause in a clause may be a command, a chain of S and VP."""
  if depth and rng.random() < 0.2:
    return Node('S', (_predicate(rng, 'VB', depth),))
  return Node('S', (_noun_phrase(rng), _predicate(rng, 'VBZ', depth)))


def _predicate(rng: np.random.Generator, verb: str, depth: int = 0) -> Node:
  if verb == 'VBZ' and depth < 2 and rng.random() < 0.25:
    clause = Node('SBAR', (Leaf('IN', 'that'), _clause(rng, depth + 1)))
    return Node('VP', (Leaf('VBZ', str(rng.choice(_SAYS))), clause))
  children: list[Tree] = [_leaf(rng, verb), _noun_phrase(rng)]
  while rng.random() < 0.3:
    children.append(_prepositional(rng, str(rng.choice(('with', 'in')))))
  if rng.random() < 0.3:
    children.append(Node('ADVP', (_leaf(rng, 'RB'),)))
  return Node('VP', tuple(children))


def _noun_phrase(rng: np.random.Generator) -> Node:
  if rng.random() < 0.3:
    return Node('NP', (_leaf(rng, 'PRP'),))
  plain = Node('NP', (_leaf(rng, 'DT'), _leaf(rng, 'NN')))
  return Node('NP', (plain, _prepositional(rng, 'of'))) if rng.random() < 0.3 else plain


def _prepositional(rng: np.random.Generator, word: str) -> Node:
  return Node('PP', (Leaf('IN', word), _noun_phrase(rng)))


def _leaf(rng: np.random.Generator, tag: str) -> Leaf:
  return Leaf(tag, str(rng.choice(_WORDS[tag])))
