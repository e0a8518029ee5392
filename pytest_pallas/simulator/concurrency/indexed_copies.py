"""Copies to or from rows that a list of indices names: the gathers and scatters of SparseCores.

The list is in memory, which the copy reads while it is under way, or in a register. Rows whose
index is to be ignored are not copied, and are counted: who waits, waits for all rows. A copy that
adds does so element by element and atomically, as often as a row is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import bit_width
from pytest_pallas.simulator.concurrency.transfer_operands import CopyParts
from pytest_pallas.simulator.concurrency.transfers import Copy
from pytest_pallas.simulator.memory.accesses import beyond_edge
from pytest_pallas.simulator.memory.bitcasts import packed_axis, whole_rows
from pytest_pallas.simulator.memory.indexing import Outside
from pytest_pallas.simulator.memory.references import Elements, Ref, Region
from pytest_pallas.simulator.memory.reshaping import bitcast_rows
from pytest_pallas.simulator.memory.windows import read
from pytest_pallas.simulator.thread import Thread
from pytest_pallas.transforms import AxisSlice, Indexed, Listed, Operand, RefPart, Transform

Array = np.ndarray[Any, Any]


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
        """Some rows of memory."""
        if self.packed > 1:
            rows = (rows[:, None] * self.packed + np.arange(self.packed)).ravel()
        return Elements(self.memory, (rows,))

    def read(self, rows: Array) -> Array:
        """The values of some rows."""
        found = self.memory[self.elements(rows).key]
        return found if self.cast is None else bitcast_rows(found, self.cast)

    def write(self, rows: Array, values: Array) -> None:
        """Change some rows."""
        if self.cast is not None:
            values = bitcast_rows(np.asarray(values), self.memory.dtype)
        self.memory[self.elements(rows).key] = values


def is_indexed(parts: CopyParts, avals: Sequence[Any]) -> bool:
    """Whether a list of indices names rows of one side of a copy.

    Args:
      parts: of the copy.
      avals: abstract values of its operands.
    """
    return any(_list(place, avals) is not None for place in (parts.source, parts.target))


def _list(place: RefPart, avals: Sequence[Any]) -> Listed | None:
    last = place.transforms[-1] if place.transforms else None
    if not isinstance(last, Indexed):
        return None
    first, *rest = last.indices
    if not all(isinstance(each, AxisSlice) for each in rest):
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
    """A copy that is not started, and whose semaphores are still to be named.

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
    place: RefPart,
    avals: Sequence[Any],
    operands: Sequence[Any],
    how: str,
    line: str,
) -> _Side:
    ref: Ref = operands[place.position]
    listed = _list(place, avals)
    try:
        if listed is None:
            return _Side(*_rows(ref.data, place.transforms, operands))
        *outer, last = place.transforms
        assert isinstance(last, Indexed)
        height = last.shape[0]
        others = replace(last, indices=(AxisSlice(0, height, 1), *last.indices[1:]), joint=())
        memory, cast, packed = _rows(ref.data, [*outer, others], operands)
        given = operands[listed.position]
        lists: tuple[Region, ...] = ()
        if isinstance(given, Ref):
            given = read(given.data, listed.transforms, operands)
            lists = (given,)
        rows = np.array(given, np.int64)
        kept = None if listed.ignored is None else rows != listed.ignored
        used = rows if kept is None else rows[kept]
        if used.size and (used.min() < 0 or used.max() >= height):
            raise Outside.of(0, used, last.shape)
        return _Side(memory, cast, packed, rows, kept, lists)
    except Outside as outside:
        raise beyond_edge(thread, ref, how, outside, line) from None


def _rows(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Array, Any, int]:
    """A window as a view of memory, the dtype as which it is accessed, and rows for one of it."""
    found = whole_rows(array, transforms, operands)
    if found is None:
        return read(array, transforms, operands), None, 1
    memory, dtype = found
    packed = bit_width(dtype) // bit_width(memory.dtype) if packed_axis(memory) == 0 else 1
    return memory, dtype, packed
