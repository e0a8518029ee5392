"""Accesses beyond the edges of memory: report them, and go on as a chip does.

A chip does not stop at such an access. So a load gives what uninitialized memory holds in place of
the elements that are not there, and a store or a copy leaves these out. The finding says whether
the value of a load reaches anything (``evaluation.run`` follows it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.errors import BoundsError
from pallas_sim.findings import Finding
from pallas_sim.machine import Thread
from pallas_sim.memory import Elements, Outside, Ref, grid_of
from pallas_sim.transforms import AxisSlice, Indexed, Operand, Transform
from pallas_sim.views import MemoryView, whole_view
from pallas_sim.windows import applied, elements_of, indexed_view, masked, read, write

#: Bytes of which other contents of memory consist, where a load may give anything.
_OTHERS = (0x00, 0x7F, 0xFF, 0x3C)


class UndefinedLoadError(Exception):
    """A load gave elements that are not there; never leaves the simulator.

    Attributes:
      values: what it gives.
      others: what it may give as well, with other contents in place of the missing elements.
      finding: says what it is beyond of.
    """

    def __init__(self, values: Any, others: Sequence[Any], finding: Finding) -> None:
        """Keep what the load gives."""
        super().__init__()
        self.values, self.others, self.finding = values, tuple(others), finding


def report_edge(thread: Thread, ref: Ref, access: str, outside: Outside, line: str) -> None:
    """Report an access beyond an edge of a reference, after which the run goes on.

    Args:
      thread: that accesses it.
      ref: the reference.
      access: ``"load from"``, ``"store to"`` or the like, for the message.
      outside: which index.
      line: ``file:line``.
    """
    report(thread, edge_finding(thread, ref, access, outside, line))


def report(thread: Thread, finding: Finding) -> None:
    """Report an access beyond an edge, for which a run fails at its end; see ``Limits``."""
    thread.machine.beyond = True
    thread.machine.report(finding)


def end_at_edge(thread: Thread, finding: Finding) -> BoundsError:
    """Report an access behind which nothing can be simulated; return the error that ends the run.

    A chip accesses other memory, or traps: barriers, tensor memory, and code that is inlined.
    """
    report(thread, finding)
    return BoundsError.of(finding)


def edge_finding(thread: Thread, ref: Ref, access: str, outside: Outside, line: str) -> Finding:
    """Return what ``report_edge`` reports."""
    first, last, axis = outside.first, outside.last, outside.axis
    index = f"index {first}" if first == last else f"indices {first} to {last}"
    view = "" if outside.shape == ref.shape else f" of its view {list(outside.shape)}"
    message = (
        f"{access} {ref.name or 'a reference'} {list(ref.shape)} beyond its edge: "
        f"{index} of axis {axis}{view}, which has {outside.shape[axis]} elements"
    )
    facts: dict[str, Any] = {"ref": ref.name, "index": (first, last), "shape": tuple(ref.shape)}
    return thread.finding("bounds", message, line, **facts)


@contextmanager
def reporting_edges(thread: Thread, ref: Ref, access: str, line: str) -> Generator[None]:
    """Report an index in this context that is beyond an edge, and leave the rest of it out."""
    try:
        yield
    except Outside as outside:
        report_edge(thread, ref, access, outside, line)


# Windows of which some elements are not there.

#: Gives contents of memory of a shape and dtype that nobody has written.
Contents = Callable[[tuple[int, ...], Any], Array]


@dataclass(frozen=True, slots=True)
class _Edge:
    """The first transform of a window whose index is beyond an edge.

    Attributes:
      before: the transforms before it.
      after: those that follow.
      memory: what they lead to: a view of the memory, or a copy.
      axes: the index of every element along each axis of ``memory``.
      inside: which elements are there.
    """

    before: tuple[Transform, ...]
    after: tuple[Transform, ...]
    memory: Array
    axes: tuple[Array, ...]
    inside: Array

    @property
    def key(self) -> tuple[Array, ...]:
        """The index of the elements that are there."""
        return tuple(axis[self.inside] for axis in self.axes)

    def elements(self, contents: Contents) -> Array:
        """Return the elements that the transform gives."""
        values = contents(self.inside.shape, self.memory.dtype)
        values[self.inside] = self.memory[self.key]
        return values


def contents_of(thread: Thread) -> Contents:
    """Return what gives elements that are not there: what uninitialized memory holds."""

    def contents(shape: tuple[int, ...], dtype: Any) -> Array:
        if np.dtype(dtype).hasobject:  # semaphores: none
            return np.full(shape, None, object)
        return thread.machine.uninitialized(shape, dtype, "padding")

    return contents


def _contents_of_bytes(byte: int) -> Contents:
    def contents(shape: tuple[int, ...], dtype: Any) -> Array:
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            return np.full(shape, None, object)
        if dtype.kind == "b":
            return np.full(shape, bool(byte & 1))
        return np.full(math.prod(shape) * dtype.itemsize, byte, np.uint8).view(dtype).reshape(shape)

    return contents


def read_inside(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any], contents: Contents
) -> Array:
    """Read a window as ``windows.read`` does, with ``contents`` for what is not there: a copy."""
    try:
        return read(array, transforms, operands)
    except Outside:
        edge = _edge_of(array, transforms, operands)
    return read_inside(edge.elements(contents), edge.after, operands, contents)


def write_inside(
    array: Array,
    transforms: Sequence[Transform],
    operands: Sequence[Any],
    change: Callable[[Array], Any],
    contents: Contents,
) -> None:
    """Replace the elements of a window that are there, as ``windows.write`` does."""
    try:
        write(array, transforms, operands, change)
    except Outside:
        edge = _edge_of(array, transforms, operands)
    else:
        return
    part = edge.elements(contents)
    write_inside(part, edge.after, operands, change, contents)
    memory = edge.memory
    if np.may_share_memory(memory, array):
        memory[edge.key] = part[edge.inside]
        return
    memory = np.array(memory)
    memory[edge.key] = part[edge.inside]
    write(array, edge.before, operands, lambda _: memory)


def region_inside(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> Elements:
    """Return the elements of a window that are there, or the parts of them that are."""

    def apply(numbers: Array, transform: Transform, operands: Sequence[Any]) -> Array:
        return read_inside(numbers, (transform,), operands, lambda shape, _: np.full(shape, -1))

    return elements_of(array, transforms, operands, apply)


def _edge_of(array: Array, transforms: Sequence[Transform], operands: Sequence[Any]) -> _Edge:
    """Find the first transform of a window that is beyond an edge."""
    memory = array
    for number, transform in enumerate(transforms):
        try:
            memory = applied(memory, transform, operands)
        except Outside:
            assert isinstance(transform, Indexed)
            values = [o.data if isinstance(o, Ref) else o for o in operands]
            axes = tuple(grid_of(transform, values, _shape_of(transform, values)))
            inside = np.ones(np.shape(axes[0]), bool)
            for axis, dim in zip(axes, memory.shape, strict=True):
                inside &= (axis >= 0) & (axis < dim)
            before, after = tuple(transforms[:number]), tuple(transforms[number + 1 :])
            return _Edge(before, after, memory, axes, inside)
    raise ValueError("no index of the window is beyond an edge")


def _shape_of(indexed: Indexed, operands: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of a window, which may be beyond an edge; as numpy has it."""

    def size(value: Any) -> int:
        return max(int(operands[value.position]) if isinstance(value, Operand) else value, 0)

    spans = [n for n, index in enumerate(indexed.indices) if isinstance(index, AxisSlice)]
    others = [n for n in range(len(indexed.indices)) if n not in spans]
    sizes = [size(index.size) for index in indexed.indices if isinstance(index, AxisSlice)]
    joint = [size(value) for value in indexed.joint]
    adjacent = not others or others == list(range(others[0], others[-1] + 1))
    first = sum(1 for n in spans if others and n < others[0]) if adjacent else 0
    return (*sizes[:first], *joint, *sizes[first:])


@dataclass(frozen=True, slots=True)
class MaskedWindow:
    """The memory of a masked access.

    Attributes:
      view: of the memory.
      key: the index of each element, moved into the view.
      chosen: which elements the mask leaves in, and are there.
      finding: of elements that the mask leaves in, and that are not there; or None.
    """

    view: MemoryView
    key: tuple[Array, ...]
    chosen: Array
    finding: Finding | None = None


def masked_window(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
    mask: Any,
    access: str,
    line: str,
) -> MaskedWindow:
    """Return the memory of a masked access; what is not there is left out, and not reported yet.

    Args:
      thread: that accesses it.
      ref: the reference.
      window: of the reference.
      operands: of the equation.
      shape: of the window.
      mask: False for elements that are not accessed.
      access: see ``report_edge``.
      line: ``file:line``.
    """
    chosen = np.broadcast_to(mask, shape)
    try:
        return MaskedWindow(*masked(ref.data, window, operands, shape, mask), chosen)
    except Outside as outside:
        finding = edge_finding(thread, ref, access, outside, line)
    try:
        view, last = indexed_view(ref.data, window, operands, shape)
    except Outside:  # an index before the last one
        last = window[-1]
        assert isinstance(last, Indexed)
        view = whole_view(read_inside(ref.data, window[:-1], operands, contents_of(thread)))
    key: list[Array] = []
    for axis, dim in zip(grid_of(last, operands, shape), view.shape, strict=True):
        chosen = chosen & (axis >= 0) & (axis < dim)
        key.append(np.clip(axis, 0, max(dim - 1, 0)))
    return MaskedWindow(view, tuple(key), chosen, finding)


def undefined_load(
    thread: Thread,
    ref: Ref,
    transforms: Sequence[Transform],
    operands: Sequence[Any],
    outside: Outside,
    line: str,
) -> UndefinedLoadError:
    """Return what a load gives that is beyond an edge, and what else it might give."""

    def load(contents: Contents) -> Any:
        return read_inside(ref.data, transforms, operands, contents)

    return undefined(thread, load, edge_finding(thread, ref, "load from", outside, line))


def undefined(
    thread: Thread, load: Callable[[Contents], Any], finding: Finding
) -> UndefinedLoadError:
    """Return what a load gives for each contents of memory that is not there.

    Args:
      thread: that loads.
      load: gives the values, for such contents.
      finding: says what the load is beyond of.
    """

    def values(contents: Contents) -> Any:
        part = load(contents)
        return np.array(part) if np.ndim(part) else part[()]

    others = [values(_contents_of_bytes(byte)) for byte in _OTHERS]
    return UndefinedLoadError(values(contents_of(thread)), others, finding)
