"""Causes of the failures of one check: which of them are worth a report of their own."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.dtypes import epsilon, is_exact
from pallas_sim.errors import PallasError
from pytest_pallas.checks.context import CheckResult
from pytest_pallas.errors import facts_of
from pytest_pallas.judge.references import flatten
from pytest_pallas.judge.tolerance import Comparison

#: Relative to the output's scale: 16 roundings of bfloat16. More is no rounding error.
_SMALL = 1 / 16

#: Begins each further failure of a check: one that certainly has another cause, and any other.
ANOTHER = "another failure, of another cause"
SIMILAR = "another failure, perhaps of the same cause"

#: How many failures of a check are reported.
MOST_CAUSES = 3


def cause_of(error: BaseException) -> Hashable:
    """Return the identity of the cause of a failure, without what only its example decides.

    For findings: kind, reference and lines. For wrong outputs: which ones, and whether each has
    another structure, NaN or infinity on one side, an error of the size of roundings, or a larger
    one. For a kernel that raised: the class of the error and the line that raised it.
    """
    if not isinstance(error, PallasError):
        return (type(error), _raised_at(error))
    if error.findings:
        return frozenset(finding.key for finding in error.findings)
    check_result = None if facts_of(error).failure is None else facts_of(error).failure.result
    if check_result is not None and check_result.failed is not None:
        return frozenset(_wrong_outputs(check_result))
    inner = facts_of(error).kernel_error
    return (type(error), type(inner), None if inner is None else _raised_at(inner))


def distinct(first: BaseException, others: Iterable[Exception]) -> Sequence[PallasError]:
    """Select the failures that look different: the smallest example of each kind.

    These are at most ``MOST_CAUSES`` with the first, in the order of the failures. Failures with a
    finding or a wrong output in common are of one kind, and so are failures that share such with
    these: which lines take part in a race depends on the example. The facts of each say whether its
    cause is certainly another one (``ErrorFacts.distinct``).
    """
    groups: list[_Group] = [_Group(cause_of(first), None, (first,))]
    for error in others:
        if not isinstance(error, PallasError) or facts_of(error).failure is None:
            continue
        group = _Group(cause_of(error), error, (error,))
        same = [known for known in groups if _is_one(known.cause, group.cause)]
        if same:
            groups[groups.index(same[0])] = functools.reduce(_Group.joined, (*same, group))
            groups = [known for known in groups if known not in same[1:]]
        else:
            groups.append(group)
    rest: list[PallasError] = []
    for group in groups:
        if group.smallest is not None and len(rest) < MOST_CAUSES - 1:
            facts_of(group.smallest).distinct = _is_certain(groups[0], group)
            rest.append(group.smallest)
    return rest


def title_of(error: BaseException) -> str:
    """Return the line above a further failure of a check."""
    return ANOTHER if facts_of(error).distinct else SIMILAR


@dataclass(frozen=True, eq=False)
class _Group:
    """Failures of one kind: that, the one with the smallest example, and all of them.

    The smallest is None for the group of the first failure, which is reported anyway.
    """

    cause: Hashable
    smallest: PallasError | None
    errors: tuple[BaseException, ...]

    def joined(self, other: _Group) -> _Group:
        """Return both groups as one."""
        cause, errors = self.cause, (*self.errors, *other.errors)
        if isinstance(cause, frozenset) and isinstance(other.cause, frozenset):
            cause = cause | other.cause
        if self.smallest is None or other.smallest is None:
            return _Group(cause, None, errors)
        smaller = _elements(other.smallest) < _elements(self.smallest)
        return _Group(cause, other.smallest if smaller else self.smallest, errors)

    @property
    def choices(self) -> Mapping[str, set[str]]:
        """The values of options and tuning parameters with which it fails, by name."""
        choices: dict[str, set[str]] = {}
        for error in self.errors:
            failure = facts_of(error).failure
            call = None if failure is None else failure.context.arguments
            for name, value in {} if call is None else {**call.options, **call.tuning}.items():
                choices.setdefault(name, set()).add(repr(value))
        return choices


def _is_one(cause: Hashable, other: Hashable) -> bool:
    """Return whether two causes are the same, or have findings or wrong outputs in common."""
    if isinstance(cause, frozenset) and isinstance(other, frozenset):
        return not cause.isdisjoint(other)
    return cause == other


def _is_certain(first: _Group, other: _Group) -> bool:
    """Return whether two groups certainly have different causes.

    That is so if the kernel raises in different lines, or if an option decides which of them fails.
    One mistake may look different at other sizes, dtypes or values.
    """
    if isinstance(first.cause, tuple) and isinstance(other.cause, tuple):
        return True
    choices = other.choices
    return any(
        values.isdisjoint(choices[name])
        for name, values in first.choices.items()
        if name in choices
    )


def _wrong_outputs(check_result: CheckResult) -> Iterator[tuple[int, str]]:
    """Yield the number of each wrong output, and what it looks like.

    Each run of a check compares every output.
    """
    outputs = 1 if check_result.outcome is None else len(flatten(check_result.outcome.values))
    for position, comparison in enumerate(check_result.comparisons):
        if not comparison.passed:
            yield position % max(1, outputs), _size(comparison)


def _size(failed: Comparison) -> str:
    if failed.kind in ("tree", "shape", "dtype"):
        return failed.kind
    if not failed.dtype or not np.isfinite(failed.error):
        return "class"  # in exact mode, too
    dtype = np.dtype(failed.dtype)
    small = not is_exact(dtype) and failed.error * epsilon(dtype) <= _SMALL
    return "small" if small else "large"


def _raised_at(error: BaseException) -> Hashable:
    """Return the innermost line of a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return (frames[-1].filename, frames[-1].lineno) if frames else None


def _elements(error: PallasError) -> int:
    arguments: Any = facts_of(error).failure.context.arguments
    return sum(int(np.size(leaf)) for leaf in arguments.args if hasattr(leaf, "dtype"))
