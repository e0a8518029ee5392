"""Declare that a function is a mutation operator, and find what a module declares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

from pytest_pallas.mutation.model import Change, KernelSite, Operate, Operator

type OperateOnCall = Callable[[KernelSite], Iterator[Change]]


def operator(name: str, *, mistake: str, before: str, after: str) -> Callable[[Operate], Operator]:
    """Declare that a function of an equation (``EquationSite``) in a kernel's body is an operator.

    Args:
      name: as in reports and in ``--pallas-mutate-operators``.
      mistake: what was done wrong, in a few words.
      before: a small piece of a right kernel.
      after: what it becomes.
    """

    def declare(operate: Operate) -> Operator:
        return Operator(name=name, mistake=mistake, before=before, after=after, operate=operate)

    return declare


def call_operator(
    name: str, *, mistake: str, before: str, after: str
) -> Callable[[OperateOnCall], Operator]:
    """Declare the same of a function of the call of a kernel (``KernelSite``); see ``operator``."""

    def declare(call: OperateOnCall) -> Operator:
        return Operator(name=name, mistake=mistake, before=before, after=after, call=call)

    return declare


def declared_in(module: ModuleType) -> tuple[Operator, ...]:
    """The operators that a module declares, in the order of its source."""
    found = (each for each in vars(module).values() if isinstance(each, Operator))
    return tuple(each for each in found if each.function.__module__ == module.__name__)
