"""The inverse of softplus, for parameters that must stay positive.

A positive number is trained as a real one, `raw`, and used as `jax.nn.softplus(raw)`: any step of
an optimizer then leaves it positive, and its gradient never vanishes at a bound.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def inverse_softplus(
  value: Float[Array, '*shape'] | Float[np.ndarray, '*shape'] | float | int,
) -> Float[Array, '*shape'] | Float[np.ndarray, '*shape'] | float | int:
  """The real number that softplus maps to `value`: value + log(1 - exp(-value)).

  Args:
    value: positive numbers. A JAX array is computed in its own dtype, a Python number or NumPy
      array in float64.

  Returns:
    One real number for each value, in the shape of `value`.

  Example:
    >>> jax.nn.softplus(inverse_softplus(jnp.array([0.5]))).round(5)
    Array([0.5], dtype=float32)
  """
  library = jnp if isinstance(value, jax.Array) else np
  # log(expm1(value)) would overflow for large values.
  return value + library.log(-library.expm1(-value))
