"""Arguments out of range, which the annotations of the constructors refuse."""

import pytest

import posjax

LINES = [
  *('additive(width=0)', 'axial_rope(axes=1)', 'axial_rope(base=-1.0)'),
  *('cape(max_global_shift=-1.0)', 'cape(max_local_shift=1e999)', 'cape(max_global_scale=0.5)'),
  *('cape(axes=0)', 'complex_order(base=0.0)', 'concatenated(max_length=0)'),
  *('concatenated(position_width=0)', 'cope(1)', 'cosine(temperature=0.0)', 'dape(width=0)'),
  *('deberta(max_distance=0)', 'deberta(max_distance=2147483648)', 'dual_chunk(0, 10)'),
  *('dual_chunk(6, 10, base=0.0)', 'dynamic_bias(width=0)', 'dynamic_bias(4, num_layers=0)'),
  *('dynamic_bias(4, axes=0)', 'dynamic_ntk(0, 4)', 'dynamic_ntk(8, -3)'),
  *('dynamic_ntk(8, 4, factor=0.0)', 'factored(0)', 'fire(0.0)', 'fire(4.0, width=0)'),
  *('fire(4.0, num_layers=0)', 'fire(4.0, c=0.0)', 'floor_log(0)', 'floor_log(4, scale=-0.1)'),
  *('floor_log(4, offset=-1)', 'fourier(0)', 'fourier(hidden=0)', 'fourier(gamma=0.0)'),
  *('fourier(axes=0)', 'fourier(groups=0)', 'fourier(constant_seed=-1)', 'grouped(0, 4)'),
  *('grouped(3, 0)', 'grouped(3, 4, base=-1.0)', 'interpolated(0.0)', 'interpolated(-1.0)'),
  *('learned(0)', 'learned(stddev=-1.0)', 'llama3(factor=0.0)', 'llama3(original_length=0)'),
  *('llama3(low_frequency_factor=-1.0)', 'log_scaled(1)', 'longrope(0, 8, (1.0,), (1.0,))'),
  *('longrope(64, 1, (1.0,), (1.0,))', 'longrope(64, 8, (1.0,), (1.0,), extension=0.0)'),
  *('mrope((2, 2), base=0.0)', 'mrope((2, 2), attention_factor=0.0)', 'pope(base=0.0)'),
  *('position_only(0)', 'randomized(0)', 'randomized(50, axes=0)', 'rope(base=0.0)'),
  *('rope(factor=-1.0)', 'sandwich(base=0.0)', 'shaw(max_distance=-1)', 'shifted(-1)'),
  *('shifted(2147483647)', 'shifted(axes=0)', 'sinusoidal(base=0.0)', 'sinusoidal(axes=0)'),
  *('ssmax(length=1)', 'ssmax(count=0)', 'swin(0, 4)', 'swin(4, 0)', 'swin_continuous(1, 4)'),
  *('swin_continuous(4, 1)', 'swin_continuous(4, 4, hidden=0)', 'tener(base=0.0)'),
  *('transformer_xl(base=0.0)', 'transformer_xl(max_distance=0)', 'tupe(max_length=0)'),
  *('tupe(max_distance=0)', 'xpos(base=0.0)', 'xpos(scale_base=-512.0)', 'xpos(gamma=0.0)'),
  *('yarn(0.5, 64)', 'yarn(4.0, 0)', 'yarn(4.0, 64, base=1.0)'),
  *('rope(fraction=0.0)', 'rope(fraction=1.5)', 'xpos(fraction=0.0)', 'xpos(fraction=1.5)'),
  *('ntk(factor=0.0)', 'ntk(base=-1.0)', 'ntk(fraction=1.5)', 'partial(share=-0.5)'),
  *('partial(share=1.5)', 'partial(factor=0.0)', 'partial(base=0.0)', 'llama3(base=0.0)'),
  *('longrope(64, 8, (1.0,), (1.0,), base=-1.0)', 'yarn(4.0, 64, attention_factor=0.0)'),
  *('longrope(64, 8, (1.0,), (1.0,), attention_factor=-1.0)', 'dynamic_ntk(8, 4, base=0.0)'),
]


@pytest.mark.parametrize('line', LINES)
def test_a_number_out_of_range_is_refused(line):
  with pytest.raises(ValueError, match=r' must be an? .*, but got '):
    posjax.get(line)
