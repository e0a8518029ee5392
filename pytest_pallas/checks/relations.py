"""Relations between outputs that a spec declares: ``linearity``, ``permutation``, ``relation``."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from pallas_sim.dtypes import epsilon, float_facts, is_bool, is_complex, is_exact, is_inexact, wide
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, judge
from pytest_pallas.checks.metamorphic import (
    CallOutput,
    Ignore,
    answer,
    check_each,
    claim,
    close,
    equal,
    holding,
    requires_relation,
    subjects_of,
    sum_of,
)
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import SpecError
from pytest_pallas.judge.tolerance import Tolerance
from pytest_pallas.spec import KernelSpec, Linear, Permuted, Relation

type Array = np.ndarray[Any, Any]

#: Exponents of the factors; the first one that fits the range of the data is used.
_EXPONENTS = (8, 2)

#: Number of inputs that a kernel may multiply with each other, such as ``q``, ``k`` and ``v``.
_PRODUCTS = 3


@declare_check(
    "linearity",
    asks="is it additive and homogeneous in its linear arguments?",
    requires_spec=requires_relation(Linear),
    example_fraction=0.25,
    subjects=subjects_of(Linear),
)
def linearity(context: CheckContext) -> CheckResult:
    """Check each ``Linear`` of the spec: the kernel is homogeneous and additive.

    The factor is minus a power of two, if the range of every dtype has room for the scaled data;
    otherwise it is -1. It is above 1 if some number is below 1, which would hide a bound, and below
    1 if all are integers, which would hide a conversion to integers.

    The answer must be the same to the bit, unless the oracle of either call computes with numbers
    below the least normal one of float32 or of an output. A kernel may lose such a term of a sum in
    one call and keep it in the other, and then an exact tie is rounded the other way. There the
    answer must be that of the rule of judgement.

    For additivity, ``x`` is split into two parts ``a`` and ``b`` whose sum is exactly ``x``. In an
    exact context ``f(a) + f(b)`` must equal ``f(x)`` up to the last rounding of each; in others,
    the difference must be within the tolerances of the three outputs.

    Raises:
      NotApplicableError: the spec has no such relation.
      SpecError: the argument holds no numbers.
    """
    return check_each(context, Linear, _linear)


def _linear(
    context: CheckContext, relation: Linear, drawn: CallOutput, rng: np.random.Generator
) -> Iterator[CheckResult]:
    args = drawn.arguments.args
    if not any(_is_number(leaf) for leaf in jax.tree.leaves([args[p] for p in relation.positions])):
        raise SpecError(f"Linear({relation.argument!r}): the argument holds no numbers to scale")
    yield from _scaled(context, relation, drawn)
    yield from _divided(context, relation, drawn, rng)


def _scaled(context: CheckContext, relation: Linear, drawn: CallOutput) -> Iterator[CheckResult]:
    """Check homogeneity."""
    for factor in _factors(relation, drawn):
        scaled = _times(relation, drawn, factor)
        if scaled is None:
            continue
        other = answer(context, scaled)
        claimed = claim(drawn, lambda out, c=factor: jax.tree.map(lambda leaf: c * leaf, out))
        if relation.exact:
            comparisons = equal(context, other, claimed, ignore=_at_the_ends(factor))
            passed = all(comparison.passed for comparison in comparisons)
            if abs(factor) != 1 and not passed and _underflows(drawn, other):
                judged = replace(context, tolerance=Tolerance())
                comparisons = close(judged, other, claimed, ignore=_at_the_ends(factor))
        else:
            comparisons = close(context, other, claimed)
        times = _word(factor)
        yield CheckResult(
            comparisons=comparisons,
            subject=f"{relation}: f({times} x) compared with {times} f(x) as the oracle",
        )
        return


def _underflows(*calls: CallOutput) -> bool:
    """Return whether numbers of these calls are subnormal in float32 or in an output's dtype."""
    dtypes = {np.dtype(np.float32), *(leaf.dtype for call in calls for _, leaf in call.leaves)}
    least = max(float_facts(dtype).smallest_normal for dtype in dtypes if not is_exact(dtype))
    return any(call.expected.least() < least for call in calls)


def _divided(
    context: CheckContext, relation: Linear, drawn: CallOutput, rng: np.random.Generator
) -> Iterator[CheckResult]:
    """Check additivity."""
    parts: dict[int, tuple[list[Any], list[Any]]] = {}
    for position in relation.positions:
        leaves = jax.tree.leaves(drawn.arguments.args[position])
        pairs = [divided(leaf, rng) if _is_number(leaf) else (leaf, leaf) for leaf in leaves]
        if not all(_adds_up(*both) for both in zip(leaves, pairs, strict=True)):
            return  # a format without zero
        parts[position] = [one for one, _ in pairs], [other for _, other in pairs]
    claims: list[Any] = []
    for which in (0, 1):
        args = list(drawn.arguments.args)
        for position, both in parts.items():
            args[position] = jax.tree.unflatten(jax.tree.structure(args[position]), both[which])
        claims.append(claim(answer(context, tuple(args))))
    yield CheckResult(
        comparisons=close(
            context, drawn, sum_of(*claims), rounded_only=exactly(context), ignore=_overflow
        ),
        subject=f"{relation}: f(x) compared with f(a) + f(b) as the oracle, where a + b = x",
    )


def divided(leaf: Any, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return two arrays whose sum is exactly ``leaf``; both differ from it where possible.

    An element becomes another element and the rest, if that rest is exact, as it is for small
    integers. Otherwise it becomes its leading bits and its other bits; at every fourth place,
    itself and 0.
    """
    array = np.asarray(leaf)
    whole = wide(array)
    other = rng.permutation(whole.ravel()).reshape(whole.shape)
    one = np.where(_is_exact_rest(array, other), other, _leading(array))
    one = np.where(rng.integers(0, 4, whole.shape) == 0, np.zeros_like(whole), one)
    one = np.where(_is_exact_rest(array, one), one, np.zeros_like(whole))
    with np.errstate(invalid="ignore"):
        rest = np.where(one == 0, whole, whole - one)
    return one.astype(array.dtype), rest.astype(array.dtype)


def _adds_up(leaf: Any, parts: tuple[Any, Any]) -> bool:
    if not _is_number(leaf):
        return True
    whole = wide(np.asarray(leaf))
    with np.errstate(invalid="ignore"):
        total = wide(parts[0]) + wide(parts[1])
    return bool(np.all((total == whole) | (whole != whole)))


def _leading(array: Array) -> Array:
    """Return the first half of the bits of each element, in the widest dtype."""
    whole = wide(array)
    if is_exact(array.dtype):
        return whole // 2
    if is_complex(array.dtype):
        return np.real(whole) + 0j
    bits = max(1, round(-math.log2(epsilon(array.dtype))) // 2)
    with np.errstate(invalid="ignore"):
        fraction, exponent = np.frexp(whole)
        return np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)


def _is_exact_rest(array: Array, one: Array) -> Array:
    """Return where the dtype of ``array`` holds ``one`` and ``array - one`` exactly."""
    whole = wide(array)
    with np.errstate(all="ignore"):
        rest = whole - one
        held = [_held(side, array.dtype) == side for side in (one, rest)]
        exact = one + rest == whole  # not where float64 has too few bits
        finite = rest - rest == 0
    return np.asarray(held[0] & held[1] & exact & finite, bool)


def _held(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``values`` as ``dtype`` holds them, in the widest dtype again."""
    with np.errstate(all="ignore"):
        return wide(values.astype(dtype))


def _factors(relation: Linear, drawn: CallOutput) -> Iterator[float | int]:
    """Yield factors to try, in order; ``_times`` leaves out those that a dtype cannot hold."""
    args = drawn.arguments.args
    named = jax.tree.leaves([args[position] for position in relation.positions])
    if any(_is_number(leaf) and is_exact(leaf.dtype) for leaf in named):
        yield from (-2, 2, -1)
        return
    leaves = [leaf for leaf in jax.tree.leaves(args) if _is_number(leaf)]
    leaves = [leaf for leaf in leaves if not is_exact(leaf.dtype)]
    floats = [np.abs(wide(np.asarray(leaf))).ravel() for leaf in leaves]
    numbers = np.concatenate(floats)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    outputs = [output for _, output in drawn.leaves if not is_exact(output.dtype)]
    facts = [float_facts(np.dtype(x.dtype)) for x in (*leaves, *outputs)]
    low = math.floor(math.log2(numbers.min(initial=1.0)))
    high = math.ceil(math.log2(numbers.max(initial=1.0)))
    least = max(math.log2(fact.smallest_normal) for fact in facts)
    most = min(math.log2(fact.largest) for fact in facts)
    most -= math.log2(drawn.expected.depth)
    # The bits of a number lie below it: those of float32, or as many as a narrow format has.
    least += min(23, -least / 4)
    for exponent in _EXPONENTS:
        shift = -exponent if low >= 0 else exponent
        if _PRODUCTS * low + shift > least and _PRODUCTS * high + shift < most:
            yield -(2.0**shift)
            yield 2.0**shift
    yield -1.0


def _times(relation: Linear, drawn: CallOutput, factor: float) -> tuple[Any, ...] | None:
    """Multiply the relation's arguments by ``factor``; None if a dtype cannot hold the result."""
    args = list(drawn.arguments.args)
    for position in relation.positions:
        leaves, structure = jax.tree.flatten(args[position])
        for number, leaf in enumerate(leaves):
            if not _is_number(leaf):
                continue
            with np.errstate(all="ignore"):
                scaled = wide(np.asarray(leaf)) * factor
            held = _held(scaled, leaf.dtype)
            if not ((held == scaled) | ((held != held) & (scaled != scaled))).all():  # or two NaN
                return None
            leaves[number] = held.astype(leaf.dtype)
        args[position] = jax.tree.unflatten(structure, leaves)
    return tuple(args)


def _word(factor: float) -> str:
    """Return a power of two in words."""
    exponent = math.log2(abs(factor))
    size = f"2**{exponent:g}" if abs(exponent) > 1 else f"{abs(factor):g}"
    return f"-{size}" if factor < 0 else size


def _overflow(actual: Array, expected: Array, dtype: np.dtype[Any]) -> Array:
    """Return where the sum or one of its terms overflowed; these elements are not compared."""
    with np.errstate(all="ignore"):
        within = np.abs(expected) <= float_facts(dtype).largest * (1 - epsilon(dtype))
    return ~(np.isfinite(actual) & within)


def _at_the_ends(factor: float) -> Ignore:
    """Return where a scaled output need not be equal: it overflows or is nearly subnormal."""

    def ignore(actual: Array, expected: Array, dtype: np.dtype[Any]) -> Array:
        facts = float_facts(dtype)
        size, right = np.abs(actual), np.abs(expected)
        left_out = np.isfinite(right) & (right > facts.largest * (1 - facts.epsilon))
        if abs(factor) != 1:
            # Sums of float32 lose bits below its least normal number, wherever they are kept.
            narrow = float_facts(np.dtype(np.float32))
            least = max(facts.smallest_normal, narrow.smallest_normal / narrow.epsilon)
            least *= max(abs(factor), 1 / abs(factor))
            left_out |= (size < least) & (right < least)
        return left_out

    return ignore


def _is_number(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", bool)
    return is_inexact(dtype) or (is_exact(dtype) and not is_bool(dtype))


def subjects(spec: KernelSpec, arguments: Arguments) -> list[int]:
    """Return the relations that apply to a drawn call, with two elements or more to permute."""
    return [
        number
        for number in holding(spec.relations, Permuted, arguments)
        if isinstance(relation := spec.relations[number], Permuted)
        and _size(relation, arguments.args) > 1
    ]


@declare_check(
    "permutation",
    asks="does permuting the arguments permute the output, or leave it unchanged?",
    requires_spec=requires_relation(Permuted),
    example_fraction=0.25,
    subjects=subjects,
)
def permutation(context: CheckContext) -> CheckResult:
    """Check each ``Permuted`` of the spec, with a permutation drawn for the call.

    The output is compared with that of the drawn call, and with the oracle of the permuted one:
    within the tolerance if terms may be summed in another order; bitwise if the relation is exact,
    or if the spec is exact and small integers were drawn.

    Raises:
      NotApplicableError: the spec has none.
      SpecError: an axis does not exist, or the arguments differ in size along theirs.
    """
    return check_each(context, Permuted, _permuted)


def _permuted(
    context: CheckContext, relation: Permuted, drawn: CallOutput, rng: np.random.Generator
) -> Iterator[CheckResult]:
    args = drawn.arguments.args
    size = _size(relation, args)
    if size < 2:
        return  # there is only one order
    order = _order(size, rng)
    permuted = list(args)
    for position, axis in relation.args.items():
        permuted[position] = jax.tree.map(
            lambda leaf, a=axis: _take(leaf, order, a), args[position]
        )
    other = answer(context, tuple(permuted))
    claimed = claim(drawn, lambda outputs: _expected(relation, outputs, order))
    exact = relation.exact or exactly(context)
    yield CheckResult(
        comparisons=(equal if exact else close)(context, other, claimed),
        subject=f"{relation}: compared with {_other_text(relation)}as the oracle",
    )
    yield CheckResult(
        comparisons=judge(context, other.outcome.values, other.expected, exact=exactly(context)),
        subject=f"{relation}: compared with the oracle of the permuted call",
    )


def _order(size: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw a permutation that moves the first and the last element, which are special cases."""
    order = rng.permutation(size)
    while order[0] == 0 or order[-1] == size - 1:
        order = rng.permutation(size)
    return order


def _size(relation: Permuted, args: tuple[Any, ...]) -> int:
    """Return the number of elements that are permuted."""
    sizes: dict[str, int] = {}
    for position, axis in relation.args.items():
        for leaf in jax.tree.leaves(args[position]):
            shape = np.shape(leaf)
            if not -len(shape) <= axis < len(shape):
                raise SpecError(
                    f"Permuted: argument {position} has shape {shape} and no axis {axis}"
                )
            sizes[f"{shape[axis]} along axis {axis} of argument {position}"] = shape[axis]
    if len(set(sizes.values())) != 1:
        raise SpecError(f"Permuted: the sizes differ: {', '.join(sizes) or 'no arrays'}")
    return next(iter(sizes.values()))


def _take(leaf: Any, order: np.ndarray[Any, Any], axis: int) -> Any:
    return np.take(np.asarray(leaf), order, axis)


def _expected(relation: Permuted, outputs: Any, order: np.ndarray[Any, Any]) -> Any:
    """Return the outputs, permuted along the axes that the relation names."""
    leaves, structure = jax.tree.flatten(outputs)
    axes = relation.axes(len(leaves))
    if len(axes) != len(leaves):
        raise SpecError(f"Permuted: output has {len(axes)} entries for {len(leaves)} outputs")
    moved: list[Any] = []
    for leaf, axis in zip(leaves, axes, strict=True):
        shape = np.shape(leaf)
        if axis is not None and (not -len(shape) <= axis < len(shape) or shape[axis] != len(order)):
            raise SpecError(
                f"Permuted: an output has shape {shape}, without an axis {axis} of size "
                f"{len(order)}"
            )
        moved.append(leaf if axis is None else np.take(leaf, order, axis))
    return jax.tree.unflatten(structure, moved)


def _other_text(relation: Permuted) -> str:
    if relation.output is None:
        return "the earlier output "
    return f"the earlier output, permuted along axis {relation.output}, "


@declare_check(
    "relation",
    asks="do the spec's own relations between two outputs hold?",
    requires_spec=requires_relation(Relation),
    example_fraction=0.25,
    subjects=subjects_of(Relation),
)
def relation(context: CheckContext) -> CheckResult:
    """Check each ``Relation`` of the spec: ``f(change(x))`` must agree with ``expect(f(x))``.

    Raises:
      NotApplicableError: the spec has none.
      SpecError: ``change`` or ``expect`` raised, or ``change`` did not return a call.
    """
    return check_each(context, Relation, _related)


def _related(
    context: CheckContext, declared: Relation, drawn: CallOutput, rng: np.random.Generator
) -> Iterator[CheckResult]:
    changed = _called(declared, "change", drawn.arguments, rng)
    if not isinstance(changed, Arguments):
        raise SpecError(
            f"relation {declared.name!r}: change returned {type(changed).__name__}, not "
            "strategies.Arguments; dataclasses.replace(arguments, args=...) returns them"
        )
    other = answer(context, changed)
    expect_of = functools.partial(_called, declared, "expect")
    claimed = claim(drawn, lambda outputs: expect_of(outputs, changed))
    compare = equal if declared.exact else close
    yield CheckResult(
        comparisons=compare(context, other, claimed),
        subject=f"{declared.name}: f(change(x)) compared with expect(f(x)) as the oracle",
    )


def _called(declared: Relation, name: str, *args: Any) -> Any:
    try:
        return getattr(declared, name)(*args)
    except Exception as error:
        raise SpecError(
            f"relation {declared.name!r}: {name} raised {type(error).__name__}: {error}"
        ) from error
