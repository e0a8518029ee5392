"""Records of mutants, without making any."""

from __future__ import annotations

from typing import Any

from pallas_test_support.report_samples import HOSTILE
from pytest_pallas.record import Note, Record

#: A line that is no markup, with all that would be.
SOURCE = 'keep = (a < b) & (c > "</code></pre>")'


def verdict(number: int, status: str, **fields: Any) -> dict[str, Any]:
    """What became of a mutant in the line ``number`` of a file."""
    plain: dict[str, Any] = {
        "key": f"norms.py:{number}|{fields.get('change')}", "operator": "comparison",
        "change": "lt -> le", "kernel": "_body", "part": "lt",
        "where": f"/home/me/norms.py:{number}",
        "called_from": ("norms.py:90",), "source": SOURCE, "status": status,
        "by": "forward" if status == "killed" else "",
        "on": "interpret" if status == "killed" else "",
        "how": "MismatchError" if status == "killed" else "",
        "examples": 0 if status in ("untried", "equivalent") else 8,
        "seconds": 0.0 if status in ("untried", "equivalent") else 1.5,
        "reason": {"equivalent": "the same program after simplification, in 3 drawn calls",
                   "untried": "time was over"}.get(status, ""), "marked": False,
    }  # fmt: skip
    return {**plain, **fields}


def mutated(kernel: str, *verdicts: dict[str, Any], **fields: Any) -> Record:
    """The record of a spec's mutants."""
    plain: dict[str, Any] = {
        "test": f"norms.py::{kernel}-mutants", "kernel": kernel, "check": "mutants",
        "backend": "all", "outcome": "passed", "family": "norms", "seconds": 12.5, "examples": 80,
    }  # fmt: skip
    return Record(**{**plain, **fields}, mutants=verdicts)


def mutant_samples() -> list[Record]:
    """Every status, spec and test of one's own, and names that would do harm unescaped."""
    reason = "rows past the end are never written back, whatever a < b & c is"
    return [
        mutated("perfect", verdict(1, "killed"), verdict(2, "equivalent")),
        mutated(
            "rms_norm",
            *(verdict(number, "killed") for number in range(10, 16)),
            verdict(16, "killed", by="races", on="tpu-interpret:v6e"),
            verdict(17, "survived"),
            verdict(18, "survived", operator="step", change="the last dropped",
                    part="grid axis 1", called_from=()),
            verdict(19, "equivalent", reason=reason, marked=True),
            verdict(20, "equivalent"),
            verdict(21, "untried"),
            notes=(Note("equivalent mutant guard at 'pl.when(k == 0)' does not exist", "mutants"),),
        ),
        mutated("hopeless", verdict(30, "untried")),
        mutated("plain"),
        mutated(
            HOSTILE,
            verdict(40, "survived", operator=HOSTILE, change=HOSTILE, kernel=HOSTILE, part=HOSTILE,
                    where=HOSTILE, called_from=(HOSTILE,), source=HOSTILE),
            verdict(41, "killed", by=HOSTILE, on=HOSTILE),
            verdict(42, "equivalent", reason=HOSTILE, marked=True),
            notes=(Note(HOSTILE, "mutants"),), family=HOSTILE,
        ),
    ]  # fmt: skip
