"""Rules: layouts and registers, which change no value."""

from __future__ import annotations

from typing import Any

from pytest_pallas.simulator.gpu.registers import set_registers
from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.places import gpu_thread


@rule("layout_cast")
def _layout_cast(eqn: Equation) -> Evaluate:
    return lambda value: value


@rule("set_max_registers", "set_max_registers_p", threaded=True)
def _set_max_registers(eqn: Equation) -> Evaluate:
    count, more, line = eqn.params["n"], eqn.params["action"] == "increase", eqn.line

    def evaluate(thread: Thread) -> Any:
        set_registers(gpu_thread(thread), count, line, more=more)
        return ()

    return evaluate


@rule("print_layout")
def _ignored(eqn: Equation) -> Evaluate:
    def evaluate(*_: Any) -> Any:
        return ()

    return evaluate
