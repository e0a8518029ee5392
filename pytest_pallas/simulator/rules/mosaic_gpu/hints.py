"""Rules: what only a compiler or a profiler heeds."""

from __future__ import annotations

from typing import Any

from pytest_pallas.simulator.registry import Equation, Evaluate, rule


@rule("layout_cast")
def _layout_cast(eqn: Equation) -> Evaluate:
    return lambda value: value


#: PDL lets a kernel begin before the one ahead of it has ended; here kernels follow each other.
_OVERLAP = ("griddepcontrol_wait", "griddepcontrol_launch_dependents")


@rule("set_max_registers", "set_max_registers_p", "print_layout", *_OVERLAP)
def _ignored(eqn: Equation) -> Evaluate:
    def evaluate(*_: Any) -> Any:
        return ()

    return evaluate
