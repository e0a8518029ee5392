"""What a running test has found so far: one tally a kernel and check, made into one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_pallas.record import Record

if TYPE_CHECKING:
    from pytest_pallas.checks.inputs import Inputs
    from pytest_pallas.checks.trial import Finding
    from pytest_pallas.strategies.arguments import Arguments


@dataclass(kw_only=True)
class Tally:
    """The examples of one check of one kernel in one test, added up."""

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
    notes: list[str] = field(default_factory=list[str])
    inputs: list[Inputs] = field(default_factory=list["Inputs"])
    evidence: list[Any] = field(default_factory=list[Any])
    withdrawn: str = ""
    goldens: Counter[str] = field(default_factory=Counter[str])

    def begin(self, arguments: Arguments) -> None:
        """Count an example, before it is known how it goes."""
        from pytest_pallas.checks.inputs import inputs_of

        self.examples += 1
        self.inputs.append(inputs_of(arguments))

    def withdraw(self, reason: str = "") -> None:
        """Take back the last ``begin``: the example turned out to be none for this check."""
        self.examples -= 1
        self.withdrawn = reason
        self.inputs.pop()

    def add(self, finding: Finding) -> None:
        """Add what an example showed. Of one that failed, only the failure counts."""
        self.kernel_seconds += finding.seconds
        self.notes += [note for note in finding.notes if note not in self.notes]
        self.goldens.update(finding.goldens)
        if finding.evidence is not None:
            self.evidence.append(finding.evidence)
        report = None if finding.outcome is None else finding.outcome.report
        if report is not None:
            from pytest_pallas.compilers.report import to_json

            plain = to_json(report)
            if plain not in self.compiled:
                self.compiled.append(plain)
        if finding.failed is not None:
            self.error = finding.failed.error
            self.baseline = finding.failed.baseline_error
            self.multiple = finding.failed.multiple
            return
        for comparison in finding.comparisons:
            if comparison.kind != "close":
                # Equality has no distance worth a place in the summary.
                self.multiple = self.multiple or 0.0
            elif self.multiple is None or comparison.multiple >= self.multiple:
                self.error = comparison.error
                self.baseline = comparison.baseline_error
                self.multiple = comparison.multiple

    def record(
        self, *, test: str, outcome: str, seconds: float, reason: str = "", **rest: object
    ) -> Record:
        """The record of this tally for a test that ended with ``outcome``."""
        return Record(
            test=test,
            kernel=self.kernel,
            family=self.family,
            check=self.check,
            backend=self.backend,
            mesh=dict(self.mesh),
            outcome=outcome,
            reason=reason,
            examples=self.examples,
            error=self.error,
            baseline=self.baseline,
            multiple=self.multiple,
            kernel_seconds=round(self.kernel_seconds, 4),
            seconds=round(seconds, 4),
            notes=tuple(self.notes),
            compiled=tuple(self.compiled),
            inputs=self._inputs(),
            goldens=dict(self.goldens),
            **rest,  # pyright: ignore[reportArgumentType]
        )

    def _inputs(self) -> dict[str, Any]:
        """What the examples had. Most pytest runs draw none, and need not import for them."""
        if not self.inputs:
            return {}
        from pytest_pallas.checks.inputs import to_json

        return to_json(self.inputs)
