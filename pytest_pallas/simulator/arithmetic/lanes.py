"""Computations that JAX traced for one element, evaluated for many elements at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_pallas.compat.jaxprs import open_jaxpr
from pytest_pallas.simulator.program import Program, prepare


def in_lanes(jaxpr: Any, shape: Sequence[int]) -> Program:
    """A program that does for each element of arrays what a jaxpr does for scalars.

    Args:
      jaxpr: open or closed, with scalar inputs and outputs: the computation of a reduction, say.
      shape: of the arrays that the program takes and gives.
    """
    import jax
    from jax.core import eval_jaxpr

    inner, consts = open_jaxpr(jaxpr)

    def one(*values: Any) -> list[Any]:
        return eval_jaxpr(inner, consts, *values)

    many = one
    for _ in shape:
        many = jax.vmap(many)
    # The dtypes are those of the jaxpr, whatever the setting is now.
    with jax.enable_x64(True):
        taken = [jax.ShapeDtypeStruct(tuple(shape), var.aval.dtype) for var in inner.invars]
        return prepare(jax.make_jaxpr(many)(*taken))
