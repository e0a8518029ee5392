"""Accesses to memory: what is recorded of them, and what is reported where they are wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pallas_sim.compat.jaxprs import key_shape, semaphore_kind, space_of
from pallas_sim.compat.places import CopyParts
from pallas_sim.copies import release
from pallas_sim.dtypes import Array
from pallas_sim.edges import (
    contents_of,
    read_inside,
    region_inside,
    report_edge,
    undefined_load,
)
from pallas_sim.errors import SimulationError
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Outside, PipelinedBlocks, Ref, Region, is_key_dtype
from pallas_sim.recording import Copy, Semaphore, Touched
from pallas_sim.transforms import AxisSlice, Indexed, Listed, Operand, RefPart, Transform
from pallas_sim.views import MemoryView, view_of, whole_view
from pallas_sim.windows import packed_bytes, read, region_of

#: ``"pass on"``: memory goes from a kernel to its caller. ``"free"``: its life ends.
AccessKind = Literal["read", "write", "add", "pass on", "free"]


def record_access(
    thread: Thread,
    region: Region,
    kind: AccessKind,
    name: str,
    line: str,
    home: int | None = None,
    atomic: str = "",
) -> None:
    """Record what a thread does to memory. Two accesses that add are in no race.

    Args:
      thread: that accesses it.
      region: the memory.
      kind: of the access.
      name: of the reference.
      line: ``file:line``, or what stands there.
      home: the device whose memory it is, if not the thread's own.
      atomic: see ``choices.atomic_kind``.
    """
    if atomic:
        thread.machine.choices.access(region, atomic, (name, line))
    writes, adds = kind in ("write", "add", "free"), kind == "add"
    frees = kind in ("pass on", "free")
    if kind == "pass on" and not line:  # JAX has none where the function it maps is a kernel itself
        line = "the end of the kernel"
    if thread.access_monitor is not None and not frees:
        thread.access_monitor.note(thread, region, name, line, writes=writes, adds=adds)
    timeline = thread.machine.timeline
    if timeline is not None and not frees:
        timeline.touch(thread.owner, thread.program, line, writes=writes)
    thread.recording.events.append(
        Touched(
            thread.number,
            region,
            writes,
            name,
            line,
            thread.program,
            frees,
            adds,
            thread.kernel,
            home,
        )
    )


def record_window(
    thread: Thread,
    ref: Ref,
    part: Array | None,
    window: Sequence[Transform],
    operands: Sequence[Any],
    kind: AccessKind,
    line: str,
    home: int | None = None,
    atomic: str = "",
) -> None:
    """Record an access to the window of a reference; see ``record_access``.

    Args:
      thread: that accesses it.
      ref: the reference.
      part: what ``read`` gave for the window, or None.
      window: of the reference.
      operands: of the equation.
      kind: of the access.
      line: ``file:line``.
      home: see ``record_access``.
      atomic: likewise.
    """
    try:
        region = region_of(ref.data, window, operands, part)
    except Outside:  # ``part`` is a copy, with what is not there
        region = region_inside(ref.data, window, operands)
    record_access(thread, region, kind, ref.name, line, home, atomic)


def read_window(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    access: str,
    line: str,
) -> Array:
    """Read a window; report that it reaches beyond an edge, and return a copy where it does.

    Args:
      thread: that accesses it.
      ref: the reference.
      window: of the reference.
      operands: of the equation.
      access: ``"load from"``, ``"store to"`` or the like, for the message.
      line: ``file:line``.
    """
    try:
        return read(ref.data, window, operands)
    except Outside as outside:
        report_edge(thread, ref, access, outside, line)
        return read_inside(ref.data, window, operands, contents_of(thread))


def stop_before_access(thread: Thread) -> None:
    """Let others go first on a GPU, if the order of plain accesses is among the choices."""
    if thread.is_warpgroup and thread.machine.choices.memory:
        thread.machine.scheduler.stop()


def load_window(
    thread: Thread, ref: Ref, window: Sequence[Transform], operands: Sequence[Any], line: str
) -> Array:
    """Load a window, and record that where others may reach memory.

    Raises:
      UndefinedLoadError: it reaches beyond an edge; ``evaluation.run`` goes on with what it gives.
    """
    stop_before_access(thread)
    try:
        part = read(ref.data, window, operands)
    except Outside as outside:
        load = undefined_load(thread, ref, window, operands, outside, line)
        if thread.recorded:
            record_window(thread, ref, load.values, window, operands, "read", line)
        raise load from None
    if thread.recorded:
        record_window(thread, ref, part, window, operands, "read", line)
    return part


def report_input_write(thread: Thread, ref: Ref, line: str) -> None:
    """Report a write to the window of an input; of any other reference, do nothing.

    Whether a window of ``emit_pipeline`` is an input's is known at its end: ``report_windows``.
    """
    if ref.blocks is not None and ref.blocks.store is None:
        message = (
            f"store to the window of the input {ref.blocks.array}, which emit_pipeline does not "
            "write back: what the next step reads there depends on whether it has the same block"
        )
        facts: dict[str, Any] = {"ref": ref.blocks.array, "shape": tuple(ref.shape)}
        ref.blocks.store = thread.finding("input-write", message, line, **facts)
    if not ref.is_input:
        return
    message = (
        f"store to the window of the input {ref.name}, which is not aliased to an output: "
        "what the next program or the caller reads there depends on the chip"
    )
    thread.report("input-write", message, line, ref=ref.name, shape=tuple(ref.shape))


def move_block(ref: Ref, array: str, move: Literal["fetch", "write back"]) -> None:
    """Note a copy between an array and a window of ``emit_pipeline``.

    Args:
      ref: the window.
      array: name of the array.
      move: what the copy does.
    """
    if ref.blocks is None:
        ref.blocks = PipelinedBlocks(array)
    ref.blocks.written_back |= move == "write back"


def report_windows(thread: Thread, refs: Iterable[Ref]) -> None:
    """Report stores to the windows of inputs of ``emit_pipeline``, at the end of their scope.

    JAX's pipelines for GPUs fetch the block of each step anew, also where it is the one before.
    """
    for ref in refs:
        blocks = ref.blocks
        if blocks is None or blocks.written_back or blocks.store is None:
            continue
        thread.machine.report(replace(blocks.store, dropped=thread.is_warpgroup))


# Memory and semaphores of a scope, or of a kernel's scratch operands.


def allocate(thread: Thread, aval: Any, name: str, *site: Any) -> Ref:
    """Make uninitialized memory of a scope, or of a kernel's scratch operand.

    Args:
      thread: whose it is.
      aval: shape, dtype and memory space.
      name: for messages.
      site: which allocation of the kernel it is, for other devices that reach it.
    """
    ref = made(thread, aval, name)
    if thread.recorded:
        thread.publish(ref, *site)
    return ref


def free(thread: Thread, refs: Sequence[Ref], line: str) -> None:
    """End the life of what ``allocate`` gave: report copies and counts that are left."""
    report_windows(thread, refs)
    if thread.recorded:
        for ref in refs:
            if ref.data.dtype != object:
                record_access(thread, ref.data, "free", ref.name, line)
        thread.withdraw(refs)
    release(thread, semaphores_of(refs), line)


def made(thread: Thread, aval: Any, name: str) -> Ref:
    """Allocate memory that no other device knows."""
    shape, dtype = tuple(aval.shape), aval.dtype
    memory = memory_of(thread.machine, shape, dtype, name, "scratch")
    return Ref(memory, name, space_of(aval), uses={})


def memory_of(
    machine: Machine, shape: tuple[int, ...], dtype: Any, name: str, purpose: str
) -> np.ndarray[Any, Any]:
    """Make uninitialized memory, or new semaphores; see ``Machine.uninitialized``.

    Semaphores outlive the kernel, unless they are its scratch.
    """
    kind = semaphore_kind(dtype)
    if is_key_dtype(dtype):  # a reference to keys is one to their words
        shape, dtype = (*shape, *key_shape(dtype)), np.uint32
    if kind is None:
        return machine.uninitialized(shape, dtype, purpose)
    semaphores = _semaphores(shape, kind, name)
    if purpose != "scratch":
        for semaphore in semaphores.flat:
            semaphore.lasting = True
        machine.lasting += semaphores.flat
    return semaphores


def semaphores_of(refs: Iterable[Ref]) -> list[Semaphore]:
    """Return the semaphores among what was allocated."""
    return [semaphore for ref in refs if ref.data.dtype == object for semaphore in ref.data.flat]


def _semaphores(shape: tuple[int, ...], kind: str, name: str) -> np.ndarray[Any, Any]:
    array = np.empty(shape, object)
    if not shape:
        array[()] = Semaphore(name, kind)
        return array
    array.reshape(-1)[:] = [
        Semaphore(f"{name}[{', '.join(map(str, point))}]", kind)
        for point in itertools.product(*map(range, shape))
    ]
    return array


# Copies to or from rows that a list of indices names: the gathers and scatters of SparseCores.
#
# The list is in memory, which the copy reads while it is under way, or in a register. Rows whose
# index is to be ignored are not copied, and are counted: who waits, waits for all rows. A copy that
# adds does so element by element and atomically, as often as a row is named.


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a copy.

    Attributes:
      view: of the memory; rows are along its first axis.
      rows: the rows that are copied, in order; None for all.
      kept: which rows are there and not ignored; None for all.
      lists: the memory of the list of indices.
      beyond: whether the window reaches beyond an edge, so that ``memory`` is a copy.
    """

    view: MemoryView
    rows: Array | None = None
    kept: Array | None = None
    lists: tuple[Region, ...] = ()
    beyond: bool = False

    def read(self, rows: Array) -> Array:
        """Return the values of some rows."""
        return self.view.take((rows,))


def is_indexed(parts: CopyParts, avals: Sequence[Any]) -> bool:
    """Return whether a list of indices names rows of one side of a copy.

    Args:
      parts: of the copy.
      avals: abstract values of its operands.
    """
    return any(_list(part, avals) is not None for part in (parts.source, parts.target))


def _list(part: RefPart, avals: Sequence[Any]) -> Listed | None:
    last = part.transforms[-1] if part.transforms else None
    if not isinstance(last, Indexed) or not last.indices:
        return None
    first, *rest = last.indices
    if not all(isinstance(index, AxisSlice) for index in rest):
        return None
    if isinstance(first, Operand) and getattr(avals[first.position], "shape", ()):
        return Listed(first.position)
    return first if isinstance(first, Listed) else None


def indexed_copy(
    thread: Thread,
    parts: CopyParts,
    avals: Sequence[Any],
    operands: Sequence[Any],
    line: str,
    *,
    adds: bool,
) -> Copy:
    """Make a copy that is not started; the caller names its semaphores.

    Args:
      thread: who starts it.
      parts: of the copy.
      avals: abstract values of its operands.
      operands: of the equation.
      line: of the copy.
      adds: whether it adds to what is there.
    """
    from_: Ref = operands[parts.source.position]
    to: Ref = operands[parts.target.position]
    source = _side(thread, parts.source, avals, operands, "copy from", line)
    target = _side(thread, parts.target, avals, operands, "copy to", line)
    memory = target.view.units
    direct = target.beyond or np.may_share_memory(memory, to.data)
    reshaped = memory.size and not direct
    if reshaped or (adds and memory.dtype != target.view.dtype):
        raise SimulationError(f"a scatter to {to.name or 'a reference'}, which is reshaped before")
    listed = next(side for side in (source, target) if side.rows is not None)
    assert listed.rows is not None
    count = len(listed.rows)
    kept = np.ones(count, bool)
    for side in (source, target):
        kept = kept if side.kept is None else kept & side.kept
    chosen = np.flatnonzero(kept)
    chosen = chosen[thread.machine.choices.order(len(chosen))]  # rows are copied in any order
    rows_from, rows_to = (
        chosen if side.rows is None else side.rows[chosen] for side in (source, target)
    )
    elements_of_row = math.prod(source.view.shape[1:])
    size = packed_bytes(count * elements_of_row, source.view.dtype) if source.view.shape[0] else 0
    elements = target.view.at((rows_to,))

    def write(values: Array) -> None:
        if adds:
            shape = (-1, *elements.memory.shape[len(elements.key) :])
            np.add.at(elements.memory, elements.key, values.reshape(shape))
        else:
            target.view.set((rows_to,), values)

    return Copy(
        source=source.view.at((rows_from,)),
        target=elements,
        read=lambda: source.read(rows_from),
        write=write,
        names=(from_.name, to.name),
        size=size,
        sent=None,
        done=None,
        line=line,
        home=thread.owner.device,
        adds=adds,
        lists=(*source.lists, *target.lists),
    )


def _side(
    thread: Thread,
    part: RefPart,
    avals: Sequence[Any],
    operands: Sequence[Any],
    how: str,
    line: str,
) -> _Side:
    ref: Ref = operands[part.position]
    listed = _list(part, avals)

    def view_of_rows(transforms: Sequence[Transform]) -> tuple[MemoryView, bool]:
        try:
            view = view_of(ref.data, transforms, operands)
            return view or whole_view(read(ref.data, transforms, operands)), False
        except Outside as outside:
            report_edge(thread, ref, how, outside, line)
            return whole_view(
                read_inside(ref.data, transforms, operands, contents_of(thread))
            ), True

    if listed is None:
        view, beyond = view_of_rows(part.transforms)
        return _Side(view, beyond=beyond)
    *outer, last = part.transforms
    assert isinstance(last, Indexed)
    height = last.shape[0]
    others = replace(last, indices=(AxisSlice(0, height, 1), *last.indices[1:]), joint=())
    view, beyond = view_of_rows([*outer, others])
    indices = operands[listed.position]
    lists: tuple[Region, ...] = ()
    if isinstance(indices, Ref):
        indices = read_window(thread, indices, listed.transforms, operands, "copy by", line)
        lists = (indices,)
    rows = np.array(indices, np.int64)
    kept = None if listed.ignored is None else rows != listed.ignored
    used = rows if kept is None else rows[kept]
    if used.size and (used.min() < 0 or used.max() >= height):
        report_edge(thread, ref, how, Outside.of(0, used, last.shape), line)
        inside = (rows >= 0) & (rows < height)
        kept = inside if kept is None else kept & inside
    return _Side(view, rows, kept, lists, beyond=beyond)
