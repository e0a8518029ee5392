"""Run the examples that are drawn from a spec: ``run_drawn``.

What runs depends on the options: the usual number of examples, rounds, as many as fit a time, one
replayed example, or the calls of goldens. A compiling backend compiles the typical calls of the
spec, and half as many drawn ones.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax

from pallas_sim.coverage import Point, Reached
from pallas_sim.errors import PallasError
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.tracing import shape_of
from pytest_pallas.budget import ExampleBudget
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.golden import Goldens, written_call
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.checks.verdict import conclude, run_check
from pytest_pallas.coverage import reason_of
from pytest_pallas.draw.arguments import Arguments, as_arguments, larger_first
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.draw.database import Recorded
from pytest_pallas.draw.examples import FOR_PARTS, LEAST, choose, draw_name
from pytest_pallas.draw.growth import Growth
from pytest_pallas.draw.meshes import fixed_sizes, is_drawn
from pytest_pallas.errors import CompilerFailedError, GoldenError, facts_of
from pytest_pallas.pytest_session import Part
from pytest_pallas.record import Note
from pytest_pallas.replay.values import call_of, read
from pytest_pallas.run.agreement import of_all
from pytest_pallas.run.backends import run_on
from pytest_pallas.run.check_run import (
    CheckRun,
    check_run,
    context_of,
    diagnosed,
    replayed_call,
    run_example,
    subjects_of,
)
from pytest_pallas.run.fuzzing import Fuzz, drawn_calls, fuzz, replay
from pytest_pallas.run.rounds import RoundOutcome, fuzz_for, rounds_to_json, run_rounds
from pytest_pallas.spec import KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.draw.examples import ExampleSource
    from pytest_pallas.replay.goldens import Golden


@dataclass
class PartRun:
    """What a part of an item brought, besides its result.

    Attributes:
      rounds: its rounds.
      fail: the error, baseline and multiple of its failure, as in the record; None if nothing
        failed, or a failure has no such.
      database: keeps the changes of the database of failing examples, if there is one.
    """

    rounds: list[RoundOutcome] = field(default_factory=list[RoundOutcome])
    fail: tuple[float | None, float | None, float | None] | None = None
    database: Recorded | None = None


def part_to_json(part: Part, outcome: PartRun, check: Check) -> dict[str, Any]:
    """Return the result of a part of rounds as plain JSON values.

    Raises:
      SpecError: the evidence of the check is no data.
    """
    return {
        "kind": part.kind,
        "first": part.first,
        "last": part.last,
        **rounds_to_json(outcome.rounds, check),
        "fail": None if outcome.fail is None else list(outcome.fail),
        "database": [] if outcome.database is None else outcome.database.changes,
    }


def run_drawn(
    run: CheckRun,
    *,
    slot: Callable[[], float | None] = lambda: None,
    pulse: Callable[[], None] = lambda: None,
    rounds: Iterable[int] | None = None,
    part: PartRun | None = None,
) -> str:
    """Run the check on as many examples as the options give.

    Args:
      run: of the check, whose examples are drawn.
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
    replayed = bool(run.options.replay)
    if run.backend.kind == "compiling" and not replayed:
        _compile(run, slot, pulse)
        return "" if run.result.examples else run.result.withdrawn
    result = run.result
    try:
        missing = diagnosed(run, lambda: _fuzz(run, slot, pulse, rounds, part))
    except PallasError as error:
        check_result = None if facts_of(error).failure is None else facts_of(error).failure.result
        if check_result is not None and check_result.failed is not None:
            result.fail(check_result.failed)  # later examples may have failed, too
            if part is not None:
                part.fail = (result.error, result.baseline, result.multiple)
        raise
    if missing or (not result.examples and result.withdrawn):
        return missing or result.withdrawn
    if not replayed and part is None:
        conclude(run.check, result.evidence, run.name, run.backend)
        diagnosed(run, lambda: run_on_more_devices(run))
    return ""


def run_on_more_devices(run: CheckRun) -> None:
    """Run a check on three devices, or four, for a spec that lists meshes of fewer on an axis.

    On two devices one neighbour is everybody else, and on three two are: a barrier that hears from
    one is right on two only. Such a spec does not say that its kernel is for more, so what is out
    of order there counts only where the answer is right.

    Raises:
      RaceError, DmaError: what is out of order.
    """
    __tracebackhide__ = True
    spec, session = run.spec, run.session
    looks = run.check.base or run.check.watches
    if spec is None or run.mesh is None or run.backend.kind != "simulating" or not looks:
        return
    if gang() is not None or session.mutant is not None:
        return
    listed = [fixed_sizes(axes) for axes in spec.mesh_axes]
    smallest = min((s for s in listed if math.prod(s.values()) > 1), key=len, default={})
    most = max((size for sizes in listed for size in sizes.values()), default=0)
    if dict(run.sizes) != smallest or any(map(is_drawn, spec.mesh_axes)):
        return
    for axis in smallest:
        for count in range(most + 1, 5):
            context = _right_context(run, spec, smallest | {axis: count})
            if context is not None:
                run_check(run.check, context, run.name)
                break


def _right_context(
    run: CheckRun, spec: KernelSpec, sizes: Mapping[str, int]
) -> CheckContext | None:
    """Return the context of the simplest call on a mesh; None if its answer is not right there."""
    session = run.session
    try:
        fields = run_on(session, run.backend, spec, sizes, skips=False)
        other = check_run(session, run.backend, spec, check=run.check, node=run.node, **fields)
        drawn = draw_once(other.source.strategy)
        arguments = replace(as_arguments(drawn), mesh=sizes)
        context = context_of(other, arguments, trial=Runs())
        quiet = replace(context.settings, races=False, dma=False)
        answer = session.base.run(replace(context, settings=quiet, explained=False))
    except Exception:  # whatever a kernel, its inputs or its reference raise on such a mesh
        return None
    return None if answer.failed is not None else context


def example_key(spec: KernelSpec, check: str, root: Path) -> str:
    """Return the key of failing examples, as ``mykernels/matmul_spec.py::matmul/forward``.

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
    folder = next((path for path in folders if path in file.parents), file.parent)
    return file.relative_to(folder).as_posix()


def _compile(run: CheckRun, slot: Callable[[], float | None], pulse: Callable[[], None]) -> None:
    """Compile calls; a failure is shrunk by fuzzing."""
    __tracebackhide__ = True
    try:
        for arguments, typical in calls_to_compile(run):
            run_example(run, arguments, typical=typical)
    except PallasError as error:
        # Each attempt to shrink these may take the whole time limit.
        slow = error.timed_out or isinstance(error, CompilerFailedError)
        if not (run.expected or slow):
            _fuzz(run, slot, pulse)  # finds the same failure, and shrinks it
        raise


def fuzz_of(run: CheckRun, through: Any = None) -> Fuzz:
    """Return what to fuzz of a check; ``through`` stands for the database, where there is one."""
    session = run.session
    assert run.spec is not None
    mutated = session.mutant is not None  # its saved failures are not replayed
    database, elsewhere = (
        None if mutated else of_all(session.database_for(run.owner, others=others, through=through))
        for others in (False, True)
    )
    return Fuzz(
        run=functools.partial(run_example, run),
        source=run.source,
        key=example_key(run.spec, run.check.name, session.harness.root),
        subjects=subjects_of(run),
        shrink=not run.expected and not mutated,
        database=database,
        elsewhere=elsewhere,
        growth=_growth_of(run),
        fills=session.goldens is None,  # goldens are found among the draws
    )


def _growth_of(run: CheckRun) -> Growth | None:
    """Return the growth of a check's examples; None for checks and backends without.

    The base check's examples grow for all checks: each of its runs watches for races, too. Where it
    does not run, those grow of the sanitizers that need several blocks.
    """
    spec, session, steps = run.spec, run.session, run.options.growth_steps
    if spec is None or not steps or run.backend.kind != "simulating" or session.mutant is not None:
        return None
    chosen = {check.name for check in session.checks_for(run.options)}
    based = session.base.name in chosen.intersection(chosen if spec.checks is None else spec.checks)
    if not run.check.base and (based or run.check.subjects is not larger_first):
        return None

    def accepts(reached: Reached, way: str, points: Mapping[Point, Reached]) -> bool:
        return bool(reason_of(spec.unreached, reached, way, points))

    learned = session.tiles.get((spec.file, spec.name, *run.axes.items()), ({}, 0, None))
    depth = learned[1]
    return Growth(budget=steps, depth=depth, accepts=accepts, explain=run.result.explain)


def _fuzz(
    run: CheckRun,
    slot: Callable[[], float | None],
    pulse: Callable[[], None],
    rounds: Iterable[int] | None = None,
    part: PartRun | None = None,
) -> str:
    """Run examples; returns the reason why there are none."""
    __tracebackhide__ = True
    session, options = run.session, run.options
    through: Any = None
    if part is not None and session.database is not None:
        through = Recorded(session.database)
        part.database = through
    what = fuzz_of(run, through)
    goldens = session.goldens
    if session.replayed is not None:
        run_example(run, replayed_call(run, session.replayed))
    elif options.replay.blob:
        replay(what, options.replay.blob)
    elif goldens is not None and goldens.mode == "replay":
        return replay_goldens(run, goldens, what.source)
    elif rounds is not None:
        first = functools.partial(_fuzz_examples, run)
        log = None if part is None else part.rounds
        run_rounds(run, what, rounds, first_round=first, seconds=slot(), pulse=pulse, log=log)
    elif (seconds := slot()) is not None:
        fuzz_for(what, seconds, seed=options.seed, budget=run.budget, pulse=pulse)
    else:
        _fuzz_examples(run, what)
        if run.budget.ended:
            run.result.add_note(Note(str(run.budget), "run"))
    return ""


def _fuzz_examples(run: CheckRun, what: Fuzz) -> None:
    """Run the usual number of examples."""
    __tracebackhide__ = True
    fuzz(what, seed=run.options.seed, budget=run.budget)
    if not (run.result.examples or run.result.final):
        _fuzz_until_one_counts(run, what)


def _fuzz_until_one_counts(run: CheckRun, what: Fuzz) -> None:
    """Continue with the examples that other checks have, if it did not apply to the first ones."""
    __tracebackhide__ = True
    seed = run.options.seed
    count = LEAST if what.subjects is None else LEAST // FOR_PARTS
    if run.budget.count >= count:
        return
    budget = replace(run.budget, count=count, least=0, most=count)
    for number, drawn in enumerate(drawn_calls(what.source, seed, budget, what.subjects), 1):
        if draw_name(drawn) in what.passed:
            continue
        if not budget.goes_on:
            return
        try:
            what.run(drawn)
        except Exception:
            # It finds the same failure, and shrinks it.
            fuzz(what, seed=seed, budget=ExampleBudget.fixed(number, varies=budget.varies))
            raise
        if run.result.examples:
            return


# Compile the calls of a spec.


def calls_to_compile(run: CheckRun) -> Iterator[tuple[Any, bool]]:
    """Yield the calls that an item compiles, and whether they are typical."""
    typical: Any = run.spec.typical if run.spec else ()
    mesh = run.mesh
    if run.meshes:  # the largest with four devices or fewer
        mesh = max((mesh for mesh, _ in run.meshes), key=lambda mesh: (mesh.size <= 4, mesh.size))
    for call in cast("Sequence[Any]", typical(mesh) if callable(typical) else typical):
        arguments = as_arguments(call)
        if run.meshes:
            arguments = replace(arguments, mesh=dict(mesh.shape))
        yield arguments, True
    for arguments in _drawn(run):
        yield arguments, False


def _drawn(run: CheckRun) -> tuple[Any, ...]:
    """Drawn calls without their values, which are the same for every target."""
    options, drawn = run.options, run.session.drawn
    count = max(1, run.check.examples(options.max_examples) // 2)
    key = (*run.source_key, options.seed, count)
    calls = drawn.get(key)
    if calls is None:
        choice = choose(run.source.strategy, seed=options.seed, examples=count)
        calls = tuple(_abstract(as_arguments(drawn_call)) for drawn_call in choice.values())
        drawn.add(key, calls)
    return calls


def _abstract(arguments: Any) -> Any:
    """Arguments with shapes and dtypes instead of arrays, because a session keeps many."""
    args = jax.tree.map(
        lambda leaf: shape_of(leaf) if hasattr(leaf, "dtype") else leaf, arguments.args
    )
    return replace(arguments, args=args)


# Run the calls of goldens, instead of new draws: ``--pallas-golden=replay``.


def replay_goldens(run: CheckRun, goldens: Goldens, source: ExampleSource) -> str:
    """Run the check on the call of every golden.

    A call that was not kept is drawn again; if the draw is a different call now, the record counts
    it as lost.

    Returns:
      The reason why no call ran; "" if one ran.

    Raises:
      PallasError: an output is wrong, or differs from a golden.
    """
    __tracebackhide__ = True
    meshes = [dict(mesh.shape) for mesh, _ in run.meshes] or [run.sizes]
    kept_goldens = [one for sizes in meshes for one in goldens.of(run.name, run.check.name, sizes)]
    if not kept_goldens:
        return "the folder has no golden of it"

    subjects = subjects_of(run)

    @functools.cache
    def drawn(seed: int, examples: int) -> dict[tuple[str, str], Arguments]:
        budget = ExampleBudget.fixed(examples, varies=run.budget.varies)
        calls = (as_arguments(call) for call in drawn_calls(source, seed, budget, subjects))
        return {(written_call(call).digest, str(dict(call.mesh))): call for call in calls}

    for golden in kept_goldens:
        kept = golden.call
        if kept.complete:
            run_example(run, _kept(goldens, golden))
        elif call := drawn(kept.seed, kept.examples).get((kept.digest, str(dict(golden.mesh)))):
            run_example(run, call)
        else:
            run.result.goldens["lost"] += 1
    if run.result.examples:
        return ""
    return (
        "the calls of its goldens were too large to keep, and the same seed now draws different "
        "ones; record again"
    )


def _kept(goldens: Goldens, golden: Golden) -> Arguments:
    """Return the call of a golden.

    Raises:
      GoldenError: it is damaged.
    """
    try:
        plain = call_of(read(golden.call.plain, goldens.store.inputs(golden)))
    except GoldenError as error:
        raise GoldenError(f"{golden}: {error}; record again") from None
    call = Arguments(*plain, mesh=golden.mesh)
    if written_call(call).digest != golden.call.digest:
        raise GoldenError(f"{golden}: the call in the file was changed; record again")
    return call
