"""Calls that are made again and again, to be timed: compiled, with their arrays in place."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from pytest_pallas.backends import execution
from pytest_pallas.backends.hardware import Hardware, compile_proven
from pytest_pallas.backends.protocol import Backend, Call
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.devices.device_time import device_seconds


@dataclass(frozen=True)
class Times:
    """How long a call takes.

    Attributes:
      wall: the median of its wall time in seconds, with the host's part.
      device: its time on the accelerator in seconds; None where JAX's profiler does not tell.
    """

    wall: float
    device: float | None = None

    def over(self, other: Times) -> float:
        """How many times longer than another call: on the device, if both are known there."""
        if self.device and other.device:
            return self.device / other.device
        return self.wall / other.wall


@contextmanager
def prepared(backend: Backend, call: Call) -> Generator[Callable[[], Any]]:
    """A function that makes the call on a backend, and waits for its answer.

    It copies nothing: the arrays are on the device, and what is compiled is compiled. On the
    simulator it is the whole call, traced already.

    Raises:
      KernelError: the kernel raised.
      NoPallasCallError: the call has no kernel, or the hardware would not run it.
    """
    if isinstance(backend, Simulator):
        yield lambda: backend.run_anew(call).unwrap()
        return
    there: Any = backend  # compiling ones have no context, and nothing to time
    with there.context() if isinstance(backend, Hardware) else there.context(races=False):
        static, arrays = split(call)
        execution.trace(call, static, arrays)
        if isinstance(backend, Hardware) and call.jit and call.needs_kernel:
            compiled = compile_proven(static, arrays, backend.platform)
            yield lambda: jax.block_until_ready(compiled(arrays))
        else:
            run = jitted()
            yield lambda: jax.block_until_ready(run(static, arrays))


def times(run: Callable[[], Any], rounds: int) -> Times:
    """Time a prepared call, which was made before."""
    walls: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        walls.append(time.perf_counter() - start)
    return Times(statistics.median(walls), device_seconds(run, calls=rounds))
