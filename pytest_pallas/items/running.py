"""Run a bound check: fuzz drawn examples, compile a few calls, or replay kept ones."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pytest_pallas.checks.verdict import conclude
from pytest_pallas.errors import PallasTestError
from pytest_pallas.items import precompile
from pytest_pallas.items.bound_checks import BoundCheck, run_example, subjects_of
from pytest_pallas.items.replaying import replay_goldens
from pytest_pallas.items.time_budget import fuzz_for
from pytest_pallas.sampling.diversity import shared
from pytest_pallas.sampling.fuzzing import Fuzz, fuzz, replay
from pytest_pallas.strategies.arguments import Arguments


def run_bound(
    bound: BoundCheck,
    *,
    slot: Callable[[], float | None] = lambda: None,
    pulse: Callable[[], None] = lambda: None,
) -> str:
    """Ask the check about as many examples as the options say.

    Args:
      bound: the check with all that it runs on.
      slot: gives the seconds to fuzz for, when that begins; None for a number of examples.
      pulse: called after each round of fuzzing for a time.

    Returns:
      Why the check applies to no example; "" if it was asked about one.

    Raises:
      PallasTestError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    replayed = bool(bound.options.replay)
    if bound.backend.kind == "compiling" and not replayed:
        _compile(bound, slot, pulse)
        return ""
    missing = _fuzz(bound, slot, pulse)
    builder = bound.builder
    if missing or (not builder.examples and builder.withdrawn):
        return missing or builder.withdrawn
    if not replayed:
        conclude(bound.check, builder.evidence, bound.spec.name, bound.backend)
    return ""


def _compile(
    bound: BoundCheck, slot: Callable[[], float | None], pulse: Callable[[], None]
) -> None:
    __tracebackhide__ = True
    try:
        precompile.run_all(bound)
    except PallasTestError as error:
        if bound.expected or not precompile.worth_shrinking(error):
            raise
        _fuzz(bound, slot, pulse)  # finds the same failure, and the smallest like it
        raise


def _fuzz(bound: BoundCheck, slot: Callable[[], float | None], pulse: Callable[[], None]) -> str:
    """Ask about examples; the result is why there are none."""
    __tracebackhide__ = True
    session, options = bound.session, bound.options
    mutated = session.mutant is not None  # whose failures nobody wants to see again
    what = Fuzz(
        run=functools.partial(run_example, bound),
        source=shared(session.sources, bound.source, bound.strategy),
        key=f"{bound.spec.name}/{bound.check.name}",
        subjects=subjects_of(bound),
        shrink=not bound.expected and not mutated,
        database=None if mutated else session.database_for(bound.name),
    )
    goldens = session.goldens
    if session.replayed is not None:
        run_example(bound, Arguments(*session.replayed.call))
    elif options.replay.blob:
        replay(what, options.replay.blob)
    elif goldens is not None and goldens.mode == "replay":
        return replay_goldens(bound, goldens, what.source)
    elif (seconds := slot()) is not None:
        fuzz_for(what, seconds, seed=options.seed, max_examples=bound.examples, pulse=pulse)
    else:
        fuzz(what, seed=options.seed, max_examples=bound.examples)
    return ""
