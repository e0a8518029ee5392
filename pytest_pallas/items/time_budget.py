"""Rounds of fuzzing: one of ``--pallas-max-examples``, or many until a time is over."""

from __future__ import annotations

import itertools
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_pallas.sampling.fuzzing import Fuzz, fuzz, fuzz_until

#: The clock of a session, made when its first item starts.
CLOCK = pytest.StashKey["Clock"]()


@dataclass
class Clock:
    """Who gets how much of the time.

    Every kernel gets as much as every other, and its items share that. What an item leaves, those
    that come after it share. Under xdist each process takes its share of the items and knows only
    what it did itself.

    Attributes:
      seconds: of the session.
      weights: of the items that fuzz, by node id; those of a kernel add up to 1.
      processes: how many processes run the items.
      started: when the first one started, by ``time.monotonic``.
    """

    seconds: float
    weights: Mapping[str, float]
    processes: int = 1
    started: float = field(default_factory=time.monotonic)
    done: float = 0.0

    def slot(self, nodeid: str) -> float:
        """Seconds for an item, which is about to start."""
        weight = self.weights.get(nodeid, 0.0)
        left = max(sum(self.weights.values()) - self.processes * self.done, weight)
        self.done += weight
        spent = time.monotonic() - self.started
        return max(0.0, self.seconds - spent) * self.processes * weight / left if left else 0.0


def clock_of(config: pytest.Config, items: list[pytest.Item], seconds: float) -> Clock:
    """The clock of a session, which starts at the first call."""
    if CLOCK not in config.stash:
        workers = getattr(config, "workerinput", {}).get("workercount", 1)  # of pytest-xdist
        config.stash[CLOCK] = Clock(seconds, _weights(items), workers)
    return config.stash[CLOCK]


def _weights(items: list[pytest.Item]) -> Mapping[str, float]:
    fuzzed = {item.nodeid: item.spec.name for item in _fuzzing(items)}
    counts = Counter(fuzzed.values())
    return {nodeid: 1 / counts[name] for nodeid, name in fuzzed.items()}


def _fuzzing(items: list[pytest.Item]) -> Iterator[Any]:
    """The items that take all the time that they get."""
    from pytest_pallas.items.item import SpecItem

    for item in items:
        if (
            isinstance(item, SpecItem)
            and item.backend.kind != "compiling"
            and not any(item.iter_markers("skip"))
            and not any(item.iter_markers("xfail"))
        ):
            yield item


#: Rounds without an example that is new, after which the strategy is taken to have no more.
EXHAUSTED = 3


def fuzz_for(
    what: Fuzz, seconds: float, *, seed: int, max_examples: int, pulse: Callable[[], None]
) -> None:
    """Fuzz until the time is over, or nothing new is drawn.

    The first round is that of a run without a time: few values of many shapes. The others have
    seeds of their own, and draws have more siblings. The last one is cut short.

    Args:
      what: the question.
      seconds: how long.
      seed: seed of the first round, and of the other rounds' seeds.
      max_examples: examples of the first round.
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
        if time.monotonic() >= until or idle == EXHAUSTED:
            return
        before = len(what.passed)
        fuzz_until(what, seed=zlib.crc32(f"{seed}/{number}".encode()), until=until)
        pulse()
        idle = idle + 1 if len(what.passed) == before else 0
