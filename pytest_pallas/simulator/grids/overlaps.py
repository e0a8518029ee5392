"""The monitor of shared blocks: which are fetched for a program after another overwrote them.

An input that shares the memory of an output is fetched block by block, and the output is written
back so. If a block is fetched for a program that comes after one that wrote it back, a chip reads
the old contents or the new ones, as far as it fetches ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.findings import Access, Finding
from pytest_pallas.simulator.grids.kernels import BlockWindow, PreparedKernel

if TYPE_CHECKING:
    from pytest_pallas.simulator.grids.blocks import CoreRun

Array = np.ndarray[Any, Any]

#: Where a block is in its array.
Box = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A block that is read after it was overwritten.

    Attributes:
      box: the elements that were written and are read.
      writer: the step that overwrote them, in the order in which a core runs its programs.
      reader: the step that they are fetched for.
    """

    box: Box
    writer: int
    reader: int


@dataclass(eq=False)
class Overlaps:
    """What a core fetched from memory that it also writes back to, element by element.

    Attributes:
      shape: of the memory.
      first: the first overlap, or None.
    """

    shape: tuple[int, ...]
    first: Overlap | None = None
    _fetched: Array = field(init=False)
    _stored: Array = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is fetched or stored yet."""
        self._fetched = np.full(self.shape, -1, np.int64)
        self._stored = np.full(self.shape, -1, np.int64)

    def fetch(self, box: Sequence[slice], step: int) -> None:
        """A block is fetched for a step."""
        part = self._stored[tuple(box)]
        self._note(box, (part >= 0) & (part < step), part, writer=None, reader=step)
        self._fetched[tuple(box)] = step

    def store(self, box: Sequence[slice], step: int) -> None:
        """A block is written back by a step. Blocks of later ones may have been fetched."""
        part = self._fetched[tuple(box)]
        self._note(box, part > step, part, writer=step, reader=None)
        self._stored[tuple(box)] = step

    def _note(
        self,
        box: Sequence[slice],
        wrong: Array,
        steps: Array,
        writer: int | None,
        reader: int | None,
    ) -> None:
        """Keep the first overlap; the writer or the reader, whichever is None, is in ``steps``."""
        if self.first is not None or not wrong.any():
            return
        where = np.argwhere(wrong)
        low, high = where.min(axis=0), where.max(axis=0) + 1
        inside = tuple(
            slice(each.start + int(a), each.start + int(b))
            for each, a, b in zip(box, low, high, strict=True)
        )
        other = int(steps[tuple(where[0])])
        self.first = Overlap(
            inside,
            other if writer is None else writer,
            other if reader is None else reader,
        )


def _shared_windows(kernel: PreparedKernel) -> Iterator[tuple[BlockWindow, BlockWindow]]:
    """The inputs that are fetched, and the outputs that are written back to the same memory."""
    outputs = [window for window in kernel.windows if window.output]
    for position, number in kernel.facts.aliases:
        source, target = kernel.windows[position], outputs[number]
        if not (source.in_place or target.in_place):
            yield source, target


def watch_shared_blocks(this: CoreRun) -> None:
    """Begin to note the accesses to memory that an input shares with an output."""
    for source, target in _shared_windows(this.kernel):
        fetched, stored = this.buffers[source.number], this.buffers[target.number]
        fetched.overlaps = stored.overlaps = Overlaps(fetched.array.shape)


def report_overwritten(this: CoreRun) -> None:
    """Report blocks that were fetched for a program after another had overwritten them."""
    kernel, thread = this.kernel, this.thread
    for source, target in _shared_windows(kernel):
        overlaps = this.buffers[source.number].overlaps
        if overlaps is None or overlaps.first is None:
            continue
        found = overlaps.first
        box = tuple((each.start, each.stop) for each in found.box)
        common: dict[str, Any] = {"owner": thread.owner, "index": box}
        writer, reader = this.points[found.writer], this.points[found.reader]
        thread.machine.report(
            Finding(
                kind="overwritten",
                message=(
                    f"a block of the input {source.facts.name} is fetched for a program after "
                    f"another one overwrote it through {target.facts.name}, which shares its "
                    "memory: a chip reads the old contents or the new ones, as far as it fetches "
                    "ahead"
                ),
                kernel=kernel.name,
                program=reader,
                line=kernel.line,
                ref=source.facts.name,
                shape=tuple(overlaps.shape),
                accesses=(
                    Access(kind="write", ref=target.facts.name, program=writer, **common),
                    Access(kind="read", ref=source.facts.name, program=reader, **common),
                ),
            )
        )
