"""What clusters do to global memory that nothing orders with other clusters.

Blocks of different clusters run at any time, and in any order. Unless a kernel has semaphores, two
accesses of different clusters to one element are a race if one of them writes, except if both are
atomic. For every element it is enough to know one access that writes, two clusters that read, and
two that change it atomically: of two, one is another one's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_pallas.findings import Access
from pytest_pallas.simulator.gpu.launches.streams import (
    ElementAccesses,
    KernelAhead,
    LineAccesses,
    same_part,
    same_view,
)
from pytest_pallas.simulator.memory.references import Elements, Region
from pytest_pallas.simulator.monitors.accesses import bounds_of, index_of, root
from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)
class _ArrayShadow:
    """The accesses to an array, element by element: numbers in ``Footprints.accesses``, or 0."""

    array: Array
    written: Array
    read: tuple[Array, Array]
    changed: tuple[Array, Array]


@dataclass(slots=True, eq=False)
class _Reads:
    """Which lines read an array that the kernel does not write.

    Attributes:
      array: that owns the memory.
      spans: an access of each line, and where the bytes begin and end that it read.
    """

    array: Array
    spans: dict[str, tuple[Access, int, int]] = field(default_factory=dict)

    def note(self, thread: Thread, region: Region, name: str, line: str) -> None:
        """A line reads a region."""
        base = self.array.__array_interface__["data"][0]
        low, high = (at - base for at in bounds_of(region))
        before = self.spans.get(line)
        if before is None:
            access = Access(
                kind="read",
                ref=name,
                owner=thread.owner,
                index=index_of(region),
                line=line,
                program=thread.program,
            )
            before = (access, low, high)
        self.spans[line] = (before[0], min(before[1], low), max(before[2], high))


@dataclass(eq=False)
class Footprints:
    """The accesses of the clusters of one launch.

    Attributes:
      seed: of the run.
      cluster: number of the cluster that runs.
      accesses: by number; there is no number 0.
      shadows: of the arrays that the kernel writes, by identity.
      reads: of the other arrays, by identity: which line read which bytes, from the first to the
        last.
      concurrent: whether clusters run at the same time, and the monitor of order compares them.
    """

    seed: int = 0
    cluster: int = 0
    accesses: list[Access | None] = field(default_factory=lambda: [None])
    shadows: dict[int, _ArrayShadow] = field(default_factory=dict)
    reads: dict[int, _Reads] = field(default_factory=dict)
    concurrent: bool = False
    _clusters: Array = field(default_factory=lambda: np.zeros(256, np.int32))

    def watch(self, array: Array) -> None:
        """Note the accesses to an array from here on."""
        whole = root(array)

        def none() -> Array:
            return np.zeros(whole.shape, np.int32)

        self.shadows[id(whole)] = _ArrayShadow(whole, none(), (none(), none()), (none(), none()))

    def watch_reads(self, array: Array) -> None:
        """Note which lines read an array that the kernel does not write."""
        whole = root(array)
        self.reads[id(whole)] = _Reads(whole)

    def note(
        self, thread: Thread, region: Region, name: str, line: str, *, writes: bool, adds: bool
    ) -> None:
        """Note an access of the cluster that runs; see ``machine.Beside``."""
        whole = root(region)
        shadow = self.shadows.get(id(whole))
        if shadow is None:
            reads = self.reads.get(id(whole))
            if reads is not None and not writes:
                reads.note(thread, region, name, line)
            return
        access = Access(
            kind="write" if writes else "read",
            ref=name,
            owner=thread.owner,
            index=index_of(region),
            line=line,
            program=thread.program,
        )
        number = len(self.accesses)
        self.accesses.append(access)
        if number == len(self._clusters):
            self._clusters = np.concatenate([self._clusters, np.zeros_like(self._clusters)])
        self._clusters[number] = self.cluster
        others = [shadow.written]
        others += shadow.read if writes or adds else ()
        others += shadow.changed if not adds else ()
        for each in () if self.concurrent else others:
            part = same_part(each, region, whole)
            theirs = part[(part > 0) & (self._clusters[part] != self.cluster)]
            if theirs.size:
                self._report(thread, access, int(theirs.flat[0]))
        kept = (shadow.written,) if writes and not adds else shadow.changed if adds else shadow.read
        _keep(kept, region, whole, number, self._clusters, self.cluster)

    def ahead(self, name: str) -> KernelAhead:
        """What the kernel that ran did, for those that begin before it has ended."""
        found = KernelAhead(name)

        def access(number: int) -> Access:
            given = self.accesses[number]
            assert given is not None
            return given

        for shadow in self.shadows.values():
            for numbers, writes, adds in (
                (shadow.written, True, False),
                (shadow.changed[0], True, True),
                (shadow.read[0], False, False),
            ):
                if numbers.any():
                    found.traces.append(
                        (shadow.array, ElementAccesses(numbers, access, writes, adds))
                    )
        for reads in self.reads.values():
            if reads.spans:
                found.traces.append((reads.array, LineAccesses(list(reads.spans.values()))))
        return found

    def _report(self, thread: Thread, access: Access, other: int) -> None:
        earlier = self.accesses[other]
        assert earlier is not None
        name = access.ref or "memory"
        thread.report(
            "race",
            f"race on {name}: nothing orders two accesses of different blocks",
            access.line,
            ref=access.ref,
            accesses=(access, earlier),
            seed=self.seed,
        )


def _keep(
    kept: tuple[Array, ...],
    region: Region,
    whole: Array,
    number: int,
    clusters: Array,
    cluster: int,
) -> None:
    """Remember an access; of two places, the second one keeps what is another cluster's."""
    inside = region.memory if isinstance(region, Elements) else region
    key: Any = (*region.key, ...) if isinstance(region, Elements) else ...
    first = same_view(kept[0], inside, whole)
    if len(kept) > 1:
        second = same_view(kept[1], inside, whole)
        before = first[key]
        theirs = (before > 0) & (clusters[before] != cluster)
        second[key] = np.where(theirs, before, second[key])
    first[key] = number
