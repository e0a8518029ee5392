"""The mutants of a spec's kernels, as one pytest item."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import Fact
from pytest_pallas.backends import Backend, label
from pytest_pallas.checks import Check
from pytest_pallas.items.item import SpecItem
from pytest_pallas.mutation_runner.journal import JOURNAL
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.session import PART_OUTCOME, current
from pytest_pallas.spec import KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.checks.context import CheckContext, CheckResult
    from pytest_pallas.mutation_runner.verdict import MutantVerdict

#: Kinds of backends on which mutants run.
_KINDS = ("simulating", "interpreting")


def _nothing(context: CheckContext) -> CheckResult:
    raise NotImplementedError("an item of mutants runs the checks of its parts")


MUTANTS = Check(
    name="mutants",
    asks="do the checks of the spec kill the mutants of its kernels?",
    run=_nothing,
)


class MutantsItem(SpecItem):
    """Every mutant of a spec's kernels, against all of its checks on all backends and meshes."""

    parts: Sequence[SpecItem]

    @classmethod
    def of(cls, parent: Any, spec: KernelSpec, parts: Sequence[SpecItem]) -> MutantsItem:
        """The item whose mutants ``parts``, one at least, check."""
        first: Backend = parts[0].backend
        mesh: Mapping[str, int] = max(
            (part.mesh for part in parts), key=lambda mesh: len(mesh), default={}
        )
        self = super().from_parent(
            parent,
            spec=spec,
            check=MUTANTS,
            backend=first,
            mesh=mesh,
            name=f"{spec.name}-{MUTANTS.name}",
        )
        assert isinstance(self, cls)
        self.parts = parts
        self.own_markers = [mark for mark in self.own_markers if mark.name != "xfail"]
        return self

    @property
    def builder(self) -> ResultBuilder:
        """The builder of this item, made at its first use."""
        builders, key = current(self.config).builders, (self.spec.name, MUTANTS.name, "all")
        return builders.setdefault(key, self.new_builder())

    def new_builder(self) -> ResultBuilder:
        """A builder without mutants."""
        return ResultBuilder(
            kernel=self.spec.name, family=self.spec.family, check=MUTANTS.name, backend="all"
        )

    @property
    def headline(self) -> str:
        """The start of its messages."""
        return f"{self.spec.name}: mutants"

    @property
    def place(self) -> str:
        """Its own key, because it has several backends and meshes."""
        return self.nodeid

    def slot(self) -> float | None:
        """Its time limit in seconds, of the session's time; None for no limit."""
        from pytest_pallas.isolation.worker import PART, SECONDS
        from pytest_pallas.items.time_budget import time_budget_of

        options = current(self.config).options_for(self)
        if PART in self.stash:
            return self.stash.get(SECONDS, None)
        if not options.mutate_time:
            return None
        if SECONDS not in self.stash:
            clock = time_budget_of(self.config, self.session.items, options.mutate_time)
            self.stash[SECONDS] = clock.slot(self.nodeid)
        return self.stash[SECONDS]

    def _run(self) -> None:
        from pallas_sim.compat.source import own_lines

        __tracebackhide__ = True
        with own_lines():
            self._try_all()

    def _try_all(self) -> None:
        from pytest_pallas.isolation.messages import Part
        from pytest_pallas.isolation.worker import PART
        from pytest_pallas.items.mutant_runner import SpecMutantRunner
        from pytest_pallas.items.parts.mutant_results import add_verdicts, mutants_to_json
        from pytest_pallas.mutation_runner.journal import Journal
        from pytest_pallas.mutation_runner.running import sampled, try_mutants

        __tracebackhide__ = True
        session = current(self.config)
        options = session.options_for(self)
        seconds = self.slot()
        until = None if seconds is None else time.monotonic() + seconds
        runner = SpecMutantRunner(self.parts, session.operators)
        path = self.stash.get(JOURNAL, None)
        journal = Journal(None if path is None else Path(path))
        found = runner.discover()

        def running(check: str, place: str) -> None:
            """Record the running check, in case the process dies."""
            if journal.begun is not None:
                journal.begin(dataclasses.replace(journal.begun, by=check, on=place))

        runner.running = running
        chosen = sampled(found, options.mutate or 0, options.seed)
        part = self.stash.get(PART, None)
        verdicts = try_mutants(
            chosen if part is None else chosen[part.first : part.last + 1],
            runner.attempt,
            journal=journal,
            name=self.spec.name,
            killed=session.killed if part is None else dict(session.killed_earlier),
            marked=session.marked,
            until=until,
            same=runner.same,
            equivalents=self.spec.equivalent,
            begun=lambda verdict: _tell(self, verdict),
        )
        whole = len(chosen) == len(found) and not session.chosen_operators
        marks = self.spec.equivalent
        add_verdicts(
            self.builder,
            verdicts,
            runner.notes,
            equivalents=marks,
            whole=whole and part is None,
        )
        if part is None and hasattr(self.config, "workerinput"):
            # of pytest-xdist, whose controller knows the kills of other processes
            part = Part("mutants", 0, len(chosen))
        if part is not None:
            self.stash[PART_OUTCOME] = mutants_to_json(
                part, verdicts, runner.notes, equivalents=marks, total=len(chosen), whole=whole
            )


def _tell(item: MutantsItem, verdict: MutantVerdict) -> None:
    """Notify the observer of the mutant."""
    observer = current(item.config).observer
    if observer is not None:
        observer.example(item.builder, [Fact("mutant", f"{verdict.operator}: {verdict.change}")])


def _fails(item: SpecItem) -> bool:
    """Whether it is expected to fail, or skipped."""
    return any(item.get_closest_marker(name) for name in ("xfail", "skip"))


def _where(item: SpecItem) -> tuple[str, tuple[tuple[str, int], ...]]:
    return label(item.backend), tuple(item.mesh.items())


def mutants_item(
    parent: pytest.Collector, spec: KernelSpec, items: Sequence[pytest.Item]
) -> MutantsItem | None:
    """The item for a spec's mutants, in place of its items; None if there are none.

    It is skipped, with the reason, if no check can run on mutants.
    """
    checks = [item for item in items if isinstance(item, SpecItem)]
    if not checks:
        return None
    # where the kernel fails without mutants, it cannot check them
    without = {_where(item) for item in checks if item.check.base and _fails(item)}
    parts = [
        item
        for item in checks
        if item.backend.kind in _KINDS
        and item.check.tries_mutants
        and _where(item) not in without
        and not _fails(item)
    ]
    made = MutantsItem.of(parent, spec, parts or checks)
    if not any(part.check.executes for part in parts):
        tried = {label(item.backend) for item in checks if item.backend.kind in _KINDS}
        tried_on = f", and the kernel cannot run on {' or '.join(sorted(tried))}" if tried else ""
        reason = f"mutants run on the simulator and on interpreters{tried_on}"
        made.add_marker(pytest.mark.skip(reason=reason))
    return made
