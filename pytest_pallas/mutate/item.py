"""The verdicts on the mutants of a spec: as data that travels between processes, and merged."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import pytest

from pallas_sim.errors import Fact, first_line
from pallas_sim.findings import Text
from pytest_pallas import record as notes
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, call
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.decoding import Between, DataError, decode
from pytest_pallas.draw.arguments import as_arguments
from pytest_pallas.draw.diversity import words_of
from pytest_pallas.errors import MutantError
from pytest_pallas.mutate import Mutant, mutants_of, mutated
from pytest_pallas.mutate.canonical import canonical
from pytest_pallas.mutate.runner import (
    ELSEWHERE,
    KilledBy,
    MutantRun,
    MutantVerdict,
    merge_verdicts,
    settled,
    stale,
    to_json,
    unknown,
)
from pytest_pallas.pytest_session import JOURNAL, PART, PART_OUTCOME, SECONDS, Part
from pytest_pallas.record import Note
from pytest_pallas.run.check_run import CheckRun, context_of, run_example, subjects_of
from pytest_pallas.run.fuzzing import drawn_calls
from pytest_pallas.run.item import SpecItem, time_budget_of
from pytest_pallas.run.result import Result
from pytest_pallas.spec import EquivalentMutant, KernelSpec

if TYPE_CHECKING:
    from pytest_pallas.checks.context import CheckContext, CheckResult
    from pytest_pallas.mutate.runner import MutantVerdict

#: Number of mutants in a part.
MUTANTS_PER_PART = 16


#: Limit on the number of mutants of a spec.
_Number = Annotated[int, Between(-1, 10**6)]


class MutantsPart(TypedDict):
    """The result of a part of the mutants as plain values."""

    kind: Literal["mutants"]
    first: _Number
    last: _Number
    total: _Number
    whole: bool
    equivalents: list[EquivalentMutant]
    verdicts: list[MutantVerdict]
    notes: dict[Text, list[Note]]


@dataclass(frozen=True)
class MergedMutants:
    """The mutants of several parts, in order.

    Attributes:
      verdicts: without the marks of the spec.
      notes: notes on checks that were left out, by key of the mutant.
      equivalents: the marks of the spec.
      whole: whether the chosen mutants are all that there are.
      total: the number of chosen mutants.
      missing: numbers of the mutants that no part has.
    """

    verdicts: Sequence[MutantVerdict]
    notes: Mapping[str, Sequence[Note]]
    equivalents: Sequence[EquivalentMutant]
    whole: bool
    total: int
    missing: Sequence[int]


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
    marked = [settled(verdict, equivalents) for verdict in verdicts]
    whole = whole and all(verdict.status != "untried" for verdict in marked)
    result.examples = sum(verdict.examples for verdict in marked)
    result.mutants = [to_json(verdict) for verdict in marked]
    result.notes += stale(equivalents, marked, whole=whole)
    for verdict in verdicts:
        if verdict.how != ELSEWHERE:
            for note in notes_of.get(verdict.key, ()):
                result.add_note(note)


def mutants_to_json(
    part: Part,
    verdicts: Sequence[MutantVerdict],
    notes_of: Mapping[str, Sequence[Note]],
    *,
    equivalents: Sequence[EquivalentMutant],
    total: int,
    whole: bool,
) -> dict[str, Any]:
    """The result of a part of the mutants, as plain JSON values.

    Args:
      part: the part.
      verdicts: of ``try_mutants``.
      notes_of: notes by key of the mutant.
      equivalents: the marks of the spec.
      total: the number of chosen mutants of the spec.
      whole: whether the chosen mutants are all that there are.
    """
    return {
        "kind": part.kind,
        "first": part.first,
        "last": min(part.last, total - 1),
        "total": total,
        "whole": whole,
        "equivalents": [dataclasses.asdict(each) for each in equivalents],
        "verdicts": [to_json(verdict) for verdict in verdicts],
        "notes": {key: [notes.note_to_json(note) for note in of] for key, of in notes_of.items()},
    }


def merge_into(
    result: Result,
    results: Sequence[Mapping[str, Any]],
    *,
    name: str,
    killed: dict[str, str],
) -> Sequence[int]:
    """Merge the results of parts into the result of their item; see ``merge_mutants``.

    Returns:
      The numbers of the mutants that no part has.
    """
    merged = merge_mutants(results, name=name, killed=killed)
    add_verdicts(
        result,
        merged.verdicts,
        merged.notes,
        equivalents=merged.equivalents,
        whole=merged.whole,
    )
    return merged.missing


def merge_mutants(
    results: Sequence[Mapping[str, Any]], *, name: str, killed: dict[str, str]
) -> MergedMutants:
    """Merge the results of parts, given in any order, some perhaps twice.

    Args:
      results: from ``mutants_to_json``; one at least.
      name: the name of the spec.
      killed: as for ``merge_verdicts``.

    Raises:
      DataError: a result is none.
    """
    parts: list[MutantsPart] = decode(list[MutantsPart], results)
    if not parts:
        raise DataError("has no part of its mutants")
    ordered = sorted(parts, key=lambda result: result["first"])
    verdicts = [each for result in ordered for each in result["verdicts"]]
    have = {n for result in ordered for n in range(result["first"], result["last"] + 1)}
    total = ordered[0]["total"]
    return MergedMutants(
        verdicts=merge_verdicts(verdicts, name=name, killed=killed),
        notes={key: of for result in reversed(ordered) for key, of in result["notes"].items()},
        equivalents=ordered[0]["equivalents"],
        whole=ordered[0]["whole"],
        total=total,
        missing=[number for number in range(total) if number not in have],
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
    def place(self) -> str:
        """The backend, with the sizes of the mesh."""
        return self.run.place


@dataclass
class SpecMutantRunner:
    """The checks of a spec.

    Attributes:
      parts: the checks, as items.
      operators: names of the mutation operators; empty for all.
      calls: the checks with their calls.
      where: programs by place (backend, mesh, words of the call, whether it is the gradient).
      inside: the mutants of each program, by place.
      forms: the programs in canonical form, by place.
      notes: notes for the record, by mutant.
      running: called with the name and place of a check before it runs.
    """

    parts: Sequence[SpecItem]
    operators: Collection[str] = ()
    calls: list[CheckCall] = field(default_factory=list[CheckCall])
    where: dict[Any, Any] = field(default_factory=dict[Any, Any])
    inside: dict[Any, set[Mutant]] = field(default_factory=dict[Any, "set[Mutant]"])
    forms: dict[Any, Any] = field(default_factory=dict[Any, Any])
    notes: dict[str, list[Note]] = field(default_factory=dict[str, "list[Note]"])
    running: Callable[[str, str], None] = lambda _, __: None

    def discover(self) -> list[Mutant]:
        """Trace every call of the checks, and find the mutants of their kernels.

        Raises:
          PallasError: the kernel cannot be traced.
        """
        found: dict[Mutant, None] = {}
        for part in self.parts:
            run = part.check_run()
            for number, drawn in enumerate(_drawn(run)):
                self.calls.append(CheckCall(part, run, drawn, number))
                for place, program in self._programs(self.calls[-1]):
                    mutants = mutants_of(program, self.operators)
                    self.where[place] = program
                    self.inside[place] = set(mutants)
                    found.update(dict.fromkeys(mutants))
        return list(found)

    def _programs(self, check_call: CheckCall) -> Iterator[tuple[Any, Any]]:
        """The programs of a drawn call and its gradient, by place."""
        context = context_of(check_call.run, as_arguments(check_call.drawn))
        for differentiated in (False, True):
            check = check_call.part.check
            if differentiated and (check.differentiates != "only" or check.program is None):
                continue
            place = self._place(check_call, differentiated)
            if place in self.inside:
                continue
            made = call(context, context.kernel, context.arguments.args)
            if differentiated and check.program is not None:
                made = call(context, *check.program(context))
            yield place, _traced(context, made)

    def _place(self, check_call: CheckCall, differentiated: bool) -> Any:
        mesh = tuple(check_call.part.mesh.items())
        return label(check_call.part.backend), mesh, words_of(check_call.drawn), differentiated

    def _concerns(self, check_call: CheckCall, mutant: Mutant) -> bool:
        """Whether the programs of a check may contain the mutant."""
        check = check_call.part.check
        if check.varies_calls:
            return True
        programs = {"no": (False,), "also": (False, True), "only": (True,)}[check.differentiates]
        return any(
            mutant in self.inside.get(self._place(check_call, each), ()) for each in programs
        )

    def same(self, mutant: Mutant) -> str:
        """The reason why a mutant is the same program in every drawn call; "" if it is not."""
        count = 0
        for place, mutants in self.inside.items():
            if mutant not in mutants:
                continue
            program = self.where[place]
            try:
                changed = mutated(program, mutant)
            except MutantError:
                return ""
            if place not in self.forms:
                self.forms[place] = canonical(program)
            if canonical(changed) != self.forms[place]:
                return ""
            count += 1
        return f"the same program after simplification, in {count} drawn calls" if count else ""

    def attempt(self, mutant: Mutant) -> MutantRun:
        """Run checks on a mutant until one kills it.

        The programs are compared after the first check that passes: the first check kills most
        mutants, and takes less time than the comparison.
        """
        runs: dict[Any, Runs] = {}
        examples = 0
        compared = False
        for each in self.calls:
            if not self._concerns(each, mutant):
                continue
            if each.unsound:
                self._note(mutant, each.unsound)
                continue
            self.running(each.part.check.name, each.place)
            error = self._error(each, mutant, runs)
            if error is None or isinstance(error, MutantError) or self._sound(each):
                examples += 1
            else:
                self._note(mutant, each.unsound)
                continue
            if isinstance(error, MutantError):
                return MutantRun(None, examples, str(error))
            if error is not None:
                return MutantRun(
                    KilledBy(each.part.check.name, type(error).__name__, each.place), examples
                )
            if not compared:
                compared = True
                same = self.same(mutant)
                if same:
                    return MutantRun(None, examples, same=same)
        return MutantRun(None, examples, same="" if compared else self.same(mutant))

    def _sound(self, each: CheckCall) -> bool:
        """Whether a check passes without a mutant; otherwise its failure does not count."""
        if each.unsound is None:
            error = self._error(each, None, {})
            each.unsound = ""
            if error is not None:
                each.unsound = (
                    f"{each.part.check.name} on {each.place}, call {each.number}, was left out "
                    f"because it fails without a mutant: {first_line(error)}"
                )
        return not each.unsound

    def _note(self, mutant: Mutant, text: str | None) -> None:
        self.notes.setdefault(unknown(mutant).key, []).append(Note(text or "", "mutants"))

    def _error(
        self, each: CheckCall, mutant: Mutant | None, runs: dict[Any, Runs]
    ) -> Exception | None:
        """The error of a check; None if it passes."""
        session = each.run.session
        session.mutant = mutant
        kept = runs.setdefault((each.part.backend, *each.part.mesh.items()), Runs())
        try:
            run_example(each.run, each.drawn, trial=kept)
        except Exception as error:
            return _mutant_error(error) or error
        finally:
            session.mutant = None
        return None


def _mutant_error(error: BaseException | None) -> MutantError | None:
    """The ``MutantError`` that caused an error, or None."""
    while error is not None:
        if isinstance(error, MutantError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _drawn(run: CheckRun) -> list[Any]:
    """The calls of a check."""
    return list(drawn_calls(run.source, run.options.seed, run.examples, subjects_of(run)))


def _traced(context: CheckContext, made: Any) -> Any:
    """The closed jaxpr of a call on its backend."""
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
    def result(self) -> Result:
        """The result of this item, made at its first use."""
        results, key = self.state.results, (self.spec.name, MUTANTS.name, "all")
        return results.setdefault(key, self.new_result())

    def new_result(self) -> Result:
        """A result without mutants."""
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
        """Its time limit in seconds, of the session's time; None for no limit."""
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
        from pallas_sim.traces import own_lines

        __tracebackhide__ = True
        with own_lines():
            self._try_all()

    def _try_all(self) -> None:
        from pytest_pallas.mutate.runner import Journal, sampled, try_mutants

        __tracebackhide__ = True
        session, options = self.state, self.options
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
            self.result,
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
    observer = item.state.observer
    if observer is not None:
        observer.example(item.result, [Fact("mutant", f"{verdict.operator}: {verdict.change}")])


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
