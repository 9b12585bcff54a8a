"""benepar's chart: the best trees (torch-struct's CKY), and its margin loss with the gradient.

Kitaev and Klein's own successor of their parser; `pip install --no-deps benepar torch-struct` and
`pip install nltk` beside torch are enough for its chart.
"""

import numpy as np
import torch
from benepar.decode_chart import ChartDecoder, SpanClassificationMarginLoss

from benchmarks.peers import posjax_parsing
from benchmarks.spec import Built, Parse, Unable

inputs = posjax_parsing.inputs  # the same scores and trees as ours


def build(spec: Parse, given: dict[str, np.ndarray]) -> Built:
  """Makes a part ready; `run` returns labels [B, n, n], or the gradient of the loss.

  Raises:
    Unable: if it is another part than the chart or the margin loss.
  """
  if spec.way not in ('best', 'hinge'):
    raise Unable(f'benepar has no {spec.way} that takes scores alone')
  scores = torch.from_numpy(given['scores'])
  scores[..., 0] = 0  # ours does not read the score of no constituent
  lengths = torch.from_numpy(given['lengths'].astype(np.int64))
  if spec.way == 'best':
    decoder = ChartDecoder({str(label): label for label in range(spec.labels)})
    return Built(lambda: np.stack(decoder.charts_from_pytorch_scores_batched(scores, lengths)))
  loss = SpanClassificationMarginLoss(reduction='sum')
  gold = torch.from_numpy(given['gold'].astype(np.int64))
  words = torch.arange(spec.length)
  # Below the diagonal is no span, which benepar marks as it marks padding.
  labels = torch.where(words[:, None] <= words[None], gold, -100)
  scores.requires_grad_()

  def run():
    (found,) = torch.autograd.grad(loss(scores, labels), scores)
    return found.numpy()

  return Built(run)
