"""The memory that ``run_scoped`` makes for a block: shared memory, barriers, registers.

Shared memory is laid out as in JAX's lowering: nested scopes lie one after the other, scopes that
follow each other in the same place. Barriers have a place of their own, and keep their phase if a
scope is entered again. All warpgroups of a block that enter a scope together wait for each other
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of, report_windows
from pallas_sim.chips import Excess, OperandMemory, gpu_bytes, shared_memory_excess
from pallas_sim.compat.compilers import requested_shared_bytes
from pallas_sim.compat.jaxprs import (
    argument_names,
    barrier_facts,
    equations,
    is_accumulator,
    is_union,
    most_at_a_time,
    open_jaxpr,
    semaphore_kind,
    space_of,
)
from pallas_sim.cores import meet
from pallas_sim.errors import SimulationError
from pallas_sim.findings import Finding, Wait
from pallas_sim.gpu.tensor_cores import require_accumulator
from pallas_sim.gpu.tensor_memory import TensorMemory, made_by, tensor_memory
from pallas_sim.gpu.threads import Barrier, GpuLaunch, GpuThread, ThreadBlock
from pallas_sim.memory import AllocationKey, Ref, locate
from pallas_sim.registry import Equation
from pallas_sim.windows import tiled

#: Alignment of allocations of shared memory, in bytes.
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
      items: the references that it makes.
      axes: the threads along them share the items; if there are any, all warpgroups of a block
        enter it together.
      line: ``file:line``.
      site: which scope of the program it is.
    """

    items: tuple[ScopedRef, ...]
    axes: tuple[Any, ...]
    line: str
    site: int


def scope_of(eqn: Equation) -> GpuScope:
    """Read a ``run_scoped``."""
    params, site = eqn.params, id(eqn.origin or eqn)
    inner, _ = open_jaxpr(params["jaxpr"])
    transforms = params.get("ref_transforms") or ((),) * len(inner.invars)
    items: list[ScopedRef] = []
    for number, (var, name) in enumerate(zip(inner.invars, argument_names(inner), strict=True)):
        tilings = (getattr(transform, "tiling", None) for transform in transforms[number] or ())
        tiling = tuple(next(filter(None, tilings), ()))
        name = name or f"scoped memory {number}"
        items.append(ScopedRef(var.aval, name, tiling, (site, number)))
    return GpuScope(tuple(items), axes_of(params.get("collective_axes")), eqn.line, site)


def axes_of(names: Any) -> tuple[Any, ...]:
    """Return names of axes as a tuple: JAX has several, one, or None."""
    named = tuple(names) if isinstance(names, tuple | list) else (names,)
    # ``dynamic_scheduling_loop`` names None where a block has one warpgroup.
    return tuple(axis for axis in named if axis is not None)


def run_scope(
    thread: GpuThread, scope: GpuScope, work: Callable[[Sequence[Ref]], list[Any]]
) -> list[Any]:
    """Run the body of a scope on the references that it makes.

    Args:
      thread: that enters it.
      scope: which one.
      work: takes the references, and returns the results of the body.
    """
    block = thread.block
    _check_axes(thread, scope)
    if scope.axes and len(block.warpgroups) > 1:
        members = range(len(block.warpgroups))
        meeting = ("scope", scope.site, id(block))
        what = f"run_scoped at {scope.line}" if scope.line else "run_scoped"
        meet(thread, meeting, thread.warpgroup, members, None, what, kind="warpgroup")
    # The first warpgroup that enters a scope for the n-th time makes its memory.
    key = (scope.site, thread.number)
    turn = block.entered[key] = block.entered.get(key, 0) + 1
    first = turn > block.entered.get(scope.site, 0)
    block.entered[scope.site] = max(turn, block.entered.get(scope.site, 0))
    # Shared memory is a stack: a scope frees its part when it ends.
    before, around, held = thread.top, thread.around, thread.accumulators
    thread.around = scope.line or around
    if first and turn == 1:
        _reserve(thread, scope)
    refs = [_made(thread, item, first=first) for item in scope.items]
    locate(refs, thread.around)
    results = work(refs)
    report_windows(thread, refs)
    thread.top, thread.around, thread.accumulators = before, around, held
    return results


def _check_axes(thread: GpuThread, scope: GpuScope) -> None:
    """Reject what JAX's lowering rejects: warpgroups must share all items but registers.

    Raises:
      SimulationError: they do not share them, or other threads do.
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
    """Give the other blocks of the cluster their memory before they enter the scope.

    JAX's lowering places all memory and initializes all barriers when a cluster begins, so that a
    block may access those of another one at any time.
    """
    for block in thread.block.cluster.blocks:
        if block is thread.block or scope.site in block.entered:
            continue
        block.entered[scope.site] = 1
        top = thread.top
        for item in scope.items:
            if not is_accumulator(item.aval):
                top = _allocate(block, item, top, first=True)[1]


def _made(thread: GpuThread, item: ScopedRef, *, first: bool) -> Ref:
    aval, block = item.aval, thread.block
    if is_accumulator(aval):  # JAX begins with zeros
        require_accumulator(aval.shape, item.name or "the accumulator")
        hold_accumulator(thread, aval, item.name, thread.around)
        return Ref(np.zeros(aval.shape, aval.dtype), item.name, "regs")
    ref, thread.top = _allocate(block, item, thread.top, first=first)
    return ref


def _allocate(block: ThreadBlock, item: ScopedRef, top: int, *, first: bool) -> tuple[Ref, int]:
    """Return the memory of an item in a block, and the end of the shared memory in use."""
    aval = item.aval
    facts = barrier_facts(aval.dtype)
    if facts is None and semaphore_kind(aval.dtype) is None and space_of(aval) == "smem":
        size = _smem_size(aval)
        if first or item.site not in block.memory:
            block.memory[item.site] = _shared(block, item, top, size)
        return block.memory[item.site], top + _aligned(size)
    ref = block.memory.get(item.site)
    if ref is None:
        launch = block.cluster.launch
        if facts is not None:
            ref = Ref(_barriers(block, item), item.name, "barrier", uses={})
        elif space_of(aval) == "tmem":
            ref = tensor_memory(launch.thread.machine, aval, item.name)
        else:
            ref = launch.semaphores.get((*item.site, block.point))
        if ref is None:
            shape, dtype = tuple(aval.shape), aval.dtype
            memory = memory_of(launch.thread.machine, shape, dtype, item.name, "scratch")
            ref = Ref(memory, item.name, space_of(aval), uses={})
        if ref.key is None:
            ref.key = AllocationKey((), (), item.site)
        block.memory[item.site] = ref
    elif first and isinstance(ref, TensorMemory):
        ref.forget(block.cluster.launch.thread.machine)
    return ref, top


def semaphores_in(jaxpr: Any) -> Iterator[ScopedRef]:
    """Yield the semaphores of a kernel: of scopes, which each block has, and of the launch."""
    for eqn in equations(jaxpr):
        if eqn.primitive.name == "get_global":
            yield ScopedRef(eqn.params["what"], "a global semaphore", (), ("global", id(eqn)))
        for number, (name, aval) in enumerate(made_by(eqn)):
            if semaphore_kind(getattr(aval, "dtype", None)) is not None:
                yield ScopedRef(aval, name, (), (id(eqn), number))


def publish_semaphores(
    launch: GpuLaunch, items: Sequence[ScopedRef], points: Sequence[tuple[int, ...]]
) -> None:
    """Make the semaphores of a launch before it begins, and publish them for other devices.

    They begin at 0 in each launch.

    Args:
      launch: that has them.
      items: the semaphores.
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
    """Make uninitialized shared memory, which may have been other memory before."""
    aval = item.aval
    bytes_ = np.asarray(block.arena)[start : start + size]
    if is_union(aval):
        bytes_[...] = 0xFF  # is NaN in every dtype
        memory = bytes_.view(np.dtype(f"int{8 * _union_scale(aval)}"))
        block.arena.references[item.name] = memory
    else:
        shape, count = tuple(aval.shape), len(item.tiling)
        if count:
            outer = shape[: -2 * count]
            tiles = zip(shape[-2 * count : -count], item.tiling, strict=True)
            shape = (*outer, *(number * size for number, size in tiles))
        memory = bytes_.view(np.dtype(aval.dtype)).reshape(shape)
        fill = block.cluster.launch.thread.machine.uninitialized((), memory.dtype, "scratch")
        memory[...] = fill
        block.arena.references[item.name] = memory
        memory = tiled(memory, item.tiling) if count else memory
    return Ref(memory, item.name, "smem", key=AllocationKey((), (), item.site), uses={})


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
    barriers = np.empty(tuple(item.aval.shape), object)
    for point in np.ndindex(*barriers.shape):
        index = f"[{', '.join(map(str, point))}]" if point else ""
        number = len(block.barriers)
        barrier = Barrier(f"{item.name}{index}", block, facts, arrivals, number, item.site, point)
        block.barriers.append(barrier)
        block.cluster.launch.thread.machine.choices.name(barrier, barrier.location)
        barriers[point] = barrier
    return barriers


def _smem_size(aval: Any) -> int:
    """Return the bytes of a reference as the simulator keeps it: a byte for narrower elements."""
    scale = _union_scale(aval) if is_union(aval) else 1
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize * scale


def _aligned(size: int) -> int:
    """Return the bytes that an allocation of shared memory takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def smem_bytes(jaxpr: Any) -> int:
    """Return the most bytes of shared memory that scopes take, as the simulator keeps them."""
    return sum(size for _, size in _shared_at_a_time(jaxpr, _smem_size))


def _shared_at_a_time(jaxpr: Any, size_of: Callable[[Any], int]) -> list[tuple[str, int]]:
    """Return names and bytes of a block's shared memory at the time when it takes the most."""

    def taken(eqn: Any) -> list[tuple[str, int]]:
        return [
            (name or "scoped memory", _aligned(size_of(aval)))
            for name, aval in made_by(eqn)
            if _is_shared_array(aval)
        ]

    return most_at_a_time(jaxpr, taken)


def _union_scale(aval: Any) -> int:
    """Return how many bytes a byte of a union takes if each element takes one at least."""
    import jax

    bits = [jax.dtypes.itemsize_bits(leaf.dtype) for leaf in jax.tree.leaves(aval.refs)]
    return max((-(-8 // size) for size in bits), default=1)


def _is_shared_array(aval: Any) -> bool:
    """Return whether a reference is to an array in shared memory, not barriers or semaphores."""
    if space_of(aval) != "smem" or barrier_facts(aval.dtype) is not None:
        return False
    return semaphore_kind(aval.dtype) is None


# Registers of a block that certainly do not fit.
#
# An SM has 65,536 registers of 32 bits, and a thread at most 255 (CUDA Programming Guide,
# "Technical Specifications per Compute Capability"). A compiler decides what it keeps in them: it
# orders loads and stores anew, computes values again, and spills. Only this is certain of a Mosaic
# GPU kernel. Accumulators of ``wgmma`` are in registers as long as they live, because the tensor
# core writes them at any time. And ``setmaxnreg.inc`` blocks until the pool of the block has as
# many registers as it needs (PTX ISA, "setmaxnreg").


#: Registers of an SM, and the most of a thread.
_POOL, _MOST = 65_536, 255

#: Threads of a warpgroup, and bytes of a register.
_THREADS, _BYTES = 128, 4

#: The arguments that ``setmaxnreg`` takes.
_LEAST_REQUEST, _MOST_REQUEST = 24, 256


def hold_accumulator(thread: GpuThread, aval: Any, name: str, line: str) -> None:
    """Count an accumulator of a warpgroup; report it if not all of them fit.

    Args:
      thread: the warpgroup.
      aval: of the accumulator.
      name: of the reference.
      line: ``file:line`` of the scope, which frees the registers at its end.
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
    """Return a lower bound on a thread's registers at the launch: the smallest ``decrease``."""
    calls = (e for e in equations(jaxpr) if e.primitive.name.startswith("set_max_registers"))
    return min((e.params["n"] for e in calls if e.params["action"] == "decrease"), default=0)


def _available(thread: GpuThread) -> tuple[int, str]:
    """Return how many registers a thread can have, and why."""
    limit = thread.block.registers.get(thread.warpgroup)
    if limit is not None:
        return min(limit, _MOST), "set_max_registers"
    if thread.block.registers:  # other warpgroups give up theirs
        return _MOST, "the most there are"
    count = len(thread.block.warpgroups)
    share = _POOL // (_THREADS * count) // 8 * 8
    return min(share, _MOST), f"{count} warpgroups share {_POOL:,}" if share < _MOST else "at most"


def set_registers(thread: GpuThread, count: int, line: str, *, more: bool) -> None:
    """Give registers to the pool of the block, or wait until the pool has enough.

    A warpgroup that has not called this yet has as many as at the launch (``GpuLaunch.registers``).

    Raises:
      DeadlockError: the pool never has enough.
      SimulationError: ``setmaxnreg`` does not take this number.
    """
    if not _LEAST_REQUEST <= count <= _MOST_REQUEST:
        raise SimulationError(
            f"set_max_registers takes {_LEAST_REQUEST} to {_MOST_REQUEST} registers, not {count}"
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

    # ``setmaxnreg.inc`` blocks until the pool has enough. A decrease wakes the tasks that wait.
    while left() < count:
        task = scheduler.current
        if task is not None:
            block.asking.append(task)
        if not scheduler.block(blocked):
            raise thread.deadlock([blocked()])
    block.registers[thread.warpgroup] = count


# A kernel that needs more shared memory than a chip has, so that its launch fails.


def smem_excess_of_block(jaxpr: Any, mesh: Any, params: Any, target: str) -> Excess | None:
    """Return what a block of a Mosaic GPU kernel needs beyond a chip's shared memory, or None.

    Args:
      jaxpr: body of the kernel.
      mesh: of its blocks, JAX's.
      params: compiler parameters, or None.
      target: name of the chip.
    """
    needed = requested_shared_bytes(jaxpr, mesh, params)
    if needed is None:
        return None
    parts = [OperandMemory(*part) for part in _shared_at_a_time(jaxpr, gpu_bytes)]
    return shared_memory_excess(parts, target, needed)
