"""Mutation operators: the mistakes that people make in kernels, each a function of an equation.

A module of this folder declares its own by ``@operator`` and ``@call_operator``. Importing this
package does not import jax; the modules do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
from collections.abc import Generator, Sequence

from pallas_sim.errors import OptionError
from pytest_pallas.mutation.model import Operator

#: The order in which operators are tried and listed. Modules that are not here come last.
_ORDER = ("comparisons", "grids", "masks", "arithmetic", "stores", "transfers", "randoms")

#: Operators of projects, while a session uses them.
_added: list[Operator] = []


@functools.cache
def declared_operators() -> tuple[Operator, ...]:
    """The operators of this package, in order. It imports their modules, and so JAX."""
    from pytest_pallas.mutation.declaring import declared_in

    names = [module.name for module in pkgutil.iter_modules(__path__)]
    names.sort(key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
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
