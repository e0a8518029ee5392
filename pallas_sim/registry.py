"""Rules: how the simulator evaluates one primitive, registered where they stand.

A rule is called once for each equation of a program, with everything that is known before the
program runs (parameters, shapes, dtypes), and gives the function that computes its values. What
can be decided once is decided there; what runs again in every step of a loop or grid stays small.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pallas_sim.compat.source import is_machinery, source_line
from pallas_sim.transforms import Operand

#: Computes the results of an equation from its operands: one value, or a sequence of them where
#: the primitive has several results. A threaded one takes the ``Thread`` first.
Evaluate = Callable[..., Any]


@dataclass(frozen=True)
class Equation:
    """What is known of one equation before it is evaluated.

    Attributes:
      name: of its primitive.
      params: of the primitive.
      ins: abstract values of its operands.
      outs: abstract values of its results.
      origin: the equation in JAX's program, for its source line; None in eager mode.
      home: the module that defines the primitive: names are not unique.
      around: ``file:line`` of the equation around it, for those that have none: JAX keeps no line
        of what it does itself in a scope (``sync_copy``).
      used: whether something reads a result. What most stores return, the old elements, is not
        read.
    """

    name: str
    params: Mapping[str, Any]
    ins: tuple[Any, ...]
    outs: tuple[Any, ...]
    origin: Any = None
    home: str = ""
    around: str = ""
    used: bool = True

    @property
    def out(self) -> Any:
        """The abstract value of its only result."""
        return self.outs[0]

    def operands_in(self, tree: str) -> Any:
        """Return what the tree in a parameter makes of all operands, each an ``Operand``."""
        return self.params[tree].unflatten([Operand(number) for number in range(len(self.ins))])

    @cached_property
    def line(self) -> str:
        """``file:line`` of the code that made it, or ""."""
        return (self.origin is not None and source_line(self.origin)) or self.around

    @property
    def of_jax(self) -> bool:
        """Whether JAX made it for a loop or pipeline of its own."""
        return self.origin is not None and is_machinery(self.origin)


@dataclass(frozen=True, slots=True)
class Rule:
    """How one primitive is evaluated.

    Attributes:
      bind: gives the function that evaluates an equation.
      threaded: whether that function takes the ``Thread`` that evaluates it, before the operands.
        A rule is threaded if it reads or writes memory, runs another program, or needs to know
        where it runs.
      computes: whether all that a threaded one does is to compute its results.
    """

    bind: Callable[[Equation], Evaluate]
    threaded: bool = False
    computes: bool = False


_RULES: dict[tuple[str, str], Rule] = {}

#: Modules that register more rules when they are imported.
_DEFERRED: list[str] = []


def rule(
    *names: str, threaded: bool = False, computes: bool = False, home: str = ""
) -> Callable[[Callable[[Equation], Evaluate]], Callable[[Equation], Evaluate]]:
    """Register a rule for the primitives of these names.

    Args:
      names: of the primitives, as they are printed in a jaxpr.
      threaded: see ``Rule``.
      computes: see ``Rule``.
      home: the end of the name of the module that defines the primitive, where another one has the
        same name; the rule of that home goes first.

    Raises:
      ValueError: there is such a rule already. The same function of a module that is imported again
        takes its own place.
    """

    def register(bind: Callable[[Equation], Evaluate]) -> Callable[[Equation], Evaluate]:
        if not bind.__module__.startswith(f"{__package__}."):
            while _DEFERRED:  # a project's rule is compared with all
                _import_deferred()
        for name in names:
            known = _RULES.get((name, home))
            if known is not None and not _is_again(known.bind, bind):
                raise ValueError(f"there are two rules for the primitive {name!r}")
            _RULES[name, home] = Rule(bind, threaded, computes)
        return bind

    return register


def _is_again(known: Callable[..., Any], bind: Callable[..., Any]) -> bool:
    """Return whether a rule is of a module that is imported twice, as conftest.py may be."""
    known, bind = inspect.unwrap(known), inspect.unwrap(bind)
    one, two = getattr(known, "__code__", None), getattr(bind, "__code__", None)
    if one is None or two is None:
        return False
    if getattr(known, "__globals__", None) is getattr(bind, "__globals__", None):
        return False  # one module, which has two
    return (one.co_filename, one.co_firstlineno) == (two.co_filename, two.co_firstlineno)


def defer_rules(module: str) -> None:
    """Import a module with rules when a primitive has none of those that are registered.

    Args:
      module: its name. None of its rules has a ``home``.
    """
    _DEFERRED.append(module)


def _import_deferred() -> None:
    """Register the rules of one more module."""
    importlib.import_module(_DEFERRED[-1])
    _DEFERRED.pop()


def find_rule(name: str, home: str = "") -> Rule | None:
    """Return the rule of a primitive, or None if there is none."""
    while True:
        known = _RULES.get((name, home.rpartition(".")[2])) or _RULES.get((name, ""))
        if known is not None or not _DEFERRED:
            return known
        _import_deferred()
