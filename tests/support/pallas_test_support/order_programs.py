"""Random programs of threads that signal, wait, copy and meet, and what holds in all their runs.

``truth`` walks all interleavings. Between two operations of threads, any copy that was started may
read or write another unit, in chunks of one unit, and each unit adds to a semaphore as on a TPU:
``sent`` once the source is read, ``done`` once the target is written. ``claims`` gives what the
monitor of order says of one run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any

import numpy as np

from pallas_sim.findings import Owner
from pallas_sim.order.disorder import disorder
from pallas_sim.order.happens_before import happens_before
from pallas_sim.recording import (
    Acquired,
    Copy,
    Event,
    Released,
    Semaphore,
    Signalled,
    Started,
    Synchronized,
    Token,
    Touched,
    Waited,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Signal:
    """Add to a semaphore."""

    semaphore: int
    amount: int


@dataclass(frozen=True)
class Wait:
    """Wait for an amount on a semaphore, and take it unless ``takes`` is False."""

    semaphore: int
    amount: int
    takes: bool = True


@dataclass(frozen=True)
class Start:
    """Start a copy of some units, with one or two semaphores."""

    copy: int
    size: int
    sent: int | None
    done: int | None


@dataclass(frozen=True)
class Meet:
    """Wait until all threads of a group are there."""

    threads: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class Release:
    """Pass on what was done, with a token, and go on."""

    token: int


@dataclass(frozen=True)
class Acquire:
    """Wait until all have released a token that do."""

    token: int


Operation = Signal | Wait | Start | Meet | Release | Acquire


@dataclass(frozen=True)
class Program:
    """What each thread does, and how many semaphores, copies and tokens there are."""

    threads: tuple[tuple[Operation, ...], ...]
    semaphores: int
    copies: tuple[Start, ...]
    tokens: int

    @property
    def one_waiter(self) -> bool:
        """Whether nobody waits on a semaphore that another thread takes from."""
        waiters: dict[int, set[int]] = {}
        taken: set[int] = set()
        for thread, operations in enumerate(self.threads):
            for each in operations:
                if isinstance(each, Wait):
                    waiters.setdefault(each.semaphore, set()).add(thread)
                    if each.takes:
                        taken.add(each.semaphore)
        return all(len(waiters[semaphore]) == 1 for semaphore in taken)


#: Positions of the threads, units of copies that are read, and written, counts of semaphores, and
#: how often each token was released.
State = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Where a state has what."""

    threads: int
    copies: int
    semaphores: int

    @property
    def read(self) -> int:
        """The first copy's read units."""
        return self.threads

    @property
    def written(self) -> int:
        """The first copy's written units."""
        return self.threads + self.copies

    @property
    def counts(self) -> int:
        """The first semaphore's count."""
        return self.threads + 2 * self.copies

    @property
    def released(self) -> int:
        """The first token's releases."""
        return self.counts + self.semaphores


def layout(program: Program) -> Layout:
    """Where states of a program have what."""
    return Layout(len(program.threads), len(program.copies), program.semaphores)


def begin(program: Program) -> State:
    """The state in which nothing has happened."""
    return (0,) * (layout(program).released + program.tokens)


#: A transition: the thread that went on (-1 for a copy), and the state afterwards.
Transition = tuple[int, State]


def transitions(program: Program) -> Callable[[State], list[Transition]]:
    """Give what can happen next in a state of a program."""
    at = layout(program)
    threads = program.threads
    counts, released, read, written = at.counts, at.released, at.read, at.written
    releases = [
        sum(Release(token) in operations for operations in threads)
        for token in range(program.tokens)
    ]

    def step(state: State, thread: int, operation: Operation) -> State | None:
        changed = list(state)
        changed[thread] += 1
        if isinstance(operation, Signal):
            changed[counts + operation.semaphore] += operation.amount
        elif isinstance(operation, Wait):
            if state[counts + operation.semaphore] < operation.amount:
                return None
            if operation.takes:
                changed[counts + operation.semaphore] -= operation.amount
        elif isinstance(operation, Meet):
            group = operation.threads
            if thread != group[0]:
                return None
            for other in group:
                if state[other] == len(threads[other]):
                    return None
                if threads[other][state[other]] != operation:
                    return None
                changed[other] = state[other] + 1
        elif isinstance(operation, Release):
            changed[released + operation.token] += 1
        elif isinstance(operation, Acquire) and (
            state[released + operation.token] < releases[operation.token]
        ):
            return None
        return tuple(changed)

    starts = [
        (thread, operations.index(copy), copy)
        for copy in program.copies
        for thread, operations in enumerate(threads)
        if copy in operations
    ]

    def following(state: State) -> list[Transition]:
        after: list[Transition] = []
        for thread, operations in enumerate(threads):
            position = state[thread]
            if position < len(operations):
                stepped = step(state, thread, operations[position])
                if stepped is not None:
                    after.append((thread, stepped))
        for thread, position, copy in starts:
            if state[thread] <= position:
                continue
            for first, most, semaphore in (
                (read, copy.size, copy.sent),
                (written, state[read + copy.copy], copy.done),
            ):
                if state[first + copy.copy] < most:
                    changed = list(state)
                    changed[first + copy.copy] += 1
                    if semaphore is not None:
                        changed[counts + semaphore] += 1
                    after.append((-1, tuple(changed)))
        return after

    return following


def reachable(program: Program, most: int) -> set[State] | None:
    """All states of all interleavings, or None if there are more than ``most``."""
    following = transitions(program)
    states = {begin(program)}
    left = list(states)
    while left:
        for _, state in following(left.pop()):
            if state not in states:
                states.add(state)
                left.append(state)
        if len(states) > most:
            return None
    return states


def truth(program: Program, states: set[State]) -> list[Array]:
    """What is so whenever a thread is at a position.

    Returns:
      For each thread, by position: the least position of each thread, and of each copy whether the
      source is always read, and whether the target is always written.
    """
    at, table = layout(program), np.array(list(states), np.int32)
    sizes = [copy.size for copy in program.copies] * 2
    found: list[Array] = []
    for thread, operations in enumerate(program.threads):
        rows = table[np.argsort(table[:, thread], kind="stable")]
        starts = np.searchsorted(rows[:, thread], np.arange(len(operations) + 1))
        least = np.minimum.reduceat(rows[:, : at.counts], starts, axis=0)
        least[:, at.threads :] = least[:, at.threads :] == sizes
        found.append(least)
    return found


def run(program: Program, random: Random) -> list[int] | None:
    """The threads that go on, in the order of a random run; None if it does not end."""
    following, state = transitions(program), begin(program)
    order: list[int] = []
    while after := following(state):
        thread, state = random.choice(after)
        if thread >= 0:
            order.append(thread)
    ended = all(state[number] == len(each) for number, each in enumerate(program.threads))
    return order if ended else None


def claims(program: Program, order: Sequence[int]) -> list[Array]:
    """What the monitor of order says of a run, as ``truth`` does."""
    recorded = record(program, order)
    last = happens_before(recorded.events, [Owner()] * len(program.threads))
    clocks = [
        np.array([each.clock for each in last.semaphores[probe].increments[thread].increments])
        for thread, probe in enumerate(recorded.probes)
    ]
    times = [each[:-1, thread].tolist() for thread, each in enumerate(clocks)]
    pasts = [last.flights[copy][side].past for side in (0, 1) for copy in recorded.copies]
    found: list[Array] = []
    for rows in clocks:
        positions = [
            [bisect_left(times[thread], time) for thread, time in enumerate(row)]
            for row in rows.tolist()
        ]
        done = [[past is not None and past.is_before(row) for past in pasts] for row in rows]
        found.append(np.hstack([np.array(positions), np.array(done).reshape(len(rows), -1)]))
    return found


@dataclass(frozen=True)
class Recorded:
    """A run as the simulator records it.

    Attributes:
      events: in their order. After each operation of a thread, it signals its probe.
      probes: a semaphore for each thread, whose increments have its clocks.
      copies: that were started.
    """

    events: list[Event]
    probes: list[Semaphore]
    copies: list[Copy]


def record(program: Program, order: Sequence[int], *, probes: bool = True) -> Recorded:
    """Record a run of a program.

    Args:
      program: what the threads do.
      order: the threads that go on, one after the other.
      probes: whether threads signal their probes.
    """
    count = len(program.threads)
    semaphores = [Semaphore(f"semaphore {number}", "dma") for number in range(program.semaphores)]
    of_threads = [Semaphore(f"probe {number}", "regular") for number in range(count)]
    tokens = [Token() for _ in range(program.tokens)]
    copies = [
        Copy(
            *(np.zeros(1), np.zeros(1), ("source", "target"), each.size),
            *(None if at is None else semaphores[at] for at in (each.sent, each.done)),
            line="",
        )
        for each in program.copies
    ]
    # The monitor does not follow memory that one thread alone uses.
    events: list[Event] = [
        Touched(thread, region, False, "copied", "", ())
        for thread in range(count)
        for copy in copies
        for region in (copy.source, copy.target)
        if region is not None
    ]

    def probe(*threads: int) -> None:
        if probes:
            events.extend(Signalled(thread, of_threads[thread], 1, "", ()) for thread in threads)

    probe(*range(count))
    positions = [0] * count
    for thread in order:
        operation = program.threads[thread][positions[thread]]
        group = operation.threads if isinstance(operation, Meet) else (thread,)
        for each in group:
            positions[each] += 1
        if isinstance(operation, Signal):
            at = semaphores[operation.semaphore]
            events.append(Signalled(thread, at, operation.amount, "", ()))
        elif isinstance(operation, Wait):
            at = semaphores[operation.semaphore]
            events.append(Waited(thread, at, operation.amount, operation.takes, "", ()))
        elif isinstance(operation, Start):
            events.append(Started(thread, copies[operation.copy]))
        elif isinstance(operation, Meet):
            events.append(Synchronized(group))
        elif isinstance(operation, Release):
            events.append(Released(thread, tokens[operation.token]))
        else:
            events.append(Acquired(thread, tokens[operation.token]))
        probe(*group)
    return Recorded(events, of_threads, copies)


@dataclass(eq=False)
class _Draft:
    """A program that is drawn, one operation after the other, of which each can happen at once."""

    threads: list[list[Operation]]
    counts: list[int]
    owners: list[int]
    kept: set[int]
    copies: list[Start] = field(default_factory=list)
    meetings: int = 0
    tokens: int = 0

    def finished(self) -> Program:
        return Program(
            tuple(map(tuple, self.threads)), len(self.counts), tuple(self.copies), self.tokens
        )


def draw(random: Random, *, several_waiters: bool = False) -> Program:
    """Draw a program of 2 to 4 threads that has a run to its end.

    Args:
      random: decides.
      several_waiters: whether several threads may wait on a semaphore from which some take.
    """
    count, semaphores = random.choice((2, 3, 4, 4)), random.randint(1, 5)
    draft = _Draft(
        [[] for _ in range(count)],
        [0] * semaphores,
        [random.randrange(count) for _ in range(semaphores)],
        {number for number in range(1, semaphores) if random.random() < 0.15},
    )
    most_copies, meets = random.choice((0, 0, 1, 2)), random.random() < 0.5
    for _ in range(random.randint(8, 18)):
        thread = random.randrange(count)
        waitable = [
            number
            for number, owner in enumerate(draft.owners)
            if draft.counts[number] and (several_waiters or number in draft.kept or owner == thread)
        ]
        kind = random.random()
        if waitable and random.random() < 0.8:
            number = random.choice(waitable)
            amount = random.randint(1, min(3, draft.counts[number]))
            takes = number not in draft.kept and random.random() < 0.95
            draft.threads[thread].append(Wait(number, amount, takes))
            draft.counts[number] -= amount if takes else 0
        elif kind < 0.2 and len(draft.copies) < most_copies:
            _draw_copy(random, draft, thread)
        elif meets and kind < 0.26:
            group = tuple(sorted(random.sample(range(count), random.randint(2, count))))
            for each in group:
                draft.threads[each].append(Meet(group, draft.meetings))
            draft.meetings += 1
        elif meets and kind < 0.32:
            group = random.sample(range(count), random.randint(2, count))
            first = random.randint(1, len(group) - 1)
            for each in group[:first]:
                draft.threads[each].append(Release(draft.tokens))
            for each in group[first:]:
                draft.threads[each].append(Acquire(draft.tokens))
            draft.tokens += 1
        else:
            number = random.randrange(semaphores)
            amount = random.choice((1, 1, 1, 2))
            draft.threads[thread].append(Signal(number, amount))
            draft.counts[number] += amount
    return draft.finished()


def _draw_copy(random: Random, draft: _Draft, thread: int) -> None:
    """Add a copy: a local one with one semaphore, or a remote one with two."""
    semaphores = [number for number in range(len(draft.counts)) if number not in draft.kept]
    own = [number for number in semaphores if draft.owners[number] == thread]
    done = random.choice(semaphores)
    sent = random.choice(own) if own and random.random() < 0.7 else None
    copy = Start(len(draft.copies), random.randint(1, 2), None if sent == done else sent, done)
    draft.copies.append(copy)
    draft.threads[thread].append(copy)
    for number in {copy.sent, copy.done} - {None}:
        draft.counts[number] += copy.size  # type: ignore[index]


def draw_locks(random: Random) -> Program:
    """Draw a program of threads that take from a semaphore and give back, most of them as a lock.

    A second semaphore lets one thread signal another, and some threads meet.
    """
    count = random.choice((2, 2, 3))
    held = random.choice((1, 1, 2))
    threads: list[list[Operation]] = [[] for _ in range(count)]
    threads[0].append(Signal(0, random.choice((held, held, held, 2 * held))))
    meetings = 0
    for _ in range(random.randint(count, 5)):
        thread = random.randrange(count)
        section: list[Operation] = [Wait(0, held), Signal(0, held)]
        if random.random() < 0.15:
            del section[random.randrange(2)]
        if random.random() < 0.3:
            extra = Signal(1, 1) if random.random() < 0.7 else Wait(1, 1, takes=False)
            section.insert(random.randint(0, len(section)), extra)
        if random.random() < 0.15:
            other = random.choice([each for each in range(count) if each != thread])
            meeting = Meet(tuple(sorted((thread, other))), meetings)
            meetings += 1
            section.insert(random.randint(0, len(section)), meeting)
            threads[other].append(meeting)
        threads[thread] += section
    return Program(tuple(map(tuple, threads)), 2, (), 0)


@dataclass(eq=False)
class Comparison:
    """How the claims of the monitor compare with the truth.

    Attributes:
      programs: how many were compared.
      runs: of these programs.
      states: of these programs, all together.
      claims: how many of each kind are ``"wrong"``, ``"weak"`` and ``"exact"``.
      failed: of each kind and verdict but ``"exact"``, a program and its order.
    """

    programs: int = 0
    runs: int = 0
    states: int = 0
    claims: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: dict[tuple[str, str], tuple[Program, Sequence[int]]] = field(default_factory=dict)

    def count(self, verdict: str, *kinds: str) -> int:
        """How many claims of some kinds, or of all, have a verdict."""
        return sum(
            count
            for (kind, each), count in self.claims.items()
            if each == verdict and (not kinds or kind in kinds)
        )


#: States of a program; those with more are left out, about one in a thousand.
MOST_STATES = 20_000


def compare(seeds: Sequence[int], *, runs: int, drawn: Callable[[Random], Program]) -> Comparison:
    """Compare what the monitor claims of random runs of random programs with all their runs.

    Kinds of claims are ``"order"`` (how far another thread has come), ``"read"`` and ``"written"``
    (whether a copy has read its source, and written its target; ``"read, two semaphores"`` of one
    that adds to two), and ``"race"`` (whether
    two threads are never at accesses at the same time).

    Args:
      seeds: of the programs.
      runs: of each program.
      drawn: gives a program.
    """
    comparison = Comparison()
    for seed in seeds:
        random = Random(seed)
        program = drawn(random)
        states = reachable(program, MOST_STATES)
        if states is None:
            continue
        comparison.programs += 1
        comparison.states += len(states)
        for order in (run(program, random) for _ in range(runs)):
            if order is None:  # a deadlock: a thread took what another one needs
                continue
            comparison.runs += 1
            for kind, claimed, known in _claims(program, order, states, random):
                wrong = int((claimed > known).sum())
                weak = int((claimed < known).sum())
                comparison.claims[kind, "wrong"] += wrong
                comparison.claims[kind, "weak"] += weak
                comparison.claims[kind, "exact"] += claimed.size - wrong - weak
                if wrong or weak:
                    failed = (kind, "wrong" if wrong else "weak")
                    comparison.failed.setdefault(failed, (program, order))
    return comparison


def _claims(
    program: Program, order: Sequence[int], states: set[State], random: Random
) -> Iterator[tuple[str, Array, Array]]:
    """The kinds of claims about a run, with what is claimed and what is so."""
    count, copies = len(program.threads), len(program.copies)
    true = truth(program, states)
    for thread, claimed in enumerate(claims(program, order)):
        known = true[thread]
        others = [other for other in range(count) if other != thread]
        yield "order", claimed[:, others], known[:, others]
        for copy in program.copies:
            at = count + copy.copy
            both = copy.sent is not None and copy.done is not None
            kind = "read, two semaphores" if both else "read"
            yield kind, claimed[:, at], known[:, at]
            yield "written", claimed[:, at + copies], known[:, at + copies]
    accesses = random.choice((1, 1, 2))
    points = [
        (thread, random.randint(0, len(program.threads[thread])))
        for thread in random.sample(range(count), 2)
        for _ in range(accesses)
    ]
    apart = not any(
        state[first] == start and state[second] == end
        for (first, start), (second, end) in combinations(points, 2)
        if first != second
        for state in states
    )
    yield "race", np.array([not races(program, order, points)]), np.array([apart])


def races(program: Program, order: Sequence[int], points: Sequence[tuple[int, int]]) -> bool:
    """Whether the monitor reports writes to one place, by threads after so many operations."""
    recorded, memory = record(program, order), np.zeros(1)
    events: list[Event] = []
    probed = [0] * len(program.threads)
    for event in recorded.events:
        events.append(event)
        if isinstance(event, Signalled) and event.semaphore in recorded.probes:
            if (event.thread, probed[event.thread]) in points:
                events.append(Touched(event.thread, memory, True, "memory", "", ()))
            probed[event.thread] += 1
    owners = [Owner(device=number) for number in range(len(program.threads))]
    return any(each.ref == "memory" for each in disorder(events, owners, 0))
