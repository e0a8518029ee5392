"""The memory that an equation of Mosaic GPU names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.errors import SimulationError
from pytest_pallas.simulator.gpu.threads import GpuThread
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.memory.accesses import read_window
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.memory.windows import region_of
from pytest_pallas.transforms import Place, split_elsewhere

Array = np.ndarray[Any, Any]


def gpu_thread(thread: Thread) -> GpuThread:
    """The thread, if it is a warpgroup or a warp of a GPU.

    Raises:
      SimulationError: it is not.
    """
    if not isinstance(thread, GpuThread):
        raise SimulationError("this is for kernels of Mosaic GPU, inside of plgpu.kernel")
    return thread


def part_of(
    thread: GpuThread, place: Place, operands: Sequence[Any], how: str, line: str
) -> tuple[Ref, Any]:
    """The reference that an equation names, on whichever block or device, and its part.

    Args:
      thread: who names it.
      place: what it names.
      operands: of the equation.
      how: ``"load from"``, ``"store to"`` or the like, for messages.
      line: of the equation.

    Raises:
      BoundsError: it is beyond an edge.
    """
    ref: Ref = operands[place.position]
    places = split_elsewhere(place.transforms)[1]
    if places:
        ref = thread.elsewhere(ref, places, operands, line)
    return ref, located(thread, ref, place, operands, how, line)


def located(
    thread: GpuThread, ref: Ref, place: Place, operands: Sequence[Any], how: str, line: str
) -> Any:
    """As ``part_of``, of a reference that is known: the part alone."""
    window = split_elsewhere(place.transforms)[0]
    part = read_window(thread, ref, window, operands, how, line)
    if ref.data.dtype != object and not np.ndim(part):  # numpy gives a copy of one element
        return region_of(part, ref.data, window, operands)
    return part
