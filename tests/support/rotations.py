"""Rotary attention as loops over float64 numbers, for any frequencies: nothing of posjax."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.loops import attention, causal, content
from tests.support.paths import load_golden


def turned(x, pos, frequencies, interleaved=False, factor=1.0):
  """Each pair of each head turned by pos * frequency, and multiplied by the factor.

  Args:
    x: [B, T, H, D]; what the frequencies do not reach stays.
    pos: [B, T].
    frequencies: one for each pair.
    interleaved: pairs (2k, 2k + 1), instead of (k, k + half).
    factor: the attention factor.
  """
  out, half = np.array(x, np.float64), len(frequencies)
  for b, t, h, k in np.ndindex(*x.shape[:3], half):
    first, second = (2 * k, 2 * k + 1) if interleaved else (k, k + half)
    angle = float(pos[b][t]) * float(frequencies[k])
    pair = complex(x[b, t, h, first], x[b, t, h, second]) * np.exp(1j * angle) * factor
    out[b, t, h, first], out[b, t, h, second] = pair.real, pair.imag
  return out


def attended(q, k, v, q_pos, k_pos, frequencies, **how):
  """Causal attention of turned heads: [B, T, H, E]."""
  q, k = turned(q, q_pos, frequencies, **how), turned(k, k_pos, frequencies, **how)
  return attention(content(q, k), causal(q_pos, k_pos), v)[0]


def heads(width, queries=5, keys=7, num_heads=4, num_kv_heads=2):
  """Random q, k and v, and ids with gaps; queries at the end of the keys."""
  draw = np.random.default_rng(width)
  q = draw.normal(size=(2, queries, num_heads, width)).astype(np.float32)
  k, v = draw.normal(size=(2, 2, keys, num_kv_heads, width)).astype(np.float32)
  k_pos = np.cumsum(draw.integers(1, 900, (2, keys)), axis=1).astype(np.int32)
  return q, k, v, k_pos[:, -queries:], k_pos


def compiled(scheme):
  """The scheme with place 2 compiled: a test then compiles once, not operation by operation."""
  return scheme._replace(query=jax.jit(scheme.query), key=jax.jit(scheme.key))


def reading(turn, width, expected):
  """The frequencies and the attention factor of a scheme, read off heads that it turned.

  Args:
    turn: place 2 of the scheme, split layout.
    width: of the head.
    expected: frequencies, about: each pair is read where it turned by about one radian.

  Returns:
    Frequencies, to about 1e-6 of themselves, and the factor of each pair.
  """
  pos = np.array([2**20 if f == 0 else max(int(1 / f), 1) for f in expected], np.int32)
  half = len(expected)
  x = np.zeros((1, half, 1, width), np.float32)
  x[..., :half] = 1
  out = np.asarray(jax.jit(turn)({}, jnp.asarray(x), jnp.asarray(pos)[None]), np.float64)[0, :, 0]
  cos, sin = np.diagonal(out[:, :half]), np.diagonal(out[:, half : 2 * half])
  return np.arctan2(sin, cos) / pos, np.hypot(sin, cos)


GOLDEN = load_golden('rope_frequencies')


def golden(*kinds):
  """Config, frequencies and attention factor of each of Hugging Face's cases of these kinds."""
  cases = []
  for name, config in json.loads(str(GOLDEN['configs'])).items():
    told = config['rope_parameters']
    if told['rope_type'] == 'longrope':
      told |= {f: GOLDEN[f].tolist() for f in ('short_factor', 'long_factor')}
    if told['rope_type'] in kinds:
      factor = float(GOLDEN[f'{name}__attention_factor'])
      cases.append(pytest.param(config, GOLDEN[f'{name}__frequencies'], factor, id=name))
  return pytest.mark.parametrize(('config', 'frequencies', 'factor'), cases)
