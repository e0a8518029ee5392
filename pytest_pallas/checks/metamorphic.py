"""Shared code of the metamorphic checks: outputs of a kernel, and the tolerance between two.

Each of two outputs may differ from the truth by its tolerance. So the tolerance between them is the
rule of judgement with the sum of the errors of *both* baselines, plus the error of rounding each
output once, which a baseline with few elements may avoid by chance. The reference only provides the
size of these errors: if it is wrong, it is wrong in float64 and in its own dtypes alike, and the
difference of these is still that of rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from pallas_sim.dtypes import epsilon, is_exact, is_float, is_inexact, wide
from pallas_sim.errors import KernelError
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, expect, judge, run
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.judge.judgement import Expected, bitwise, bitwise_leaves, compare_trees
from pytest_pallas.judge.references import Leaves, flatten
from pytest_pallas.judge.tolerance import Comparison, Tolerance
from pytest_pallas.spec import KernelSpec

type Array = np.ndarray[Any, Any]

#: From an output and its expected values, in float64, and the dtype: where not to compare them.
type Ignore = Callable[[Array, Array, np.dtype[Any]], Array]


@dataclass(frozen=True)
class CallOutput:
    """The output of a kernel for a call, and that of its reference."""

    arguments: Arguments
    outcome: Outcome
    expected: Expected

    @property
    def leaves(self) -> Leaves:
        """The outputs with their paths."""
        return flatten(self.outcome.values)


@dataclass(frozen=True)
class DerivedExpectation:
    """The expected values of an output, computed from other outputs of the kernel.

    Attributes:
      values: by path, in float64 where floats are.
      spread: by path, the error that the values have from those outputs; zeros if unknown.
      sensitivity: for a path, as in ``Expected``.
    """

    values: Leaves
    spread: Mapping[str, Array]
    sensitivity: Callable[[str], float]


def answer(context: CheckContext, args: tuple[Any, ...] | Arguments | None = None) -> CallOutput:
    """Return the kernel's output for the drawn call, or for one with other arguments.

    Raises:
      KernelError: the kernel raised.
    """
    arguments = context.arguments
    if isinstance(args, Arguments):
        arguments = args
    elif args is not None:
        arguments = replace(arguments, args=args)
    other = replace(context, arguments=arguments)
    return CallOutput(arguments, run(other, context.kernel, arguments.args), expect(other))


def claim(output: CallOutput, expect_of: Callable[[Any], Any] | None = None) -> DerivedExpectation:
    """Return the values ``expect_of(output)`` that another output must have, and their errors.

    ``expect_of`` gets the outputs as a pytree of numpy arrays, floats in float64. It is also
    applied to the oracle and the baseline, and the difference is the propagated error.
    """
    convert = expect_of or (lambda outputs: outputs)

    def converted(outputs: Any) -> Leaves:
        return flatten(convert(jax.tree.map(lambda leaf: wide(to_numpy(leaf)), outputs)))

    values = converted(output.outcome.values)
    spread = {path: _rounding(output, path, value) for path, value in values}
    oracle, baseline = output.expected.oracle, output.expected.baseline
    if [path for path, _ in output.leaves] == [path for path, _ in oracle]:
        structure = jax.tree.structure(output.outcome.values)
        sides = (
            converted(jax.tree.unflatten(structure, [leaf for _, leaf in side]))
            for side in (baseline, oracle)
        )
        for (path, one), (_, other) in zip(*sides, strict=True):
            if path in spread and spread[path].shape == one.shape and is_float(one.dtype):
                spread[path] = spread[path] + _distance(one, other)
    return DerivedExpectation(values, spread, output.expected.sensitivity)


def sum_of(one: DerivedExpectation, other: DerivedExpectation) -> DerivedExpectation:
    """Return the expected values of an output that must be the sum of two others."""
    others = dict(other.values)
    with np.errstate(all="ignore"):
        values = [(path, value + others[path]) for path, value in one.values]
    return DerivedExpectation(
        values,
        {path: size + other.spread[path] for path, size in one.spread.items()},
        lambda path: one.sensitivity(path) + other.sensitivity(path),
    )


def close(
    context: CheckContext,
    actual: CallOutput,
    claimed: DerivedExpectation,
    *,
    rounded_only: bool = False,
    ignore: Ignore | None = None,
) -> list[Comparison]:
    """Compare an output with its expected values, with the errors of all outputs involved.

    ``rounded_only`` allows only the last rounding of each output. ``ignore`` is as in ``equal``.
    """
    own = claim(actual)
    outputs = dict(actual.leaves)
    expected: Leaves = []
    baseline: Leaves = []
    for path, value in claimed.values:
        if is_exact(value.dtype) and path in outputs:
            value = value.astype(outputs[path].dtype)  # which wraps around as the kernel does
        elif ignore is not None and path in outputs and outputs[path].shape == value.shape:
            left_out = ignore(wide(outputs[path]), value, outputs[path].dtype)
            outputs[path] = np.where(left_out, 0, outputs[path]).astype(outputs[path].dtype)
            value = np.where(left_out, 0, value)
        expected.append((path, value))
        mine = own.spread.get(path)
        spread = claimed.spread[path]
        both = spread if mine is None or mine.shape != spread.shape else spread + mine
        with np.errstate(all="ignore"):
            baseline.append((path, value if is_exact(value.dtype) else value + both))
    errors = actual.expected
    bounds = replace(
        errors,
        oracle=expected,
        baseline=baseline,
        sensitivity=lambda path: errors.sensitivity(path) + claimed.sensitivity(path),
    )
    if rounded_only:
        bounds = replace(bounds, depth=0, noise=lambda _: None)
    return compare_trees(
        list(outputs.items()),
        bounds,
        tolerance=Tolerance(factor=1.0, floor=0.0) if rounded_only else context.tolerance,
        check_dtype=False,  # the values are wide, and the dtype check looks at dtypes
        explained=context.explained,
    )


def equal(
    context: CheckContext,
    actual: CallOutput,
    claimed: DerivedExpectation,
    *,
    ignore: Ignore | None = None,
) -> list[Comparison]:
    """Compare an output bitwise with its expected values, except that 0.0 equals -0.0.

    ``ignore`` gets an output and its expected values, in float64, and returns where not to compare.
    """
    outputs = dict(actual.leaves)
    if list(outputs) != [path for path, _ in claimed.values]:
        return close(context, actual, claimed)  # its message lists what is missing
    comparisons: list[Comparison] = []
    for path, value in claimed.values:
        output, expected = outputs[path], value
        dtype = output.dtype
        with np.errstate(all="ignore"):
            if output.shape == value.shape and not is_exact(dtype):
                got = wide(output)
                left_out = (got == 0) & (expected == 0)
                if ignore is not None:
                    left_out |= ignore(got, expected, dtype)
                output = _plain(got, left_out).astype(dtype)
                expected = _plain(expected, left_out)
            comparisons.append(bitwise(output, expected.astype(dtype), where=path))
    return comparisons


def generator(context: CheckContext, seed_bytes: int = 16) -> np.random.Generator:
    """Return a random generator whose seed is a hash of the drawn call."""
    digest = hashlib.blake2b(digest_size=seed_bytes)
    for leaf in jax.tree.leaves(context.arguments.args):
        if hasattr(leaf, "dtype"):
            digest.update(np.ascontiguousarray(to_numpy(leaf)).tobytes())
    return np.random.Generator(np.random.Philox(int.from_bytes(digest.digest())))


def holding(relations: Sequence[Any], kind: type[Any], arguments: Arguments) -> list[int]:
    """Return the positions of the relations of a kind that hold for a drawn call."""
    return [
        number
        for number, relation in enumerate(relations)
        if isinstance(relation, kind) and relation.when(arguments)
    ]


def requires_relation(kind: type[Any]) -> Callable[[KernelSpec], str | None]:
    """Make the requirement of a check of relations: a spec must declare one of this kind."""

    def requires_spec(spec: KernelSpec) -> str | None:
        if any(isinstance(relation, kind) for relation in spec.relations):
            return None
        return f"the spec declares no {kind.__name__} among its relations"

    return requires_spec


def subjects_of(kind: type[Any]) -> Callable[[KernelSpec, Arguments], list[int]]:
    """Return the subjects of a check of relations: those of a kind that hold for a drawn call."""
    return lambda spec, arguments: holding(spec.relations, kind, arguments)


def check_each[R](
    context: CheckContext,
    kind: type[R],
    one: Callable[[CheckContext, R, CallOutput, np.random.Generator], Iterable[CheckResult]],
) -> CheckResult:
    """Check each relation of a kind that holds for the drawn call, up to the first violated one.

    Args:
      context: the drawn call.
      kind: which relations.
      one: checks one relation, given the output for the drawn call.

    Raises:
      NotApplicableError: the context has no relation of that kind, or none applies to the call.
    """
    if not any(isinstance(relation, kind) for relation in context.relations):
        raise NotApplicableError(f"it needs a spec with relations=[{kind.__name__}(...)]")
    numbers = holding(context.relations, kind, context.arguments)
    held: list[Any] = [context.relations[number] for number in numbers]
    if not held:
        raise NotApplicableError(f"no {kind.__name__} of the spec holds for the drawn call")
    drawn = answer(context)
    rng = generator(context)
    comparisons: list[Comparison] = []
    for relation in held:
        for result in one(context, relation, drawn, rng):
            if result.failed is not None:
                return result
            comparisons += result.comparisons
    if not comparisons:
        raise NotApplicableError(f"no {kind.__name__} of the spec applies to the drawn call")
    return CheckResult(comparisons=comparisons)


def _plain(values: Array, zero: Array) -> Array:
    """Return the values with zeros where ``zero``, and the same NaN for all NaNs."""
    return np.where(zero, 0.0, np.where(np.isnan(values), np.nan, values))


def _rounding(call: CallOutput, path: str, value: Array) -> Array:
    """Return the largest error of rounding an output to its dtype."""
    leaf = dict(call.leaves).get(path)
    if leaf is None or not is_inexact(leaf.dtype):
        return np.zeros(value.shape)
    with np.errstate(all="ignore"):
        return np.abs(value) * epsilon(leaf.dtype) / 2


def _distance(one: Array, other: Array) -> Array:
    """Return the distance of two arrays; 0 where either is not finite."""
    with np.errstate(all="ignore"):
        distance = np.abs(one - other)
    return np.where(np.isfinite(distance), distance, 0.0)


# Run a kernel again with a change that must not matter, and compare with the first run.


def run_again(context: CheckContext, args: tuple[Any, ...], change: str, **rest: Any) -> Outcome:
    """Run the kernel as ``context.run`` does; ``change`` describes the change.

    Raises:
      KernelError: the kernel raised, and did not before; the message has the change.
    """
    try:
        return run(context, context.kernel, args, **rest)
    except KernelError as error:
        described = error.with_message(f"{error}\n  {change}; otherwise the kernel does not raise")
        raise described from error.__cause__


#: Ulps of the output's scale by which floats may differ; floats of at most 16 bits by less, because
#: they are often float32 sums that are rounded once. The fill of memory is a constant of the
#: program, and XLA may compile another constant with other roundings: seen in splash attention. A
#: fill that affects the output is NaN, 0 or the end of a range in one of the runs, which is more
#: than a few ulps.
_SLACK, _NARROW_SLACK = 64.0, 4.0


def unchanged(again: Outcome, first: Outcome, change: str) -> Iterator[Comparison]:
    """Compare every output with the first run's: bitwise, except for the last bits of floats.

    NaN and infinities must be at the same places in both.
    """
    for (path, actual), (_, expected) in zip(
        flatten(again.values), flatten(first.values), strict=True
    ):
        where = f"{path or 'output'}, {change}"
        comparison = bitwise(_one_nan(actual), _one_nan(expected), where=where, change=change)
        yield _rounded(comparison) if _is_rounded(comparison, actual.dtype) else comparison


def identical(
    context: CheckContext, again: Any, first: Any, suffix: str, *, change: str
) -> Sequence[Comparison]:
    """Compare the outputs of a kernel with those of another run, bit for bit.

    A kernel that is not ``deterministic`` may add in another order: then both must be as close to
    the oracle as ``forward`` requires.

    Args:
      context: has the reference and the tolerance.
      again: the outputs, a tree.
      first: those of the other run, a tree of the same structure.
      suffix: what comes after the name of an output in messages.
      change: what is different in the first of the two runs, for messages.
    """
    if not context.deterministic:
        return judge(context, again, expect(context), exact=exactly(context))
    return bitwise_leaves(flatten(again), flatten(first), suffix, change=change)


def _is_rounded(comparison: Comparison, dtype: np.dtype[Any]) -> bool:
    """Return whether a difference can be rounding."""
    if comparison.passed or comparison.kind != "bitwise" or not is_inexact(dtype):
        return False
    return comparison.error <= (_SLACK if epsilon(dtype) < 2**-11 else _NARROW_SLACK)


def _rounded(comparison: Comparison) -> Comparison:
    return replace(comparison, passed=True, wrong=0, explanation=None, patterns=(), mask=None)


def _one_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not is_inexact(array.dtype):
        return array
    nan = np.isnan(wide(array))
    return np.where(nan, np.array(np.nan).astype(array.dtype), array) if nan.any() else array
