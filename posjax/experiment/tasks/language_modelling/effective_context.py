"""Relative effective context length: how much context helps a model beyond the best short one.

Of a group of models, each with the loss l_i(c, t) of every token t at several context lengths c:

  baseline        b(c, t) = min_i l_i(c, t)
  relative loss   f_i(c, c') = mean over T of min(b(c, t), l_i(c', t))
  relative gain   g_i(c, c') = (e^f_i(c, c) - e^f_i(c, c')) / e^f_i(c, c)

T are the tokens with the largest b(c, t), a share r of all. The length of model i is the first c
at which going on to the next length gains less than 1 %. All models improve on one baseline, so a
model that is good with little context is not at a disadvantage; but a length holds for a group.

Reference: Dai et al. 2019, Transformer-XL, https://arxiv.org/abs/1901.02860, appendix C. It has
equal steps between lengths; here they may be any that rise. In that of the paper, f_i(c, c) has
min(b, l_i) = b in it, so the denominator is the same for all models.
"""

import itertools
from collections.abc import Mapping

import numpy as np

Losses = Mapping[int, np.ndarray]  # by context length, in tokens: nats of each token, [N]


def relative_gain(
  group: Mapping[str, Losses], short: int, long: int, share: float = 1.0
) -> dict[str, float]:
  """g_i(short, long) for each model.

  Args:
    group: by model, losses of the same tokens at both lengths.
    short: c, in tokens.
    long: c', in tokens.
    share: r, in (0, 1]: of the tokens, those that are hardest with little context; at least one.

  Raises:
    ValueError: if a model lacks a length, losses are not of the same tokens or no numbers, or the
      share is out of range.

  Example:
    >>> two = {1: np.log([4.0, 2.0]), 2: np.log([1.0, 2.0])}
    >>> (
    ...   round(relative_gain({'a': two}, 1, 2)['a'], 3),
    ...   round(relative_gain({'a': two}, 1, 2, 0.5)['a'], 3),
    ... )
    (0.5, 0.75)
  """
  if not 0 < share <= 1:
    raise ValueError(f'The share of hard tokens must be in (0, 1], but got {share}.')
  at = {length: _at(group, length) for length in (short, long)}
  baseline = at[short].min(axis=0)
  hardest = max(round(share * len(baseline)), 1)
  chosen = np.argsort(-baseline, kind='stable')[:hardest]
  before = np.exp(baseline[chosen].mean())
  after = np.exp(np.minimum(baseline, at[long])[:, chosen].mean(axis=1))
  return {name: float(1 - ppl / before) for name, ppl in zip(group, after, strict=True)}


def relative_effective_context_length(
  group: Mapping[str, Losses], share: float = 1.0, threshold: float = 0.01
) -> dict[str, int]:
  """The relative effective context length of each model, in tokens.

  Args:
    group: by model, losses of the same tokens at the same lengths, of which there are two or more.
    share: r, in (0, 1]: of the tokens, those that are hardest with little context.
    threshold: what the next length must gain, the paper's 0.01.

  Returns:
    The first length whose successor gains less than the threshold; the last length where every one
    gains: it may then be longer.

  Raises:
    ValueError: if there are no two lengths, or as `relative_gain`.

  Example:
    >>> nats = {8: np.array([2.0, 2.0]), 16: np.array([1.0, 1.0]), 24: np.array([1.0, 1.0])}
    >>> relative_effective_context_length({'a': nats})
    {'a': 16}
  """
  lengths = sorted({length for losses in group.values() for length in losses})
  if len(lengths) < 2:
    raise ValueError(f'At least two context lengths must be compared, but got {lengths}.')
  pairs = itertools.pairwise(lengths)
  gains = [(short, relative_gain(group, short, long, share)) for short, long in pairs]
  return {
    name: next((short for short, gain in gains if gain[name] < threshold), lengths[-1])
    for name in group
  }


def _at(group: Mapping[str, Losses], length: int) -> np.ndarray:
  """Losses of all models at one length, [models, N]."""
  missing = [name for name, losses in group.items() if length not in losses]
  if missing:
    raise ValueError(f'Every model needs losses at length {length}, but {missing} have none.')
  losses = [np.asarray(losses[length], np.float64) for losses in group.values()]
  shapes = {loss.shape for loss in losses}
  if len(shapes) != 1 or losses[0].ndim != 1 or not losses[0].size:
    raise ValueError(f'Losses must be [N], of the same tokens, but got shapes {sorted(shapes)}.')
  if not np.isfinite(losses).all():
    raise ValueError(f'Losses at length {length} must be numbers, but some are not.')
  return np.stack(losses)
