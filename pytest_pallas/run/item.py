"""Start compilations of an item while earlier items still wait."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import pytest

from pallas_sim.errors import PallasError
from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.backends.processes import gang, process_words
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.tracing import shape_of
from pytest_pallas.budget import DEFAULT_MAX_BYTES, option_text
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import as_kernel_error, call
from pytest_pallas.checks.golden import Goldens, written_call
from pytest_pallas.checks.verdict import conclude, start
from pytest_pallas.draw.arguments import Arguments, as_arguments
from pytest_pallas.draw.database import Recorded
from pytest_pallas.draw.diversity import BASE, choose, shared
from pytest_pallas.errors import (
    DIED,
    EXPECTED,
    KERNEL_RUNS,
    RAISED_BY_KERNEL,
    CompilerFailedError,
    GoldenError,
    PeerError,
)
from pytest_pallas.isolate.isolator import NeedsIsolation
from pytest_pallas.isolate.leaks import leaving_nothing
from pytest_pallas.isolate.messages import Part
from pytest_pallas.pytest_session import PART_OUTCOME, RAISED, STOPPED_BY, current
from pytest_pallas.replay.values import call_of, read
from pytest_pallas.run.context import BoundCheck, context_of, run_example, subjects_of
from pytest_pallas.run.fuzzing import Fuzz, drawn_calls, fuzz, replay
from pytest_pallas.run.result import ResultBuilder
from pytest_pallas.run.rounds import RoundOutcome, fuzz_for, rounds_to_json, run_rounds
from pytest_pallas.run.together import of_all
from pytest_pallas.spec import ExpectedFailure, KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.draw.diversity import ExampleSource
    from pytest_pallas.replay.goldens import Golden
    from pytest_pallas.run.context import BoundCheck

#: Set on an item whose compilations have started.
_BEGUN = pytest.StashKey[bool]()


def begin(item: pytest.Item | None) -> None:
    """Start the compilations of an item, once.

    The item raises and reports any error here again.
    """

    if not isinstance(item, SpecItem) or _BEGUN in item.stash:
        return
    item.stash[_BEGUN] = True
    if any(item.iter_markers("skip")) or current(item.config).options.replay.blob:
        return
    session = current(item.config)
    with contextlib.suppress(Exception, OverdueError, pytest.skip.Exception):
        timeout = session.timeout(session.options_for(item))
        with leaving_nothing(session), ending_whole(timeout):
            bound = item.bound()
            for arguments, typical in _calls(bound):
                start(bound.check, context_of(bound, arguments, typical=typical))


def run_all(bound: BoundCheck) -> None:
    """Compile the typical calls of a spec, and half as many drawn calls as other backends run.

    Raises:
      PallasError: the first failure.
    """
    __tracebackhide__ = True
    for arguments, typical in _calls(bound):
        run_example(bound, arguments, typical=typical)


def worth_shrinking(error: PallasError) -> bool:
    """Whether to shrink a failure: not if each attempt may take the whole time limit."""
    return not (error.timed_out or isinstance(error, CompilerFailedError))


def _calls(bound: BoundCheck) -> Iterator[tuple[Any, bool]]:
    """The calls that an item compiles, and whether they are typical."""
    typical: Any = bound.spec.typical
    calls = cast("Sequence[Any]", typical(bound.mesh) if callable(typical) else typical)
    for given in calls:
        yield as_arguments(given), True
    for arguments in _drawn(bound):
        yield arguments, False


def _drawn(bound: BoundCheck) -> tuple[Any, ...]:
    """Drawn calls without their values, which are the same for every target."""
    options, drawn = bound.options, bound.session.drawn
    count = max(1, bound.check.examples(options.max_examples) // 2)
    key = (*bound.source, options.seed, count)
    found = drawn.get(key)
    if found is None:
        choice = choose(bound.strategy, seed=options.seed, examples=count)
        found = tuple(_abstract(as_arguments(each)) for each in choice.chosen.values())
        drawn.add(key, found)
    return found


def _abstract(arguments: Any) -> Any:
    """Arguments with shapes and dtypes instead of arrays, because a session keeps many."""
    args = jax.tree.map(
        lambda leaf: shape_of(leaf) if hasattr(leaf, "dtype") else leaf, arguments.args
    )
    return dataclasses.replace(arguments, args=args)


# Run the calls of goldens, instead of new draws: ``--pallas-golden=replay``.


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


# Run a bound check: fuzz drawn examples, compile a few calls, or replay goldens.


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
        run_all(bound)
    except PallasError as error:
        if bound.expected or not worth_shrinking(error):
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
    for number, drawn in enumerate(drawn_calls(what.source, seed, BASE, what.subjects), 1):
        try:
            what.run(drawn)
        except Exception:
            fuzz(what, seed=seed, max_examples=number)  # finds the same failure, and shrinks it
            raise
        if bound.builder.examples:
            return


# The pytest item of a check of a spec; after a kernel raises, its other items do not run.
#
# They would raise the same error. An expected error stops only checks that are expected to fail,
# too. Each process records this for itself, because pytest-xdist may distribute the items of a
# spec.


#: Begins each further failure of a check.
ANOTHER = "another failure, of another cause"


def skip_if_raised(item: SpecItem) -> None:
    """Skip an item if its kernel raised in an earlier item of this process."""
    found = current(item.config).raised.get(item.place)
    if found is None or item.check.base:
        return
    check, name, expected = found
    if expected and not item.expected:
        return
    _ = item.builder  # for the record of this item
    item.stash[STOPPED_BY] = name
    pytest.skip(f"{check} raised; see `{name}`")


def settle(item: SpecItem, error: PallasError) -> None:
    """Record on an item whether its kernel raised, for its report."""
    if _raises(item, error):
        item.stash[RAISED] = (item.place, item.check.name, item.name, item.expected)


def _raises(item: SpecItem, error: PallasError) -> bool:
    """Whether the kernel itself raises, independent of the check."""
    if isinstance(error, PeerError):
        return error.kernel_raised and item.check.base
    if not isinstance(error, RAISED_BY_KERNEL) or isinstance(error, KERNEL_RUNS):
        return False
    if item.check.base:
        return True
    if error.failure is None:  # its process died
        return False
    if gang() is not None or error.timed_out:
        # The other processes would not take part in another run; or that would take as long.
        return False
    from pytest_pallas.isolate.leaks import leaving_nothing

    context = error.failure.context
    try:
        with leaving_nothing(current(item.config)):
            outcome = context.backend.run(call(context, context.kernel, context.arguments.args))
    except NeedsIsolation:  # it must not be executed in this process
        return False
    if outcome.error is None:
        return False
    return isinstance(as_kernel_error(outcome.error), RAISED_BY_KERNEL)


def node_id(parent: pytest.Collector, name: str) -> str:
    """The node id as text. pytest 9.2 changes a name in brackets, so that --lf fails."""
    return f"{parent.nodeid}::{name}"


def item_name(spec: KernelSpec, check: str, backend: Backend, mesh: Mapping[str, int]) -> str:
    """The name of the item of a check."""
    place = label(backend) + "".join(f"-{axis}{size}" for axis, size in mesh.items())
    return f"{spec.name}-{check}[{place}]"


class SpecItem(pytest.Item):
    """One check of one spec on one backend and mesh."""

    spec: KernelSpec
    check: Check
    backend: Backend
    mesh: Mapping[str, int]
    before: Sequence[Backend]

    @classmethod
    def from_parent(
        cls,
        parent: Any,
        *,
        spec: KernelSpec,
        check: Check,
        backend: Backend,
        mesh: Mapping[str, int],
        before: Sequence[Backend] = (),
        name: str = "",
        **rest: Any,
    ) -> SpecItem:
        """The item ``spec-check[backend-mesh]``, or with another name."""
        name = name or item_name(spec, check.name, backend, mesh)
        self = super().from_parent(parent, name=name, nodeid=node_id(parent, name), **rest)
        self.spec, self.check, self.backend, self.mesh = spec, check, backend, mesh
        self.before = before
        self.extra_keyword_matches |= {spec.name, spec.family, check.name, backend.name}
        failure = expected_failure(spec, backend, check)
        if failure is not None:
            reason = f"{failure.reason} (JAX {failure.jax})"
            self.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=EXPECTED))
        return self

    @property
    def place(self) -> str:
        """The key of kernel, backend and mesh; items with this key stop if the kernel raises."""
        return self.id_of("")

    def id_of(self, check: str) -> str:
        """The node id of another check of the same kernel, backend and mesh."""
        assert self.parent is not None
        return node_id(self.parent, item_name(self.spec, check, self.backend, self.mesh))

    @property
    def builder(self) -> ResultBuilder:
        """The builder of this item, made at its first use."""
        from pytest_pallas.run.context import builder_of

        session, place = current(self.config), label(self.backend)
        return builder_of(session, self.spec, self.check.name, self.backend, self.mesh, place)

    @property
    def headline(self) -> str:
        """The start of its messages."""
        return f"{self.spec.name}: {self.check.name} on {label(self.backend)}"

    def runtest(self) -> None:
        """Run the check, here or in its own process."""
        from pytest_pallas.isolate.isolator import isolator_of

        __tracebackhide__ = True
        skip_if_raised(self)
        isolator = isolator_of(self.config)
        try:
            if isolator is None:  # this is that process
                self._run_here()
            else:
                isolator.run(self, self._run_here)
        except PallasError as error:
            settle(self, error)
            raise

    def _run_here(self) -> None:
        """Fuzz the check, or compile it for a few calls, and check for leaks."""
        from pytest_pallas.isolate.leaks import guarded

        __tracebackhide__ = True
        if self.backend.kind in ("simulating", "interpreting"):
            import jax

            jax.devices("cpu")  # starting JAX changes settings
        with guarded(current(self.config), self.headline, self.place):
            self._run()

    def _run(self) -> None:
        from pytest_pallas.isolate.worker import PART

        __tracebackhide__ = True
        progress: Any = self.config.pluginmanager.get_plugin("pallas-progress")

        def pulse() -> None:
            if progress is not None:
                progress.pulse(self.builder.examples)

        requested = self.stash.get(PART, None)
        part = None if requested is None else PartRun()
        try:
            requirement = run_bound(
                self.bound(), slot=self.slot, pulse=pulse, rounds=self.rounds(), part=part
            )
        finally:
            if requested is not None and part is not None:
                self.stash[PART_OUTCOME] = part_to_json(requested, part, self.check)
        if requirement:
            self.builder.withdrawn = requirement
            pytest.skip(not_applicable(self.check, requirement))

    def bound(self) -> BoundCheck:
        """The check bound to backend and mesh; skips if there are too few devices."""
        from pytest_pallas.run.context import bind

        session = current(self.config)
        return bind(
            session,
            self,
            options=session.options_for(self),
            spec=self.spec,
            check=self.check,
            backend=self.backend,
            mesh=self._devices(),
            sizes=self.mesh,
            before=self.before,
            name=self.name,  # the same on every machine
            test=f"{self.spec.name}-{self.check.name}",
            place=label(self.backend),
            expected=self.expected,
            left_out=lambda check: self.id_of(check) in session.not_applicable,
        )

    def slot(self) -> float | None:
        """Seconds to fuzz, of the session's time; None if it draws a number of examples.

        Computed when the item starts, because earlier items leave unused time.
        """
        from pytest_pallas.isolate.worker import PART, SECONDS
        from pytest_pallas.run.rounds import time_budget_of

        options = current(self.config).options_for(self)
        if PART in self.stash:
            return self.stash.get(SECONDS, None)
        if not options.fuzz_time or not self.fuzzes:
            return None
        if SECONDS not in self.stash:
            clock = time_budget_of(self.config, self.session.items, options.fuzz_time)
            self.stash[SECONDS] = clock.slot(self.nodeid)
        return self.stash[SECONDS]

    def rounds(self) -> Iterable[int] | None:
        """The numbers of the rounds to fuzz; None without ``--pallas-fuzz-rounds`` and parts."""
        from pytest_pallas.isolate.worker import PART

        count = current(self.config).options_for(self).fuzz_rounds
        part = self.stash.get(PART, None)
        if part is not None:
            last = min(part.last, count - 1) if count else part.last
            return range(part.first, last + 1)
        return range(count) if count and self.fuzzes else None

    @property
    def fuzzes(self) -> bool:
        """Whether it may draw more than a fixed number of examples."""
        replay = current(self.config).options_for(self).replay
        return not replay and self.backend.kind != "compiling" and not self.expected

    @property
    def expected(self) -> bool:
        """Whether the item is expected to fail, so that it does not shrink."""
        return bool(list(self.iter_markers("xfail")))

    def _devices(self) -> Any:
        """The mesh to run on, or None."""
        if not self.mesh:
            return None
        from pytest_pallas.run.backends import mesh_or_skip

        return mesh_or_skip(current(self.config), self.backend, self.mesh)

    def replay(self, error: BaseException) -> str:
        """The command that runs the failing example again."""
        from pytest_pallas.run.fuzzing import blob_of

        options = current(self.config).options_for(self)
        words = ["pytest"]
        if options.suite:
            words.append(f"--pallas-suite={','.join(options.suite)}")
        words.append(f"--pallas-backend={label(self.backend)}")
        if options.devices != 8:
            words.append(f"--pallas-devices={options.devices}")
        words += process_words()
        if options.max_bytes != DEFAULT_MAX_BYTES:  # it determines the drawn shapes
            words.append(f"--pallas-max-bytes={option_text(options.max_bytes)}")
        if options.arithmetic:
            words.append(f"--pallas-arithmetic={options.arithmetic}")
        again = options.replay.file or blob_of(error) or options.replay.blob
        words.append(f"--pallas-replay={again}" if again else f"--pallas-seed={options.seed}")
        if isinstance(error, DIED):
            words.append("--pallas-isolate=always")
        words.append(self.nodeid)
        return " ".join(shlex.quote(word) for word in words)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The explanation and the replay command; a traceback only for unexpected errors."""
        error = excinfo.value
        if not isinstance(error, PallasError):
            return super().repr_failure(excinfo, style)
        command = self.replay(error)
        text = f"{error}\n  replay    {command}{self._script(error, command)}"
        for number, other in enumerate(error.others, 2):
            text += f"\n{ANOTHER}:\n{other}{self._script(other, '', number)}"
        if error.kernel_error is not None and self.config.get_verbosity() > 1:
            text += "\n" + "".join(traceback.format_exception(error.kernel_error)).rstrip()
        return text

    def _script(self, error: PallasError, command: str, number: int = 1) -> str:
        """The line with the path of a failure's script; "" without one."""
        if self.expected or error.failure is None:
            return ""
        from pytest_pallas.isolate.leaks import leaving_nothing
        from pytest_pallas.replay.saved import save

        session = current(self.config)
        with leaving_nothing(session):  # it may trace the kernel again
            saved = save(session, self, error, command, number=number)
        example = getattr(saved, "example", None)
        words = "" if example is None else f"\n  example   {example}"
        return f"\n  script    {saved}{words}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip


def not_applicable(check: Check, requirement: str) -> str:
    """The reason of an item whose check applies to no example."""
    return f"{check.name}: not applicable ({requirement})"


def expected_failure(spec: KernelSpec, backend: Backend, check: Check) -> ExpectedFailure | None:
    """The expected failure of a spec for a backend and check, by label first, then by name.

    Hardware has those of its simulator besides, unless these say otherwise.
    """
    own = (label(backend), backend.name)
    simulated = tuple(key.replace(backend.name, f"{backend.platform}-sim", 1) for key in own)
    for key in (*own, *(simulated if backend.kind == "hardware" else ())):
        failure = spec.xfail.get(key)
        if failure is None or not failure.covers(check.name, executes=check.executes):
            continue
        if key in own or failure.hardware:
            return failure
    return None
