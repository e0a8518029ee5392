"""Index maps that are affine in the grid point, of which everything is known for any grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.analysis.kernel_calls import called_jaxpr


@dataclass(frozen=True)
class Affine:
    """``constant + sum(c * p)`` over the coordinates ``p`` of a grid point.

    Attributes:
      constant: what it is at the origin.
      coefficients: one for each dim of the grid.
    """

    constant: int
    coefficients: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims of the grid on which it depends."""
        return tuple(i for i, c in enumerate(self.coefficients) if c)

    def span(self, grid: Sequence[int]) -> tuple[int, int]:
        """The least and the greatest value over a grid with at least one point."""
        ends = [c * (n - 1) for c, n in zip(self.coefficients, grid, strict=True)]
        low = self.constant + sum(e for e in ends if e < 0)
        return low, self.constant + sum(e for e in ends if e > 0)


def affine_outputs(index_map: Any, dims: int) -> list[Affine | None]:
    """The outputs of an index map that are affine in the grid point; None for the others.

    Args:
      index_map: its jaxpr.
      dims: how many dims the grid has.
    """
    jaxpr = getattr(index_map, "jaxpr", index_map)
    units = [Affine(0, tuple(int(i == d) for i in range(dims))) for d in range(dims)]
    return _outputs(jaxpr, [*units, *[None] * (len(jaxpr.invars) - dims)], dims)


def _outputs(jaxpr: Any, inputs: Sequence[Affine | None], dims: int) -> list[Affine | None]:
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(var: Any) -> Affine | None:
        if not hasattr(var, "val"):
            return known.get(var)
        exact = var.aval.shape == () and var.aval.dtype.kind in "iu"
        return Affine(int(var.val), (0,) * dims) if exact else None

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        called = called_jaxpr(eqn)
        if called is not None:
            results = _outputs(called[0], operands, dims)
        else:
            results = [_applied(eqn.primitive.name, operands)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _applied(name: str, operands: Sequence[Affine | None]) -> Affine | None:
    if not operands or any(operand is None for operand in operands):
        return None
    first, *rest = [operand for operand in operands if operand is not None]
    if name in ("convert_element_type", "multiple_of", "copy", "broadcast_in_dim"):
        return first
    if name == "neg":
        return _scaled(first, -1)
    if name == "add":
        return _sum(first, rest[0])
    if name == "sub":
        return _sum(first, _scaled(rest[0], -1))
    if name == "mul" and not first.dims:
        return _scaled(rest[0], first.constant)
    if name == "mul" and not rest[0].dims:
        return _scaled(first, rest[0].constant)
    return None


def _scaled(affine: Affine, factor: int) -> Affine:
    return Affine(affine.constant * factor, tuple(c * factor for c in affine.coefficients))


def _sum(a: Affine, b: Affine) -> Affine:
    terms = zip(a.coefficients, b.coefficients, strict=True)
    return Affine(a.constant + b.constant, tuple(x + y for x, y in terms))
