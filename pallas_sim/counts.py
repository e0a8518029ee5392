"""The counts of one run at the points of its kernels: ``Coverage``.

``Coverage.reached`` gives what the run reached, by line, with the ways that its programs have
besides: also those inside of branches that never ran, which the traces have.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, NamedTuple

import numpy as np

from pallas_sim.compat.jaxprs import open_jaxpr
from pallas_sim.conditions import Interval, KernelConditions, line_test, opposite
from pallas_sim.coverage import Kind, Need, Point, Reached, merged
from pallas_sim.points import BRANCH, Around, CopySlots, Site, SlotSite, nested_sites


class _Launch(NamedTuple):
    """A kernel that began: JAX's equation, and the sizes of the grid that its body sees."""

    equation: Any
    sizes: tuple[int, ...]


@dataclass(eq=False)
class _Ring:
    """What a run did with the slots of some memory.

    Attributes:
      line: of the first copy, store or wait.
      slots: how many there are.
      counts: how often a slot was first used, and again: by copies from it, and to it.
      used: the most uses of all slots together, in one run of the kernel.
      sites: the slots that each site used, with the other side of its copies.
      remote: whether another device took part.
    """

    line: str
    slots: int
    counts: dict[bool, list[int]] = field(default_factory=lambda: {False: [0, 0], True: [0, 0]})
    used: int = 0
    sites: dict[tuple[SlotSite, str, str], set[int]] = field(default_factory=dict[Any, Any])
    remote: bool = False


#: How often a mask is partial until it is no longer looked at.
_LOOKS = 8


@dataclass(eq=False)
class Coverage:
    """Counts which ways a run goes inside of kernels."""

    _counts: dict[tuple[Site, str], list[int]] = field(default_factory=dict[Any, Any])
    _rings: dict[tuple[str, str], _Ring] = field(default_factory=dict[Any, Any])
    _turns: dict[tuple[str, str], _Ring] = field(default_factory=dict[Any, Any])
    _of_copies: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _facts: dict[Point, list[int]] = field(default_factory=dict[Any, Any])
    _open: dict[int, list[tuple[dict[Any, int], Any]]] = field(default_factory=dict[Any, Any])
    _kernels: dict[str, dict[int, _Launch]] = field(default_factory=dict[Any, Any])

    def enter(self, kernel: str, equation: Any, sizes: Sequence[int]) -> None:
        """Note that a kernel begins.

        Args:
          kernel: its name.
          equation: JAX's.
          sizes: of the grid that its body sees.
        """
        self._kernels.setdefault(kernel, {})[id(equation)] = _Launch(equation, tuple(sizes))

    def count(self, site: Site, kernel: str, way: int) -> None:
        """Note that a run of a kernel goes a way at a site."""
        counts = self._counts.get((site, kernel))
        if counts is None:
            counts = self._counts[site, kernel] = [0] * len(site.ways)
        counts[way] += 1

    def look(self, site: Site, kernel: str, value: Any) -> None:
        """Note what a mask or a predicate is. Masks are no longer looked at after some."""
        if site.kind == "branch":
            self.count(site, kernel, int(bool(value)))
            return
        counts = self._counts.get((site, kernel))
        if counts is None:
            counts = self._counts[site, kernel] = [0, 0, 0]
        if counts[1] < _LOOKS:
            true = np.count_nonzero(value)
            counts[0 if true == value.size else 1 if true else 2] += 1

    def use(
        self,
        slots: CopySlots,
        kernel: str,
        operands: Sequence[Any],
        until: Any,
        *,
        remote: bool = False,
    ) -> None:
        """Note which slots a copy uses, of its buffers or else of its semaphores.

        Copies to a slot that nothing has waited for fill it together.

        Args:
          slots: of the copy.
          kernel: its name.
          operands: of the equation.
          until: the semaphore or barrier that ends the use, or None.
          remote: whether another device takes part.
        """
        names = [operands[position].name for position in slots.sides]
        if slots.semaphore is not None:
            self._of_copies.add((operands[slots.semaphore.position].name, kernel))
        sites = [site for site in slots.buffers if operands[site.position].uses is not None]
        if not sites and slots.semaphore is not None:
            sites = [slots.semaphore]
        for site in sites:
            ref = operands[site.position]
            uses: dict[Any, Any] | None = ref.uses
            if uses is None:
                continue
            slot = int(operands[site.slot.position] if site.of_operand else site.slot)
            ring = self._rings.get((ref.name, kernel))
            if ring is None:
                ring = self._rings[ref.name, kernel] = _Ring(
                    site.line or uses.get("line", ""), site.slots
                )
            key, opened = (site.fills, slot), (site.fills, slot, "open")
            if not uses.get(opened):
                uses[key] = count = uses.get(key, 0) + 1
                ring.counts[site.fills][count > 1] += 1
                uses[site.fills] = total = uses.get(site.fills, 0) + 1
                ring.used = max(ring.used, total)
                if until is not None:
                    uses[opened] = 1
                    self._open.setdefault(id(until), []).append((uses, opened))
            ring.remote |= remote
            ring.sites.setdefault((site, *names), set()).add(slot)

    def turn(self, site: SlotSite, thread: Any, operands: Sequence[Any]) -> None:
        """Note that a store of a thread fills a slot, or that it waits for one, without a copy.

        A thread that comes back to a slot from another one uses it again.
        """
        ref = operands[site.position]
        uses: dict[Any, Any] | None = ref.uses
        if uses is None or not thread.kernels:
            return
        who, slot, kernel = id(thread), int(operands[site.slot.position]), thread.kernels[-1]
        if uses.get(who) == slot:
            return
        uses[who] = slot
        ring = self._turns.get((ref.name, kernel))
        if ring is None:
            ring = self._turns[ref.name, kernel] = _Ring(site.line, site.slots)
        uses[who, slot] = count = uses.get((who, slot), 0) + 1
        ring.counts[True][count > 1] += 1
        uses[who, "all"] = total = uses.get((who, "all"), 0) + 1
        ring.used = max(ring.used, total)
        ring.sites.setdefault((site, "", ""), set()).add(slot)

    def close(self, until: Any) -> None:
        """Note a wait for a semaphore or barrier: the next copy uses a slot anew."""
        for uses, key in self._open.pop(id(until), ()):
            uses[key] = 0

    def note(self, point: Point, first: int, second: int) -> None:
        """Note how often a run goes both ways at a point that is no equation's."""
        counts = self._facts.get(point)
        if counts is None:
            counts = self._facts[point] = [0, 0]
        counts[0] += first
        counts[1] += second

    def reached(self) -> tuple[Reached, ...]:
        """Return what was reached so far, in order of the lines."""
        launches = {kernel: tuple(launches.values()) for kernel, launches in self._kernels.items()}
        groups: dict[Point, tuple[list[Site], list[int]]] = {}
        for (site, kernel), counts in self._counts.items():
            point = site.point(kernel)
            sites, sums = groups.setdefault(point, ([], [0] * len(counts)))
            sites.append(site)
            sums[:] = map(add, sums, counts)
        ran = {
            (id(site.equation), kernel): counts for (site, kernel), counts in self._counts.items()
        }
        inside = [
            one
            for kernel, several in launches.items()
            for one in _never_entered(kernel, several, ran, groups)
        ]
        reached = [
            _of_sites(point, tuple(sites), tuple(sums), launches.get(point.kernel, ()))
            for point, (sites, sums) in groups.items()
        ]
        reached += merged([one] for one in inside)
        reached += self._of_rings(launches)
        reached += [_of_fact(point, tuple(sums)) for point, sums in self._facts.items()]
        return tuple(sorted(reached, key=_order))

    def _of_rings(self, launches: Mapping[str, Sequence[_Launch]]) -> Iterator[Reached]:
        """Yield what was reached of slots that take turns, by copies or else without."""
        for (name, kernel), ring in self._rings.items():
            first, again = ring.counts[any(ring.counts[True])]
            if again or _takes_turns(ring, launches.get(kernel, ())):
                yield _of_ring(Point("ring", ring.line, kernel, name), ring, first, again)
        for (name, kernel), ring in self._turns.items():
            if not {(name, kernel)} & (self._rings.keys() | self._of_copies):
                sites = [site for site, *_ in ring.sites]
                if any(_wraps(site, launches.get(kernel, ())) for site in sites):
                    point = Point("ring", ring.line, kernel, name)
                    yield _of_ring(point, ring, *ring.counts[True])


def _of_ring(point: Point, ring: _Ring, first: int, again: int) -> Reached:
    return Reached(
        point=point,
        counts={"first": first, "again": again} if again else {"first": first},
        missing=() if again else ("again",),
        slots=ring.slots,
        used=ring.used,
    )


def _order(reached: Reached) -> Point:
    return reached.point


def _never_entered(
    kernel: str,
    launches: Sequence[_Launch],
    ran: Mapping[tuple[int, str], Sequence[int]],
    known: Collection[Point],
) -> Iterator[Reached]:
    """Yield the points inside of branches and loops of a kernel that no run went into.

    Args:
      kernel: its name.
      launches: of it.
      ran: counts of the sites that a run came to, by equation and kernel.
      known: the points that it came to.
    """
    for launch in launches:
        nested = _nested_sites(launch)
        dead: dict[Site, bool] = {}

        def is_dead(
            around: Around, nested: Mapping[Site, Any] = nested, dead: dict[Site, bool] = dead
        ) -> bool:
            """Return whether a run came to what is around a site, and did not go in."""
            if around is None:
                return False
            site, way = around
            counts = ran.get((id(site.equation), kernel))
            if counts is not None:
                return not (any(counts[1:]) if site.kind == "loop" else counts[way])
            if site not in dead:
                dead[site] = False
                dead[site] = all(is_dead(outer) for outer in nested.get(site, (None,)))
            return dead[site]

        for site, arounds in nested.items():
            point = site.point(kernel)
            if (id(site.equation), kernel) in ran or point in known:
                continue
            if all(map(is_dead, arounds)):
                one = _of_sites(point, (site,), (0,) * len(site.ways), tuple(launches))
                around = [outer for outer in arounds if outer is not None]
                within = tuple((outer.point(kernel), outer.ways[way]) for outer, way in around)
                yield replace(one, within=within)


@functools.lru_cache(maxsize=64)
def _nested_sites(launch: _Launch) -> Mapping[Site, Collection[Around]]:
    """Return the sites of all bodies of a kernel; see ``points.nested_sites``."""
    params = launch.equation.params
    sites: dict[Site, Collection[Around]] = {}
    for jaxpr in params.get("jaxprs") or (params["jaxpr"],):
        sites.update(nested_sites(open_jaxpr(jaxpr)[0]))
    return sites


# Runs of one program reach the same again and again, so what they reached is kept.


@functools.lru_cache(maxsize=2048)
def _of_fact(point: Point, sums: tuple[int, ...]) -> Reached:
    ways = zip(_FACTS[point.kind], sums, strict=True)
    return Reached(point=point, counts={way: count for way, count in ways if count})


@functools.lru_cache(maxsize=2048)
def _of_sites(
    point: Point, sites: tuple[Site, ...], sums: tuple[int, ...], launches: tuple[_Launch, ...]
) -> Reached:
    counts = {way: count for way, count in zip(sites[0].ways, sums, strict=True) if count}
    rest = _rest(sites, tuple(map(bool, sums)), launches)
    return Reached(point=point, counts=counts, **rest)


@functools.lru_cache(maxsize=2048)
def _rest(
    sites: tuple[Site, ...], gone: tuple[bool, ...], launches: tuple[_Launch, ...]
) -> Mapping[str, Any]:
    """Return what is known of a point besides its counts, as fields of ``Reached``.

    Args:
      sites: of the point.
      gone: for each way, whether a run went it.
      launches: of its kernel.
    """
    ways = sites[0].ways
    rest: dict[str, Any] = {"condition": sites[0].condition}
    if all(gone) or (sites[0].kind == "mask" and gone[ways.index("partial")]):
        return rest
    done = {way for way, went in zip(ways, gone, strict=True) if went}
    parts = [_open_ways(site, done, launches) for site in sites]
    missing = dict.fromkeys(way for part in parts for way in part.get("missing", ()))
    unreachable = {way: text for part in parts for way, text in part["unreachable"].items()}
    rest["missing"] = tuple(missing)
    rest["unreachable"] = {way: text for way, text in unreachable.items() if way not in missing}
    rest["depends"] = tuple(dict.fromkeys(thing for part in parts for thing in part["depends"]))
    rest["needs"] = {way: need for part in parts for way, need in part["needs"].items()}
    return rest


def _open_ways(site: Site, gone: Collection[str], launches: Sequence[_Launch]) -> Mapping[str, Any]:
    """Return missing and unreachable ways of a site, and what they depend on."""
    value, conditions = _known(site, launches)
    if site.kind == "mask":
        ways = _open_of_mask(value)
    elif site.kind == "loop":
        ways = _open_of_loop(value)
    else:
        ways = {way: _is_possible(site, way, value) for way in site.ways}
    ways = {way: possible for way, possible in ways.items() if way not in gone}
    needs = {way: _need(site, way, value) for way in ways}
    return {
        "missing": [way for way, possible in ways.items() if possible],
        "unreachable": {
            way: _reason(site, value, conditions) for way, possible in ways.items() if not possible
        },
        "depends": value.sources if ways else (),
        "needs": {way: need for way, need in needs.items() if need is not None},
    }


def _known(site: Site, launches: Sequence[_Launch]) -> tuple[Interval, KernelConditions | None]:
    """Return what is known of what decides at a site, and the conditions of its kernel."""
    conditions = _conditions(site.equation, launches)
    if conditions is None:
        return Interval(), None
    if site.kind == "loop":
        return conditions.of_rounds(site.equation), conditions
    return conditions.of_operand(site.equation, site.decides), conditions


def _conditions(equation: Any, launches: Sequence[_Launch]) -> KernelConditions | None:
    """Return the conditions of the kernel that has an equation."""
    return next(
        (conditions for launch in launches if (conditions := _conditions_of(launch)).has(equation)),
        None,
    )


@functools.lru_cache(maxsize=32)
def _conditions_of(launch: _Launch) -> KernelConditions:
    return KernelConditions(launch.equation, launch.sizes)


def _takes_turns(ring: _Ring, launches: Sequence[_Launch]) -> bool:
    """Return whether slots take turns, if no slot was used again.

    They do in a pipeline of JAX's, and if the index goes round. If the trace has the index as a
    number, they do unless each slot has something of its own: all of them are used, each by another
    line or for something else, or by other devices.
    """
    dynamic = {site for site, *_ in ring.sites if site.of_operand}
    if dynamic:
        return any(site.in_pipeline or _goes_round(site, launches) for site in dynamic)
    slots = set[int]().union(*ring.sites.values())
    if ring.remote:
        return False
    lines: dict[tuple[str, ...], set[int]] = {}
    for (site, *names), used in ring.sites.items():
        lines.setdefault((site.line, *names), set()).update(used)
    if len(slots) == 1 and all(site.is_part for site, *_ in ring.sites):
        return False
    return len(slots) < ring.slots or any(len(used) > 1 for used in lines.values())


def _wraps(site: SlotSite, launches: Sequence[_Launch]) -> bool:
    """Return whether the index of a slot goes round all slots, and no others.

    Other indices of stores are positions in an array.
    """
    conditions = _conditions(site.equation, launches)
    if conditions is None:
        return False
    index = conditions.of_operand(site.equation, site.slot.position)
    return index.turns and index.low >= 0 and index.high <= site.slots - 1


def _goes_round(site: SlotSite, launches: Sequence[_Launch]) -> bool:
    conditions = _conditions(site.equation, launches)
    index = site.slot.position
    return conditions is not None and conditions.of_operand(site.equation, index).turns


#: The ways of what has no equation of the user's.
_FACTS: dict[Kind, tuple[str, str]] = {
    "block": ("whole", "overhang"),
    "revisit": ("first", "again"),
    "wait": ("blocked", "at once"),
}


def _open_of_mask(value: Interval) -> Mapping[str, bool]:
    """Return whether a mask that was never partial can be, in this program; nothing if it may not.

    Whether floats compare so is up to the values, which no size changes.
    """
    constant = value.constant is not None or not value.sources
    return {} if value.measures else {"partial": not constant}


def _open_of_loop(rounds: Interval) -> Mapping[str, bool]:
    """Return the ways that a loop should go, and whether it can in this program.

    None and one are ways of a loop whose bounds are not known before.
    """
    ways = {"several": rounds.high >= 2}
    if rounds.counts and (rounds.sources or rounds.constant is None):
        ways |= {"none": True} if rounds.low <= 0 else {}
        ways |= {"one": rounds.high >= 1} if rounds.low <= 1 else {}
    return ways


def _is_possible(site: Site, way: str, value: Interval) -> bool:
    number = site.ways.index(way)
    last = len(site.ways) - 1
    low, high = max(0, min(value.low, last)), max(0, min(value.high, last))
    return low <= number <= high


def _reason(site: Site, value: Interval, conditions: KernelConditions | None) -> str:
    """Return why a program cannot go a way."""
    if site.kind == "mask":
        return "the mask is constant in this program"
    if len(value.sources) == 1 and conditions is not None:
        axis = conditions.axis_of(value.sources[0])
        if axis:
            return axis
    if site.kind == "loop":
        rounds = int(value.high)
        return f"the loop has {'at most ' * (value.low < rounds)}{_counted(rounds, 'round')} here"
    return "the condition is constant in this program"


def _need(site: Site, way: str, value: Interval) -> Need | None:
    """Return what must hold of one thing for a run to go a way; None if that is not plain."""
    if site.kind == "mask":
        return None
    if site.kind == "loop":
        least = {"several": (">=", 2), "one": ("==", 1), "none": ("<=", 0)}[way]
        need = line_test(value, *least)
    elif site.ways == BRANCH:
        need = value.test if way == "true" else opposite(value.test)
    else:
        need = line_test(value, "==", int(way))
    return need


def note_wait(thread: Any, name: str, line: str, *, blocked: bool) -> None:
    """Note that a thread waits for a semaphore or barrier, and whether that blocks it."""
    if thread.kernels:
        coverage: Coverage = thread.machine.coverage
        point = Point("wait", line, thread.kernels[-1], name.partition("[")[0])
        coverage.note(point, int(blocked), int(not blocked))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
