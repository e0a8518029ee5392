"""The record of a check in a test, and its JSON."""

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

#: The values of a record's ``outcome``.
OUTCOMES = ("passed", "failed", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True, kw_only=True)
class Host:
    """One process of a program of several processes that ran a test, and the host that it ran on.

    Attributes:
      process: the number of the process, ``jax.process_index()``.
      name: the host name.
      outcome: the outcome of the test in this process, one of ``OUTCOMES``; "" if the process ended
        without one.
      because_of: the processes whose failure made the test fail in this one, which is otherwise
        right; empty for a failure of its own.
    """

    process: int
    name: str
    outcome: str = ""
    because_of: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotApplicable:
    """A check that does not apply to a kernel on a backend.

    Attributes:
      test: its pytest node id, also if there is no test.
      kernel: name of the spec.
      family: family of the spec.
      check: name of the check.
      backend: backend label.
      mesh: axis name to size, or empty for a single device.
      requirement: the reason, such as ``"no example aliases an input"``.
      found: ``"collection"`` if there is no test, ``"run"`` if the test found out.
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
    """The result of one check of one kernel on one backend.

    Attributes:
      test: the pytest node id.
      kernel: name of the spec, or of the function under test.
      family: family of the spec, or "" for a user-written test.
      check: name of the check.
      backend: backend label, such as ``"tpu-interpret:v6e"``.
      mesh: axis name to size, or empty for a single device.
      outcome: one of ``OUTCOMES``.
      reason: why it was skipped or is expected to fail.
      requirement: the reason why the check applies to no example; empty if it applies.
      stopped_by: the test whose kernel raised, so that this one did not run; or empty.
      message: the full error message; empty unless failed or xfailed.
      explanation: the message as data, from ``explanations.to_json``.
      findings: findings of a failure, such as a race or a deadlock, from ``findings.to_json``.
      others: failures of the same check with other causes, each with ``message``, ``explanation``
        and ``findings``.
      examples: number of executed examples.
      error: worst error against the oracle, in ulps of the output's scale; None if not measured.
      baseline: the worst error of the jnp baseline, likewise.
      multiple: the worst error as a multiple of the baseline's.
      seconds: wall time of the whole check.
      kernel_seconds: the part of it spent tracing, compiling and running the kernel.
      seed: seed of the draws.
      replay: the command that runs the failing example again.
      script: path of the script that repeats the failure; "" if there is none.
      example: path of the file for ``--pallas-replay``; "" if there is none.
      compiled: the report of each compiled program, from ``compilers.report.to_json``; empty on
        other backends.
      notes: additional facts, such as the backend that ran instead of the simulator.
      unverified: undocumented behavior of the simulated chip that the kernel used.
      inputs: coverage of the declared inputs, from ``checks.inputs.to_json``; empty if nothing was
        drawn.
      signatures: digests of the distinct shapes that the check ran on, each of the shapes, dtypes
        and static arguments of a call (``checks.inputs.Inputs.signature``).
      goldens: how many goldens were ``recorded``, ``replaced``, left ``unchanged``, ``compared``,
        ``different``, ``missing`` or ``lost``.
      used_goldens: names of the goldens that the outputs were compared with.
      mutants: the verdict on each mutant of the kernel, from ``mutation_runner.verdict.to_json``;
        empty without ``--pallas-mutate``.
      pictures: pictures of a failure, from ``report.pictures``: a map and a histogram of errors,
        the programs with wrong elements, the errors of the examples, masks and ids among the
        arguments, the blocks of a grid. Empty otherwise.
      hosts: the processes that ran the test together, by number; empty outside of a program of
        several processes.
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
    others: tuple[Mapping[str, Any], ...] = ()
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
    used_goldens: tuple[str, ...] = ()
    pictures: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    mutants: tuple[Mapping[str, Any], ...] = ()
    hosts: tuple[Host, ...] = ()


def not_applicable_of(record: Record) -> NotApplicable | None:
    """The entry of a record whose check applies to no example, or None."""
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
    plain["others"] = [dict(each) for each in record.others]
    plain["notes"] = [notes.to_json(note) for note in record.notes]
    plain["unverified"] = list(record.unverified)
    plain["inputs"] = dict(record.inputs)
    plain["signatures"] = list(record.signatures)
    plain["goldens"] = dict(record.goldens)
    plain["used_goldens"] = list(record.used_goldens)
    plain["pictures"] = dict(record.pictures)
    plain["compiled"] = [dict(report) for report in record.compiled]
    plain["mutants"] = [dict(verdict) for verdict in record.mutants]
    plain["hosts"] = [{**vars(host), "because_of": list(host.because_of)} for host in record.hosts]
    return {name: _finite(value) for name, value in plain.items()}


def from_json(plain: Mapping[str, Any]) -> Record:
    """The record from ``to_json``."""
    fields = dict(plain)
    fields["findings"] = tuple(fields.get("findings", ()))
    fields["others"] = tuple(fields.get("others", ()))
    fields["notes"] = tuple(map(notes.from_json, fields.get("notes", ())))
    fields["unverified"] = tuple(fields.get("unverified", ()))
    fields["signatures"] = tuple(fields.get("signatures", ()))
    fields["used_goldens"] = tuple(fields.get("used_goldens", ()))
    fields["compiled"] = tuple(fields.get("compiled", ()))
    fields["mutants"] = tuple(fields.get("mutants", ()))
    fields["hosts"] = tuple(
        Host(
            process=host["process"],
            name=host["name"],
            outcome=host["outcome"],
            because_of=tuple(host["because_of"]),
        )
        for host in fields.get("hosts", ())
    )
    for name in ("error", "baseline", "multiple"):
        if isinstance(fields.get(name), str):
            fields[name] = float(fields[name])
    return Record(**fields)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value
