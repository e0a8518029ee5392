"""Failures of one check with different causes: which of them are worth a report of their own."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.errors import PallasError
from pytest_pallas.checks.context import CheckResult
from pytest_pallas.numerics import Comparison, epsilon, is_exact
from pytest_pallas.oracle.expected import flatten

#: Relative to the output's scale: 16 roundings of bfloat16. More is no rounding error.
_SMALL = 1 / 16

#: How many failures of a check are reported.
MOST = 3


def cause_of(error: BaseException) -> Hashable:
    """The identity of the cause of a failure, without what only its example decides.

    For findings: kind, reference and lines. For a wrong output: which one, and whether it has
    another structure, NaN or infinity on one side, an error of the size of roundings, or a larger
    one. For a kernel that raised: the class of the error and the line that raised it.
    """
    if not isinstance(error, PallasError):
        return (type(error), _raised_at(error))
    if error.findings:
        return frozenset(finding.key for finding in error.findings)
    finding = None if error.failure is None else error.failure.finding
    failed = None if finding is None else finding.failed
    if finding is not None and failed is not None:
        return (_output_of(finding, failed), _size(failed))
    inner = error.kernel_error
    return (type(error), type(inner), None if inner is None else _raised_at(inner))


def distinct(first: BaseException, others: Iterable[Exception]) -> Sequence[PallasError]:
    """Of other failures those with causes of their own: of each cause the smallest example.

    At most ``MOST`` with the first, in the order in which they were found. Failures
    with a finding in common have one cause: which lines take part in a race depends on the example.
    So have those that share findings with such failures.
    """
    groups: list[_Group] = [_Group(cause_of(first), None)]
    for error in others:
        if not isinstance(error, PallasError) or error.failure is None:
            continue
        group = _Group(cause_of(error), error)
        same = [each for each in groups if _is_one(each.cause, group.cause)]
        for each in same[:1]:
            groups[groups.index(each)] = functools.reduce(_Group.joined, (*same, group))
        groups = [each for each in groups if each not in same[1:]]
        if not same:
            groups.append(group)
    return [each.smallest for each in groups if each.smallest is not None][: MOST - 1]


@dataclass(frozen=True, eq=False)
class _Group:
    """Failures of one cause: that, and the one with the smallest example; None for the first."""

    cause: Hashable
    smallest: PallasError | None

    def joined(self, other: _Group) -> _Group:
        """Both groups as one."""
        cause = self.cause
        if isinstance(cause, frozenset) and isinstance(other.cause, frozenset):
            cause = cause | other.cause
        if self.smallest is None or other.smallest is None:
            return _Group(cause, None)
        smaller = _elements(other.smallest) < _elements(self.smallest)
        return _Group(cause, other.smallest if smaller else self.smallest)


def _is_one(cause: Hashable, other: Hashable) -> bool:
    """Whether two causes are the same, or have findings in common."""
    if isinstance(cause, frozenset) and isinstance(other, frozenset):
        return not cause.isdisjoint(other)
    return cause == other


def _output_of(finding: CheckResult, failed: Comparison) -> int:
    """The number of the wrong output; each run of the kernel has a comparison of every output."""
    outputs = 1 if finding.outcome is None else len(flatten(finding.outcome.values))
    position = next(n for n, each in enumerate(finding.comparisons) if each is failed)
    return position % max(1, outputs)


def _size(failed: Comparison) -> str:
    if failed.kind in ("tree", "shape", "dtype"):
        return failed.kind
    if not failed.dtype or not np.isfinite(failed.error):
        return "class"  # in exact mode, too
    dtype = np.dtype(failed.dtype)
    small = not is_exact(dtype) and failed.error * epsilon(dtype) <= _SMALL
    return "small" if small else "large"


def _raised_at(error: BaseException) -> Hashable:
    """The innermost line of a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno) if frames else None


def _elements(error: PallasError) -> int:
    arguments: Any = error.failure.context.arguments
    return sum(int(np.size(leaf)) for leaf in arguments.args if hasattr(leaf, "dtype"))
