"""The records of one test from the processes of a gang, merged into one: pure functions.

A test of several processes is one test: it fails if it fails in any of them. Its error is the worst
of all processes, and its message is that of the process that is most wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_sim.errors import Explanation, explanation_of
from pytest_pallas.decoding import decode
from pytest_pallas.notes import Note
from pytest_pallas.record import Host, Record


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """What one process has to say about one test.

    Attributes:
      process: its number.
      host: the name of its host.
      records: its records of the test; several if the test checks several kernels.
      ended: why it has no more records, such as ``"killed by SIGKILL"``; "" if it is well.
      because_of: the processes whose failure ended it, if it waited for them.
    """

    process: int
    host: str
    records: Sequence[Record] = ()
    ended: str = ""
    because_of: tuple[int, ...] = ()


def merge_processes(results: Sequence[ProcessResult]) -> list[Record]:
    """One record for each kernel and check of a test, in the order of the lowest process.

    The outcome is ``failed`` if any process failed, ended or has no record. Expected failures count
    for all: a kernel that is wrong in one process is wrong. Any other difference between outcomes
    is a failure, too, because all processes must do the same.

    Args:
      results: of all processes, whatever became of them.
    """
    results = sorted(results, key=lambda result: result.process)
    keys = dict.fromkeys(_key(record) for result in results for record in result.records)
    return [_merged(results, key) for key in keys]


@dataclass(frozen=True)
class _Part:
    """The part of one process in a merged record.

    Attributes:
      result: of the process.
      record: its record, or None.
    """

    result: ProcessResult
    record: Record | None

    @property
    def host(self) -> Host:
        """The process, with the outcome of its record."""
        own = [] if self.record is None else self.record.hosts
        found = (e.because_of for e in own if e.process == self.result.process)
        because_of = self.result.because_of or next(found, ())
        lost = self.record is None or self.result.ended
        outcome = "" if lost or self.record is None else self.record.outcome
        return Host(
            process=self.result.process,
            name=self.result.host,
            outcome=outcome,
            because_of=because_of,
        )

    @property
    def failed(self) -> bool:
        """Whether the process failed, or has no outcome."""
        return self.host.outcome in ("failed", "")


def _key(record: Record) -> Hashable:
    return (record.test, record.kernel, record.check, record.backend, tuple(record.mesh.items()))


def _merged(results: Sequence[ProcessResult], key: Hashable) -> Record:
    parts = [
        _Part(result, next((r for r in result.records if _key(r) == key), None))
        for result in results
    ]
    records = [part.record for part in parts if part.record is not None]
    outcome = _outcome(parts)
    worst = _worst(parts, outcome)
    measured = max(records, key=_size)
    return dataclasses.replace(
        records[0],
        outcome=outcome,
        reason=worst.reason,
        requirement=_same(records, lambda record: record.requirement, ""),
        stopped_by=_same(records, lambda record: record.stopped_by, ""),
        **_failure(parts, worst, outcome),
        examples=min(record.examples for record in records),
        error=measured.error,
        baseline=measured.baseline,
        multiple=measured.multiple,
        seconds=max(record.seconds for record in records),
        kernel_seconds=max(record.kernel_seconds for record in records),
        notes=(*_union(record.notes for record in records), *_counts(parts)),
        unverified=_union(record.unverified for record in records),
        signatures=_union(record.signatures for record in records),
        used_goldens=_union(record.used_goldens for record in records),
        hosts=tuple(part.host for part in parts),
    )


def _outcome(parts: Sequence[_Part]) -> str:
    outcomes = {part.host.outcome for part in parts}
    if len(outcomes) == 1 and "" not in outcomes:
        return outcomes.pop()
    if "xfailed" in outcomes and outcomes <= {"xfailed", "xpassed"}:
        return "xfailed"
    return "failed"


def _worst(parts: Sequence[_Part], outcome: str) -> Record:
    """The record whose message is shown: of a failure of its own if there is one, the worst."""
    own = [part for part in parts if part.failed and not part.host.because_of]
    candidates = own or [part for part in parts if part.failed]
    found = [part.record for part in candidates if part.record is not None and part.record.message]
    if not found:
        records = [part.record for part in parts if part.record is not None]
        found = [record for record in records if record.outcome == outcome] or records
    return max(found, key=_size)


def _size(record: Record) -> float:
    """How wrong an answer is; below 0 where nothing was measured."""
    if record.multiple is None:
        return -1.0
    return math.inf if math.isnan(record.multiple) else record.multiple


def _failure(parts: Sequence[_Part], worst: Record, outcome: str) -> dict[str, Any]:
    """The message of a failure as record fields: which processes failed, and the worst of them."""
    fields: dict[str, Any] = {
        "message": worst.message,
        "explanation": worst.explanation,
        "findings": worst.findings,
        "others": worst.others,
        "replay": worst.replay,
        "script": worst.script,
        "example": worst.example,
        "pictures": worst.pictures,
    }
    if outcome != "failed":
        return fields
    headline = _headline(parts)
    explanation = (
        decode(Explanation, worst.explanation)
        if worst.explanation
        else explanation_of(worst.message)
    )
    if worst.message:
        fields["message"] = f"{headline}\n{worst.message}"
        fields["explanation"] = explanation.under(headline).to_json()
    else:
        fields["message"] = headline
        fields["explanation"] = explanation_of(headline).to_json()
    fields["others"] = (*worst.others, *_others(parts, worst))
    return fields


def _headline(parts: Sequence[_Part]) -> str:
    """Which processes failed, and what became of the others, in one line."""
    failed = [part for part in parts if part.failed and not part.host.because_of]
    fine = [part for part in parts if not part.failed]
    stopped = [part for part in parts if part.failed and part.host.because_of]
    if not failed and not stopped:
        words = "; ".join(f"{_name(part)} {_ended(part)}" for part in parts)
        return f"the processes ended differently: {words}"
    if len(failed) == len(parts) and len({_ended(part) for part in parts}) == 1:
        return f"all {len(parts)} processes {_ended(parts[0])}"
    words = [f"{_name(part)} {_ended(part)}" for part in failed]
    if stopped:
        numbers = sorted({number for part in stopped for number in part.host.because_of})
        words.append(f"{_names(stopped)} stopped because of {_numbers(numbers)}")
    words += [f"{_name(part)} {_ended(part)}" for part in fine]
    return f"of {len(parts)} processes, " + "; ".join(words)


def _name(part: _Part) -> str:
    return f"process {part.result.process} ({part.result.host})"


def _names(parts: Sequence[_Part]) -> str:
    return _numbers([part.result.process for part in parts])


def _numbers(numbers: Sequence[int]) -> str:
    """``process 1``, or ``processes 1, 2``."""
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _ended(part: _Part) -> str:
    """What became of the test in a process, as a verb."""
    if part.result.ended:
        return part.result.ended
    if part.record is None:
        return "has no record of it"
    reason = f" ({part.record.reason})" if part.record.reason else ""
    return f"{part.record.outcome}{reason}"


def _others(parts: Sequence[_Part], worst: Record) -> tuple[Mapping[str, Any], ...]:
    """The failures of other processes with other messages, each under the name of its process."""
    found: list[Mapping[str, Any]] = []
    seen = {worst.message}
    for part in parts:
        record = part.record
        if record is None or not part.failed or part.host.because_of or not record.message:
            continue
        if record.message in seen:
            continue
        seen.add(record.message)
        explanation = (
            decode(Explanation, record.explanation)
            if record.explanation
            else explanation_of(record.message)
        )
        found.append(
            {
                "message": f"{_name(part)}:\n{record.message}",
                "explanation": explanation.under(_name(part)).to_json(),
                "findings": record.findings,
            }
        )
    return tuple(found)


def _counts(parts: Sequence[_Part]) -> tuple[Note, ...]:
    """A note if right processes ran different numbers of examples."""
    counts = {p.result.process: p.record.examples for p in parts if p.record and not p.failed}
    if len(set(counts.values())) < 2:
        return ()
    words = ", ".join(f"{count} in process {process}" for process, count in counts.items())
    return (Note(f"the processes ran different numbers of examples: {words}", "run"),)


def _same[T](records: Sequence[Record], field: Callable[[Record], T], otherwise: T) -> T:
    """The value of a field if all records have it."""
    values = [field(record) for record in records]
    return values[0] if all(value == values[0] for value in values) else otherwise


def _union[T](several: Iterable[Sequence[T]]) -> tuple[T, ...]:
    """All values in order, each once."""
    return tuple(dict.fromkeys(value for each in several for value in each))
