"""``Result``: what a check has found so far in one test; at the end it makes the ``Record``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pallas_sim.coverage import Point, Reached, merged
from pallas_sim.findings import Text
from pytest_pallas.backends.protocol import Backend, code_of, label
from pytest_pallas.backends.registry import FAMILIES
from pytest_pallas.coverage import reached_to_json
from pytest_pallas.decoding import Count, Seconds
from pytest_pallas.record import Note, Orders, PlainCompiled, Record, note_of, orders_of

if TYPE_CHECKING:
    from pytest_pallas.checks.context import CheckResult
    from pytest_pallas.checks.inputs import Inputs
    from pytest_pallas.draw.arguments import Arguments
    from pytest_pallas.judge.tolerance import Comparison
    from pytest_pallas.spec import KernelSpec

#: Number of examples whose errors are kept; of later ones, only failures are kept.
MOST_POINTS = 128


@dataclass(kw_only=True)
class ExamplePoint:
    """The result of one example.

    Attributes:
      dims: the drawn sizes, by name.
      error: the worst error against the oracle in ulps; None if it was not measured.
      baseline: the worst error of the jnp baseline.
      failed: whether an output was wrong.
    """

    dims: Mapping[str, Count]
    error: float | None = None
    baseline: float | None = None
    failed: bool = False


@dataclass(kw_only=True)
class ExampleResults:
    """The results of some examples, as data; see ``rounds``.

    Attributes:
      examples: number of examples that count.
      error: the worst error against the oracle in ulps; None if none was measured. ``baseline`` and
        ``multiple`` belong to it.
      compiled: the reports of compilers, as plain values.
      evidence: what ``Check.conclude`` gets.
      withdrawn: why the check does not apply to the last example to which it does not.
      failed: whether an example failed.
      points: the errors of examples, for a picture.
      coverage: what of the kernel ran on a simulator, also in runs that failed or do not count.
      orders: in how many orders, likewise; None if the check asks for one only.
    """

    examples: Count = 0
    error: float | None = None
    baseline: float | None = None
    multiple: float | None = None
    kernel_seconds: Seconds = 0.0
    compiled: list[PlainCompiled] = field(default_factory=list[Mapping[str, Any]])
    notes: list[Note] = field(default_factory=list[Note])
    unverified: dict[Text, None] = field(default_factory=dict[str, None])
    evidence: list[Any] = field(default_factory=list[Any])
    withdrawn: Text = ""
    failed: bool = False
    goldens: dict[str, Count] = field(default_factory=Counter[str])
    used_goldens: dict[str, None] = field(default_factory=dict[str, None])
    points: list[ExamplePoint] = field(default_factory=list[ExamplePoint])
    coverage: tuple[Reached, ...] = ()
    orders: Orders | None = None


@dataclass(kw_only=True)
class Result(ExampleResults):
    """The examples of one check of one kernel in one test, which grow to a ``Record``.

    Attributes:
      kernel: its name; ``family``, ``check``, ``backend`` and ``mesh`` as in ``Record``.
      source: ``file:line`` of the kernel's function, or "".
      inputs: what was drawn; one for each example.
      earlier: number of examples of the same test that another result counted before.
      final: whether no further example will count: ``withdrawn`` holds for all of them.
      mutants: the verdicts on mutants, as plain values.
      unreached: reasons why a part of the kernel need not run, as in ``KernelSpec.unreached``.
      simulators: as in ``Record``.
    """

    kernel: str
    check: str
    backend: str
    family: str = ""
    source: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    inputs: list[Inputs] = field(default_factory=list["Inputs"])
    earlier: int = 0
    final: bool = False
    mutants: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    unreached: Mapping[str, str] = field(default_factory=dict[str, str])
    simulators: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        kernel: KernelSpec | str,
        check: str,
        backend: Backend,
        sizes: Mapping[str, int] | None = None,
        *,
        function: Any = None,
    ) -> Result:
        """Return a result without examples, of a spec or of a kernel's name and function."""
        name, family = (kernel, "") if isinstance(kernel, str) else (kernel.name, kernel.family)
        if function is None and not isinstance(kernel, str):
            function = kernel.kernel_for(backend.platform)
        code = code_of(function)
        return cls(
            kernel=name,
            family=family,
            source="" if code is None else f"{code.co_filename}:{code.co_firstlineno}",
            check=check,
            backend=label(backend),
            mesh=sizes or {},
            unreached={} if isinstance(kernel, str) else dict(kernel.unreached),
            simulators=() if isinstance(kernel, str) else _simulators_of(kernel),
        )

    def begin(self, arguments: Arguments) -> None:
        """Count an example at its start."""
        from pytest_pallas.checks.inputs import inputs_of

        self.examples += 1
        self.inputs.append(inputs_of(arguments))
        self._add_point(ExamplePoint(dims=_dims(arguments)))

    def withdraw(self, reason: str = "", *, final: bool = False) -> None:
        """Undo the last ``begin``: the check does not apply to the example, or to any if final."""
        self.examples -= 1
        self.withdrawn, self.final = reason, final
        self.inputs.pop()
        self.points.pop()

    def add(self, check_result: CheckResult) -> None:
        """Add the result of an example. Of a failed example, only the failure counts."""
        self.kernel_seconds += check_result.seconds
        for note in map(note_of, check_result.notes):
            self.add_note(note)
        self.goldens.update(check_result.goldens)
        self.used_goldens.update(dict.fromkeys(check_result.used_goldens))
        if check_result.evidence is not None:
            self.evidence.append(check_result.evidence)
        if check_result.outcome is not None:
            self.unverified.update(dict.fromkeys(check_result.outcome.unverified))
        report = None if check_result.outcome is None else check_result.outcome.report
        if report is not None:
            from pytest_pallas.compile.service import to_json as report_to_json

            plain = report_to_json(report)
            if plain not in self.compiled:
                self.compiled.append(plain)
        failed = check_result.failed
        measured = [one for one in check_result.comparisons if one.kind in ("close", "exact")]
        worst = failed or max(measured, key=lambda one: one.error, default=None)
        if worst is not None and self.points:
            point = self.points[-1]
            point.error, point.baseline = worst.error, worst.baseline_error
            point.failed = failed is not None
        if failed is not None:
            self.fail(failed)
            return
        for comparison in check_result.comparisons:
            if comparison.kind != "close":
                # exact comparisons have no error for the summary
                self.multiple = self.multiple or 0.0
            elif self.multiple is None or comparison.multiple >= self.multiple:
                self.error = comparison.error
                self.baseline = comparison.baseline_error
                self.multiple = comparison.multiple

    def cover(self, runs: Iterable[tuple[Reached, ...]], orders: Iterable[Orders] = ()) -> None:
        """Add what of the kernel ran in some runs, and in how many orders."""
        self.coverage = merged((self.coverage, *runs))
        self.orders = orders_of((self.orders, *orders))

    def explain(self, reasons: Mapping[tuple[Point, str], str]) -> None:
        """Say why no example went some ways.

        Where a program rules one out that depends on more than its sizes, larger sizes would allow
        it: it is missing.
        """
        explained: list[Reached] = []
        for one in self.coverage:
            why = {way: text for (point, way), text in reasons.items() if point == one.point}
            more = [way for way in why if way in one.needs or one.depends]
            missing = tuple(dict.fromkeys((*one.missing, *more)))
            kept = {way: text for way, text in one.unreachable.items() if way not in missing}
            explained.append(replace(one, missing=missing, unreachable=kept, why=why))
        self.coverage = tuple(explained)

    def fail(self, failed: Comparison) -> None:
        """Take the errors of the failure that is reported."""
        self.failed = True
        self.error = failed.error
        self.baseline = failed.baseline_error
        self.multiple = failed.multiple

    def absorb(self, later: Result) -> None:
        """Add the examples of another result of the same test, which ran later."""
        self.examples += later.examples
        self.kernel_seconds += later.kernel_seconds
        self.compiled += [report for report in later.compiled if report not in self.compiled]
        for note in later.notes:
            self.add_note(note)
        self.unverified.update(later.unverified)
        self.inputs += later.inputs
        self.evidence += later.evidence
        self.withdrawn = later.withdrawn or self.withdrawn
        self.final |= later.final
        self.goldens.update(later.goldens)
        self.used_goldens.update(later.used_goldens)
        self.cover((later.coverage,), () if later.orders is None else (later.orders,))
        for point in later.points:
            self._add_point(point)
        if later.failed or _is_worse(later, self):
            self.error, self.baseline = later.error, later.baseline
            self.multiple = later.multiple
        elif later.multiple is not None:
            self.multiple = self.multiple or 0.0
        self.failed = self.failed or later.failed

    def _add_point(self, point: ExamplePoint) -> None:
        """Add a point; beyond the limit, it replaces the last one unless that failed."""
        if len(self.points) > MOST_POINTS and not self.points[-1].failed:
            self.points.pop()
        self.points.append(point)

    def add_note(self, note: Note) -> None:
        """Add notes, each once."""
        if note not in self.notes:
            self.notes.append(note)

    def record(
        self, *, test: str, outcome: str, seconds: float, reason: str = "", **rest: Any
    ) -> Record:
        """Return the record of a test that ended with ``outcome``."""
        drawn: dict[str, Any] = {}
        if self.inputs:  # imported lazily, because most runs of pytest draw none
            from pytest_pallas.checks.inputs import signatures, to_json

            drawn = {"inputs": to_json(self.inputs), "signatures": signatures(self.inputs)}
        notes = list(self.notes)
        if self.check == "synchronization" and self.evidence:
            from pytest_pallas.checks.synchronization import facts_of_record

            drawn |= facts_of_record(self.evidence)
            notes += drawn.pop("notes")
        return Record(
            test=test,
            kernel=self.kernel,
            family=self.family,
            check=self.check,
            backend=self.backend,
            mesh=dict(self.mesh),
            outcome=outcome,
            reason=reason,
            source=self.source if outcome in ("failed", "xfailed", "xpassed") else "",
            requirement="" if outcome != "skipped" or self.examples else self.withdrawn,
            examples=self.examples,
            error=self.error,
            baseline=self.baseline,
            multiple=self.multiple,
            kernel_seconds=round(self.kernel_seconds, 4),
            seconds=round(seconds, 4),
            notes=tuple(notes),
            unverified=tuple(self.unverified),
            compiled=tuple(self.compiled),
            goldens=dict(self.goldens),
            used_goldens=tuple(self.used_goldens),
            mutants=tuple(self.mutants),
            coverage=tuple(map(reached_to_json, self.coverage)),
            unreached=self.unreached if self.coverage else {},
            simulators=self.simulators if self.coverage else (),
            orders=self.orders,
            **drawn,
            **rest,
        )


def _simulators_of(spec: KernelSpec) -> tuple[str, ...]:
    """Return the simulators that a spec claims, if it says what need not run there."""
    simulators = (family.name for family in FAMILIES if family.kind == "simulating")
    return tuple(filter(spec.claims, simulators)) if spec.unreached else ()


def _is_worse(later: Result, earlier: Result) -> bool:
    """Return whether the error of a later result is the worst; exact comparisons have none."""
    if later.error is None or later.multiple is None:
        return False
    return earlier.multiple is None or later.multiple >= earlier.multiple


def _dims(arguments: Arguments) -> dict[str, int]:
    """Return the drawn sizes of a call, by name; without names, those of its arrays."""
    recipes = [arguments.recipe, *(getattr(arg, "recipe", {}) for arg in arguments.args)]
    named = {
        name: value
        for recipe in recipes
        for name, value in recipe.items()
        if type(value) is int and name != "seed"
    }
    return named or {
        f"axis {axis} of argument {position}": size
        for position, arg in enumerate(arguments.args)
        for axis, size in enumerate(getattr(arg, "shape", ()))
    }
