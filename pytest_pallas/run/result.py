"""Which tolerance holds, and who gave it: mark > call or spec > hook > default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.registry import parse
from pytest_pallas.record import Note, Record, note_of
from pytest_pallas.session import Session

if TYPE_CHECKING:
    from pytest_pallas.checks.context import CheckResult
    from pytest_pallas.checks.inputs import Inputs
    from pytest_pallas.draw.arguments import Arguments
    from pytest_pallas.judge.tolerance import Comparison, Tolerance


def tolerance_for(
    session: Session,
    marks: Sequence[pytest.Mark],
    given: Tolerance | Mapping[str, Tolerance] | None,
    *,
    kernel: str,
    check: str,
    backend: Backend,
    dtypes: Sequence[str],
) -> tuple[Tolerance, str]:
    """The tolerance for one call, and where it is given, in words; "" for the default.

    Args:
      session: has the hook and the backends.
      marks: the ``pallas_tolerance`` marks of the test, closest first.
      given: the tolerance of the call or the spec, or a mapping whose keys are a dtype, a backend,
        or both (``"bfloat16"``, ``"gpu"``, ``"gpu bfloat16"``); the most specific wins.
      kernel: name of the kernel.
      check: name of the check.
      backend: where it runs.
      dtypes: names of the dtypes of its array arguments.

    Raises:
      OptionError: a mark has a wrong argument.
    """
    from pytest_pallas.judge.tolerance import Tolerance

    names = (backend.name, label(backend))
    for mark in marks:
        limits = dict(mark.kwargs)
        only_backend, only_dtype = limits.pop("backend", None), limits.pop("dtype", None)
        _known(session, only_backend, only_dtype)
        if only_backend not in (None, *names) or only_dtype not in (None, *dtypes):
            continue
        try:
            return Tolerance(**limits), "@pytest.mark.pallas_tolerance"
        except TypeError as error:
            raise OptionError(
                f"mark pallas_tolerance: {error}; it takes backend, dtype, factor, floor, rtol, "
                "atol, ulp and fraction"
            ) from None
    chosen = _most_specific(given, names, dtypes) if isinstance(given, Mapping) else given
    if chosen is not None:
        return chosen, "tolerance= of the spec or call"
    chosen = session.harness.tolerance(kernel=kernel, check=check, backend=backend, dtypes=dtypes)
    if chosen is not None:
        return chosen, "the hook pytest_pallas_tolerance"
    return Tolerance(), ""


def _known(session: Session, backend: str | None, dtype: str | None) -> None:
    """Reject unknown names in a mark, which would never match."""
    import jax

    if backend is not None:
        parse(backend, session.families)
    try:
        jax.numpy.dtype(dtype)
    except TypeError:
        raise OptionError(f"mark pallas_tolerance: unknown dtype {dtype!r}") from None


def _most_specific(
    given: Mapping[str, Tolerance], names: Sequence[str], dtypes: Sequence[str]
) -> Tolerance | None:
    keys: list[str] = [f"{name} {dtype}" for name in reversed(names) for dtype in dtypes]
    keys += [*reversed(names), *dtypes]
    return next((given[key] for key in keys if key in given), None)


def dtypes_of(args: Any) -> list[str]:
    """Names of the dtypes of the arrays in a pytree, without repetition."""
    import jax

    leaves = jax.tree.leaves(args)
    return list(dict.fromkeys(str(leaf.dtype) for leaf in leaves if hasattr(leaf, "dtype")))


# The results of a running test: one builder for each kernel and check, which makes one record.


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

    dims: Mapping[str, int]
    error: float | None = None
    baseline: float | None = None
    failed: bool = False


@dataclass(kw_only=True)
class ResultBuilder:
    """The accumulated examples of one check of one kernel in one test.

    Attributes:
      failed: whether an example failed.
      earlier: number of examples that other builders of the same test counted before.
    """

    kernel: str
    check: str
    backend: str
    family: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    examples: int = 0
    error: float | None = None
    baseline: float | None = None
    multiple: float | None = None
    kernel_seconds: float = 0.0
    compiled: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    notes: list[Note] = field(default_factory=list[Note])
    unverified: dict[str, None] = field(default_factory=dict[str, None])
    inputs: list[Inputs] = field(default_factory=list["Inputs"])
    evidence: list[Any] = field(default_factory=list[Any])
    withdrawn: str = ""
    failed: bool = False
    earlier: int = 0
    goldens: Counter[str] = field(default_factory=Counter[str])
    used_goldens: dict[str, None] = field(default_factory=dict[str, None])
    points: list[ExamplePoint] = field(default_factory=list["ExamplePoint"])
    mutants: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def begin(self, arguments: Arguments) -> None:
        """Count an example at its start."""
        from pytest_pallas.checks.inputs import inputs_of

        self.examples += 1
        self.inputs.append(inputs_of(arguments))
        self._add_point(ExamplePoint(dims=_dims(arguments)))

    def withdraw(self, reason: str = "") -> None:
        """Undo the last ``begin``: the check does not apply to the example."""
        self.examples -= 1
        self.withdrawn = reason
        self.inputs.pop()
        self.points.pop()

    def add(self, finding: CheckResult) -> None:
        """Add the result of an example. Of a failed example, only the failure counts."""
        self.kernel_seconds += finding.seconds
        for note in map(note_of, finding.notes):
            self.add_note(note)
        self.goldens.update(finding.goldens)
        self.used_goldens.update(dict.fromkeys(finding.used_goldens))
        if finding.evidence is not None:
            self.evidence.append(finding.evidence)
        if finding.outcome is not None:
            self.unverified.update(dict.fromkeys(finding.outcome.unverified))
        report = None if finding.outcome is None else finding.outcome.report
        if report is not None:
            from pytest_pallas.compile.service import to_json

            plain = to_json(report)
            if plain not in self.compiled:
                self.compiled.append(plain)
        self._mark(finding)
        if finding.failed is not None:
            self.fail(finding.failed)
            return
        for comparison in finding.comparisons:
            if comparison.kind != "close":
                # exact comparisons have no error for the summary
                self.multiple = self.multiple or 0.0
            elif self.multiple is None or comparison.multiple >= self.multiple:
                self.error = comparison.error
                self.baseline = comparison.baseline_error
                self.multiple = comparison.multiple

    def fail(self, failed: Comparison) -> None:
        """Take the errors of the failure that is reported."""
        self.failed = True
        self.error = failed.error
        self.baseline = failed.baseline_error
        self.multiple = failed.multiple

    def absorb(self, later: ResultBuilder) -> None:
        """Add the examples of another builder of the same test, which ran later."""
        self.examples += later.examples
        self.kernel_seconds += later.kernel_seconds
        self.compiled += [each for each in later.compiled if each not in self.compiled]
        for note in later.notes:
            self.add_note(note)
        self.unverified.update(later.unverified)
        self.inputs += later.inputs
        self.evidence += later.evidence
        self.withdrawn = later.withdrawn or self.withdrawn
        self.goldens.update(later.goldens)
        self.used_goldens.update(later.used_goldens)
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

    def _mark(self, finding: CheckResult) -> None:
        """Keep the error of the current example."""
        measured = [each for each in finding.comparisons if each.kind in ("close", "exact")]
        worst = finding.failed or max(measured, key=lambda each: each.error, default=None)
        if worst is not None and self.points:
            point = self.points[-1]
            point.error, point.baseline = worst.error, worst.baseline_error
            point.failed = not worst.passed

    def record(
        self, *, test: str, outcome: str, seconds: float, reason: str = "", **rest: object
    ) -> Record:
        """The record of this builder for a test that ended with ``outcome``."""
        return Record(
            test=test,
            kernel=self.kernel,
            family=self.family,
            check=self.check,
            backend=self.backend,
            mesh=dict(self.mesh),
            outcome=outcome,
            reason=reason,
            requirement="" if outcome != "skipped" or self.examples else self.withdrawn,
            examples=self.examples,
            error=self.error,
            baseline=self.baseline,
            multiple=self.multiple,
            kernel_seconds=round(self.kernel_seconds, 4),
            seconds=round(seconds, 4),
            notes=tuple(self.notes),
            unverified=tuple(self.unverified),
            compiled=tuple(self.compiled),
            inputs=self._inputs(),
            signatures=self._signatures(),
            goldens=dict(self.goldens),
            used_goldens=tuple(self.used_goldens),
            mutants=tuple(self.mutants),
            **rest,  # pyright: ignore[reportArgumentType]
        )

    def _inputs(self) -> dict[str, Any]:
        """The inputs of the examples. Imported lazily, because most pytest runs draw none."""
        if not self.inputs:
            return {}
        from pytest_pallas.checks.inputs import to_json

        return to_json(self.inputs)

    def _signatures(self) -> tuple[str, ...]:
        """The distinct shapes of the examples."""
        if not self.inputs:
            return ()
        from pytest_pallas.checks.inputs import signatures

        return signatures(self.inputs)


def _is_worse(later: ResultBuilder, earlier: ResultBuilder) -> bool:
    """Whether the error of a later builder is the worst so far; exact comparisons have none."""
    if later.error is None or later.multiple is None:
        return False
    return earlier.multiple is None or later.multiple >= earlier.multiple


def _dims(arguments: Arguments) -> dict[str, int]:
    """The drawn sizes of a call, by name; without names, those of its arrays."""
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
