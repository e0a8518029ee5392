"""Mutation operators: the mistakes that people make in kernels, each a function of an equation.

``MODULES`` declare theirs by ``@operator`` and ``@call_operator``. Importing this module does not
import jax; they do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Generator, Sequence

from pallas_sim.errors import OptionError
from pytest_pallas.mutate.model import Operator

#: The modules that declare operators, in the order in which these are tried and listed.
MODULES = ("control_operators", "data_operators")

#: Operators of projects, while a session uses them.
_added: list[Operator] = []


@functools.cache
def declared_operators() -> tuple[Operator, ...]:
    """The operators of this package, in order. It imports their modules, and so JAX."""
    from pytest_pallas.mutate.model import declared_in

    modules = [importlib.import_module(f"pytest_pallas.mutate.{name}") for name in MODULES]
    return tuple(operator for module in modules for operator in declared_in(module))


def known_operators() -> tuple[Operator, ...]:
    """Those of this package, then those that projects added."""
    return (*declared_operators(), *_added)


@contextlib.contextmanager
def added_operators(operators: Sequence[Operator]) -> Generator[None]:
    """Know ``operators`` besides those of this package.

    Raises:
      OptionError: two operators have the same name.
    """
    before = _added[:]
    for operator in operators:
        if operator.name in {each.name for each in known_operators()}:
            _added[:] = before
            raise OptionError(f"there are two mutation operators of the name {operator.name!r}")
        _added.append(operator)
    try:
        yield
    finally:
        _added[:] = before


__all__ = ["added_operators", "declared_operators", "known_operators"]
