"""Ask a question: draw examples and fuzz, compile a few calls, or replay what was kept."""

from __future__ import annotations

import functools
from collections.abc import Callable

from pytest_pallas.checks.verdict import conclude
from pytest_pallas.errors import PallasTestError
from pytest_pallas.items import precompile
from pytest_pallas.items.questions import Question, ask_about, subjects_of
from pytest_pallas.items.replaying import replay_goldens
from pytest_pallas.items.time_budget import fuzz_for
from pytest_pallas.sampling.diversity import shared
from pytest_pallas.sampling.fuzzing import Fuzz, fuzz, replay
from pytest_pallas.strategies.arguments import Arguments


def answer(
    asked: Question,
    *,
    slot: Callable[[], float | None] = lambda: None,
    pulse: Callable[[], None] = lambda: None,
) -> str:
    """Ask the check about as many examples as the options say.

    Args:
      asked: the question.
      slot: gives the seconds to fuzz for, when that begins; None for a number of examples.
      pulse: called after each round of fuzzing for a time.

    Returns:
      Why the check applies to no example; "" if it was asked about one.

    Raises:
      PallasTestError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    replayed = bool(asked.options.example) or asked.session.replayed is not None
    if asked.backend.kind == "compiling" and not replayed:
        _compile(asked, slot, pulse)
        return ""
    missing = _fuzz(asked, slot, pulse)
    tally = asked.tally
    if missing or (not tally.examples and tally.withdrawn):
        return missing or tally.withdrawn
    if not replayed:
        conclude(asked.check, tally.evidence, asked.spec.name, asked.backend)
    return ""


def _compile(asked: Question, slot: Callable[[], float | None], pulse: Callable[[], None]) -> None:
    __tracebackhide__ = True
    try:
        precompile.ask_all(asked)
    except PallasTestError as error:
        if asked.expected or not precompile.worth_shrinking(error):
            raise
        _fuzz(asked, slot, pulse)  # finds the same failure, and the smallest like it
        raise


def _fuzz(asked: Question, slot: Callable[[], float | None], pulse: Callable[[], None]) -> str:
    """Ask about examples; the result is why there are none."""
    __tracebackhide__ = True
    session, options = asked.session, asked.options
    mutated = session.mutant is not None  # whose failures nobody wants to see again
    what = Fuzz(
        ask=functools.partial(ask_about, asked),
        source=shared(session.sources, asked.source, asked.strategy),
        key=f"{asked.spec.name}/{asked.check.name}",
        subjects=subjects_of(asked),
        shrink=not asked.expected and not mutated,
        database=None if mutated else session.database_for(asked.name),
    )
    goldens = session.goldens
    if session.replayed is not None:
        ask_about(asked, Arguments(*session.replayed.call))
    elif options.example:
        replay(what, options.example)
    elif goldens is not None and goldens.mode == "replay":
        return replay_goldens(asked, goldens, what.source)
    elif (seconds := slot()) is not None:
        fuzz_for(what, seconds, seed=options.seed, max_examples=asked.examples, pulse=pulse)
    else:
        fuzz(what, seed=options.seed, max_examples=asked.examples)
    return ""
