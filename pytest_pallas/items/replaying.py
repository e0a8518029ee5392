"""Run the calls of goldens, instead of new draws: ``--pallas-golden=replay``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pytest_pallas.bindings.bound_checks import run_example, subjects_of
from pytest_pallas.checks.golden import Goldens, written_call
from pytest_pallas.errors import GoldenError
from pytest_pallas.goldens.values import call_of, read
from pytest_pallas.sampling.fuzzing import drawn_calls
from pytest_pallas.strategies.arguments import Arguments, as_arguments

if TYPE_CHECKING:
    from pytest_pallas.bindings.bound_checks import BoundCheck
    from pytest_pallas.goldens.entry import Golden
    from pytest_pallas.sampling.diversity import ExampleSource


def replay_goldens(bound: BoundCheck, goldens: Goldens, source: ExampleSource) -> str:
    """Run the check on the call of every golden.

    A call that was not kept is drawn again; if the draw is a different call now, the record counts
    it as lost.

    Returns:
      The reason why no call ran; "" if one ran.

    Raises:
      PallasError: an output is wrong, or differs from a golden.
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
        "the calls of its goldens were too large to keep, and the same seed now draws different "
        "ones; record again"
    )


def _kept(goldens: Goldens, golden: Golden) -> Arguments:
    """The call of a golden.

    Raises:
      GoldenError: it is damaged.
    """
    try:
        call = Arguments(*call_of(read(golden.call.plain, goldens.store.inputs(golden))))
    except GoldenError as error:
        raise GoldenError(f"{golden}: {error}; record again") from None
    if written_call(call).digest != golden.call.digest:
        raise GoldenError(f"{golden}: the call in the file was changed; record again")
    return call
