"""Ask about the calls of goldens, in place of new draws: ``--pallas-golden=replay``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_pallas.checks.golden import Goldens, written_call
from pytest_pallas.errors import GoldenError
from pytest_pallas.goldens.values import read
from pytest_pallas.items.bound_checks import run_example, subjects_of
from pytest_pallas.sampling.fuzzing import drawn_calls
from pytest_pallas.strategies.arguments import Arguments, as_arguments

if TYPE_CHECKING:
    from pytest_pallas.goldens.entry import Golden
    from pytest_pallas.items.bound_checks import BoundCheck
    from pytest_pallas.sampling.diversity import Source


def replay_goldens(bound: BoundCheck, goldens: Goldens, source: Source) -> str:
    """Ask the check about every call that there is a golden of.

    A call that was not kept is drawn again; where that gives another call by now, it is lost, which
    the record says.

    Returns:
      Why it was asked about none; "" if it was.

    Raises:
      PallasTestError: an answer is wrong, or not that of a golden.
    """
    __tracebackhide__ = True
    found = goldens.of(bound.spec.name, bound.check.name, bound.sizes)
    if not found:
        return "the folder has no golden of it"

    subjects = subjects_of(bound)

    @functools.cache
    def drawn(seed: int, examples: int) -> dict[str, Arguments]:
        calls = (as_arguments(call) for call in drawn_calls(source, seed, examples, subjects))
        return {written_call(call).digest: call for call in calls}

    for golden in found:
        kept = golden.call
        if kept.complete:
            run_example(bound, _kept(goldens, golden))
        elif call := drawn(kept.seed, kept.examples).get(kept.digest):
            run_example(bound, call)
        else:
            bound.builder.goldens["lost"] += 1
    if bound.builder.examples:
        return ""
    return (
        "the calls of its goldens were too large to keep, and other calls are drawn now; "
        "record again"
    )


def _kept(goldens: Goldens, golden: Golden) -> Arguments:
    """The call of a golden.

    Raises:
      GoldenError: it is damaged.
    """
    value = read(golden.call.plain, goldens.store.inputs(golden))
    if not isinstance(value, tuple) or len(value) != 3:
        raise GoldenError(f"{golden}: this is no call; record again")
    args, options, tuning = value
    call = Arguments(args, options, tuning)
    if written_call(call).digest != golden.call.digest:
        raise GoldenError(f"{golden}: its call was changed; record again")
    return call
