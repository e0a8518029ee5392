"""The grid of a ``pallas_call`` on a GPU, whose programs may wait for each other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.chips import GPUS
from pallas_sim.compat.jaxprs import open_jaxpr, sub_jaxprs
from pallas_sim.dtypes import Array
from pallas_sim.evaluation import run
from pallas_sim.findings import Wait
from pallas_sim.gpu.launch_order import ElementAccesses, KernelAhead, end
from pallas_sim.gpu.portable_order import GridOrder, GridProgram, Shadow
from pallas_sim.gpu.tensor_cores import require_whole_products
from pallas_sim.machine import GridPosition, Machine, Thread
from pallas_sim.memory import Ref
from pallas_sim.order.accesses import root
from pallas_sim.pallas_calls import (
    BlockStart,
    BlockWindow,
    PreparedKernel,
    arguments_of,
    output_arrays,
)
from pallas_sim.scheduler import Task


@dataclasses.dataclass(eq=False)
class _GridRun:
    """One execution of a kernel.

    Attributes:
      kernel: what is executed.
      order: of the accesses of its programs.
      captured: the references from outside that its body uses, with their memory.
      operands: inputs first.
      waiting: how its programs wait for each other, or None if they do not.
    """

    kernel: PreparedKernel
    order: GridOrder
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
    given = arguments_of(kernel, operands)
    grid = given.grid
    arrays = _memory(kernel, machine, given.inputs)
    order = GridOrder(math.prod(grid))
    waits = may_wait(kernel.equation)
    this = _GridRun(
        kernel=kernel,
        order=order,
        captured=[(ref, SharedArray(ref.data, Shadow(order, ref.shape))) for ref in given.captured],
        operands=_operands(kernel, order, arrays),
        waiting=WaitingPrograms(machine) if waits else None,
    )
    programs = _programs(grid, facts.vmapped, machine.seed)
    with thread.inside(kernel.name):
        if this.waiting is None:
            _one_by_one(this, thread, grid, programs)
        else:
            warps = getattr(facts.params, "num_warps", None)
            this.waiting.run(
                thread, programs, lambda core, mine: _one_by_one(this, core, grid, mine), warps
            )
    end(thread, _ahead(this), None)
    return [operand.memory.array for operand in this.operands[len(facts.inputs) :]]


def _ahead(this: _GridRun) -> KernelAhead:
    """What the kernel did, for those that begin before it has ended."""
    found = KernelAhead(this.kernel.name)
    for memory in {id(each.memory): each.memory for each in this.operands}.values():
        if memory.shadow is None:
            continue
        for kind in ("write", "atomic", "read"):
            numbers, access = memory.shadow.last(kind)
            if numbers is not None:
                trace = ElementAccesses(numbers, access, kind != "read", kind == "atomic")
                found.traces.append((root(memory.array), trace))
    return found


def _one_by_one(
    this: _GridRun,
    thread: Thread,
    grid: tuple[int, ...],
    programs: Iterator[tuple[GridProgram, tuple[int, ...]]],
) -> None:
    """Programs one after the other."""
    facts = this.kernel.facts
    inner = tuple(size for axis, size in enumerate(grid) if axis not in facts.vmapped)
    thread.grids.append(GridPosition((0,) * len(inner), inner))
    outside, owner = thread.axes, thread.owner
    try:
        for program, point in programs:
            thread.grids[-1].point = program.point
            if this.waiting is not None:
                name = f"program ({', '.join(map(str, program.point))})"
                thread.owner = dataclasses.replace(owner, thread=name)
            if facts.axes:
                thread.axes = {**outside, **dict(zip(facts.axes, point, strict=False))}
            _run(this, thread, program, point)
    finally:
        thread.grids.pop()
        thread.axes, thread.owner = outside, owner


def _run(this: _GridRun, thread: Thread, program: GridProgram, point: tuple[int, ...]) -> None:
    """One program."""
    kernel = this.kernel
    captured = [_whole(ref, memory, program, this.waiting) for ref, memory in this.captured]
    blocks = [
        block_of(
            thread.machine,
            operand,
            program,
            operand.window.start(thread, point, ()),
            waiting=this.waiting,
        )
        for operand in this.operands
    ]
    with thread.span("body"):
        run(kernel.body, thread, [*captured, *blocks])


def _codes(window: BlockWindow) -> list[int]:
    """What an element beyond the edge is, for each axis."""
    codes: list[int] = []
    for (kind, size, _), dim in zip(window.facts.dims, window.facts.shape, strict=True):
        if kind == "Squeezed":
            codes.append(BEYOND)
        elif masks_edges() and size and (dim % size or (kind == "Element" and size > 1)):
            codes.append(MASKED)
        else:
            codes.append(HANGING if size and dim % size else BEYOND)
    return codes


def _whole(
    ref: Ref, memory: SharedArray, program: GridProgram, waiting: WaitingPrograms | None
) -> Ref:
    """A reference from outside, as a program has it."""
    block = ProgramBlock(memory, program, (...,), waiting=waiting)
    return Ref(ref.data, ref.name, ref.space, block=block)


def _programs(
    grid: tuple[int, ...], vmapped: Sequence[int], seed: int
) -> Iterator[tuple[GridProgram, tuple[int, ...]]]:
    """The programs, each with its grid point, in the order in which they begin."""
    count = math.prod(grid)
    seen = [axis for axis in range(len(grid)) if axis not in vmapped]
    if not seed or count < 2:
        for number, point in enumerate(itertools.product(*map(range, grid))):
            yield GridProgram(number, tuple([point[axis] for axis in seen])), point
        return
    generator = np.random.Generator(np.random.Philox(seed))
    numbers = generator.permutation(count)
    while (numbers == np.arange(count)).all():
        numbers = generator.permutation(count)
    for number in numbers:
        point = tuple(map(int, np.unravel_index(number, grid)))
        yield GridProgram(int(number), tuple([point[axis] for axis in seen])), point


def _memory(kernel: PreparedKernel, machine: Machine, inputs: list[Array]) -> list[Array]:
    """The arrays of the inputs and outputs; an aliased output is its input's, which is a copy."""
    inputs = [
        np.array(array, order="C")
        if kernel.captured + number in kernel.written
        else np.asarray(array, order="C")
        for number, array in enumerate(inputs)
    ]
    outputs = output_arrays(kernel, machine, inputs, lambda each: np.array(each, order="C"))
    return [*inputs, *outputs]


def _operands(
    kernel: PreparedKernel, order: GridOrder, arrays: Sequence[Array]
) -> list[GridOperand]:
    """The operands; what no program writes has no shadow."""
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
            shadow = Shadow(order, array.shape) if id(array) in writable else None
            memories[id(array)] = SharedArray(array, shadow)
        operands.append(
            GridOperand(
                window=window,
                memory=memories[id(array)],
                name=kernel.names[window.number],
                space="gmem" if window.home == "default" else window.home,
                input=window.is_input_of(kernel),
                codes=_codes(window),
            )
        )
    return operands


def masks_edges() -> bool:
    """Whether JAX masks accesses beyond the edge of an array: its Triton lowering since 0.12."""
    import jax

    return jax.__version_info__ >= (0, 12)


# Programs of a grid on a GPU that wait for each other by what they see in memory.


#: How often all programs look again before it is a deadlock.
_ROUNDS = 100


#: Threads and blocks of threads that a multiprocessor can have ("Technical Specifications per
#: Compute Capability" in the CUDA C++ Programming Guide).
_THREADS = 2048
_RESIDENT = 32


#: Warps of a program, where the kernel does not say (``pallas_call_registration.py``).
_WARPS = 4


_Programs = Iterator[tuple[GridProgram, tuple[int, ...]]]


def may_wait(kernel: Any) -> bool:
    """Whether programs of a kernel may wait for each other: they look at memory in a loop.

    Args:
      kernel: the equation of a ``pallas_call``.
    """
    return _looks([kernel.params["jaxpr"]], inside=False)


def _looks(jaxprs: Iterable[Any], *, inside: bool) -> bool:
    for jaxpr in jaxprs:
        for eqn in open_jaxpr(jaxpr)[0].eqns:
            name = eqn.primitive.name
            if inside and name in ("atomic_rmw", "atomic_cas"):
                return True
            if inside and name == "masked_load" and eqn.params.get("is_volatile"):
                return True
            if _looks(sub_jaxprs(eqn), inside=inside or name == "while"):
                return True
    return False


@dataclass(eq=False)
class WaitingPrograms:
    """The programs of one grid that wait.

    Attributes:
      machine: the run.
      tasks: those that wait, and for which memory.
      rounds: how often all of them have looked again since something changed.
    """

    machine: Machine
    tasks: dict[Task, SharedArray] = field(default_factory=dict)
    rounds: int = 0

    def run(
        self,
        thread: Thread,
        programs: _Programs,
        work: Callable[[Thread, _Programs], None],
        warps: int | None,
    ) -> None:
        """Run programs at the same time, as many as the chip can have.

        Args:
          thread: the device.
          programs: in the order in which they begin.
          work: runs programs one after the other.
          warps: of a program, or None for the default.
        """
        begun = list(programs)
        each = min(_RESIDENT, _THREADS // (32 * (warps or _WARPS)))
        places = min(len(begun), each * GPUS[self.machine.target].cores)
        # A program that ends makes place for the next one.
        shared = iter(begun)
        cores = [thread.child(thread.owner) for _ in range(places)]
        scheduler = self.machine.scheduler
        scheduler.idle.append(self.look_again)
        try:
            scheduler.run(cores, lambda core: work(core, shared))
        finally:
            scheduler.idle.remove(self.look_again)

    def changed(self, memory: SharedArray) -> None:
        """A program changed some memory: those that wait for it look again."""
        self.rounds = 0
        for task in [task for task, each_memory in self.tasks.items() if each_memory is memory]:
            del self.tasks[task]
            self.machine.scheduler.wake(task)
        self.machine.scheduler.pause()

    def looked(self, thread: Thread, ref: Ref, seen: tuple[str, bytes, bytes]) -> None:
        """A program looked at memory that others change, and changed nothing.

        Args:
          thread: that runs it.
          ref: of the memory.
          seen: ``file:line``, where it looked, and what was there.
        """
        program: GridProgram = ref.block.program
        before, program.last = program.last, seen
        scheduler = self.machine.scheduler
        task = scheduler.current
        if before != seen or task is None:
            scheduler.pause()
            return
        self.tasks[task] = ref.block.memory

        def blocked() -> Wait:
            return Wait(owner=thread.owner, on=ref.name, line=seen[0], program=program.point)

        scheduler.block(blocked)

    def look_again(self) -> bool:
        """Let all programs that wait go on, unless they did so too often; whether they do."""
        if not self.tasks or self.rounds >= _ROUNDS:
            return False
        self.rounds += 1
        tasks = list(self.tasks)
        self.tasks.clear()
        for task in tasks:
            self.machine.scheduler.wake(task)
        return True


# Blocks of a GPU's programs: references to the memory that all of them share.
#
# Nothing is copied. A block is a window of its array, and an access goes to the memory itself. What
# of a block is beyond the edge of the array is as JAX's lowering to Triton has it
# (``jax/_src/pallas/triton/lowering.py``): JAX 0.12 masks each access along the axes whose length
# is no multiple of the block's, and along those that are indexed by element (``pl.Element``): loads
# there give anything, stores there do nothing. Along other axes, and all axes in JAX 0.11, it
# checks nothing: there an access beyond the edge is one to other memory.


#: The index of an element that is not in the array: the lowering masks it; it is beyond the edge of
#: an array that blocks hang over, unmasked; it is beyond the edge of one that they do not.
MASKED, HANGING, BEYOND = -1, -2, -3


@dataclass(eq=False)
class SharedArray:
    """An array that the programs of a grid share.

    Attributes:
      array: its elements, row by row.
      shadow: the last accesses to each of them; None if no program writes it.

    """

    array: Array
    shadow: Shadow | None = None
    _indices: Array | None = None

    @property
    def indices(self) -> Array:
        """The number of each element."""
        found = self._indices
        if found is None:
            found = self._indices = np.arange(self.array.size).reshape(self.array.shape)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ProgramBlock:
    """What a reference of a program is to the memory of an operand.

    Attributes:
      memory: the memory.
      program: whose reference it is.
      key: the block in the array; None for one that hangs over an edge.
      numbers: of such a one, the number of each element in the array, or what it is instead.
      waiting: the programs of the grid that wait, or None if they never do.
    """

    memory: SharedArray
    program: GridProgram
    key: tuple[Any, ...] | None
    numbers: Array | None = None
    waiting: WaitingPrograms | None = None

    def indices(self) -> Array:
        """The number of each element of the block."""
        if self.numbers is not None:
            return self.numbers
        assert self.key is not None
        return self.memory.indices[self.key]


@dataclass(frozen=True, slots=True, eq=False)
class GridOperand:
    """An operand of all programs.

    Attributes:
      window: its blocks.
      memory: the array that they are in.
      name: of the body's parameter.
      space: memory space of the body's reference.
      input: whether it is an input that shares no memory with an output.
      codes: what an element beyond the edge is, for each axis.
    """

    window: BlockWindow
    memory: SharedArray
    name: str
    space: str
    input: bool
    codes: Sequence[int]


def block_of(
    machine: Machine,
    operand: GridOperand,
    program: GridProgram,
    start: BlockStart,
    *,
    waiting: WaitingPrograms | None = None,
) -> Ref:
    """The reference of a program to a block.

    Args:
      machine: the run.
      operand: whose block it is.
      program: the program.
      start: the first element along each axis; it may be beyond an edge.
      waiting: see ``ProgramBlock``.
    """
    memory, sizes = operand.memory, operand.window.sizes
    squeezed = operand.window.squeezed
    array = memory.array
    inside = all(
        first >= 0 and first + size <= dim
        for first, size, dim in zip(start, sizes, array.shape, strict=True)
    )
    if inside:
        key = tuple(
            first if axis in squeezed else slice(first, first + size)
            for axis, (first, size) in enumerate(zip(start, sizes, strict=True))
        )
        key = (*key, ...)  # so that a single element is an array, too
        ref = Ref(array[key], operand.name, operand.space, input=operand.input)
        ref.block = ProgramBlock(memory, program, key, waiting=waiting)
        return ref
    numbers: Array = np.zeros((1,) * len(sizes), np.int64)
    beyond: Array = np.zeros((1,) * len(sizes), np.int64)
    stride = array.size
    for axis, (first, size, dim) in enumerate(zip(start, sizes, array.shape, strict=True)):
        stride = stride // dim if dim else 0
        along = [1] * len(sizes)
        along[axis] = size
        at = first + np.arange(size, dtype=np.int64)
        out = (at < 0) | (at >= dim)
        numbers = numbers + (at * stride).reshape(along)
        beyond = np.minimum(beyond, np.where(out, operand.codes[axis], 0).reshape(along))
    numbers = np.where(beyond < 0, beyond, numbers)
    numbers = numbers.reshape([size for axis, size in enumerate(sizes) if axis not in squeezed])
    data = machine.uninitialized(numbers.shape, array.dtype, "padding")
    data[numbers >= 0] = array.reshape(-1)[numbers[numbers >= 0]]
    ref = Ref(data, operand.name, operand.space, input=operand.input)
    ref.block = ProgramBlock(memory, program, None, numbers, waiting)
    return ref
