"""The pytest item of a check of a spec; after a kernel raises, its other items do not run.

They would raise the same error. An expected error stops only checks that are expected to fail, too.
Each process records this for itself, because pytest-xdist may distribute the items of a spec.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import PallasError
from pytest_pallas.backends import Backend, label
from pytest_pallas.budget import DEFAULT_MAX_BYTES, option_text
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import as_kernel_error, call
from pytest_pallas.devices.processes import gang, process_words
from pytest_pallas.errors import DIED, EXPECTED, KERNEL_RUNS, RAISED_BY_KERNEL, PeerError
from pytest_pallas.isolation.isolator import NeedsIsolation
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.session import PART_OUTCOME, RAISED, STOPPED_BY, current
from pytest_pallas.spec import ExpectedFailure, KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.bindings.bound_checks import BoundCheck

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
    from pytest_pallas.isolation.leaks import leaving_nothing

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
        from pytest_pallas.bindings.bound_checks import builder_of

        session, place = current(self.config), label(self.backend)
        return builder_of(session, self.spec, self.check.name, self.backend, self.mesh, place)

    @property
    def headline(self) -> str:
        """The start of its messages."""
        return f"{self.spec.name}: {self.check.name} on {label(self.backend)}"

    def runtest(self) -> None:
        """Run the check, here or in its own process."""
        from pytest_pallas.isolation.isolator import isolator_of

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
        from pytest_pallas.isolation.leaks import guarded

        __tracebackhide__ = True
        if self.backend.kind in ("simulating", "interpreting"):
            import jax

            jax.devices("cpu")  # starting JAX changes settings
        with guarded(current(self.config), self.headline, self.place):
            self._run()

    def _run(self) -> None:
        from pytest_pallas.isolation.worker import PART
        from pytest_pallas.items.running import PartRun, part_to_json, run_bound

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
        from pytest_pallas.bindings.bound_checks import bind

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
        from pytest_pallas.isolation.worker import PART, SECONDS
        from pytest_pallas.items.time_budget import time_budget_of

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
        from pytest_pallas.isolation.worker import PART

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
        from pytest_pallas.bindings.backends import mesh_or_skip

        return mesh_or_skip(current(self.config), self.backend, self.mesh)

    def replay(self, error: BaseException) -> str:
        """The command that runs the failing example again."""
        from pytest_pallas.sampling.fuzzing import blob_of

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
        from pytest_pallas.isolation.leaks import leaving_nothing
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
