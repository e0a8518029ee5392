"""Accesses to memory: what is recorded of them, and what is reported where they are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pytest_pallas.sim_errors import BoundsError
from pytest_pallas.simulator.concurrency.recording import Touched
from pytest_pallas.simulator.memory.indexing import Outside
from pytest_pallas.simulator.memory.references import Ref, Region
from pytest_pallas.simulator.memory.windows import read, region_of
from pytest_pallas.transforms import Transform

if TYPE_CHECKING:
    from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]

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
    """As ``record_access``, of the window of a reference.

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
    """As ``read``, of a window that must be inside of its reference.

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
    finding = thread.report("bounds", message, line, **facts)
    error = BoundsError(str(finding))
    error.finding = finding
    return error


def report_input_write(thread: Thread, ref: Ref, line: str) -> None:
    """Report a write to the window of an input; of any other reference, do nothing."""
    if not ref.input:
        return
    message = (
        f"store to the window of the input {ref.name}, which is not aliased to an output: "
        "what the next program or the caller reads there depends on the chip"
    )
    thread.report("input-write", message, line, ref=ref.name, shape=tuple(ref.shape))
