"""What an earlier part of the same run has done, as all processes of this part must know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pytest_pallas.results import RunResults


@dataclass(frozen=True)
class Done:
    """The tests that ended, and what they left behind for others.

    Attributes:
      tests: their node ids.
      raised: the kernels that raised; see ``PytestSession.raised``.
      killed: the mutants that they killed, as far as no test before them is left; see
        ``PytestSession.killed``.
    """

    tests: frozenset[str] = frozenset()
    raised: Mapping[str, tuple[str, str, bool]] = field(default_factory=dict[str, Any])
    killed: Mapping[str, str] = field(default_factory=dict[str, str])

    def plain(self) -> dict[str, Any]:
        """As plain values, for a worker of pytest-xdist."""
        raised = [[place, *found] for place, found in self.raised.items()]
        return {"tests": sorted(self.tests), "raised": raised, "killed": dict(self.killed)}


def done_from_plain(plain: Mapping[str, Any]) -> Done:
    """From ``Done.plain``."""
    raised = {place: (check, name, expected) for place, check, name, expected in plain["raised"]}
    return Done(frozenset(plain["tests"]), raised, dict(plain["killed"]))


def done_of(results: RunResults) -> Done:
    """What a run has done so far."""
    ended = frozenset(test.test for test in results.tests)
    raised: dict[str, tuple[str, str, bool]] = {}
    for test in results.tests:
        if test.raised:
            place, check, name, expected = test.raised
            raised.setdefault(place, (check, name, expected))
    killed: dict[str, str] = {}
    # A kill counts for the tests after it only.
    first = frozenset(takewhile(ended.__contains__, results.collected))
    for record in results.records:
        for verdict in record.mutants if record.test in first else ():
            if verdict["status"] == "killed":
                # a spec names its check there, with the backend
                by = record.kernel if verdict.get("on") else verdict["by"]
                killed.setdefault(verdict["key"], by)
    return Done(ended, raised, killed)
