"""Rules: copies between global and shared memory, by TMA and by ``cp.async``, and inlined code.

Loads and stores are operations of ``gpu/engines.py`` that read their whole window before they
write. A load by TMA arrives at a barrier with its number of bytes. A thread commits stores, and
loads by ``cp.async``, in groups, and waits for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.accesses import move_block
from pallas_sim.chips import GPUS
from pallas_sim.choices import atomic_kind
from pallas_sim.compat.compilers import CopyKey, key_of
from pallas_sim.compat.source import move_of_block
from pallas_sim.dtypes import Array
from pallas_sim.edges import end_at_edge, report_edge
from pallas_sim.errors import MissingRuleError, SimulationError
from pallas_sim.findings import Access
from pallas_sim.gpu.barriers import arrive
from pallas_sim.gpu.engines import complete, reading_then_writing, refills, start, wait_groups
from pallas_sim.gpu.inline.code import InlineCode, InlineError, inline_code, inline_places
from pallas_sim.gpu.inline.memory import UnreachableError, check
from pallas_sim.gpu.inline.run import execute
from pallas_sim.gpu.scopes import axes_of
from pallas_sim.gpu.threads import Barrier, EngineOperation, GpuThread
from pallas_sim.gpu.windows import (
    EngineWindow,
    UnitAxis,
    memories_of,
    tiles_of,
    window_of,
    without_unit_axes,
)
from pallas_sim.machine import default_fill
from pallas_sim.memory import Outside, Ref
from pallas_sim.points import copy_slots
from pallas_sim.recording import Asynchronous, Fenced, Side
from pallas_sim.registry import Equation, Evaluate
from pallas_sim.rules.mosaic_threads import (
    OperandLeaves,
    barriers_in,
    gpu_rule,
    holds,
    named_barrier,
    part_of,
)
from pallas_sim.rules.references import reducer
from pallas_sim.transforms import RefPart
from pallas_sim.windows import read


def arrives_without_copying() -> bool:
    """Return whether a load whose predicate is false still arrives at its barrier.

    In JAX 0.11.2 it arrives; in 0.12.0.1 it does nothing.
    """
    import jax

    return jax.__version_info__ < (0, 12)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the shared memory of a copy is tiled.

    Attributes:
      tiles: tile sizes along its last axes, as the kernel declares them; () if it declares none.
      key: names the copy; if the kernel declares no tiles, JAX's choice is looked up by it.
    """

    tiles: tuple[int, ...]
    key: CopyKey


@dataclass(frozen=True, slots=True)
class _GlobalLoad:
    """A ``copy_gmem_to_smem``.

    Attributes:
      source: the part of global memory that it reads.
      target: the part of shared memory that it writes.
      barrier: the barrier that its bytes arrive at; None for ``cp.async``.
      predicate: position of the operand that says whether it happens; None if it always does.
      axes: the axes of the cluster along which blocks load together, or ().
      partition: the axis of the source that these blocks divide among them, or None.
      leader: whether all bytes arrive at the barrier of the first of these blocks only.
      fill: how elements beyond the array are read: ``"zeros"``, ``"undefined"``, or ``"promise"``
        if the kernel promises that there are none.
      tiling: the tiles of the shared memory.
      line: ``file:line`` of the equation.
      of_jax: whether a pipeline of JAX's starts it, and not the kernel.
    """

    source: RefPart
    target: RefPart
    barrier: RefPart | None
    predicate: int | None
    axes: tuple[Any, ...]
    partition: int | None
    leader: bool
    fill: str
    tiling: Tiling
    line: str
    of_jax: bool

    def filling(self, target: Array) -> Any:
        """Return the value that is written for elements beyond the array."""
        return default_fill(target.dtype) if self.fill == "undefined" else 0


def _load_of(eqn: Equation) -> _GlobalLoad:
    params, leaves = eqn.params, OperandLeaves(eqn, 2)
    barrier = leaves.one(there=params.get("has_barrier", True))
    source = leaves.part(0, "src_transforms_treedef")
    target = leaves.part(1, "dst_transforms_treedef")
    barrier_part = leaves.part(barrier, "barrier_transforms_treedef")
    tracked = params.get("leader_tracked")
    return _GlobalLoad(
        source=source,
        target=target,
        barrier=None if barrier is None else barrier_part,
        predicate=leaves.predicate(),
        axes=axes_of(params.get("collective_axes") or ()),
        partition=getattr(tracked, "axis", None),
        leader=tracked is not None,
        fill=str(getattr(params.get("oob_mode"), "name", "ZEROS")).lower().partition("_")[0],
        tiling=Tiling(tiles_of(target.window), key_of(params)),
        line=eqn.line,
        of_jax=eqn.of_jax,
    )


@gpu_rule("copy_gmem_to_smem")
def _load(eqn: Equation) -> Evaluate:
    load, line, move = _load_of(eqn), eqn.line, move_of_block(eqn.origin)
    slots = copy_slots(eqn, load.source, load.target, load.barrier)
    always_arrives = load.predicate is not None and arrives_without_copying()

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        _check_engine(thread, load)
        if not holds(load.predicate, operands):
            if always_arrives and load.barrier is not None:
                # With a leader, only the leader arrives, at its own barrier.
                block = thread.block
                blocks = block.cluster.along(block, load.axes) if load.leader else [block]
                if blocks[0] is block:
                    (barrier,) = barriers_in(thread, [block], load.barrier, operands)
                    arrive(thread, barrier, line)
            return
        promised = load.fill == "promise"
        (source,) = _windows(thread, load.source, operands, line, "load from", promised=promised)
        ref, target = part_of(thread, load.target, operands, "load to", line)
        if move is not None:
            move_block(ref, source.name, move)
        if slots is not None:
            until = None
            if load.barrier is not None and not load.axes:
                until = named_barrier(thread, load.barrier, operands, line)
            thread.machine.coverage.use(slots, thread.kernel, operands, until)
        if load.barrier is None:
            _load_in_order(thread, source, target, ref.name, line)
            return
        if load.partition is None:
            source = _as_tma_sees(thread, source, load.tiling, line)
        if load.axes:
            _load_together(thread, load, source, target, ref.name, operands)
            return
        barrier = named_barrier(thread, load.barrier, operands, line)
        arrive(thread, barrier, line, expects=target.nbytes)
        _start_load(thread, load, source, [target], ref.name, [barrier])

    return evaluate


def _check_engine(thread: GpuThread, load: _GlobalLoad) -> None:
    """Check that the chip has the engine of a load: TMA with a barrier, ``cp.async`` without.

    Raises:
      SimulationError: it has not.
    """
    has_tma = GPUS[thread.machine.target].capability >= 9
    if has_tma and load.barrier is None:
        raise SimulationError(
            "copy_gmem_to_smem without a barrier is a cp.async, for chips before Hopper: pass a "
            "barrier"
        )
    if not has_tma and (load.barrier is not None or load.axes):
        raise SimulationError(
            f"{thread.machine.target} has no TMA, which copies with a barrier: leave out the "
            "barrier, and call plgpu.wait_gmem_to_smem"
        )


def _windows(
    thread: GpuThread,
    part: RefPart,
    operands: Sequence[Any],
    line: str,
    how: str,
    *,
    promised: bool = False,
) -> list[EngineWindow]:
    """Return the windows of global memory that an equation names: one for each device it names.

    Args:
      thread: that evaluates the equation.
      part: the window, and its devices.
      operands: of the equation.
      line: of the equation.
      how: the access, in the words of a message, such as ``"load from"``.
      promised: whether the kernel promises that all elements are inside the array.
    """
    windows: list[EngineWindow] = []
    for ref, home in memories_of(thread, operands[part.position], part.places, operands, line):
        try:
            window = window_of(ref, part.window, operands, promised=promised)
        except Outside as outside:  # although the kernel promised that all is inside
            report_edge(thread, ref, how, outside, line)
            window = window_of(ref, part.window, operands)
        windows.append(replace(window, name=ref.name, home=home))
    return windows


def _as_tma_sees(
    thread: GpuThread,
    window: EngineWindow,
    tiling: Tiling,
    line: str,
    *,
    writes: bool = False,
) -> EngineWindow:
    """Return the window that TMA accesses; report a start that is lost because JAX drops an index.

    Args:
      thread: that starts the copy.
      window: of global memory, as the kernel names it.
      tiling: of shared memory.
      line: of the equation.
      writes: whether the copy writes to the window.
    """
    if not thread.machine.drops_indices:
        return window
    tiles = tiling.tiles
    if not tiles and without_unit_axes(window, window.shape)[1]:
        # Whether an index is dropped depends on the tiles, and JAX chooses them for this kernel.
        tiles = thread.kernel_launch.tiles().get(tiling.key, ())
    accessed, dropped = without_unit_axes(window, tiles)
    if dropped:
        assert window.array is not None
        access = Access(
            kind="write" if writes else "read",
            ref=window.name,
            owner=thread.owner,
            home=window.home,
            index=accessed.bounds,
            line=line,
            program=thread.program,
            by="the TMA copy",
        )
        shape = window.array.shape
        facts: dict[str, Any] = {"ref": window.name, "shape": shape, "accesses": (access,)}
        message = _dropped_index(dropped[0], window.name, shape, writes=writes)
        thread.report("bounds", message, line, index=window.starts, **facts)
    return accessed


def _dropped_index(unit: UnitAxis, name: str, shape: tuple[int, ...], *, writes: bool) -> str:
    """Return the message about an axis whose index JAX drops."""
    size = shape[unit.axis]
    elements = f"{size} element{'s' * (size != 1)}"
    extent = elements if unit.tile == 1 else f"{elements} in one tile of {unit.tile}"
    copy, effect = (
        ("copy to", "overwrites the block at 0, where it should write nothing")
        if writes
        else ("load from", "reads the block at 0, where it should read zeros")
    )
    return (
        f"{copy} {name or 'a reference'} {list(shape)} beyond its edge: it starts at {unit.start} "
        f"of axis {unit.axis}, which has {extent}. JAX drops the index of a TMA copy along such an "
        f"axis: the copy {effect}. Skip the copy where it starts outside (pl.when, predicate=), "
        "or pad the axis to two tiles"
    )


def _start_load(
    thread: GpuThread,
    load: _GlobalLoad,
    source: EngineWindow,
    targets: Sequence[Array],
    name: str,
    barriers: Sequence[Barrier],
) -> None:
    """Begin a TMA load to one or several blocks.

    Args:
      thread: that starts it.
      load: the equation.
      source: the window of global memory.
      targets: the shared memory of each block.
      name: of the target, for messages.
      barriers: for each target, the barrier at which its bytes arrive.
    """
    sides = [Side(source.region, False, source.name, home=source.home)]
    here, fill = thread.owner.device, load.filling(targets[0])
    sides += [Side(target, True, name, proxied=True, home=here) for target in targets]
    record = Asynchronous("the TMA copy", sides, refills=refills(thread, of_jax=load.of_jax))
    operation = EngineOperation(record, thread.block)

    def write(values: Array) -> None:
        for target, barrier in zip(targets, barriers, strict=True):
            target[...] = values.reshape(target.shape)
            complete(operation, barrier, nbytes=target.nbytes)

    steps = reading_then_writing(lambda: source.load(fill), write)
    start(thread, operation, steps=steps, line=load.line, barriers=list(barriers))


def _load_in_order(
    thread: GpuThread, source: EngineWindow, target: Array, name: str, line: str
) -> None:
    """Begin a ``cp.async`` as a group of its own; only the thread that starts it can wait."""
    sides = [Side(source.region, False, source.name), Side(target, True, name)]
    operation = EngineOperation(Asynchronous("the cp.async copy", sides), thread.block)

    def write(values: Array) -> None:
        target[...] = values.reshape(target.shape)

    start(thread, operation, steps=reading_then_writing(source.load, write), line=line)
    thread.loads.open.append(operation)
    thread.loads.commit()


def _load_together(
    thread: GpuThread,
    load: _GlobalLoad,
    source: EngineWindow,
    target: Array,
    name: str,
    operands: Sequence[Any],
) -> None:
    """Begin this block's share of a load that blocks of a cluster do together.

    With a leader, each block loads its own target. Without one, each block loads one slice and
    multicasts it to all of them.

    Raises:
      SimulationError: the blocks cannot divide the target into slices.
    """
    assert load.barrier is not None
    line = load.line
    blocks = thread.block.cluster.along(thread.block, load.axes)
    rank, count = blocks.index(thread.block), len(blocks)
    if load.leader:
        (barrier,) = barriers_in(thread, blocks[:1], load.barrier, operands)
        if rank == 0:
            arrive(thread, barrier, line, expects=target.nbytes * count)
        if load.partition is not None:
            size = target.shape[load.partition]
            source = source.part(load.partition, rank * size, (rank + 1) * size)
            source = _as_tma_sees(thread, source, load.tiling, line)
        _start_load(thread, load, source, [target], name, [barrier])
        return
    barriers = barriers_in(thread, blocks, load.barrier, operands)
    arrive(thread, barriers[rank], line, expects=target.nbytes)
    axis = next((axis for axis, size in enumerate(target.shape) if size % count == 0), None)
    if axis is None:
        raise SimulationError(
            f"a multicast copy of {list(target.shape)} cannot be divided among {count} blocks"
        )
    size = target.shape[axis] // count
    key = (slice(None),) * axis + (slice(rank * size, (rank + 1) * size),)
    refs = [thread.of_block(operands[load.target.position], block) for block in blocks]
    targets = [read(ref.data, load.target.transforms, operands)[key] for ref in refs]
    piece = source.part(axis, rank * size, (rank + 1) * size)
    _start_load(thread, load, piece, targets, name, barriers)


@gpu_rule("copy_smem_to_gmem")
def _store(eqn: Equation) -> Evaluate:
    leaves, line, move = OperandLeaves(eqn, 2), eqn.line, move_of_block(eqn.origin)
    source_part = leaves.part(0, "src_transforms_treedef")
    target_part = leaves.part(1, "dst_transforms_treedef")
    predicate, commits = leaves.predicate(), eqn.params.get("commit_group", True)
    tiling = Tiling(tiles_of(source_part.window), key_of(eqn.params))
    slots = copy_slots(eqn, source_part, target_part, None)
    operator, reduce, atomic = eqn.params.get("reduction_op"), None, ""
    if operator is not None:
        named = str(getattr(operator, "value", operator)).lower()
        reduce = reducer(named, eqn.ins[0].dtype)
        atomic = atomic_kind(named, eqn.ins[0].dtype, used=False)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if holds(predicate, operands):
            ref, source = part_of(thread, source_part, operands, "copy from", line)
            if slots is not None:
                thread.machine.coverage.use(slots, thread.kernel, operands, None)
            if move is not None:
                move_block(ref, operands[target_part.position].name, move)
            targets = [
                _as_tma_sees(thread, window, tiling, line, writes=True)
                for window in _windows(thread, target_part, operands, line, "copy to")
            ]
            _start_store(thread, ref, source, targets, reduce, line, atomic)
        if commits:
            thread.stores.commit()

    return evaluate


def _start_store(
    thread: GpuThread,
    ref: Ref,
    source: Array,
    targets: Sequence[EngineWindow],
    reduce: Callable[[Array, Array], Array] | None,
    line: str,
    atomic: str,
) -> None:
    def write(values: Array) -> None:
        for target in targets:
            target.store(values.reshape(target.shape), reduce)

    sides = [Side(source, False, ref.name, proxied=True, home=thread.owner.device)]
    sides += [
        Side(
            target.region,
            True,
            target.name,
            adds=reduce is not None,
            home=target.home,
            atomic=atomic,
        )
        for target in targets
    ]
    # A block may end before its stores have written, but not before they have read its memory.
    operation = EngineOperation(Asynchronous("the TMA copy", sides), thread.block, lasting=True)
    thread.stores.open.append(operation)
    start(thread, operation, steps=reading_then_writing(source.copy, write), line=line)


@gpu_rule("commit_group")
def _commit_group(_: Equation) -> Evaluate:
    return lambda thread: thread.stores.commit()


@gpu_rule("wait_smem_to_gmem")
def _wait_stores(eqn: Equation) -> Evaluate:
    allowed, sources_only = eqn.params["n"], bool(eqn.params["wait_read_only"])
    return lambda thread: wait_groups(thread, thread.stores, allowed, sources_only=sources_only)


@gpu_rule("wait_gmem_to_smem")
def _wait_loads(eqn: Equation) -> Evaluate:
    allowed = eqn.params["n"]  # groups that may still be under way
    return lambda thread: wait_groups(thread, thread.loads, allowed)


@gpu_rule("commit_smem")
def _commit_smem(_: Equation) -> Evaluate:
    return lambda thread: thread.recording.events.append(Fenced(thread.number))


@gpu_rule("async_prefetch")
def _prefetch(eqn: Equation) -> Evaluate:
    """Report an index beyond an edge. A prefetch changes neither memory nor order."""
    leaves, line = OperandLeaves(eqn, 1), eqn.line
    part, predicate = leaves.part(0, "ref_transforms_treedef"), leaves.predicate()

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if holds(predicate, operands):
            _windows(thread, part, operands, line, "prefetch of")

    return evaluate


# Code that a kernel inlines.


@gpu_rule("inline_mgpu", "inline_mgpu_p")  # the latter is that of JAX 0.11
def _inline_mgpu(eqn: Equation) -> Evaluate:
    """Run the code of ``inline_mgpu``, if the simulator has all of its operations.

    Raises:
      MissingRuleError: it lacks an operation, or the code needs what only a compiler has.
    """
    params, line = eqn.params, eqn.line
    parts = inline_places(params)
    results = [(tuple(kind.shape), kind.dtype) for kind in params["flat_ret_ty"]]
    codes: dict[Any, InlineCode] = {}

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        arguments = [
            operands[position] if part is None else _reference(thread, part, operands, line)
            for position, part in enumerate(parts)
        ]
        kinds = tuple(map(_kind, arguments))
        # The function is called once for each chip, and for each shape and dtype of its arguments.
        key = (thread.machine.target, len(thread.lanes), kinds)
        if key not in codes:
            codes[key] = _code(params, kinds, thread)
        try:
            return execute(codes[key], thread, arguments, results, line)
        except UnreachableError as error:
            message = f"the code of inline_mgpu is beyond an edge: {error}"
            finding = thread.finding("bounds", message, line, seed=thread.machine.seed)
            raise end_at_edge(thread, finding) from None

    return evaluate


def _reference(
    thread: GpuThread, named: RefPart, operands: Sequence[Any], line: str
) -> tuple[str, Any, bool]:
    """Return name and elements of a reference, and whether they are in shared memory.

    Raises:
      MissingRuleError: they are in neither global nor shared memory.
    """
    ref, part = part_of(thread, named, operands, "use of", line)
    if ref.space not in ("gmem", "smem"):
        raise MissingRuleError(f"{ref.name}, which inline_mgpu is given, is in {ref.space}")
    return ref.name, part, ref.space == "smem"


def _kind(argument: Any) -> tuple[tuple[int, ...], Any, bool]:
    """Return shape and dtype of an argument, and whether it is in shared memory."""
    if isinstance(argument, tuple):
        _, part, shared = argument
        return tuple(np.shape(part)), part.dtype, shared
    return tuple(np.shape(argument)), np.asarray(argument).dtype, False


def _code(params: Any, kinds: Any, thread: GpuThread) -> InlineCode:
    """Return the code that the function of ``inline_mgpu`` emits for these arguments.

    Raises:
      MissingRuleError: the simulator cannot run it.
    """
    capability = GPUS[thread.machine.target].capability
    try:
        code = inline_code(params, kinds, (capability, 0), one_warp=len(thread.lanes) == 1)
    except InlineError as error:
        raise MissingRuleError(f"the function of inline_mgpu {error}") from None
    check(code.body)
    return code
