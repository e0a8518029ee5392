"""The evaluator: walks a prepared program, one equation after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_pallas.sim_errors import BoundsError, PallasError, SimulationError
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.program import Program, Step
from pytest_pallas.simulator.thread import Thread


def run(program: Program, thread: Thread, args: Sequence[Any]) -> list[Any]:
    """The results of a program.

    Args:
      program: what to evaluate.
      thread: who evaluates it.
      args: arrays and references, as many as the program has inputs.

    Raises:
      SimulationError: an equation cannot be evaluated; the message names its line.
    """
    machine = thread.machine
    steps = program.steps
    if machine.steps + len(steps) > machine.limits.steps or (
        program.largest[0] > machine.limits.bytes
    ):
        _reject(program, thread)
    machine.steps += len(steps)
    inputs = program.inputs
    if len(args) != len(inputs):
        raise ValueError(f"a program of {len(inputs)} inputs gets {len(args)}")
    env = program.slots.copy()
    env[inputs.start : inputs.stop] = args
    if machine.inspector is not None:
        steps = machine.inspector.steps(steps, thread, env)
    step: Step | None = None
    try:
        for step in steps:
            if step.threaded:
                result = step.evaluate(thread, *step.operands(env))
            else:
                result = step.evaluate(*step.operands(env))
            if not step.several:
                env[step.outs[0]] = result
            elif step.outs:
                for slot, value in zip(step.outs, result, strict=True):
                    env[slot] = value
            if step.dead:
                for slot in step.dead:
                    env[slot] = None
    except SimulationError as error:
        if not error.line and step is not None:
            error.at(step.line, thread.place)
        raise
    except BoundsError as error:
        if step is not None:
            _place(error, step, machine)
        raise
    except PallasError:
        raise
    except Exception as error:
        if machine.inspector is not None and error is machine.inspector.raised:
            raise
        assert step is not None
        wrapped = SimulationError(
            f"the simulator cannot evaluate {step.equation.name}: {type(error).__name__}: {error}"
        )
        wrapped.at(step.line, thread.place)
        raise wrapped from error
    return [env[slot] for slot in program.outputs]


def _place(error: BoundsError, step: Step, machine: Machine) -> None:
    """Give an access that JAX composed, of which no line is the user's, the line around it."""
    finding, line = error.finding, step.line
    if finding is None or finding.line or not line:
        return
    placed = replace(finding, line=line)
    machine.findings[:] = [placed if each is finding else each for each in machine.findings]
    error.finding, error.args = placed, (str(placed),)


def _reject(program: Program, thread: Thread) -> None:
    """Raise what ``run`` raises for a program that exceeds a limit."""
    machine = thread.machine
    try:
        machine.count(len(program.steps))
        size, equation = program.largest
        assert equation is not None
        aval = equation.out
        machine.require(size, f"the result of {equation.name}, {aval.dtype}{list(aval.shape)},")
    except SimulationError as error:
        guilty = program.largest[1] or program.steps[0].equation
        if machine.steps > machine.limits.steps and program.steps:
            guilty = program.steps[0].equation
        error.at(guilty.line, thread.place)
        raise
