"""Timing of calls: repeated, with arrays on the device; on an accelerator with JAX's profiler."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from pytest_pallas.backends import execution
from pytest_pallas.backends.hardware import Hardware, compile_proven
from pytest_pallas.backends.protocol import Backend, Call
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.backends.tracing import jitted, split

#: Planes of a profile that are accelerators.
_PLANES = ("/device:GPU:", "/device:TPU:")


@dataclass(frozen=True)
class BusyInterval:
    """A busy interval of an accelerator, in nanoseconds since the start of the profile."""

    start: float
    end: float


def device_seconds(call: Callable[[], Any], *, calls: int = 10) -> float | None:
    """The median time of a call on the accelerator, in seconds.

    Args:
      call: the function to time. It is called ``calls`` times, and must wait for its output. Call
        it once before, so that it is compiled.
      calls: the number of calls.

    Returns:
      None without an accelerator, or if its profile has no events.
    """
    import jax

    with tempfile.TemporaryDirectory(prefix="pytest-pallas-") as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                jax.block_until_ready(call())
        found = sorted(Path(folder).rglob("*.xplane.pb"))
        if not found:
            return None
        profile = jax.profiler.ProfileData.from_file(str(found[0]))
        return median_seconds(spans(profile), calls)


def spans(profile: Any) -> list[BusyInterval]:
    """The busy intervals of the first accelerator of a ``jax.profiler.ProfileData``, in order.

    A TPU has a line with whole programs; a GPU has a line for each stream, with kernels and copies.
    """
    for plane in profile.planes:
        if plane.name.startswith(_PLANES):
            named = [(line.name, line) for line in plane.lines]
            whole = [line for name, line in named if name == "XLA Modules"]
            streams = [line for name, line in named if name.startswith("Stream")]
            events = [event for line in (streams or whole) for event in line.events]
            found = [
                BusyInterval(event.start_ns, event.start_ns + event.duration_ns) for event in events
            ]
            return sorted(found, key=lambda span: span.start)
    return []


def median_seconds(busy: Sequence[BusyInterval], calls: int) -> float | None:
    """The median over ``calls`` equal calls, or the mean if they cannot be separated.

    The time of a call is from the start of its first kernel to the end of its last.
    """
    if not busy:
        return None
    size, rest = divmod(len(busy), calls)
    if rest:
        return sum(span.end - span.start for span in busy) / calls * 1e-9
    parts = [busy[size * i : size * (i + 1)] for i in range(calls)]
    return (
        statistics.median(max(span.end for span in part) - part[0].start for part in parts) * 1e-9
    )


@dataclass(frozen=True)
class Times:
    """The times of a call.

    Attributes:
      wall: the median of its wall time in seconds, including the host.
      device: its time on the accelerator in seconds; None if JAX's profiler does not report it.
    """

    wall: float
    device: float | None = None

    def over(self, other: Times) -> float:
        """The ratio to the time of another call: on the device, if both have device times."""
        if self.device and other.device:
            return self.device / other.device
        return self.wall / other.wall


@contextmanager
def prepared(backend: Backend, call: Call) -> Generator[Callable[[], Any]]:
    """A function that runs the call on a backend, and waits for its output.

    The arrays are already on the device, and the call is compiled. On the simulator, it is the
    whole call, which is already traced.

    Raises:
      KernelError: the kernel raised.
      NoPallasCallError: the call has no kernel, or the executable does not contain it.
    """
    if isinstance(backend, Simulator):
        yield lambda: backend.run_anew(call).unwrap()
        return
    there: Any = backend  # compiling backends have no context, and nothing to time
    with there.context() if isinstance(backend, Hardware) else there.context(races=False):
        static, arrays = split(call)
        execution.trace(call, static, arrays)
        if isinstance(backend, Hardware) and call.jit and call.needs_kernel:
            compiled = compile_proven(static, arrays, backend.platform)
            yield lambda: jax.block_until_ready(compiled(arrays))
        else:
            run = jitted(static)
            yield lambda: jax.block_until_ready(run(arrays))


def times(run: Callable[[], Any], rounds: int) -> Times:
    """Time a prepared call, which has run before."""
    walls: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        walls.append(time.perf_counter() - start)
    return Times(statistics.median(walls), device_seconds(run, calls=rounds))
