"""Rounds of fuzzing: one of ``--pallas-max-examples``, or many until a time is over."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable

from pytest_pallas.suites.fuzzing import Fuzz, fuzz, fuzz_until

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
