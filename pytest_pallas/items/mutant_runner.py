"""Run the checks of a spec on mutants, in the order of the checks.

The order is fixed, so that the check that kills a mutant depends neither on the time nor on other
mutants. Checks that have killed more per second first are no faster: the first checks kill most
mutants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.errors import first_line
from pytest_pallas.backends import label
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.bindings.bound_checks import BoundCheck, context_of, subjects_of
from pytest_pallas.checks.context import CheckContext, call
from pytest_pallas.checks.verdict import run_check
from pytest_pallas.errors import MutantError, NotApplicableError
from pytest_pallas.items.item import SpecItem
from pytest_pallas.mutation import Mutant, mutants_of, mutated
from pytest_pallas.mutation.canonical import canonical
from pytest_pallas.mutation_runner.running import KilledBy, MutantRun, unknown
from pytest_pallas.notes import Note
from pytest_pallas.sampling.diversity import shared, words_of
from pytest_pallas.sampling.fuzzing import drawn_calls
from pytest_pallas.sanitizers.runs import Runs
from pytest_pallas.session import current


@dataclass(eq=False)
class CheckCall:
    """One check of one drawn call on one backend and mesh.

    Attributes:
      part: the check.
      bound: the bound check of its part.
      drawn: the call.
      number: the number of the call, from 0.
      unsound: why it does not count, if it fails without a mutant; "" if it passes, None if that
        is not known yet.
    """

    part: SpecItem
    bound: BoundCheck
    drawn: Any
    number: int
    unsound: str | None = None

    @property
    def place(self) -> str:
        """The backend, with the sizes of the mesh."""
        mesh = "".join(f"-{axis}{size}" for axis, size in self.part.mesh.items())
        return f"{label(self.part.backend)}{mesh}"


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
            bound = part.bound()
            for number, drawn in enumerate(_drawn(part, bound)):
                self.calls.append(CheckCall(part, bound, drawn, number))
                for place, program in self._programs(self.calls[-1]):
                    mutants = mutants_of(program, self.operators)
                    self.where[place] = program
                    self.inside[place] = set(mutants)
                    found.update(dict.fromkeys(mutants))
        return list(found)

    def _programs(self, check_call: CheckCall) -> Iterator[tuple[Any, Any]]:
        """The programs of a drawn call and its gradient, by place."""
        context = context_of(check_call.bound, check_call.drawn)
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
        session = current(each.part.config)
        session.mutant = mutant
        context = context_of(
            each.bound,
            each.drawn,
            explained=mutant is None,
            runs=runs.setdefault((each.part.backend, *each.part.mesh.items()), Runs()),
        ).with_settings(dump=None)
        try:
            run_check(each.part.check, context, each.part.spec.name)
        except NotApplicableError:
            return None
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


def _drawn(part: SpecItem, bound: BoundCheck) -> list[Any]:
    """The calls of a check."""
    source = shared(current(part.config).sources, bound.source, bound.strategy)
    return list(drawn_calls(source, bound.options.seed, bound.examples, subjects_of(bound)))


def _traced(context: CheckContext, made: Any) -> Any:
    """The closed jaxpr of a call on its backend."""
    backend: Any = context.backend
    with backend.context(races=False):
        static, arrays = split(made)
        return jitted(static).trace(arrays).jaxpr
