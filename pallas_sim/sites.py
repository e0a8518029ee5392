"""Sites of synchronisation: the operations of a kernel by which threads and copies wait.

A site is an operation where it stands in the source, with the callers of the function that it is
in: a barrier of a helper has a site wherever it is called. ``SiteLog`` leaves out the operations of
some sites, and notes what the others did. ``redundancy`` asks with it which ones are needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.compat.source import places_in_kernel, waits_for_source
from pallas_sim.dtypes import Array
from pallas_sim.findings import Owner, short
from pallas_sim.recording import Event, ReachedDevice, Semaphore, Signalled, Started, Waited
from pallas_sim.registry import Equation

#: What each operation is, by the name of its primitive.
SYNCHRONIZING: Mapping[str, str] = {
    "semaphore_signal": "signal",
    "semaphore_signal_parallel": "signal",
    "semaphore_signal_multicast": "signal",
    "semaphore_wait": "wait",
    "dma_wait": "copy wait",
    "barrier": "subcore barrier",
    "barrier_arrive": "arrival",
    "barrier_wait": "barrier wait",
    "barrier_arrive_and_wait": "barrier",
    "tcgen05_commit_arrive": "commit",
    "commit_group": "commit",
    "commit_smem": "fence",
    "commit_tmem": "store wait",
    "wait_load_tmem": "load wait",
    "wait_smem_to_gmem": "copy wait",
    "wait_gmem_to_smem": "copy wait",
    "wgmma_wait": "product wait",
    "griddepcontrol_wait": "kernel wait",
}

#: What it is if the compiler adds it: all devices wait for each other at the entry of a kernel.
ENTRY = "entry barrier"

#: Sites that arrive at a barrier of a GPU.
_ARRIVALS = frozenset({"arrival", "barrier", "commit"})

#: Events that a thread adds to the record where it signals or waits on a semaphore.
_ON_SEMAPHORES = (Signalled, Waited, ReachedDevice)


@dataclass(frozen=True, kw_only=True, order=True)
class SyncSite:
    """Where a kernel synchronises.

    Attributes:
      line: ``file:line``; of what the compiler adds, the name of the kernel.
      column: in the line, from 0.
      what: it is: a value of ``SYNCHRONIZING``, ``"send wait"`` (for the source of a copy), or
        ``"entry barrier"``.
      callers: ``file:line`` of the calls inside the kernel that lead there, the innermost first.
    """

    line: str
    column: int = 0
    what: str
    callers: tuple[str, ...] = ()

    def __str__(self) -> str:
        """``wait at kernel.py:41, called at kernel.py:80``."""
        at = "of" if self.what == ENTRY else "at"
        called = f", called at {short(self.callers[0])}" if self.callers else ""
        return f"{self.what} {at} {short(self.line)}{called}"


def site_of(equation: Equation) -> SyncSite | None:
    """Return the site of an equation; None if it is none, or JAX made it on its own."""
    what = SYNCHRONIZING.get(equation.name)
    if what is None or equation.origin is None or equation.of_jax:
        return None
    places = places_in_kernel(equation.origin)
    if not places:  # of JAX's own, as in ``sync_copy``
        return None
    if equation.name == "dma_wait" and waits_for_source(equation.origin):
        what = "send wait"
    *outer, inner = places
    callers = tuple(str(spot.at) for spot in reversed(outer))
    return SyncSite(line=equation.line, column=inner.column, what=what, callers=callers)


@dataclass(eq=False)
class SiteLog:
    """What the sites of a run did; it leaves out the operations of some.

    Attributes:
      without: the sites that are left out.
      records: whether it keeps the events of the run, for other proofs.
      count: how often each of the others was there.
      names: of the semaphores or barriers that each was on.
      of_event: the site of each event on a semaphore.
      proved: the events of the run that were proved together, with the owners of their threads by
        number, and which elements of outputs reach something.
    """

    without: frozenset[SyncSite] = frozenset()
    records: bool = False
    count: Counter[SyncSite] = field(default_factory=Counter[SyncSite])
    names: dict[SyncSite, dict[str, None]] = field(default_factory=dict[SyncSite, dict[str, None]])
    of_event: dict[Event, SyncSite] = field(default_factory=dict[Event, SyncSite])
    proved: list[tuple[Sequence[Event], Sequence[Owner], Mapping[int, Array]]] = field(
        default_factory=list[Any]
    )

    def enter(self, site: SyncSite, name: str) -> bool:
        """Note that a thread is at a site; return whether the site is left out."""
        if site in self.without:
            return True
        self.count[site] += 1
        self.names.setdefault(site, {})[name] = None
        return False

    def evaluate(
        self, site: SyncSite, act: Callable[..., Any], thread: Any, operands: Sequence[Any]
    ) -> Any:
        """Evaluate an operation unless its site is left out, and note its events."""
        if self.enter(site, getattr(operands[0], "name", "") if operands else ""):
            return ()
        if not self.records:
            return act(thread, *operands)
        events = thread.recording.events
        before = len(events)
        result = act(thread, *operands)
        for event in events[before:]:
            # Others may have gone on meanwhile.
            if isinstance(event, _ON_SEMAPHORES) and event.thread == thread.number:
                self.of_event[event] = site
        return result

    def events(self) -> Iterator[Event]:
        """Yield the events that were proved."""
        for events, _, _ in self.proved:
            yield from events


# Which sites belong together.


class JoinedSites:
    """Disjoint sets of sites."""

    def __init__(self, sites: Collection[SyncSite]) -> None:
        """Begin with a set for each site."""
        self.above = {site: site for site in sites}

    def root(self, site: SyncSite) -> SyncSite:
        """Return the site that stands for the set of another one."""
        while self.above[site] is not site:
            site = self.above[site] = self.above[self.above[site]]
        return site

    def join(self, *sites: SyncSite) -> None:
        """Make one set of those of some sites."""
        for site in sites[1:]:
            self.above[self.root(site)] = self.root(sites[0])

    def groups(self) -> list[tuple[SyncSite, ...]]:
        """Return the sets, in the order of their first sites."""
        groups: dict[SyncSite, list[SyncSite]] = {}
        for site in self.above:
            groups.setdefault(self.root(site), []).append(site)
        return list(map(tuple, groups.values()))


def groups_of(log: SiteLog) -> list[tuple[SyncSite, ...]]:
    """Return the sites that belong together, in the order in which the run came to them."""
    joined = JoinedSites(list(log.count))
    for signal, wait in _takings(log):
        joined.join(signal, wait)
    of_barrier: dict[str, list[SyncSite]] = defaultdict(list)
    for site in log.count:
        if site.what in (*_ARRIVALS, "barrier wait"):
            for name in filter(None, log.names[site]):
                of_barrier[name].append(site)
    for sites in of_barrier.values():
        if any(site.what in _ARRIVALS for site in sites):
            joined.join(*sites)
    return joined.groups()


def _takings(log: SiteLog) -> set[tuple[SyncSite, SyncSite]]:
    """Return which wait takes what which signal gave: both sites.

    A barrier that is met twice has signals of both times on one semaphore, and a fast thread may
    signal for the second time before a slow one does for the first. So what is taken is not what
    came first in the run, but what depends on the fewest waits one after the other.
    """
    depth: Counter[int] = Counter()
    coming: dict[Semaphore, deque[list[int]]] = defaultdict(deque)
    increments: dict[Semaphore, list[tuple[int, int, SyncSite | None, int]]] = defaultdict(list)
    waits: dict[Semaphore, list[Waited]] = defaultdict(list)
    for order, event in enumerate(log.events()):
        if isinstance(event, Signalled | Started):
            if isinstance(event, Signalled):
                semaphores, amount = (event.semaphore,), event.amount
            else:
                semaphores, amount = event.copy.semaphores, event.copy.size
            for semaphore in semaphores:
                entry = (depth[event.thread], order, log.of_event.get(event), amount)
                increments[semaphore].append(entry)
                coming[semaphore].append([depth[event.thread], amount])
        elif isinstance(event, Waited):
            waits[event.semaphore].append(event)
            before = _take(coming[event.semaphore], event.amount) if event.takes else 0
            depth[event.thread] = max(depth[event.thread], before) + 1
    pairs: set[tuple[SyncSite, SyncSite]] = set()
    for semaphore, events in waits.items():
        first = sorted(increments[semaphore], key=_depth_and_order)
        units: deque[list[Any]] = deque([site, amount] for _, _, site, amount in first)
        for event in events:
            wait = log.of_event.get(event)
            sites = [site for site, _ in units]
            if event.takes:
                sites = list(_taken(units, event.amount))
            if wait is not None:
                pairs.update((site, wait) for site in sites if site is not None)
    return pairs


def _depth_and_order(entry: tuple[int, int, Any, int]) -> tuple[int, int]:
    return entry[:2]


def _take(units: deque[list[int]], amount: int) -> int:
    """Take an amount from the first units, and return the largest depth of them."""
    return max(_taken(units, amount), default=0)


def _taken(units: deque[list[Any]], amount: int) -> Iterator[Any]:
    """Take an amount from the first of pairs of something and an amount, and yield what it was."""
    while amount > 0 and units:
        part = min(amount, units[0][1])
        yield units[0][0]
        amount -= part
        units[0][1] -= part
        if units[0][1] <= 0:
            units.popleft()
