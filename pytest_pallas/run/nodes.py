"""The items of a spec: one for each check, backend and mesh. Importing this imports JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.checks import Check
from pytest_pallas.errors import SpecError
from pytest_pallas.pytest_session import PytestSession, current
from pytest_pallas.run.applicability import leave_out, unmet_by_kernels
from pytest_pallas.run.backends import backends_before, on_claimed_chips, without_replaced
from pytest_pallas.run.item import SpecItem, node_id
from pytest_pallas.run.result import Result
from pytest_pallas.session import SpecFacts
from pytest_pallas.spec import KernelSpec


def spec_items(parent: pytest.Collector, spec: KernelSpec) -> Iterator[pytest.Item]:
    """The items of one spec.

    Raises:
      SpecError: the spec cannot be verified.
    """
    from pytest_pallas.run.backends import on_its_platform
    from pytest_pallas.run.learning import facts_of

    session = current(parent.config)
    facts = facts_of(session, parent, spec, functools.partial(_learn, session, parent, spec))
    if facts.problem is not None:
        raise SpecError(f"spec {spec.name!r} in {spec.file}: {facts.problem}")
    spec = on_its_platform(session, spec, facts)
    yield from session.replace_items(parent, spec, _spec_items(session, parent, spec, facts))


def _learn(
    session: PytestSession,
    parent: pytest.Collector,
    spec: KernelSpec,
    facts: SpecFacts,
    tracing: Callable[[], object] = lambda: None,
) -> None:
    """Learn what the items of a spec depend on: draw and trace a few of its calls."""
    from pytest_pallas.run.backends import on_its_platform
    from pytest_pallas.run.learning import problem_with

    facts.problem = problem_with(spec, session.checks, session.families)
    if facts.problem is None:
        tracing()
        for _ in _planned(session, parent, on_its_platform(session, spec, facts), facts):
            pass


@dataclass(frozen=True)
class _Plan:
    """A check of a spec on a backend: an item for each mesh, unless it is ``unmet``."""

    backend: Backend
    check: Check
    before: Sequence[Backend]
    unmet: str | None


def _planned(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, facts: SpecFacts
) -> Iterator[_Plan | Backend]:
    """The checks of one spec, and named backends that it does not claim.

    What the facts lack is learned, unless they are closed.
    """
    backends, named, automatic = _backends(session, parent)
    backends, automatic = on_claimed_chips(session, spec, backends, automatic)
    timeout = session.options.timeout
    backends = without_replaced(facts, spec, backends, automatic, timeout)
    for backend in backends:
        if not spec.claims(label(backend)):
            if named:
                yield backend
            continue
        for check in _checks(session, parent, spec, backend):
            before = backends_before(spec, backend, backends, (session.base, check))
            key = check.name, label(backend)
            if key not in facts.unmet:
                unmet = check.unmet(spec, backend, before)
                if unmet is None and not spec.meshes and not facts.closed:
                    unmet = unmet_by_kernels(session, spec, check, backend, {})
                facts.unmet[key] = unmet
            yield _Plan(backend, check, before, facts.unmet[key])


def _spec_items(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, facts: SpecFacts
) -> Iterator[pytest.Item]:
    """The items of one spec."""
    for plan in _planned(session, parent, spec, facts):
        if not isinstance(plan, _Plan):
            yield UnclaimedItem.from_parent(parent, spec=spec, backend=plan)
            continue
        for mesh in spec.meshes or ({},):
            if plan.unmet is not None:
                leave_out(session, parent, plan.unmet, spec, plan.check, plan.backend, mesh)
                continue
            yield SpecItem.from_parent(
                parent,
                spec=spec,
                check=plan.check,
                backend=plan.backend,
                mesh=mesh,
                before=plan.before,
            )


def _backends(
    session: PytestSession, parent: pytest.Collector
) -> tuple[Sequence[Backend], bool, Collection[str]]:
    """The backends that the marks of a test module select, or else the session.

    Returns whether they were named, too, and the labels of those that were not.
    """
    selection = session.selection
    marks = list(parent.iter_markers("pallas"))
    if not any("backends" in mark.kwargs or "targets" in mark.kwargs for mark in marks):
        return selection.backends, selection.named, selection.automatic
    try:
        backends, reason = session.backends_for(marks, every=True)
    except OptionError as error:
        raise parent.CollectError(str(error)) from None
    if not backends:
        pytest.skip(f"no backend for these specs: {reason}")
    if any("backends" in mark.kwargs for mark in marks):
        return backends, True, ()
    automatic = [label(each) for each in backends if each.name in selection.automatic]
    return backends, False, automatic


def _checks(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec, backend: Backend
) -> Iterator[Check]:
    """The selected checks of the spec; all selected checks if the spec does not limit them."""
    try:
        chosen = session.checks_for(session.options_for(parent))
    except OptionError as error:
        raise parent.CollectError(str(error)) from None
    for check in chosen:
        if backend.kind == "compiling" and check.program is None:
            continue
        if spec.checks is None or check.name in spec.checks:
            yield check


class UnclaimedItem(pytest.Item):
    """A skipped item for a named backend that the spec does not claim."""

    spec: KernelSpec
    backend: Backend

    @classmethod
    def from_parent(
        cls, parent: Any, *, spec: KernelSpec, backend: Backend, **rest: Any
    ) -> UnclaimedItem:
        """The item ``spec-unclaimed[backend]``."""
        name = f"{spec.name}-unclaimed[{label(backend)}]"
        self = super().from_parent(parent, name=name, nodeid=node_id(parent, name), **rest)
        self.spec, self.backend = spec, backend
        return self

    @property
    def result(self) -> Result:
        """The result of this item, which stays empty."""
        return current(self.config).results.setdefault(
            (self.spec.name, "all", label(self.backend)),
            Result.of(self.spec, "all", self.backend),
        )

    def runtest(self) -> None:
        """Skip."""
        known = current(self.config).families
        names = [name for name in self.spec.claimed if Label.of(name).name in known]
        pytest.skip(f"the spec claims only {', '.join(names) or 'no backend'}")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip
