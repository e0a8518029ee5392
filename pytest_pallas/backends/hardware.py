"""The hardware backends ``tpu`` and ``gpu``: run kernels there, prove that they do, and time them.

``prove`` makes sure that an executable has the kernels that were traced. ``prepared`` and ``times``
time a call on any backend, on an accelerator with JAX's profiler.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from pallas_sim.chips import Target
from pytest_pallas.backends import execution, statuses
from pytest_pallas.backends.protocol import Backend, Call, Kind, Outcome, expected_warnings
from pytest_pallas.backends.registry import difference
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.budget import LastUsed
from pytest_pallas.errors import NoPallasCallError
from pytest_pallas.grid.kernel_calls import KernelCall, live_kernel_calls

#: Custom calls that a Pallas kernel becomes: Mosaic TPU; Mosaic GPU; Triton (two spellings).
CUSTOM_CALLS = {
    "tpu": ("tpu_custom_call",),
    "gpu": ("mosaic_gpu", "triton_kernel_call", "__gpu$xla.gpu.triton"),
}

#: Number of executables to keep for each backend: a session repeats shapes, and executables hold
#: device memory.
KEPT = 64


@dataclass(frozen=True)
class Hardware:
    """A backend that runs kernels on an accelerator of this machine."""

    name: str
    platform: str
    target: Target | None = None
    kind: Kind = "hardware"
    _executables: LastUsed[Any] = field(
        default_factory=lambda: LastUsed(KEPT), repr=False, compare=False
    )

    def available(self) -> str | None:
        """None if JAX finds a device of the platform, else the devices that it finds."""
        try:
            kinds = self.device_kinds()
        except statuses.NO_DEVICE as error:
            return statuses.why_no_device(self.platform, error)
        return None if self.target is None else difference(self.platform, kinds[0], self.target)

    def device_kinds(self) -> Sequence[str]:
        """Return the kind of each device.

        Raises:
          RuntimeError: JAX finds none.
        """
        with statuses.plugin_errors(self.platform):
            return [device.device_kind for device in jax.local_devices(backend=self.platform)]

    def run(self, call: Call) -> Outcome:
        """Compile a call, check that its kernels are in the executable, and run it."""
        outcome = execution.execute(call, self.context, self._prepare)
        if outcome.error is None:
            return outcome
        return replace(outcome, error=statuses.readable(outcome.error, outcome.kernels))

    @contextmanager
    def context(self) -> Generator[None]:
        """Run on the first device of the platform."""
        with jax.default_device(jax.local_devices(backend=self.platform)[0]), expected_warnings():
            yield

    def _prepare(self, static: Any, arrays: list[Any], *, spread: bool = False) -> Any:
        """Compile a call, for one process or several: see ``execution.Preparer``."""
        del spread
        places = (array.sharding if array.committed else None for array in arrays)
        shapes = ((array.shape, str(array.dtype)) for array in arrays)
        key = (static, tuple(shapes), tuple(places))
        executable = self._executables.get(key)
        if executable is None:
            executable = compile_proven(static, arrays, self.platform)
            self._executables.add(key, executable)
        return executable


def compile_proven(static: Any, arrays: list[Any], platform: str) -> Any:
    """Compile a call for the default device and check that its kernels are in the executable."""
    traced = jitted(static).trace(arrays)
    kernels = live_kernel_calls(traced.jaxpr)
    lowered = traced.lower()
    executable = lowered.compile()
    # An executable out of JAX's compilation cache may have no text.
    prove(kernels, executable.as_text() or lowered.as_text(), platform)
    return executable


def prove(kernels: list[KernelCall], text: str, platform: str) -> None:
    """Check that every kernel of a call is a custom call in the compiled ``text``.

    Args:
      kernels: the kernels of the traced call that are no dead code.
      text: the text of the executable, or of the lowered module.
      platform: ``"tpu"`` or ``"gpu"``.

    Raises:
      NoPallasCallError: a kernel is interpreted, or no custom call of Pallas is in the text.
    """
    interpreted = [kernel for kernel in kernels if kernel.interpreted]
    if interpreted:
        places = "; ".join(kernel.located_name for kernel in interpreted)
        raise NoPallasCallError(
            f"a hard-coded interpret=True runs an interpreter instead of the {platform}: {places}. "
            "Remove interpret=; the backend sets it where needed."
        )
    if kernels and not any(name in text for name in CUSTOM_CALLS[platform]):
        names = ", ".join(kernel.name for kernel in kernels)
        raise NoPallasCallError(
            f"the executable for {platform} has none of {', '.join(CUSTOM_CALLS[platform])}, "
            f"although {names} was traced: the kernel was not compiled as a Pallas kernel."
        )


def tpu(target: Target | None = None) -> Hardware:
    """Return the TPU of this machine."""
    return Hardware("tpu", "tpu", target)


def gpu(target: Target | None = None) -> Hardware:
    """Return the GPU of this machine."""
    return Hardware("gpu", "gpu", target)


# Timing of calls: repeated, with arrays on the device.

#: Planes of a profile that are accelerators.
_PLANES = ("/device:GPU:", "/device:TPU:")


class BusyInterval(NamedTuple):
    """A busy interval of an accelerator, in nanoseconds since the start of the profile."""

    start: float
    end: float


def device_seconds(call: Callable[[], Any], *, calls: int = 10) -> float | None:
    """Return the median time of a call on the accelerator, in seconds.

    Args:
      call: the function to time. It is called ``calls`` times, and must wait for its output. Call
        it once before, so that it is compiled.
      calls: the number of calls.

    Returns:
      None without an accelerator, or if its profile has no events.
    """
    with tempfile.TemporaryDirectory(prefix="pytest-pallas-") as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                jax.block_until_ready(call())
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            return None
        profile = jax.profiler.ProfileData.from_file(str(files[0]))
        return median_seconds(spans(profile), calls)


def spans(profile: Any) -> list[BusyInterval]:
    """Return the busy intervals of the first accelerator of a ``ProfileData`` of JAX, in order.

    A TPU has a line with whole programs; a GPU has a line for each stream, with kernels and copies.
    """
    for plane in profile.planes:
        if plane.name.startswith(_PLANES):
            named = [(line.name, line) for line in plane.lines]
            whole = [line for name, line in named if name == "XLA Modules"]
            streams = [line for name, line in named if name.startswith("Stream")]
            events = [event for line in (streams or whole) for event in line.events]
            intervals = [BusyInterval(e.start_ns, e.start_ns + e.duration_ns) for e in events]
            return sorted(intervals)
    return []


def median_seconds(busy: Sequence[BusyInterval], calls: int) -> float | None:
    """Return the median over ``calls`` equal calls, or the mean if they cannot be separated.

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
        """Return the ratio to another call's time: on the device, if both have device times."""
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
    executing: Any = backend  # compiling backends have no context, and nothing to time
    with executing.context():
        static, arrays = split(call)
        execution.trace(call, static, arrays)
        if isinstance(backend, Hardware) and call.settings.jit and call.needs_kernel:
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
