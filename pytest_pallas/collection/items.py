"""Specs as pytest nodes: a file or suite collects one item per spec, check, backend and mesh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.backends import Backend, Label, label
from pytest_pallas.bindings.backends import backends_before, on_claimed_chips, without_replaced
from pytest_pallas.checks import Check
from pytest_pallas.collection.discovery import specs_in
from pytest_pallas.errors import OptionError, SpecError
from pytest_pallas.items.applicability import leave_out, unmet_by_kernels
from pytest_pallas.items.item import SpecItem, node_id
from pytest_pallas.items.mutants import mutants_item
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.session import PytestSession, current
from pytest_pallas.spec import KernelSpec

#: The modules of a suite that were collected, and whether they define specs.
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
    """Specs that do not come from a file of a suite: from a hook, or from a test module."""

    @classmethod
    def from_parent(
        cls, parent: Any, *, specs: Callable[[], Iterable[KernelSpec | SpecError]], **rest: Any
    ) -> SpecSuite:
        """The node for the specs that ``specs()`` returns."""
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
    """A spec that cannot be verified: a collection error, which does not stop other specs."""

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
    """The items of one spec, or one node that reports its problem."""
    from pytest_pallas.bindings.platforms import on_its_platform
    from pytest_pallas.collection.validation import problem_with

    session = current(parent.config)
    problem = problem_with(spec, session.checks, session.families)
    if problem is not None:
        text = f"spec {spec.name!r} in {spec.file}: {problem}"
        yield WrongSpec.from_parent(parent, name=spec.name, problem=text)
        return
    spec = on_its_platform(session, spec)
    if session.options.mutate is not None:
        items = list(_spec_items(session, parent, spec))
        item = mutants_item(parent, spec, items)
        yield from items if item is None else (item,)
        return
    yield from _spec_items(session, parent, spec)


def _spec_items(
    session: PytestSession, parent: pytest.Collector, spec: KernelSpec
) -> Iterator[pytest.Item]:
    """The items of one spec."""
    backends, named, automatic = _backends(session, parent)
    backends, automatic = on_claimed_chips(session, spec, backends, automatic)
    backends = without_replaced(session, spec, backends, automatic)
    for backend in backends:
        if not spec.claims(label(backend)):
            if named:
                yield UnclaimedItem.from_parent(parent, spec=spec, backend=backend)
            continue
        for check in _checks(session, parent, spec, backend):
            needed = (session.base, check)
            before = backends_before(spec, backend, backends, needed)
            unmet = check.unmet(spec, backend, before)
            for mesh in spec.meshes or ({},):
                why = unmet or unmet_by_kernels(session, spec, check, backend, mesh)
                if why is not None:
                    leave_out(session, parent, why, spec, check, backend, mesh)
                    continue
                yield SpecItem.from_parent(
                    parent, spec=spec, check=check, backend=backend, mesh=mesh, before=before
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
    def builder(self) -> ResultBuilder:
        """The builder of this item, which stays empty."""
        return current(self.config).builders.setdefault(
            (self.spec.name, "all", label(self.backend)),
            ResultBuilder(
                kernel=self.spec.name,
                family=self.spec.family,
                check="all",
                backend=label(self.backend),
            ),
        )

    def runtest(self) -> None:
        """Skip."""
        known = current(self.config).families
        names = [name for name in self.spec.claimed if Label.of(name).name in known]
        pytest.skip(f"the spec claims only {', '.join(names) or 'no backend'}")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The file of the spec and the name of the item."""
        return Path(self.spec.file), 0, self.name  # pytest needs a line to report a skip
