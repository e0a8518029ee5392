"""Run the grid of a ``pallas_call`` on a GPU: its programs, in any order or at the same time.

Programs run one after the other, in an order that the seed chooses, unless they wait for each
other: that costs no switches between them. ``portable_order.py`` compares their accesses as if they
ran at the same time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.choices import Choices
from pallas_sim.coverage import Point
from pallas_sim.dtypes import Array
from pallas_sim.evaluation import run
from pallas_sim.gpu.launch_order import KernelAhead, end_kernel
from pallas_sim.gpu.portable_accesses import (
    BEYOND,
    HANGING,
    MASKED,
    GridOperand,
    ProgramBlock,
    block_of,
)
from pallas_sim.gpu.portable_order import (
    GridOrder,
    GridProgram,
    Programs,
    Shadow,
    SharedArray,
    WaitingPrograms,
    communicates,
    may_wait,
)
from pallas_sim.gpu.triton import require_whole_products
from pallas_sim.liveness import note_unused
from pallas_sim.machine import GridPosition, Machine, Thread
from pallas_sim.memory import Ref
from pallas_sim.order.accesses import root
from pallas_sim.pallas_calls import (
    BlockWindow,
    PreparedKernel,
    arguments_of,
    output_arrays,
)


@dataclass(eq=False)
class _GridRun:
    """One execution of a kernel.

    Attributes:
      kernel: which one.
      grid: its sizes.
      captured: the references from outside that its body uses, with their memory.
      operands: inputs first.
      waiting: the programs that wait for each other, or None if none does.
    """

    kernel: PreparedKernel
    grid: tuple[int, ...]
    captured: list[tuple[Ref, SharedArray]]
    operands: list[GridOperand]
    waiting: WaitingPrograms | None


def execute(kernel: PreparedKernel, thread: Thread, operands: Sequence[Any]) -> list[Array]:
    """Run every program of a kernel's grid.

    Args:
      kernel: the kernel.
      thread: the device that runs it.
      operands: captured references, then inputs: Triton has neither prefetched scalars nor dynamic
        grids.

    Returns:
      The outputs, as whole arrays.

    Raises:
      BoundsError: an access is beyond the edge of its block or array.
      KernelError: a product has fewer terms than an instruction; see ``require_whole_products``.
      DeadlockError: programs wait for each other, and none can go on.
      SimulationError: the body cannot be evaluated.
    """
    facts, machine = kernel.facts, thread.machine
    require_whole_products(kernel)
    arguments = arguments_of(kernel, machine, operands)
    machine.require_programs(arguments.grid)
    arrays = _memory(kernel, machine, arguments.inputs)
    note_unused(machine, kernel.equation, arrays[len(facts.inputs) :], kernel.only_written)
    order = GridOrder(math.prod(arguments.grid))
    this = _GridRun(
        kernel=kernel,
        grid=arguments.grid,
        captured=[
            (ref, SharedArray(ref.data, Shadow(order, ref.shape))) for ref in arguments.captured
        ],
        operands=_operands(kernel, order, arrays, dict(map(_by_identity, machine.dropped()))),
        waiting=WaitingPrograms(machine) if _at_once(kernel, machine) else None,
    )
    for number, operand in enumerate(this.operands):
        location = (thread.owner.device, id(kernel.equation), number)
        machine.choices.name(operand.memory.array, location)
    programs = _programs(this.grid, facts.vmapped, machine.choices)
    sizes = [size for axis, size in enumerate(this.grid) if axis not in facts.vmapped]
    with thread.inside(kernel.name, kernel.equation, sizes):
        if this.waiting is None:
            _one_by_one(this, thread, programs)
        else:
            warps = getattr(facts.params, "num_warps", None)
            run_on = functools.partial(_one_by_one, this)
            this.waiting.run(thread, programs, run_on, warps)
    end_kernel(thread, _kernel_ahead(this), None)
    for operand in this.operands:
        point = Point("block", kernel.line, kernel.name, operand.name)
        machine.coverage.note(point, *operand.blocks)
    return [operand.memory.array for operand in this.operands[len(facts.inputs) :]]


def _at_once(kernel: PreparedKernel, machine: Machine) -> bool:
    """Return whether programs run at the same time, and not one after the other."""
    if not machine.choices.explores:
        return may_wait(kernel.equation)
    return machine.choices.memory or communicates(kernel.equation)


def _kernel_ahead(this: _GridRun) -> KernelAhead:
    """Return the accesses of the kernel, for kernels that begin before it has ended."""
    kernel = KernelAhead(this.kernel.name)
    for memory in {id(operand.memory): operand.memory for operand in this.operands}.values():
        if memory.shadow is None:
            continue
        for kind in ("write", "atomic", "read"):
            numbers, access = memory.shadow.last(kind)
            if numbers is not None:
                kernel.keep(root(memory.array), numbers, access, kind)
    return kernel


def _one_by_one(this: _GridRun, thread: Thread, programs: Programs) -> None:
    """Run programs one after the other."""
    facts = this.kernel.facts
    inner = tuple(size for axis, size in enumerate(this.grid) if axis not in facts.vmapped)
    thread.grids.append(GridPosition((0,) * len(inner), inner))
    outside, owner = thread.axes, thread.owner
    try:
        for program, point in programs:
            thread.grids[-1].point = program.point
            if this.waiting is not None:
                name = f"program ({', '.join(map(str, program.point))})"
                thread.owner = replace(owner, thread=name)
            if facts.axes:
                thread.axes = {**outside, **dict(zip(facts.axes, point, strict=False))}
            _run(this, thread, program, point)
    finally:
        thread.grids.pop()
        thread.axes, thread.owner = outside, owner


def _run(this: _GridRun, thread: Thread, program: GridProgram, point: tuple[int, ...]) -> None:
    """Run one program."""
    refs: list[Ref] = []
    for ref, memory in this.captured:
        block = ProgramBlock(memory, program, (...,), waiting=this.waiting)
        refs.append(Ref(ref.data, ref.name, ref.space, block=block))
    for operand in this.operands:
        start = operand.window.start(thread, point, ())
        refs.append(block_of(thread.machine, operand, program, start, waiting=this.waiting))
    with thread.span("body"):
        run(this.kernel.body, thread, refs)


def _codes(window: BlockWindow) -> list[int]:
    """Return the code of an element beyond the edge, for each axis.

    See the docstring of ``portable_accesses.py`` for the axes that JAX masks.
    """
    codes: list[int] = []
    for (kind, size, _), dim in zip(window.facts.dims, window.facts.shape, strict=True):
        if kind == "Squeezed":
            codes.append(BEYOND)
        elif masks_edges() and size and (dim % size or (kind == "Element" and size > 1)):
            codes.append(MASKED)
        else:
            codes.append(HANGING if size and dim % size else BEYOND)
    return codes


def _programs(grid: tuple[int, ...], vmapped: Sequence[int], choices: Choices) -> Programs:
    """Yield the programs, each with its grid point, in the order in which they begin."""
    count = math.prod(grid)
    seen = [axis for axis in range(len(grid)) if axis not in vmapped]
    numbers = choices.orders([count])[0] if seen else range(count)
    for number in numbers:
        point = tuple(map(int, np.unravel_index(number, grid)))
        yield GridProgram(number, tuple([point[axis] for axis in seen])), point


def _memory(kernel: PreparedKernel, machine: Machine, inputs: list[Array]) -> list[Array]:
    """Make the arrays of inputs and outputs; an aliased output is that of its input, a copy."""
    inputs = [
        np.array(array, order="C")
        if kernel.captured + number in kernel.written
        else np.asarray(array, order="C")
        for number, array in enumerate(inputs)
    ]
    outputs = output_arrays(kernel, machine, inputs, lambda array: np.array(array, order="C"))
    return [*inputs, *outputs]


def _by_identity(dropped: tuple[Array, Array]) -> tuple[int, Array]:
    array, kept = dropped
    return id(array), kept


def _operands(
    kernel: PreparedKernel,
    order: GridOrder,
    arrays: Sequence[Array],
    kept: Mapping[int, Array],
) -> list[GridOperand]:
    """Make the operands; memory that no program writes has no shadow.

    Args:
      kernel: the kernel.
      order: of its programs.
      arrays: the memory of inputs and outputs.
      kept: which elements of some of it reach something, by identity.
    """
    facts = kernel.facts
    inputs = len(facts.inputs)
    writable = {
        id(array)
        for number, array in enumerate(arrays)
        if number >= inputs or kernel.captured + number in kernel.written
    }
    memories: dict[int, SharedArray] = {}
    operands: list[GridOperand] = []
    for window, array in zip(kernel.windows, arrays, strict=True):
        if id(array) not in memories:
            shadow = None
            if id(array) in writable:
                shadow = Shadow(order, array.shape, kept.get(id(root(array))))
            memories[id(array)] = SharedArray(array, shadow)
        operands.append(
            GridOperand(
                window=window,
                memory=memories[id(array)],
                name=kernel.names[window.number],
                space="gmem" if window.home == "default" else window.home,
                is_input=window.is_input_of(kernel),
                codes=_codes(window),
            )
        )
    return operands


def masks_edges() -> bool:
    """Return whether JAX masks accesses beyond the edge: its Triton lowering does since 0.12."""
    import jax

    return jax.__version_info__ >= (0, 12)
