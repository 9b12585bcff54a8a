"""What a traced program consists of."""

from jax.extend.core import jaxprs_in_params


def equations(jaxpr):
  """The equations of a program and of the programs in it, in order."""
  for equation in jaxpr.eqns:
    yield equation
    for inner in jaxprs_in_params(equation.params):
      yield from equations(inner)
