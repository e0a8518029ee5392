"""Rules: copies between global and shared memory, by TMA and by ``cp.async``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import beyond_edge, bounds_error
from pallas_sim.chips import GPUS
from pallas_sim.compat.compilers import CopyKey, key_of
from pallas_sim.dtypes import Array
from pallas_sim.errors import BoundsError, MissingRuleError, SimulationError
from pallas_sim.findings import Access
from pallas_sim.gpu.barriers import (
    Barrier,
    EngineOperation,
    arrive,
    barrier_at,
    reading_then_writing,
    reducer,
    start,
    wait_groups,
)
from pallas_sim.gpu.barriers import complete as tell
from pallas_sim.gpu.inline.code import InlineCode, InlineError, inline_code, inline_places
from pallas_sim.gpu.inline.memory import UnreachableError
from pallas_sim.gpu.inline.run import execute, prepared
from pallas_sim.gpu.operands import LoadParts, load_parts, prefetch_parts, store_parts
from pallas_sim.gpu.threads import GpuThread, ThreadBlock
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
from pallas_sim.recording import Asynchronous, Fenced, Side
from pallas_sim.registry import Equation, Evaluate
from pallas_sim.rules.mosaic_threads import gpu_rule, holds, part_of
from pallas_sim.transforms import RefPart
from pallas_sim.windows import read


def arrives_without_copying() -> bool:
    """Whether a load whose predicate does not hold still arrives at its barrier.

    So it is in JAX 0.11.2; in 0.12.0.1 it does nothing.
    """
    import jax

    return jax.__version_info__ < (0, 12)


@gpu_rule("copy_gmem_to_smem")
def _load(eqn: Equation) -> Evaluate:
    parts, line = load_parts(eqn.params), eqn.line
    tiling = Tiling(tiles_of(parts.target.window), key_of(eqn.params))
    always_arrives = parts.predicate is not None and arrives_without_copying()

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        _check_engine(thread, parts)
        if not holds(parts.predicate, operands):
            if always_arrives and parts.barrier is not None:
                _arrive_only(thread, parts, operands, line)
            return ()
        source, name, home = _window(
            thread, parts.source, operands, line, "load from", promised=parts.fill == "promise"
        )
        ref, target = part_of(thread, parts.target, operands, "load to", line)
        if parts.barrier is None:
            _load_in_order(thread, source, target, (name, ref.name), line)
            return ()
        if parts.partition is None:
            source = _as_tma_sees(thread, source, tiling, name, line, home=home)
        if not parts.axes:
            _, found = part_of(thread, parts.barrier, operands, "use of", line)
            barrier = barrier_at(found)
            arrive(thread, barrier, line, expects=target.nbytes)
            fill = _fill(parts, target)
            _start_load(thread, source, [target], [barrier], (name, ref.name), fill, home, line)
        else:
            _load_together(thread, parts, source, tiling, operands, (name, ref.name), home, line)
        return ()

    return evaluate


def _arrive_only(thread: GpuThread, parts: LoadParts, operands: Sequence[Any], line: str) -> None:
    """Arrive where a copy would, at its leader's barrier if there is one."""
    assert parts.barrier is not None
    block = thread.block
    blocks = block.cluster.along(block, parts.axes) if parts.leader else [block]
    if blocks[0] is block:
        arrive(thread, _barrier_in(thread, parts.barrier, block, operands), line)


def _check_engine(thread: GpuThread, parts: LoadParts) -> None:
    has_tma = GPUS[thread.machine.target].capability >= 9
    if has_tma and parts.barrier is None:
        raise SimulationError(
            "copy_gmem_to_smem without a barrier is a cp.async, for chips before Hopper: pass a "
            "barrier"
        )
    if not has_tma and (parts.barrier is not None or parts.axes):
        raise SimulationError(
            f"{thread.machine.target} has no TMA, which copies with a barrier: leave out the "
            "barrier, and call plgpu.wait_gmem_to_smem"
        )


def _fill(parts: LoadParts, target: Array) -> Any:
    return default_fill(target.dtype) if parts.fill == "undefined" else 0


def _window(
    thread: GpuThread,
    place: RefPart,
    operands: Sequence[Any],
    line: str,
    how: str,
    *,
    promised: bool = False,
) -> tuple[EngineWindow, str, int]:
    """A window of global memory, the name of the reference, and the device that has it."""
    (found,) = _windows(thread, place, operands, line, how, promised=promised)
    return found


def _windows(
    thread: GpuThread,
    place: RefPart,
    operands: Sequence[Any],
    line: str,
    how: str,
    *,
    promised: bool = False,
) -> list[tuple[EngineWindow, str, int]]:
    """As ``_window``, on all devices that the reference names."""
    found: list[tuple[EngineWindow, str, int]] = []
    for ref, home in memories_of(thread, operands[place.position], place.places, operands, line):
        try:
            part = window_of(ref, place.window, operands, promised=promised)
        except Outside as outside:
            raise beyond_edge(thread, ref, how, outside, line) from None
        found.append((part, ref.name, home))
    return found


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the shared memory of a copy is tiled.

    Attributes:
      tiles: along its last axes, as the kernel says; () if it says nothing.
      key: of the copy, by which the tiles are known that JAX chooses then.
    """

    tiles: tuple[int, ...]
    key: CopyKey


def _as_tma_sees(
    thread: GpuThread,
    window: EngineWindow,
    tiling: Tiling,
    name: str,
    line: str,
    *,
    home: int,
    writes: bool = False,
) -> EngineWindow:
    """The window that TMA accesses; report an axis whose index JAX drops.

    Args:
      thread: that starts the copy.
      window: of global memory, as the kernel names it.
      tiling: of shared memory.
      name: of the reference.
      line: of the equation.
      home: the device whose memory it is.
      writes: whether the copy writes to the window.
    """
    if not thread.machine.drops_indices:
        return window
    tiles = tiling.tiles
    if not tiles and without_unit_axes(window, window.shape)[1]:
        # Some tiles would drop an index, and the kernel leaves it to JAX which there are.
        tiles = thread.kernel_launch.tiles().get(tiling.key, ())
    found, dropped = without_unit_axes(window, tiles)
    if dropped:
        assert window.array is not None
        access = Access(
            kind="write" if writes else "read",
            ref=name,
            owner=thread.owner,
            home=home,
            index=found.bounds,
            line=line,
            program=thread.program,
            by="the TMA copy",
        )
        facts: dict[str, Any] = {"ref": name, "shape": window.array.shape, "accesses": (access,)}
        message = _dropped(dropped[0], name, window.array.shape, writes=writes)
        thread.report("bounds", message, line, index=window.starts, **facts)
    return found


def _dropped(unit: UnitAxis, name: str, shape: tuple[int, ...], *, writes: bool) -> str:
    size = shape[unit.axis]
    elements = f"{size} element{'s' * (size != 1)}"
    where = elements if unit.tile == 1 else f"{elements} in one tile of {unit.tile}"
    copy, happens = (
        ("copy to", "overwrites the block at 0, where it should write nothing")
        if writes
        else ("load from", "reads the block at 0, where it should read zeros")
    )
    return (
        f"{copy} {name or 'a reference'} {list(shape)} beyond its edge: it starts at {unit.start} "
        f"of axis {unit.axis}, which has {where}. JAX drops the index of a TMA copy along such an "
        f"axis: the copy {happens}. Skip the copy where it starts outside (pl.when, predicate=), "
        "or pad the axis to two tiles"
    )


def _start_load(
    thread: GpuThread,
    source: EngineWindow,
    targets: Sequence[Array],
    barriers: Sequence[Barrier],
    names: tuple[str, str],
    fill: Any,
    home: int,
    line: str,
) -> None:
    """Begin a TMA load to one or several blocks, at each of whose barriers it arrives."""
    sides = [Side(source.region, False, names[0], home=home)]
    here = thread.owner.device
    sides += [Side(each, True, names[1], proxied=True, home=here) for each in targets]
    operation = EngineOperation(Asynchronous("the TMA copy", sides), thread.block)

    def write(values: Array) -> None:
        for target, barrier in zip(targets, barriers, strict=True):
            target[...] = values.reshape(target.shape)
            tell(operation, barrier, target.nbytes, thread.machine)

    steps = reading_then_writing(lambda: source.load(fill), write)
    start(thread, operation, steps=steps, line=line, barriers=list(barriers))


def _load_in_order(
    thread: GpuThread, source: EngineWindow, target: Array, names: tuple[str, str], line: str
) -> None:
    """Begin a ``cp.async``, which its own thread waits for."""
    sides = [Side(source.region, False, names[0]), Side(target, True, names[1])]
    operation = EngineOperation(Asynchronous("the cp.async copy", sides), thread.block)

    def write(values: Array) -> None:
        target[...] = values.reshape(target.shape)

    start(thread, operation, steps=reading_then_writing(source.load, write), line=line)
    thread.loads.open.append(operation)
    thread.loads.commit()


def _load_together(
    thread: GpuThread,
    parts: LoadParts,
    source: EngineWindow,
    tiling: Tiling,
    operands: Sequence[Any],
    names: tuple[str, str],
    home: int,
    line: str,
) -> None:
    """A load that blocks of a cluster do together."""
    assert parts.barrier is not None
    block, cluster = thread.block, thread.block.cluster
    blocks = cluster.along(block, parts.axes)
    mine, count = blocks.index(block), len(blocks)
    _, target = part_of(thread, parts.target, operands, "load to", line)
    fill = _fill(parts, target)
    if parts.leader:
        barrier = _barrier_in(thread, parts.barrier, blocks[0], operands)
        if mine == 0:
            arrive(thread, barrier, line, expects=target.nbytes * count)
        if parts.partition is not None:
            size = target.shape[parts.partition]
            source = source.part(parts.partition, mine * size, (mine + 1) * size)
            source = _as_tma_sees(thread, source, tiling, names[0], line, home=home)
        _start_load(thread, source, [target], [barrier], names, fill, home, line)
        return
    barriers = [_barrier_in(thread, parts.barrier, each, operands) for each in blocks]
    arrive(thread, barriers[mine], line, expects=target.nbytes)
    # Each block loads a slice for all of them.
    axis = next((axis for axis, size in enumerate(target.shape) if size % count == 0), None)
    if axis is None:
        raise SimulationError(
            f"a multicast copy of {list(target.shape)} cannot be divided among {count} blocks"
        )
    size = target.shape[axis] // count
    key = (slice(None),) * axis + (slice(mine * size, (mine + 1) * size),)
    targets = [_target_in(thread, parts.target, each, operands)[key] for each in blocks]
    piece = source.part(axis, mine * size, (mine + 1) * size)
    _start_load(thread, piece, targets, barriers, names, fill, home, line)


def _target_in(
    thread: GpuThread, place: RefPart, block: ThreadBlock, operands: Sequence[Any]
) -> Array:
    """The part of another block's memory that corresponds to the thread's own."""
    ref = thread.of_block(operands[place.position], block)
    return read(ref.data, place.transforms, operands)


def _barrier_in(
    thread: GpuThread, place: RefPart, block: ThreadBlock, operands: Sequence[Any]
) -> Barrier:
    return barrier_at(_target_in(thread, place, block, operands))


@gpu_rule("copy_smem_to_gmem")
def _store(eqn: Equation) -> Evaluate:
    parts, line = store_parts(eqn.params), eqn.line
    tiling = Tiling(tiles_of(parts.source.window), key_of(eqn.params))
    dtype = np.dtype(eqn.ins[0].dtype)
    reduce: Callable[[Array, Array], Array] | None = None
    if parts.reduction is not None:
        reduce = reducer(parts.reduction, dtype)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if holds(parts.predicate, operands):
            ref, source = part_of(thread, parts.source, operands, "copy from", line)
            targets = [
                (
                    _as_tma_sees(thread, window, tiling, name, line, home=home, writes=True),
                    name,
                    home,
                )
                for window, name, home in _windows(thread, parts.target, operands, line, "copy to")
            ]
            _start_store(thread, ref, source, targets, reduce, line)
        if parts.commits:
            thread.stores.commit()
        return ()

    return evaluate


def _start_store(
    thread: GpuThread,
    ref: Ref,
    source: Array,
    targets: Sequence[tuple[EngineWindow, str, int]],
    reduce: Callable[[Array, Array], Array] | None,
    line: str,
) -> None:
    def write(values: Array) -> None:
        for target, _, _ in targets:
            target.store(values.reshape(target.shape), reduce)

    sides = [Side(source, False, ref.name, proxied=True, home=thread.owner.device)]
    sides += [
        Side(target.region, True, name, adds=reduce is not None, home=home)
        for target, name, home in targets
    ]
    operation = EngineOperation(Asynchronous("the TMA copy", sides), thread.block, lasting=True)
    thread.stores.open.append(operation)
    start(thread, operation, steps=reading_then_writing(source.copy, write), line=line)


@gpu_rule("commit_group")
def _commit_group(eqn: Equation) -> Evaluate:
    def evaluate(thread: GpuThread) -> Any:
        thread.stores.commit()
        return ()

    return evaluate


@gpu_rule("wait_smem_to_gmem")
def _wait_stores(eqn: Equation) -> Evaluate:
    left, sources_only = eqn.params["n"], bool(eqn.params["wait_read_only"])

    def evaluate(thread: GpuThread) -> Any:
        wait_groups(thread, thread.stores, left, sources_only=sources_only)
        return ()

    return evaluate


@gpu_rule("wait_gmem_to_smem")
def _wait_loads(eqn: Equation) -> Evaluate:
    left = eqn.params["n"]

    def evaluate(thread: GpuThread) -> Any:
        wait_groups(thread, thread.loads, left)
        return ()

    return evaluate


@gpu_rule("commit_smem")
def _commit_smem(eqn: Equation) -> Evaluate:
    def evaluate(thread: GpuThread) -> Any:
        thread.recording.events.append(Fenced(thread.number))
        return ()

    return evaluate


@gpu_rule("async_prefetch")
def _prefetch(eqn: Equation) -> Evaluate:
    """It changes no memory, and no order."""
    place, predicate = prefetch_parts(eqn.params)
    line = eqn.line

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if holds(predicate, operands):
            _windows(thread, place, operands, line, "prefetch of")
        return ()

    return evaluate


# Rules: code that a kernel inlines.


@gpu_rule("inline_mgpu", "inline_mgpu_p")  # the latter is that of JAX 0.11
def _inline_mgpu(eqn: Equation) -> Evaluate:
    """Any code whose operations are known.

    Raises:
      MissingRuleError: one of them is not, or the code needs what only a compiler has.
    """
    params, line = eqn.params, eqn.line
    places = inline_places(params)
    results = [(tuple(each.shape), each.dtype) for each in params["flat_ret_ty"]]
    known: dict[Any, InlineCode] = {}

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        arguments = [
            operands[position] if place is None else _reference(thread, place, operands, line)
            for position, place in enumerate(places)
        ]
        kinds = tuple(map(_kind, arguments))
        key = (thread.machine.target, len(thread.lanes), kinds)
        if key not in known:
            known[key] = _code(params, kinds, thread)
        try:
            return execute(known[key], thread, arguments, results, line)
        except UnreachableError as error:
            raise _outside(thread, error, line) from None

    return evaluate


def _reference(
    thread: GpuThread, place: RefPart, operands: Sequence[Any], line: str
) -> tuple[str, Any, bool]:
    """Name and elements of a reference, and whether they are in shared memory."""
    ref, part = part_of(thread, place, operands, "use of", line)
    if ref.space not in ("gmem", "smem"):
        raise MissingRuleError(f"{ref.name}, which inline_mgpu is given, is in {ref.space}")
    return ref.name, part, ref.space == "smem"


def _kind(argument: Any) -> tuple[tuple[int, ...], Any, bool]:
    if isinstance(argument, tuple):
        _, part, shared = argument
        return tuple(np.shape(part)), part.dtype, shared
    return tuple(np.shape(argument)), np.asarray(argument).dtype, False


def _code(params: Any, kinds: Any, thread: GpuThread) -> InlineCode:
    capability = GPUS[thread.machine.target].capability
    try:
        code = inline_code(params, kinds, (capability, 0), one_warp=len(thread.lanes) == 1)
    except InlineError as error:
        raise MissingRuleError(f"the function of inline_mgpu {error}") from None
    return prepared(code)


def _outside(thread: GpuThread, error: UnreachableError, line: str) -> BoundsError:
    message = f"the code of inline_mgpu is beyond an edge: {error}"
    return bounds_error(thread, message, line, seed=thread.machine.seed)
