"""Rounds of fuzzing: one of ``--pallas-max-examples``, or many within a time limit."""

from __future__ import annotations

import itertools
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_pallas.sampling.fuzzing import Fuzz, fuzz, fuzz_until
from pytest_pallas.sampling.together import agreed
from pytest_pallas.session import current

#: The clock of a session, made when its first item starts.
CLOCK = pytest.StashKey["TimeBudget"]()


@dataclass
class TimeBudget:
    """Distributes the time over items.

    All kernels get equal times, which their items share. Later items share the unused time of
    earlier ones. Under xdist, each process distributes the time over its own items.

    Attributes:
      seconds: the time of the session.
      weights: weights of the items that fuzz, by node id; those of a kernel add up to 1.
      processes: number of processes that run the items.
      started: start of the first item, by ``time.monotonic``.
    """

    seconds: float
    weights: Mapping[str, float]
    processes: int = 1
    started: float = field(default_factory=lambda: time.monotonic())
    done: float = 0.0

    def slot(self, nodeid: str) -> float:
        """Seconds for an item that starts now."""
        weight = self.weights.get(nodeid, 0.0)
        left = max(sum(self.weights.values()) - self.processes * self.done, weight)
        self.done += weight
        spent = time.monotonic() - self.started
        return max(0.0, self.seconds - spent) * self.processes * weight / left if left else 0.0


def time_budget_of(config: pytest.Config, items: list[pytest.Item], seconds: float) -> TimeBudget:
    """The clock of a session, which starts at the first call.

    Tests that an earlier part of the run has done had their part of the time.
    """
    if CLOCK not in config.stash:
        workers = getattr(config, "workerinput", {}).get("workercount", 1)  # of pytest-xdist
        weigh = weights([*current(config).done_items, *items])
        left = {item.nodeid: weigh.get(item.nodeid, 0.0) for item in items}
        every = sum(weigh.values())
        share = sum(left.values()) / every if every else 1.0
        config.stash[CLOCK] = TimeBudget(seconds * share, left, workers)
    return config.stash[CLOCK]


def weights(items: Sequence[pytest.Item]) -> Mapping[str, float]:
    """The share of each item that fuzzes, by node id; those of a kernel add up to 1."""
    fuzzed = {item.nodeid: item.spec.name for item in _fuzzing(items)}
    counts = Counter(fuzzed.values())
    return {nodeid: 1 / counts[name] for nodeid, name in fuzzed.items()}


def _fuzzing(items: Sequence[pytest.Item]) -> Iterator[Any]:
    """The items that use all of their time."""
    from pytest_pallas.items.item import SpecItem

    for item in items:
        if (
            isinstance(item, SpecItem)
            and item.backend.kind != "compiling"
            and not any(item.iter_markers("skip"))
            and not any(item.iter_markers("xfail"))
        ):
            yield item


#: Number of rounds without a new example after which fuzzing stops.
EXHAUSTED = 3


def fuzz_for(
    what: Fuzz, seconds: float, *, seed: int, max_examples: int, pulse: Callable[[], None]
) -> None:
    """Fuzz until the time is over, or no new example is drawn.

    The first round is that of a run without a time limit: few values of many shapes. The others
    have their own seeds and more variants of each draw. The last one may end early.

    Args:
      what: the check to fuzz.
      seconds: the time limit.
      seed: seed of the first round, and of the seeds of the others.
      max_examples: number of examples of the first round.
      pulse: called after each round.

    Raises:
      Exception: as ``fuzz``.
    """
    __tracebackhide__ = True
    until = time.monotonic() + seconds
    fuzz(what, seed=seed, max_examples=max_examples, until=until)
    pulse()
    idle = 0
    for number in itertools.count(1):
        if agreed(time.monotonic() >= until) or idle == EXHAUSTED:
            return
        before = len(what.passed)
        fuzz_until(what, seed=zlib.crc32(f"{seed}/{number}".encode()), until=until)
        pulse()
        idle = idle + 1 if len(what.passed) == before else 0
