"""Specs as pytest nodes: a file or suite collects one item per spec, check, backend and mesh."""

from __future__ import annotations

import functools
import shlex
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pallas.backends import Backend, label
from pytest_pallas.budget import DEFAULT_MAX_BYTES, option_text
from pytest_pallas.checks import Check
from pytest_pallas.errors import (
    EXPECTED,
    OptionError,
    PallasTestError,
    SpecError,
    TooFewDevicesError,
)
from pytest_pallas.options import Options, choose
from pytest_pallas.session import Session, current
from pytest_pallas.spec import ExpectedFailure, KernelSpec
from pytest_pallas.suites.discovery import specs_in
from pytest_pallas.suites.others import backends_before
from pytest_pallas.tally import Tally

if TYPE_CHECKING:
    from pytest_pallas.suites.fuzzing import Fuzz
    from pytest_pallas.suites.questions import Question

#: Which modules of a suite were collected, and whether they define specs.
DEFINED = pytest.StashKey[dict[str, bool]]()


class SpecFile(pytest.File):
    """A Python file of a suite; collects the specs that it defines."""

    @classmethod
    def from_parent(cls, parent: Any, *, module: str, **rest: Any) -> SpecFile:
        """The node for the file of ``module``."""
        self = super().from_parent(parent, **rest)
        self.module = module
        return self

    module: str

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The items of every spec in the file."""
        try:
            specs = specs_in(self.module)
        except SpecError as error:
            raise self.CollectError(str(error)) from None
        self.config.stash.setdefault(DEFINED, {})[self.module] = bool(specs)
        for spec in specs:
            yield from spec_nodes(self, spec)


class SpecSuite(pytest.Collector):
    """Specs that come from elsewhere than a file of a suite: a hook, or a line in a test module."""

    @classmethod
    def from_parent(
        cls, parent: Any, *, specs: Callable[[], Iterable[KernelSpec | SpecError]], **rest: Any
    ) -> SpecSuite:
        """The node for what ``specs()`` returns."""
        self = super().from_parent(parent, **rest)
        self.specs = specs
        return self

    specs: Callable[[], Iterable[KernelSpec | SpecError]]

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The items of every spec, and a node for every error."""
        names: set[str] = set()
        for spec in self.specs():
            if isinstance(spec, SpecError):
                yield WrongSpec.from_parent(self, name=self.name, problem=str(spec))
            elif spec.name in names:
                problem = f"{self.name} has two specs with the name {spec.name!r}; see {spec.file}"
                yield WrongSpec.from_parent(self, name=spec.name, problem=problem)
            else:
                names.add(spec.name)
                yield from spec_nodes(self, spec)


class WrongSpec(pytest.Collector):
    """A spec that cannot be verified: an error at collection, beside the specs that can."""

    problem: str

    @classmethod
    def from_parent(cls, parent: Any, *, problem: str, **rest: Any) -> WrongSpec:
        """The node that reports ``problem``."""
        self = super().from_parent(parent, **rest)
        self.problem = problem
        return self

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Report the problem."""
        raise self.CollectError(self.problem)


def spec_nodes(
    parent: pytest.Collector, spec: KernelSpec
) -> Iterator[pytest.Item | pytest.Collector]:
    """The items of one spec, or one node that says what is wrong with it."""
    from pytest_pallas.suites.validation import problem_with

    session = current(parent.config)
    problem = problem_with(spec, session.checks, session.families)
    if problem is not None:
        text = f"spec {spec.name!r} in {spec.file}: {problem}"
        yield WrongSpec.from_parent(parent, name=spec.name, problem=text)
        return
    backends, named = _backends(session, parent)
    for backend in backends:
        if not spec.claims(label(backend)):
            if named:
                yield UnclaimedItem.from_parent(parent, spec=spec, backend=backend)
            continue
        before = backends_before(spec, backend, backends)
        for check in _checks(session, parent, spec, backend, before):
            for mesh in spec.meshes or ({},):
                yield SpecItem.from_parent(
                    parent, spec=spec, check=check, backend=backend, mesh=mesh, before=before
                )


def _backends(session: Session, parent: pytest.Collector) -> tuple[Sequence[Backend], bool]:
    """The backends that the marks of a test module or else the session say, and if by name."""
    marks = list(parent.iter_markers("pallas"))
    if not any("backends" in mark.kwargs or "targets" in mark.kwargs for mark in marks):
        return session.selection.backends, session.selection.named
    try:
        backends, reason = session.backends_for(marks, every=True)
    except OptionError as error:
        raise parent.CollectError(str(error)) from None
    if not backends:
        pytest.skip(f"no backend for these specs: {reason}")
    return backends, any("backends" in mark.kwargs for mark in marks)


def _checks(
    session: Session,
    parent: pytest.Collector,
    spec: KernelSpec,
    backend: Backend,
    before: Sequence[Backend],
) -> Iterator[Check]:
    """The chosen checks that the spec asks for, or, if it does not say, that apply to it."""
    try:
        chosen = choose(session.options_for(parent).checks, session.checks, "checks")
    except OptionError as error:
        raise parent.CollectError(str(error)) from None
    for name in chosen:
        check = session.checks[name]
        if backend.kind == "compiling" and check.program is None:
            continue
        unmet = check.unmet(spec, backend, before)
        if name in spec.checks if spec.checks is not None else not unmet:
            yield check


def _node_id(parent: pytest.Collector, name: str) -> str:
    """The node id as text. pytest 9.2 makes another one of a name in brackets, and --lf fails."""
    return f"{parent.nodeid}::{name}"


class SpecItem(pytest.Item):
    """One check of one spec on one backend (and mesh)."""

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
        **rest: Any,
    ) -> SpecItem:
        """The item ``spec-check[backend-mesh]``."""
        place = label(backend) + "".join(f"-{axis}{size}" for axis, size in mesh.items())
        name = f"{spec.name}-{check.name}[{place}]"
        self = super().from_parent(parent, name=name, nodeid=_node_id(parent, name), **rest)
        self.spec, self.check, self.backend, self.mesh = spec, check, backend, mesh
        self.before = before
        self.extra_keyword_matches |= {spec.name, spec.family, check.name, backend.name}
        failure = expected_failure(spec, backend, check)
        if failure is not None:
            reason = f"{failure.reason} (JAX {failure.jax})"
            self.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=EXPECTED))
        unmet = check.unmet(spec, backend, before)
        if unmet is not None:
            self.add_marker(pytest.mark.skip(reason=f"{check.name} needs more: {unmet}"))
        return self

    @property
    def tally(self) -> Tally:
        """The tally of this item, made at its first use."""
        session = current(self.config)
        return session.tallies.setdefault(
            (self.spec.name, self.check.name, label(self.backend)),
            Tally(
                kernel=self.spec.name,
                family=self.spec.family,
                check=self.check.name,
                backend=label(self.backend),
                mesh=self.mesh,
            ),
        )

    def runtest(self) -> None:
        """Fuzz the check, or compile it for a few calls."""
        __tracebackhide__ = True
        asked = self.question()
        if self.backend.kind == "compiling" and not asked.options.example:
            self._compile(asked)
        else:
            self._fuzz(asked)
            self._conclude(asked)

    def question(self) -> Question:
        """What is asked; skips where there are too few devices."""
        from pytest_pallas.suites.questions import question

        return question(self, current(self.config).options_for(self), self._devices())

    def _compile(self, asked: Question) -> None:
        from pytest_pallas.suites import ahead

        __tracebackhide__ = True
        try:
            ahead.ask_all(asked)
        except PallasTestError as error:
            if self._expected or not ahead.worth_shrinking(error):
                raise
            self._fuzz(asked)  # finds the same failure, and the smallest like it
            raise

    def _conclude(self, asked: Question) -> None:
        """What no single example can tell: whether any was one, and what all of them say."""
        from pytest_pallas.checks.verdict import conclude

        __tracebackhide__ = True
        tally = self.tally
        if not tally.examples and tally.withdrawn:
            pytest.skip(f"{self.check.name} needs more: {tally.withdrawn}")
        if not asked.options.example:
            conclude(self.check, tally.evidence, self.spec.name, self.backend)

    def _fuzz(self, asked: Question) -> None:
        from pytest_pallas.suites.fuzzing import Fuzz, fuzz, replay
        from pytest_pallas.suites.questions import ask_about, prepare
        from pytest_pallas.suites.variety import shared

        __tracebackhide__ = True
        options = asked.options
        session = current(self.config)
        key = (self.spec.file, self.spec.name, *self.mesh.items())
        what = Fuzz(
            ask=functools.partial(ask_about, asked),
            prepare=functools.partial(prepare, asked),
            source=shared(session.sources, key, asked.strategy),
            key=f"{self.spec.name}/{self.check.name}",
            shrink=not self._expected,
            database=session.database_for(self.name),  # the same on every machine
        )
        examples = self.check.examples(options.max_examples)
        if options.example:
            replay(what, options.example)
        elif options.fuzz_time and self.backend.kind != "compiling" and not self._expected:
            self._fuzz_for(what, options, examples)
        else:
            fuzz(what, seed=options.seed, max_examples=examples)

    def _fuzz_for(self, what: Fuzz, options: Options, examples: int) -> None:
        """Fuzz as long as this item may, of the session's time."""
        from pytest_pallas.suites.clock import clock_of
        from pytest_pallas.suites.rounds import fuzz_for

        __tracebackhide__ = True
        clock = clock_of(self.config, self.session.items, options.fuzz_time)
        progress: Any = self.config.pluginmanager.get_plugin("pallas-progress")

        def pulse() -> None:
            if progress is not None:
                progress.pulse(self.tally.examples)

        fuzz_for(
            what, clock.slot(self.nodeid), seed=options.seed, max_examples=examples, pulse=pulse
        )

    @property
    def _expected(self) -> bool:
        """Whether the item is expected to fail: then nobody wants the simplest failure."""
        return bool(list(self.iter_markers("xfail")))

    def _devices(self) -> Any:
        """The mesh to run on, or None."""
        if not self.mesh:
            return None
        from pytest_pallas.devices.mesh import make_mesh

        platform = self.backend.platform if self.backend.kind == "hardware" else "cpu"
        try:
            return make_mesh(self.mesh, platform)
        except TooFewDevicesError as error:
            if current(self.config).options_for(self).missing == "error":
                raise
            pytest.skip(str(error))

    def replay(self, error: BaseException) -> str:
        """The command that runs the failing example again."""
        from pytest_pallas.suites.fuzzing import blob_of

        options = current(self.config).options_for(self)
        words = ["pytest"]
        if options.suite:
            words.append(f"--pallas-suite={','.join(options.suite)}")
        words.append(f"--pallas-backend={label(self.backend)}")
        if options.devices != 8:
            words.append(f"--pallas-devices={options.devices}")
        if options.max_bytes != DEFAULT_MAX_BYTES:  # it decides which shapes are drawn
            words.append(f"--pallas-max-bytes={option_text(options.max_bytes)}")
        blob = blob_of(error) or options.example
        words += [f"--pallas-example={blob}"] if blob else [f"--pallas-seed={options.seed}"]
        words.append(self.nodeid)
        return " ".join(shlex.quote(word) for word in words)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The explanation and the replay command; a traceback only for what nobody expected."""
        error = excinfo.value
        if not isinstance(error, PallasTestError):
            return super().repr_failure(excinfo, style)
        command = self.replay(error)
        text = f"{error}\n  replay    {command}{self._script(error, command)}"
        if error.kernel_error is not None and self.config.get_verbosity() > 1:
            text += "\n" + "".join(traceback.format_exception(error.kernel_error)).rstrip()
        return text

    def _script(self, error: PallasTestError, command: str) -> str:
        """The line that says where the script of a failure is; "" where nobody wants one."""
        if self._expected or error.failure is None:
            return ""
        from pytest_pallas.scripts.saved import save

        return f"\n  script    {save(current(self.config), self, error, command)}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip


class UnclaimedItem(pytest.Item):
    """A backend that was asked for by name and that a spec does not claim: skipped, and said so."""

    spec: KernelSpec
    backend: Backend

    @classmethod
    def from_parent(
        cls, parent: Any, *, spec: KernelSpec, backend: Backend, **rest: Any
    ) -> UnclaimedItem:
        """The item ``spec-unclaimed[backend]``."""
        name = f"{spec.name}-unclaimed[{label(backend)}]"
        self = super().from_parent(parent, name=name, nodeid=_node_id(parent, name), **rest)
        self.spec, self.backend = spec, backend
        return self

    @property
    def tally(self) -> Tally:
        """The tally of this item, which stays empty."""
        return current(self.config).tallies.setdefault(
            (self.spec.name, "all", label(self.backend)),
            Tally(
                kernel=self.spec.name,
                family=self.spec.family,
                check="all",
                backend=label(self.backend),
            ),
        )

    def runtest(self) -> None:
        """Skip."""
        known = current(self.config).families
        names = [name for name in self.spec.claimed if name.partition(":")[0] in known]
        pytest.skip(f"claims {', '.join(names)} only")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip


def expected_failure(spec: KernelSpec, backend: Backend, check: Check) -> ExpectedFailure | None:
    """What the spec says of a backend and check, by label first, then by name."""
    for key in (label(backend), backend.name):
        failure = spec.xfail.get(key)
        if failure is not None and (not failure.checks or check.name in failure.checks):
            return failure
    return None
