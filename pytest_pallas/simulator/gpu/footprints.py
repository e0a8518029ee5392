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

from pytest_pallas.findings import Access, Finding
from pytest_pallas.simulator.accesses import index_of, root
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.memory import Elements, Region

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False)
class _Shadow:
    """The accesses to an array, element by element: numbers in ``Footprints.accesses``, or 0."""

    written: Array
    read: tuple[Array, Array]
    changed: tuple[Array, Array]


@dataclass(eq=False)
class Footprints:
    """The accesses of the clusters of one launch.

    Attributes:
      seed: of the run.
      cluster: number of the cluster that runs.
      accesses: by number; there is no number 0.
      shadows: of the arrays that the kernel writes, by identity.
    """

    seed: int = 0
    cluster: int = 0
    accesses: list[Access | None] = field(default_factory=lambda: [None])
    shadows: dict[int, _Shadow] = field(default_factory=dict)
    _clusters: Array = field(default_factory=lambda: np.zeros(256, np.int32))

    def watch(self, array: Array) -> None:
        """Note the accesses to an array from here on."""
        whole = root(array)

        def none() -> Array:
            return np.zeros(whole.shape, np.int32)

        self.shadows[id(whole)] = _Shadow(none(), (none(), none()), (none(), none()))

    def note(
        self, thread: Thread, region: Region, name: str, line: str, *, writes: bool, adds: bool
    ) -> None:
        """Note an access of the cluster that runs; see ``machine.Beside``."""
        whole = root(region)
        shadow = self.shadows.get(id(whole))
        if shadow is None:
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
        for each in others:
            part = _same_part(each, region, whole)
            theirs = part[(part > 0) & (self._clusters[part] != self.cluster)]
            if theirs.size:
                self._report(thread, access, int(theirs.flat[0]))
        kept = (shadow.written,) if writes and not adds else shadow.changed if adds else shadow.read
        _keep(kept, region, whole, number, self._clusters, self.cluster)

    def _report(self, thread: Thread, access: Access, other: int) -> None:
        earlier = self.accesses[other]
        assert earlier is not None
        thread.machine.report(
            Finding(
                kind="race",
                message=(
                    f"race on {access.ref or 'memory'}: nothing orders two accesses of different "
                    "blocks"
                ),
                kernel=thread.kernel,
                program=thread.program,
                line=access.line,
                ref=access.ref,
                accesses=(access, earlier),
                seed=self.seed,
            )
        )


def _same_part(array: Array, region: Region, whole: Array) -> Array:
    """The elements of a shadow for those of a region of the whole."""
    if isinstance(region, Elements):
        return _same_part(array, region.memory, whole)[(*region.key, ...)]
    return _view(array, region, whole)


def _view(array: Array, region: Array, whole: Array) -> Array:
    base = whole.__array_interface__["data"][0]
    offset = (region.__array_interface__["data"][0] - base) // whole.itemsize
    width = array.itemsize
    steps = [stride // whole.itemsize * width for stride in region.strides]
    flat = array.reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(flat, region.shape, steps)


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
    first = _view(kept[0], inside, whole)
    if len(kept) > 1:
        second = _view(kept[1], inside, whole)
        before = first[key]
        theirs = (before > 0) & (clusters[before] != cluster)
        second[key] = np.where(theirs, before, second[key])
    first[key] = number
