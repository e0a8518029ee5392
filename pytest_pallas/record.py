"""The one dataclass that every check of every test yields, and its JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_pallas import notes
from pytest_pallas.notes import Note

#: Version of the JSON form; see "Results" in docs/reference.md. ``from_json`` reads version 1, too.
SCHEMA = 2

#: What a record's ``outcome`` can be.
OUTCOMES = ("passed", "failed", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """A check that does not apply to a kernel on a backend.

    Attributes:
      test: the pytest node id that it has, or would have.
      kernel: name of the spec.
      family: family of the spec.
      check: name of the check.
      backend: backend label.
      mesh: axis name to size, or empty for a single device.
      requirement: why it does not apply, such as ``"no example aliases an input"``.
      found: ``"collection"`` where no test was made for it, ``"run"`` where the test found out.
    """

    test: str
    kernel: str
    family: str
    check: str
    backend: str
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    requirement: str
    found: str = "collection"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one check found about one kernel on one backend.

    Attributes:
      test: the pytest node id.
      kernel: name of the spec, or of the function under test.
      family: family of the spec, or "" for a test of one's own.
      check: name of the check.
      backend: backend label, such as ``"tpu-interpret:v6e"``.
      mesh: axis name to size, or empty for a single device.
      outcome: one of ``OUTCOMES``.
      reason: why it was skipped or is expected to fail.
      requirement: why the check does not apply to any example; empty if it applies.
      stopped_by: the test whose kernel raised, for which reason this one was not run; or empty.
      message: what went wrong, in full; empty unless failed or xfailed.
      explanation: the same as data, as ``explanations.to_json`` gives it.
      findings: of a failure, what is wrong with the kernel whatever it returned, such as a race or
        a deadlock, as ``findings.to_json`` gives it.
      examples: how many examples were executed.
      error: worst error against the oracle, in ulps of the output's scale; None if not measured.
      baseline: the worst error of the jnp baseline, likewise.
      multiple: the worst error as a multiple of the baseline's.
      seconds: wall time of the whole check.
      kernel_seconds: the part of it spent tracing, compiling and running the kernel.
      seed: seed of the draws.
      replay: the command that runs the failing example again.
      script: path of the script that repeats the failure; "" if there is none.
      example: path of the file for ``--pallas-replay``; "" if there is none.
      compiled: what compiling backends said of each program, as ``compilers.report.to_json``
        gives it; empty on other backends.
      notes: what else a reader should know, such as that races were looked for.
      unverified: behavior of the simulated chip that the kernel used and no document describes.
      inputs: what was tried of the inputs that were declared, as ``checks.inputs.to_json`` gives
        it; empty if nothing was drawn.
      signatures: digests of the different shapes that the check was asked about, each of shapes,
        dtypes and static arguments of a call (``checks.inputs.Inputs.signature``).
      goldens: how many goldens were ``recorded``, ``replaced``, left ``unchanged``, ``compared``,
        ``different``, ``missing`` or ``lost``; and ``used NAME`` for each that was compared.
      mutants: what became of each mutant of the kernel, as ``mutation_runner.verdict.to_json``;
        empty without ``--pallas-mutate``.
      pictures: of a failure, what can be drawn of it, as ``report.pictures`` makes it: a map and
        a histogram of errors, the programs that are wrong, the errors of the examples, the
        blocks of a grid. Empty otherwise.
    """

    test: str
    kernel: str
    check: str
    backend: str
    outcome: str
    family: str = ""
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    reason: str = ""
    requirement: str = ""
    stopped_by: str = ""
    message: str = ""
    explanation: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    findings: tuple[Mapping[str, Any], ...] = ()
    examples: int = 0
    error: float | None = None
    baseline: float | None = None
    multiple: float | None = None
    seconds: float = 0.0
    kernel_seconds: float = 0.0
    seed: int = 0
    replay: str = ""
    script: str = ""
    example: str = ""
    compiled: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[Note, ...] = ()
    unverified: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    signatures: tuple[str, ...] = ()
    goldens: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    pictures: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    mutants: tuple[Mapping[str, Any], ...] = ()


def not_applicable_of(record: Record) -> NotApplicable | None:
    """What a record says of a check that applies to no example, or None if it applies."""
    if record.outcome != "skipped" or not record.requirement:
        return None
    return NotApplicable(
        test=record.test,
        kernel=record.kernel,
        family=record.family,
        check=record.check,
        backend=record.backend,
        mesh=record.mesh,
        requirement=record.requirement,
        found="run",
    )


def plain_not_applicable(entry: NotApplicable) -> dict[str, Any]:
    """An entry as plain JSON values."""
    return {**vars(entry), "mesh": dict(entry.mesh)}


def to_json(record: Record) -> dict[str, Any]:
    """A record as plain JSON values; infinite and undefined numbers become strings."""
    plain = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    plain["mesh"] = dict(record.mesh)
    plain["explanation"] = dict(record.explanation)
    plain["findings"] = [dict(finding) for finding in record.findings]
    plain["notes"] = [notes.to_json(note) for note in record.notes]
    plain["unverified"] = list(record.unverified)
    plain["inputs"] = dict(record.inputs)
    plain["signatures"] = list(record.signatures)
    plain["goldens"] = dict(record.goldens)
    plain["pictures"] = dict(record.pictures)
    plain["compiled"] = [dict(report) for report in record.compiled]
    plain["mutants"] = [dict(verdict) for verdict in record.mutants]
    return {name: _finite(value) for name, value in plain.items()}


def from_json(plain: Mapping[str, Any]) -> Record:
    """The record that ``to_json`` wrote."""
    fields = dict(plain)
    fields["findings"] = tuple(fields.get("findings", ()))
    fields["notes"] = tuple(map(notes.from_json, fields.get("notes", ())))
    fields["unverified"] = tuple(fields.get("unverified", ()))
    fields["signatures"] = tuple(fields.get("signatures", ()))
    fields["compiled"] = tuple(fields.get("compiled", ()))
    fields["mutants"] = tuple(fields.get("mutants", ()))
    for name in ("error", "baseline", "multiple"):
        if isinstance(fields.get(name), str):
            fields[name] = float(fields[name])
    return Record(**fields)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value
