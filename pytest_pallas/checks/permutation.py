"""``permutation``: permuting arguments together permutes the output, or leaves it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, judge
from pytest_pallas.checks.metamorphic import (
    Answer,
    answer,
    ask_each,
    claim,
    close,
    equal,
    holding,
    requires_relation,
)
from pytest_pallas.errors import SpecError
from pytest_pallas.relations import Permuted
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments


def subjects(spec: KernelSpec, arguments: Arguments) -> list[int]:
    """Which of the relations of a spec can be asked about a drawn call: what has two orders."""
    return [
        number
        for number in holding(spec.relations, Permuted, arguments)
        if isinstance(relation := spec.relations[number], Permuted)
        and _size(relation, arguments.args) > 1
    ]


@declare_check(
    "permutation",
    asks="does permuting arguments permute the answer, or leave it alone?",
    requires_spec=requires_relation(Permuted),
    example_fraction=0.25,
    subjects=subjects,
)
def permutation(context: CheckContext) -> CheckResult:
    """Ask about each ``Permuted`` of the spec, with a permutation drawn for the call.

    The answer is compared with that of the drawn call, and with the oracle of the permuted one:
    where terms are summed in another order, as near as the rule of judgement asks; to the bit
    where the relation is exact, or the spec is and small integers were drawn.

    Raises:
      NotApplicableError: the spec has none.
      SpecError: an axis does not exist, or the arguments differ in size along theirs.
    """
    return ask_each(context, Permuted, _one)


def _one(
    context: CheckContext, asked: Permuted, drawn: Answer, rng: np.random.Generator
) -> Iterator[CheckResult]:
    args = drawn.arguments.args
    size = _size(asked, args)
    if size < 2:
        return  # there is one order only
    order = _order(size, rng)
    permuted = list(args)
    for position, axis in asked.args.items():
        permuted[position] = jax.tree.map(
            lambda leaf, a=axis: _take(leaf, order, a), args[position]
        )
    other = answer(context, tuple(permuted))
    claimed = claim(drawn, lambda outputs: _expected(asked, outputs, order))
    exact = asked.exact or exactly(context)
    yield CheckResult(
        comparisons=(equal if exact else close)(context, other, claimed),
        seconds=other.outcome.seconds,
        subject=f"{asked}: against {_words(asked)}in the oracle's place",
    )
    yield CheckResult(
        comparisons=judge(context, other.outcome.values, other.expected, exact=exactly(context)),
        subject=f"{asked}: against the oracle of the permuted call",
    )


def _order(size: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A permutation that moves the first and the last element: there the special cases are."""
    order = rng.permutation(size)
    while order[0] == 0 or order[-1] == size - 1:
        order = rng.permutation(size)
    return order


def _size(asked: Permuted, args: tuple[Any, ...]) -> int:
    """How many elements are permuted."""
    sizes: dict[str, int] = {}
    for position, axis in asked.args.items():
        for leaf in jax.tree.leaves(args[position]):
            shape = np.shape(leaf)
            if not -len(shape) <= axis < len(shape):
                raise SpecError(
                    f"Permuted: argument {position} has the shape {shape}, which has no axis {axis}"
                )
            sizes[f"{shape[axis]} along axis {axis} of argument {position}"] = shape[axis]
    if len(set(sizes.values())) != 1:
        raise SpecError(f"Permuted: the sizes differ: {', '.join(sizes) or 'no arrays'}")
    return next(iter(sizes.values()))


def _take(leaf: Any, order: np.ndarray[Any, Any], axis: int) -> Any:
    return np.take(np.asarray(leaf), order, axis)


def _expected(asked: Permuted, outputs: Any, order: np.ndarray[Any, Any]) -> Any:
    """The outputs, permuted along the axes that the relation names."""
    leaves, structure = jax.tree.flatten(outputs)
    axes = asked.axes(len(leaves))
    if len(axes) != len(leaves):
        raise SpecError(f"Permuted: output has {len(axes)} entries for {len(leaves)} outputs")
    moved: list[Any] = []
    for leaf, axis in zip(leaves, axes, strict=True):
        shape = np.shape(leaf)
        if axis is not None and (not -len(shape) <= axis < len(shape) or shape[axis] != len(order)):
            raise SpecError(
                f"Permuted: an output has the shape {shape}, and no axis {axis} of {len(order)}"
            )
        moved.append(leaf if axis is None else np.take(leaf, order, axis))
    return jax.tree.unflatten(structure, moved)


def _words(asked: Permuted) -> str:
    if asked.output is None:
        return "the answer before "
    return f"the answer before, permuted along axis {asked.output} "
