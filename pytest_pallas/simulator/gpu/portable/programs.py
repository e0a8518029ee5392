"""The grid of a ``pallas_call`` on a GPU, whose programs may wait for each other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_pallas.compat.jaxprs import open_jaxpr, sub_jaxprs
from pytest_pallas.compat.source import source_line
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.findings import Wait
from pytest_pallas.simulator.concurrency.scheduler import Task
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.gpu.launches.streams import Ahead, ByElement, end
from pytest_pallas.simulator.gpu.portable.blocks import (
    BEYOND,
    HANGING,
    MASKED,
    Block,
    Memory,
    block_of,
)
from pytest_pallas.simulator.gpu.portable.order import Order, Program, Shadow
from pytest_pallas.simulator.machine import Grid, Machine, Thread
from pytest_pallas.simulator.memory.allocation import allocate, free, memory_of
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.monitors.accesses import root
from pytest_pallas.simulator.pipeline import IN_PLACE, Kernel, Window

#: How often all programs look again before it is a deadlock.
_ROUNDS = 100

#: Threads and blocks of threads that a multiprocessor can have ("Technical Specifications per
#: Compute Capability" in the CUDA C++ Programming Guide).
_THREADS = 2048
_RESIDENT = 32

#: Warps of a program, where the kernel does not say (``pallas_call_registration.py``).
_WARPS = 4

_Programs = Iterator[tuple[Program, tuple[int, ...]]]


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
class Waiting:
    """The programs of one grid that wait.

    Attributes:
      machine: the run.
      tasks: those that wait, and for which memory.
      rounds: how often all of them have looked again since something changed.
    """

    machine: Machine
    tasks: dict[Task, Memory] = field(default_factory=dict)
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

    def changed(self, memory: Memory) -> None:
        """See ``blocks.Launch``."""
        self.rounds = 0
        for task in [task for task, watched in self.tasks.items() if watched is memory]:
            del self.tasks[task]
            self.machine.scheduler.wake(task)
        self.machine.scheduler.pause()

    def looked(self, thread: Thread, ref: Ref, seen: tuple[str, bytes, bytes]) -> None:
        """See ``blocks.Launch``."""
        program: Program = ref.block.program
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


Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Operand:
    """An operand of all programs.

    Attributes:
      window: its blocks.
      memory: the array that they are in.
      name: of the body's parameter.
      space: memory space of the body's reference.
      input: whether it is an input that shares no memory with an output.
      codes: what an element beyond the edge is, for each axis.
    """

    window: Window
    memory: Memory
    name: str
    space: str
    input: bool
    codes: Sequence[int]


@dataclasses.dataclass(eq=False)
class _Run:
    """One execution of a kernel.

    Attributes:
      kernel: what is executed.
      order: of the accesses of its programs.
      captured: the references from outside that its body uses, with their memory.
      scalars: the prefetched operands.
      operands: inputs first.
      waiting: how its programs wait for each other, or None if they do not.
      line: ``file:line`` of the call.
      scratch: the last writers of scratch, by number; see ``Shadow.private``.
    """

    kernel: Kernel
    order: Order
    captured: list[tuple[Ref, Memory]]
    scalars: list[Array]
    operands: list[_Operand]
    waiting: Waiting | None
    line: str
    scratch: dict[int, Shadow] = dataclasses.field(default_factory=dict)


def execute(kernel: Kernel, thread: Thread, operands: Sequence[Any]) -> list[Array]:
    """Run every program of a kernel's grid.

    Args:
      kernel: the kernel.
      thread: the device that runs it.
      operands: captured references, sizes of dynamic dimensions, prefetched scalars, inputs.

    Returns:
      The outputs, as whole arrays.

    Raises:
      BoundsError: an access is beyond the edge of its block or array.
      DeadlockError: programs wait for each other, and none can go on.
      SimulationError: the body cannot be evaluated.
    """
    facts, machine = kernel.facts, thread.machine
    captured, operands = operands[: kernel.captured], operands[kernel.captured :]
    sizes = iter(np.asarray(operands[position]).item() for position in facts.sizes)
    grid = tuple(next(sizes) if size is None else size for size in facts.grid)
    first = len(facts.sizes) + len(facts.scalars)
    arrays = _memory(kernel, machine, [np.asarray(each) for each in operands[first:]])
    order = Order(math.prod(grid))
    waits = may_wait(kernel.equation)
    this = _Run(
        kernel=kernel,
        order=order,
        captured=[(ref, Memory(ref.data, Shadow(order, ref.shape))) for ref in captured],
        scalars=[np.asarray(operands[position]) for position in facts.scalars],
        operands=_operands(kernel, order, arrays),
        waiting=Waiting(machine) if waits else None,
        line=source_line(kernel.equation) or "",
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


def _ahead(this: _Run) -> Ahead:
    """What the kernel did, for those that begin before it has ended."""
    found = Ahead(this.kernel.name)
    for memory in {id(each.memory): each.memory for each in this.operands}.values():
        if memory.shadow is None:
            continue
        for kind in ("write", "atomic", "read"):
            numbers, access = memory.shadow.last(kind)
            if numbers is not None:
                trace = ByElement(numbers, access, kind != "read", kind == "atomic")
                found.traces.append((root(memory.array), trace))
    return found


def _one_by_one(
    this: _Run,
    thread: Thread,
    grid: tuple[int, ...],
    programs: Iterator[tuple[Program, tuple[int, ...]]],
) -> None:
    """Programs one after the other."""
    facts = this.kernel.facts
    inner = tuple(size for axis, size in enumerate(grid) if axis not in facts.vmapped)
    thread.grids.append(Grid((0,) * len(inner), inner))
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


def _run(this: _Run, thread: Thread, program: Program, point: tuple[int, ...]) -> None:
    """One program."""
    kernel = this.kernel
    scalars = [
        Ref(np.array(each), name, "smem")
        for each, name in zip(this.scalars, kernel.names, strict=False)
    ]
    captured = [_whole(ref, memory, program, this.waiting) for ref, memory in this.captured]
    blocks = [
        _block(this, thread, operand, program, operand.window.start(thread, point, scalars))
        for operand in this.operands
    ]
    scratch = [
        _scratch(this, thread, program, number, name, aval)
        for number, (name, aval) in enumerate(kernel.facts.scratch)
    ]
    timeline = thread.machine.timeline
    span = None if timeline is None else timeline.body(thread)
    run(kernel.body, thread, [*captured, *scalars, *blocks, *scratch])
    if timeline is not None and span is not None:
        timeline.end(thread, span)
    if scratch:
        free(thread, scratch, this.line)


def _block(
    this: _Run, thread: Thread, operand: _Operand, program: Program, start: tuple[int, ...]
) -> Ref:
    return block_of(
        thread.machine,
        operand.memory,
        program,
        start,
        operand.window.sizes,
        operand.window.squeezed,
        operand.codes,
        operand.name,
        operand.space,
        launch=this.waiting,
        input=operand.input,
    )


def _codes(window: Window) -> list[int]:
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


def _whole(ref: Ref, memory: Memory, program: Program, waiting: Waiting | None) -> Ref:
    """A reference from outside, as a program has it."""
    block = Block(memory, program, (...,), launch=waiting)
    return Ref(ref.data, ref.name, ref.space, block=block)


def _scratch(
    this: _Run, thread: Thread, program: Program, number: int, name: str, aval: Any
) -> Ref:
    """Scratch memory of a program."""
    ref = allocate(thread, aval, name, "scratch", number)
    if ref.data.dtype == object or this.waiting is not None:
        return ref
    shadow = this.scratch.get(number)
    if shadow is None:
        shadow = this.scratch[number] = Shadow(this.order, ref.shape, private=True)
    ref.block = Block(Memory(ref.data, shadow), program, (...,))
    return ref


def _programs(
    grid: tuple[int, ...], vmapped: Sequence[int], seed: int
) -> Iterator[tuple[Program, tuple[int, ...]]]:
    """The programs, each with its grid point, in the order in which they begin."""
    count = math.prod(grid)
    seen = [axis for axis in range(len(grid)) if axis not in vmapped]
    if not seed or count < 2:
        for number, point in enumerate(itertools.product(*map(range, grid))):
            yield Program(number, tuple([point[axis] for axis in seen])), point
        return
    generator = np.random.Generator(np.random.Philox(seed))
    numbers = generator.permutation(count)
    while (numbers == np.arange(count)).all():
        numbers = generator.permutation(count)
    for number in numbers:
        point = tuple(map(int, np.unravel_index(number, grid)))
        yield Program(int(number), tuple([point[axis] for axis in seen])), point


def _memory(kernel: Kernel, machine: Machine, inputs: list[Array]) -> list[Array]:
    """The arrays of the inputs and outputs; an aliased output is its input's, which is a copy."""
    facts = kernel.facts
    aliased = {output: position for position, output in facts.aliases}
    first = kernel.captured + len(facts.scalars)
    inputs = [
        np.array(array, order="C")
        if first + number in kernel.written
        else np.asarray(array, order="C")
        for number, array in enumerate(inputs)
    ]
    outputs: list[Array] = []
    for number, block in enumerate(facts.outputs):
        position = aliased.get(number)
        if position is None:
            outputs.append(memory_of(machine, block.shape, block.dtype, block.name, "output"))
            continue
        shared = np.array(inputs[position], order="C")
        if not (machine.separate and facts.inputs[position].space not in IN_PLACE):
            inputs[position] = shared
        outputs.append(shared)
    return [*inputs, *outputs]


def _operands(kernel: Kernel, order: Order, arrays: Sequence[Array]) -> list[_Operand]:
    """The operands; what no program writes has no shadow."""
    facts = kernel.facts
    scalars, inputs = len(facts.scalars), len(facts.inputs)
    writable = {
        id(array)
        for number, array in enumerate(arrays)
        if number >= inputs or kernel.captured + scalars + number in kernel.written
    }
    aliased = {position for position, _ in facts.aliases}
    memories: dict[int, Memory] = {}
    operands: list[_Operand] = []
    for window, array in zip(kernel.windows, arrays, strict=True):
        if id(array) not in memories:
            shadow = Shadow(order, array.shape) if id(array) in writable else None
            memories[id(array)] = Memory(array, shadow)
        operands.append(
            _Operand(
                window=window,
                memory=memories[id(array)],
                name=kernel.names[scalars + window.number],
                space="gmem" if window.home == "default" else window.home,
                input=not window.output and window.number not in aliased,
                codes=_codes(window),
            )
        )
    return operands


def masks_edges() -> bool:
    """Whether JAX masks accesses beyond the edge of an array: its Triton lowering since 0.12."""
    import jax

    return jax.__version_info__ >= (0, 12)
