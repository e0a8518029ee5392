"""Rounds of fuzzing in a fixed order, so that any process can run any of them.

What a round draws depends on its number and the seed alone. What earlier rounds have run matters
only for examples that were drawn before: they do not run again, and do not count again.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from pytest_pallas.bindings.bound_checks import BoundCheck, separate_builder
from pytest_pallas.items.parts.round_results import ExampleOutcome, RoundOutcome, digest_of
from pytest_pallas.items.time_budget import EXHAUSTED
from pytest_pallas.sampling.diversity import words_of
from pytest_pallas.sampling.fuzzing import Fuzz, fuzz_round


def seed_of(seed: int, number: int) -> int:
    """The seed of a round."""
    return zlib.crc32(f"{seed}/{number}".encode()) if number else seed


def run_rounds(
    bound: BoundCheck,
    what: Fuzz,
    numbers: Iterable[int],
    *,
    first_round: Callable[[Fuzz], None],
    seconds: float | None = None,
    pulse: Callable[[], None] = lambda: None,
    log: list[RoundOutcome] | None = None,
) -> None:
    """Run rounds in ascending order, until some in a row bring nothing new, or the time is over.

    Args:
      bound: the bound check.
      what: the check to fuzz.
      numbers: the numbers of the rounds.
      first_round: runs round 0, which is that of a run without rounds.
      seconds: the time after which no further round starts; None for no limit.
      pulse: called after each round.
      log: gets what each round brought; None to keep nothing.

    Raises:
      Exception: as ``fuzz``. The log has the round that failed, too.
    """
    __tracebackhide__ = True
    until = None if seconds is None else time.monotonic() + seconds
    idle = 0
    for started, number in enumerate(numbers):
        if started and until is not None and time.monotonic() >= until:
            return
        outcome = RoundOutcome(number)
        if log is not None:
            log.append(outcome)
        before = len(what.passed)
        noted = dataclasses.replace(what, run=_noting(bound, what, outcome, keep=log is not None))
        try:
            if number == 0:
                first_round(noted)
            else:
                fuzz_round(noted, seed=seed_of(bound.options.seed, number))
        except Exception:
            outcome.failed = True
            raise
        pulse()
        idle = idle + 1 if number and len(what.passed) == before else 0
        if idle == EXHAUSTED:
            return


def _noting(
    bound: BoundCheck, what: Fuzz, outcome: RoundOutcome, *, keep: bool
) -> Callable[[Any], object]:
    """``what.run``, with a builder of its own for each example, which the outcome keeps."""

    def run(drawn: Any) -> object:
        __tracebackhide__ = True
        with separate_builder(bound) as builder:
            if not keep:
                return what.run(drawn)
            example = ExampleOutcome(digest_of(words_of(drawn)), builder)
            outcome.examples.append(example)
            result = what.run(drawn)
            example.passed = True
            return result

    return run
