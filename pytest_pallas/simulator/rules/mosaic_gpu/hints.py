"""Rules: what only a compiler or a profiler heeds."""

from __future__ import annotations

from typing import Any

from pytest_pallas.simulator.registry import Equation, Evaluate, rule


@rule("layout_cast")
def _layout_cast(eqn: Equation) -> Evaluate:
    return lambda value: value


@rule("set_max_registers", "set_max_registers_p", "print_layout")
def _ignored(eqn: Equation) -> Evaluate:
    def evaluate(*_: Any) -> Any:
        return ()

    return evaluate
