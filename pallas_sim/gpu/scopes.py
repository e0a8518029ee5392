"""What a ``run_scoped`` gives to the warpgroups of a block: shared memory, barriers, registers.

Shared memory is laid out as JAX's lowering does: scopes inside of each other lie one after the
other, scopes that follow each other in the same place. Barriers have a place of their own, and go
on where they were if a scope is entered again. All warpgroups of a block that enter a scope
together wait for each other there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of
from pallas_sim.chips import GPUS, itemsize
from pallas_sim.compat.jaxprs import (
    argument_names,
    barrier_facts,
    is_accumulator,
    is_union,
    open_jaxpr,
    semaphore_kind,
    space_of,
)
from pallas_sim.compat.places import requested_shared_bytes
from pallas_sim.cores import equations, meet, most_at_a_time
from pallas_sim.errors import SimulationError
from pallas_sim.findings import Finding, Wait
from pallas_sim.gpu.barriers import Barrier
from pallas_sim.gpu.tensor_memory import (
    TensorMemory,
    made_by,
    scope_axes,
    tensor_memory,
    tilings_of,
    union_scale,
)
from pallas_sim.gpu.threads import GpuLaunch, GpuThread, ThreadBlock, key_of
from pallas_sim.memory import AllocationKey, Ref
from pallas_sim.registry import Equation
from pallas_sim.windows import tiled

#: Bytes to whose multiples JAX aligns allocations of shared memory.
ALIGNMENT = 1024


@dataclass(frozen=True, slots=True)
class ScopedRef:
    """One reference that a scope makes.

    Attributes:
      aval: shape, dtype and memory space.
      name: for messages.
      tiling: the tiles in which its last axes lie, or ().
      site: which allocation of the program it is.
    """

    aval: Any
    name: str
    tiling: tuple[int, ...]
    site: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class GpuScope:
    """A ``run_scoped``.

    Attributes:
      items: what it makes.
      axes: whose threads share what it makes.
      line: ``file:line``.
      site: which scope of the program it is.
    """

    items: tuple[ScopedRef, ...]
    axes: tuple[Any, ...]
    line: str
    site: int

    @property
    def shared(self) -> bool:
        """Whether all warpgroups of a block enter it together."""
        return bool(self.axes)


def scope_of(eqn: Equation) -> GpuScope:
    """What a ``run_scoped`` says."""
    inner, _ = open_jaxpr(eqn.params["jaxpr"])
    names = argument_names(inner)
    tilings = tilings_of(eqn.params, len(inner.invars))
    site = id(eqn.origin or eqn)
    items = tuple(
        ScopedRef(var.aval, name or f"scoped memory {number}", tiling, (site, number))
        for number, (var, name, tiling) in enumerate(zip(inner.invars, names, tilings, strict=True))
    )
    return GpuScope(items, scope_axes(eqn.params), eqn.line, site)


def run_scope(
    thread: GpuThread, scope: GpuScope, work: Callable[[Sequence[Ref]], list[Any]]
) -> list[Any]:
    """Run the body of a scope on what it makes.

    Args:
      thread: who enters it.
      scope: which one.
      work: takes the references, and gives the results of the body.
    """
    block = thread.block
    _check_axes(thread, scope)
    if scope.shared and len(block.warpgroups) > 1:
        members = range(len(block.warpgroups))
        place = ("scope", scope.site, id(block))
        what = f"run_scoped at {scope.line}" if scope.line else "run_scoped"
        meet(thread, place, thread.warpgroup, members, None, what, kind="warpgroup")
    key = (scope.site, thread.number)
    turn = block.entered[key] = block.entered.get(key, 0) + 1
    first = turn > block.entered.get(scope.site, 0)
    block.entered[scope.site] = max(turn, block.entered.get(scope.site, 0))
    before, around, held = thread.top, thread.around, thread.accumulators
    thread.around = scope.line or around
    if first and turn == 1:
        _reserve(thread, scope)
    refs = [_made(thread, item, first=first) for item in scope.items]
    results = work(refs)
    thread.top, thread.around, thread.accumulators = before, around, held
    return results


def _check_axes(thread: GpuThread, scope: GpuScope) -> None:
    """Reject what JAX's lowering rejects: warpgroups share what they make, except for registers.

    Raises:
      SimulationError: they do not, or others do.
    """
    threads = thread.kernel_launch.mesh.threads
    own: tuple[Any, ...] = () if threads is None else (threads[0],)
    if scope.axes and scope.axes != own:
        raise SimulationError(
            f"run_scoped has collective_axes={scope.axes}, and only the warpgroups of a block can "
            f"share what it makes: {own or 'this kernel has no name for them'}"
        )
    if scope.axes or len(thread.block.warpgroups) == 1:
        return
    for item in scope.items:
        if not is_accumulator(item.aval) and semaphore_kind(item.aval.dtype) is None:
            raise SimulationError(
                f"run_scoped makes {item.name} in a kernel of several warpgroups, which must "
                f"share it: pass collective_axes={own[0]!r}"
            )


def _reserve(thread: GpuThread, scope: GpuScope) -> None:
    """Let the other blocks of the cluster have their memory, before they enter the scope.

    JAX's lowering places all memory, and makes all barriers ready, when a cluster begins.
    """
    for block in thread.block.cluster.blocks:
        if block is thread.block or scope.site in block.entered:
            continue
        block.entered[scope.site] = 1
        top = thread.top
        for item in scope.items:
            if not is_accumulator(item.aval):
                top = _place(block, item, top, first=True)[1]


def _made(thread: GpuThread, item: ScopedRef, *, first: bool) -> Ref:
    aval, block = item.aval, thread.block
    if is_accumulator(aval):  # JAX begins with zeros
        hold_accumulator(thread, aval, item.name, thread.around)
        return Ref(np.zeros(aval.shape, aval.dtype), item.name, "regs")
    ref, thread.top = _place(block, item, thread.top, first=first)
    return ref


def _place(block: ThreadBlock, item: ScopedRef, top: int, *, first: bool) -> tuple[Ref, int]:
    """The memory of an item in a block, and the end of the shared memory that is taken."""
    aval = item.aval
    facts = barrier_facts(aval.dtype)
    if facts is None and semaphore_kind(aval.dtype) is None and space_of(aval) == "smem":
        size = smem_size(aval)
        if first or item.site not in block.memory:
            block.memory[item.site] = _shared(block, item, top, size)
        return block.memory[item.site], top + aligned(size)
    found = block.memory.get(item.site)
    if found is None:
        launch = block.cluster.launch
        if facts is not None:
            found = Ref(_barriers(block, item), item.name, "barrier")
        elif space_of(aval) == "tmem":
            found = tensor_memory(launch.thread.machine, aval, item.name)
        else:
            found = launch.semaphores.get((*item.site, block.point))
        if found is None:
            shape, dtype = tuple(aval.shape), aval.dtype
            memory = memory_of(launch.thread.machine, shape, dtype, item.name, "scratch")
            found = Ref(memory, item.name, space_of(aval))
        if found.key is None:
            found.key = key_of(item.site)
        block.memory[item.site] = found
    elif first and isinstance(found, TensorMemory):
        found.forget(block.cluster.launch.thread.machine)
    return found, top


def semaphores_in(jaxpr: Any) -> Iterator[ScopedRef]:
    """The semaphores of a kernel: of its scopes, which each block has, and those of the launch."""
    for eqn in equations(jaxpr):
        if eqn.primitive.name == "get_global":
            yield ScopedRef(eqn.params["what"], "a global semaphore", (), ("global", id(eqn)))
        for number, (name, aval) in enumerate(made_by(eqn)):
            if semaphore_kind(getattr(aval, "dtype", None)) is not None:
                yield ScopedRef(aval, name, (), (id(eqn), number))


def publish_semaphores(
    launch: GpuLaunch, items: Sequence[ScopedRef], points: Sequence[tuple[int, ...]]
) -> None:
    """Make the semaphores of a launch, which exist before it begins, and let others reach them.

    They begin at 0 in each launch, and what is left on them at its end is lost.

    Args:
      launch: that has them.
      items: which ones.
      points: of the blocks.
    """
    device = launch.thread
    for item in items:
        shared = item.site[0] == "global"
        for point in [()] if shared else points:
            shape, dtype = tuple(item.aval.shape), item.aval.dtype
            memory = memory_of(device.machine, shape, dtype, item.name, "scratch")
            ref = Ref(memory, item.name, "gmem")
            site = item.site if shared else (*item.site, point)
            launch.semaphores[site] = ref
            if device.recorded:
                device.publish_as(ref, AllocationKey(device.launch, (), site))


def _shared(block: ThreadBlock, item: ScopedRef, start: int, size: int) -> Ref:
    """Uninitialized shared memory, which may be where other memory was before."""
    aval = item.aval
    place = block.arena[start : start + size]
    if is_union(aval):
        place[...] = 0xFF  # is NaN in every dtype
        memory = place.view(np.dtype(f"int{8 * union_scale(aval)}"))
    else:
        shape, count = tuple(aval.shape), len(item.tiling)
        if count:
            outer = shape[: -2 * count]
            tiles = zip(shape[-2 * count : -count], item.tiling, strict=True)
            shape = (*outer, *(number * size for number, size in tiles))
        memory = place.view(np.dtype(aval.dtype)).reshape(shape)
        fill = block.cluster.launch.thread.machine.uninitialized((), memory.dtype, "scratch")
        memory[...] = fill
        memory = tiled(memory, item.tiling) if count else memory
    return Ref(memory, item.name, "smem", key=key_of(item.site))


def _barriers(block: ThreadBlock, item: ScopedRef) -> np.ndarray[Any, Any]:
    facts = barrier_facts(item.aval.dtype)
    assert facts is not None
    arrivals = facts.arrivals
    if facts.axes is not None and not facts.leader:
        cluster = block.cluster
        sizes = [len(cluster.along(block, axes)) for axes in facts.axes]
        # Each block of the cluster that differs along one of the axes, and this one, once.
        arrivals *= sum(sizes) - len(sizes) + 1
    elif facts.axes is not None:
        arrivals *= len(block.cluster.along(block, facts.axes[0]))
    found = np.empty(tuple(item.aval.shape), object)
    for point in np.ndindex(*found.shape):
        index = f"[{', '.join(map(str, point))}]" if point else ""
        number = len(block.barriers)
        barrier = Barrier(f"{item.name}{index}", block, facts, arrivals, number, item.site, point)
        block.barriers.append(barrier)
        found[point] = barrier
    return found


def smem_size(aval: Any) -> int:
    """Bytes of the memory of a reference, as it is kept here: a byte for narrower elements."""
    scale = union_scale(aval) if is_union(aval) else 1
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize * scale


def aligned(size: int) -> int:
    """Bytes that an allocation of shared memory takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def smem_bytes(jaxpr: Any) -> int:
    """Bytes of shared memory that the scopes of a kernel take at most, as they are kept here."""

    def taken(eqn: Any) -> list[tuple[str, int]]:
        avals = [(name, aval) for name, aval in made_by(eqn) if is_shared_array(aval)]
        return [(name, aligned(smem_size(aval))) for name, aval in avals]

    return sum(size for _, size in most_at_a_time(jaxpr, taken))


def is_shared_array(aval: Any) -> bool:
    """Whether a reference is to an array in shared memory: to no barriers, and no semaphores."""
    if space_of(aval) != "smem" or barrier_facts(aval.dtype) is not None:
        return False
    return semaphore_kind(aval.dtype) is None


# Registers of a block: what certainly does not fit.
#
# An SM has 65,536 registers of 32 bits, and a thread at most 255 (CUDA Programming Guide,
# "Technical Specifications per Compute Capability"). What a compiler keeps in them is its own
# affair: it orders loads and stores anew, computes values again, and spills. Only this is certain
# of a Mosaic GPU kernel: accumulators of ``wgmma`` are in registers as long as they live, since
# the tensor core writes them at any time; and ``setmaxnreg.inc`` blocks until the pool of the
# block has as many registers as it needs (PTX ISA, "setmaxnreg").


#: Of an SM, and of a thread.
_POOL, _MOST = 65_536, 255

#: Threads of a warpgroup, and bytes of a register.
_THREADS, _BYTES = 128, 4

#: The fewest and the most that ``setmaxnreg`` takes.
_LEAST_ASKED, _MOST_ASKED = 24, 256


def hold_accumulator(thread: GpuThread, aval: Any, name: str, line: str) -> None:
    """A warpgroup has one more accumulator; report it if not all of them fit.

    Args:
      thread: the warpgroup.
      aval: of the accumulator.
      name: of the reference.
      line: ``file:line`` of the scope, at whose end it gives the registers back.
    """
    size = math.prod(aval.shape) * np.dtype(aval.dtype).itemsize
    thread.accumulators += -(-size // (_THREADS * _BYTES))
    there, why = _available(thread)
    if thread.accumulators > there:
        thread.machine.report(
            Finding(
                kind="spill",
                message=(
                    f"the accumulators of a warpgroup take {thread.accumulators} registers of each "
                    f"thread, and it has {there} ({why}): the compiler moves them to memory and "
                    "back. Choose a smaller tile, or divide it among more warpgroups."
                ),
                kernel=thread.kernel,
                line=line,
                ref=name,
            )
        )


def registers_at_launch(jaxpr: Any) -> int:
    """How many registers a thread has at least when a kernel begins: what it can give, it has."""
    given = [
        eqn.params["n"]
        for eqn in equations(jaxpr)
        if eqn.primitive.name.startswith("set_max_registers") and eqn.params["action"] == "decrease"
    ]
    return min(given, default=0)


def _available(thread: GpuThread) -> tuple[int, str]:
    """How many registers a thread can have, and why."""
    limit = thread.block.registers.get(thread.warpgroup)
    if limit is not None:
        return min(limit, _MOST), "set_max_registers"
    if thread.block.registers:  # others give theirs
        return _MOST, "the most there are"
    count = len(thread.block.warpgroups)
    share = _POOL // (_THREADS * count) // 8 * 8
    return min(share, _MOST), f"{count} warpgroups share {_POOL:,}" if share < _MOST else "at most"


def set_registers(thread: GpuThread, count: int, line: str, *, more: bool) -> None:
    """A warpgroup gives registers to the pool of its block, or waits until it has enough.

    Who has not called this yet has as many as at the launch (``GpuLaunch.registers``).

    Raises:
      DeadlockError: it never has.
      SimulationError: there is no such number.
    """
    if not _LEAST_ASKED <= count <= _MOST_ASKED:
        raise SimulationError(
            f"set_max_registers takes {_LEAST_ASKED} to {_MOST_ASKED} registers, not {count}"
        )
    block, scheduler = thread.block, thread.machine.scheduler
    if not more:
        block.registers[thread.warpgroup] = count
        for task in block.asking:
            scheduler.wake(task)
        block.asking.clear()
        return

    def left() -> int:
        others = [
            block.registers.get(number, thread.kernel_launch.registers)
            for number in range(len(block.warpgroups))
            if number != thread.warpgroup
        ]
        return _POOL // _THREADS - sum(others)

    def blocked() -> Wait:
        return Wait(
            owner=thread.owner,
            on="the registers of its block",
            needed=count,
            had=left(),
            unit="a thread",
            line=line,
            program=thread.program,
        )

    while left() < count:
        task = scheduler.current
        if task is not None:
            block.asking.append(task)
        if not scheduler.block(blocked):
            raise thread.deadlock([blocked()])
    block.registers[thread.warpgroup] = count


# Shared memory that a kernel needs and a chip does not have: a launch of it fails.


_ESTIMATED = " by an estimate, as no compiler for GPUs has counted it"


def smem_findings(
    jaxpr: Any, mesh: Any, params: Any, target: str, name: str, line: str
) -> Iterator[Finding]:
    """What a block of a Mosaic GPU kernel needs beyond the shared memory of a chip.

    Args:
      jaxpr: body of the kernel.
      mesh: of its blocks, JAX's.
      params: compiler parameters, or None.
      target: name of the chip.
      name: of the kernel.
      line: of its call.
    """
    needed = requested_shared_bytes(jaxpr, mesh, params)
    if needed is None or target not in GPUS or needed <= GPUS[target].shared_per_block:
        return
    yield shared_memory_excess(
        needed, target, most_at_a_time(jaxpr, _shared_bytes_taken), name, line
    )


def shared_memory_excess(
    needed: int,
    target: str,
    parts: Sequence[tuple[str, int]],
    name: str,
    line: str,
    *,
    estimated: bool = False,
) -> Finding:
    """The finding that a block needs more shared memory than a chip has.

    Args:
      needed: bytes.
      target: name of the chip.
      parts: names and bytes of what takes them.
      name: of the kernel.
      line: of its call.
      estimated: whether the number is an estimate.
    """
    largest = sorted(parts, key=lambda part: -part[1])[:3]
    shown = ", ".join(f"{what} {size / 1024:.1f} KiB" for what, size in largest)
    counted = _ESTIMATED if estimated else ""
    return Finding(
        kind="capacity",
        message=(
            f"a block takes {needed:,} bytes of shared memory{counted}, and a block of {target} "
            f"can have {GPUS[target].shared_per_block:,}: {shown}. Choose smaller blocks, or fewer "
            "stages."
        ),
        kernel=name,
        line=line,
        ref=largest[0][0] if largest else "",
    )


def _shared_bytes_taken(eqn: Any) -> list[tuple[str, int]]:
    """What an equation takes of the shared memory of a block: names and bytes."""
    made = [(name, aval) for name, aval in made_by(eqn) if is_shared_array(aval)]
    return [(name or "scoped memory", aligned(_size(aval))) for name, aval in made]


def _size(aval: Any) -> int:
    size = 1.0 if str(aval.dtype) == "bool" else itemsize(aval.dtype)
    return math.ceil(math.prod(aval.shape) * size)
