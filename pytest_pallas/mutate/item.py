"""The mutants of a spec as one pytest item, and their verdicts from several processes.

``MutantsItem`` tries the mutants; its ``SpecMutantRunner`` runs the checks of the spec on one of
them. An item may run in parts, each in a process of its own: their verdicts travel as plain values,
and ``merge_mutants`` merges them. ``credit_first_kills`` does so for all records of a run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import pytest

from pallas_sim.errors import Fact, first_line
from pallas_sim.findings import Text
from pallas_sim.traces import own_lines
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.budget import ExampleBudget
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, call
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.decoding import Between, DataError, decode, jsonable
from pytest_pallas.draw.arguments import as_arguments
from pytest_pallas.draw.examples import draw_name
from pytest_pallas.draw.meshes import MeshAxes
from pytest_pallas.errors import MutantError
from pytest_pallas.mutate import Mutant, mutants_of
from pytest_pallas.mutate.programs import TracedProgram, unchanged
from pytest_pallas.mutate.runner import (
    ELSEWHERE,
    Journal,
    KilledBy,
    MutantRun,
    merge_verdicts,
    sampled,
    stale,
    try_mutants,
    unknown,
    with_marks,
)
from pytest_pallas.pytest_session import JOURNAL, PART, PART_OUTCOME, SECONDS, Part
from pytest_pallas.record import MutantVerdict, Note, Record
from pytest_pallas.run.check_run import CheckRun, context_of, run_example, subjects_of
from pytest_pallas.run.fuzzing import drawn_calls
from pytest_pallas.run.item import SpecItem, time_budget_of
from pytest_pallas.run.result import Result
from pytest_pallas.spec import EquivalentMutant, KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.checks.context import CheckResult

#: Number of mutants in a part.
MUTANTS_PER_PART = 16


#: Limit on the number of mutants of a spec.
_Number = Annotated[int, Between(-1, 10**6)]


class MutantsPart(TypedDict):
    """The result of a part of a spec's mutants as plain values.

    ``total`` is the number of chosen mutants of the spec, ``whole`` whether these are all that
    there are. ``equivalents`` are the marks of the spec; ``verdicts`` are without them. ``notes``
    on checks that were left out are by key of the mutant.
    """

    kind: Literal["mutants"]
    first: _Number
    last: _Number
    total: _Number
    whole: bool
    equivalents: list[EquivalentMutant]
    verdicts: list[MutantVerdict]
    notes: dict[Text, list[Note]]


def add_verdicts(
    result: Result,
    verdicts: Sequence[MutantVerdict],
    notes_of: Mapping[str, Sequence[Note]],
    *,
    equivalents: Sequence[EquivalentMutant],
    whole: bool,
) -> None:
    """Add the verdicts on a spec's mutants to a result.

    Args:
      result: of the item.
      verdicts: of ``try_mutants``.
      notes_of: notes by key of the mutant.
      equivalents: the marks of the spec, which apply now.
      whole: whether these are all mutants of the spec.
    """
    marked = [with_marks(verdict, equivalents) for verdict in verdicts]
    whole = whole and all(verdict.status != "untried" for verdict in marked)
    result.examples = sum(verdict.examples for verdict in marked)
    result.mutants = [jsonable(verdict) for verdict in marked]
    result.notes += stale(equivalents, marked, whole=whole)
    for verdict in verdicts:
        if verdict.how != ELSEWHERE:
            for note in notes_of.get(verdict.key, ()):
                result.add_note(note)


def merge_mutants(
    result: Result,
    results: Sequence[Mapping[str, Any]],
    *,
    name: str,
    killed: dict[str, str],
) -> Sequence[int]:
    """Merge the results of parts into the result of their item.

    Args:
      result: of the item.
      results: a ``MutantsPart`` each, in any order, some perhaps twice; one at least.
      name: the name of the spec.
      killed: as for ``merge_verdicts``.

    Returns:
      The numbers of the mutants that no part has.

    Raises:
      DataError: a result is no ``MutantsPart``.
    """
    parts: list[MutantsPart] = decode(list[MutantsPart], results)
    if not parts:
        raise DataError("has no part of its mutants")
    parts.sort(key=lambda part: part["first"])
    verdicts = [verdict for part in parts for verdict in part["verdicts"]]
    add_verdicts(
        result,
        merge_verdicts(verdicts, name=name, killed=killed),
        {key: notes for part in reversed(parts) for key, notes in part["notes"].items()},
        equivalents=parts[0]["equivalents"],
        whole=parts[0]["whole"],
    )
    tried = {number for part in parts for number in range(part["first"], part["last"] + 1)}
    return [number for number in range(parts[0]["total"]) if number not in tried]


def credit_first_kills(
    records: Sequence[Record], results: Mapping[str, Mapping[str, Any]], killed: dict[str, str]
) -> list[Record]:
    """Make records in which each killed mutant counts for the first test or spec that killed it.

    Tests that run in several processes, or in several runs, do not know of each other's kills.

    Args:
      records: of a run in several processes, in the order of collection.
      results: those of items of mutants, by test id, as of a part with all mutants.
      killed: names of the tests and specs that killed mutants, by key; new ones are added.
    """
    return [
        _credited(record, results.get(record.test), killed) if record.mutants else record
        for record in records
    ]


def _credited(record: Record, part: Mapping[str, Any] | None, killed: dict[str, str]) -> Record:
    if part is None:
        item = record.test.rpartition("::")[2]
        # an item of mutants is named after its spec, under whose name its kills count
        name = record.kernel if item == f"{record.kernel}-{record.check}" else item
        verdicts = decode(list[MutantVerdict], record.mutants)
        merged = merge_verdicts(verdicts, name=name, killed=killed)
        return dataclasses.replace(record, mutants=tuple(map(jsonable, merged)))
    result = Result(kernel=record.kernel, check=record.check, backend=record.backend)
    merge_mutants(result, [part], name=record.kernel, killed=killed)
    return dataclasses.replace(
        record,
        examples=result.examples,
        mutants=tuple(result.mutants),
        notes=tuple(result.notes),
    )


# Run the checks of a spec on mutants, in the order of the checks.
#
# The order is fixed, so that the check that kills a mutant depends neither on the time nor on other
# mutants. Checks that have killed more per second first are no faster: the first checks kill most
# mutants.


@dataclass(eq=False)
class CheckCall:
    """One check of one drawn call on one backend and mesh.

    Attributes:
      part: the check.
      run: the run of that check.
      drawn: the call.
      number: the number of the call, from 0.
      unsound: why it does not count, if it fails without a mutant; "" if it passes, None if that
        is not known yet.
    """

    part: SpecItem
    run: CheckRun
    drawn: Any
    number: int
    unsound: str | None = None

    @property
    def check(self) -> Check:
        """The check."""
        return self.part.check

    def key(self, *, differentiated: bool) -> Hashable:
        """The key of the program of this call, or of its gradient."""
        mesh = tuple(self.part.axes.items())
        return label(self.part.backend), mesh, draw_name(self.drawn), differentiated

    def error(self, mutant: Mutant | None, runs: dict[Any, Runs]) -> Exception | None:
        """Run the check; return its error, or None if it passes."""
        session = self.run.session
        session.mutant = mutant
        trial = runs.setdefault((self.part.backend, *self.part.axes.items()), Runs())
        try:
            run_example(self.run, self.drawn, trial=trial)
        except Exception as error:
            return _mutant_error(error) or error
        finally:
            session.mutant = None
        return None


@dataclass
class SpecMutantRunner:
    """The checks of a spec.

    Attributes:
      parts: the checks, as items.
      operators: names of the mutation operators; empty for all.
      calls: the checks with their calls.
      programs: the programs of these calls and of their gradients, by ``CheckCall.key``.
      notes: notes for the record, by mutant.
      running: called with the name of a check, and its backend with the mesh, before it runs.
    """

    parts: Sequence[SpecItem]
    operators: Collection[str] = ()
    calls: list[CheckCall] = field(default_factory=list[CheckCall])
    programs: dict[Hashable, TracedProgram] = field(default_factory=dict[Hashable, TracedProgram])
    notes: dict[str, list[Note]] = field(default_factory=dict[str, "list[Note]"])
    running: Callable[[str, str], None] = lambda _, __: None

    def discover(self) -> list[Mutant]:
        """Trace every call of the checks, and return the mutants of their kernels.

        Raises:
          PallasError: the kernel cannot be traced.
        """
        mutants: dict[Mutant, None] = {}
        for part in self.parts:
            run = part.check_run()
            for number, drawn in enumerate(_drawn(run)):
                self.calls.append(CheckCall(part, run, drawn, number))
                for key, jaxpr in self._traced(self.calls[-1]):
                    inside = mutants_of(jaxpr, self.operators)
                    self.programs[key] = TracedProgram(jaxpr, frozenset(inside))
                    mutants.update(dict.fromkeys(inside))
        return list(mutants)

    def _traced(self, check_call: CheckCall) -> Iterator[tuple[Hashable, Any]]:
        """Trace a drawn call and its gradient, unless they are known; yields keys and jaxprs."""
        context = context_of(check_call.run, as_arguments(check_call.drawn))
        for differentiated in (False, True):
            check = check_call.check
            if differentiated and (check.differentiates != "only" or check.program is None):
                continue
            key = check_call.key(differentiated=differentiated)
            if key in self.programs:
                continue
            made = call(context, context.kernel, context.arguments.args)
            if differentiated and check.program is not None:
                made = call(context, *check.program(context))
            yield key, _jaxpr(context, made)

    def _concerns(self, check_call: CheckCall, mutant: Mutant) -> bool:
        """Whether the programs of a check may contain the mutant."""
        check = check_call.check
        if check.varies_calls:
            return True
        gradients = {"no": (False,), "also": (False, True), "only": (True,)}[check.differentiates]
        keys = (check_call.key(differentiated=gradient) for gradient in gradients)
        return any(key in self.programs and mutant in self.programs[key].mutants for key in keys)

    def same(self, mutant: Mutant) -> str:
        """Explain why a mutant is the same program in every drawn call; "" if it is not."""
        count = unchanged(self.programs.values(), mutant)
        return f"the same program after simplification, in {count} drawn calls" if count else ""

    def attempt(self, mutant: Mutant) -> MutantRun:
        """Run checks on a mutant until one kills it.

        The programs are compared after the first check that passes: the first check kills most
        mutants, and takes less time than the comparison.
        """
        runs: dict[Any, Runs] = {}
        examples = 0
        compared = False
        for check_call in self.calls:
            if not self._concerns(check_call, mutant):
                continue
            if check_call.unsound:
                self._note(mutant, check_call.unsound)
                continue
            name, on = check_call.check.name, check_call.run.backend_name
            self.running(name, on)
            error = check_call.error(mutant, runs)
            passed = error is None or isinstance(error, MutantError)
            if not (passed or self._sound(check_call)):
                self._note(mutant, check_call.unsound or "")
                continue
            examples += 1
            if isinstance(error, MutantError):
                return MutantRun(None, examples, str(error))
            if error is not None:
                return MutantRun(KilledBy(name, type(error).__name__, on), examples)
            if not compared:
                compared = True
                same = self.same(mutant)
                if same:
                    return MutantRun(None, examples, same=same)
        return MutantRun(None, examples, same="" if compared else self.same(mutant))

    def _sound(self, check_call: CheckCall) -> bool:
        """Whether a check passes without a mutant; otherwise its failure does not count."""
        if check_call.unsound is None:
            error = check_call.error(None, {})
            check_call.unsound = ""
            if error is not None:
                check_call.unsound = (
                    f"{check_call.check.name} on {check_call.run.backend_name}, "
                    f"call {check_call.number}, was left out because it fails without a mutant: "
                    f"{first_line(error)}"
                )
        return not check_call.unsound

    def _note(self, mutant: Mutant, text: str) -> None:
        self.notes.setdefault(unknown(mutant).key, []).append(Note(text, "mutants"))


def _mutant_error(error: BaseException | None) -> MutantError | None:
    """Find the ``MutantError`` that caused an error, or None."""
    while error is not None:
        if isinstance(error, MutantError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _drawn(run: CheckRun) -> list[Any]:
    """The calls of a check."""
    usual = ExampleBudget.fixed(run.budget.count, varies=run.budget.varies)
    return list(drawn_calls(run.source, run.options.seed, usual, subjects_of(run)))


def _jaxpr(context: CheckContext, made: Any) -> Any:
    """Trace a call on its backend; returns the closed jaxpr."""
    backend: Any = context.backend
    with backend.context():
        static, arrays = split(made)
        return jitted(static).trace(arrays).jaxpr


# The mutants of a spec's kernels, as one pytest item.

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
        """Make the item of a spec whose checks are ``parts``, one at least."""
        first: Backend = parts[0].backend
        axes: MeshAxes = max((part.axes for part in parts), key=lambda axes: len(axes), default={})
        self = super().from_parent(
            parent,
            spec=spec,
            check=MUTANTS,
            backend=first,
            axes=axes,
            name=f"{spec.name}-{MUTANTS.name}",
        )
        assert isinstance(self, cls)
        self.parts = parts
        self.own_markers = [mark for mark in self.own_markers if mark.name != "xfail"]
        return self

    @property
    def result(self) -> Result:
        """The result of this item, made at its first use."""
        results, key = self.state.results, (self.spec.name, MUTANTS.name, "all")
        return results.setdefault(key, self.new_result())

    def new_result(self) -> Result:
        """Make a result without mutants."""
        return Result(
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
        """Take its share of the session's time, in seconds; None for no limit."""
        options = self.options
        if PART in self.stash:
            return self.stash.get(SECONDS, None)
        if not options.mutate_time:
            return None
        if SECONDS not in self.stash:
            clock = time_budget_of(self.config, self.session.items, options.mutate_time)
            self.stash[SECONDS] = clock.slot(self.nodeid)
        return self.stash[SECONDS]

    def _run(self) -> None:
        __tracebackhide__ = True
        with own_lines():
            self._try_all()

    def _try_all(self) -> None:
        __tracebackhide__ = True
        session, options = self.state, self.options
        seconds = self.slot()
        until = None if seconds is None else time.monotonic() + seconds
        runner = SpecMutantRunner(self.parts, session.operators)
        path = self.stash.get(JOURNAL, None)
        journal = Journal(None if path is None else Path(path))
        mutants = runner.discover()

        def running(check: str, on: str) -> None:
            """Record the running check, in case the process dies."""
            if journal.begun is not None:
                journal.begin(dataclasses.replace(journal.begun, by=check, on=on))

        runner.running = running
        chosen = sampled(mutants, options.mutate or 0, options.seed)
        equivalents = self.spec.equivalent
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
            equivalents=equivalents,
            begun=self._notify,
        )
        whole = len(chosen) == len(mutants) and not session.chosen_operators
        add_verdicts(
            self.result,
            verdicts,
            runner.notes,
            equivalents=equivalents,
            whole=whole and part is None,
        )
        if part is None and hasattr(self.config, "workerinput"):
            # of pytest-xdist, whose controller knows the kills of other processes
            part = Part("mutants", 0, len(chosen))
        if part is not None:
            outcome = MutantsPart(
                kind="mutants",
                first=part.first,
                last=min(part.last, len(chosen) - 1),
                total=len(chosen),
                whole=whole,
                equivalents=list(equivalents),
                verdicts=verdicts,
                notes=runner.notes,
            )
            self.stash[PART_OUTCOME] = jsonable(outcome)

    def _notify(self, verdict: MutantVerdict) -> None:
        """Notify the observer of the mutant."""
        observer = self.state.observer
        if observer is not None:
            observer.example(self.result, [Fact("mutant", f"{verdict.operator}: {verdict.change}")])


def _fails(item: SpecItem) -> bool:
    """Whether it is expected to fail, or skipped."""
    return any(item.get_closest_marker(name) for name in ("xfail", "skip"))


def _where(item: SpecItem) -> tuple[str, Hashable]:
    return label(item.backend), tuple(item.axes.items())


def mutants_item(
    parent: pytest.Collector, spec: KernelSpec, items: Sequence[pytest.Item]
) -> MutantsItem | None:
    """Make the item for a spec's mutants, in place of its items; None without items of checks.

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
