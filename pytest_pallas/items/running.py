"""Run a bound check: fuzz drawn examples, compile a few calls, or replay goldens."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_pallas.bindings.bound_checks import BoundCheck, run_example, subjects_of
from pytest_pallas.checks.verdict import conclude
from pytest_pallas.errors import PallasTestError
from pytest_pallas.items import precompile
from pytest_pallas.items.replaying import replay_goldens
from pytest_pallas.items.time_budget import fuzz_for
from pytest_pallas.sampling.diversity import BASE, shared
from pytest_pallas.sampling.fuzzing import Fuzz, drawn_calls, fuzz, replay
from pytest_pallas.sampling.together import of_all
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments


def run_bound(
    bound: BoundCheck,
    *,
    slot: Callable[[], float | None] = lambda: None,
    pulse: Callable[[], None] = lambda: None,
) -> str:
    """Run the check on as many examples as the options give.

    Args:
      bound: the bound check.
      slot: returns the seconds to fuzz, when fuzzing starts; None for a number of examples.
      pulse: called after each round of timed fuzzing.

    Returns:
      The reason why the check applies to no example; "" if it ran on one.

    Raises:
      PallasTestError: an output is wrong, or the kernel raised.
    """
    __tracebackhide__ = True
    replayed = bool(bound.options.replay)
    if bound.backend.kind == "compiling" and not replayed:
        _compile(bound, slot, pulse)
        return "" if bound.builder.examples else bound.builder.withdrawn
    builder = bound.builder
    try:
        missing = _fuzz(bound, slot, pulse)
    except PallasTestError as error:
        finding = None if error.failure is None else error.failure.finding
        if finding is not None and finding.failed is not None:
            builder.fail(finding.failed)  # later examples may have failed, too
        raise
    if missing or (not builder.examples and builder.withdrawn):
        return missing or builder.withdrawn
    if not replayed:
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
    except PallasTestError as error:
        if bound.expected or not precompile.worth_shrinking(error):
            raise
        _fuzz(bound, slot, pulse)  # finds the same failure, and shrinks it
        raise


def _fuzz(bound: BoundCheck, slot: Callable[[], float | None], pulse: Callable[[], None]) -> str:
    """Run examples; returns the reason why there are none."""
    __tracebackhide__ = True
    session, options = bound.session, bound.options
    mutated = session.mutant is not None  # its saved failures are not replayed
    what = Fuzz(
        run=functools.partial(run_example, bound),
        source=shared(session.sources, bound.source, bound.strategy),
        key=example_key(bound.spec, bound.check.name, session.harness.root),
        subjects=subjects_of(bound),
        shrink=not bound.expected and not mutated,
        database=None if mutated else of_all(session.database_for(bound.name)),
        elsewhere=None if mutated else of_all(session.database_for(bound.name, others=True)),
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
        if not bound.builder.examples and bound.examples < BASE:
            _fuzz_until_one_counts(bound, what)
    return ""


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
