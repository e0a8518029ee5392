"""How long calls take on an accelerator, by JAX's profiler: without what the host does besides."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Planes of a profile that are accelerators.
_PLANES = ("/device:GPU:", "/device:TPU:")


@dataclass(frozen=True)
class Span:
    """What an accelerator was busy with, in nanoseconds since the profile began."""

    start: float
    end: float


def device_seconds(call: Callable[[], Any], *, calls: int = 10) -> float | None:
    """The median time of a call on the accelerator, in seconds.

    Args:
      call: what to time. It is called ``calls`` times, and each answer is waited for. Call it
        before, so that it is compiled.
      calls: how often.

    Returns:
      None where there is no accelerator, or its profile says nothing.
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


def spans(profile: Any) -> list[Span]:
    """When the first accelerator of a ``jax.profiler.ProfileData`` was busy, in order.

    A TPU has a line of whole programs, a GPU one for each stream, whose events are kernels and
    copies.
    """
    for plane in profile.planes:
        if plane.name.startswith(_PLANES):
            named = [(line.name, line) for line in plane.lines]
            whole = [line for name, line in named if name == "XLA Modules"]
            streams = [line for name, line in named if name.startswith("Stream")]
            events = [event for line in (streams or whole) for event in line.events]
            found = [Span(event.start_ns, event.start_ns + event.duration_ns) for event in events]
            return sorted(found, key=lambda span: span.start)
    return []


def median_seconds(busy: Sequence[Span], calls: int) -> float | None:
    """The median over ``calls`` equal calls, or the mean where they cannot be told apart.

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
