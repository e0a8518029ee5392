"""Rules: kernels that begin before the one ahead has ended; see ``gpu/streams.py``."""

from __future__ import annotations

from typing import Any

from pytest_pallas.simulator.machine import Thread
from pytest_pallas.simulator.recording import Acquired
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.mosaic_gpu.places import gpu_thread


@rule("griddepcontrol_wait", threaded=True)
def _wait(eqn: Equation) -> Evaluate:
    """The kernels ahead have completed, as the thread knows that waits, and no other one yet."""
    line = eqn.line

    def evaluate(thread: Thread) -> Any:
        who = gpu_thread(thread)
        start = who.kernel_launch.start
        if start is not None:
            event = Acquired(who.number, start.token, line, who.program, who.kernel)
            who.recording.events.append(event)
            start.joined |= not who.block.signalled
        return ()

    return evaluate


@rule("griddepcontrol_launch_dependents", threaded=True)
def _launch_dependents(eqn: Equation) -> Evaluate:
    """It lets the next kernel begin, and makes nothing visible to it."""

    def evaluate(thread: Thread) -> Any:
        gpu_thread(thread).block.signalled = True
        return ()

    return evaluate
