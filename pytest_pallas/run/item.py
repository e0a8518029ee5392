"""``SpecItem``: the pytest item of one check of a spec on one backend and mesh.

After a kernel raises, its other items do not run: they would raise the same error. An expected
error stops only checks that are expected to fail, too. Each process records this for itself,
because pytest-xdist may distribute the items of a spec.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import PallasError
from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.backends.processes import gang, process_arguments
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.budget import option_text
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import as_kernel_error, call
from pytest_pallas.checks.verdict import start
from pytest_pallas.draw.meshes import MeshAxes, fixed_sizes
from pytest_pallas.errors import (
    DIED,
    EXPECTED,
    KERNEL_RUNS,
    RAISED_BY_KERNEL,
    DeviceLostError,
    NeedsIsolation,
    PeerError,
    facts_of,
    witness_of,
)
from pytest_pallas.isolate.leaks import leaving_nothing
from pytest_pallas.options import Options
from pytest_pallas.pytest_session import (
    PART,
    PART_OUTCOME,
    RAISED,
    SECONDS,
    STOPPED_BY,
    PytestSession,
    current,
)
from pytest_pallas.run.backends import expected_failure, run_on
from pytest_pallas.run.causes import title_of
from pytest_pallas.run.check_run import CheckRun, check_run, context_of, item_name, place_name
from pytest_pallas.run.commands import command_of
from pytest_pallas.run.drawn import PartRun, calls_to_compile, part_to_json, run_drawn
from pytest_pallas.run.fuzzing import blob_of
from pytest_pallas.run.result import Result
from pytest_pallas.spec import KernelSpec

#: Set on an item whose compilations have started.
_BEGUN = pytest.StashKey[bool]()


def begin(item: pytest.Item | None) -> None:
    """Start the compilations of an item, once.

    The item raises and reports any error here again.
    """

    if not isinstance(item, SpecItem) or _BEGUN in item.stash:
        return
    item.stash[_BEGUN] = True
    if any(item.iter_markers("skip")) or item.state.options.replay.blob:
        return
    session = item.state
    with contextlib.suppress(Exception, OverdueError, pytest.skip.Exception):
        timeout = session.timeout(item.options)
        with leaving_nothing(session), ending_whole(timeout):
            run = item.check_run()
            for arguments, typical in calls_to_compile(run):
                start(run.check, context_of(run, arguments, typical=typical))


def skip_if_raised(item: SpecItem) -> None:
    """Skip an item if its kernel raised in an earlier item of this process."""
    raised = item.state.raised.get(item.kernel_key)
    if raised is None or item.check.base:
        return
    check, name, expected = raised
    if expected and not item.expected:
        return
    _ = item.result  # for the record of this item
    item.stash[STOPPED_BY] = name
    pytest.skip(f"{check} raised; see `{name}`")


def record_raise(item: SpecItem, error: PallasError) -> None:
    """Record on an item whether its kernel raised, for its report."""
    if _raises(item, error):
        item.stash[RAISED] = (item.kernel_key, item.check.name, item.name, item.expected)


def _raises(item: SpecItem, error: PallasError) -> bool:
    """Return whether the kernel itself raises, independent of the check."""
    if isinstance(error, PeerError):
        return error.kernel_raised and item.check.base
    if not isinstance(error, RAISED_BY_KERNEL) or isinstance(error, KERNEL_RUNS):
        return False
    if item.check.base:
        return True
    if facts_of(error).failure is None:  # its process died
        return False
    if gang() is not None or error.timed_out:
        # The other processes would not take part in another run; or that would take as long.
        return False
    from pytest_pallas.isolate.leaks import leaving_nothing

    context = facts_of(error).failure.context
    try:
        with leaving_nothing(item.state):
            outcome = context.backend.run(call(context, context.kernel, context.arguments.args))
    except NeedsIsolation:  # it must not be executed in this process
        return False
    if outcome.error is None:
        return False
    return isinstance(as_kernel_error(outcome.error), RAISED_BY_KERNEL)


def node_id(parent: pytest.Collector, name: str) -> str:
    """Return the node id as text. pytest 9.2 changes a name in brackets, so that --lf fails."""
    return f"{parent.nodeid}::{name}"


class SpecItem(pytest.Item):
    """One check of one spec on one backend and mesh."""

    spec: KernelSpec
    check: Check
    backend: Backend
    axes: MeshAxes
    before: Sequence[Backend]

    @classmethod
    def from_parent(
        cls,
        parent: Any,
        *,
        spec: KernelSpec,
        check: Check,
        backend: Backend,
        axes: MeshAxes,
        before: Sequence[Backend] = (),
        name: str = "",
        **rest: Any,
    ) -> SpecItem:
        """Return the item ``spec-check[backend-mesh]``, or with another name."""
        name = name or item_name(spec, check.name, backend, axes)
        self = super().from_parent(parent, name=name, nodeid=node_id(parent, name), **rest)
        self.spec, self.check, self.backend, self.axes = spec, check, backend, axes
        self.before = before
        self.extra_keyword_matches |= {spec.name, spec.family, check.name, backend.name}
        failure = expected_failure(spec, backend, check)
        if failure is not None:
            reason = f"{failure.reason} (JAX {failure.jax})"
            self.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=EXPECTED))
        return self

    @property
    def state(self) -> PytestSession:
        """The state of the plugin."""
        return current(self.config)

    @property
    def options(self) -> Options:
        """The options as they hold for this item."""
        return self.state.options_for(self)

    @property
    def kernel_key(self) -> str:
        """The key of kernel, backend and mesh; items with this key stop if the kernel raises."""
        return self.id_of("")

    def id_of(self, check: str) -> str:
        """Return the node id of another check of the same kernel, backend and mesh."""
        assert self.parent is not None
        return node_id(self.parent, item_name(self.spec, check, self.backend, self.axes))

    @property
    def result(self) -> Result:
        """The result of this item, made at its first use."""
        results = self.state.results
        key = (self.spec.name, self.check.name, place_name(self.backend, self.axes))
        return results.setdefault(key, self.new_result())

    def new_result(self) -> Result:
        """Return a result without examples."""
        return Result.of(self.spec, self.check.name, self.backend, fixed_sizes(self.axes))

    @property
    def headline(self) -> str:
        """The start of its messages."""
        return f"{self.spec.name}: {self.check.name} on {label(self.backend)}"

    def runtest(self) -> None:
        """Run the check, here or in its own process."""
        __tracebackhide__ = True
        skip_if_raised(self)
        try:
            self.state.run_item(self, self._run_here)
        except PallasError as error:
            record_raise(self, error)
            raise

    def _run_here(self) -> None:
        """Fuzz the check, or compile it for a few calls, and check for leaks."""
        from pytest_pallas.isolate.leaks import guarded

        __tracebackhide__ = True
        if self.backend.kind in ("simulating", "interpreting"):
            import jax

            jax.devices("cpu")  # starting JAX changes settings
        with guarded(self.state, self.headline, self.kernel_key):
            self._run()

    def _run(self) -> None:
        __tracebackhide__ = True
        progress: Any = self.config.pluginmanager.get_plugin("pallas-progress")

        def pulse() -> None:
            if progress is not None:
                progress.pulse(self.result.examples)

        requested = self.stash.get(PART, None)
        part = None if requested is None else PartRun()
        try:
            requirement = run_drawn(
                self.check_run(), slot=self.slot, pulse=pulse, rounds=self.rounds(), part=part
            )
        finally:
            if requested is not None and part is not None:
                self.stash[PART_OUTCOME] = part_to_json(requested, part, self.check)
        if requirement:
            self.result.withdrawn = requirement
            pytest.skip(not_applicable(self.check, requirement))

    def check_run(self) -> CheckRun:
        """Return the run of the check; skips if there are too few devices."""
        session = self.state
        return check_run(
            session,
            self.backend,
            self.spec,
            **run_on(session, self.backend, self.spec, self.axes),
            node=self,
            check=self.check,
            drawn=True,
            before=self.before,
            test=f"{self.spec.name}-{self.check.name}",
            expected=self.expected,
            left_out=lambda check: self.id_of(check) in session.not_applicable,
        )

    def slot(self) -> float | None:
        """Seconds to fuzz, of the session's time; None if it draws a number of examples.

        Computed when the item starts, because earlier items leave unused time.
        """
        if PART in self.stash:
            return self.stash.get(SECONDS, None)
        options = self.options
        if not options.fuzz_time or not self.fuzzes:
            return None
        if SECONDS not in self.stash:
            clock = time_budget_of(self.config, self.session.items, options.fuzz_time)
            self.stash[SECONDS] = clock.slot(self.nodeid)
        return self.stash[SECONDS]

    def rounds(self) -> Iterable[int] | None:
        """Return the numbers of the rounds to fuzz; None if the item has no rounds."""
        count = self.options.fuzz_rounds
        part = self.stash.get(PART, None)
        if part is not None:
            last = min(part.last, count - 1) if count else part.last
            return range(part.first, last + 1)
        return range(count) if count and self.fuzzes else None

    @property
    def fuzzes(self) -> bool:
        """Whether it may draw more than a fixed number of examples."""
        replay = self.options.replay
        return not replay and self.backend.kind != "compiling" and not self.expected

    @property
    def expected(self) -> bool:
        """Whether the item is expected to fail, so that it does not shrink."""
        return bool(list(self.iter_markers("xfail")))

    def replay(self, error: BaseException) -> str:
        """Return the command that runs the failing example again."""
        options = self.options
        command: list[str] = []
        if options.suite:
            command.append(f"--pallas-suite={','.join(options.suite)}")
        command.append(f"--pallas-backend={label(self.backend)}")
        if options.devices != 8:
            command.append(f"--pallas-devices={options.devices}")
        command += process_arguments()
        if options.max_bytes != Options.max_bytes:  # it determines the drawn shapes
            command.append(f"--pallas-max-bytes={option_text(options.max_bytes)}")
        if options.arithmetic:
            command.append(f"--pallas-arithmetic={options.arithmetic}")
        if options.read_fences:
            command.append(f"--pallas-read-fences={options.read_fences}")
        if witness := witness_of(error):
            command.append(f"--pallas-witness={witness}")
        again = options.replay.file or blob_of(error) or options.replay.blob
        command.append(f"--pallas-replay={again}" if again else f"--pallas-seed={options.seed}")
        if isinstance(error, DIED):
            command.append("--pallas-isolate=always")
        return command_of(self, command)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the explanation and the replay command; a traceback only for unexpected errors."""
        error = excinfo.value
        if not isinstance(error, PallasError):
            return super().repr_failure(excinfo, style)
        command = self.replay(error)
        text = f"{error}\n  replay    {command}{self._script(error, command)}"
        for number, other in enumerate(facts_of(error).others, 2):
            text += f"\n{title_of(other)}:\n{other}{self._script(other, '', number)}"
        raised = facts_of(error).kernel_error
        if raised is not None and self.config.get_verbosity() > 1:
            text += "\n" + "".join(traceback.format_exception(raised)).rstrip()
        return text

    def _script(self, error: PallasError, command: str, number: int = 1) -> str:
        """Return the line with the path of a failure's script; "" without one."""
        if self.expected or facts_of(error).failure is None or isinstance(error, DeviceLostError):
            return ""
        from pytest_pallas.isolate.leaks import leaving_nothing
        from pytest_pallas.replay.saved import save

        session = self.state
        with leaving_nothing(session):  # it may trace the kernel again
            saved = save(session, self, error, command, number=number)
        example = getattr(saved, "example", None)
        line = "" if example is None else f"\n  example   {example}"
        return f"\n  script    {saved}{line}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip


def not_applicable(check: Check, requirement: str) -> str:
    """Return the reason of an item whose check applies to no example."""
    return f"{check.name}: not applicable ({requirement})"


# How the time of ``--pallas-fuzz-time`` and ``--pallas-mutate-time`` is distributed over items.


#: The clock of a session, made when its first item starts.
CLOCK = pytest.StashKey["TimeBudget"]()


@dataclass
class TimeBudget:
    """Distributes the time over items.

    All kernels get equal times, which their items share. Later items share the unused time of
    earlier ones. Under xdist, each process distributes the time over its own items.

    Attributes:
      seconds: the time of the session.
      weights: weights of the items that fuzz, by node id; those of a kernel add up to 1.
      processes: number of processes that run the items.
      started: start of the first item, by ``time.monotonic``.
    """

    seconds: float
    weights: Mapping[str, float]
    processes: int = 1
    started: float = field(default_factory=lambda: time.monotonic())
    done: float = 0.0

    def slot(self, nodeid: str) -> float:
        """Seconds for an item that starts now."""
        weight = self.weights.get(nodeid, 0.0)
        left = max(sum(self.weights.values()) - self.processes * self.done, weight)
        self.done += weight
        spent = time.monotonic() - self.started
        return max(0.0, self.seconds - spent) * self.processes * weight / left if left else 0.0


def time_budget_of(config: pytest.Config, items: list[pytest.Item], seconds: float) -> TimeBudget:
    """Return the clock of a session, which starts at the first call.

    Tests that an earlier part of the run has done had their part of the time.
    """
    if CLOCK not in config.stash:
        workers = getattr(config, "workerinput", {}).get("workercount", 1)  # of pytest-xdist
        weigh = weights([*current(config).done_items, *items])
        left = {item.nodeid: weigh.get(item.nodeid, 0.0) for item in items}
        every = sum(weigh.values())
        share = sum(left.values()) / every if every else 1.0
        config.stash[CLOCK] = TimeBudget(seconds * share, left, workers)
    return config.stash[CLOCK]


def weights(items: Sequence[pytest.Item]) -> Mapping[str, float]:
    """Return the share of each item that fuzzes, by node id; those of a kernel add up to 1."""
    fuzzed = {item.nodeid: item.spec.name for item in _fuzzing(items)}
    counts = Counter(fuzzed.values())
    return {nodeid: 1 / counts[name] for nodeid, name in fuzzed.items()}


def _fuzzing(items: Sequence[pytest.Item]) -> Iterator[Any]:
    """Yield the items that use all of their time."""
    for item in items:
        if (
            isinstance(item, SpecItem)
            and item.backend.kind != "compiling"
            and not any(item.iter_markers("skip"))
            and not any(item.iter_markers("xfail"))
        ):
            yield item
