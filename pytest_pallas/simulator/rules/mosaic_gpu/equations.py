"""Equations of Mosaic GPU: which thread evaluates them, and what memory they name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.gpu.threads import GpuThread, ThreadBlock
from pytest_pallas.simulator.memory.accesses import read_window
from pytest_pallas.simulator.memory.references import Ref, Region
from pytest_pallas.simulator.memory.windows import region_of
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.transforms import RefPart

Array = np.ndarray[Any, Any]


def gpu_rule(
    *names: str,
) -> Callable[[Callable[[Equation], Evaluate]], Callable[[Equation], Evaluate]]:
    """Register a rule for primitives of Mosaic GPU: its function takes the ``GpuThread`` first.

    Args:
      names: of the primitives.
    """

    def register(bind: Callable[[Equation], Evaluate]) -> Callable[[Equation], Evaluate]:
        @rule(*names, threaded=True)
        @functools.wraps(bind)
        def bind_for_gpu(eqn: Equation) -> Evaluate:
            evaluate = bind(eqn)

            def evaluate_on_gpu(thread: Thread, *operands: Any) -> Any:
                if not isinstance(thread, GpuThread):
                    raise SimulationError("only kernels of Mosaic GPU (plgpu.kernel) can do this")
                return evaluate(thread, *operands)

            return evaluate_on_gpu

        return bind_for_gpu

    return register


def holds(predicate: int | None, operands: Sequence[Any]) -> bool:
    """Whether an equation does anything: whether the operand that is its predicate is true.

    Args:
      predicate: position of the operand, or None where there is no predicate.
      operands: of the equation.
    """
    return predicate is None or bool(operands[predicate])


def part_of(
    thread: GpuThread, place: RefPart, operands: Sequence[Any], how: str, line: str
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
    if place.places:
        ref = thread.elsewhere(ref, place.places, operands, line)
    return ref, located(thread, ref, place, operands, how, line)


def located(
    thread: GpuThread, ref: Ref, place: RefPart, operands: Sequence[Any], how: str, line: str
) -> Any:
    """As ``part_of``, of a reference that is known: the part alone."""
    window = place.window
    part = read_window(thread, ref, window, operands, how, line)
    if ref.data.dtype != object and not np.ndim(part):  # numpy gives a copy of one element
        return region_of(part, ref.data, window, operands)
    return part


def in_shared_memory(
    thread: GpuThread, block: ThreadBlock, part: RefPart, operands: Any, line: str
) -> tuple[Array, Region, str]:
    """The shared memory of a block that an operand names: elements, region, name.

    Raises:
      BoundsError: it is beyond the edge.
    """
    ref: Ref = thread.of_block(operands[part.position], block)
    data = read_window(thread, ref, part.transforms, operands, "tcgen05 operand from", line)
    return data, region_of(data, ref.data, part.transforms, operands), ref.name
