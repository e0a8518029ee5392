"""Accesses to memory: what is recorded of them, and what is reported where they are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pallas_sim.bitcasts import packed_axis, whole_rows
from pallas_sim.compat.jaxprs import key_shape, semaphore_kind, space_of
from pallas_sim.compat.places import CopyParts
from pallas_sim.copies import release
from pallas_sim.dtypes import Array, bit_width
from pallas_sim.errors import BoundsError, SimulationError
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Elements, Outside, Ref, Region, is_key_dtype
from pallas_sim.recording import Copy, Semaphore, Touched
from pallas_sim.transforms import AxisSlice, Indexed, Listed, Operand, RefPart, Transform
from pallas_sim.windows import bitcast_rows, read, region_of

#: ``"pass on"``: memory goes from a kernel to its caller. ``"free"``: its life ends.
AccessKind = Literal["read", "write", "add", "pass on", "free"]


def record_access(
    thread: Thread,
    region: Region,
    kind: AccessKind,
    name: str,
    line: str,
    home: int | None = None,
) -> None:
    """Record what a thread does to memory. Two accesses that add are in no race.

    Args:
      thread: that accesses it.
      region: the memory.
      kind: of the access.
      name: of the reference.
      line: ``file:line``, or what stands there.
      home: the device whose memory it is, if not the thread's own.
    """
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
    part: Array,
    window: Sequence[Transform],
    operands: Sequence[Any],
    kind: AccessKind,
    line: str,
    home: int | None = None,
) -> None:
    """Record an access to the window of a reference; see ``record_access``.

    Args:
      thread: that accesses it.
      ref: the reference.
      part: what ``read`` gave for the window.
      window: of the reference.
      operands: of the equation.
      kind: of the access.
      line: ``file:line``.
      home: see ``record_access``.
    """
    region = region_of(part, ref.data, window, operands)
    record_access(thread, region, kind, ref.name, line, home)


def read_window(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    access: str,
    line: str,
) -> Array:
    """Read a window that must be inside of its reference.

    Args:
      thread: that accesses it.
      ref: the reference.
      window: of the reference.
      operands: of the equation.
      access: ``"load from"``, ``"store to"`` or the like, for the message.
      line: ``file:line``.

    Raises:
      BoundsError: the window reaches beyond an edge.
    """
    try:
        return read(ref.data, window, operands)
    except Outside as outside:
        raise beyond_edge(thread, ref, access, outside, line) from None


@contextmanager
def inside_edges(thread: Thread, ref: Ref, access: str, line: str) -> Generator[None]:
    """Report an index in this context that is beyond an edge of a reference; see ``beyond_edge``.

    Raises:
      BoundsError: there is one.
    """
    try:
        yield
    except Outside as outside:
        raise beyond_edge(thread, ref, access, outside, line) from None


def load_window(
    thread: Thread, ref: Ref, window: Sequence[Transform], operands: Sequence[Any], line: str
) -> Array:
    """Read a window as ``read_window`` does, and record the load where others may reach memory."""
    part = read_window(thread, ref, window, operands, "load from", line)
    if thread.recorded:
        record_window(thread, ref, part, window, operands, "read", line)
    return part


def beyond_edge(thread: Thread, ref: Ref, access: str, outside: Outside, line: str) -> BoundsError:
    """Report an access beyond an edge of a reference, and give the error that ends the run.

    Args:
      thread: that accesses it.
      ref: the reference.
      access: ``"load from"``, ``"store to"`` or the like, for the message.
      outside: which index.
      line: ``file:line``.
    """
    first, last, axis = outside.first, outside.last, outside.axis
    index = f"index {first}" if first == last else f"indices {first} to {last}"
    message = (
        f"{access} {ref.name or 'a reference'} {list(ref.shape)} beyond its edge: "
        f"{index} of axis {axis}, which has {outside.shape[axis]} elements"
    )
    facts: dict[str, Any] = {"ref": ref.name, "index": (first, last), "shape": tuple(ref.shape)}
    return bounds_error(thread, message, line, **facts)


def bounds_error(thread: Thread, message: str, line: str, **facts: Any) -> BoundsError:
    """Report an access beyond an edge, and give the error that ends the run.

    Args:
      thread: that accesses it.
      message: one sentence, with the numbers.
      line: ``file:line``.
      facts: further fields of the finding.
    """
    return BoundsError.of(thread.report("bounds", message, line, **facts))


def report_input_write(thread: Thread, ref: Ref, line: str) -> None:
    """Report a write to the window of an input; of any other reference, do nothing."""
    if not ref.is_input:
        return
    message = (
        f"store to the window of the input {ref.name}, which is not aliased to an output: "
        "what the next program or the caller reads there depends on the chip"
    )
    thread.report("input-write", message, line, ref=ref.name, shape=tuple(ref.shape))


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
    if thread.recorded:
        for ref in refs:
            if ref.data.dtype != object:
                record_access(thread, ref.data, "free", ref.name, line)
        thread.withdraw(refs)
    release(thread, semaphores_of(refs), line)


def made(thread: Thread, aval: Any, name: str) -> Ref:
    """Allocate memory that no other device knows."""
    shape, dtype = tuple(aval.shape), aval.dtype
    return Ref(memory_of(thread.machine, shape, dtype, name, "scratch"), name, space_of(aval))


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
      memory: a view of the memory; rows are along its first axis.
      cast: the dtype as which it is accessed, if its rows are no view of memory.
      packed: how many rows of memory are one row of that dtype.
      rows: the rows that are copied, in order; None for all.
      kept: which rows are not ignored; None for all.
      lists: the memory of the list of indices.
    """

    memory: Array
    cast: Any = None
    packed: int = 1
    rows: Array | None = None
    kept: Array | None = None
    lists: tuple[Region, ...] = ()

    @property
    def height(self) -> int:
        """The number of rows."""
        return self.memory.shape[0] // self.packed

    def elements(self, rows: Array) -> Elements:
        """Return the elements of memory that are some rows."""
        if self.packed > 1:
            rows = (rows[:, None] * self.packed + np.arange(self.packed)).ravel()
        return Elements(self.memory, (rows,))

    def read(self, rows: Array) -> Array:
        """Return the values of some rows."""
        values = self.memory[self.elements(rows).key]
        return values if self.cast is None else bitcast_rows(values, self.cast)

    def write(self, rows: Array, values: Array) -> None:
        """Change some rows."""
        if self.cast is not None:
            values = bitcast_rows(np.asarray(values), self.memory.dtype)
        self.memory[self.elements(rows).key] = values


def is_indexed(parts: CopyParts, avals: Sequence[Any]) -> bool:
    """Return whether a list of indices names rows of one side of a copy.

    Args:
      parts: of the copy.
      avals: abstract values of its operands.
    """
    return any(_list(part, avals) is not None for part in (parts.source, parts.target))


def _list(part: RefPart, avals: Sequence[Any]) -> Listed | None:
    last = part.transforms[-1] if part.transforms else None
    if not isinstance(last, Indexed):
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

    Raises:
      BoundsError: an index or a window is beyond the edge.
    """
    from_: Ref = operands[parts.source.position]
    to: Ref = operands[parts.target.position]
    source = _side(thread, parts.source, avals, operands, "copy from", line)
    target = _side(thread, parts.target, avals, operands, "copy to", line)
    reshaped = target.memory.size and not np.may_share_memory(target.memory, to.data)
    if reshaped or (adds and target.cast is not None):
        raise SimulationError(f"a scatter to {to.name or 'a reference'}, which is reshaped before")
    listed = next(side for side in (source, target) if side.rows is not None)
    assert listed.rows is not None
    count = len(listed.rows)
    kept = np.ones(count, bool)
    for side in (source, target):
        kept = kept if side.kept is None else kept & side.kept
    chosen = np.flatnonzero(kept)
    if thread.machine.seed:  # rows are copied in any order
        chosen = thread.machine.random.permutation(chosen)
    rows_from, rows_to = (
        chosen if side.rows is None else side.rows[chosen] for side in (source, target)
    )
    size = count * source.read(np.zeros(1, np.int64)).nbytes if source.height else 0

    def write(values: Array) -> None:
        if adds:
            np.add.at(target.memory, rows_to, values)
        else:
            target.write(rows_to, values)

    return Copy(
        source=source.elements(rows_from),
        target=target.elements(rows_to),
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
    with inside_edges(thread, ref, how, line):
        if listed is None:
            return _Side(*_rows(ref.data, part.transforms, operands))
        *outer, last = part.transforms
        assert isinstance(last, Indexed)
        height = last.shape[0]
        others = replace(last, indices=(AxisSlice(0, height, 1), *last.indices[1:]), joint=())
        memory, cast, packed = _rows(ref.data, [*outer, others], operands)
        indices = operands[listed.position]
        lists: tuple[Region, ...] = ()
        if isinstance(indices, Ref):
            indices = read(indices.data, listed.transforms, operands)
            lists = (indices,)
        rows = np.array(indices, np.int64)
        kept = None if listed.ignored is None else rows != listed.ignored
        used = rows if kept is None else rows[kept]
        if used.size and (used.min() < 0 or used.max() >= height):
            raise Outside.of(0, used, last.shape)
        return _Side(memory, cast, packed, rows, kept, lists)


def _rows(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Array, Any, int]:
    """Return a window's memory as a view, its dtype, and how many rows of memory are one of it."""
    window = whole_rows(array, transforms, operands)
    if window is None:
        return read(array, transforms, operands), None, 1
    memory, dtype = window
    packed = bit_width(dtype) // bit_width(memory.dtype) if packed_axis(memory) == 0 else 1
    return memory, dtype, packed
