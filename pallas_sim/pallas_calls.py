"""A ``pallas_call``, prepared: its grid, its body, and the blocks of its operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of
from pallas_sim.chips import OperandMemory, padded, smem_excess, vmem_excess
from pallas_sim.compat.grids import BlockFacts, GridFacts, grid_facts
from pallas_sim.compat.jaxprs import (
    argument_names,
    is_literal,
    kernel_name,
    key_shape,
    most_at_a_time,
    open_jaxpr,
    read_inputs,
    semaphore_kind,
    space_of,
    written_inputs,
)
from pallas_sim.compat.source import source_line
from pallas_sim.cores import Traffic, traffic_of
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import Program, prepare, prepare_lifted, run
from pallas_sim.findings import Finding
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Ref, is_key_dtype
from pallas_sim.registry import Equation

#: Memory that a body accesses where the array is, not by blocks that are copied.
IN_PLACE = frozenset({"any", "hbm", "host", "semaphore", "semaphore_mem"})


#: The first element of a block along each axis, before its array is padded.
BlockStart = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockWindow:
    """The blocks of one operand, prepared.

    Attributes:
      number: of the operand: inputs first, then outputs.
      facts: what the call says of them.
      index_map: gives a block's index for a grid point.
      sizes: of a block along each axis of the array.
      squeezed: the axes that the body does not see.
      shape: of the block that the body sees.
      ahead: whether the next block is fetched while the body runs.
      output: whether it is an output's.
      home: the memory space that the body's reference is in.
    """

    number: int
    facts: BlockFacts
    index_map: Program
    sizes: tuple[int, ...]
    squeezed: tuple[int, ...]
    shape: tuple[int, ...]
    ahead: bool
    output: bool
    home: str

    @property
    def in_place(self) -> bool:
        """Whether the body accesses the array itself."""
        return self.facts.space in IN_PLACE

    def is_input_of(self, kernel: PreparedKernel) -> bool:
        """Return whether it is the window of an input that shares no memory with an output."""
        aliased = (position for position, _ in kernel.facts.aliases)
        return not self.output and self.number not in aliased

    @property
    def loaded(self) -> bool:
        """Whether a block is fetched before the body sees it."""
        return not self.output or self.facts.any_revisit

    def start(self, thread: Thread, point: Sequence[int], scalars: Sequence[Ref]) -> BlockStart:
        """Return where the block of a grid point begins."""
        indices = run(self.index_map, thread, (*map(np.int32, point), *scalars))
        return tuple(self.facts.starts([int(np.asarray(index)) for index in indices]))


def window_of(number: int, facts: BlockFacts, *, output: bool, home: str = "") -> BlockWindow:
    """Return the window of an operand.

    Args:
      number: of the operand: inputs first, then outputs.
      facts: what the call says of its blocks.
      output: whether it is an output.
      home: the memory space that its array must be in, or "".

    Raises:
      SimulationError: JAX rejects such blocks too, when it compiles for a TPU.
    """
    if any(kind == "BoundedSlice" for kind, _, _ in facts.dims):
        raise SimulationError(
            f"the blocks of {facts.name} are bounded slices, which only emit_pipeline can fetch"
        )
    sizes = tuple(size for _, size, _ in facts.dims)
    trivial = sizes == facts.shape
    return BlockWindow(
        number=number,
        facts=facts,
        index_map=prepare(facts.index_map),
        sizes=sizes,
        squeezed=tuple(axis for axis, (kind, _, _) in enumerate(facts.dims) if kind == "Squeezed"),
        shape=tuple(size for kind, size, _ in facts.dims if kind != "Squeezed"),
        ahead=not trivial and (facts.buffers or 2) > 1,
        output=output,
        home=(home or "hbm") if facts.space == "any" else facts.space,
    )


@dataclass(frozen=True, slots=True)
class PreparedKernel:
    """A ``pallas_call``, prepared.

    Attributes:
      name: of the kernel.
      facts: what it says of its grid and operands.
      captured: how many references from outside the body uses: its first inputs.
      body: its program.
      names: of the body's parameters.
      windows: of the inputs, then of the outputs.
      written: positions of the body's parameters that it writes.
      only_written: for each output, whether the body never reads it, and no input is its memory.
      parallel: the grid dimensions whose programs may run in any order.
      core_parallel: those of them that name as many cores as they have programs.
      traffic: what it does beside loads and stores.
      equation: JAX's equation.
      line: ``file:line`` of the equation, or "".
    """

    name: str
    facts: GridFacts
    captured: int
    body: Program
    names: tuple[str, ...]
    windows: tuple[BlockWindow, ...]
    written: frozenset[int]
    only_written: tuple[bool, ...]
    parallel: tuple[int, ...]
    core_parallel: tuple[int, ...]
    traffic: Traffic
    equation: Any
    line: str

    @property
    def scalar_names(self) -> tuple[str, ...]:
        """Names of the prefetched operands."""
        return self.names[: len(self.facts.scalars)]


def kernel_of(eqn: Equation) -> PreparedKernel:
    """Return the kernel of a ``pallas_call``, prepared."""
    origin = eqn.origin
    facts = grid_facts(origin)
    facts = dataclasses.replace(
        facts,
        inputs=tuple(map(_of_words, facts.inputs)),
        outputs=tuple(map(_of_words, facts.outputs)),
    )
    body = eqn.params["jaxpr"]
    inner = open_jaxpr(body)[0]
    first = len(inner.constvars) + len(facts.sizes) + len(facts.scalars)
    homes = map(space_of, eqn.ins[first : first + len(facts.inputs)])
    return PreparedKernel(
        name=kernel_name(origin),
        facts=facts,
        captured=len(inner.constvars),
        body=prepare_lifted(body) if inner.constvars else prepare(body),
        names=_names(argument_names(inner), facts),
        windows=tuple(
            window_of(number, block, output=number >= len(facts.inputs), home=next(homes, ""))
            for number, block in enumerate((*facts.inputs, *facts.outputs))
        ),
        written=written_inputs(body),
        only_written=_only_written(body, facts, len(inner.constvars)),
        parallel=_parallel(facts),
        core_parallel=_parallel(facts, "core_parallel"),
        traffic=traffic_of(
            [body],
            facts.params,
            lasting=any(semaphore_kind(block.dtype) is not None for block in facts.outputs),
        ),
        equation=origin,
        line=source_line(origin) or "",
    )


def _only_written(body: Any, facts: GridFacts, captured: int) -> tuple[bool, ...]:
    """Return for each output whether only the body's stores and copies to it access it."""
    first = len(facts.scalars) + len(facts.inputs)
    read, aliased = read_inputs(body), {output for _, output in facts.aliases}
    return tuple(
        not captured and first + number not in read and number not in aliased
        for number in range(len(facts.outputs))
    )


def _of_words(block: BlockFacts) -> BlockFacts:
    """Return the blocks of an array of typed keys as those of the keys' words."""
    if not is_key_dtype(block.dtype):
        return block
    sizes = key_shape(block.dtype)
    return dataclasses.replace(
        block,
        shape=(*block.shape, *sizes),
        dtype=np.dtype(np.uint32),
        dims=(*block.dims, *(("Blocked", size, (0, 0)) for size in sizes)),
        of_dims=lambda leaves: (*block.of_dims(leaves), *(0 for _ in sizes)),
    )


def _names(names: tuple[str, ...], facts: GridFacts) -> tuple[str, ...]:
    """Return the names of the body's parameters; without one, what the call names the operand."""
    blocks = [block.name for block in (*facts.inputs, *facts.outputs)]
    count = len(facts.scalars)
    return tuple(
        name or (blocks[number - count] if 0 <= number - count < len(blocks) else "")
        for number, name in enumerate(names)
    )


def _parallel(facts: GridFacts, kind: str = "parallel") -> tuple[int, ...]:
    """Return the dimensions of a grid whose semantics are of a kind."""
    semantics = getattr(facts.params, "dimension_semantics", None) or ()
    names = [str(getattr(kind, "value", kind)).lower() for kind in semantics]
    # What vmap adds has no semantics of its own.
    axes = [axis for axis in range(len(facts.grid)) if axis not in facts.vmapped]
    return tuple(axis for axis, name in zip(axes, names, strict=False) if kind in name)


# What a kernel is given when it is evaluated, and the memory of what it returns.


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """What a kernel gets when it is evaluated.

    Attributes:
      captured: the references from outside that its body uses.
      grid: sizes of its dimensions.
      scalars: the prefetched operands.
      inputs: the other ones, as whole arrays.
    """

    captured: Sequence[Ref]
    grid: tuple[int, ...]
    scalars: list[Array]
    inputs: list[Array]


def arguments_of(
    kernel: PreparedKernel, machine: Machine, operands: Sequence[Any]
) -> KernelArguments:
    """Return the operands of a ``pallas_call``, by what they are.

    Args:
      kernel: the kernel.
      machine: the run, which notes a grid without programs.
      operands: captured references, sizes of dynamic dimensions, prefetched scalars, inputs.
    """
    facts = kernel.facts
    captured, operands = operands[: kernel.captured], operands[kernel.captured :]
    sizes = iter(np.asarray(operands[position]).item() for position in facts.sizes)
    first = len(facts.sizes) + len(facts.scalars)
    grid = tuple(next(sizes) if size is None else size for size in facts.grid)
    if 0 in grid and any(0 not in output.shape for output in facts.outputs):
        machine.idle[kernel.name, kernel.line] = grid
    return KernelArguments(
        captured=captured,
        grid=grid,
        scalars=[np.asarray(operands[position]) for position in facts.scalars],
        inputs=[np.asarray(array) for array in operands[first:]],
    )


def scalar_refs(kernel: PreparedKernel, scalars: Sequence[Array]) -> list[Ref]:
    """Return references to copies of the prefetched operands, for one core or program."""
    names = kernel.scalar_names
    return [
        Ref(np.array(scalar), name, "smem") for scalar, name in zip(scalars, names, strict=True)
    ]


def output_arrays(
    kernel: PreparedKernel,
    machine: Machine,
    inputs: list[Array],
    copied: Callable[[Array], Array],
) -> list[Array]:
    """Return memory for the outputs. One that aliases an input is that input's memory.

    Args:
      kernel: the kernel.
      machine: the run.
      inputs: the inputs, in which an aliased one is replaced by the memory that it shares.
      copied: gives that memory for an input.
    """
    facts = kernel.facts
    aliased = {output: position for position, output in facts.aliases}
    outputs: list[Array] = []
    for number, block in enumerate(facts.outputs):
        position = aliased.get(number)
        if position is None:
            outputs.append(memory_of(machine, block.shape, block.dtype, block.name, "output"))
            continue
        shared = copied(inputs[position])
        if not (machine.separate and facts.inputs[position].space not in IN_PLACE):
            inputs[position] = shared
        outputs.append(shared)
    return outputs


# Memory that a kernel needs and a chip does not have: Mosaic rejects such a kernel.


def capacity_findings(kernel: PreparedKernel, target: str) -> Iterator[Finding]:
    """Yield what a kernel needs beyond the VMEM and SMEM of a chip.

    Temporaries of the body are not counted, so a kernel without a finding may need too much, too.

    Args:
      kernel: the kernel.
      target: name of the chip.
    """
    facts, body = kernel.facts, kernel.equation.params["jaxpr"]
    vmem = [*_taken(kernel, ("default", "vmem")), *_allocated(body, "vmem")]
    smem = [*_scalars(kernel), *_taken(kernel, ("smem",)), *_allocated(body, "smem")]
    yield from _excesses(vmem, smem, facts.params, target, kernel.name, kernel.line)


def scratch_findings(
    scratch: Sequence[tuple[str, Any]], body: Any, params: Any, target: str, name: str, line: str
) -> Iterator[Finding]:
    """Yield what a kernel on a mesh of TensorCores needs beyond the VMEM and SMEM of a core.

    Args:
      scratch: names and avals of its scratch operands.
      body: its jaxpr.
      params: its compiler parameters.
      target: name of the chip.
      name: of the kernel.
      line: ``file:line`` of its call.
    """
    vmem, smem = (
        [*_of_space(scratch, (space,)), *_allocated(body, space)] for space in ("vmem", "smem")
    )
    yield from _excesses(vmem, smem, params, target, name, line)


def _excesses(
    vmem: Sequence[OperandMemory],
    smem: Sequence[OperandMemory],
    params: Any,
    target: str,
    name: str,
    line: str,
) -> Iterator[Finding]:
    limit = getattr(params, "vmem_limit_bytes", None)
    for excess in (vmem_excess(vmem, target, limit), smem_excess(smem, target)):
        if excess is not None:
            yield excess.finding(name, line)


def _of_space(refs: Sequence[tuple[str, Any]], spaces: Sequence[str]) -> list[OperandMemory]:
    return [
        OperandMemory(name, padded(aval.shape, aval.dtype))
        for name, aval in refs
        if space_of(aval) in spaces and hasattr(aval, "shape")
    ]


def _allocated(body: Any, space: str) -> list[OperandMemory]:
    """Return what ``pl.run_scoped`` allocates in a memory space, as much as there is at a time."""

    def taken_by(eqn: Any) -> list[tuple[str, int]]:
        if eqn.primitive.name != "run_scoped":
            return []
        inner = open_jaxpr(eqn.params["jaxpr"])[0]
        refs = [
            (name, var.aval) for name, var in zip(argument_names(inner), inner.invars, strict=False)
        ]
        return [(memory.name, memory.nbytes) for memory in _of_space(refs, (space,))]

    return [OperandMemory(*part) for part in most_at_a_time(body, taken_by)]


def _taken(kernel: PreparedKernel, spaces: tuple[str, ...]) -> Iterator[OperandMemory]:
    """Yield what blocks and scratch take of a memory space; "default" is that of blocks."""
    facts = kernel.facts
    for window in kernel.windows:
        block = window.facts
        if block.space in spaces:
            count = block.buffers or (2 if window.ahead and _changes(window, facts) else 1)
            yield OperandMemory(block.name, padded(window.shape, block.dtype), count)
    yield from _of_space(facts.scratch, spaces)


def _scalars(kernel: PreparedKernel) -> Iterator[OperandMemory]:
    """Yield what is prefetched: it is in SMEM as a whole."""
    operands = kernel.equation.invars
    for position, name in zip(kernel.facts.scalars, kernel.names, strict=False):
        aval: Any = operands[position].aval
        if not is_key_dtype(aval.dtype):
            yield OperandMemory(name, padded(aval.shape, aval.dtype))


def _changes(window: BlockWindow, facts: GridFacts) -> bool:
    """Return whether the block depends on the grid point, so that it may change."""
    if prod(size or 2 for size in facts.grid) < 2:
        return False
    jaxpr = open_jaxpr(window.facts.index_map)[0]
    sizes = dict(zip(jaxpr.invars, facts.grid, strict=False))
    moving = {variable for variable, size in sizes.items() if size != 1}

    def moves(atom: Any) -> bool:
        return not is_literal(atom) and atom in moving

    for eqn in jaxpr.eqns:
        if any(map(moves, eqn.invars)):
            moving.update(eqn.outvars)
    return any(map(moves, jaxpr.outvars))
