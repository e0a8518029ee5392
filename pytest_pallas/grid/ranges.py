"""Ranges of positions in a kernel: where one does not fit into a narrow integer.

A position is computed from numbers of programs, counters of loops, ``iota`` and constants. In int16
it is right up to 32,767, which is more than most examples have. ``narrow_values`` follows the
ranges through the body of a kernel, and ``overflows`` makes findings of those that wrap around.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pallas_sim.traces import KernelConditions, source_line
from pytest_pallas.grid.findings import GridFinding
from pytest_pallas.grid.kernel_calls import KernelCall

#: Integers of so many bytes hold numbers that sizes of arrays exceed.
_NARROW = 2


@dataclass(frozen=True)
class NarrowValue:
    """A value of a narrow integer dtype whose range is known.

    Attributes:
      dtype: its name.
      range: the numbers before they wrap around.
      line: where it is computed, ``file:line``, or "".
    """

    dtype: str
    range: tuple[int, int]
    line: str

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest number of the dtype."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    @property
    def fits(self) -> bool:
        """Whether the dtype holds all of the range."""
        (least, most), (low, high) = self.range, self.limits
        return low <= least and most <= high


def overflows(
    call: KernelCall, grid: Sequence[int | None], where: str = ""
) -> Iterator[GridFinding]:
    """Yield a finding for each line of a kernel where a position wraps around.

    Args:
      call: a ``pallas_call``.
      grid: its sizes; None where one is not known.
      where: for messages, the sizes of the call if they are not those of the example.
    """
    lines = set[str]()
    for value in narrow_values(call, grid):
        if value.fits or value.line in lines:
            continue
        lines.add(value.line)
        (least, most), (low, high) = value.range, value.limits
        yield GridFinding(
            kind="overflow",
            severity="error",
            kernel=call.name,
            source=call.source,
            operand=value.line or value.dtype,
            programs=(),
            message=f"{where}in a grid of {tuple(grid)} this is a number from {least} to {most}, "
            f"but {value.dtype} holds {low} to {high}: it wraps around.",
            remedy="Compute positions in int32, or reject sizes for which they do not fit.",
        )


def narrow_values(call: KernelCall, grid: Sequence[int | None]) -> list[NarrowValue]:
    """List the positions in int8, int16 and their like, in a kernel's body and its index maps.

    Those whose range is known.

    Args:
      call: a ``pallas_call``.
      grid: its sizes; None where one is not known.
    """
    assert call.facts is not None
    counted = [size for axis, size in enumerate(grid) if axis not in call.facts.vmapped]
    values: list[NarrowValue] = []
    for eqn, var, known in KernelConditions(call.eqn, counted).results(grid):
        dtype = getattr(var.aval, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype.kind not in "iu" or dtype.itemsize > _NARROW:
            continue
        if math.isfinite(known.low) and math.isfinite(known.high):
            ends = (math.floor(known.low), math.ceil(known.high))
            values.append(NarrowValue(dtype.name, ends, source_line(eqn) or ""))
    return values
