"""The mutants of a program, and the program with one of them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import Any

from pytest_pallas.compat.source import place_of_call
from pytest_pallas.errors import MutantError
from pytest_pallas.mutation.model import At, Change, Kernel, Mutant, New, Operator
from pytest_pallas.mutation.operators import declared_operators
from pytest_pallas.mutation.rewriting import closed_with
from pytest_pallas.mutation.walking import rewritten


def mutants_of(jaxpr: Any, operators: Collection[str] = ()) -> list[Mutant]:
    """The mutants of the kernels of a program, each once, in the order of the source.

    Args:
      jaxpr: closed or open; as in ``mutated``.
      operators: names; empty for all.
    """
    chosen = [each for each in declared_operators() if not operators or each.name in operators]
    found: dict[Mutant, None] = {}

    def visit(at: At) -> None:
        for operator in chosen:
            for change, mutant in _changes(operator, at):
                if mutant not in found and change.build() is not None:
                    found[mutant] = None

    def visit_kernel(kernel: Kernel) -> None:
        for operator in chosen:
            for _, mutant in _calls(operator, kernel):
                found[mutant] = None

    rewritten(getattr(jaxpr, "jaxpr", jaxpr), visit, visit_kernel)
    return list(found)


@functools.lru_cache(maxsize=128)
def mutated(jaxpr: Any, mutant: Mutant) -> Any:
    """A program with a mutant, wherever its place occurs; ``jaxpr`` itself where it does not.

    The last ones are kept: several checks run them.

    Args:
      jaxpr: closed, of a function that calls kernels, also inside of ``jit``, ``vmap``,
        ``shard_map``, ``custom_vjp``, loops and branches. What JAX makes of gradients is part of
        it: nothing is differentiated after.
      mutant: the mutant.

    Raises:
      MutantError: it could not be made.
    """
    [operator] = [each for each in declared_operators() if each.name == mutant.operator]

    def visit(at: At) -> New | None:
        if at.kernel.home != mutant.home or at.places != mutant.places:
            return None
        for change, found in _changes(operator, at):
            if found == mutant:
                return change.build()
        return None

    def visit_kernel(kernel: Kernel) -> Any:
        if kernel.home != mutant.home or kernel.name != mutant.kernel:
            return None
        for change, found in _calls(operator, kernel):
            if found == mutant:
                return change.build()
        return None

    inner = getattr(jaxpr, "jaxpr", jaxpr)
    try:
        new = rewritten(inner, visit, visit_kernel)
    except Exception as error:
        text = f"{mutant} could not be made: {type(error).__name__}: {error}"
        raise MutantError(text) from error
    return jaxpr if new is inner else closed_with(jaxpr, new)


def _changes(operator: Operator, at: At) -> Iterator[tuple[Change, Mutant]]:
    if operator.operate is None:
        return
    for change in operator.operate(at):
        yield (
            change,
            Mutant(
                operator=operator.name,
                change=change.words,
                kernel=at.kernel.name,
                home=at.kernel.home,
                places=at.places,
                part=" ".join(filter(None, (at.name, change.part))),
            ),
        )


def _calls(operator: Operator, kernel: Kernel) -> Iterator[tuple[Change, Mutant]]:
    if operator.call is None:
        return
    called = place_of_call(kernel.eqn)
    for change in operator.call(kernel):
        place = change.place or called
        yield (
            change,
            Mutant(
                operator=operator.name,
                change=change.words,
                kernel=kernel.name,
                home=kernel.home,
                places=() if place is None else (place,),
                part=change.part,
            ),
        )
