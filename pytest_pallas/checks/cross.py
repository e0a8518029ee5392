"""``cross``: backends, and other implementations of the same function, against each other.

The check distinguishes three states: both agree; one differs from the oracle, and the message names
it; both differ. Two outputs agree if each is within the tolerance of the oracle, and within that of
the other (``apart``): then one output is the oracle of the other, with the same error of the
baseline.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_sim.dtypes import epsilon, is_exact, is_inexact, wide
from pallas_sim.errors import PallasError
from pytest_pallas.backends.protocol import Backend, Outcome, label
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    ComparisonPeer,
    exactly,
    expect,
    judge_leaves,
    run,
    worst_failed,
)
from pytest_pallas.errors import NotApplicableError, UnsupportedKernelError
from pytest_pallas.judge.judgement import Expected, compare_trees
from pytest_pallas.judge.references import Leaves, flatten
from pytest_pallas.judge.tolerance import FLOAT32_BITS, Comparison
from pytest_pallas.record import Note
from pytest_pallas.spec import KernelSpec


def apart(
    context: CheckContext, here: str, there: str, mine: Leaves, theirs: Leaves, expected: Expected
) -> list[Comparison]:
    """Compare one output with another, whose error is taken to be that of the baseline.

    Args:
      context: has the tolerance.
      here: name of the first output in messages.
      there: name of the second output.
      mine: the first output, by path.
      theirs: the second output. A comparison fails where its paths or shapes differ from
        ``expected``.
      expected: the expected values of both.
    """
    oracle, baseline = dict(expected.oracle), dict(expected.baseline)
    center: Leaves = []
    around: Leaves = []
    for path, values in theirs:
        values = wide(values)
        center.append((path, values))
        with np.errstate(all="ignore"):
            spread = 0 if is_exact(values.dtype) else wide(baseline[path]) - wide(oracle[path])
            around.append((path, values + np.where(np.isfinite(spread), spread, 0)))
    name = functools.partial(_output_of, f"{here} against {there}")
    return compare_trees(
        [(name(path), output) for path, output in mine],
        replace(expected, oracle=center, baseline=around).renamed(name),
        tolerance=context.tolerance,
        check_dtype=False,  # what is wide has another, and both were judged
        explained=context.explained,
    )


def coarser(one: Expected, other: Expected) -> Expected:
    """Choose, of the expected values of one call, those with the lower precision of products."""
    return min(one, other, key=lambda e: e.products.bits if e.products else FLOAT32_BITS)


def _output_of(name: str, path: str) -> str:
    """Return the name of an output of a side in messages."""
    return f"{path or 'output'} of {name}"


def requires_peers(spec: KernelSpec, others: Sequence[Backend]) -> str | None:
    """The spec must have another implementation, or another backend must execute it."""
    if others or spec.implementations:
        return None
    return (
        "there is nothing to compare with: the spec has no implementations, and no selected "
        "backend before this one executes it"
    )


@declare_check(
    "cross",
    asks="do backends and other implementations agree with each other?",
    requires_peers=requires_peers,
    example_fraction=0.25,
    varies_calls=True,
)
def cross(context: CheckContext) -> CheckResult:
    """Compare the kernel on its backend with each of ``context.others``, up to the first failure.

    If the check passes and two outputs differ, as those of hardware and an interpreter do, a note
    reports the difference.

    Raises:
      NotApplicableError: there is nothing to compare with.
      KernelError: one of them raised; the message names it.
    """
    if not context.others:
        raise NotApplicableError(
            "the cross check needs a spec that has implementations or claims several of the "
            "selected backends"
        )
    mine = run(context, context.kernel, context.arguments.args)
    here = label(context.backend)
    comparisons: list[Comparison] = []
    notes: list[Note] = []
    lacking: list[str] = []
    for other in context.others:
        there = _context_of(context, other)
        try:
            theirs = _answer(there, other)
        except UnsupportedKernelError as error:
            lacking.append(str(error))
            continue
        sides = {here: flatten(mine.values), other.name: flatten(theirs.values)}
        judged = {
            name: _judged(side, name, leaves)
            for (name, leaves), side in zip(sides.items(), (context, there), strict=True)
        }
        judgements = [judgement for of_side in judged.values() for judgement in of_side]
        departs = {
            name: worst for name, of_side in judged.items() if (worst := worst_failed(of_side))
        }
        if departs:
            subject = _state(departs, list(sides), exactly(context))
            worst = max(departs, key=lambda name: departs[name].error)
            side = None if worst == here else (there, theirs)
            return CheckResult(comparisons=judgements, subject=subject, side=side)
        expected = coarser(expect(context), expect(there))
        between = apart(context, here, other.name, sides[here], sides[other.name], expected)
        if worst_failed(between):
            subject = f"{here} and {other.name} differ, although each agrees with the oracle"
            return CheckResult(comparisons=between, subject=subject)
        comparisons += judgements
        notes += _differs(other.name, sides[here], sides[other.name])
    if len(lacking) == len(context.others):
        raise UnsupportedKernelError(f"the other side {lacking[0]}")
    return CheckResult(comparisons=comparisons, notes=tuple(dict.fromkeys(notes)))


def accepted(function: Callable[..., Any], tuning: Collection[str]) -> list[str]:
    """Return the keywords of ``tuning`` that a function accepts."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []  # some builtins have none
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return list(tuning)
    return [name for name in tuning if name in parameters]


def _context_of(context: CheckContext, other: ComparisonPeer) -> CheckContext:
    """Return the drawn call of a peer."""
    arguments = context.arguments
    if not other.is_kernel:
        taken = accepted(other.function, arguments.tuning)
        tuning = {name: arguments.tuning[name] for name in taken}
        arguments = replace(arguments, tuning=tuning)
        context = replace(context, coverage=[])  # it is another kernel, if it is one
    return replace(context, kernel=other.function, backend=other.backend, arguments=arguments)


def _answer(there: CheckContext, other: ComparisonPeer) -> Outcome:
    """Return the outcome of a peer for its call."""
    try:
        return run(there, there.kernel, there.arguments.args, needs_kernel=other.is_kernel)
    except UnsupportedKernelError:
        raise
    except PallasError as error:
        raised = error.with_message(f"the other side, {other.name}, raised: {error}")
        raise raised from error.__cause__


def _judged(context: CheckContext, side: str, leaves: Leaves) -> Sequence[Comparison]:
    """Compare one side with the oracle; the names of its outputs have the name of the side."""
    name = functools.partial(_output_of, side)
    outputs = [(name(path), output) for path, output in leaves]
    return judge_leaves(context, outputs, expect(context).renamed(name), exact=exactly(context))


def _state(departs: dict[str, Comparison], names: Sequence[str], exact: bool) -> str:
    """Describe which of two sides differs from the oracle."""
    sizes = [f"{name} by {_size(worst)}" for name, worst in departs.items()]
    if len(departs) == 2:
        return f"both differ from the oracle: {' and '.join(sizes)}"
    right = next(name for name in names if name not in departs)
    equal = "equals it" if exact else "does not"
    return f"one of two differs from the oracle: {sizes[0]}; {right} {equal}"


def _size(worst: Comparison) -> str:
    if worst.kind in ("tree", "shape", "dtype"):
        return f"its {worst.kind}"
    if worst.error == math.inf:
        return "NaN or infinity on one side only"
    if is_exact(np.dtype(worst.dtype)):
        return f"{worst.error:.4g}, and must be equal"
    allowed = (
        "equality is required" if worst.kind == "exact" else f"{worst.allowed:.4g} are allowed"
    )
    rms = "rms " if worst.kind == "rms" else ""
    return f"{rms}{worst.error:.4g} ulps, where {allowed}"


def _differs(name: str, mine: Leaves, theirs: Leaves) -> Iterator[Note]:
    """Yield notes on the difference of two right outputs, in ulps of their scale, rounded up."""
    others = dict(theirs)
    for path, output in mine:
        if not is_inexact(output.dtype) or not output.size:
            continue
        one, two = wide(output), wide(others[path])
        with np.errstate(all="ignore"):
            distance = np.abs(one - two)
            scale = np.maximum(np.abs(two), np.sqrt(np.mean(np.abs(two) ** 2)))
            ulps = distance / (scale * epsilon(output.dtype))
        worst = float(np.max(ulps[np.isfinite(ulps)], initial=0.0))
        if worst > 0:
            # A power of two, so that many examples give few notes.
            bound = 2.0 ** math.ceil(math.log2(worst))
            unit = "ulp" if bound <= 1 else "ulps"
            text = (
                f"not bitwise equal to {name}: the difference is up to {bound:g} {unit} of the "
                "output scale"
            )
            yield Note(text, "result")
