"""FLOPs that are counted by hand, and what is said of a speed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posjax.experiment import flops, report, run
from posjax.experiment.run import make_task
from tests.experiment.support.faults import POINTS, line
from tests.experiment.support.runs import small
from train import train


@pytest.mark.parametrize('implementation', ['dense', 'blockwise'])
def test_the_flops_of_a_decoder_are_those_of_its_products(implementation, tmp_path):
  """Per token and layer four projections, two of the feed-forward part, and two of whole rows."""
  batch, length, width, layers, vocab = 8, 32, 32, 2, 256
  task = make_task(small(scheme='rope', **{'attention.implementation': implementation}), tmp_path)
  shapes = jax.eval_shape(lambda x: x, dict(next(iter(task.train_batches(0, 1)))))
  per_layer = 2 * width * width * 4 + 2 * width * 4 * width * 2 + 2 * length * width * 2
  forward = batch * length * (layers * per_layer + 2 * width * vocab)
  assert flops.of_step(task, shapes) == 3 * forward


def test_loops_branches_and_convolutions_are_counted():
  square = jnp.ones((4, 4))

  def program(x):
    x, _ = jax.lax.scan(lambda x, _: (x @ square, None), x, length=5)
    x = jax.lax.cond(x[0, 0] > 0, lambda x: x @ square @ square, lambda x: x @ square, x)
    x = jax.checkpoint(lambda x: x @ square)(x)
    image = jnp.broadcast_to(x, (1, 3, 4, 4))  # three channels, to six, with kernels of 1 x 1
    return jax.lax.conv(image, jnp.ones((6, 3, 1, 1)), (1, 1), 'VALID')

  count = flops.products(jax.make_jaxpr(program)(square).jaxpr)
  assert count == (5 + 2 + 1) * 2 * 4**3 + 2 * 16 * 6 * 3
  complex_product = jax.make_jaxpr(lambda x: x @ x)(np.ones((4, 4), np.complex64))
  assert flops.products(complex_product.jaxpr) == 8 * 4**3


def test_a_run_tells_its_speed_and_the_share_of_a_peak_that_is_known(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(report, 'draw', lambda *arguments: None)
  monkeypatch.setattr(run, 'MEASURED', 0.0)
  monkeypatch.setattr(flops, 'of_step', lambda task, batch: 1e9)
  (tmp_path / 'points.txt').write_text(POINTS)
  train(line(tmp_path / 'points.txt'), tmp_path / 'run')
  assert "model GFLOP/s; the peak of 'cpu' is not known here" in capsys.readouterr().out
  monkeypatch.setattr(flops, 'PEAKS', {'cpu': (1e12, 1e12)})
  train(line(tmp_path / 'points.txt'), tmp_path / 'again')
  assert ' % of the peak of 1 x cpu in float32' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize('steps', [3, 100])
def test_a_trace_is_written_also_where_the_run_ends_amid_it(steps, tmp_path, capsys):
  (tmp_path / 'points.txt').write_text(POINTS)
  train(line(tmp_path / 'points.txt', profile=steps), tmp_path / 'run')
  assert 'traced by jax.profiler: ' in capsys.readouterr().out
  assert list((tmp_path / 'run' / 'profile').rglob('*.xplane.pb'))
