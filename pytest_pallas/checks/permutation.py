"""``permutation``: permuting arguments together permutes the output, or leaves it unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, judge
from pytest_pallas.checks.metamorphic import (
    CallOutput,
    answer,
    check_each,
    claim,
    close,
    equal,
    holding,
    requires_relation,
)
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import SpecError
from pytest_pallas.spec import KernelSpec, Permuted


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
    return check_each(context, Permuted, _one)


def _one(
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
