"""The verdict on one mutant, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_pallas.decoding import decode, jsonable
from pytest_pallas.record import MutantVerdict

__all__ = ["MutantVerdict", "from_json", "score", "to_json", "who"]


def who(verdict: MutantVerdict) -> str:
    """The check that killed a mutant, and its backend; "" if it is not known."""
    return f"{verdict.by} on {verdict.on}" if verdict.on else verdict.by


def to_json(verdict: MutantVerdict) -> dict[str, Any]:
    """As plain JSON values."""
    return jsonable(verdict)


def from_json(plain: Mapping[str, Any]) -> MutantVerdict:
    """The verdict from ``to_json``."""
    return decode(MutantVerdict, plain)


def score(verdicts: list[MutantVerdict]) -> float | None:
    """The percentage of killed mutants among those that were killed or survived."""
    killed = sum(verdict.status == "killed" for verdict in verdicts)
    survived = sum(verdict.status == "survived" for verdict in verdicts)
    return 100.0 * killed / (killed + survived) if killed + survived else None
