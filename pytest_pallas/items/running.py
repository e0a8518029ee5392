"""Run a bound check: fuzz drawn examples, compile a few calls, or replay goldens."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pallas_sim.errors import PallasError
from pytest_pallas.bindings.bound_checks import BoundCheck, run_example, subjects_of
from pytest_pallas.checks import Check
from pytest_pallas.checks.verdict import conclude
from pytest_pallas.database.recorded import Recorded
from pytest_pallas.isolation.messages import Part
from pytest_pallas.items import precompile
from pytest_pallas.items.parts.round_results import RoundOutcome, rounds_to_json
from pytest_pallas.items.parts.rounds import run_rounds
from pytest_pallas.items.replaying import replay_goldens
from pytest_pallas.items.time_budget import fuzz_for
from pytest_pallas.sampling.diversity import BASE, shared
from pytest_pallas.sampling.fuzzing import Fuzz, drawn_calls, fuzz, replay
from pytest_pallas.sampling.together import of_all
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments


@dataclass
class PartRun:
    """What a part of an item brought, besides its builder.

    Attributes:
      rounds: its rounds.
      fail: the error, baseline and multiple of its failure, as in the record; None if nothing
        failed, or a failure has no such.
      database: keeps the changes of the database of failing examples, if there is one.
    """

    rounds: list[RoundOutcome] = field(default_factory=list[RoundOutcome])
    fail: tuple[float | None, float | None, float | None] | None = None
    database: Recorded | None = None


def part_to_json(part: Part, run: PartRun, check: Check) -> dict[str, Any]:
    """The result of a part of rounds as plain JSON values.

    Raises:
      SpecError: the evidence of the check is no data.
    """
    return {
        "kind": part.kind,
        "first": part.first,
        "last": part.last,
        **rounds_to_json(run.rounds, check),
        "fail": None if run.fail is None else list(run.fail),
        "database": [] if run.database is None else run.database.changes,
    }


def run_bound(
    bound: BoundCheck,
    *,
    slot: Callable[[], float | None] = lambda: None,
    pulse: Callable[[], None] = lambda: None,
    rounds: Iterable[int] | None = None,
    part: PartRun | None = None,
) -> str:
    """Run the check on as many examples as the options give.

    Args:
      bound: the bound check.
      slot: returns the seconds to fuzz, when fuzzing starts; None for a number of examples.
      pulse: called after each round of fuzzing.
      rounds: numbers of the rounds to run; None for a number of examples, or a time.
      part: if these rounds are a part of the item, gets what they brought. Nothing is concluded
        then, and the database does not change.

    Returns:
      The reason why the check applies to no example; "" if it ran on one.

    Raises:
      PallasError: an output is wrong, or the kernel raised.
    """
    __tracebackhide__ = True
    replayed = bool(bound.options.replay)
    if bound.backend.kind == "compiling" and not replayed:
        _compile(bound, slot, pulse)
        return "" if bound.builder.examples else bound.builder.withdrawn
    builder = bound.builder
    try:
        missing = _fuzz(bound, slot, pulse, rounds, part)
    except PallasError as error:
        finding = None if error.failure is None else error.failure.finding
        if finding is not None and finding.failed is not None:
            builder.fail(finding.failed)  # later examples may have failed, too
            if part is not None:
                part.fail = (builder.error, builder.baseline, builder.multiple)
        raise
    if missing or (not builder.examples and builder.withdrawn):
        return missing or builder.withdrawn
    if not replayed and part is None:
        conclude(bound.check, builder.evidence, bound.spec.name, bound.backend)
    return ""


def example_key(spec: KernelSpec, check: str, root: Path) -> str:
    """The key of the failing examples of a check: ``mykernels/matmul_spec.py::matmul/forward``.

    Two specs of one name in two files share no examples. Machines do, wherever their folders are.

    Args:
      spec: the spec.
      check: name of the check.
      root: the folder that paths are relative to, as far as they are in it.
    """
    return f"{_same_on_all_machines(Path(spec.file), root)}::{spec.name}/{check}"


def _same_on_all_machines(file: Path, root: Path) -> str:
    installed = [n for n, part in enumerate(file.parts) if part.endswith("-packages")]
    if installed:
        return "/".join(file.parts[installed[-1] + 1 :])
    folders = [root, *sorted(map(Path, sys.path), key=lambda path: -len(path.parts))]
    folder = next((each for each in folders if each in file.parents), file.parent)
    return file.relative_to(folder).as_posix()


def _compile(
    bound: BoundCheck, slot: Callable[[], float | None], pulse: Callable[[], None]
) -> None:
    __tracebackhide__ = True
    try:
        precompile.run_all(bound)
    except PallasError as error:
        if bound.expected or not precompile.worth_shrinking(error):
            raise
        _fuzz(bound, slot, pulse)  # finds the same failure, and shrinks it
        raise


def _fuzz(
    bound: BoundCheck,
    slot: Callable[[], float | None],
    pulse: Callable[[], None],
    rounds: Iterable[int] | None = None,
    part: PartRun | None = None,
) -> str:
    """Run examples; returns the reason why there are none."""
    __tracebackhide__ = True
    session, options = bound.session, bound.options
    mutated = session.mutant is not None  # its saved failures are not replayed
    through: Any = None
    if part is not None and session.database is not None:
        through = Recorded(session.database)
        part.database = through
    what = Fuzz(
        run=functools.partial(run_example, bound),
        source=shared(session.sources, bound.source, bound.strategy),
        key=example_key(bound.spec, bound.check.name, session.harness.root),
        subjects=subjects_of(bound),
        shrink=not bound.expected and not mutated,
        database=None if mutated else of_all(session.database_for(bound.name, through=through)),
        elsewhere=(
            None
            if mutated
            else of_all(session.database_for(bound.name, others=True, through=through))
        ),
    )
    goldens = session.goldens
    if session.replayed is not None:
        run_example(bound, Arguments(*session.replayed.call))
    elif options.replay.blob:
        replay(what, options.replay.blob)
    elif goldens is not None and goldens.mode == "replay":
        return replay_goldens(bound, goldens, what.source)
    elif rounds is not None:
        first = functools.partial(_fuzz_examples, bound)
        log = None if part is None else part.rounds
        run_rounds(bound, what, rounds, first_round=first, seconds=slot(), pulse=pulse, log=log)
    elif (seconds := slot()) is not None:
        fuzz_for(what, seconds, seed=options.seed, max_examples=bound.examples, pulse=pulse)
    else:
        _fuzz_examples(bound, what)
    return ""


def _fuzz_examples(bound: BoundCheck, what: Fuzz) -> None:
    """Run the usual number of examples."""
    __tracebackhide__ = True
    fuzz(what, seed=bound.options.seed, max_examples=bound.examples)
    if not bound.builder.examples and bound.examples < BASE:
        _fuzz_until_one_counts(bound, what)


def _fuzz_until_one_counts(bound: BoundCheck, what: Fuzz) -> None:
    """Continue with further examples, if the check did not apply to the first ones."""
    __tracebackhide__ = True
    seed = bound.options.seed
    for number, call in enumerate(drawn_calls(what.source, seed, BASE, what.subjects), 1):
        try:
            what.run(call)
        except Exception:
            fuzz(what, seed=seed, max_examples=number)  # finds the same failure, and shrinks it
            raise
        if bound.builder.examples:
            return
